"""pass@k, maj@k and the bootstrap against brute force, and against their own scalar forms."""

import time
from collections import defaultdict
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mrt.analysis.bootstrap import bootstrap, bootstrap_average, bootstrap_runs, bootstrap_table, resampled_means
from mrt.analysis.token_efficiency import (
    accuracy_gain,
    bootstrap_curves,
    bootstrap_token_efficiency,
    token_efficiency,
)
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


def test_bootstrap_resamples_problems_by_its_seed() -> None:
    values = np.random.default_rng(0).random(30)
    found = bootstrap(values, repeats=500)
    assert found.estimate == pytest.approx(values.mean()) and found.low < found.estimate < found.high
    assert bootstrap(values, repeats=500) == found != bootstrap(values, repeats=500, seed=1)
    picks = np.random.default_rng(0).integers(0, 30, (500, 30))
    assert found[1:] == pytest.approx(tuple(np.quantile(values[picks].mean(axis=1), [0.025, 0.975])))
    assert bootstrap([0.4]) == pytest.approx((0.4, 0.4, 0.4))


def test_means_of_eighths_are_exact() -> None:
    """So that no machine rounds a table's 73.25 up and another one down."""
    values = np.random.default_rng(0).integers(0, 9, (1, 50)) / 8
    assert all(mean == round(400 * mean) / 400 for mean in resampled_means([values])[0].tolist())


def test_bootstrap_covers() -> None:
    rng = np.random.default_rng(0)
    truth, hits = 0.6, 0
    for i in range(300):
        _, low, high = bootstrap(rng.binomial(8, truth, size=50) / 8, repeats=400, seed=i)
        hits += low <= truth <= high
    assert 0.90 <= hits / 300 <= 0.98


def test_a_difference_of_single_runs_is_paired() -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(40)
    a, b, c = hard[None] + 0.1, hard[None], rng.random((1, 40))
    assert bootstrap_runs(a, b) == pytest.approx((0.1, 0.1, 0.1))
    assert bootstrap_runs(c, b) == pytest.approx(tuple(bootstrap((c - b)[0])))


def test_bootstrap_table_is_the_scalar_form() -> None:
    rng = np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "budget": np.tile([64, 256], 60),
            "problem_id": np.repeat([f"p{i:02d}" for i in range(20)], 6),
            "regret": rng.random(120),
        }
    )
    found = bootstrap_table(table.sample(fraction=1.0, shuffle=True, seed=3), ["budget"], "regret", repeats=200)
    assert found.columns == ["budget", "problems", "estimate", "low", "high"]
    for row in found.iter_rows(named=True):
        group = table.filter(pl.col("budget") == row["budget"])
        means = group.group_by("problem_id").agg(pl.col("regret").mean()).sort("problem_id")["regret"]
        assert row["problems"] == 20
        assert (row["estimate"], row["low"], row["high"]) == pytest.approx(tuple(bootstrap(means, repeats=200)))
    assert bootstrap_table(table, [], "regret", repeats=10).columns == ["problems", "estimate", "low", "high"]
    runs = pl.concat([table.with_columns(pl.col("regret") + i, run=pl.lit(f"r{i}")) for i in range(3)])
    of_runs = bootstrap_table(runs, ["budget"], "regret", run="run").row(0, named=True)
    assert of_runs["runs"] == 3 and of_runs["estimate"] == pytest.approx(found["estimate"][0] + 1)
    assert of_runs["high"] - of_runs["low"] > 1  # means of three runs at 0, 1, 2
    one = bootstrap_table(runs.filter(run="r0"), ["budget"], "regret", repeats=200, run="run")
    assert one.drop("runs").equals(found)


@pytest.mark.parametrize(
    "values, options",
    [([], {}), ([[1.0]], {}), ([1.0, np.nan], {}), ([1.0], {"repeats": 0})],
)
def test_bootstrap_refuses(values: list[float], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        bootstrap(values, **options)


def test_bootstrap_refuses_what_does_not_match() -> None:
    with pytest.raises(ValueError):
        bootstrap_runs([[1.0, 2.0]], [[1.0]])
    table = pl.DataFrame({"problem_id": ["a", "b"], "J": [0.5, None]})
    for bad in (table, table.drop("J"), table.drop_nulls().clear(), table.fill_null(float("nan"))):
        with pytest.raises(ValueError):
            bootstrap_table(bad, [], "J")


def test_bootstrap_of_runs_draws_runs_and_problems() -> None:
    rng = np.random.default_rng(0)
    problems, runs = rng.normal(0, 1, 200), rng.normal(0, 2, 6)
    grid = problems + runs[:, None]
    found = bootstrap_runs(grid)
    assert found.estimate == pytest.approx(grid.mean())
    spread = np.sqrt(problems.var() / 200 + runs.var() / 6)  # of a mean over both, as the bootstrap sees it
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * spread, rel=0.15)
    one = bootstrap_runs(grid[:1])
    assert one == pytest.approx(bootstrap(grid[0]), abs=0.03)
    difference = bootstrap_runs(grid[:1] + 0.5, grid[:1])  # of the same run: the problems are drawn together
    assert difference == pytest.approx((0.5, 0.5, 0.5))
    with pytest.raises(ValueError, match="same problems"):
        bootstrap_runs(grid, grid[:, :-1])


def test_bootstrap_of_runs_takes_problems_that_a_run_lacks() -> None:
    rng = np.random.default_rng(1)
    grid = rng.normal(0, 1, 100) + rng.normal(0, 0.2, (5, 1))
    whole, holes = bootstrap_runs(grid), np.where(rng.random((5, 100)) < 0.4, np.nan, grid)
    found = bootstrap_runs(holes)
    assert found.estimate == pytest.approx(np.nanmean(holes)) and found.low < found.estimate < found.high
    assert whole.high - whole.low < found.high - found.low < 3 * (whole.high - whole.low)
    apart = pl.DataFrame({"run": ["a", "a", "b"], "problem_id": ["p", "q", "r"], "x": [0.0, 1.0, 1.0]})
    row = bootstrap_table(apart, [], "x", run="run").row(0, named=True)  # no problem that both runs have
    assert (row["problems"], row["runs"]) == (3, 2) and row["estimate"] == pytest.approx(2 / 3)
    assert row["low"] == 0.0 and row["high"] == 1.0


def test_bootstrap_average_weighs_benchmarks_alike() -> None:
    small, large = np.array([0.0, 1.0, 1.0, 1.0]), np.full(400, 0.25)
    found = bootstrap_average([small[None], large[None]])
    assert found.estimate == pytest.approx(0.5)
    alone = bootstrap(small)
    assert found.high - found.low == pytest.approx((alone.high - alone.low) / 2, abs=1e-9)  # the large one is certain
    spread = bootstrap_average([small[None] + np.array([[0.0], [0.5]]), np.full((2, 400), 0.25)])
    assert spread.high - spread.low > found.high - found.low  # runs that differ
    for bad in ([], [small[None], np.empty((1, 0))], [small[None], np.full((2, 400), 0.25)]):
        with pytest.raises(ValueError, match="at least one group"):
            bootstrap_average(bad)


shares = st.just(0.0) | st.floats(1e-9, 1)  # of fewer than 1e9 answers; between subnormal ones no slope is finite
curves = st.lists(st.tuples(st.floats(1, 1000), shares), min_size=1, max_size=6, unique_by=lambda p: p[0])


@given(curves, curves, st.floats(0.1, 10))
def test_token_efficiency_is_antisymmetric_and_scales(
    one: list[tuple[float, float]], two: list[tuple[float, float]], factor: float
) -> None:
    x, y = np.array(sorted(one)).T
    other_x, other_y = np.array(sorted(two)).T
    assume((np.diff(x / factor) > 0).all())  # neighbouring floats may become one
    ratio, kind = token_efficiency(x, y, other_x, other_y)
    back, opposite = token_efficiency(other_x, other_y, x, y)
    assert ratio * back == pytest.approx(1)
    assert opposite == {"at least": "at most", "at most": "at least"}.get(kind, kind)
    assert token_efficiency(x / factor, y, other_x, other_y)[0] == pytest.approx(ratio * factor)
    assert token_efficiency(x, y, x, y)[0] == pytest.approx(1)


def test_token_efficiency_by_hand() -> None:
    tokens = np.array([100.0, 200.0, 400.0])
    assert token_efficiency(tokens, [0.2, 0.4, 0.6], 4 * tokens, [0.2, 0.4, 0.6]) == (
        pytest.approx(4),
        "equal accuracy",
    )
    assert token_efficiency(tokens, [0.7, 0.8, 0.9], tokens, [0.2, 0.4, 0.6]) == (pytest.approx(4), "at least")
    assert token_efficiency(tokens, [0.2, 0.4, 0.6], tokens, [0.7, 0.8, 0.9]) == (pytest.approx(1 / 4), "at most")
    # At 0.4 and 0.5, all that both reach, one needs 100 and 200, the other 200 and sqrt(200 * 400).
    ratio, _ = token_efficiency([100, 200], [0.4, 0.5], tokens, [0.2, 0.4, 0.6])
    assert ratio == pytest.approx(np.exp((np.log(2) + np.log(np.sqrt(2))) / 2), rel=1e-9)
    # A dip is no cheaper way to an accuracy that was reached before.
    assert token_efficiency(tokens, [0.2, 0.1, 0.6], tokens, [0.2, 0.1, 0.6])[0] == pytest.approx(1)
    with pytest.raises(ValueError, match="increase"):
        token_efficiency([200, 100], [0.1, 0.2], tokens, [0.2, 0.4, 0.6])


def test_accuracy_gain_is_over_the_tokens_that_both_cover() -> None:
    tokens = np.array([100.0, 200.0, 400.0])
    assert accuracy_gain(tokens, [0.3, 0.5, 0.7], tokens, [0.2, 0.4, 0.6]) == pytest.approx(0.1)
    assert accuracy_gain(tokens, [0.9, 0.3, 0.5], [200.0, 400.0, 800.0], [0.1, 0.3, 0.5]) == pytest.approx(0.2)
    assert np.isnan(accuracy_gain(tokens, [0.3, 0.5, 0.7], 10 * tokens, [0.3, 0.5, 0.7]))
    with pytest.raises(ValueError, match="must be positive and increase"):
        accuracy_gain(tokens[::-1], [0.3, 0.5, 0.7], tokens, [0.3, 0.5, 0.7])
    rng = np.random.default_rng(0)
    curves = np.sort(rng.random((3, 40, 3)), axis=-1)
    spent = np.broadcast_to(tokens, curves.shape)
    interval = bootstrap_curves(accuracy_gain, spent, curves + 0.05, spent[:1], curves.mean(axis=0, keepdims=True))
    assert interval.low < interval.estimate < interval.high and interval.estimate == pytest.approx(0.05)


def test_the_interval_of_token_efficiency_is_paired() -> None:
    rng = np.random.default_rng(0)
    maj = np.sort(rng.random((50, 4)), axis=1)
    tokens = np.array([1.0, 2, 4, 8]) * rng.uniform(50, 150, (50, 1))
    maj, tokens = maj[None], tokens[None]
    interval, kind = bootstrap_token_efficiency(tokens / 3, maj, tokens, maj)
    assert kind == "equal accuracy"
    assert [interval.estimate, interval.low, interval.high] == pytest.approx([3, 3, 3])
    unpaired, _ = bootstrap_token_efficiency(tokens / 3, maj, tokens, np.sort(rng.random((1, 50, 4))))
    assert unpaired.high - unpaired.low > 0.1
    runs, _ = bootstrap_token_efficiency(np.concatenate([tokens / 2, tokens / 4]), np.repeat(maj, 2, 0), tokens, maj)
    assert runs.low < 2.1 and runs.high > 3.9  # a run needs a half, the other a quarter of the tokens


def test_an_average_draws_the_runs_of_all_benchmarks_together() -> None:
    runs = np.repeat([[0.0], [1.0]], 50, axis=1)  # one run is good at the one, the other at the other
    assert bootstrap_average([runs, 1 - runs]) == pytest.approx((0.5, 0.5, 0.5))


def test_curves_of_the_same_runs_are_drawn_together() -> None:
    tokens = np.broadcast_to([100.0, 200.0, 400.0], (4, 30, 3))
    maj = np.array([0.1, 0.2, 0.5, 0.7])[:, None, None] + np.zeros((4, 30, 3))
    together, apart = (
        bootstrap_curves(accuracy_gain, tokens, maj + 0.05, tokens, maj, same_runs=same) for same in (True, False)
    )
    assert together == pytest.approx((0.05, 0.05, 0.05)) and apart.low < 0


def test_curves_are_interpolated_in_log_tokens() -> None:
    assert accuracy_gain([100.0, 400.0], [0.0, 1.0], [100.0, 200.0, 400.0], [0.0] * 3) == pytest.approx(0.5)


def test_a_dip_is_no_cheaper_way_to_an_accuracy_that_was_reached_before() -> None:
    ratio, _ = token_efficiency([100, 200, 300, 400], [0.2, 0.1, 0.15, 0.6], [100, 400], [0.2, 0.6])
    assert ratio == pytest.approx(1)
