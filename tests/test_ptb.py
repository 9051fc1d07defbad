"""The PTB tokeniser against the Stanford tokenizer: a table of its answers to hard cases, and the program itself."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from vitcap.metrics.ptb import PUNCTUATION, tokenize

# Answers of CoreNLP 3.4.1 (-preserveLines -lowerCase), COCO's punctuation taken out. Each text was its own caption.
CASES = [
    # clitics and contractions
    ("the man's dog isn't here", "the man 's dog is n't here"),
    (
        "I'm sure you're right, he'd go, we'll see, they've won, she's out",
        "i 'm sure you 're right he 'd go we 'll see they 've won she 's out",
    ),
    ("I’m, you’re, he’d, isn’t, the man’s", "i 'm you 're he 'd is n't the man 's"),
    ("CAN'T WON'T Don't DON'T", "ca n't wo n't do n't do n't"),
    (
        "cannot Cannot gonna gotta wanna lemme gimme cannots",
        "can not can not gon na got ta wan na lem me gim me cannots",
    ),
    ("'tis 'twas 'Tis ’tis", "'t is 't was 't is tis"),
    ("rock 'n' roll and the '90s, '05", "rock 'n' roll and the '90s '05"),
    ("o'clock O'Brien d'Artagnan ma'am y'all ne'er", "o'clock o'brien d'artagnan ma'am y' all ne'er"),
    ("the dogs' toys in the boys' room", "the dogs toys in the boys room"),
    ("shouldn't've couldn't've I'd've", "should n't 've could n't 've i 'd 've"),
    (
        "finger lickin' goin' somethin' ol' 'em 'til 'cause 'bout",
        "finger lickin goin somethin' ol' 'em 'til 'cause bout",
    ),
    ("he's'nt it''s don''t a'b'c", "he 's nt it s don t a b c"),
    ("RV's TV's U.S.'s 1990's 5th's A&B's", "rv 's tv 's u.s. 's 1990 's 5th 's a&b 's"),
    ("qu'il l'homme c'mon cap'n nat'l gov't", "qu'il l'homme c'mon cap'n nat'l gov t"),
    # brackets
    ("(in a red hat)", "-lrb- in a red hat -rrb-"),
    ("[in] {braces} <in angles>", "-lsb- in -rsb- -lcb- braces -rcb- <in\u00a0angles>"),
    ("a (very) [big] {dog}.", "a -lrb- very -rrb- -lsb- big -rsb- -lcb- dog -rcb-"),
    ("-lrb- -RRB-", "-lrb- -rrb-"),
    # hyphens and dashes
    ("a black-and-white photo -- of a cat - dog – en — em", "a black-and-white photo of a cat dog en em"),
    (
        "well-known x-ray T-shirt pre-1990 mid-20th 20-foot-long",
        "well-known x-ray t-shirt pre-1990 mid-20th 20-foot-long",
    ),
    ("a-b- -a-b -a a- --a a-- a--b a---b ---- -----", "a-b a-b a a a a a b a b -----"),
    (
        "a\u2010b a\u2011b a_b _a a_ __a__ a/b-c a-b-c-d/e",
        "a\u2010b a\u2011b a_b _ a a _ __ a __ a/b-c a-b-c-d / e",
    ),
    (
        "man/woman his/her/their w/ w/o and/or a/b/c/d / //",
        "man/woman his/her/their w / w/o and/or a/b/c / d / / /",
    ),
    # dots, abbreviations, acronyms
    ("a... b.. c. .d ..e ...f . . .", "a. b. c. d e f"),
    (
        "U.S. u.s. U.S.A. p.m. P.M. e.g. i.e. etc. Mr. Mrs. Dr. St. vs. Inc. Corp. Jan.",
        "u.s. u.s. u.s.a. p.m. p.m. e.g. i.e. etc. mr. mrs. dr. st. vs. inc. corp. jan.",
    ),
    ("Mr. Smith lives on Main St. in Washington D.C.", "mr. smith lives on main st. in washington d.c."),
    ("at 5 p.m. in the U.S.", "at 5 p.m. in the u.s."),
    ("No. 5, no.5, fig. 2, p. 5, no. I said", "no. 5 no. 5 fig. 2 p. 5 no i said"),
    ("cat., dog.; cow.: hen.) pig.'s", "cat. dog. cow. hen -rrb- pig 's"),
    (
        "etc.-a etc.a etc.abc jan.1 mr.smith u.s.-led cat.-a",
        "etc. a etc. a etc.abc jan. 1 mr.smith u.s.-led cat.-a",
    ),
    (
        "Wash. wash. Mass. mass. Ill. ill. Tex. Ph.D. ph.d. M.D.",
        "wash. wash mass. mass ill. ill tex. ph.d. ph.d. m.d.",
    ),
    ("a sign with the letter K. A man waits", "a sign with the letter k a man waits"),
    ("K. Smith and the letter k. the end", "k. smith and the letter k. the end"),
    ("dogs.Cats dogs.5 a.b!c?d end.start", "dogs.cats dogs .5 a.b!c?d end.start"),
    ("10a.m. 5p.m. 5:30p.m. 10 a.m.", "10a m. 5p m. 5:30 p.m. 10 a.m."),
    # quotes
    ("he said \"yes.\" and 'no.'", "he said yes and no"),
    ("“curly” ‘single’ «guillemets» ‹x› „low“", "curly single guillemets x „ low"),
    ("``latex'' `back` \"\" '' ' \"it's\" '\"a\"'", "latex back it 's a"),
    ("“‘nested’” ‘’ it”s", "``` nested ''' `' it s"),
    # numbers, fractions, dates, money
    ("3 1/2 1/2 1/4 3-1/2 1/2-inch 24/7 12345/6 5/a", "3\u00a01/2 1/2 1/4 3-1/2 1/2-inch 24/7 12345/6 5/a"),
    (
        "10/12/2014 2014-10-12 12:30 12:30pm 5pm 1,000,000 1.5 .5 -5 +5 5.5lbs",
        "10/12/2014 2014-10-12 12:30 12:30 pm 5pm 1,000,000 1.5 .5 -5 +5 5.5 lbs",
    ),
    (
        "$5 $5.00 £5 €5 ¥5 5¢ US$5 A$ 5% #5 5th 1st 20's",
        "$ 5 $ 5.00 # 5 $ 5 ¥ 5 5 cents us$ 5 a$ 5 % # 5 5th 1st 20 's",
    ),
    ('5\'10" 6\' 6" 5\'x7\' 3x4 8x10" 12"x12"', "5 10 6 6 5 x7 3x4 8x10 12 x12"),
    (
        "(555) 555-1234 555-555-1234 +44 20 7946 0958 (5) (555)",
        "-lrb-555-rrb-\u00a0555-1234 555-555-1234 +44\u00a020\u00a07946\u00a00958 -lrb- 5 -rrb- -lrb- 555 -rrb-",
    ),
    (
        "1a a1 1.a 1a. 5.Dogs 2.5mm 10mm 747s B-52 MP3 4x4 2x4s",
        "1a a1 1 a 1a 5 dogs 2.5 mm 10mm 747s b-52 mp3 4x4 2x4s",
    ),
    # addresses, hash tags, names
    (
        "http://www.example.com/a/b?c=d. www.example.com, example.com's a.com/bc",
        "http://www.example.com/a/b?c=d www.example.com example.com 's a.com/bc",
    ),
    (
        "foo@bar.com user.name@mail.co.uk <a@b.c> @ @home @a_1 #tag #a1 #été ##",
        "foo@bar.com user.name@mail.co.uk <a@b.c> @ @home @a_1 #tag #a 1 #été ##",
    ),
    ("foo.jpg 1.jpg a1.mp3 foo-bar.jpg 1.cat", "foo.jpg 1.jpg a1.mp3 foo-bar jpg 1 cat"),
    ('<b>bold</b> <br/> <a href="x y"> a<b 1<2', '<b> bold </b> <br/> <a\u00a0href="x\u00a0y"> a < b 1 < 2'),
    # signs and entities
    (
        "C++ c# F# AT&T R&B b&w rock&roll & &amp; &lt; a&amp;b &quot; caf&eacute; &#39;",
        "c++ c# f# at&t r&b b & w rock & roll & & < a & b caf&eacute; &#39;",
    ),
    ("! !! ?! ??? , ,, ; : :: * ** \\* + = ~ ^ | || \\ %", "!! ?! ??? * ** \\* + = ~ ^ | | | \\ %"),
    (
        ":) ;-) :( :D :P =) :)) :( <3 ^_^ (^_^) o_O >_<",
        ":-rrb- ;--rrb- :-lrb- :d :p =-rrb- :-rrb- -rrb- :-lrb- < 3 ^_^ -lrb-^_^-rrb- o_o >_<",
    ),
    ("yes!no what?now a!! b?? c?!", "yes!no what?now a !! b ?? c ?!"),
    # Unicode
    ("café naïve Zürich Ångström straße ÇA İstanbul", "café naïve zürich ångström straße ça i̇stanbul"),
    ("日本語 русский Ελληνικά עברית العربية हिन्दी", "日本語 русский ελληνικά עברית العربية हिन्दी"),
    ("a😀b 👍🏽 ☺ ★ © ™ 5° ½ 1½ × ± m² H₂O № …", "a b ☺ ★ © ™ 5 ° 1/2 1 1/2 × ± m ² h ₂ o №"),
    (
        "e\u0301te\u0301 co\u00adop zero\u200bwidth non\u00a0breaking 全角，文字。",
        "e\u0301te\u0301 coop zero width non breaking 全角 ， 文字 。",
    ),
]
HARD = dict(CASES)

LINE_BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("text", HARD)
def test_hard_cases(text: str) -> None:
    assert tokenize([text]) == [HARD[text]]


def test_captions_do_not_see_each_other() -> None:
    texts = list(HARD)
    together = dict(zip(texts, tokenize(texts), strict=True))
    backwards = dict(zip(texts[::-1], tokenize(texts[::-1]), strict=True))
    assert together == backwards == HARD


@pytest.mark.parametrize("mark", LINE_BREAKS, ids=ascii)
def test_line_breaks_are_blanks_and_move_nothing(mark: str) -> None:
    captions = [f"first{mark}cap", f"{mark}second one{mark}", mark, "third"]
    assert tokenize(captions) == ["first cap", "second one", "", "third"]
    assert tokenize([f"no.{mark}5 or 3{mark}1/2"])[0].replace("\u00a0", " ") == "no. 5 or 3 1/2"


def test_what_is_no_text_vanishes() -> None:
    assert tokenize(["", "  ", ".", '"!" ...', "\u200b", "\U0001f600"]) == [""] * 6
    assert tokenize(["a \ud83d b\udc00"]) == ["a b"]  # halves of surrogate pairs, as broken JSON files have them


def test_lines_of_one_file() -> None:
    captions = ["a sign that reads K.", "A man waits", "the letter K.", "a dog"]
    assert tokenize(captions) == ["a sign that reads k.", "a man waits", "the letter k.", "a dog"]
    assert tokenize(captions, as_lines=True) == ["a sign that reads k", "a man waits", "the letter k.", "a dog"]


def test_one_string_is_refused() -> None:
    with pytest.raises(ValueError, match="list of captions"):
        tokenize("a dog")


def by_java(captions: list[str], folder: Path) -> list[str]:
    """The Java program's tokens. A neutral last line keeps the end of the file away from the last caption."""
    package = importlib.util.find_spec("pycocoevalcap")
    if package is None or shutil.which("java") is None:
        pytest.skip("needs java and pycocoevalcap")
    jar = next(Path(next(iter(package.submodule_search_locations or []))).rglob("stanford-corenlp-3.4.1.jar"))
    text = folder / "captions.txt"
    text.write_bytes("\n".join([*captions, "end", ""]).encode())
    command = [
        "java",
        "-cp",
        str(jar),
        "edu.stanford.nlp.process.PTBTokenizer",
        "-preserveLines",
        "-lowerCase",
        str(text),
    ]
    lines = subprocess.run(command, capture_output=True, timeout=300, check=True).stdout.decode().split("\n")
    assert len(lines) == len(captions) + 2
    return [" ".join(t for t in line.split(" ") if t not in PUNCTUATION) for line in lines[: len(captions)]]


def assert_equal(captions: list[str], folder: Path) -> None:
    ours = tokenize(captions, as_lines=True)
    different = [row for row in zip(captions, by_java(captions, folder), ours, strict=True) if row[1] != row[2]]
    assert not different, f"{len(different)} of {len(captions)} differ, first: {different[:3]}"


def test_java_on_hard_cases(tmp_path: Path) -> None:
    assert_equal([line for text in HARD for line in (text, "end")], tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_java_on_random_text(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    words = """a the man A I x cat's isn't US U.S. p.m. Mr. St. etc. Jan. no. 5 12 1/2 1990s 5th 10:30 don't cannot 'em
        y'all o'clock T-shirt black-and-white www.a.com foo@b.com A&B C++ $5 @home #tag café d'été D.C. J. 'n The"""
    marks = """. , ; : ! ? ' " ( ) [ ] { } - -- / \\ & * + = < > _ @ # $ % ^ ~ ` | ’ ‘ “ ” – … 's ’s n't"""
    few = "aabcdnstxAS159' .,-'/"

    def text() -> str:
        kinds = [
            lambda: draw.choice(words.split()),
            lambda: draw.choice(marks.split()),
            lambda: " ",
            lambda: draw.choice(few),
        ]
        return "so " + "".join(draw.choice(kinds)() for _ in range(draw.randint(2, 12))) + " so"

    assert_equal([text() for _ in range(3000)], tmp_path)


def test_java_on_real_captions(tmp_path: Path) -> None:
    if "VITCAP_DATA" not in os.environ:
        pytest.skip("needs VITCAP_DATA")
    root = Path(os.environ["VITCAP_DATA"])
    coco = json.loads((root / "coco_caption_eval/captions_val2017_refs4.json").read_text())["annotations"]
    coco += json.loads((root / "coco_caption_eval/captions_val2017_human_results.json").read_text())
    flickr = (root / "flickr8k/Flickr8k.token.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    captions = [row["caption"].replace("\n", " ") for row in coco]
    assert len(captions) == 25_014
    assert_equal(captions + [line.split("\t", 1)[1] for line in flickr], tmp_path)
    # On their own, only captions that end in an initial may differ from that.
    lines, alone = tokenize(captions, as_lines=True), tokenize(captions)
    different = [(a, b) for a, b in zip(lines, alone, strict=True) if a != b]
    assert len(different) == 3
    assert all(a + "." == b for a, b in different)
