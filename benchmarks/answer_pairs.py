r"""Pairs of answers that are equal, or unequal, by construction: a value is drawn, and spelled twice; or it is changed.

Each kind of answer (`Kind`) draws a value, spells it in one of many ways, and makes another value of it that no
spelling of the first can equal. Used by the tests of the grader and by `benchmarks.agreement`.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Draw = random.Random


def frac(value: Fraction, draw: Draw) -> str:
    """A fraction in one of its spellings."""
    top, bottom = value.numerator, value.denominator
    if bottom == 1:
        return draw.choice([str(top), f"{top}.0", f"0{top}" if 0 <= top < 10 else str(top), f"{top:,}"])
    sign, top, k = "-" * (top < 0), abs(top), draw.randint(2, 5)
    forms = [f"{sign}{top}/{bottom}", rf"{sign}\frac{{{top}}}{{{bottom}}}", rf"\dfrac{{{sign}{top}}}{{{bottom}}}"]
    forms += [rf"{sign}\frac{{{k * top}}}{{{k * bottom}}}"]
    if top > bottom:
        forms.append(rf"{sign}{top // bottom}\frac{{{top % bottom}}}{{{bottom}}}")
    if top < 10 and bottom < 10:
        forms += [rf"{sign}\frac{top}{bottom}", rf"{sign}\frac {top} {bottom}"]
    if 10**4 % bottom == 0:
        forms.append(f"{sign}{float(Fraction(top, bottom)):.4f}".rstrip("0"))
    return draw.choice(forms)


def rational(draw: Draw) -> Fraction:
    return Fraction(draw.randint(-60, 60), draw.choice([1, 1, 2, 3, 4, 5, 7, 8, 12]))


def other_rational(value: Fraction, draw: Draw) -> Fraction:
    return draw.choice([value + 1, -value if value else Fraction(3), value + Fraction(1, 11), value * 10 + 1])


def term(factor: int, text: str) -> str:
    """A signed term of a sum."""
    return f"{'-' if factor < 0 else '+'}{'' if abs(factor) == 1 else abs(factor)}{text}"


def surd(value: tuple[int, int, int], draw: Draw) -> str:
    r"""a + b \sqrt{c}."""
    a, b, c = value
    root, twice = rf"\sqrt{{{c}}}", rf"\frac{{{2 * a}{term(2 * b, '')}"
    forms = [
        f"{a}{term(b, root)}",
        f"{term(b, root).lstrip('+')}{a:+d}",
        rf"{a}{'-' if b < 0 else '+'}\sqrt{{{b * b * c}}}",
    ]
    forms += [rf"{twice}{root}}}{{2}}", f"{a}{term(b, '')}" + rf"\sqrt {c}" if c < 10 else f"{a}{term(b, root)}"]
    return draw.choice(forms)


def polynomial(value: tuple[int, int], draw: Draw) -> str:
    """(x - r)(x - s)."""
    r, s = value
    forms = [f"(x{-r:+d})(x{-s:+d})", f"x^2{-(r + s):+d}x{r * s:+d}", f"{r * s:+d}{-(r + s):+d}x+x^{{2}}".lstrip("+")]
    return draw.choice([form for form in forms if "+0" not in form and "-0" not in form] or [f"(x-{r})(x-{s})"])


def region(value: tuple[int, int, bool, bool], draw: Draw) -> str:
    """An interval or an inequality; equal ends mean none above."""
    low, high, left, right = value
    infinite = low == high
    end = r"\infty" if infinite else str(high)
    interval = f"{'[' if left else '('}{low}, {end}{']' if right and not infinite else ')'}"
    less = [draw.choice([r"\le", r"\leq", "<="] if closed else ["<", r"\lt"]) for closed in (left, right)]
    more = [draw.choice([r"\ge", r"\geq", ">="] if closed else [">", r"\gt"]) for closed in (left, right)]
    if infinite:
        conditions = [f"x {more[0]} {low}", f"{low} {less[0]} x"]
    else:
        conditions = [f"{low} {less[0]} x {less[1]} {high}", f"{high} {more[1]} x {more[0]} {low}"]
    condition = draw.choice(conditions)
    return draw.choice(
        [interval, rf"x \in {interval}", condition, rf"\{{x \mid {condition}\}}", rf"\{{x : {condition}\}}"]
    )


def interval(draw: Draw) -> tuple[int, int, bool, bool]:
    low = draw.randint(-9, 9)
    return low, low + draw.choice([0, 1, 4]), draw.random() < 0.5, draw.random() < 0.5


def other_interval(value: tuple[int, int, bool, bool], draw: Draw) -> tuple[int, int, bool, bool]:
    low, high, left, right = value
    if draw.random() < 0.5:
        return low, high, not left, right
    return low - 1, low - 1 if low == high else high, left, right


def members(values: Sequence[Fraction], draw: Draw) -> str:
    """A set or a list, in any order."""
    found = [frac(value, draw).replace(",", "") for value in draw.sample(list(values), len(values))]
    last = draw.choice([", ", " and ", r"\text{ and }", r" \text{ or } "])
    return draw.choice([rf"\{{{', '.join(found)}\}}", ", ".join(found), ", ".join(found[:-1]) + last + found[-1]])


def ordered(values: Sequence[Fraction], draw: Draw) -> str:
    found = [frac(value, draw).replace(",", "") for value in values]
    column = r" \\ ".join(found)
    return draw.choice(
        [f"({', '.join(found)})", rf"\left({','.join(found)}\right)", rf"\begin{{pmatrix}} {column} \end{{pmatrix}}"]
    )


def signed(value: tuple[int, int, int], draw: Draw) -> str:
    """a plus and minus b."""
    a, b, c = value
    both = [rf"{a}+{b}\sqrt{{{c}}}", rf"{a}-{b}\sqrt{{{c}}}"]
    return draw.choice(
        [
            rf"{a} \pm {b}\sqrt{{{c}}}",
            ", ".join(both),
            rf"\{{{', '.join(both[::-1])}\}}",
            rf"x = {a} \pm {b}\sqrt{{{c}}}",
        ]
    )


def signed_pair(value: tuple[int, int, int], draw: Draw) -> str:
    a, b, _ = value
    return draw.choice([rf"(\pm {b}, {a})", f"({b}, {a}), (-{b}, {a})", rf"(-{b},{a}) \text{{ and }} ({b},{a})"])


UNITS = {
    "cm": "centimeters",
    "kg": "kilograms",
    "m": "meters",
    "hours": "hours",
    "apples": "apples",
    "dollars": "dollars",
}


def quantity(value: tuple[int, str], draw: Draw) -> str:
    number, unit = value
    noun = draw.choice([unit, UNITS[unit]])
    return draw.choice(
        [str(number), f"{number} {UNITS[unit]}", rf"{number} \text{{ {noun}}}", rf"{number}\,\mathrm{{{noun}}}"]
    )


def angle(value: int, draw: Draw) -> str:
    turn = Fraction(value, 180)
    degrees = [rf"{value}^\circ", f"{value}°", rf"{value}^{{\circ}}"]
    return draw.choice([*degrees, rf"\frac{{{turn.numerator}\pi}}{{{turn.denominator}}}"])


def family(value: tuple[int, int], draw: Draw) -> str:
    """Solutions with a free integer."""
    a, b = value
    k = draw.choice("kmn")
    declared = draw.choice(
        [rf", {k} \in \mathbb{{Z}}", rf" ({k} \in \mathbb{{Z}})", rf", \text{{where }} {k} \in \mathbb{{Z}}"]
    )
    return draw.choice([rf"\frac{{\pi}}{{{a}}} + {b}{k}\pi", rf"{b}{k}\pi + \frac{{\pi}}{{{a}}}"]) + declared


def logarithm(value: tuple[int, int], draw: Draw) -> str:
    a, b = value
    return draw.choice(
        [rf"\ln {a} - \ln {b}", rf"\ln \frac{{{a}}}{{{b}}}", rf"-\ln\left(\frac{{{b}}}{{{a}}}\right)", f"ln({a}/{b})"]
    )


def named(value: Fraction, draw: Draw) -> str:
    text = frac(value, draw)
    name = ["x", "f(2)", r"\angle ABC", "S_{ABC}", r"\text{Area}", "a_3"][value.denominator % 6]
    return draw.choice([text, f"{name} = {text}", f"{name}={text}"])


def matrix(value: tuple[Fraction, ...], draw: Draw) -> str:
    a, b, c, d = (frac(entry, draw).replace(",", "") for entry in value)
    kind = draw.choice(["pmatrix", "bmatrix"])
    return rf"\begin{{{kind}}} {a} & {b} \\ {c} & {d} \end{{{kind}}}"


WORDS = ["even", "none", "yes it does", "parabola", "no solution", "increasing", "hyperbola", "east", "seat", "ellipse"]


def word(value: str, draw: Draw) -> str:
    return draw.choice([value, value.capitalize(), rf"\text{{{value}}}", rf"\text{{{value.capitalize()}.}}"])


def triple(draw: Draw) -> tuple[int, int, int]:
    return draw.randint(-9, 9), draw.randint(1, 9), draw.choice([2, 3, 5, 6, 7])


def changed(at: int, by: Callable[[Any, Draw], Any]) -> Callable[[Any, Draw], Any]:
    return lambda value, draw: (*value[:at], by(value[at], draw), *value[at + 1 :])


def more(value: int, draw: Draw) -> int:
    return value + draw.randint(1, 3)


@dataclass(frozen=True)
class Kind:
    value: Callable[[Draw], Any]
    spell: Callable[[Any, Draw], str]
    other: Callable[[Any, Draw], Any]


def some(count: int) -> Callable[[Draw], tuple[Fraction, ...]]:
    return lambda draw: tuple(
        Fraction(n, draw.choice([1, 1, 2, 3])) for n in draw.sample([1, 5, 7, 11, 13, 17, 19, -1, -5], count)
    )


KINDS = {
    "number": Kind(rational, frac, other_rational),
    "name": Kind(rational, named, other_rational),
    "surd": Kind(triple, surd, changed(1, more)),
    "polynomial": Kind(
        lambda d: (d.randint(-9, 9), d.randint(-9, 9)), polynomial, lambda v, d: (v[0] + 1, v[1] + d.randint(0, 3))
    ),
    "region": Kind(interval, region, other_interval),
    "set": Kind(some(3), members, changed(1, lambda v, d: v + Fraction(1, 7))),
    "tuple": Kind(some(3), ordered, lambda v, d: v[::-1]),
    "plus-minus": Kind(triple, signed, changed(1, more)),
    "plus-minus in a tuple": Kind(triple, signed_pair, changed(0, more)),
    "quantity": Kind(lambda d: (d.randint(1, 500), d.choice(list(UNITS))), quantity, changed(0, more)),
    "angle": Kind(lambda d: 15 * d.randint(1, 23), angle, lambda v, d: v + d.choice([15, 30, 180])),
    "family": Kind(lambda d: (d.randint(2, 9), d.randint(2, 6)), family, changed(1, more)),
    "logarithm": Kind(lambda d: (d.randint(2, 9), d.randint(10, 19)), logarithm, changed(0, more)),
    "matrix": Kind(some(4), matrix, lambda v, d: (v[1], v[0], *v[2:])),
    "words": Kind(lambda d: d.choice(WORDS), word, lambda v, d: d.choice([w for w in WORDS if w != v])),
}


def dressed(text: str, draw: Draw) -> str:
    """The text as a model may write it: in delimiters, with spaces, with a full stop."""
    forms = [
        text,
        f"${text}$",
        rf"\boxed{{{text}}}",
        rf"\( {text} \)",
        f" {text} ",
        rf"\displaystyle {text}",
        f"$${text}$$",
    ]
    if text.count("{") != text.count("}"):
        return draw.choice([text, f"${text}$", f" {text} "])
    return draw.choice(forms if text[-1] == "." or text[-1].isalpha() else [*forms, f"{text}.", rf"{{{text}}}"])


def pair(kind: str, equal: bool, draw: Draw) -> tuple[str, str]:
    """(prediction, gold) of a kind."""
    of = KINDS[kind]
    value = of.value(draw)
    other = value if equal else of.other(value, draw)
    return dressed(of.spell(value, draw), draw), dressed(of.spell(other, draw), draw)
