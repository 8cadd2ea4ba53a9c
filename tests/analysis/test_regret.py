"""Regret against an independent integration, its bounds, and table against scalar."""

import itertools
import time
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt.analysis.regret import (
    cumulative_regret,
    episode_regret,
    episode_regret_table,
    normalized_regret,
    normalized_regret_table,
    to_the_longest,
)


def by_midpoints(tokens: list[int], accuracy: list[float], budget: int) -> float:
    """Normalized regret in rational arithmetic: the curve is linear between breakpoints, so midpoints integrate it."""
    points = [(Fraction(0), Fraction(0))]
    for x, y in zip(tokens, accuracy, strict=True):
        points.append((max(points[-1][0], Fraction(x)), Fraction(y)))

    def height(at: Fraction) -> Fraction:
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            if x0 < at < x1:
                return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
        assert at > points[-1][0]
        return points[-1][1]

    cuts = sorted({x for x, _ in points if x < budget} | {Fraction(budget)})
    area = sum((b - a) * height((a + b) / 2) for a, b in itertools.pairwise(cuts))
    return float(1 - area / budget)


def test_normalized_regret_is_the_integral() -> None:
    rng = np.random.default_rng(0)
    for trial in range(1000):
        points = int(rng.integers(1, 12))
        steps = rng.integers(-50 if trial % 3 == 0 else 0, 300, points)  # a third of the curves fall back
        steps[rng.random(points) < 0.2] = 0  # repeated x
        tokens = np.maximum(0, np.cumsum(steps))
        accuracy = rng.integers(0, 9, points) / 8 if trial % 2 else rng.random(points)
        budgets = {int(tokens.max()) + 100, int(tokens.max()), int(tokens[points // 2]), int(rng.integers(1, 2000)), 1}
        for budget in budgets - {0}:
            found = normalized_regret(tokens, accuracy, budget)
            assert found == pytest.approx(by_midpoints(tokens.tolist(), accuracy.tolist(), budget), abs=1e-9)


def test_normalized_regret_by_hand() -> None:
    assert normalized_regret([100], [1.0], 100) == 0.5
    assert normalized_regret([100], [1.0], 200) == 0.25
    assert normalized_regret([100], [1.0], 50) == 0.75
    assert normalized_regret([0], [1.0], 7) == 0.0  # right from the first token on
    assert normalized_regret([0, 10], [0.5, 0.5], 20) == 0.5
    assert normalized_regret([10, 10], [0.0, 1.0], 20) == 0.5  # a jump
    assert normalized_regret([10, 4], [0.0, 1.0], 20) == 0.5  # tokens that fall back count as a jump
    assert normalized_regret([10], [0.0], 5) == 1.0


curves = st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 1)), min_size=1, max_size=10)


@given(curves, st.integers(1, 3000), st.data())
def test_regret_is_bounded_and_falls_as_accuracy_rises(
    curve: list[tuple[int, float]], budget: int, data: st.DataObject
) -> None:
    tokens, accuracy = [x for x, _ in curve], [y for _, y in curve]
    regret = normalized_regret(tokens, accuracy, budget)
    assert 0 <= regret <= 1
    i = data.draw(st.integers(0, len(curve) - 1))
    better = [*accuracy[:i], data.draw(st.floats(accuracy[i], 1)), *accuracy[i + 1 :]]
    assert normalized_regret(tokens, better, budget) <= regret + 1e-12
    assert cumulative_regret(better) <= cumulative_regret(accuracy) + 1e-12


@pytest.mark.parametrize(
    "tokens, accuracy, budget",
    [
        ([1, 2], [0.5], 10),
        ([], [], 10),
        ([1], [0.5], 0),
        ([1], [0.5], -3),
        ([1], [0.5], float("inf")),
        ([1], [1.5], 10),
        ([1], [-0.1], 10),
        ([1], [float("nan")], 10),
        ([-1], [0.5], 10),
        ([5, -1], [0.5, 0.5], 10),
        ([float("nan")], [0.5], 10),
        ([[1]], [[0.5]], 10),
    ],
)
def test_normalized_regret_refuses(tokens: list[float], accuracy: list[float], budget: float) -> None:
    with pytest.raises(ValueError, match="regret"):
        normalized_regret(tokens, accuracy, budget)


def progress_rows(traces: int, longest: int, seed: int = 0) -> pl.DataFrame:
    """A progress artifact of traces of 1 to `longest` prefixes, four traces a problem; some tokens fall back."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, traces)
    trace = np.repeat(np.arange(traces), lengths)
    prefix = np.concatenate([np.arange(length) for length in lengths])
    return pl.DataFrame(
        {
            "problem_id": [f"p{i // 4:05d}" for i in trace],
            "sample": trace % 4,
            "prefix": prefix,
            "tokens": np.maximum(0, prefix * 150 + rng.integers(-200, 200, trace.size)),
            "J": rng.integers(0, 9, trace.size) / 8,
        }
    )


def test_table_is_the_scalar_form() -> None:
    table, budgets = progress_rows(41, 9), [64, 500, 4096]
    found = normalized_regret_table(table.sample(fraction=1.0, shuffle=True, seed=1), [4096, 64, 500])
    expected = [
        (*key, budget, normalized_regret(group["tokens"].to_numpy(), group["J"].to_numpy(), budget))
        for key, group in table.group_by("problem_id", "sample", maintain_order=True)
        for budget in budgets
    ]
    assert found.columns == ["problem_id", "sample", "budget", "regret"]
    assert found.schema["budget"] == pl.Int64
    assert found.select("problem_id", "sample", "budget").rows() == [row[:3] for row in expected]
    np.testing.assert_allclose(found["regret"].to_numpy(), [row[3] for row in expected], atol=1e-12)
    assert normalized_regret_table(table, [0.5]).schema["budget"] == pl.Float64


def test_table_refuses() -> None:
    table = progress_rows(3, 4)
    bad = [
        table.clear(),
        table.drop("J"),
        pl.concat([table, table]),
        table.with_columns(J=pl.lit(2.0)),
        table.with_columns(tokens=pl.lit(-1)),
        table.with_columns(tokens=pl.lit(None, dtype=pl.Int64)),
    ]
    for rows in bad:
        with pytest.raises(ValueError, match="regret"):
            normalized_regret_table(rows, [64])
    for budgets in ([], [0], [64, -1]):
        with pytest.raises(ValueError, match="regret"):
            normalized_regret_table(table, budgets)


def test_table_is_fast() -> None:
    table = progress_rows(10_000, 79)  # 40 prefixes a trace on average
    begin = time.perf_counter()
    found = normalized_regret_table(table, [4096 * i for i in range(1, 9)])
    assert time.perf_counter() - begin < 6  # half a second on an idle machine
    assert found.height == 80_000


def test_cumulative_regret() -> None:
    assert cumulative_regret([0.25, 0.5, 1.0]) == pytest.approx(1.25)
    assert cumulative_regret([0.25, 0.5], comparator=0.5) == pytest.approx(0.25)
    assert cumulative_regret([0.25, 0.5], comparator=[0.25, 0.25]) == pytest.approx(-0.25)
    for accuracy, comparator in (([], 1.0), ([1.5], 1.0), ([0.5], 2.0), ([0.5, 0.5], [1.0]), ([[0.5]], 1.0)):
        with pytest.raises(ValueError, match="regret"):
            cumulative_regret(accuracy, comparator)


# ---- by episodes

shares = st.floats(0, 1).map(lambda x: round(x, 3))
majs = st.lists(st.tuples(shares, shares, shares, shares), min_size=2, max_size=8)


@given(majs)
def test_episode_regret_is_what_integration_gives(maj: list[tuple[float, ...]]) -> None:
    x = np.linspace(1, 6, 5001)
    lost = best = 0.0
    expected = []
    for here, after in itertools.pairwise(maj):
        votes = np.interp(x, [1, 2, 4, 6], [*here[:3], (here[2] + here[3]) / 2])
        thought = np.interp(x, [1, 6], [here[0], after[0]])
        optimal = np.maximum(votes, thought)
        lost += np.trapezoid(optimal - thought, x)
        best += np.trapezoid(optimal, x)
        expected.append(lost / best if best else 1.0)
    found = episode_regret(maj)
    assert np.all((found >= 0) & (found <= 1))
    assert found == pytest.approx(expected, abs=2e-3)


def test_episode_regret_of_a_thought_that_gains_more_than_votes_and_of_a_hopeless_one() -> None:
    assert episode_regret([[0.2] * 4, [0.6] * 4, [1.0] * 4]) == pytest.approx([0, 0])
    assert episode_regret(np.zeros((3, 4))).tolist() == [1, 1]


@pytest.mark.parametrize("maj", [[[0.5] * 4], [[0.5] * 3] * 2, [[0.5] * 3 + [1.5]] * 2])
def test_episode_regret_refuses_other_shapes_and_values(maj: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="regret: "):
        episode_regret(maj)


def test_episode_regret_table_is_the_scalar_form_and_counts_the_hopeless() -> None:
    rng = np.random.default_rng(1)
    rows, expected = [], {}
    for problem in ("p", "q", "r"):
        maj = rng.random((4, 4)) if problem != "r" else np.zeros((4, 4))
        rows += [
            (problem, 0, 2 * j, 3, votes, float(maj[j, i])) for j in range(4) for i, votes in enumerate((1, 2, 4, 8))
        ]
        expected[problem] = episode_regret(maj)
    names = ["problem_id", "sample", "prefix", "episodes", "p", "maj"]
    table = pl.DataFrame(rows, schema=names, orient="row").sample(fraction=1, shuffle=True, seed=0)
    found = episode_regret_table(table)
    assert found["prefix"].unique().to_list() == [2, 4, 6]
    for problem, regrets in expected.items():
        here = found.filter(problem_id=problem)
        assert here["regret"].to_list() == pytest.approx(regrets.tolist())
        assert set(here["hopeless"]) == {problem == "r"}
    with pytest.raises(ValueError, match="p = 1, 2, 4 and 8"):
        episode_regret_table(table.filter(pl.col("p") < 8))


def test_regret_of_a_shorter_run_goes_on_with_all_its_episodes_and_none_has_reached_them() -> None:
    key = {"model": "a", "dataset": "d", "problem_id": "p", "reached": 1.0}
    runs = {"a": [0.1, 0.2, 0.3], "b": [0.5]}
    rows = [key | {"run": run, "episodes": b, "regret": x} for run, of in runs.items() for b, x in enumerate(of, 1)]
    carried = to_the_longest(pl.DataFrame([*rows, key | {"run": "b", "dataset": "e", "episodes": 1, "regret": 0.0}]))
    assert carried.filter(run="b", dataset="d").select("episodes", "regret", "reached").rows() == [
        (1, 0.5, 1.0),
        (2, 0.5, 0.0),
        (3, 0.5, 0.0),
    ]
    assert carried.filter(run="a")["regret"].to_list() == runs["a"] and carried.filter(dataset="e").height == 1


def test_a_trace_is_hopeless_until_a_vote_or_its_own_answer_is_right() -> None:
    maj = np.array([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0, 0]])
    rows = [("p", 0, j, votes, float(maj[j, i])) for j in range(4) for i, votes in enumerate((1, 2, 4, 8))]
    table = pl.DataFrame(rows, schema=["problem_id", "sample", "prefix", "p", "maj"], orient="row")
    assert episode_regret_table(table)["hopeless"].to_list() == [True, True, False]
