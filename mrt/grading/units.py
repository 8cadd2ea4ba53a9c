r"""Words after a value that do not change it: units, and counted things.

unit_of(r"\frac{km}{h}") == unit_of("kilometers per hour") == unit_of("km h^{-1}")
"""

import re
from collections import Counter

_NAMED = {
    name: names.split()[0]
    for names in (
        "mm millimeter millimetre", "cm centimeter centimetre", "m meter metre", "km kilometer kilometre",
        "in inch inche", "ft foot feet", "yd yard", "mi mile", "mg milligram", "g gram", "kg kilogram",
        "lb lbs pound", "oz ounce", "ton tonne", "ms millisecond", "s sec secs second", "min mins minute",
        "h hr hrs hour", "day", "week", "month", "year yr yrs", "ml mL milliliter millilitre", "L l liter litre",
        "cup", "quart", "gallon", "pint", "acre", "mph", "rad radian", "unit", "N newton", "J joule", "W watt",
        "V volt", "A ampere amp", "Hz hertz", "Pa pascal", "eV electronvolt", "mol mole", "K kelvin",
        "C celsius", "F fahrenheit",
        "ohm Ω \\Omega", "dollar USD buck", "euro EUR", "cent penny", "rupee Rs", "yen", "yuan", "won", "ruble", "atm",
        "AU au", "ly", "pc parsec", "amu", "dB", "ppm", "psi", "hp", "erg", "bps", "rpm", "bit", "byte",
        "child children", "man men", "woman women", "person people", *"元个個人岁歳円年天日次种本只枚",
        "apple", "book", "boy", "card", "coin", "dog", "girl", "grade", "integer", "marble", "piece", "point",
        "solution", "student", "ticket", "way", "worker",
    )
    for name in names.split()
}  # fmt: skip
_PREFIXES = ("", "f", "p", "n", "u", "µ", "μ", r"\mu", "c", "d", "m", "k", "M", "G", "T")
_BASES = (
    *("m", "g", "s", "N", "J", "W", "V", "A", "Hz", "Pa", "eV", "mol", "K", "T", "Wb", "cal", "pc", "L", "l", "bar"),
    *("B", "Bq", "Gy", "Sv", "Ω", "ohm", r"\Omega", "Wh"),
)
_SYMBOLS = {prefix + base: prefix + _NAMED.get(base, base) for prefix in _PREFIXES for base in _BASES}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_NAME = r"(?:\\mu ?)?(?:[A-Za-z]?\\Omega|[A-Za-zΩµμ]+|[\u4e00-\u9fff])"
_POWER = r"\.?(?: ?\^\{-?\d\})?"
_WORD = _NAME + _POWER
_SIGN = r" ?(?:/|\\cdot(?![A-Za-z])|\*) ?\(? ?| "
UNIT = re.compile(
    rf"\s*(?<![A-Za-z\\])(?P<unit>{_WORD}(?:(?:{_SIGN}){_WORD})*\)?|\\frac ?\{{ ?{_WORD} ?\}}\{{ ?{_WORD} ?\}})\s*$"
)
_PART = re.compile(rf"(?P<over>/|\bper\b)|(?P<name>{_NAME})(?P<power>{_POWER})")
_NO_NOUN = re.compile(  # words that change a value, or compare it
    r"(?:hundred|thousand|[a-z]*illion|dozen|score|pair|couple|double|triple|[a-z]*tuple|gross|lakh|crore|ten|one"
    r"|half|halve|third|quarter|[a-z]+th|[a-z]*fold|time|percent(?:age)?|pct|more|less|fewer|other|plus|minus|base|mod"
    r"|modulo|remainder|or|and|not|no|non|than|at|over|under|about|ago|past|left|each|every|per|of|to|from|between|with"
    r"|root|power|degree)s?"
)


def unit_of(text: str) -> str | None:
    """The one spelling of a unit, such as `h^-1 km^1`; None for a text that is no product or quotient of units."""
    if text.strip() in ("K", "B", "T"):  # or thousands, billions, trillions
        return None
    powers, sign, factor = Counter[str](), 1, 1
    body = re.sub(r"\\frac ?\{([^{}]*(?:\{-?\d\})?[^{}]*)\}\{", r"\1 / {", text)
    parts = list(_PART.finditer(body.replace(r"\cdot", " ")))
    for part in parts:
        name = (part["name"] or "").replace(" ", "")
        if part["over"] or name == "per":
            sign = -1
        elif name in _POWERS:
            factor = _POWERS[name]
        elif name == "degree" or (name == "degrees" and part is not parts[-1]):
            continue
        elif (unit := _one(name)) is None:
            return None
        else:
            powers[unit] += sign * factor * int(part["power"].strip(". ^{}") or 1)
            factor = 1
    return " ".join(f"{unit}^{power}" for unit, power in sorted(powers.items())) or None


def _one(name: str) -> str | None:
    """The shortest spelling of one unit; capitals matter for symbols, as `Mg` is not `mg`."""
    if exact := _NAMED.get(name) or _SYMBOLS.get(name):
        return exact
    spellings = (name, name.removesuffix("s" * (len(name) > 3)))  # `Celsius` is no plural
    named = (_NAMED.get(each) or (_NAMED.get(each.lower()) if len(each) > 2 else None) for each in spellings)
    return next(filter(None, named), None)


def is_counted(noun: str, one: bool) -> bool:
    """Whether words after a number name counted things, as in `18 eggs`; `one`: the number is 1, as in `1 egg`.

    A plural of one word, or of two, none of which changes a value as `dozen` or `tenths` do.
    """
    words = noun.split()
    if not 0 < len(words) < 3 or any(not re.fullmatch("[a-z]{3,}", word) or _NO_NOUN.fullmatch(word) for word in words):
        return False
    return one or bool(re.search("(?<!s)s$", words[-1]))
