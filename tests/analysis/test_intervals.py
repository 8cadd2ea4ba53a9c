"""Intervals over training runs and problems: their parts by hand, and how often they exclude the truth."""

from statistics import NormalDist
from typing import Any

import mpmath
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.intervals import NAMES, SPREADS, table
from mrt.analysis.intervals import (
    average_of,
    components,
    interval,
    interval_table,
    linearized,
    mean_of,
    quantile,
    two_sided,
)


def test_student_t_is_that_of_another_library() -> None:
    for df in (1.0, 1.7, 4.0, 8.3, 60.0, 1e6):
        for t in (1.5, 2.3, 4.0, 30.0):
            theirs = mpmath.betainc(df / 2, 0.5, 0, df / (df + t * t), regularized=True)
            assert float(two_sided(np.array(t), np.array(df))) == pytest.approx(float(theirs), rel=1e-4)
    assert quantile([1, 4, 1e6]) == pytest.approx([12.7062, 2.77645, NormalDist().inv_cdf(0.975)], rel=1e-5)


def test_an_interval_over_problems_is_that_of_their_mean() -> None:
    values = np.random.default_rng(0).random(30)
    found, half = interval(values), 2.04523 * values.std(ddof=1) / np.sqrt(30)  # t of 29 degrees of freedom
    assert found == pytest.approx((values.mean(), values.mean() - half, values.mean() + half), rel=1e-5)
    assert interval([0.4]) == (0.4, 0.4, 0.4) and mean_of([[0.4]]).p_value() == 1.0
    assert mean_of([[0.4, 0.4]]).p_value() == 0.5 and mean_of([[0.4, 0.4]]).p_value(0.4) == 1.0
    assert mean_of([[0.0] * 4], [[1.0] * 4]).p_value() == 0.125 and mean_of([[1.0] * 6]).p_value() < 0.05


def test_the_variance_has_the_components_of_runs_problems_and_what_is_left() -> None:
    """As in the analysis of variance of a table without repetition."""
    rng = np.random.default_rng(1)
    grid = rng.normal(0, 2, (6, 1)) + rng.normal(0, 1, 50) + rng.normal(0, 0.5, (6, 50))
    rest = grid - grid.mean(axis=0) - grid.mean(axis=1, keepdims=True) + grid.mean()
    residual = (rest**2).sum() / (5 * 49) / 300
    runs, problems = grid.mean(axis=1).var(ddof=1) / 6, grid.mean(axis=0).var(ddof=1) / 50
    found = components([grid])
    assert found.error**2 == pytest.approx(runs + problems - residual)
    spent = runs**2 / 5 + problems**2 / 49 + residual**2 / 245
    assert found.df == pytest.approx((runs + problems - residual) ** 2 / spent)
    held = components([grid], fixed=True)
    assert held.error**2 == pytest.approx(problems) and held.df == pytest.approx(49)
    assert mean_of(grid).interval().estimate == pytest.approx(grid.mean())


def test_runs_that_differ_alone_have_the_interval_of_their_means() -> None:
    logged = np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])
    half = 2.77645 * logged.std(ddof=1) / np.sqrt(5)  # t of 4 degrees of freedom: no factor of 4 / 5 is lost
    assert mean_of(logged).interval() == pytest.approx((3, 3 - half, 3 + half), rel=1e-5)


def test_a_difference_of_single_runs_is_paired() -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(40)
    a, b, c = hard[None] + 0.1, hard[None], rng.random((1, 40))
    assert mean_of(a, b).interval() == pytest.approx((0.1, 0.1, 0.1))
    assert mean_of(c, b).interval() == pytest.approx(interval((c - b)[0]))


@given(st.lists(st.integers(0, 20), min_size=2, max_size=6), st.integers(1, 20), st.booleans())
def test_equal_differences_are_tested_by_their_number(right: list[int], more: int, same_runs: bool) -> None:
    """Shares have no exact differences in floating point: their rounding is no variance."""
    b = np.array([right, right]) / 20
    result = mean_of((np.array([right, right]) + more) / 20, b, same_runs=same_runs)
    assert result.error == 0 and result.p_value() == min(1.0, 2 * 0.5 ** len(right))


def test_the_same_runs_vary_in_their_difference_alone() -> None:
    rng = np.random.default_rng(0)
    of_runs = rng.normal(0, 1, (4, 1)) + rng.random(30)
    together, apart = (mean_of(of_runs + 0.1, of_runs, same_runs=same).interval() for same in (True, False))
    assert together == pytest.approx((0.1, 0.1, 0.1)) and apart.low < 0


def test_intervals_do_not_depend_on_the_order_of_problems_and_runs() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((5, 40)), rng.random((3, 40))
    order, runs = rng.permutation(40), rng.permutation(5)
    assert mean_of(a[runs][:, order], b[:, order]).interval() == pytest.approx(mean_of(a, b).interval())
    assert mean_of(b, a).interval() == pytest.approx([-x for x in np.take(mean_of(a, b).interval(), [0, 2, 1])])


def test_problems_that_a_run_lacks_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    grid = rng.normal(0, 1, 100) + rng.normal(0, 0.2, (5, 1))
    whole, holes = mean_of(grid).interval(), np.where(rng.random((5, 100)) < 0.4, np.nan, grid)
    found = mean_of(holes).interval()
    assert found.estimate == pytest.approx(np.nanmean(holes)) and found.low < found.estimate < found.high
    assert whole.high - whole.low < found.high - found.low < 3 * (whole.high - whole.low)
    apart = pl.DataFrame({"run": ["a", "a", "b"], "problem_id": ["p", "q", "r"], "x": [0.0, 1.0, 1.0]})
    row = interval_table(apart, [], "x", run="run").row(0, named=True)  # no problem that both runs have
    assert (row["problems"], row["runs"]) == (3, 2) and row["estimate"] == pytest.approx(2 / 3)


def test_an_average_weighs_benchmarks_alike() -> None:
    small, large = np.array([0.0, 1.0, 1.0, 1.0]), np.full(400, 0.25)
    found, alone = average_of([small[None], large[None]]).interval(), interval(small)
    assert found.estimate == pytest.approx(0.5)
    assert found.high - found.low == pytest.approx((alone.high - alone.low) / 2)  # the large one is certain
    spread = average_of([small[None] + np.array([[0.0], [0.5]]), np.full((2, 400), 0.25)]).interval()
    assert spread.high - spread.low > found.high - found.low  # runs that differ
    runs = np.repeat([[0.0], [1.0]], 50, axis=1)  # one run is good at the one, the other at the other
    assert average_of([runs, 1 - runs]).interval() == pytest.approx((0.5, 0.5, 0.5))
    for bad in ([], [small[None], np.empty((1, 0))], [small[None], np.full((2, 400), 0.25)]):
        with pytest.raises(ValueError, match="at least one group"):
            average_of(bad)


def test_a_table_has_an_interval_a_group() -> None:
    rng = np.random.default_rng(0)
    rows = pl.DataFrame(
        {
            "budget": np.tile([64, 256], 60),
            "problem_id": np.repeat([f"p{i:02d}" for i in range(20)], 6),
            "x": rng.random(120),
        }
    )
    found = interval_table(rows.sample(fraction=1.0, shuffle=True, seed=3), ["budget"], "x")
    assert found.columns == ["budget", "problems", "estimate", "low", "high"]
    for row in found.iter_rows(named=True):
        group = rows.filter(pl.col("budget") == row["budget"])
        means = group.group_by("problem_id").agg(pl.col("x").mean()).sort("problem_id")["x"]
        assert row["problems"] == 20
        assert (row["estimate"], row["low"], row["high"]) == pytest.approx(tuple(interval(means)))
    runs = pl.concat([rows.with_columns(pl.col("x") + i, run=pl.lit(f"r{i}")) for i in range(3)])
    of_runs = interval_table(runs, ["budget"], "x", run="run").row(0, named=True)
    assert of_runs["runs"] == 3 and of_runs["estimate"] == pytest.approx(found["estimate"][0] + 1)
    assert of_runs["high"] - of_runs["low"] > 1  # means of three runs at 0, 1, 2
    one = interval_table(runs.filter(run="r0"), ["budget"], "x", run="run")
    assert one.drop("runs").equals(found)
    right = interval_table(rows.with_columns(accuracy=pl.Series([1.0] * 119 + [0.0])), [], "accuracy")
    assert right["high"].item() == 1.0  # a share has no more


@pytest.mark.parametrize("values", [[], [[1.0]], [1.0, np.nan]])
def test_intervals_refuse_what_is_no_list_of_numbers(values: Any) -> None:
    with pytest.raises(ValueError):
        interval(values)


def test_intervals_refuse_what_does_not_match() -> None:
    with pytest.raises(ValueError, match="same problems"):
        mean_of([[1.0, 2.0]], [[1.0]])
    rows = pl.DataFrame({"problem_id": ["a", "b"], "J": [0.5, None]})
    for bad in (rows, rows.drop("J"), rows.drop_nulls().clear(), rows.fill_null(float("nan"))):
        with pytest.raises(ValueError):
            interval_table(bad, [], "J")


def test_a_ratio_is_linearized_as_by_hand() -> None:
    rng = np.random.default_rng(0)
    top, bottom = rng.random((2, 3, 20, 1)) + 1
    found = linearized(lambda a, b: float(a[0] / b[0]), top, bottom)
    ratio = top.mean() / bottom.mean()
    assert found[0] == pytest.approx((top - top.mean())[..., 0] / bottom.mean(), abs=1e-5)
    assert found[1] == pytest.approx(-ratio * (bottom - bottom.mean())[..., 0] / bottom.mean(), abs=1e-5)


@pytest.mark.parametrize(
    ("name", "draws"),
    [("accuracy", 240), ("tokens", 240), ("ratio of gains", 240), ("training log", 240), ("token efficiency", 60)],
)
def test_intervals_exclude_the_truth_as_often_as_they_say(name: str, draws: int) -> None:
    """Few draws, so a wide tolerance; `python -m benchmarks.intervals` has 10,000 (benchmarks/intervals.md)."""
    assert name in NAMES
    rates = [rate for *_, five, one in table(draws, [name]) for rate in (five, one)]
    assert len(rates) == 2 * len(SPREADS)
    assert 1.5 <= np.mean(rates) <= 7.5 and max(rates) <= 11  # of a percentile bootstrap 8 to 16
