"""`tools/english.py`: checks the English of Markdown pages against a few rules.

It is written by hand, from word lists and the forms of words: no package that parses English can
be had here, so it finds most of what the rules forbid, not all. A sentence that must stay as it is
has `<!-- english: as it is -->` on the line before it (a table: on the line before the table).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "SECURITY.md", "deploy/README.md", "docs")
MOST_WORDS = 32
LEAST_WORDS = 3
"""A sentence of fewer words is no fragment: "Not yet." may stay."""

_GONE = "\x00"
"""Stands for a character of markup that a reader does not see."""
_CODE = "\ue000"
"""Stands for a character of inline code; a run of it is one word."""
_EXCEPTION = re.compile(r"^\s*<!--\s*english: as it is\s*-->\s*$")


@dataclass(frozen=True, slots=True)
class Finding:
    file: str
    line: int
    rule: str
    sentence: str
    do: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found on a page, and how many exceptions it makes."""

    findings: tuple[Finding, ...]
    sentences: int
    exceptions: int


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, list item, heading or table cell: text that belongs together."""

    kind: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Sentence:
    kind: str
    line: int
    shown: str
    """As it is on the page, on one line."""
    words: tuple[str, ...]
    """Its words and signs, without markup; inline code is a run of `_CODE`."""
    first: bool
    """Whether it is the first one of its block."""
    label: bool
    """Whether it is a heading of some kind: set off in bold, a caption, the name of a setting."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# --- from a page to blocks ------------------------------------------------------------------------

_FENCE = re.compile(r"^\s*(?:>\s*)*(?:[-*+]\s+|\d+[.)]\s+)?(`{3,}|~{3,})")
_ITEM = re.compile(r"^(\s*)(?:[-*+]|\d+[.)])\s+(.*)$")
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(.*)$")
_RULER = re.compile(r"^\s*([-*_=])(\s*\1){2,}\s*$")
_TABLE_RULER = re.compile(r"^\s*\|?[\s:|-]+\|?\s*$")
_BOX = re.compile(r'^\s*(?:!!!|\?\?\?\+?|===\+?!?)\s+(?:"|\w)')
_DEFINITION = re.compile(r"^\s*\[[^\]]+\]:\s")
_CELL_END = re.compile(r"(?<!\\)\|")


def _without_comments(text: str) -> str:
    """Blanks comments out and keeps line breaks, so that lines keep their numbers.

    The exceptions stay: they are looked for line by line.
    """

    def blank(match: re.Match[str]) -> str:
        whole = match[0]
        return whole if _EXCEPTION.match(whole) else re.sub(r"[^\n]", " ", whole)

    return re.sub(r"<!--.*?(?:-->|\Z)", blank, text, flags=re.DOTALL)


def _code_lines(lines: Sequence[str]) -> set[int]:
    """Numbers (from 0) of the lines of front matter and of fenced blocks."""
    inside: set[int] = set()
    start = 0
    if lines and lines[0].strip() == "---":
        for number, line in enumerate(lines[1:], 1):
            if line.strip() in ("---", "..."):
                inside.update(range(number + 1))
                start = number + 1
                break
    fence = ""
    for number in range(start, len(lines)):
        found = _FENCE.match(lines[number])
        if fence:
            inside.add(number)
            if found and found[1].startswith(fence) and lines[number].strip(" `~>") == "":
                fence = ""
        elif found:
            inside.add(number)
            fence = found[1]
    return inside


def blocks(text: str) -> Iterator[Block]:
    """Yields what a reader reads, in order."""
    raw = text.replace(_GONE, " ").replace(_CODE, " ").replace("\r\n", "\n").split("\n")
    code = _code_lines(raw)
    kept = ["" if number in code else line for number, line in enumerate(raw)]
    lines = _without_comments("\n".join(kept)).split("\n")
    if 0 in code and raw[0].strip() == "---":
        yield from _description(raw, code)
    kind, first, held = "paragraph", 0, list[str]()

    def flush() -> Iterator[Block]:
        if any(line.strip() for line in held):
            yield Block(kind, first + 1, "\n".join(held))
        held.clear()

    for number, line in enumerate(lines):
        line = re.sub(r"^\s*(?:>\s?)+", "", line)
        heading, item = _HEADING.match(line), _ITEM.match(line)
        if number in code or not line.strip() or _EXCEPTION.match(line):
            yield from flush()
            kind = "paragraph"
        elif line.lstrip().startswith("|"):
            yield from flush()
            kind = "paragraph"
            if not _TABLE_RULER.match(line):
                inner = re.sub(r"`[^`]*`", lambda m: m[0].replace("|", " "), line.strip())
                for cell in _CELL_END.split(inner.strip("|")):
                    if cell.strip():
                        yield Block("cell", number + 1, cell)
        elif heading:
            yield from flush()
            yield Block("heading", number + 1, heading[1])
            kind = "paragraph"
        elif _RULER.match(line) or _BOX.match(line) or _DEFINITION.match(line):
            yield from flush()
            kind = "paragraph"
        elif item:
            yield from flush()
            kind, first = "item", number
            held.append(item[2])
        else:
            if not held:
                first = number
            held.append(line)
    yield from flush()


def _description(raw: Sequence[str], code: set[int]) -> Iterator[Block]:
    for number in sorted(code):
        if number and raw[number].strip() in ("---", "..."):
            return
        found = re.match(r"^description:\s*[\"']?(.*?)[\"']?\s*$", raw[number])
        if found and found[1]:
            yield Block("description", number + 1, found[1])


def excepted(text: str) -> dict[int, frozenset[int]]:
    """The line of each exception (from 1), and the lines that it speaks of."""
    lines = text.split("\n")
    code = _code_lines(lines)
    found: dict[int, frozenset[int]] = {}
    for number, line in enumerate(lines):
        if number in code or not _EXCEPTION.match(line):
            continue
        last = first = number + 1
        while last < len(lines) and not lines[last].strip():
            first = last = last + 1
        while last + 1 < len(lines) and lines[last + 1].lstrip().startswith("|"):
            last += 1
        found[number + 1] = frozenset(range(first + 1, last + 2))
    return found


# --- from a block to sentences --------------------------------------------------------------------

_ABBREVIATIONS = _set("e.g i.e cf vs etc al approx fig figs eq eqs mr mrs dr resp incl")
_END = re.compile(
    rf"[.!?…][{_GONE}\"'’”)\]*]*"
    rf"(?=\s+[{_GONE}\"'‘“(\[]*[A-Z0-9{_CODE}À-ÞΑ-Ω.]|\s+[\"'‘“(]*{_GONE}+[a-z])"
)
"""What may follow the end of a sentence: a capital, a figure, code, or a link in small letters."""
_TOKEN = re.compile(rf"{_CODE}+|\.?\w(?:[\w'’./@%-]*[\w%'’])?|[^\w\s{_GONE}]")


def masked(text: str) -> str:
    """The same number of characters, with markup gone and inline code unreadable."""

    def gone(part: str) -> str:
        return re.sub(r"[^\n]", _GONE, part)

    def link(match: re.Match[str]) -> str:
        return gone(match[1]) + match[2] + gone(match[3])

    text = re.sub(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", lambda m: _CODE * len(m[0]), text, flags=re.S)
    text = re.sub(r"\$\$?[^$\n]+\$\$?", lambda m: _CODE * len(m[0]), text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)(?:\{[^}]*\})?", lambda m: gone(m[0]), text)
    text = re.sub(r"(\[)([^\[\]]*)(\]\([^()]*\)(?:\{[^}]*\})?)", link, text)
    text = re.sub(r"(\[)([^\[\]]*)(\]\[[^\]]*\])", link, text)
    text = re.sub(r"\[\^[^\]]*\]:?", lambda m: gone(m[0]), text)
    text = re.sub(r"<(https?://[^>\s]*)>", lambda m: _CODE * len(m[0]), text)
    text = re.sub(r"https?://[^\s)>\]]*[^\s)>\].,;:]", lambda m: _CODE * len(m[0]), text)
    text = re.sub(r"</?[A-Za-z][^<>]*>", lambda m: gone(m[0]), text)
    text = re.sub(r"\\([\\`*_{}\[\]()#+.!|-])", lambda m: _GONE + m[1], text)
    return re.sub(r"(?<![\w])(\*{1,3}|_{1,3})(?=\S)|(?<=\S)(\*{1,3}|_{1,3})(?!\w)",
                  lambda m: gone(m[0]), text)  # fmt: skip


def _cuts(plain: str) -> Iterator[tuple[int, int]]:
    start = 0
    for end in _END.finditer(plain):
        before = plain[start : end.start() + 1].split()
        last = before[-1].strip(_GONE + "([\"'").rstrip(".").lower() if before else ""
        if plain[end.start()] == "." and (last in _ABBREVIATIONS or re.fullmatch(r"[a-z]", last)):
            continue
        yield start, end.end()
        start = end.end()
    yield start, len(plain)


def sentences(block: Block) -> Iterator[Sentence]:
    plain = masked(block.text)
    bold = re.match(
        r"\s*(?:(\*\*|__)(?=\S).*?\1|([*_])(?![*_\s])[^*_]*(?:[.:?!]\2|\2[.:]))",
        block.text,
        re.DOTALL,
    )
    slanted = re.fullmatch(r"\s*([*_])(?![*_\s]).*\1\s*", block.text, re.DOTALL)
    caption = re.match(r"\s*(Figure|Table)\b", block.text)
    linked = re.match(r"\s*\[[^\]]*\]\([^)]*\)\s*[:–—]", block.text)
    for place, (start, end) in enumerate(_cuts(plain)):
        words = tuple(_TOKEN.findall(plain[start:end]))
        if not words:
            continue
        lead = len(block.text[start:end]) - len(block.text[start:end].lstrip())
        named = bool(words[0][0] == _CODE and words[1:2] in ((":",), ("–",), ("—",), ("-",)))
        yield Sentence(
            kind=block.kind,
            line=block.line + block.text.count("\n", 0, start + lead),
            shown=" ".join(block.text[start:end].split()),
            words=words,
            first=place == 0,
            label=bool(bold and start < bold.end())
            or bool(slanted or caption)
            or (place == 0 and (named or bool(linked))),
        )


def counted(sentence: Sentence) -> int:
    return sum(1 for word in sentence.words if word[0] == _CODE or any(map(str.isalnum, word)))


# --- the rules ------------------------------------------------------------------------------------


def too_long(sentence: Sentence) -> str | None:
    words = counted(sentence)
    if words <= MOST_WORDS:
        return None
    return f"{words} words; make two or more sentences of it, of at most {MOST_WORDS} words each"


_PLACES = _set("""
    place file page folder directory line table machine site path column row cell position
    spot point section part country town city street venue shop store server device tab
    browser phone computer disk database log list address host network document repository
    tree checkout chapter map screen window field world room home house module here there
    anywhere everywhere somewhere elsewhere
    """)
_ASKS = _set("""
    say know see find look show tell ask learn remember note record mark decide choose
    describe explain check be is are was were keep stay lie live put store leave remain
    write belong stand begin start end stop point go send run install save and or from of to
    about on in exactly just only except no matter
    """)


def where_for_if(sentence: Sentence) -> str | None:
    words = [word.lower() for word in sentence.words]
    for at, word in enumerate(words):
        if word != "where" or (at and sentence.words[at] == "Where" and words[at - 1] not in ":("):
            continue
        after = words[at + 1] if at + 1 < len(words) else ""
        before = words[at - 1] if at else ""
        comma = before in (",", "(")
        if comma:
            before = words[at - 2] if at > 1 else ""
        if after in ("to", "") or sentence.words[-1] == "?" or after in ("–", "|", ":", "."):
            continue
        if before in ("it", "them", "this", "these", "her", "him") and at > 1 and not comma:
            before = words[at - 2]
        if _stem(before) in _PLACES or before in _PLACES:
            continue
        if not comma and at and (_stem(before) in _ASKS or before in _ASKS):
            continue
        return (
            'say "if" (a condition), "when" (a time) or "in which"; "where" is for places '
            f'("{" ".join(sentence.words[max(0, at - 2) : at + 4])}")'
        )
    return None


def _stem(word: str) -> str:
    """The base form of a noun or a verb, as far as `_PLACES` and `_ASKS` need it."""
    irregular = _BASE.get(word)
    if irregular:
        return irregular
    for end, instead in (("ies", "y"), ("es", ""), ("es", "e"), ("s", ""), ("ed", ""), ("ed", "e")):
        if word.endswith(end) and (base := word[: -len(end)] + instead) in _PLACES | _ASKS:
            return base
    return word


def semicolons(sentence: Sentence) -> str | None:
    if sentence.words.count(";") < 2:
        return None
    return "more than one semicolon; make sentences of the parts, or a list"


def nested_brackets(sentence: Sentence) -> str | None:
    depth = 0
    text = "".join(masked(sentence.shown).split(_GONE))
    calls: list[bool] = []
    for at, sign in enumerate(text):
        if sign in "([":
            call = bool(at and (text[at - 1].isalnum() or text[at - 1] == _CODE))
            calls.append(call)
            depth += not call
            if depth > 1 and not call:
                return "brackets inside brackets; take the inner ones, or both, out"
        elif sign in ")]" and calls:
            depth -= not calls.pop()
    return None


_AUXILIARIES = _set("""
    am is are was were has have had do does did can could may might must shall should will
    would cannot ought isn't aren't wasn't weren't hasn't haven't hadn't don't doesn't
    didn't can't couldn't mustn't shouldn't won't wouldn't it's that's there's he's she's
    what's who's here's let's
    """)
_IRREGULAR = {
    "be": "was were", "become": "became", "begin": "began begun", "bind": "bound", "break": "broke",
    "bring": "brought", "build": "built", "buy": "bought", "catch": "caught", "choose": "chose",
    "come": "came", "cost": "cost", "cut": "cut", "deal": "dealt", "do": "did", "draw": "drew",
    "drive": "drove", "fall": "fell", "feed": "fed", "feel": "felt", "fight": "fought",
    "find": "found", "fit": "fit", "forget": "forgot", "get": "got", "give": "gave", "go": "went",
    "grow": "grew", "hang": "hung", "have": "had", "hear": "heard", "hide": "hid", "hit": "hit",
    "hold": "held", "keep": "kept", "know": "knew", "lay": "laid", "lead": "led", "leave": "left",
    "learn": "learnt learned", "lend": "lent", "let": "let", "lie": "lay", "lose": "lost",
    "make": "made", "mean": "meant", "meet": "met", "overwrite": "overwrote", "pay": "paid",
    "put": "put", "read": "read", "ride": "rode", "rise": "rose", "run": "ran", "say": "said",
    "see": "saw", "seek": "sought", "sell": "sold", "send": "sent", "set": "set", "show": "showed",
    "shut": "shut", "sink": "sank", "sit": "sat", "speak": "spoke", "spend": "spent",
    "spoil": "spoilt spoiled", "split": "split", "spread": "spread", "stand": "stood",
    "steal": "stole", "stick": "stuck", "take": "took", "teach": "taught", "tell": "told",
    "think": "thought", "throw": "threw", "understand": "understood", "wake": "woke",
    "wear": "wore", "win": "won", "withdraw": "withdrew", "write": "wrote",
}  # fmt: skip
_REGULAR = _set("""
    abandon accept access accompany account achieve acknowledge acquire act adapt add
    address adjust admit adopt advance affect agree aim allow alter amount analyse announce
    answer anticipate ascend appear append apply approach approve argue arise arrange arrive
    ask assert assess assign assume attach attack attempt attend audit authenticate average
    avoid await back balance base batch beat behave believe belong benefit blend block blur
    boot borrow bound branch breach call cancel carry cast cause cease centre change charge
    check cite claim classify clean clear click climb clip clone close collapse collect
    combine commit communicate compare compete compile complain complete comply comprise
    compress compute concern conclude confirm connect consider consist consume contact
    contain continue contradict contribute control convert convict convince copy correct
    correspond count cover crash create cross damage date decide declare decline decode
    decrease decrypt deduct default defeat defend define delay delete deliver demand
    demonstrate deny depend deploy derive descend describe deserve design detect determine
    develop deviate differ differentiate direct disable disagree disappear discard disclose
    discover display distinguish distribute divide document dominate double download drain
    drift drop dump earn ease edit embed emit employ empty enable encode encounter encrypt
    end enforce enrol ensure enter equal escape establish estimate evaluate examine exceed
    exchange exclude execute exercise exist exit expand expect expire explain explode expose
    express extend extract face fail fetch fill filter finish fix flag float flow fold
    follow force forge form format forward freeze fulfil function gain gather generate grant
    group guarantee guard guess guide hand handle happen harm hash help hint host identify
    ignore illustrate imitate implement imply import improve include increase indicate infer
    inform inherit initialise inject insert inspect install instruct intend interact
    interest interpret interrupt introduce invent invert invest investigate invite invoke
    involve isolate iterate join judge jump justify kill lack land last launch leak level
    lift like limit link list listen live load locate lock log look lower maintain manage
    mark mask match matter measure mention merge migrate mind miss mix model modify monitor
    mount move multiply mutate name need negotiate nest note notice number object obey
    observe obtain occupy occur offer omit open operate opt optimise order outlive outnumber
    outperform own pack pad parse part participate pass paste patch pause peel perform
    permit persist pick pin place plan play plot point pose possess post predict prefer
    prepare present preserve press pretend prevent print process produce profile promise
    propose protect prove provide publish pull punish purge push qualify query question
    queue raise range rank rate reach react rebuild recall receive recognise recommend
    recompute record recover redirect reduce refer reflect refresh refuse regard register
    reject relate relax release relocate rely remain remember remind remove rename render
    renew repair repeat replace replay reply report represent reproduce request require
    reread resample reset resist resolve respect respond rest restart restore restrict
    result resume retain retire retrieve retry return reuse reveal reverse review revoke
    rewrite risk roll rotate round rule sample satisfy save scale scan schedule score seal
    search secure seem select separate serialise serve settle shape share shift ship shorten
    shrink shuffle sign simplify simulate skip slow solve sort sound specify spot stage
    start starve state stay step stop store stream strengthen stretch strip struggle study
    style submit subtract succeed suffer suffice suggest suit sum supply support suppose
    surprise survive suspend switch talk target taste tend terminate test tie time tolerate
    total touch trace track trade train transfer transform translate transmit travel treat
    trigger trim trust try tune turn type uncover undergo undo uninstall unpack update
    upgrade upload use validate value vanish vary verify violate visit vote wait walk want
    warn waste watch weaken weigh wipe wish withhold withstand wonder work worry wrap yield
    zero
    """)


def _third(base: str) -> str:
    if re.search(r"(s|x|z|ch|sh|o)$", base):
        return base + "es"
    return base[:-1] + "ies" if re.search(r"[^aeiou]y$", base) else base + "s"


def _past(base: str) -> tuple[str, ...]:
    if base.endswith("e"):
        return (base + "d",)
    if re.search(r"[^aeiou]y$", base):
        return (base[:-1] + "ied",)
    return (base + "ed", base + base[-1] + "ed")


_VERBS = frozenset(_REGULAR) | frozenset(_IRREGULAR) - {"be"}
_THIRDS = frozenset(map(_third, _VERBS)) | {"goes", "does", "has"}
_PASTS = frozenset(
    [form for base in _REGULAR for form in _past(base)]
    + [form for forms in _IRREGULAR.values() for form in forms.split()]
)
_BASE = {form: base for base, forms in _IRREGULAR.items() for form in forms.split()} | {
    "kept": "keep", "known": "know", "seen": "see", "shown": "show", "written": "write",
}  # fmt: skip
_BEFORE_NOUNS = _set("""
    a an the this these those my your his her its our their of with without by for from at
    on over under between among through into onto upon per each every any some no such one's
    whose two three four five six seven eight nine ten own new old single other another same
    first last next more most less least many few several much both all single whole real as
    like than
    """)
_MANY = _set("these those all both many few several most some two three four five six seven eight")
_ONE = _set("a an this each every another one")
_SURE = _set(
    """
    adds agrees appends asks becomes begins belongs brings chooses comes contains decides depends
    exists finds follows forgets gets gives goes has hears includes keeps knows learns lets loses
    makes means opens pays publishes reads receives refuses remains removes says sees seems selects
    sends stays tells thinks waits wants writes
    """
)
"""Forms that are hardly ever the plural of a noun."""
_DETERMINERS = _set("""
    the a an this these those its her his their our your my it them him us me you nothing
    nobody everything anything something somebody what whether how that no each every all
    one
    """)
_OBJECTS = (_DETERMINERS | {"far"}) - {"that", "what", "whether", "how", "all"}
_RELATIVE = _set("which who whose whom that")
_IF_LIKE = _set("if because when while although unless whereas where whenever")
_PREPOSITIONS = _set("of by for with in on at from to between among")
_LEADS = _set("and but or then so also please never always do only just first next")
_SIGNS = frozenset(",;:()[]–—-“”\"'‘’/…")


def _finite(words: Sequence[str], at: int) -> bool:
    """Whether the word there can be the finite verb of a clause."""
    word = words[at].lower().replace("’", "'")
    if word in _AUXILIARIES or (len(word) > 3 and word.endswith(("n't", "'ll", "'ve", "'re"))):
        return True
    before = words[at - 1].lower() if at else ""
    after = words[at + 1].lower() if at + 1 < len(words) else ""
    begins = not at or before in _SIGNS or before in _LEADS
    digit = bool(before and before[0].isdigit())
    noun = before in _BEFORE_NOUNS or digit
    if before in ("each", "all", "both") and at > 1 and words[at - 2][-1].isalpha():
        noun = words[at - 2].lower() in _BEFORE_NOUNS | _LEADS | _AUXILIARIES
    if word in _VERBS and (not noun or digit or before in _MANY):
        return not (begins and after in ("of", "by", "")) or word in ("be", "go")
    if word in _THIRDS and (not noun or before in _ONE or after in _OBJECTS or word in _SURE):
        return bool(at) and not (before in _SIGNS - set(":),–—") and after == "of")
    if word in _PASTS and (not noun or before in ("this", "these", "all")):
        return bool(at) and after != "by"
    if re.search(r"[^su]s$|ed$", word) and at and not noun:
        return after in _DETERMINERS and len(word) > 3
    return False


def _main(words: Sequence[str]) -> list[str]:
    """The words without clauses that `, which` or `, who` begins, and without what follows them."""
    kept: list[str] = []
    inside = False
    for at, word in enumerate(words):
        if (
            word == ","
            and at + 1 < len(words)
            and words[at + 1].lower() in ("which", "who", "whose")
        ):
            inside = True
        elif inside and word in (",", ";", ":", ")"):
            inside = False
        if not inside:
            kept.append(word)
    return kept


def fragment(sentence: Sentence) -> str | None:
    if sentence.kind in ("heading", "cell", "description") or sentence.label:
        return None
    words = sentence.words
    plain = [word for word in words if word[0] != _CODE and any(map(str.isalpha, word))]
    if len(plain) < LEAST_WORDS:
        return None
    if sentence.kind == "item" and (
        words[-1] not in tuple(".!?") or (sentence.first and not words[0][0].isupper())
    ):
        return None
    missing = "a sentence needs a subject and a finite verb; write a whole sentence"
    main = _main(words)
    places = [at for at in range(len(main)) if _finite(main, at)]
    if not places:
        return f"{missing} (no finite verb was found)"
    first = words[0].lower()
    relative = [at for at, word in enumerate(main) if at and word.lower() in _RELATIVE]
    if (
        relative
        and relative[0] < places[0]
        and len(places) == 1
        and main[relative[0] - 1].lower() not in _PREPOSITIONS | _SIGNS
        and words[-1] not in ("?", ":")
        and first not in _PREPOSITIONS | {"after", "before", "behind", "this", "that"}
    ):
        return f"{missing} (the only verb is in the clause of “{main[relative[0]]}”)"
    if first in _IF_LIKE and words[-1] != "?" and len(places) == 1:
        comma = next((at for at, word in enumerate(main) if word in (",", ":")), len(main))
        if places[0] < comma:
            return f"{missing} (all there is follows “{words[0]}”)"
    bare = [word.lower() for word in words if word not in _SIGNS]
    while bare and bare[0] in ("and", "but", "or", "then", "also"):
        bare = bare[1:]
    if len(bare) > 1 and bare[0] in _THIRDS and bare[1] in _DETERMINERS - {"that", "all"}:
        return f"{missing} (who or what {bare[0]}?)"
    return None


@dataclass(frozen=True, slots=True)
class Word:
    found: re.Pattern[str]
    say: str
    unless: re.Pattern[str] | None = None
    """It is allowed in a sentence that has this."""


def _word(found: str, say: str, unless: str | None = None, *, exact: bool = False) -> Word:
    flags = re.NOFLAG if exact else re.IGNORECASE
    return Word(
        re.compile(found, flags), say, re.compile(unless, re.IGNORECASE) if unless else None
    )


_WEB = r"nginx|reverse|web|https?\b|load balancer|traefik|caddy|haproxy|corporate|\bcdn\b|forwarded"
_FILES = r"(file|folder|process|director|repository|domain|token|account)"
VOCABULARY = (
    _word(r"\bmaskers?\b", "helper"),
    _word(r"\bprox(y|ies)\b", "helper (of sums) or shuffler (of reports)", _WEB),
    _word(r"\bcouriers?\b", "forwarder"),
    _word(r"\bscenes?\b", "threat view"),
    _word(r"\blanes?\b", "simd rows"),
    _word(r"\blisteners?\b|\bears\b", "observer, or what is called on a message"),
    _word(r"\bpatience\b", "timeouts"),
    _word(r"\beras?\b", "terms version"),
    _word(r"\bthe post\b", "the transport"),
    _word(r"\bdevice_few\b", "prefers_messages"),
    _word(r"\blooks_around\b", "needs_whole_cohort"),
    _word(r"(?<=\w )(Shelf|shelf|shelves)\b", "document cache", exact=True),
    _word(r"(?<=[a-z,] )(Board|Moment)s?\b", "round state", exact=True),
    _word(r"(?<=[a-z,] )Hosted\b", "device session", exact=True),
    _word(r"(?<=[a-z,] )Aside\b", "bounded executor", exact=True),
    _word(
        r"(?<!data )(?<!data-)(?<!['’]s )\bowners?\b(?!['’]s (name|id))",
        "user (a person) or data owner (an organisation)",
        rf"owner of (the|a|its|that|this) {_FILES}|{_FILES}\w* owner|owner and (group|mode)",
    ),
)


def vocabulary(sentence: Sentence) -> str | None:
    text = " ".join("".join(masked(sentence.shown).split(_GONE)).split())
    for word in VOCABULARY:
        found = word.found.search(text)
        if found and not (word.unless and word.unless.search(text)):
            return f"say {word.say}, not “{found[0].strip()}”"
    return None


RULES: dict[str, Callable[[Sentence], str | None]] = {
    "long": too_long,
    "where": where_for_if,
    "fragment": fragment,
    "semicolons": semicolons,
    "brackets": nested_brackets,
    "word": vocabulary,
}


# --- pages ----------------------------------------------------------------------------------------


def check(text: str, file: str = "-") -> Checked:
    """Looks at one page; any text is one."""
    exceptions = excepted(text)
    used: set[int] = set()
    findings: list[Finding] = []
    count = 0
    for block in blocks(text):
        for sentence in sentences(block):
            count += 1
            for name, rule in RULES.items():
                do = rule(sentence)
                if do is None:
                    continue
                pardoned = [line for line, spoken in exceptions.items() if sentence.line in spoken]
                used.update(pardoned)
                if not pardoned:
                    findings.append(Finding(file, sentence.line, name, sentence.shown, do))
    for line in sorted(exceptions.keys() - used):
        do = "nothing was found there; take the comment out"
        findings.append(Finding(file, line, "exception", "<!-- english: as it is -->", do))
    return Checked(tuple(findings), count, len(exceptions))


def pages(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.md"))
        else:
            yield path


def _shown(path: Path) -> str:
    whole = path.resolve()
    return str(whole.relative_to(ROOT)) if whole.is_relative_to(ROOT) else str(path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks the rules of English over Markdown pages.")
    parser.add_argument(
        "paths", nargs="*", type=Path, help="pages or folders; the documents if none"
    )
    parser.add_argument("--json", action="store_true", help="prints one JSON object")
    parser.add_argument("--summary", action="store_true", help="prints counts by page and rule")
    parser.add_argument("--rule", choices=[*RULES, "exception"], help="looks for this rule alone")
    options = parser.parse_args(arguments)
    paths = options.paths or [ROOT / page for page in PAGES]
    results: dict[str, Checked] = {}
    for path in pages(paths):
        try:
            results[_shown(path)] = check(path.read_text(encoding="utf-8"), _shown(path))
        except (OSError, UnicodeDecodeError) as error:
            print(f"{path} cannot be read: {error}", file=sys.stderr)
            return 2
    found = [
        finding
        for checked in results.values()
        for finding in checked.findings
        if options.rule in (None, finding.rule)
    ]
    exceptions = sum(checked.exceptions for checked in results.values())
    total = sum(checked.sentences for checked in results.values())
    by_page = {page: Counter(f.rule for f in found if f.file == page) for page in results}
    if options.json:
        told = {
            "pages": len(results),
            "sentences": total,
            "exceptions": exceptions,
            "counts": {page: dict(counts) for page, counts in by_page.items() if counts},
            "findings": [asdict(finding) for finding in found],
        }
        print(json.dumps(told, ensure_ascii=False, indent=2))
        return int(bool(found))
    if not options.summary:
        for finding in found:
            print(f"{finding.file}:{finding.line}: {finding.rule}: {finding.do}")
            print(f"    {finding.sentence}")
    else:
        for page, counts in by_page.items():
            told_counts = ", ".join(f"{rule} {counts[rule]}" for rule in counts)
            print(f"{sum(counts.values()):5}  {page}" + (f"  ({told_counts})" if counts else ""))
    print(
        f"{len(found)} findings in {total} sentences of {len(results)} pages; "
        f"{exceptions} exceptions"
    )
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
