r"""Answers that look alike: equal and unequal ones, in both directions."""

import itertools
import string
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrt.grading.equality import same_answer
from mrt.grading.grader import Grader

LONG = ", ".join(map(str, range(1, 20)))
PAIRS = ", ".join(f"({i},{i + 1})" for i in range(18))

EQUAL = {
    "lists and thousands": [
        ("120, 150", "150, 120"), ("81,256", "256 and 81"), ("100,200,300", "300, 200, 100"),
        ("120 or 150", "120, 150"), ("120 or 150", "150 and 120"), (r"\sqrt{3} or 2", r"2 and \sqrt{3}"),
        ("1,234", "1234"), ("1{,}234", "1234"), (r"1\,234", "1234"), (r"12,\!345,\! 678", "12345678"),
        ("1,234.5", "1234.5"), ("1,234 and 5,678", "5678, 1234"), ("1,000, 2,000", "2000, 1000"),
        ("1,234 apples", "1234"),
        ("-1,234", "-1234"), (r"\$9 500", "9500"), (r"500,\ 250", r"250,\ 500"), ("150,120", "120,150"),
    ],
    "ratios and times": [
        ("10:8:6", "5:4:3"), ("1:2:3:4", "2:4:6:8"), ("3:4", r"\frac{3}{4}"), ("16:9", "32:18"), ("1 : 2", "2:4"),
        (r"\sqrt{2}:1", r"2:\sqrt{2}"), (r"1:\sqrt{3}:2", r"\sqrt{3}:3:2\sqrt{3}"), ("02:30", "2:30"),
        ("V:W = 11:21", "11:21"),
        (r"2:30 \text{ PM}", r"2:30 \text{ pm}"), ("2024-01-05", "2024-01-05"), ("52_8", "52_{8}"),
    ],
    "choices": [
        ("(D) not enough information", "D"),
        ("(C) 12", "C"), (r"\textbf{(C)}\ 12", "C"), ("C. 12", "C"), ("C: 12", "C"), ("E: the score", "E"),
        ("E - the score", "E"),
        ("E — the score", "E"), (r"\text{E: the score}", "E"), ("(E): the score", "E"), ("(C) 12", "12"),
        ("(C) I and II only", "C"),
        ("(C) 12", "(C)"), ("A, C", "C, A"), ("(C). 12", "12"), ("C. -2", "C"), (r"(C) \frac{1}{2}", "0.5"),
        (r"\textbf{(C) }12", "C"), (r"(C) \log_2 3", "C"),
    ],
    "currencies": [
        ("€5", "5 euros"), ("5€", "€5"), (r"\$5", "5 dollars"), (r"\$5", r"\$5.00"), (r"\$5", "5"), ("$5", "5"),
        (r"-\$5", "-5"),
        (r"\$1,234.50", "1234.5"), ("5 USD", r"\$5"), ("50¢", "50 cents"), (r"\$5, \$10", "10, 5"),
        (r"\text{\$}5", "5"),
    ],
    "nouns": [
        ("5 apples", "5"), (r"5\text{ apples}", "5"), ("5 milliliters", "5"), ("5 miles", "5"),
        ("5 millimeters", "5 mm"), (r"5\text{m}", "5"),
        (r"5\text{ 元}", "5"), ("5 years", "5"), (r"3\text{ m/s}", "3"), ("60 miles per hour", "60"),
        ("9 students", "9"), (r"12\text{ sq. ft.}", "12"), (r"10\text{ hours}", r"10\text{ h}"),
        (r"3\text{ doubled}", r"3.0\text{ doubled}"), ("60 km/h", "60"), ("7 m / s", "7"), (r"7\text{ m/s}^2", "7"),
        ("9 ft/s", r"9 \text{ ft/s}"), ("3 kg m/s", "3"), ("2 g/cm^3", "2"),
    ],
    "lists of words": [
        ("red, blue", "blue, red"), ("Mercury; Venus", "venus and mercury"),
        (r"\text{one root}, \text{none}", "None, one root"),
        ("red or blue", "blue, red"),
    ],
    "fractions of one sign": [("½", "0.5"), ("2½", "5/2"), ("x½", "x/2"), ("-¾", "-0.75"), ("⅚", r"\frac{5}{6}")],
    "points": [
        (r"\angle PQR", r"\angle RQP"), ("∠PQR", r"\angle PQR"), (r"m\angle PQR = 40^\circ", r"40^\circ"),
        ("PQ = 7", "7"),
    ],
    "thousands between blanks": [
        (r"100\,200", "100200"), ("1 000", "1000"), ("3\u202f140\u202f592", "3140592"), ("5~700", "5700"),
    ],
    "percent": [
        (r"50\%", "0.5"), (r"100\%", "1"), (r"28\%", "28"), (r"28\%", "0.28"), ("28 percent", "28"),
        (r"150\%", "150"), (r"1.5\%", "1.5"), (r"0\%", "0"), (r"\frac{5}{2}\%", "2.5"),
        (r"12.5\%", r"\frac{1}{8}"), (r"33\frac{1}{3}\%", r"\frac{1}{3}"), (r"20\%, 30\%", "20, 30"),
        (r"-50\%", "-0.5"),
    ],
    "degrees": [
        ("60 degrees", r"60^\circ"), (r"60\text{ degree}", r"60^{\circ}"), (r"\text{60 degrees}", r"60^\circ"),
        ("60 deg", "60°"),
        (r"60\,\mathrm{deg}", r"60^\circ"), ("60 degrees", r"\frac{\pi}{3}"),
        ("60 degrees and 30 degrees", r"30^\circ, 60^\circ"),
        (r"\angle A = 60 degrees", r"60^\circ"), (r"\frac{45}{2} degrees", r"22.5^\circ"), ("60º", "60"),
    ],
    "words": [
        ("Yes", "yes"), ("YES", "yes"), ("No", "NO"), ("Yes!", "yes"), ("Odd", "odd"), ("Red", "red"),
        (r"\text{No}", "no"), ("Bob", "bob"),
        ("xy", "yx"), ("2AB + 1", "1 + 2BA"), (r"\text{True}", "true"), ("ODD", "odd"), (r"\text{Circle.}", "circle"),
        ("Infinite solutions", "infinite solutions"), ("xyz", "x y z"), (r"AC \text{ and } BD", "BD, AC"),
    ],
    "thousands in brackets": [("(4,000)", "4000"), ("(1,000, 2,000)", "(1000, 2000)"), ("[0, 1,000)", "[0,1000)")],
    "rounded": [
        ("16.6667", r"\frac{50}{3}"), ("-0.333333", r"-\frac13"), ("0.142857", r"\frac17"), ("0.250000", r"\frac14"),
        ("1.73205", r"\sqrt{3}"), ("7.38906", "e^2"), ("333.333", r"\frac{1000}{3}"), ("1.50", "1.5"),
        ("0.30000000000000004", r"\frac{3}{10}"), ("0.5x", r"\frac{x}{2}"),
    ],
    "long lists": [
        (LONG, ", ".join(reversed(LONG.split(", ")))), (rf"\{{{LONG}\}}", LONG), (f"({LONG})", f"({LONG})"),
        (PAIRS, ", ".join(reversed(PAIRS.split(", ")))), (f"{LONG}, 0.5", rf"\frac{{1}}{{2}}, {LONG}"),
    ],
    "functions": [
        (r"\frac{\pi}{7}+\frac{2}{7}\ln\frac{3}{5}", r"\frac{\pi}{7}-\frac{2}{7}\log\frac{5}{3}"),
        (r"\ln\frac12", r"-\log 2"),
        (r"\ln 8", r"3\log 2"), (r"\log\frac23", r"-\log\frac32"), (r"2\ln\frac{3}{4}", r"\ln\frac{9}{16}"),
        (r"\log_2 8", "3"),
        (r"\ln\frac{a}{b}", r"\ln a - \ln b"),
    ],
}  # fmt: skip
UNEQUAL = {
    "lists and thousands": [
        ("120, 150", "120150"), ("2, 100", "2100"), (r"2,\ 100", "2100"), (r"2,\quad 100", "2100"),
        ("x = 2, 100", "2100"),
        (r"120 \text{ and } 150", "120150"), (r"\{120, 150\}", "120150"), ("10, 000", "10000"),
        ("120, 150", "120, 151"),
        ("120, 150, 150", "120, 150"), ("(120, 150)", "(150, 120)"), ("1,234", "1,235"), ("3,141", "3,141,592"),
        ("1,000", "1, 0"),
    ],
    "ratios and times": [
        ("5:4:3", "5:3:4"), ("1:2:3", "1:2"), ("1:2:3", r"\frac{1}{6}"), ("0:1:2", "0:3:4"),
        ("1:2:3:4", "2:4:6:9"), ("3:4", "4:3"),
        ("2:30", "1:15"), ("2:30", r"\frac{1}{15}"), ("12:45", "4:15"),
        (r"2:30 \text{ p.m.}", r"2:30 \text{ a.m.}"),
    ],
    "notation that is no arithmetic": [
        ("2024-01-05", "2018"), ("2024-01-05", "2024-01-06"), ("01/05/2024", "1/10120"),
        ("1/2/2020", r"\frac{1}{4040}"), ("12-25", "-13"),
        ("5–7", "-2"), ("52_8", "52"), ("1011_2", "11"), ("7_{10}", "7"), ("BEE_{16}", "BEE"),
        (r"12_{\text{seven}}", "12"),
        ("52_8 + 1", "53"), ("(52)_8", "52"), ("f'(x)", "f(x)"), ("A'", "A"), ("A^T", "A"),
        (r"1 + 2 + \ldots + n", "n + 3"), ("1 2", "3"),
        ("1.2.3", "0.36"), ("0x10", "0"), (r"5^\circ 30'", "35"), ("x^{(3)}", "x^3"), ("2^{3}_{4}", "8"),
        ("3!!", "720"), ("5'", "5"),
    ],
    "thousands between blanks": [("100 200", "100200"), ("12 345 678", "12345678"), ("7 300", "7300")],
    "lists of words": [
        ("red, blue", "red, green"), ("red, blue", "red"), ("red, red, blue", "red, blue, blue"),
        ("dog, cat", "god, act"),
    ],
    "fractions of one sign": [("½", "2"), ("2½", "1"), ("⅓", "0.3"), ("1½", "11/2")],
    "points": [
        ("AB", "BA"), ("QP", "PQ"), (r"\angle PQR", r"\angle QRP"), (r"\angle PQR", r"\angle PRQ"),
        (r"\triangle PQR", r"\triangle QRP"), ("∠PQR", "∠QPR"),
    ],
    "and beside or": [
        (r"p\land q", r"p\lor q"), ("r and s", "r or s"), ("red and blue", "blue or red"),
        (r"x=4\lor x=5", r"x=4\land x=5"),
    ],
    "choices": [
        ("(C) is wrong", "C"), ("(C) is not the answer", "C"), ("(C) false", "C"), ("(D) is eliminated", "D"),
        ("(D) was ruled out", "D"), ("(D) cannot be", "D"), (r"\text{(D) isn't right}", "D"),
        ("(C) or (D)", "C"), ("C or D", "C"), ("A and C", "C"), ("C, D", "C"), ("C/D", "C"), ("(C)(D)", "C"),
        ("C. D", "C"), ("C: D", "C"),
        ("C) or d)", "C"), ("(C) or (d)", "C"), ("(C) maybe D", "C"), ("(C) 12 or (D) 13", "C"),
        ("(C) 12, (D) 13", "D"), ("D = C", "C"),
        (r"\textbf{(C)} \text{ or } \textbf{(D)}", "C"), ("(A) (B) (C) (D)", "B"), ("not C", "C"),
        ("(C) 12", "(D) 12"), ("(C) 12", "(C) 13"),
        ("C: E is not right", "E"), ("C - 2", "C"), ("(C) 12 or 13", "12"), (r"\boxed{C} or \boxed{D}", "C"),
        ("(C) but also (B)", "C"), ("(J)+3", "3"), ("(B)-4", "-4"), ("(D)7", "7"), ("(C)x", "x"), ("(A)n!", "n!"),
        ("(C)7", "C"), ("(A)^{2}", "A"), ("(B) + 4", "4"), ("(A) - 1", "-1"), ("(A)+B", "A"), ("A - xyz", "A"),
        ("A:abc", "A"), ("A.5", "5"), ("(A).5", "0.5"), (r"(A)\text{x}", "x"), (r"(C)\sqrt{2}", r"\sqrt{2}"),
        (r"(A) \cdot 2", "2"),
    ],
    "currencies": [
        (r"\$5", r"5\text{ cents}"), (r"\$5", "5 euros"), ("€5", r"\$5"), (r"\$0.50", "50 cents"),
        (r"\$5 million", "5"), ("$5", "5 cents"),
        (r"\$5 \text{ million}", r"\$5"), ("¥5", r"\$5"), (r"\$5", r"5\%"), (r"\$5", r"5 \text{ cm}"),
        ("50¢", r"\$50"), (r"\$5", r"\$6"),
    ],
    "nouns": [
        *((f"5 {word}", "5") for word in (
            "millions", "billion", "dozens", "dozen eggs", "hundreds", "thousand people", "fifths", "halves",
        "twelfths", "twenty-fifths",
            "lakh", "crore", "score", "gross", "tens", "Millionen", "squared", "base eight", "per mille",
        )),
        *((rf"5\text{{ {word}}}", "5") for word in ("万", "千", "миллионов", "k", "M", "mn", "thirds", "quarters",
        "hundredths")),
        *((rf"9\text{{ {word}}}", "9") for word in (
            "quadrupled", "choose one", "root two", "inverted", "AM", "BCE", "phi", "unless odd", "above", "smaller",
            "increasing", "nonnegative", "triples", "or so", "repeating", "remaining", "square", "K", "point five",
        )),
        ("4 tripled", "4"), (r"2\mathrm{e}", "2"), (r"3\mathrm{i}", "3"), (r"5\text{ Mg}", r"5\text{ mg}"),
        ("6 ab/cd", "6"), ("60 km/h", "60 m/s"), ("6 apples/eggplants", "6"),
        (r"5\text{ red}", "5 der"), (r"5\text{ tops}", r"5\text{ stops}"),
    ],
    "percent": [
        (r"0.5\%", "0.5"), (r"1\%", "1"), (r"\frac{1}{2}\%", r"\frac{1}{2}"), (r"-0.5\%", "-0.5"),
        (r"0.28\%", "28"), (r"25\%", "75"), (r"150\%", "1.5"), (r"200\%", "2"), (r"250\%", r"\frac52"),
        (r"25\%", r"25 \text{ cm}"),
    ],
    "degrees": [
        ("61 degrees", r"60^\circ"), ("60 radians", r"60^\circ"), ("60 degrees", "60 radians"),
        ("60 degrees", r"60\%"),
        ("5 degrees of freedom", r"5^\circ"),
    ],
    "words": [
        ("Yes", "No"), ("sye", "yes"), ("on", "no"), ("ten", "net"), ("ABC", "BCA"), ("ABC", "abc"),
        ("tan", "ant"), ("yes and no", "yes"), (r"\text{z}!", "z"), (r"\text{mass}!", r"\text{mass}"),
        (r"\text{sum} - \text{mean}", r"\text{sum}, \text{mean}"), (r"\text{p-q}", r"\text{p, q}"),
        (r"\text{p-q}", r"\text{p q}"), (r"\text{width-height}", r"\text{width height}"), (r"\text{X}", "x"),
        (r"\text{Q}", r"\text{q}"), (r"\text{PQRS}", r"\text{pqrs}"), ("PQRS", "pqrs"),
        (r"\text{set A}", r"\text{set a}"), (r"\text{mA}", r"\text{MA}"),
    ],
    "thousands in brackets": [
        ("(4,000)", "(4,0)"), ("[5,000]", "[5,0]"), ("(3,002)", "(3,2)"), (r"\{4,000\}", r"\{4,0\}"),
        ("(6,000,000)", "(6,0,0)"), ("(2,1,000)", "(2,1,0)"), ("(1, 000)", "(1, 0)"), ("x=1,000", "x=1,0"),
        ("(-1,000)", "(-1,0)"),
    ],
    "rounded": [
        ("16.6666", r"\frac{50}{3}"), ("0.25", "0.250001"), ("0.250001", r"\frac{1}{4}"), ("0.666666", r"\frac{2}{3}"),
        ("0.142856", r"\frac{1}{7}"), ("1.73206", r"\sqrt{3}"), ("6.2832", r"2\pi"), ("7.389057", "e^2"),
        ("1.5", "1.5000001"), ("2.000001", "2"), ("0.333333", "0.3333333"), ("x+0.500001", r"x+\frac{1}{2}"),
        (r"\frac{2}{3}", r"\frac{2}{3}(5^{-90}+1)"), (r"1.00000 \times 10^{8}", "100000001"),
        ("x<0.5000001", r"x<\frac{1}{2}"),
        (r"\begin{pmatrix}0.5000001&1\\2&3\end{pmatrix}", r"\begin{pmatrix}0.5&1\\2&3\end{pmatrix}"),
    ],
    "long lists": [
        (LONG, LONG.replace("19", "20")), (f"({LONG})", f"({', '.join(reversed(LONG.split(', ')))})"),
        (f"1, {LONG}", f"{LONG}, 2"),
        (PAIRS, PAIRS.replace("(3,4)", "(4,3)")),
    ],
    "functions": [
        (r"\log\frac{3}{2}", r"\ln\frac{2}{3}"), (r"\log_2 8", r"\ln 8"), (r"\log\frac23", r"\log\frac32"),
        (r"\log_2 8", "2"),
    ],
}  # fmt: skip


def listed(kinds: dict[str, list[tuple[str, str]]]) -> list[tuple[str, str, str]]:
    return [(kind, *pair) for kind, pairs in kinds.items() for pair in pairs]


@pytest.mark.parametrize(("kind", "one", "other"), listed(EQUAL))
def test_equal_in_both_directions(kind: str, one: str, other: str) -> None:
    assert same_answer(one, other), kind
    assert same_answer(other, one), kind


@pytest.mark.parametrize(("kind", "one", "other"), listed(UNEQUAL))
def test_unequal_in_both_directions(kind: str, one: str, other: str) -> None:
    assert not same_answer(one, other), kind
    assert not same_answer(other, one), kind


FORMS = [  # notation in which each digit counts
    "52_8", "A3_{16}", "5:4:3", "2:37", "2024-01-05", "1/2/2020", "1.2.3", "12_5+3", "x_1+x_2", "2^{3}_{4}", "3!!",
    r"\log_2 9", r"C_5^2", r"5^\circ 30'", r"3\frac{1}{4}", "3 1/4", r"1\,234", r"\sqrt[3]{7}", "2.5e-3", "12 345",
    r"0.\overline{12}", r"\binom{7}{2}", "17, 250", r"\{3, 450\}", r"7 \text{ 万 } 2", r"\$12.34", r"12.5\%",
    r"\frac{45}{2}^\circ", "f^{(3)}(2)", r"1+2+\ldots+9", "0x12", "1e5 + 2",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_no_digit_is_lost(form: str) -> None:
    """An answer with one digit changed is another answer."""
    for i in [i for i, letter in enumerate(form) if letter.isdigit()]:
        changed = form[:i] + str((int(form[i]) + 1) % 10) + form[i + 1 :]
        assert not same_answer(changed, form), changed


ALL = sorted(set(itertools.chain.from_iterable(pair for kinds in (EQUAL, UNEQUAL) for _, *pair in listed(kinds))))


@given(st.sampled_from(ALL), st.sampled_from(ALL))
@settings(deadline=None)
def test_equality_is_reflexive_and_symmetric(one: str, other: str) -> None:
    assert same_answer(one, one)
    assert same_answer(one, other) == same_answer(other, one)


@given(st.lists(st.integers(0, 10**4), min_size=2, max_size=30), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_list_equals_its_permutations_and_no_number(values: list[int], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(values, len(values))
    text = ", ".join(map(str, values))
    assert same_answer(text, ", ".join(map(str, shuffled)))
    assert not same_answer(text, "".join(map(str, values)))
    assert not same_answer(text, ", ".join(map(str, [values[0] + 1, *values[1:]])))


@given(st.lists(st.sampled_from(["red", "blue", "no sign", "Oslo", "prime"]), min_size=2, unique=True), st.data())
@settings(deadline=None)
def test_a_list_of_words_equals_its_permutations(words: list[str], data: st.DataObject) -> None:
    assert same_answer(", ".join(words), " and ".join(data.draw(st.permutations(words))))
    assert not same_answer(", ".join(words), ", ".join(words[1:]))


@given(st.fractions(-9, 9, max_denominator=20))
@settings(deadline=None)
def test_a_number_without_a_sign_equals_one_percentage(value: Fraction) -> None:
    """Above 1 the sign was left out, up to 1 it divides by 100: no two different percentages equal one number."""
    percentages = [rf"\frac{{{share.numerator}}}{{{share.denominator}}}\%" for share in (value, 100 * value)]
    equal = [same_answer(text, str(value)) for text in percentages]
    assert equal == ([abs(value) > 1, abs(value) <= 1] if value else [True, True])


@given(st.lists(st.integers(1, 99), min_size=3, max_size=5), st.integers(2, 9), st.data())
@settings(deadline=None)
def test_a_ratio_equals_its_multiples(terms: list[int], factor: int, data: st.DataObject) -> None:
    ratio = ":".join(map(str, terms))
    assert same_answer(ratio, ":".join(str(factor * term) for term in terms))
    order = data.draw(st.permutations(terms))
    assert same_answer(ratio, ":".join(map(str, order))) == (order == terms)


@given(st.sampled_from("ABCDE"), st.lists(st.sampled_from("ABCDE"), min_size=2, max_size=4, unique=True), st.data())
@settings(deadline=None)
def test_two_letters_are_no_choice(gold: str, letters: list[str], data: st.DataObject) -> None:
    joint = data.draw(st.sampled_from([" or ", r" \text{ or } ", *", ;/. :|+-=", "; ", ". ", ": ", " = ", ""]))
    form = data.draw(st.sampled_from(["{}", "({})", "{})", r"\text{{{}}}", r"\textbf{{({})}}"]))
    assert not same_answer(joint.join(form.format(letter) for letter in letters), gold)


@given(st.text(string.ascii_letters, min_size=2, max_size=3), st.text(string.ascii_letters, min_size=2, max_size=3))
def test_a_short_word_is_no_anagram(one: str, other: str) -> None:
    if sorted(one) == sorted(other) and one != other and set(one.lower()) & set("eiou"):
        assert not same_answer(one, other)


def test_clusters_of_votes_use_the_same_equality() -> None:
    votes = [
        "120, 150",
        "120150",
        "150, 120",
        r"\$5",
        "5",
        "5 cents",
        "0.5",
        r"0.5\%",
        r"50\%",
        "(C) 12",
        "C",
        "C or D",
    ]
    assert Grader(1).clusters([votes]) == [[0, 1, 0, 2, 2, 3, 4, 5, 4, 6, 6, 7]]
    assert Grader(1).clusters([["120,150", "150,120", "120150", "7", "8"]]) == [[0, 0, 0, 1, 2]]
