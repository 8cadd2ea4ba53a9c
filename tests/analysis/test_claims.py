"""Claims: a verdict only where the interval over runs and problems allows one."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt.analysis.bootstrap import Interval
from mrt.analysis.claims import Claim, compare, ends, runs_needed, values_of, verdict


def claim(expect="more", **other):
    text = {"section": "8.2", "says": "better", "value": "accuracy", "model": "a", "than": "b", "redraw": "table1"}
    return Claim(**text, expect=expect, **other)


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_verdict_needs_an_interval_without_zero(middle, below, above):
    interval = Interval(middle, middle - below, middle + above)
    found = verdict(claim("more"), interval)
    assert (found == "undecided") == (interval.low <= 0 <= interval.high)
    turned = {"confirmed": "refuted", "refuted": "confirmed", "undecided": "undecided"}
    assert verdict(claim("less"), interval) == turned[found]


def test_the_same_is_confirmed_within_a_margin_only():
    said = claim("same", margin=0.1)
    assert verdict(said, Interval(0.0, -0.1, 0.1)) == "confirmed"
    assert verdict(said, Interval(0.0, -0.2, 0.1)) == "undecided"
    assert verdict(said, Interval(0.3, 0.11, 0.4)) == "refuted"


def test_not_more_is_refuted_by_more_only():
    said = claim("not more", margin=0.1)
    assert verdict(said, Interval(-0.5, -0.6, -0.4)) == verdict(said, Interval(0.0, -0.1, 0.1)) == "confirmed"
    assert verdict(said, Interval(0.1, -0.1, 0.3)) == "undecided"
    assert verdict(said, Interval(0.3, 0.11, 0.4)) == "refuted"


def test_ratios_are_compared_with_one():
    assert verdict(claim("more", gains_over="c"), Interval(2.0, 1.1, 3.0)) == "confirmed"
    assert verdict(claim("more", gains_over="c"), Interval(0.5, 0.1, 0.9)) == "refuted"
    efficient = claim("more").model_copy(update={"value": "token efficiency"})
    assert verdict(efficient, Interval(1.2, 0.9, 1.5)) == "undecided"


def drawn(runs, shift, spread, seed, problems=100):
    """Values of runs that differ by `spread` in the mean."""
    rng = np.random.default_rng(seed)
    of_problems = np.random.default_rng(0).random(problems)
    return of_problems + shift + spread * rng.standard_normal((runs, 1)) + 0.05 * rng.standard_normal((runs, problems))


def test_gains_are_compared_over_a_common_base():
    base, weak, strong = drawn(1, 0, 0, 1), drawn(5, 0.1, 0.001, 2), drawn(5, 0.3, 0.001, 3)
    found = compare(strong, weak, base)
    assert found.low < 3 < found.high and found.low > 2 and found.estimate == pytest.approx(3, rel=0.1)
    assert compare(strong, weak).estimate == pytest.approx(0.2, abs=0.02)


def test_the_runs_that_would_decide_it_do():
    one, other = drawn(3, 0.02, 0.05, 4), drawn(3, 0, 0.05, 5)
    difference = one.mean() - other.mean()
    needed = runs_needed(one, other)
    assert needed is not None and needed > 2
    more = [np.concatenate([grid] * -(-needed // 3))[:needed] for grid in (one, other)]  # the same spread, more runs
    assert np.sign(compare(*more).low) == np.sign(compare(*more).high) == np.sign(difference)
    assert runs_needed(drawn(3, 0, 0.0, 6, 4), drawn(3, 1e-6, 0.0, 7, 4)) is None  # the problems alone leave it open


def test_every_measure_gives_its_values_by_problem():
    rows = {"model": ["a"] * 4, "run": ["a"] * 4, "dataset": ["d"] * 4, "problem_id": ["p", "p", "q", "q"]}
    tables = {
        "accuracy": pl.DataFrame({**rows, "accuracy": [0.0, 1.0, 1.0, 1.0], "tokens": [1, 3, 5, 7]}),
        "maj": pl.DataFrame({**rows, "k": [1, 2, 1, 2], "maj": [0.1, 0.2, 0.3, 0.4], "pass": [0.5] * 4}),
        "regret": pl.DataFrame({**rows, "budget": [64] * 4, "regret": [0.5, 0.7, 0.1, 0.1]}),
        "progress": pl.DataFrame({**rows, "progress": [None, 0.5, None, 0.25]}),
    }
    found = {(v, p): x for v, *_, p, x in values_of(tables).iter_rows()}
    assert found["accuracy", "p"] == 0.5 and found["tokens", "q"] == 6
    assert found["maj at 2", "q"] == 0.4 and found["pass at 1", "p"] == 0.5
    assert found["regret at 64", "p"] == pytest.approx(0.6) and found["progress", "q"] == 0.25
    assert len(found) == 2 * (1 + 1 + 4 + 1 + 1) and values_of({}).is_empty()


def test_votes_after_half_of_a_thought_cost_no_more_than_the_whole():
    """Of 4 episodes of 10 tokens, answers of 10: the end costs 50, after two episodes 20 and three answers 50."""
    trace = {"model": "a", "run": "a", "dataset": "d", "problem_id": "p", "sample": 0, "episodes": 4}
    rows = [
        trace | {"prefix": j, "p": p, "maj": j / 10 + p / 100, "tokens": 10.0 * (j + p)}
        for j in range(5)
        for p in range(1, 9)
    ]
    single = [row | {"sample": 1, "episodes": 1} for row in rows if row["prefix"] < 2]
    found = {name: table.select("prefix", "p").rows() for name, table in ends(pl.DataFrame(rows + single))}
    assert found == {"answer at the end": [(4, 1)], "answer halfway": [(2, 1)], "votes halfway": [(2, 3)]}
    assert list(ends(pl.DataFrame())) == list(ends(None)) == []
