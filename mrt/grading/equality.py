r"""Whether two answers are equal: rules in order, of which the first that says yes or no decides.

The rules of `EXACT` compare text and exact numbers, in microseconds. Those that follow take an answer apart (a name
before "=", a noun after a value, the ends of an interval, the items of a list) and compare the parts. `algebra` parses
single expressions with `latex2sympy2_extended` and evaluates them at random points. Answers without a value (sets,
relations, matrices) go to Math-Verify. A rule returns True, False, or None for "not my case"; a doubtful pair is
unequal.
"""

import itertools
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Any
from unicodedata import numeric

from mrt.grading.answers import LONGEST, boxed, closing
from mrt.grading.units import UNIT, is_counted, unit_of

# Math-Verify warns that it has no time limit; the processes that call it have one (mrt.grading.workers)
logging.getLogger("math_verify").setLevel(logging.ERROR)

Rule = Callable[[str, str], bool | None]
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho varsigma sigma tau \
upsilon varphi chi psi omega"  # in the order of Unicode
_SYMBOLS = str.maketrans({
    "\u00a0": "~", "\u2009": "~", "\u202f": "~", "−": "-", "∶": ":", "–": "-", "—": "-",
    "×": r"\times ", "÷": r"\div ", "·": r"\cdot ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "°": r"^\circ ", "º": r"^\circ ",
    "˚": r"^\circ ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "∀": r"\forall ", "∅": r"\emptyset ",
    "√": r"\sqrt ", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]",
    "∠": r"\angle ", "△": r"\triangle ",
} | {mark: rf"\frac{{{value.numerator}}}{{{value.denominator}}}" for mark in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
     if (value := Fraction(numeric(mark)).limit_denominator(10))}
  | {chr(code): f"\\{name} " for code, name in enumerate(_GREEK.split(), start=0x3B1)}
  | {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)})  # fmt: skip
_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ⁻⁺₀₁₂₃₄₅₆₇₈₉ₙ₋₊", "0123456789n-+0123456789n-+")
_RAISED, _LOWERED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ⁻⁺]+"), re.compile("[₀₁₂₃₄₅₆₇₈₉ₙ₋₊]+")
_TEXT = (  # commands that set their argument in a font or colour
    r"\\(?:text(?:bf|it|rm|sf|tt|sc|up|md|normal)?|math(?:rm|bf|sf|it|tt|normal)|mbox|hbox|operatorname|emph|underline"
    r"|boldsymbol|bm|pmb|textcolor ?\{\w+\})\s*"
)
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|max|min|gcd|lcm|pi|infty"
_AMOUNT = r"-?(?:\d+(?:[, ]\d{3}(?!\d))*(?:\.\d+)?|\.\d+|\\frac ?\{\d+\}\{\d+\})"
_CURRENCIES = {r"\$": "dollars", "€": "euros", r"\euro": "euros", "£": "pounds", r"\pounds": "pounds", "¥": "yen",
               "￥": "yen", "₹": "rupees", "₽": "rubles", "₩": "won", "¢": "cents"}  # fmt: skip
_DEGREES = "deg(?:ree)?s?"
_SIGN = "|".join(map(re.escape, _CURRENCIES))
_CODE = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "infinity": "infty", "oo": "infty"}
_REWRITES: dict[str, tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = {
    "an amount": (re.compile(r"\A\$(?=[\d.][^$]*\Z)"), r"\\$"),  # not the sign that opens a formula
    # `1,000` and `1 000` are no lists, as no item is `000`; `100 200` is perhaps two numbers
    "thousands": (re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?:(?:\{,\}|,?\\! ?|\\[, ]|[~, ])\d{3})+)(?![\d{]|,\d)"),
                  lambda m: m[1] + re.sub(r"\D", "", m[2]) if re.search(r"[{\\~]|[, ]0", m[2]) else m[0]),
    "spaces": (re.compile(r"(?<!\\)\\[!,;:> ]|~|\\q?quad(?![A-Za-z])"), " "),
    "size of brackets": (re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|limits)(?![A-Za-z])\.?"), ""),
    "fonts": (re.compile(r"\\(?:bf|it|rm|sf|tt|em|bfseries|itshape)(?![A-Za-z]) ?|\\color ?\{\w+\}"), ""),
    "letters": (re.compile(r"\\(mathbb|mathcal|mathscr|vec|hat|bar) ?([A-Za-z])(?![A-Za-z])"), r"\\\1{\2}"),
    "times of day": (re.compile(rf"(?<![\d.])((?:1[0-2]|0?[1-9])(?: ?: ?[0-5]\d| |(?=\\)|(?=[AP])|(?=[ap]\.)))"
                                rf"\s*(?:{_TEXT}\{{\s*([AaPp])\.? ?[Mm]\.?\s*\}}"
                                r"|([AaPp])(?:\. ?[Mm]\b\.?|[Mm]\b(?!\.\w)))"
                                r"(?! ?[\w^+*/=(\\])"),
                     lambda m: rf"{m[1].replace(' ', '')} \text{{{(m[2] or m[3]).lower()}m}}"),
    "fractions": (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    "empty set": (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
    "and": (re.compile(rf"\\(?:land|wedge)(?![A-Za-z])|{_TEXT}\{{\s*,?\s*and\s*\}}"), " and "),
    "or": (re.compile(rf"\\(?:lor|vee)(?![A-Za-z])|{_TEXT}\{{\s*,?\s*or\s*\}}"), " or "),
    "functions in code": (re.compile(rf"(?<![A-Za-z\\])(?!(?:m(?:in|ax)|sec)\b ?(?:[}}.,/]|$))(?:np\.|math\.)?"
                          rf"({_FUNCTIONS}|{'|'.join(_CODE)})(?![A-Za-z])"),
                          lambda m: rf"\{_CODE.get(m[1], m[1])} "),
    "currencies": (re.compile(rf"({_SIGN}) ?({_AMOUNT})|(?<![\d.,])({_AMOUNT}) ?({_SIGN})"),
                   lambda m: f"{(m[2] or m[3]).replace(' ', '')} {_CURRENCIES[m[1] or m[4]]} "),
    "delimiters": (re.compile(r"\\?\$|(?<!\\)\\[()\[\]]"), " "),
    "ordinals": (re.compile(r"(?<=\d) ?\^?\{?(?:\\(?:text|mathrm) ?\{)?(?:st|nd|rd|th)(?:\}{1,2}|\b)"), ""),
    "degrees": (re.compile(rf" ?\^ ?\{{ ?\\circ ?\}}|(?<=[\d}}]) ?(?:{_TEXT}\{{ ?{_DEGREES}\.? ?\}}|{_DEGREES}\b)"
                           rf"(?! ?(?:{_TEXT}\{{ ?)?(?:[CF]\b|of|[Cc]els|[Ff]ahr))"), r"^\\circ"),
    "percent": (re.compile(r"(?i)\\?%|\\text ?\{ ?(?:percent(?:age)?|pct) ?\}|\b(?:percent(?:age)?|pct)\b"), r"\\%"),
}  # fmt: skip
_ARGUMENTS = re.compile(r"\\(frac|binom|sqrt)(?![A-Za-z])|(?<!\\)[\^_]")
_ARGUMENT = re.compile(r"\s*(\\(?!circ|prime)[A-Za-z]+|\w)")  # of a fraction: `\frac12` is a half
_WHOLE = r"\d+(?:\.\d+)?|\\(?:frac|binom)\{[^{}]*\}\{[^{}]*\}|\\sqrt\{[^{}]*\}|\\(?!circ|prime)[A-Za-z]+|\w"
_NUMBER = re.compile(rf"\s*(-?(?:{_WHOLE}))")  # of a root or an index, as `√15` has one of two digits
_POWER = re.compile(rf"\s*(-?(?:\d(?=[1-9]\d*\^)|{_WHOLE}))")  # of `2^16`; `2^35^2` is `2^3 5^2`
_BASE = re.compile(  # of a logarithm: `\log_23` is that of 3, `\log_10 x` that of x
    rf"\s*(\d+(?=\s*(?:[A-Za-z({{]|\\(?:pi|sqrt|frac)(?![A-Za-z]))|\s+\d)|\d|-?(?:{_WHOLE}))"
)
_WRAP = re.compile(rf"(?:{_TEXT})?\{{")  # around all of an answer


def _braced(text: str) -> str:
    r"""The text with braces around arguments of `\frac`, `\sqrt`, `^`, `_`, as TeX (`\frac12`) and code (`2^(n)`)."""
    for command in reversed(list(_ARGUMENTS.finditer(text))):
        at = command.end()
        if command[1] == "sqrt" and text[at : at + 1] == "[":
            at = text.find("]", at) + 1 or len(text)
        argument, count = _NUMBER, 1
        if command[1] in ("frac", "binom"):
            argument, count = _ARGUMENT, 2
        elif command[0] == "^":
            argument = _POWER
        elif text[: command.start()].rstrip().endswith("log"):
            argument = _BASE
        for _ in range(count):
            if token := argument.match(text, at):
                text = f"{text[:at]}{{{token[1]}}}{text[token.end() :]}"
            at = len(text) - len(text[at:].lstrip())
            end = closing(text, at)
            if end and text[at] == "(" and command[0] in (r"\sqrt", "^"):
                text = f"{text[:at]}{{{text[at + 1 : end]}}}{text[end + 1 :]}"
            at = end + 1 if end and text[at] == "{" else at
    return text


def as_latex(text: str) -> str:
    """A text with its mathematics in Unicode, such as √, ≤, ² and ½, as LaTeX."""
    text = _RAISED.sub(lambda m: f"^{{{m[0].translate(_DIGITS)}}}", text)
    text = _LOWERED.sub(lambda m: f"_{{{m[0].translate(_DIGITS)}}}", text)
    return text.translate(_SYMBOLS)


@lru_cache(maxsize=1 << 16)
def normalise(answer: str) -> str:
    r"""The answer without parts that never affect its value: delimiters, spacing commands, `\left`, a full stop.

    The result is still LaTeX, and normalising it again does not change the outcome of a comparison.
    """
    if len(answer) > LONGEST:
        return ""
    text = " ".join(as_latex(answer).split())
    if r"\begin" not in text and r"\\" in text:  # escaped once too often; elsewhere `\\` ends a row
        text = re.sub(r"(?<!\\)\\\\(?=[A-Za-z]{2}|[(){}\[\]])", r"\\", text)
    for pattern, replacement in _REWRITES.values():
        text = pattern.sub(replacement, text)
    text, before = _braced(text), None
    while before != text:
        before = text = text.strip()
        if r"\boxed" in text or r"\fbox" in text:
            text = boxed(text) or text
        wrap = _WRAP.match(text)
        if wrap and closing(text, wrap.end() - 1) == len(text) - 1 and (len(wrap[0]) == 1 or re.search(r"\d", text)):
            text = text[wrap.end() : -1]
        if text.endswith(("^", "\\")) and not text.endswith("\\\\"):
            text = text[:-1]
        if text.endswith((".", ",", ";")) and not text.endswith(".."):
            text = text[:-1]
    return text


def _bare(text: str, blank: str = " ") -> str:
    r"""A normalised answer without text commands (`\text{}` and the like), which become blanks."""
    before = None
    while before != text:
        before, text = text, re.sub(rf"{_TEXT}\{{([^{{}}]*)\}}", rf"{blank}\1{blank}", text)
    return " ".join(text.split())


@lru_cache(maxsize=1 << 16)
def plain_text(text: str) -> str:
    """A normalised answer without text commands and without meaningless blanks."""
    # a blank after the comma makes `120, 150` a list
    return re.sub(r"(?<=\W)(?<!\d,)\s|(?<=\d,)\s(?!\d{3}(?!\d))|\s(?=\W)", "", _bare(text))


# --- Rules that need no algebra ---------------------------------------------------------------------------------------

_DECIMAL = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+))(?:(?:\\times|\\cdot|\*) ?10\^\{([+-]?\d{1,3})\}|[eE]([+-]?\d{1,3}))?"
)
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*)\\(?:overline|bar|dot) ?(?:\{(\d+)\}|(\d))")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
_GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")  # within a list
_WORDS = re.compile(  # not single letters, nor a product of two variables
    r"(?=.*[A-Za-z]{4}|[A-Za-z]{2,3}\W?$)(?![a-df-hj-np-tv-z]{2}\W?$)[A-Za-z]+(?:[ ,.;'’\"!-]+[A-Za-z]+)*[.!]?"
)
_CASELESS = re.compile(  # other letters may be symbols, whose case matters
    r"\b(?:((?i:yes|no|true|false|odd|even|all|any|always|half|none|east|am|pm))\b!?|[A-Z](?=[a-z]*[eiou])[a-z]{2,}\b)"
)
_OPTION = rf"(?:[\w$]|\\(?:[${{]|frac|emptyset|{_FUNCTIONS}))"  # no operator
_CHOICE = re.compile(  # the letter of a choice, and perhaps its option
    rf"\(?([A-Z])[).]{{0,2}}$|(?:\(([A-J])\)(?: (?={_OPTION})|[.:] (?=-?{_OPTION}))|([A-J])[).:] (?=-?{_OPTION})"
    r"|([A-J]) - (?=[A-Za-z]+ [A-Za-z]{2}))(\S.*)",
    re.DOTALL,
)
_HEDGE = re.compile(r"^\W*(?:or|and)\b|\b[A-HJ]\b|\([A-Ja-j]\)|^\W*[A-Ja-j]\W*$|\b(?:or|and) [a-j]\b")
_DENIED = re.compile(  # an option text that may say that the choice is wrong
    r"(?i)(?:is|was|are|has|can|could|must|should|will|would|does|did|do|wo|ca)(?:n?['’]?t)?\b|cannot\b|fails?\b"
    r"|contradicts\b|not (?:the |an? )?(?:answer|correct|right|true|possible|valid|this|it)\b"
    r"|(?:wrong|false|incorrect|invalid|impossible|eliminated|excluded|rejected|ruled out|no|not)\W*$"
)
_NOTATION = re.compile(  # a time, a date, a score, digits in a base, points
    r"(?:1?\d|2[0-4])?:[0-5]\d|\d+([-/.])\d+\1\d+|\d+-\d+|(?=[A-Z]*\d)[\dA-Z]+_\{\w+\}|m?\\(?:angle|triangle) ?[A-Z]+"
)


@lru_cache(maxsize=1 << 16)
def number_in(text: str) -> tuple[Fraction, Fraction] | None:
    """The value of a normalised integer, decimal, fraction or mixed number, and how far a number that it rounds may be.

    This is half a unit of a decimal's last digit, or 1e-12 of its value (of floats), and 0 for all but decimals.
    """
    if len(text) > 200:
        return None
    if match := _REPEATING.fullmatch(text):
        whole, digits, period = match[2] or "0", match[3], match[4] or match[5]
        value = Fraction(int(digits + period) - int(digits or 0), (10 ** len(period) - 1) * 10 ** len(digits))
        return (-1 if match[1] == "-" else 1) * (int(whole) + value), Fraction(0)
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    if match := _DECIMAL.fullmatch(text):
        unit = Fraction(10) ** int(match[2] or match[3] or 0)
        value, last = Fraction(match[1]) * unit, unit / 10 ** len(match[1].partition(".")[2])
        return value, max(last / 2, abs(value) / 10**12) * ("." in match[1] or unit != 1)
    if match := re.fullmatch(r"([+-]?)(?:(\d+) ?(?=\\frac)|(\d+) )?(?:(\d+)/(\d+)|\\frac\{(-?\d+)\}\{(-?\d+)\})", text):
        whole = int(match[2] or match[3] or 0)
        above, below = int(match[4] or match[6]), int(match[5] or match[7])
        if below and not (whole and above >= below):
            return (-1 if match[1] == "-" else 1) * (whole + Fraction(above, below)), Fraction(0)
    return None


def texts(pred: str, gold: str) -> bool | None:
    """Equal text."""
    return True if pred == gold or plain_text(pred).rstrip(".") == plain_text(gold).rstrip(".") else None


def numbers(pred: str, gold: str) -> bool | None:
    """Numbers, as fractions; a decimal of six significant digits or more equals the fraction that it rounds."""
    one, other = number_in(plain_text(pred)), number_in(plain_text(gold))
    if not (one and other) or (one[0] != other[0] and "," in pred and "," in gold):  # perhaps lists
        return None
    return one[0] == other[0] or _rounds(one, other) or _rounds(other, one)


def _rounds(decimal: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Whether one number is a decimal of at least six significant digits, and rounds the other, which is no integer."""
    value, error = decimal
    near = 0 < error <= abs(value) / (2 * 10**5) and abs(value - other[0]) <= error
    return bool(near and not other[1] and other[0] % 1 != 0)


def choices(pred: str, gold: str) -> bool | None:
    """The letter of a choice, perhaps with its option, which also stands for it alone; two letters are no choice."""
    matches = [_CHOICE.fullmatch(_bare(text, "")) for text in (pred, gold)]
    letters = [match and (match[1] or match[2] or match[3] or match[4]) for match in matches]
    one, other = (match and match[5] for match in matches)
    hedged = any(
        _DENIED.match(option) or _HEDGE.search(option.replace(f"({letters[0]})", ""))
        for option in (one, other)
        if option
    )
    if all(letters):
        same = not (one and other) or _first([texts, numbers, words], one, other) is not False
        return not hedged and letters[0] == letters[1] and same
    return _first([texts, numbers, words], one or pred, other or gold) if (one or other) and not hedged else None


def words(pred: str, gold: str) -> bool | None:
    """Words and sentences, whose capitals do not matter; lists of them in any order; symbols and products keep case."""
    sides = [plain_text(text) for text in (pred, gold)]
    if not all(map(_WORDS.fullmatch, sides)):
        return None
    (one, joins), (other, others) = (split(_caseless(side), _COMMAS) for side in sides)
    return Counter(filter(None, one)) == Counter(filter(None, other)) and len({*joins, *others} & {"and", "or"}) < 2


def _caseless(text: str) -> str:
    return _CASELESS.sub(lambda match: (match[1] or match[0]).lower(), text.rstrip("."))


def notations(pred: str, gold: str) -> bool | None:
    """A time of day, a date, a score, digits in a base, named points: no arithmetic, so equal to nothing but the same.

    An angle is also written from its other arm.
    """
    one, other = (plain_text(text).lstrip("0") for text in (pred, gold))
    if not (_NOTATION.fullmatch(one) or _NOTATION.fullmatch(other)):
        return None
    return one == other or (r"\angle" in one and one == re.sub("([A-Z])([A-Z])([A-Z])$", r"\3\2\1", other))


EXACT: list[Rule] = [texts, numbers, choices, words]


def exact(pred: str, gold: str) -> bool | None:
    """Equality of two answers by the rules of `EXACT`; None if they do not settle it."""
    return _first(EXACT, pred, gold)


def _first(rules: list[Rule], pred: str, gold: str) -> bool | None:
    pred, gold = normalise(pred), normalise(gold)
    if not pred or not gold:
        return False
    return next((verdict for rule in rules if (verdict := rule(pred, gold)) is not None), None)


# --- Rules that take answers apart ------------------------------------------------------------------------------------

_BRACKETS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\langle": r"\rangle"}
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\b(?:and|or)\b|[<>]=|.", re.DOTALL)
_COMMAS = {",", ";", "and", "or"}
_RELATIONS = {"<", ">", "<=", ">=", r"\lt", r"\gt"} | {
    rf"\{kind}{end}" for kind in ("le", "ge") for end in ("", "q", "qslant")
}
_ONE = (  # a name: x, x_{1}, f'(x), f^{-1}(x), AB, \text{area}, \angle ABC, |AB|
    rf"(?:(?:[A-Za-z]|[A-Z]{{2,}}|{_TEXT}\{{[^{{}}=<>]{{1,40}}\}}|\\(?:mathbb|mathcal|overline|vec) ?\{{?[A-Za-z]+\}}?"
    r"|\\(?!sin|cos|tan|cot|log|ln|exp|sqrt|frac|pi|in|pm|times|cdot|infty)[a-z]+)(?:_\{[^{}=<>]{1,40}\}|'|\^\{-1\})*"
    r"(?:[(\[][^()\[\]=<>]{1,40}[)\]])?|(?:m?\\(?:angle|triangle) ?[A-Z]+)|\|[A-Z]+\|)"
)
_NAME = re.compile(rf"{_ONE}|{_ONE}(?:[:/]{_ONE})+|\\frac\{{{_ONE}\}}\{{{_ONE}\}}|\({_ONE}(?:, ?{_ONE})+\)")
_NOUN = re.compile(
    rf"\s*(?:{_TEXT}\{{(?P<noun>[^{{}}\d\\]+)\}}|(?<![A-Za-z])(?P<word>[A-Za-z]+(?:(?: | ?/ ?)[A-Za-z]+)*)\.?|\^\\circ"
    r"|\\%)(?P<power>\^\{[23]\})?$"
)
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
# A clause after a value: `, k \in \mathbb{Z}`, `where k is an integer`, `\text{for all } x \in \mathbb{R}`.
_CLAUSE = re.compile(
    rf"[,;]?\s*\(?\s*(?:{_TEXT}\{{[^{{}}]{{0,20}}\}}|where|for all|for)?\s*(?P<name>[A-Za-z])\s*"
    r"(?:\\in\s*(?:\\mathbb ?\{?)?(?P<set>[ZNQR])\}?\S{0,8}"
    rf"|(?:{_TEXT}\{{)?\s*(?:is )?(?:an|any) integer\s*\}}?)\)?$"
)


def split(text: str, at: Iterable[str]) -> tuple[list[str], list[str]]:
    """The pieces of a text between the given tokens outside of brackets, and these tokens."""
    depth, start = 0, 0
    pieces, tokens = [], []
    for match in _TOKEN.finditer(text):
        token = match[0]
        depth += (token in _BRACKETS) - (token in _BRACKETS.values())
        if depth == 0 and token in at:
            pieces.append(text[start : match.start()].strip())
            tokens.append(token)
            start = match.end()
    return [*pieces, text[start:].strip()], tokens


def items(text: str) -> list[str]:
    """The items of a list without brackets around it: between commas, semicolons, "and", "or" outside of brackets."""
    return [piece for piece in split(text, _COMMAS)[0] if piece]


def _opened(text: str) -> tuple[str, str, str]:
    """The bracket that opens a text, its content, the bracket that closes it; no brackets if they are no pair."""
    first = next((token for token in _BRACKETS if text.startswith(token)), "")
    last = next((token for token in (r"\}", r"\rangle", ")", "]", "}") if text.endswith(token)), "")
    inside = text[len(first) : len(text) - len(last)]
    depths = itertools.accumulate((m[0] in _BRACKETS) - (m[0] in _BRACKETS.values()) for m in _TOKEN.finditer(inside))
    return (first, inside.strip(), last) if first and last and min(depths, default=0) >= 0 else ("", text, "")


@lru_cache(maxsize=256)
def _named(text: str) -> tuple[str, str]:
    r"""The name and the value of `name = value`, `name \in value`, `2 + 3 = 5` (whose name is its first side)."""
    sides, signs = split(text, ("=", r"\in", *_RELATIONS))
    if not signs or not set(signs) <= {"=", r"\in"} or not sides[-1] or any(items(side)[1:] for side in sides[1:-1]):
        return "", text
    if re.fullmatch("[A-J][A-J]", sides[0] + sides[-1]):  # two choices
        return "", text
    if _NAME.fullmatch(sides[0]) or (number_in(plain_text(sides[-1])) and algebra(sides[-2], sides[-1])):
        return sides[0], sides[-1]
    return "", text


def names(pred: str, gold: str) -> bool | None:
    """`x = value` on one side, the value on the other; on both sides, functions of variables with different names."""
    (mine, value), (theirs, right) = _named(pred), _named(gold)
    if not (mine and theirs):
        bare = pred if theirs else gold
        return same_answer(value, right) if (mine or theirs) and len(split(bare, ("=", *_RELATIONS))[0]) == 1 else None
    one, other = (re.fullmatch(r"([A-Za-z])\(([A-Za-z])\)", name) for name in (mine, theirs))
    if one and other and one[1] == other[1] and one[2] != other[2]:
        return other[2] not in value and same_answer(_renamed(value, one[2], other[2]), right)
    if mine == theirs or ("y" in (mine, theirs) and (one or other)):
        return same_answer(value, right)
    return False if _NAME.fullmatch(mine) and _NAME.fullmatch(theirs) else None


def _renamed(text: str, old: str, new: str) -> str:
    return re.sub(rf"(?<![A-Za-z\\]){old}(?![A-Za-z])", new, text)


def clauses(pred: str, gold: str) -> bool | None:
    r"""`, k \in \mathbb{Z}` after a value: k may have another name on the other side, or stay undeclared there."""
    mine, theirs = (clause if (clause := _CLAUSE.search(text)) and clause.start() else None for text in (pred, gold))
    if mine and theirs:
        one, other = mine["name"], theirs["name"]
        if (mine["set"] or "Z") != (theirs["set"] or "Z") or (one != other and _renamed(pred, other, "") != pred):
            return False
        return same_answer(_renamed(pred[: mine.start()], one, other), gold[: theirs.start()])
    if not (mine or theirs):
        return None
    return same_answer(pred[: mine.start()] if mine else pred, gold[: theirs.start()] if theirs else gold)


def quantities(pred: str, gold: str) -> bool | None:
    """A unit, a currency, a counted noun, a degree or percent sign on one side; on both the same, as other words."""
    (mine, value, clear), (theirs, right, plain) = _quantity(pred), _quantity(gold)
    if mine == theirs:
        return (same_answer(value, right) or None) if mine else None
    if (mine and theirs) or not (clear and plain):
        return False
    if "degree" in (mine, theirs) and r"\pi" in pred + gold:
        return None
    if "percent" in (mine, theirs):  # beside a number above 1 the sign was left out; else it divides by 100
        bare, share = (number_in(plain_text(text)) for text in ((value, right) if theirs else (right, value)))
        if not (bare and share):
            return None
        return same_answer(value, right) if abs(bare[0]) > 1 else share[0] == 100 * bare[0]
    return same_answer(value, right)


def _quantity(text: str) -> tuple[str, str, bool]:
    """The words after a value, a unit in one spelling ("" without words); the value; whether it is the same without."""
    bare = _bare(text)
    in_font = bare != " ".join(text.split())
    if (unit := UNIT.search(bare, max(0, len(bare) - 80))) and (name := unit_of(unit["unit"])):
        value = bare[: unit.start()].strip()
        apart = in_font or re.search(r"[A-Za-z]{2}|/", unit["unit"]) or bare[unit.start()] == " "
        plain = number_in(plain_text(value)) and (len(unit["unit"]) > 1 or unit["unit"] in "mgshNJWVAL")  # no variable
        if apart and _is_single(value) and (in_font or plain or len(unit["unit"]) > 3):
            return name, value, True
    match = _NOUN.search(text, max(0, len(text) - 80))
    value = text[: match.start()].strip() if match else ""
    number = number_in(plain_text(value))
    if not match or not _is_single(value):
        return "", text, True
    if not (noun := (match["noun"] or match["word"] or "").strip()):  # a sign; after `\cos 60` it is the angle's
        angle = "circ" in match[0] and _TRIGONOMETRIC.search(value)
        return ("", text, True) if angle else ("degree" if "circ" in match[0] else "percent", value, True)
    if match["word"] and not (number and text[len(value)] == " "):
        return "", text, True
    if not len(noun) > (3 if match["word"] else 1) or "/" in noun:  # variables
        return "", text, True
    return _caseless(noun) + (match["power"] or ""), value, bool(number and is_counted(noun, number[0] == 1))


def _is_single(value: str) -> bool:
    """Whether a text may be one value with a unit after it."""
    if number_in(plain_text(value)):
        return True
    return bool(re.search(r"\d", value) and not items(value)[1:]) and not split(value, ("=", *_RELATIONS))[1]


def ratios(pred: str, gold: str) -> bool | None:
    """Ratios in the order of their terms, which a factor may multiply; one of two terms is also their quotient."""
    left, right = (split(text, (":",))[0] for text in (pred, gold))
    if len(left) == len(right) == 1:
        return None
    if len(left) == len(right):
        pairs = zip(itertools.pairwise(left), itertools.pairwise(right), strict=True)
        return all(same_answer(_quotient(*one), _quotient(*other)) for one, other in pairs)
    two, one = sorted((left, right), key=len, reverse=True)
    return len(two) == 2 and len(one) == 1 and same_answer(_quotient(*two), one[0])


def _quotient(above: str, below: str) -> str:
    one, other = number_in(plain_text(above)), number_in(plain_text(below))
    return str(one[0] / other[0]) if one and other and other[0] else rf"\frac{{{above}}}{{{below}}}"


def lists(pred: str, gold: str) -> bool | None:
    r"""Lists and sets in any order, tuples in order, item by item; `\pm` is two items, a vector as a matrix a tuple.

    `1,234` is one item, or two.
    """
    if re.search(r"\d,(?:0\d\d| 000)(?!\d)", f"{pred} {gold}"):  # the end of `1,000` rather than an item
        return False
    readings = [{text, _GROUPED.sub(lambda number: number[0].replace(",", ""), text)} for text in (pred, gold)]
    verdicts = [_lists(one, other) for one, other in itertools.product(*readings)]
    return next(verdict for verdict in (True, None, False) if verdict in verdicts)


def _lists(pred: str, gold: str) -> bool | None:
    (mine, left), (theirs, right) = _collection(pred), _collection(gold)
    if (mine, theirs) == ("", "") and {len(left), len(right)} - {1}:  # one value in several spellings
        left, right = _different(left), _different(right)
        if len(left) == len(right) == 1:
            return same_answer(left[0], right[0])
    if min(len(left), len(right)) < 2 and not (mine == theirs == r"\{" and len(left) == len(right)):
        return None
    joins = [set(re.findall(r"\b(?:and|or)\b", text)) for text in (pred, gold)]
    if len(joins[0] | joins[1]) == 2 and all(joins) and not all(map(_constant, left + right)):
        return False  # `p and q` is not `p or q`
    named = [all(_named(item)[0] for item in side) for side in (left, right)]
    if len(left) != len(right):
        return False
    if {mine, theirs} <= {"", r"\{"} and (named[0] == named[1] or len(left) < 2):
        return _matched(left, right)
    if "(" in (mine, theirs):  # a tuple has the order of names; a list beside them that in which they are written
        left, right = (
            _by_name(side) if all_named else side for side, all_named in zip((left, right), named, strict=True)
        )
    return (mine == theirs or named[0] != named[1]) and all(map(same_answer, left, right))


def _different(members: list[str]) -> list[str]:
    r"""The items without those that exactly equal an earlier one in another spelling, as 0.5 beside `\frac12`."""
    kept: list[str] = []
    for item in members:
        if len(members) > 16 or item in kept or not any(exact(item, other) for other in kept):
            kept.append(item)
    return kept


def _by_name(members: list[str]) -> list[str]:
    """Named values in the order of their names, as a tuple has them, if these are single letters, perhaps numbered."""
    are_letters = all(re.fullmatch(r"[A-Za-z](?:_\{\d\})?", _named(item)[0]) for item in members)
    return sorted(members, key=lambda item: _named(item)[0]) if are_letters else members


def _constant(item: str) -> bool:
    """Whether an item of a list is a number, without variables or words."""
    return not re.search(r"[A-Za-z=<>]", re.sub(r"\\(?:frac|sqrt|pi|pm|cdot)(?![A-Za-z])", "", item))


def _collection(text: str) -> tuple[str, list[str]]:
    r"""The bracket of a collection ("" for a bare list, `\{` for a set, "(" for a tuple) and its items."""
    if rows := re.fullmatch(r"\\begin\{[pb]?matrix\}([^&]*)\\end\{[pb]?matrix\}", text, re.DOTALL):
        return "(", [row.strip() for row in rows[1].split(r"\\") if row.strip()]
    kind, inside, end = _opened(_named(text)[1])
    conditions = split(text, _RELATIONS)[1] or (kind == r"\{" and split(inside, _RELATIONS)[1])
    if conditions or ("," not in text and number_in(plain_text(text))):
        return "", [text]
    members = items(inside)
    if kind != r"\{" and (len(members) < 2 or r"\pm" in text):
        kind, end, members = "", "", items(_named(text)[1] if r"\pm" in text else text)
    if kind not in ("(", "["):
        while signed := next((item for item in members if r"\pm" in item or r"\mp" in item), None):
            if len(members) > 16:
                break
            at = members.index(signed)
            count = -1 if r"\mp" in signed else 1  # all change together, or each by itself
            both = [signed.replace(r"\pm", one, count).replace(r"\mp", other) for one, other in ("+-", "-+")]
            both = [f"({text})" if re.fullmatch(_NOTATION, plain_text(text)) else text for text in both]  # not a score
            members[at : at + 1] = both
    return {r"\langle": "("}.get(kind, kind if (kind == "(") == (end == ")") else kind + end), members


def _matched(left: list[str], right: list[str]) -> bool:
    """Whether each of the left has another partner on the right; at most 16 differ in their texts and numbers."""
    items_of = {value_of(item): item for item in (*left, *right)}
    mine, theirs = (Counter(map(value_of, side)) for side in (left, right))
    rest, others = ([items_of[key] for key in side.elements()] for side in (mine - theirs, theirs - mine))
    for item in rest if len(rest) <= 16 else ():
        partner = next((other for other in others if same_answer(item, other)), None)
        if partner is None:
            return False
        others.remove(partner)
    return not others


def value_of(answer: str) -> Hashable:
    """The value of an exact number, else the normalised answer (`1,234` may be a list); those of one name are equal."""
    text = normalise(answer)
    value = number_in(plain_text(text))
    return value[0] if value and not value[1] and "," not in text else text or answer


# --- Algebra, inside a worker -----------------------------------------------------------------------------------------


def algebra(pred: str, gold: str) -> bool | None:
    """Parsed answers: by their values at random points, else by Math-Verify."""
    from math_verify import verify
    from math_verify.grader import should_treat_as_complex
    from sympy import And, Expr, Float, MatrixExpr, Rational, nan, oo, zoo
    from sympy.core.relational import Relational

    if r"\ln" in pred + gold:  # then `\log` is the natural one, which the parser takes for the decadic
        pred, gold = (re.sub(r"\\log(?![A-Za-z]|_)", r"\\ln", text) for text in (pred, gold))
    pred, gold = (re.sub(r"(\d+(?:\.\d+)?)\^\\circ", r"(\\frac{\1\\pi}{180})", text) for text in (pred, gold))
    if (r"^\circ" in pred) != (r"^\circ" in gold):  # degrees of more than a number, beside radians
        pred, gold = (re.sub(r"\^\\circ", r"\\cdot\\frac{\\pi}{180}", text) for text in (pred, gold))
    if all(split(text, ("or", "and"))[1] and split(text, _RELATIONS)[1] for text in (pred, gold)):  # sets of numbers
        variables = [{*re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", text)} for text in (pred, gold)]
        if variables[0] != variables[1]:
            return False
    real = not (should_treat_as_complex(pred) or should_treat_as_complex(gold))
    one, other = _region(pred, real), _region(gold, real)
    if one is None or other is None or any(side.has(zoo, nan) for side in (one, other)):
        return False
    if all(isinstance(side, Relational | And) for side in (one, other)):
        if one.free_symbols != other.free_symbols or not one.free_symbols:  # Math-Verify would solve for nothing
            return False
        if len(one.free_symbols) > 1 and any(isinstance(side, And) for side in (one, other)):
            # no set of numbers: the same relations
            return {part.canonical for part in And.make_args(one)} == {part.canonical for part in And.make_args(other)}
        one, other = (side.as_set() if isinstance(side, And) else side for side in (one, other))
    scalar = [isinstance(side, Expr) and not isinstance(side, MatrixExpr) for side in (one, other)]
    if scalar[0] != scalar[1]:
        return False
    for text, side in ((pred, other), (gold, one)) if all(scalar) else ():
        number = None if side.has(Float) or not side.evalf(40).is_Float else number_in(plain_text(text))
        if number and _rounds((Rational(number[0]), Rational(number[1])), (side.evalf(40), 0)):
            return True
    if all(scalar) and oo not in (one, other) and (verdict := _same_values(one, other, real)) is not None:
        return verdict
    return bool(verify(other, one, float_rounding=12, allow_set_relation_comp=True, timeout_seconds=0))


def _region(text: str, real: bool) -> Any:
    """A parsed answer; conditions joined by "and" or "or" become the set of numbers that meet them."""
    from sympy import Intersection, Set, Union

    kind, inside, _ = _opened(text)
    builder = split(inside, (r"\mid", "|", ":"))[0] if kind == r"\{" else []
    if len(builder) == 2 and re.fullmatch(r"\w(?: ?\\in ?\\mathbb ?\{?R\}?)?", builder[0]):
        text = builder[1]
    for word, join in ("or", Union), ("and", Intersection):
        pieces, words = split(text, (word,))
        if words:
            sets = [_region(piece, real) for piece in pieces]
            sets = [part.as_set() if hasattr(part, "as_set") else part for part in sets]
            return join(*sets) if all(isinstance(part, Set) for part in sets) else None
    return _parse(text, real)


# Texts that the parser drops or reads as a product: `52_8`, `x^2_1`, `f'`, `A^T`, `f^{(3)}`, `\ldots`, `1 2`, `1.2.3`,
# `0x1`, `f^{-1}(x)`; and `1/2x`, which may be half of x.
_LOST = re.compile(
    r"[\d)\]}]_|['\"]|\\prime|\^\{\\?(?:T|top|intercal|dagger|ast|\*)\}|[A-Za-z]\^\{\([\dn]\)\}|\\[lcd]?dots|\.\."
    r"|/ ?\d+(?:\.\d+)? ?(?:[A-Za-z(]|\\(?:sqrt|pi|frac|binom|sin|cos|tan|log|ln|exp|alpha|beta|theta|lambda|mu|omega"
    r"|phi)(?![a-z]))|\d \d|\.\d+\.|\b0x|\d[eE][+-]?\d|!!|[^\d})]\^\\circ|[fghFGH]\^\{-1\} ?\("
)


@lru_cache(maxsize=256)
def _parse(text: str, real: bool) -> Any:
    """A SymPy object; None for a text that is not mathematics to the last character."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from sympy import I, Symbol

    if _LOST.search(text):
        return None
    for above, below in re.findall(r"\d ?\\frac\{(\d+)\}\{(\d+)\}", text):
        if int(above) >= int(below):  # no mixed number, and perhaps no product
            return None
    text = re.sub(r"(?<=\d) ?\\binom", r"\\cdot \\binom", text)  # else the number is read as that of a mixed fraction
    clean = NormalizationConfig(basic_latex=True, units=False, malformed_operators=False, nits=True, boxed="none")
    as_written = ConversionConfig(lowercase_symbols=False)
    try:
        parsed = latex2sympy(
            normalize_latex(text, clean), is_real=real, normalization_config=None, conversion_config=as_written
        )
    except Exception:  # whatever the parser raises
        return None
    return parsed.subs({Symbol("i", real=False): I, Symbol("i"): I}) if not real and hasattr(parsed, "subs") else parsed


def _same_values(one: Any, other: Any, real: bool) -> bool | None:
    """Whether two expressions are equal at random points where they have values; None if these are too few.

    The points lie near 0, between 0 and 1, above 1, below 0, and at positive integers.
    """
    from sympy import Float, Integral, Product, Rational, Sum, factorial
    from sympy.core.function import AppliedUndef

    if one == other:
        return True
    gap, draw, agreed = one - other, random.Random(0), 0
    if gap.has(AppliedUndef, Integral):
        return None
    symbols = sorted(gap.free_symbols | one.free_symbols, key=str)
    close = 1e-13 if (decimals := gap.has(Float) or one.has(Float)) else 1e-90
    ranges = [(2, 9, 1), (101, 500, 97), (1, 96, 97), (-300, -1, 97), (1, 9, 10**9)]
    if gap.has(Sum, Product, factorial):
        ranges = ranges[:1]  # of integers
    for low, high, scale in ranges * (3 if symbols else 1):
        point = {symbol: Rational(draw.randint(low, high), scale) for symbol in symbols}
        a, b = (side.subs(point).doit().evalf(15, maxn=150) for side in (one, other))
        if not all(side.is_number and side.is_finite and (side.is_real or not real) for side in (a, b)):
            continue
        size, rest = max(abs(a), abs(b)), gap.subs(point).doit()
        if rest.is_Rational and not decimals:  # exact, however small beside 2^2022
            if rest != 0:
                return False
        elif abs(a - b) > 1e-5 * size or abs(rest.evalf(15, maxn=150)) > close * size:
            return False
        agreed += 1
        if agreed >= 4 or not symbols:
            return True
    return None


RULES: list[Rule] = [*EXACT, clauses, names, lists, quantities, notations, ratios, algebra]


def same_answer(pred: str, gold: str) -> bool:
    """Whether two answers are equal, by all rules."""
    return bool(_first(RULES, pred, gold))


def math_verify(pred: str, gold: str) -> bool:
    """Whether Math-Verify alone, as it comes, finds two answers equal."""
    from math_verify import parse, verify

    one, other = (parse(rf"\boxed{{{text}}}", parsing_timeout=0) for text in (pred, gold))
    return bool(verify(other, one, timeout_seconds=0))


def search_answer(text: str) -> str | None:
    """The answer that Math-Verify finds in a text, verbatim (LaTeX or a plain number)."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    candidates = parse(text, [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=0)
    source = next((item for item in reversed(candidates) if isinstance(item, str)), "")
    return source.strip() or None
