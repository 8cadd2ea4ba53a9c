"""Whether two answers are equal: exact rules for common cases, Math-Verify for the rest."""

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from mrt.grading.answers import LONGEST, boxed

_SYMBOLS = {
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "−": "-", "–": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "°": r"^\circ ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "∀": r"\forall ", "⁰": "^{0}", "¹": "^{1}", "²": "^{2}", "³": "^{3}",
    "⁴": "^{4}", "⁵": "^{5}", "⁶": "^{6}", "⁷": "^{7}", "⁸": "^{8}", "⁹": "^{9}",
} | {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # fmt: skip
_TRANSLATE = str.maketrans(_SYMBOLS)
_REWRITES: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"<sup>([^<>]{0,99})</sup>"), r"^{\1}"),
    (re.compile(r"<sub>([^<>]{0,99})</sub>"), r"_{\1}"),
    (re.compile(r"(?<!\\)\\[!,;:> ]|~|\\q?quad(?![A-Za-z])"), " "),
    (re.compile(r"\\(?:left|right|bigg?[lrm]?|Bigg?[lrm]?|displaystyle|limits)(?![A-Za-z])\.?"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\\$"), ""),
    (re.compile(r"(?<=\d) ?\\binom(?![A-Za-z])"), r"\\cdot \\binom"),  # Math-Verify reads a mixed number
    (re.compile(r"(?<=\d) ?\^?\{?(?:\\(?:text|mathrm) ?\{)?(?:st|nd|rd|th)\}{1,2}"), ""),
    (re.compile(r"(?<=\d)(?:st|nd|rd|th)\b"), ""),
    (re.compile(r"(?<=\d)\{,\}(?=\d)"), ","),
]
_WRAPS = [("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`")]
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|normal)?|mathrm|mathbf|mbox|operatorname|textup)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"(?<=\W)\s|\s(?=\W)")
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+)")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|[+-]?[1-9]\d{0,2}(?: \d{3})+(?:\.\d*)?")
_RATIO = re.compile(r"([+-]?)(?:(\d+)/(\d+)|\\frac\{(-?\d+)\}\{(-?\d+)\}|\\frac(\d)(\d))")
_MIXED = re.compile(r"([+-]?)(\d+) (\d+)/(\d+)|([+-]?)(\d+) ?\\frac\{(\d+)\}\{(\d+)\}")
_WORDY = re.compile(r"[A-Za-z][A-Za-z\s,.'’\"!-]*")
_LONG_WORD = re.compile(r"[A-Za-z]{4}")
_CHOICE = re.compile(r"\(?([A-Z])[).]?|\(([A-Z])\)\.?")
_CHOICE_AND_VALUE = re.compile(r"(?:\(([A-J])\)|([A-J])[).]) ?([\w\\$-].*)", re.DOTALL)
_UNIT = re.compile(r"(?<=[\d})]) ?([A-Za-z]+)\.?(?:\^\{?(\d)\}?)?$")
_UNITS = {
    name: names.split()[0]
    for names in (
        "mm millimeter millimeters millimetre millimetres", "cm centimeter centimeters centimetre centimetres",
        "m meter meters metre metres", "km kilometer kilometers kilometre kilometres", "in inch inches",
        "ft foot feet", "yd yard yards", "mi mile miles", "mg milligram milligrams", "g gram grams",
        "kg kilogram kilograms", "lb lbs pound pounds", "oz ounce ounces", "ms millisecond milliseconds",
        "s sec second seconds", "min minute minutes", "h hr hour hours", "day days", "week weeks", "month months",
        "year years", "ml mL milliliter milliliters", "L liter liters litre litres", "dollar dollars", "cent cents",
        "deg degree degrees", "rad radian radians", "Pa", "kPa", "N", "J", "kJ", "W", "kW", "V", "Hz", "kHz", "MHz",
        "eV", "keV", "MeV", "GeV", "mol", "mmol", "K",
    )
    for name in names.split()
}  # fmt: skip


@lru_cache(maxsize=1 << 16)
def normalise(answer: str) -> str:
    r"""The answer without what never affects its value: delimiters, spacing commands, `\left`, a closing full stop.

    The result is still LaTeX, and normalising it again changes nothing that matters to a comparison.
    """
    text = answer.translate(_TRANSLATE)
    if r"\begin" not in text and r"\\" in text:  # escaped once too often; elsewhere `\\` ends a row
        text = re.sub(r"(?<!\\)\\\\(?=[A-Za-z]{2}|[(){}\[\]])", r"\\", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    before = None
    while before != text:
        before = text = text.strip()
        if r"\boxed" in text or r"\fbox" in text:
            text = boxed(text) or text
        for left, right in _WRAPS:
            inner = text[len(left) : -len(right)]
            if len(text) > len(left + right) and text.startswith(left) and text.endswith(right) and left not in inner:
                text = inner
        if text.endswith(("^", "\\")) and not text.endswith("\\\\"):
            text = text[:-1]
        if text.endswith((".", ",", ";")) and not text.endswith("..") and _LONG_WORD.search(text[-5:-1]) is None:
            text = text[:-1]
    if text.count("$") == 1:
        text = text.replace("$", "")
    return text.strip()


@lru_cache(maxsize=1 << 16)
def plain_text(text: str) -> str:
    r"""A normalised answer without text commands (`\text{}` and the like), and with white space normalised."""
    before = None
    while before != text:
        before, text = text, _TEXT.sub(r" \1 ", text)
    return _SPACE.sub("", " ".join(text.split()))


@lru_cache(maxsize=1 << 16)
def number_in(text: str) -> tuple[Fraction, bool] | None:
    """The value of a normalised integer, decimal, fraction or mixed number, and whether it was written as a decimal."""
    if len(text) > 200:
        return None
    if _THOUSANDS.fullmatch(text):
        text = re.sub("[ ,]", "", text)
    if _INTEGER.fullmatch(text):
        return Fraction(int(text)), False
    if _DECIMAL.fullmatch(text):
        return Fraction(text), True
    if match := _RATIO.fullmatch(text):
        top, bottom = [int(group) for group in match.groups()[1:] if group is not None]
        sign = -1 if match.group(1) == "-" else 1
        return (Fraction(sign * top, bottom), False) if bottom else None
    if match := _MIXED.fullmatch(text):
        minus, *parts = [group for group in match.groups() if group is not None]
        whole, above, below = map(int, parts)
        value = whole + Fraction(above, below) if above < below else None
        return None if value is None else (-value if minus == "-" else value, False)
    return None


def _words(plain: str) -> str | None:
    """The words of an answer that consists of words only, without case or punctuation; None for anything else."""
    if _WORDY.fullmatch(plain) and _LONG_WORD.search(plain):
        return " ".join(re.findall(r"[a-z]+", plain.lower()))
    return None


def _unit(plain: str) -> tuple[str, str, str | None] | None:
    """An answer's text before the unit at its end, the unit, and its exponent if any; None without a unit."""
    tail = _UNIT.search(plain, max(0, len(plain) - 40))
    unit = _UNITS.get(tail.group(1)) if tail else None
    return (plain[: tail.start()], unit, tail.group(2)) if tail and unit else None


def exact(pred: str, gold: str) -> bool | None:
    """Equality of two answers by rules that need no algebra; None if they do not settle it.

    Numbers are compared as fractions; a decimal equals a number that it rounds to six significant digits, not fewer.
    """
    if len(pred) > LONGEST or len(gold) > LONGEST:
        return False
    pred, gold = normalise(pred), normalise(gold)
    if not pred or not gold:
        return False
    if pred == gold:
        return True
    p, g = plain_text(pred), plain_text(gold)
    if p == g:
        return True
    one, other = number_in(p), number_in(g)
    if one and other:
        gap, size = abs(one[0] - other[0]), max(abs(one[0]), abs(other[0]))
        return gap == 0 or ((one[1] or other[1]) and gap <= min(Fraction(1, 10**6), size / 10**5))
    if label := _CHOICE.fullmatch(g):
        chosen = _CHOICE.fullmatch(p) or _CHOICE_AND_VALUE.fullmatch(p)
        if chosen:
            return (chosen.group(1) or chosen.group(2)) == (label.group(1) or label.group(2))
    words, meant = _words(p), _words(g)
    if words is not None and meant is not None:
        return words == meant
    mine, due = _unit(p), _unit(g)
    if mine and due:
        if mine[1] != due[1] or (mine[2] and due[2] and mine[2] != due[2]):
            return False
        return exact(mine[0], due[0])
    return None


# --- Math-Verify, inside a worker -------------------------------------------------------------------------------------

_HEAD = re.compile(r"((?:\\[A-Za-z]+ ?)?\{?[A-Za-z]?\w?\}?(?:_\{?\w+\}?)?'?(\([a-z]\))?)\s*=\s*([^=]+)")
_BUILDER = re.compile(r"\\\{\s*[A-Za-z]\s*(?:\\mid(?![A-Za-z])|\||:)(.+)\\\}", re.DOTALL)
_OPEN, _CLOSE = "([{", ")]}"


def items(text: str) -> list[str]:
    """The items of a list without brackets around it: split at commas, semicolons, "and", "or" outside brackets."""
    depth, cuts, start = 0, [], 0
    for match in re.finditer(r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\\.|[()\[\]{},;]|\b(?:and|or)\b", text, re.DOTALL):
        token = match.group()
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
        elif token[-2:] in (r"\{", r"\}"):
            depth += 1 if token == r"\{" else -1
        elif depth == 0 and not (token.startswith("\\") and len(token) == 2):
            cuts.append(text[start : match.start()].strip())
            start = match.end()
    return [cut for cut in [*cuts, text[start:].strip()] if cut]


@lru_cache(maxsize=4)
def _cleaning(units: bool) -> Any:
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig

    return NormalizationConfig(
        basic_latex=True, units=units, malformed_operators=True, nits=True, boxed="all", equations=False
    )


@lru_cache(maxsize=256)
def _parse(text: str, units: bool) -> list[Any]:
    """Math-Verify's parse of an answer (an expression and its source text); `units` removes units."""
    from latex2sympy2_extended.latex2sympy2 import normalize_latex
    from math_verify import LatexExtractionConfig, parse

    if not units and normalize_latex(text, _cleaning(False)) == normalize_latex(text, _cleaning(True)):
        return _parse(text, True)
    config = LatexExtractionConfig(boxed_match_priority=0, normalization_config=_cleaning(units))
    return list(parse(rf"\boxed{{{text}}}", [config], parsing_timeout=0))


def _algebra(pred: str, gold: str) -> bool:
    """Equality by Math-Verify, with apparent units removed or with them kept (`m` can be a variable)."""
    from math_verify import verify

    one, other = _parse(pred, True), _parse(gold, True)
    if _far_apart(pred, gold, one, other):
        return False
    if verify(other, one, allow_set_relation_comp=True, timeout_seconds=0):
        return True
    mine, theirs = _parse(pred, False), _parse(gold, False)
    if mine is one and theirs is other:
        return False
    return bool(verify(theirs, mine, allow_set_relation_comp=True, timeout_seconds=0))


def _far_apart(pred: str, gold: str, one: list[Any], other: list[Any]) -> bool:
    """Whether both answers are real numbers that plainly differ, which spares Math-Verify a search for a proof."""
    from sympy import Expr

    if any(re.search(r"%|percent|pct|\\pm|\\mp", text) for text in (pred, gold)):
        return False
    values = []
    for parsed in (one, other):
        if not (parsed and isinstance(parsed[0], Expr) and parsed[0].is_number):
            return False
        value = parsed[0].evalf(15)
        if not value.is_Float and not value.is_Integer:
            return False
        values.append(float(value))
    size = max(map(abs, values))
    return math.isfinite(size) and abs(values[0] - values[1]) > 1e-3 * size


def _simpler(pred: str, gold: str) -> tuple[str, str]:
    """Both answers simplified for comparison: sets as their conditions, one-sided `x = ` and choice labels dropped."""
    if match := _BUILDER.fullmatch(pred):
        pred = match.group(1).strip()
    if match := _BUILDER.fullmatch(gold):
        gold = match.group(1).strip()
    label = _CHOICE_AND_VALUE.fullmatch(plain_text(pred))
    if label and not _CHOICE_AND_VALUE.fullmatch(plain_text(gold)):
        pred = normalise(label.group(3))
    left, right = _HEAD.fullmatch(pred), _HEAD.fullmatch(gold)
    if left and "=" not in gold:
        return left.group(3), gold
    if right and "=" not in pred:
        return pred, right.group(3)
    if left and right and (left.group(2) or right.group(2)):  # f(x) = ..., with another name or variable
        mine, theirs = left.group(2), right.group(2)
        body = left.group(3)
        if mine and theirs and mine != theirs and theirs[1] not in body:
            body = re.sub(rf"(?<![A-Za-z\\]){mine[1]}(?![A-Za-z])", theirs[1], body)
            return (body, right.group(3)) if left.group(1)[0] == right.group(1)[0] else (pred, gold)
        if left.group(1) == "y" or right.group(1) == "y":
            return body, right.group(3)
    return pred, gold


def same_answer(pred: str, gold: str, lists: bool = True) -> bool:
    """Equality by the exact rules, then item by item if both are lists of one length, then by algebra."""
    settled = exact(pred, gold)
    if settled is not None:
        return settled
    if " OR " in gold:  # a gold answer in several forms
        return any(same_answer(pred, form) for form in gold.split(" OR "))
    whole = pred, gold = normalise(pred), normalise(gold)
    pred, gold = _simpler(pred, gold)
    if (pred, gold) != whole and (settled := exact(pred, gold)) is not None:
        return settled
    if lists:
        left, right = items(pred), items(gold)
        if len(left) == len(right) > 1 and len(left) <= 12:
            return _matched(left, right)
    return _algebra(pred, gold)


def _matched(left: list[str], right: list[str]) -> bool:
    rest = list(right)
    for item in left:
        twin = next((i for i, other in enumerate(rest) if same_answer(item, other, lists=False)), None)
        if twin is None:
            return False
        rest.pop(twin)
    return True


def search_answer(text: str) -> str | None:
    """The answer that Math-Verify finds in a text, verbatim (LaTeX or a plain number)."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    found = parse(text, [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=0)
    source = next((item for item in reversed(found) if isinstance(item, str)), "")
    return source.strip() or None
