"""pass@k and maj@k against brute force, and against their own scalar forms."""

import time
from collections import defaultdict
from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt.analysis.votes import maj_at_k, maj_at_k_table, pass_at_k


def votes(max_size: int = 10, mixed: bool = False) -> st.SearchStrategy[list[tuple[int, bool]]]:
    """Answers as (cluster, correct); answers of a cluster agree unless `mixed`."""

    @st.composite
    def draw_votes(draw: st.DrawFn) -> list[tuple[int, bool]]:
        clusters = draw(st.lists(st.integers(-1, 4), min_size=1, max_size=max_size))
        right = draw(st.sets(st.integers(0, 4)))
        return [(c, False if c < 0 else draw(st.booleans()) if mixed else c in right) for c in clusters]

    return draw_votes()


def brute_force(answers: list[tuple[int, bool]], k: int, weights: list[Fraction] | None = None) -> float:
    """maj@k by its definition, in rational arithmetic."""
    grades = defaultdict(list)
    for cluster, correct in answers:
        grades[cluster].append(correct)
    total = Fraction(0)
    for subset in combinations(range(len(answers)), k):
        tally: defaultdict[int, Fraction] = defaultdict(Fraction)
        for i in subset:
            if answers[i][0] >= 0:
                tally[answers[i][0]] += weights[i] if weights else Fraction(1)
        if tally:
            winners = [c for c, n in tally.items() if n == max(tally.values())]
            best = max(Fraction(sum(grades[c]), len(grades[c])) for c in winners)
            total += best if len(winners) == 1 else best / 2
    return float(total / comb(len(answers), k))


def unzip(answers: list[tuple[int, bool]]) -> tuple[list[int], list[bool]]:
    return [c for c, _ in answers], [r for _, r in answers]


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_brute_force(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    hits = [any(i < c for i in subset) for subset in combinations(range(n), k)]
    assert pass_at_k(n, c, k) == pytest.approx(np.mean(hits), abs=1e-12)


def test_pass_at_k_on_arrays() -> None:
    n, c = np.array([[8], [20], [200]]), np.array([0, 1, 5, 8])
    for k in (1, 4, np.array([1, 2, 4, 8])):
        found = pass_at_k(n, c, k)
        assert found.shape == (3, 4)
        expected = [
            [
                1 - comb(int(a) - int(b), int(m)) / comb(int(a), int(m))
                for b, m in zip(c, np.broadcast_to(k, 4), strict=True)
            ]
            for a in n[:, 0]
        ]
        np.testing.assert_allclose(found, expected, atol=1e-12)
    assert isinstance(pass_at_k(8, 3, 2), float)
    assert pass_at_k(32, 8, 1) == pytest.approx(0.25)
    assert pass_at_k(np.array([], dtype=int), np.array([], dtype=int), 1).shape == (0,)


@pytest.mark.parametrize("n, c, k", [(4, 2, 5), (4, 5, 1), (4, -1, 1), (4, 2, 0), (0, 0, 1), (4, 2.0, 1)])
def test_pass_at_k_refuses(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


@given(st.booleans().flatmap(lambda mixed: votes(mixed=mixed)), st.data())
def test_maj_at_k_is_brute_force(answers: list[tuple[int, bool]], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(answers)))
    assert maj_at_k(*unzip(answers), k) == brute_force(answers, k)


@given(votes(max_size=9), st.data())
def test_weighted_maj_at_k_is_brute_force(answers: list[tuple[int, bool]], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(answers)))
    tenths = data.draw(st.lists(st.integers(1, 9), min_size=len(answers), max_size=len(answers)))
    weights = [Fraction(t, 10) for t in tenths]  # 0.1 + 0.2 must tie with 0.3
    found = maj_at_k(*unzip(answers), k, weights=[t / 10 for t in tenths])
    assert found == pytest.approx(brute_force(answers, k, weights), abs=1e-12)


@given(votes(max_size=9, mixed=True), st.data())
def test_equal_weights_are_no_weights(answers: list[tuple[int, bool]], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(answers)))
    found = maj_at_k(*unzip(answers), k, weights=[0.3] * len(answers))
    assert found == pytest.approx(maj_at_k(*unzip(answers), k), abs=1e-12)


@given(votes(max_size=20, mixed=True), st.permutations(range(5)), st.data())
def test_maj_at_k_ignores_names_and_order(
    answers: list[tuple[int, bool]], names: list[int], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(answers)))
    shuffled = data.draw(st.permutations([(names[c] * 7 if c >= 0 else c, r) for c, r in answers]))
    assert maj_at_k(*unzip(shuffled), k) == maj_at_k(*unzip(answers), k)


@given(votes(max_size=40, mixed=True))
def test_maj_at_1_is_mean_accuracy(answers: list[tuple[int, bool]]) -> None:
    clusters, correct = unzip(answers)
    assert maj_at_k(clusters, correct, 1) == float(Fraction(sum(correct), len(correct)))
    weights = [2.0**-i for i in range(len(answers))]
    assert maj_at_k(clusters, correct, 1, weights) == pytest.approx(np.mean(correct), abs=1e-12)


@given(st.lists(st.integers(-1, 4), min_size=2, max_size=20))
def test_two_votes_are_worth_one(clusters: list[int]) -> None:
    """A tie counts 1/2, so that maj@2 is maj@1; but beside an unparseable answer the other one wins alone."""
    correct = [c == 0 for c in clusters]
    lone = clusters.count(-1) / (len(clusters) - 1)
    expected = maj_at_k(clusters, correct, 1) * (1 + lone)
    assert maj_at_k(clusters, correct, 2) == pytest.approx(expected, abs=1e-12)


def test_maj_at_k_by_hand() -> None:
    assert maj_at_k([0, 0, 0, 1], [1, 1, 1, 0], 3) == 1.0
    assert maj_at_k([0, 1], [1, 0], 2) == 0.5
    assert maj_at_k([0, 1, 2], [1, 0, 0], 3) == 0.5  # a tie of three is still worth a half
    assert maj_at_k([0, 1], [1, 1], 2) == 0.5  # and so is a tie of two that are right
    assert maj_at_k([-1, -1, -1, 0], [0, 0, 0, 1], 4) == 1.0  # the unparseable are no majority
    assert maj_at_k([-1, -1, -1, 0], [0, 0, 0, 1], 2) == 0.5  # but take up draws
    assert maj_at_k([-1, -1], [0, 0], 2) == maj_at_k([-1, -1], [0, 0], 2, [1.0, 2.0]) == 0.0
    assert maj_at_k([0, 1, 1], [1, 0, 0], 3, weights=[3.0, 1.0, 1.0]) == 1.0
    assert maj_at_k([0, 1], [1, 0], 2, weights=[2.0, 1.0]) == 1.0  # with weights two votes are not one


@pytest.mark.parametrize(
    "clusters, correct, k, weights",
    [
        ([0, 1], [1, 0], 3, None),
        ([0, 1], [1, 0], 0, None),
        ([], [], 1, None),
        ([0, 1], [1], 1, None),
        ([-2, 1], [0, 1], 1, None),
        ([0.5, 1], [0, 1], 1, None),
        ([0, 1], [0, 2], 1, None),
        ([-1, 1], [1, 1], 1, None),
        ([0, 1], [0, 1], 1, [1.0]),
        ([0, 1], [0, 1], 1, [1.0, 0.0]),
        ([0, 1], [0, 1], 1, [1.0, float("nan")]),
        (list(range(30)), [0] * 30, 10, [1.0] * 30),
    ],
)
def test_maj_at_k_refuses(clusters: list[int], correct: list[int], k: int, weights: list[float] | None) -> None:
    with pytest.raises(ValueError, match=r"maj@k"):
        maj_at_k(clusters, correct, k, weights)


def grades_table(traces: int, prefixes: int, answers: int, seed: int = 0) -> pl.DataFrame:
    """Random grades: answers fall on six clusters and unparseable, two clusters right."""
    rng = np.random.default_rng(seed)
    rows = traces * prefixes * answers
    cluster = rng.choice([-1, 0, 1, 2, 3, 4, 5], size=rows, p=[0.15, 0.35, 0.2, 0.1, 0.1, 0.05, 0.05])
    trace = np.repeat(np.arange(traces), prefixes * answers)
    return pl.DataFrame(
        {
            "problem_id": [f"p{i // 16:03d}" for i in trace],
            "sample": trace % 16,
            "prefix": np.tile(np.repeat(np.arange(prefixes), answers), traces),
            "cluster": cluster,
            "correct": (cluster == 0) | (cluster == 3),
        }
    )


def test_maj_at_k_table_is_the_scalar_form() -> None:
    table, by = grades_table(traces=20, prefixes=3, answers=8), ["problem_id", "sample", "prefix"]
    found = maj_at_k_table(table.sample(fraction=1.0, shuffle=True, seed=1), by, [8, 1, 2, 4])
    expected = [
        (*key, k, maj_at_k(group["cluster"].to_numpy(), group["correct"].to_numpy(), k))
        for key, group in table.group_by(by)
        for k in (1, 2, 4, 8)
    ]
    assert found.columns == [*by, "k", "maj"]
    assert found.rows() == sorted(expected)
    assert found.schema["k"] == pl.Int64 and found.schema["maj"] == pl.Float64


def test_maj_at_k_table_takes_groups_of_many_sizes() -> None:
    table = pl.DataFrame({"g": [1, 1, 1, 2, 2], "cluster": [-1, -1, -1, 0, 1], "correct": [False] * 3 + [True, False]})
    assert maj_at_k_table(table, ["g"], [1, 2]).rows() == [(1, 1, 0.0), (1, 2, 0.0), (2, 1, 0.5), (2, 2, 0.5)]
    with pytest.raises(ValueError, match="g 2"):
        maj_at_k_table(table, ["g"], [3])
    assert maj_at_k_table(table.clear(), ["g"], [1]).is_empty()
    for bad in (table.drop("correct"), table.with_columns(pl.lit(None).alias("correct"))):
        with pytest.raises(ValueError):
            maj_at_k_table(bad, ["g"], [1])
    for by, ks in (([], [1]), (["g"], []), (["g"], [0])):
        with pytest.raises(ValueError):
            maj_at_k_table(table, by, ks)


def test_maj_at_k_is_fast() -> None:
    rng = np.random.default_rng(0)
    clusters = rng.integers(-1, 8, size=20)
    begin = time.perf_counter()
    maj_at_k(clusters, clusters == 2, 10)
    assert time.perf_counter() - begin < 0.5
    table = grades_table(traces=16 * 15, prefixes=12, answers=8)
    begin = time.perf_counter()
    maj_at_k_table(table, ["problem_id", "sample", "prefix"], [1, 2, 4, 8])
    assert time.perf_counter() - begin < 3  # a fraction of a second on an idle machine
