"""Words of the English-French `grammar`, with the inflections that agreement needs."""

from __future__ import annotations

from typing import NamedTuple

VOWELS = "aeiouàâéèêîôûh"
"""First letters before which French elides. Every h in this lexicon is mute; numerals are digits or do not elide."""

ELIDED = {"le": "l'", "la": "l'", "de": "d'", "ne": "n'", "que": "qu'"}
"""Words and their forms before a vowel; each form is a word of its own."""

BE = {"past": ("was", "were"), "present": ("is", "are")}
DO = {"past": ("did", "did"), "present": ("does", "do")}
AVOIR = ("a", "ont")
ETRE = {"past": ("était", "étaient"), "present": ("est", "sont"), "future": ("sera", "seront")}
"""Auxiliaries as (singular, plural)."""

_PREDICATE = ("old", "small", "young", "famous", "important", "ambitious")


class Noun(NamedTuple):
    """kind: p person, g group, d document. english, french: (singular, plural). gender: m or f."""

    kind: str
    english: tuple[str, str]
    french: tuple[str, str]
    gender: str


class Adjective(NamedTuple):
    """order: b stands before the noun in both languages; q quality, o origin, t type: an English noun has them in this
    order before it, a French one in the opposite order after it. french: masculine, feminine, and both in the plural.
    liaison: masculine singular before a vowel ("nouvel"). predicate: may stand alone after "is".
    """

    kinds: str
    order: str
    english: str
    french: tuple[str, str, str, str]
    liaison: str
    predicate: bool

    @property
    def before(self) -> bool:
        return self.order == "b"


class Verb(NamedTuple):
    """english: (base, third person singular, past, participle). present, future: French third person (singular,
    plural). participle: French, masculine singular. particle: English word after the verb ("wait for"). preposition:
    French word after it ("répondre à").
    """

    english: tuple[str, str, str, str]
    present: tuple[str, str]
    future: tuple[str, str]
    participle: str
    particle: str = ""
    preposition: str = ""


class Name(NamedTuple):
    """A compound name. french: each word with the number of the English word it answers to."""

    english: str
    french: str
    gender: str
    plural: bool = False


def _noun(line: str) -> Noun:
    kind, english, french, gender = line.split()
    plural = english[:-1] + "ies" if english[-1] == "y" else english + "s"
    return Noun(kind, (english, plural), (french, french + "s"), gender)


def _adjective(line: str) -> Adjective:
    kinds, order, english, *forms = line.split()
    if len(forms) == 1:
        m = forms[0]
        doubled = {"en": m + "ne", "el": m + "le", "er": m[:-2] + "ère"}
        f = m if m[-1] == "e" else doubled.get(m[-2:], m + "e")
        plural = m if m[-1] == "s" else m[:-2] + "aux" if m[-2:] == "al" else m + "s"
        forms = [m, f, plural, f + "s", m]
    m, f, mp, fp, liaison = forms
    return Adjective(kinds, order, english, (m, f, mp, fp), liaison, english in _PREDICATE)


def _verb(line: str) -> Verb:
    left, right = line.split(" = ")
    base, *rest = left.split()
    particle = rest.pop() if len(rest) in (1, 3) else ""
    past, participle = rest if rest else (base + ("d" if base[-1] == "e" else "ed"),) * 2
    third = base + ("es" if base.endswith(("sh", "ch", "ss")) else "s")
    forms, _, preposition = right.partition(" + ")
    infinitive, *irregular = forms.split()
    if irregular:
        sg, pl, stem, french_participle = irregular
    else:  # the first group: -er
        sg, pl, stem, french_participle = infinitive[:-1], infinitive[:-1] + "nt", infinitive, infinitive[:-2] + "é"
    future = (stem + "a", stem + "ont")
    return Verb((base, third, past, participle), (sg, pl), future, french_participle, particle, preposition)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def inflect(participle: str, gender: str, plural: bool) -> str:
    """A French past participle that agrees: signé, signée, signés, signées."""
    return participle + ("e" if gender == "f" else "") + ("s" if plural else "")


NOUNS = [
    _noun(line)
    for line in _lines("""
    p minister ministre m
    p president président m
    p ambassador ambassadeur m
    p lawyer avocat m
    p engineer ingénieur m
    p student étudiante f
    p singer chanteuse f
    g council conseil m
    g committee comité m
    g university université f
    g bank banque f
    g city ville f
    d agreement accord m
    d treaty traité m
    d report rapport m
    d plan plan m
    d letter lettre f
    d law loi f
    d decision décision f
    d proposal proposition f
    """)
]

ADJECTIVES = [
    _adjective(line)
    for line in _lines("""
    pgd b new nouveau nouvelle nouveaux nouvelles nouvel
    pgd b old vieux vieille vieux vieilles vieil
    pgd b great grand grande grands grandes grand
    gd b small petit
    p b young jeune
    p q famous célèbre
    d q important important
    d q ambitious ambitieux ambitieuse ambitieux ambitieuses ambitieux
    pgd o European européen
    pgd o French français
    pgd o German allemand
    pgd o American américain
    d t economic économique
    d t social social
    d t political politique
    d t commercial commercial
    """)
]

TRANSITIVE = [
    _verb(line)
    for line in _lines("""
    sign = signer
    approve = approuver
    reject = rejeter rejette rejettent rejetter rejeté
    publish = publier
    prepare = préparer
    defend = défendre défend défendent défendr défendu
    """)
]
WITH_PARTICLE = [
    _verb(line)
    for line in _lines("""
    wait for = attendre attend attendent attendr attendu
    look for = chercher
    answer = répondre répond répondent répondr répondu + à
    """)
]
DATIVE = [_verb("send sent sent = envoyer envoie envoient enverr envoyé")]
GOING = [
    _verb("arrive = arriver"),
    _verb("return = revenir revient reviennent reviendr revenu"),
    _verb("leave left left = partir part partent partir parti"),
]
"""Verbs whose perfect is built with être."""
REPORTING = [
    _verb("say said said = dire dit disent dir dit"),
    _verb("think thought thought = penser"),
    _verb("know knew known = savoir sait savent saur su"),
]

# English words, French words as the numbers of the English words each answers to. All take the article.
BODIES = [
    Name("European Union", "Union:1 européenne:0", "f"),
    Name("European Central Bank", "Banque:2 centrale:1 européenne:0", "f"),
    Name("International Monetary Fund", "Fonds:2 monétaire:1 international:0", "m"),
    Name("World Trade Organisation", "Organisation:2 mondiale:0 du:1 commerce:1", "f"),
    Name("World Health Organisation", "Organisation:2 mondiale:0 de:1 la:1 santé:1", "f"),
    Name("United Nations", "Nations:1 unies:0", "f", True),
]
THEMES = [
    Name("European Economic Area", "zone:2 économique:1 européenne:0", "f"),
    Name("single European market", "marché:2 unique:0 européen:1", "m"),
    Name("common agricultural policy", "politique:2 agricole:1 commune:0", "f"),
]
"""Compound names of those who act, and of what is agreed on."""

PLACES = [
    ("Paris", "à Paris"),
    ("Brussels", "à Bruxelles"),
    ("France", "en France"),
    ("Italy", "en Italie"),
    ("Canada", "au Canada"),
    ("the Netherlands", "aux Pays-Bas"),
]
"""French has one preposition for English "in" and "to"."""

MONTHS = [
    ("January", "janvier"),
    ("March", "mars"),
    ("May", "mai"),
    ("August", "août"),
    ("October", "octobre"),
]
YEARS = [str(year) for year in range(1990, 1998)]
DAYS = ["2", "5", "8", "14", "21", "30"]
NUMBERS = [("two", "deux"), ("three", "trois"), ("five", "cinq"), ("ten", "dix")]

CONJUNCTIONS = [("and", "et"), ("but", "mais"), ("because", "parce que"), ("while", "alors que")]
ADVERBS = [
    ("quickly", "rapidement"),
    ("finally", "finalement"),
    ("often", "souvent"),
    ("officially", "officiellement"),
]
WHEN = {  # English, French as words with the numbers of the English words each answers to
    "past": [
        ("yesterday", "hier:0"),
        ("last week", "la:1 semaine:1 dernière:0"),
        ("last month", "le:1 mois:1 dernier:0"),
        ("last year", "l':1 année:1 dernière:0"),
    ],
    "present": [("today", "aujourd'hui:0"), ("every week", "chaque:0 semaine:1"), ("every year", "chaque:0 année:1")],
    "future": [
        ("tomorrow", "demain:0"),
        ("next week", "la:1 semaine:1 prochaine:0"),
        ("next month", "le:1 mois:1 prochain:0"),
        ("next year", "l':1 année:1 prochaine:0"),
    ],
}
