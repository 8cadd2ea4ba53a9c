"""Ways to write an answer inside a box that all grade as equal, for reading its probability off a model.

    spellings("1234") == ["1234", "1,234", "1{,}234"]

A model spreads the probability of an answer over its spellings. This list has those that models write often. Integers
may have thousands separators or lack leading zeros (AIME's 025), decimals may have one or none. Degrees, fractions as
`\\frac`, `\\dfrac` or with a slash, and texts with and without `\\text` are others. The list is not complete, so the
sum over it bounds the answer's probability from below.
"""

import re
from collections.abc import Iterator

INTEGER = re.compile(r"-?(?:\d+|\d{1,3}(?:(?:,|\{,\})\d{3})+)")
FRACTION = re.compile(r"(-?)(?:\\[dt]?frac(?:\{(\d+)\}\{(\d+)\}|(\d)(\d))|(\d+)/(\d+))")
DEGREES = re.compile(r"(-?\d+)\^(?:\{\\circ\}|\\circ)")
DECIMAL = re.compile(r"(-?)0?(\.\d+)")
TEXT = re.compile(r"(?:\\(?:text|mathrm|textbf)\{)?([A-Za-z]+)\}?")


def spellings(answer: str) -> list[str]:
    """Spellings of an answer, itself first, without repetition."""
    return list(dict.fromkeys([answer.strip(), *others(answer.strip().strip("$ "))]))


def others(answer: str) -> Iterator[str]:
    """Other spellings of an answer, the answer itself first."""
    yield answer
    if INTEGER.fullmatch(answer):
        value = int(re.sub(r"[,{}]", "", answer))
        yield from (f"{value}", f"{value:,}", f"{value:,}".replace(",", "{,}"))
    elif match := DEGREES.fullmatch(answer):
        yield from (f"{match[1]}^\\circ", f"{match[1]}^{{\\circ}}", match[1])
    elif match := FRACTION.fullmatch(answer):
        sign, *parts = match.groups()
        above, below = (part for part in parts if part)
        yield from (f"{sign}\\{kind}{{{above}}}{{{below}}}" for kind in ("frac", "dfrac"))
        yield f"{sign}{above}/{below}"
    elif match := DECIMAL.fullmatch(answer):
        yield from (f"{match[1]}0{match[2]}", f"{match[1]}{match[2]}")
    elif match := TEXT.fullmatch(answer):
        yield from (match[1], f"\\text{{{match[1]}}}")
