"""Spellings of an answer: each is the same answer to the grader."""

import pytest

from mrt.grading.grader import Grader
from mrt.grading.spellings import spellings


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("4", ["4"]),
        ("12345", ["12345", "12,345", "12{,}345"]),
        ("025", ["025", "25"]),
        ("12{,}345", ["12{,}345", "12345", "12,345"]),
        ("\\frac12", ["\\frac12", "\\frac{1}{2}", "\\dfrac{1}{2}", "1/2"]),
        ("45^\\circ", ["45^\\circ", "45^{\\circ}", "45"]),
        ("-3/4", ["-3/4", "-\\frac{3}{4}", "-\\dfrac{3}{4}"]),
        ("\\frac{1}{2}", ["\\frac{1}{2}", "\\dfrac{1}{2}", "1/2"]),
        (".5", [".5", "0.5"]),
        ("-0.25", ["-0.25", "-.25"]),
        ("$7$", ["$7$", "7"]),
        ("\\text{Evelyn}", ["\\text{Evelyn}", "Evelyn"]),
        ("x^2 + 1", ["x^2 + 1"]),
    ],
)
def test_every_spelling_is_the_same_answer(answer, found):
    assert spellings(answer) == found
    boxed = [f"\\boxed{{{spelling}}}" for spelling in found]
    assert Grader(1).right(boxed, [answer] * len(found)) == [True] * len(found)
