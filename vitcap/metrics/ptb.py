"""Penn Treebank tokenisation of captions as the COCO caption evaluation does it, without Java.

`tokenize` gives what the Stanford tokenizer (CoreNLP 3.4.1, `-preserveLines -lowerCase`) and then COCO's removal of 17
punctuation strings give (Chen et al. 2015, arXiv:1504.00325, section 3): lower case, clitics split off (`man 's`,
`is n't`, `can not`), hyphenated words whole, brackets as `-lrb-` and `-rrb-` (they stay: only the upper-case spelling
is on the list), quotes, commas and full stops gone.

The lexer is a table of patterns. At each place the pattern that matches most text wins, the earlier one on a tie; text
that a pattern must see but does not take (its right context) counts in that comparison. Group 1 is the token, the rest
is context. Nothing but a few numbers, abbreviations and tags looks across a blank, so each blank-separated piece is
lexed once and remembered.

Departure from the Java program, on purpose: every caption is tokenised on its own, so that a line-breaking character
inside one (CR, VT, FF, NEL, U+2028, U+2029 as well as LF) is a blank and never moves later captions to other images.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

PUNCTUATION = frozenset(
    ["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"]
)
"""Tokens that COCO removes after tokenisation."""

# Letters: what Python calls alphanumeric, with combining marks and accent entities, without the signs that the
# tokenizer takes for symbols (superscripts, fractions, circled numbers).
_MARKS = (
    "\u02c2-\u02c5\u02d2-\u02df\u02e5-\u02eb\u02ed\u02ef-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4"
    "\u05c5\u05c7\u0615-\u061a\u064b-\u065e\u0670\u06d6-\u06e4\u06e7-\u06ed\u0711\u0730-\u074c\u07a6-\u07b0"
    "\u07eb-\u07f3\u0900-\u0903\u093c\u093e-\u094e\u0951-\u0955\u0962\u0963\u0981-\u0983\u09bc\u09be-\u09cd"
    "\u0a01-\u0a03\u0a3c-\u0a4f\u0a81-\u0a83\u0abc-\u0acf\u0b82\u0bbe-\u0bcd\u0c01-\u0c03\u0c3e-\u0c56\u0d3e-\u0d48"
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ecd"
)
_SIGNS = "²³¹¼-¾\u2070-\u2089\u2150-\u2189\u2460-\u249b\u24ea-\u24ff\u2776-\u2793\u3007\u3021-\u3029"
_L = rf"(?:[^\W\d_{_SIGNS}]|[{_MARKS}]|&[aeiouAEIOU](?:acute|grave|uml);)"
_A = rf"(?:[^\W_{_SIGNS}]|[{_MARKS}]|&[aeiouAEIOU](?:acute|grave|uml);)"
_SYMBOLS = (
    "!-~\u0080\u00a1-\u00a9\u00ac\u00ae-\u00b4\u00b6-\u00b9\u00bc-\u00bf×÷\u037e\u0387\u0589\u05be\u05c0\u05c3\u05c6"
    "\u05f3\u05f4\u0600-\u0603\u0606-\u060c\u0614\u061b\u061e\u061f\u066a\u066d\u06d4\u0700-\u070d\u07f6-\u07f8"
    "\u0964\u0965\u0e3f\u0e4f\u1fbd\u2016\u2017\u201a\u201e-\u2023\u2030-\u2038\u203b\u203e-\u2042\u2044\u20a0\u20a4"
    "\u20ac\u2100-\u214f\u2153-\u215e\u2190-\u2bff\u3001\u3002\u3012\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40"
    "\uff5b-\uff65\uffe0\uffe1\uffe5\uffe6"
)
_Q = "(?:['\u2019\u0092]|&apos;)"
_TICK = "(?:['\u2019\u0092`\u2018\u201b\u0091]|&apos;)"
_QUOTES = "`\u2018-\u201d\u0091-\u0094«»‹›"
_WORD = rf"{_L}{_A}*(?:[.!?]{_L}{_A}*)*"
_THING = rf"(?:[dDoOlL]{_TICK}{_A})?{_A}+(?:[-_\u058a\u2010\u2011](?:[dDoOlL]{_TICK}{_A})?{_A}+)*"
_HYPHENATED = r"[A-Za-z0-9][A-Za-z0-9.,]*(?:-(?:[A-Za-z](?:\.[A-Za-z])+\.|[A-Za-z0-9]+))+"
_PART = r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}"
_AMPERSAND = r"[A-Z]+(?:(?:[+&]|&amp;)[A-Z]+)+"
_CLITIC = rf"{_Q}(?i:[msd]|re|ve|ll)"
_NAME = r"[A-Za-z][A-Za-z0-9_:.-]*"
_URL = r"[^ \"<>|()]+[^ \"<>|.!?(){},-]"
_WWW = r"www\.(?:[^ \"<>|.!?(){},]+\.)+[a-zA-Z]{2,4}"
_DOMAIN = r"(?:[^ \"`'<>|.!?(){},-_$]+\.)+(?:com|net|org|edu)"
_FACE = r"[-^x=~<>']"
_FILE = "bat bmp c cgi class cpp dll doc docx exe gif gz h htm html jar java jpeg jpg mov mp3 pdf php pl png ppt ps py"
_FILE += " sql tar txt wav x xml zip"

# Abbreviations that keep their full stop: before anything; before anything but a word that is glued on;
# the same but only when capitalised; before a number.
_TITLES = """adj adm adv alex asst atty attys ave brig capt cf cie cmdr col comdr cpl dept det dr drs elec ens ft
    gen gov govs hon insp invt jos lieut lt maj messrs mfg mlle mme mr mrs ms mt mtg natl pfc ph pres prof profs pvt
    rep reps rev sen sens sfc sgt spc st ste supt supts vs wm"""
_ABBREVIATIONS = """al apr ariz assn assoc aug bancorp bhd bldg blvd bros calif co colo conn corp cos ct dak dec
    ed.d esq est etc ext feb fla fri ga inc ind intl jan jr jul jun kan kans ky ltd mar md mich minn mo mon mont neb
    nev nov oct okla penn ph.d plc ppte pptes ppty pptys pte ptes pty ptys rd rt sep sept seq sq sr sys tel tenn thu
    thurs treas tue tues univ va vt wed wis wisc wyo"""
_CAPITALISED = "Ark Az Del Ill La Mass Miss Ore Pa Tex Wash ARK AZ DEL ILL LA MASS MISS ORE PA TEX WASH"
_NUMBERED = "art ca fig figs no nos op pp prop"
# After a single letter and a full stop these words, capitalised, start a sentence, so that the letter is no initial.
_SENTENCE_STARTS = """a about according additionally after an as at but earlier he her here however if in it last many
    more now once one other our she since so some such that the their then there these they this we what when while yet
    you"""


def _any(words: str) -> str:
    return f"(?:{'|'.join(re.escape(w) for w in sorted(words.split(), key=len, reverse=True))})"


_STARTERS = f"(?:{_any(_SENTENCE_STARTS.title())}|{_any(_SENTENCE_STARTS.upper())}|M[rs]\\.)"
_PATTERNS = [
    re.compile(pattern)
    for pattern in (
        # tags
        rf"(<(?:[!?][A-Za-z-][^>]*|/?{_NAME}(?: +{_NAME}(?: *= *(?:'[^']*'|\"[^\"]*\"))?)* */?) *>)",
        # contractions, clitics and words
        r"((?i:can))(?i:not)",
        r"((?i:gon|wan))(?i:na)",
        r"((?i:got))(?i:ta)",
        r"((?i:gim|lem))(?i:me)",
        r"('[tT])(?i:is|was)",
        rf"([A-Za-z]*[A-MO-Za-mo-z])[nN]{_TICK}[tT]",
        rf"({_WORD}){_CLITIC}",
        rf"({_CLITIC})[^A-Za-z]",
        rf"([A-HJ-XZn]{_TICK}{_L}{_L}+|{_L}+[aeiouyAEIOUY]{_TICK}[aeiouA-Z]{_L}*)",
        rf"([nN]{_TICK}[tT])[^A-Za-z]",
        rf"({_WORD})",
        rf"({_Q}[nN]{_Q}?|[lLdDjJ]{_Q}|(?i:dunkin|somethin|ol){_Q}|{_Q}(?i:em|till?|cause)|{_Q}[2-9]0s)",
        rf"((?i:nat{_Q}l|cap{_Q}n|c{_Q}mon|c{_Q}est))",
        rf"([yY]{_Q})[A-Za-z]",
        # addresses, hash tags, names
        rf"((?i:https?)://{_URL})",
        rf"({_WWW}|{_DOMAIN})",
        rf"((?:{_WWW}|{_DOMAIN})/{_URL})".replace("+", "+?", 2),
        r"(<?[a-zA-Z0-9][^ \"<>|(){}]*@(?:[^ \"<>|().{}]+\.)*[^ \"<>|().{}]+>?)",
        rf"(#{_L}+|@[a-zA-Z_][a-zA-Z0-9_]*)",
        # dates, numbers, fractions, small digits, telephone numbers
        r"(\d{1,2}[-/]\d{1,2}[-/]\d{2,4})",
        r"([-+]?(?:\d*(?:[.:,]\d+)+|\d+))",
        r"((?:\d{1,4}[- ])?\d{1,4}(?:\\?/|\u2044)\d{1,4})",
        r"([\u00b2\u00b3\u00b9\u2070\u2074-\u2079]+|[\u2080-\u2089]+)",
        r"((?:\(\d{2,3}\) ?|(?:\+\+?)?(?:\d{2,4}[- ])?\d{2,4}[- ])\d{3,4}[- ]?\d{3,5})",
        # words with hyphens, slashes, ampersands
        rf"({_THING})",
        rf"({_PART}(?:\\?/{_PART}){{1,2}})",
        rf"({_AMPERSAND}|(?i:c\+\+|[cf]#))",
        r"((?i:s&p-500|s&ls))",
        # abbreviations, initials, words whose full stop stays before a comma, file names
        rf"((?i:{_any(_ABBREVIATIONS)})\.|{_any(_CAPITALISED)}\.)..",
        rf"((?i:{_any(_TITLES)})\.)",
        r"([A-Za-z](?:\.[A-Za-z])*\.)",
        rf"([A-Za-z])\. +{_STARTERS} ",
        rf"((?i:{_any(_NUMBERED)})\.) ?\d",
        rf"((?:{_WORD}|{_THING}|{_HYPHENATED}|{_AMPERSAND})\.)[,;:\u3001]",
        rf"({_A}+(?:\.{_A}+)*\.(?i:{_any(_FILE)}))[ .?!,]",
        rf"({_HYPHENATED})",
        # faces, years, brackets spelled out, quotes, entities, signs
        r"([<>]?[:;=][-o*']?[()DPdpO\\{@|\[\]])[^A-Za-z0-9]",
        rf"({_FACE}_{_FACE}|\({_FACE}[_.]?{_FACE}\))",
        rf"({_Q}[0-9][0-9]) ",
        r"((?i:-[lr][rsc]b-|anti-|pro-))",
        r"([A-Z]*\$)",
        rf"(''|[{_QUOTES}]{{1,2}}|{_Q})",
        r"(')[A-Za-z][^ ]",
        rf"({_CLITIC})",
        r"(&(?:amp|lt|gt|quot|nbsp|[mn]dash|#[0-9]+);)",
        r"([?!]+|\*+|(?:\\\*){1,3}|#+|@+|_+|-+|<<|>>|\.{3,5})",
        rf"([{_SYMBOLS}])",
    )
]

# How a token is spelled in the end. Tokens are joined by blanks, so a blank inside one becomes a no-break space.
_QUOTE_SPELLING = str.maketrans(
    dict.fromkeys("\u2018\u201b\u0091‹", "`")
    | dict.fromkeys("\u2019\u0092›", "'")
    | dict.fromkeys("\u201c\u0093«", "``")
    | dict.fromkeys("\u201d\u0094»", "''")
)
_PARTS = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&apos;": "'", "(": "-lrb-", ")": "-rrb-", " ": "\u00a0"}
_WHOLE = {"[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-", "&nbsp;": "-", "&mdash;": "-", "&ndash;": "-"}
_WHOLE |= {'"': "''", "&quot;": "''", "¢": "cents", "£": "#"} | dict.fromkeys("\u0080¤\u20a0€", "$")
_WHOLE |= {"¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}
_QUOTED = re.compile(rf"[{_QUOTES}]+|{_Q}|{_CLITIC}|[nN]{_TICK}[tT]")
_LOOKS_ACROSS = re.compile(
    r"[<.0-9](?:(?<=<)|(?<=[0-9])(?:\s\n?\d+\\?[/\u2044]|\)?\s\n?\d{3})|(?<=\.)(?:\s\n?\d|(?<=\b[A-Za-z]\.)\s+[A-Z]))"
)
_INITIAL = re.compile(r"(?:^|(?<= ))([a-z])\.$")
_STARTS = re.compile(rf" *{_STARTERS} ")
_BLANK = re.compile(r"\r\n|\s")
_DROPPED = re.compile("[\u00ad\U00010000-\U0010ffff]")


def _spell(token: str) -> str:
    if token in _WHOLE:
        return _WHOLE[token]
    if _QUOTED.fullmatch(token):
        token = token.translate(_QUOTE_SPELLING)
    for text, spelling in _PARTS.items():
        token = token.replace(text, spelling)
    return re.sub(r"^(?:-{1,4}|\.+)$", ".", token).lower()


def _lex(text: str) -> str:
    """Tokens of a text whose only white space is the blank, punctuation removed, joined by blanks."""
    text = _DROPPED.sub(lambda match: "" if match[0] == "\u00ad" else " ", text)
    stop, place, tokens = len(text), 0, []
    text += "  "  # what ends a caption is white space to the patterns
    while place < stop:
        best, end = None, place
        if text[place] != " ":
            for pattern in _PATTERNS:
                match = pattern.match(text, place)
                if match and match.end() > end:
                    best, end = match, match.end()
        if best is None:  # a blank, or a character that the tokenizer does not know
            place += 1
            continue
        place = best.end(1)
        tokens.append(_spell(best[1]))
    return " ".join(token for token in tokens if token not in PUNCTUATION)


_lex_piece = lru_cache(maxsize=1 << 17)(_lex)


def tokenize(captions: Iterable[str], *, as_lines: bool = False) -> list[str]:
    """Each caption as its lower-case tokens joined by single blanks, "" where nothing but punctuation was in it.

    As many results as captions, in their order. A token may contain a no-break space (a fraction such as "3 1/2", a
    telephone number, a tag), as in the program that this follows; the COCO scorers count it as the words it joins in
    BLEU and CIDEr-D and as one word in ROUGE-L.

    as_lines: read the captions as the lines of one file, as the Java program does. Only a caption that ends in a single
    letter and a full stop ("a sign with the letter K.") can come out differently, "k" in place of "k.": where the next
    caption starts a sentence ("A man ..."). Off by default, because scores must not depend on the order of captions.
    """
    if isinstance(captions, str):
        raise ValueError("tokenize takes a list of captions, not one string: pass [caption]")
    captions = list(captions)
    results = []
    for caption in captions:
        if _LOOKS_ACROSS.search(caption):
            results.append(_lex(_BLANK.sub(" ", caption)))
        else:
            results.append(" ".join(filter(None, map(_lex_piece, caption.split()))))
    if as_lines:
        for i, following in enumerate(captions[1:]):
            if captions[i].rstrip().endswith(".") and _STARTS.match(following + " "):
                results[i] = _INITIAL.sub(r"\1", results[i])
    return results
