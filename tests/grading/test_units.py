"""Units and counted nouns, which may be left out beside a value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt.grading.equality import same_answer
from mrt.grading.units import _BASES, _NAMED, _PREFIXES, unit_of

pytestmark = pytest.mark.fast
NUMBERS = ("K", "B", "T")  # or thousands, billions, trillions
UNITS = sorted({name for name in (*_NAMED, *_BASES) if name.isascii() and name.isalpha()} - {*NUMBERS})


@given(st.sampled_from(UNITS), st.sampled_from(UNITS), st.integers(1, 999))
def test_a_unit_may_be_left_out_but_not_be_another(one, other, number):
    written = rf"{number} \text{{ {one}}}"
    assert same_answer(written, str(number)) and same_answer(str(number), written)
    assert not same_answer(written, str(number + 1))
    assert same_answer(written, rf"{number} \text{{ {other}}}") == (unit_of(one) == unit_of(other))


@given(st.sampled_from(_PREFIXES), st.sampled_from(_BASES))
def test_prefixes_are_of_all_bases(prefix, base):
    if prefix + base in NUMBERS:
        return
    assert same_answer(rf"560 \text{{ {prefix}{base}}}".replace("\\text{ \\mu", "\\mu \\text{ "), "560")
    assert not prefix or unit_of(prefix + base) != unit_of(base)


@pytest.mark.parametrize(
    "spellings",
    [
        [
            r"60 \text{ km/h}",
            r"60 \frac{\text{km}}{\text{h}}",
            "60 kilometers per hour",
            r"60 \mathrm{~km} \mathrm{h}^{-1}",
        ],
        [r"9.8 \text{ m/s}^2", "9.8 m/s^2", r"9.8 \mathrm{~m} \cdot \mathrm{s}^{-2}", r"9.8 \text{ m s}^{-2}"],
        [r"5 \text{ m}^2", "5 square meters", r"5 \text{ sq. m}"],
        [r"25 \text{ degrees Celsius}", r"25 \text{ C}"],
        ["30 in.", r"30 \text{ inches}", r"30\text{ in}"],
    ],
)
def test_a_unit_has_many_spellings(spellings):
    number = spellings[0].split()[0]
    for one in spellings:
        assert same_answer(one, number)
        assert all(same_answer(one, other) for other in spellings)


@pytest.mark.parametrize("noun", ["eggs", "pages", "handshakes", "blue marbles", "people", "square units"])
def test_what_is_counted_may_be_left_out(noun):
    assert same_answer(rf"18\text{{ {noun}}}", "18") and same_answer("18", f"18 {noun}")


@pytest.mark.parametrize(
    "words",
    (
        *("dozen", "pairs", "million", "thousands", "tenths", "halves", "times", "or more", "at least", "years ago"),
        *("plus", "thirds", "squared", "less", "factorial", "hundredths", "scores"),
    ),
)
def test_words_that_change_a_value_count(words):
    assert not same_answer(rf"5\text{{ {words}}}", "5") and not same_answer("5", f"5 {words}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(
            ("5m", "5"),
            ("5n", "5"),
            ("6 e", "6"),
            ("3AB", "3"),
            ("5 K", "5"),
            (r"5\text{ K}", "5"),
            (r"2\pi r", r"2\pi"),
            (r"4\pi m", r"4\pi"),
        ),
        *(("60 km/h", "60 m/s"), ("4 Mg", "4 mg"), (r"60 \text{ km/h}", r"60 \text{ h/km}"), ("5 cm", "5 mm")),
        (r"5 \text{ eggs}", "5 cm"),
    ],
)
def test_variables_and_other_units_count(one, other):
    assert not same_answer(one, other) and not same_answer(other, one)
