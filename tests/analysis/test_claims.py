"""Claims: a verdict only where the interval over runs and problems allows one."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt.analysis.bootstrap import Interval
from mrt.analysis.claims import Claim, compare, direct, ends, runs_needed, runs_needed_for_ratio, values_of, verdict


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
    assert verdict(claim("more"), Interval(2.0, 1.1, 3.0), ratio=True) == "confirmed"
    assert verdict(claim("more"), Interval(0.5, 0.1, 0.9), ratio=True) == "refuted"
    assert verdict(claim("more"), Interval(1.2, 0.9, 1.5), ratio=True) == "undecided"


@pytest.mark.parametrize(("bound", "possible"), [("at least", "confirmed"), ("at most", "refuted")])
def test_a_bound_decides_in_its_own_direction_only(bound, possible):
    above, below = Interval(2.0, 1.1, 3.0), Interval(0.5, 0.1, 0.9)
    found = {verdict(claim("more"), interval, bound, ratio=True) for interval in (above, below)}
    assert found == {possible, "undecided"}
    assert verdict(claim("same", margin=1.0), above, bound, ratio=True) == "undecided"


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


def test_the_same_runs_are_drawn_together():
    """What all values of a run have in common does not blur their difference."""
    of_runs = drawn(4, 0, 0.5, 10)
    apart, together = (compare(of_runs + 0.1, of_runs, same_runs=same) for same in (False, True))
    assert together.low == pytest.approx(0.1) == together.high and apart.low < 0


def test_the_runs_that_would_decide_it_do():
    one, other = drawn(3, 0.02, 0.05, 4), drawn(3, 0, 0.05, 5)
    difference = one.mean() - other.mean()
    needed = runs_needed(one, other)
    assert needed is not None and needed > 2
    more = [np.concatenate([grid] * -(-needed // 3))[:needed] for grid in (one, other)]  # the same spread, more runs
    assert np.sign(compare(*more).low) == np.sign(compare(*more).high) == np.sign(difference)
    base = np.random.default_rng(0).random((1, 40))
    assert (
        runs_needed(np.repeat(base, 3, axis=0), np.repeat(base[:, ::-1] + 1e-3, 3, axis=0)) is None
    )  # the problems do
    assert runs_needed(drawn(5, 0.5, 1e-6, 8), drawn(5, 0, 1e-6, 9)) == 6  # more than there are
    logged = np.array([[1.0], [2.0], [3.0]])  # of runs alone: both have a variance of 1
    assert runs_needed(logged, logged - 0.5) == np.ceil(2 * (1.96 / 0.5) ** 2)


def test_of_the_same_runs_only_their_difference_varies():
    of_runs, gain = drawn(4, 0, 0.5, 10), drawn(4, 0.02, 0.03, 11) - drawn(1, 0, 0, 12)
    apart, together = (runs_needed(of_runs + gain, of_runs, same_runs=same) for same in (False, True))
    assert together == runs_needed(gain, np.zeros((1, gain.shape[1])))
    assert together is not None and apart is not None and apart > 20 * together


def test_what_a_run_says_of_single_problems_is_no_variance_between_problems():
    """Two models alike on every problem, with one noisy sample of each in a run: more runs do tell them apart."""
    rng = np.random.default_rng(1)
    of_problems, shift = rng.random(300) * 0.5, 0.03
    one, other = (rng.binomial(1, of_problems + by, (5, 300)).astype(float) for by in (shift, 0))
    between = (one.mean(axis=0) - other.mean(axis=0)).var(ddof=1) / 300
    assert ((one.mean() - other.mean()) / 1.96) ** 2 < between  # taken for one, it would say that no number is enough
    assert runs_needed(one, other) is not None


def test_a_ratios_runs_are_told_by_what_the_runs_add_to_its_interval():
    both, fixed = Interval(1.2, 0.9, 1.6), Interval(1.2, 1.1, 1.31)
    needed = runs_needed_for_ratio(both, fixed, 5)
    width = np.sqrt(np.log(1.31 / 1.1) ** 2 + (np.log(1.6 / 0.9) ** 2 - np.log(1.31 / 1.1) ** 2) * 5 / needed) / 2
    assert needed > 5 and width <= np.log(1.2) < width * 1.2
    assert runs_needed_for_ratio(both, both, 5) is None


def test_progress_of_a_backtrack_is_that_of_the_second_episode():
    rows = {"model": "a", "run": "a", "dataset": "d", "problem_id": "p"}
    table = pl.DataFrame([rows | {"prefix": j, "progress": x} for j, x in enumerate((None, 0.1, 0.5, -0.3))])
    found = {value: x for value, *_, x in values_of({"progress": table}).iter_rows()}
    assert found == {"progress": pytest.approx(0.1), "progress of the backtrack": 0.5}


def test_a_training_log_counts_from_its_second_half_on_as_one_problem():
    logs = [
        pl.DataFrame(
            {
                "model": "a",
                "run": run,
                "dataset": f"set of {run}",
                "step": [1, 2, 3, 4],
                "loss": [9.0, 9.0, low, low + 2],
            }
        )
        for run, low in (("a", 1.0), ("a_seed1", 3.0))
    ]
    found = values_of({"sft_log": pl.concat(logs)})
    assert found.select("value", "run", "dataset", "problem_id", "x").rows() == [
        ("training loss", "a", "training", "all", 2.0),
        ("training loss", "a_seed1", "training", "all", 4.0),
    ]


def test_a_gain_is_what_extensions_bring_to_a_trace():
    rows = {"model": "a", "run": "a", "dataset": "d", "problem_id": "p"}
    forced = [
        rows | {"sample": i, "extensions": n, "accuracy": x}
        for i, of in enumerate(((0.25, 0.75), (1.0, 0.0)))
        for n, x in zip((0, 2), of, strict=True)
    ]
    found = {value: x for value, *_, x in values_of({"budget_forcing": pl.DataFrame(forced)}).iter_rows()}
    assert found["accuracy after 2 extensions"] == 0.375 and found["gain from 2 extensions"] == -0.25
    assert found["gain from 0 extensions"] == 0.0


def test_every_measure_gives_its_values_by_problem():
    rows = {"model": ["a"] * 4, "run": ["a"] * 4, "dataset": ["d"] * 4, "problem_id": ["p", "p", "q", "q"]}
    tables = {
        "accuracy": pl.DataFrame({**rows, "accuracy": [0.0, 1.0, 1.0, 1.0], "tokens": [1, 3, 5, 7]}),
        "maj": pl.DataFrame({**rows, "k": [1, 2, 1, 2], "maj": [0.1, 0.2, 0.3, 0.4], "pass": [0.5] * 4}),
        "regret": pl.DataFrame({**rows, "budget": [64] * 4, "regret": [0.5, 0.7, 0.1, 0.1]}),
        "progress": pl.DataFrame({**rows, "prefix": [0, 1, 0, 1], "progress": [None, 0.5, None, 0.25]}),
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


def test_half_of_a_thought_is_the_last_prefix_scored_by_then():
    """Where every fifth prefix is scored: of 12 episodes 0, 5, 10 and 12, so that half is 5."""
    trace = {"model": "a", "run": "a", "dataset": "d", "problem_id": "p", "sample": 0, "episodes": 12}
    rows = [trace | {"prefix": j, "p": p, "maj": 0.5, "tokens": 10.0 * (j + p)} for j in (0, 5, 10, 12) for p in (1, 2)]
    found = {name: table.select("prefix", "p").rows() for name, table in ends(pl.DataFrame(rows))}
    assert found == {"answer at the end": [(12, 1)], "answer halfway": [(5, 1)], "votes halfway": [(5, 2)]}


def test_a_claim_is_about_a_value_that_there_is():
    with pytest.raises(ValueError, match="value"):
        claim().model_validate(claim().model_dump() | {"value": "regrets at 256"})
    for value in ("regret at 256", "accuracy after 4 extensions", "progress of the backtrack", "token efficiency"):
        assert claim().model_validate(claim().model_dump() | {"value": value}).value == value
    curves = claim().model_dump() | {"value": "linearized token efficiency"}
    assert claim().model_validate(curves | {"than_value": "token efficiency"}).than == "b"
    assert claim().model_validate(claim().model_dump() | {"value": "gain from 2 extensions", "than": None}).than is None
    for wrong, message in (
        (curves | {"gains_over": "c"}, "compares two curves; leave out gains_over"),
        (curves | {"than": None}, "linearized token efficiency needs `than`"),
        (curves | {"than_value": "accuracy"}, "cannot be compared with accuracy"),
        (curves | {"value": "maj at equal tokens", "than_value": "token efficiency"}, "cannot be compared with token"),
        ({"than_value": "token efficiency"}, "accuracy cannot be compared with token efficiency"),
        ({"than": None}, "accuracy needs `than`"),
    ):
        with pytest.raises(ValueError, match=message):
            claim().model_validate(claim().model_dump() | wrong)


def test_a_model_without_thoughts_has_the_tokens_of_each_thought():
    """Its answers cost 10: two are as dear as the first trace, four as the second, none as the third."""
    trace = {"model": "a", "run": "a", "dataset": "d", "problem_id": "p", "episodes": 2, "p": 1, "maj": 0.5}
    ends_at = [trace | {"sample": i, "prefix": j, "tokens": t} for i, j, t in ((0, 2, 25.0), (1, 2, 40.0), (2, 2, 9.0))]
    halves = [row | {"prefix": 1, "tokens": 99.0} for row in ends_at]
    own = {"model": "direct", "run": "direct", "dataset": "d", "problem_id": "p"}
    answers = pl.DataFrame([own | {"k": k, "pass": k / 10, "tokens": 10.0 * k} for k in (4, 2, 1, 8)])
    prefixes = pl.DataFrame(ends_at + halves)
    assert direct(prefixes, answers).select("model", "sample", "pass").rows() == [("a", 0, 0.2), ("a", 1, 0.4)]
    assert direct(prefixes, answers.filter(dataset="e")).is_empty()
    assert direct(prefixes, None).is_empty() and direct(None, answers).is_empty()


def test_all_that_section_5_compares_is_of_the_same_traces():
    """The second trace is too short for an answer of the direct baseline, the third for one after half of it."""
    own = {"model": "a", "run": "a", "dataset": "d", "problem_id": "p"}
    traces = {0: (2, 30.0, 20.0), 1: (2, 9.0, 8.0), 2: (2, 30.0, 99.0)}  # episodes, tokens at the end and halfway
    rows = [
        own | {"sample": i, "episodes": k, "prefix": j, "p": 1, "maj": 0.5, "tokens": tokens}
        for i, (k, *at) in traces.items()
        for j, tokens in ((k, at[0]), (k // 2, at[1]))
    ]
    answers = pl.DataFrame([own | {"model": "direct", "run": "direct", "k": 1, "pass": 0.1, "tokens": 10.0}])
    found = {name: table["sample"].to_list() for name, table in ends(pl.DataFrame(rows), answers)}
    names = ("direct at the end", "answer at the end", "answer halfway", "votes halfway")
    assert found == {name: [0] for name in names}
    more = pl.DataFrame([*rows, *(row | {"dataset": "e"} for row in rows)])  # where the baseline is not measured
    found = {name: table.select("dataset", "sample").rows() for name, table in ends(more, answers)}
    assert found["direct at the end"] == [("d", 0)] and found["answer halfway"] == [("d", 0), ("e", 0), ("e", 1)]
    assert "direct at the end" not in dict(ends(more, None))


def test_the_second_half_is_that_of_each_training_by_itself():
    steps = {"a": [9.0, 9.0, 1.0, 3.0], "b": [9.0, 5.0]}
    rows = [
        {"model": m, "run": m, "dataset": "d", "step": i, "loss": loss}
        for m, losses in steps.items()
        for i, loss in enumerate(losses, start=1)
    ]
    found = values_of({"sft_log": pl.DataFrame(rows)})
    assert found.select("model", "x").rows() == [("a", 2.0), ("b", 5.0)]
