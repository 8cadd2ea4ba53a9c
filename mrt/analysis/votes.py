"""The paper's metrics on arrays and tables: pass@k, maj@k, and bootstrap intervals over problems.

maj@k is exact: the authors draw 100,000 random subsets, we count all of them. Nothing here reads a file.
"""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain, combinations
from math import comb
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import numpy.typing as npt
import polars as pl

ENUMERATION_LIMIT = 200_000
"""Most subsets that weighted maj@k enumerates."""

TIE = 1e-12
"""Weighted votes within this relative distance of the top are tied (sums of equal weights may differ by rounding)."""


@overload
def pass_at_k(n: int, c: int, k: int) -> float: ...
@overload
def pass_at_k(n: npt.ArrayLike, c: npt.ArrayLike, k: npt.ArrayLike) -> Any: ...
def pass_at_k(n: npt.ArrayLike, c: npt.ArrayLike, k: npt.ArrayLike) -> Any:
    """Unbiased pass@k, 1 - C(n-c, k) / C(n, k) (the "direct" baseline of Section 5, Figure 3).

    Args:
        n: answers drawn; integer, or integer array (the three arguments broadcast together).
        c: correct ones among them.
        k: answers that one may submit.

    Returns:
        Probability that at least one of k answers, drawn without replacement from the n, is correct: a float for
        scalars, else an array of the broadcast shape.

    Raises:
        ValueError: unless all are integers with 0 <= c <= n and 1 <= k <= n.
    """
    arrays = [np.asarray(value) for value in (n, c, k)]
    if any(array.dtype.kind not in "iu" for array in arrays):
        raise ValueError("pass@k: n, c and k must be integers")
    total, correct, drawn = np.broadcast_arrays(*(array.astype(np.int64) for array in arrays))
    if np.any(correct < 0) or np.any(correct > total):
        raise ValueError("pass@k: c must lie between 0 and n")
    if np.any(drawn < 1) or np.any(drawn > total):
        raise ValueError("pass@k: k must lie between 1 and n")
    miss = np.ones(total.shape)
    for i in range(int(drawn.max(initial=0))):
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.maximum(total - correct - i, 0) / (total - i)
        miss = np.where(i < drawn, miss * factor, miss)
    return 1.0 - miss if total.ndim else float(1.0 - miss)


def maj_at_k(clusters: npt.ArrayLike, correct: npt.ArrayLike, k: int, weights: npt.ArrayLike | None = None) -> float:
    """Exact maj@k: the expected credit of the plurality vote over the subsets of k of the n answers (Section 5).

    A subset's credit is that of its winning cluster: 1 if correct, 0 if not. If several clusters tie for the top, the
    credit is half the best credit among them: 1/2 if any of them is correct, whatever their number (the authors'
    rule). An unparseable answer occupies its draw but never wins; a subset without a parseable answer earns 0. The
    answers of a cluster are equal, hence equally right; should grades disagree within one, its credit is the share of
    its answers graded correct. So maj@1 is the mean accuracy in any case.

    Args:
        clusters: integers [n]; equal answers share one, -1 is unparseable.
        correct: booleans (or 0/1) [n].
        k: answers drawn without replacement.
        weights: positive votes [n], such as the authors' 2^(mean token log-probability in nats); None is one each.

    Returns:
        A number in [0, 1]. Unweighted it is counted by generating functions, in rational arithmetic rounded once;
        weighted, all C(n, k) subsets are enumerated, votes within a relative 1e-12 of the top being tied.

    Raises:
        ValueError: if lengths differ, k is not in 1..n, a cluster is below -1, an unparseable answer is marked
            correct, a weight is not positive and finite, or weights are given and C(n, k) exceeds 200,000.
    """
    labels, right = _answers(np.asarray(clusters), np.asarray(correct))
    if not 1 <= k <= labels.size:
        raise ValueError(f"maj@k: k = {k} is not in 1..{labels.size}, the number of answers")
    parsed = labels >= 0
    _, member = np.unique(labels[parsed], return_inverse=True)
    size = np.bincount(member)
    good = np.bincount(member, weights=right[parsed]).astype(np.int64)
    if weights is None:
        counts = tuple(sorted(zip(size.tolist(), good.tolist(), strict=True)))
        return _credits(counts, int(labels.size - parsed.sum()), k)[k - 1]

    votes = np.asarray(weights, dtype=np.float64)
    if votes.shape != labels.shape:
        raise ValueError(f"maj@k: {votes.size} weights for {labels.size} answers")
    if not np.all(np.isfinite(votes) & (votes > 0)):
        raise ValueError("maj@k: weights must be positive and finite")
    subsets = comb(labels.size, k)
    if subsets > ENUMERATION_LIMIT:
        raise ValueError(f"maj@k: C({labels.size}, {k}) = {subsets} subsets; weighted votes allow {ENUMERATION_LIMIT}")
    if not size.size:
        return 0.0
    ballots = np.zeros((labels.size, size.size))
    ballots[np.flatnonzero(parsed), member] = votes[parsed]
    drawn = np.fromiter(chain.from_iterable(combinations(range(labels.size), k)), np.int64, subsets * k)
    tally = np.zeros((subsets, size.size))
    for column in drawn.reshape(subsets, k).T:
        tally += ballots[column]
    top = tally.max(axis=1, keepdims=True)
    winners = (tally >= top * (1 - TIE)) & (top > 0)
    credit = np.where(winners, good / size, 0.0).max(axis=1)
    return float(np.mean(credit * np.where(winners.sum(axis=1) > 1, 0.5, 1.0)))


def maj_at_k_table(table: pl.DataFrame, by: Sequence[str], ks: Sequence[int]) -> pl.DataFrame:
    """maj@k of every group of answers of a table of grades, for every k; see `maj_at_k` (unweighted).

    Args:
        table: one row an answer, with the columns `by`, `cluster` (integer, -1 unparseable) and `correct`.
        by: columns that name a group, such as problem_id, sample, prefix.
        ks: numbers of answers drawn.

    Returns:
        Columns `by`, k (i64), maj (f64), sorted by `by` and k. Groups whose clusters have the same sizes and grades
        are counted once, so tens of thousands of groups take well under a second.

    Raises:
        ValueError: if a column is missing or null, `by` or `ks` is empty, an answer is impossible (see `maj_at_k`),
            or a k is below 1 or exceeds the size of a group.
    """
    by, wanted = list(by), sorted(set(ks))
    if not by or not wanted:
        raise ValueError("maj@k: needs at least one column to group by and one k")
    _require(table, [*by, "cluster", "correct"])
    if wanted[0] < 1:
        raise ValueError(f"maj@k: k = {wanted[0]} is below 1")
    _answers(table["cluster"].to_numpy(), table["correct"].to_numpy())
    groups = (
        table.group_by([*by, "cluster"])
        .agg(_size=pl.len().cast(pl.Int64), _good=pl.col("correct").cast(pl.Int64).sum())
        .sort([*by, "_size", "_good"])
        .group_by(by, maintain_order=True)
        .agg(
            pl.col("_size", "_good").filter(pl.col("cluster") >= 0),
            pl.col("_size").filter(pl.col("cluster") < 0).sum().alias("_unparseable"),
            pl.col("_size").sum().alias("_answers"),
        )
    )
    short = groups.filter(pl.col("_answers") < wanted[-1])
    if short.height:
        name = ", ".join(f"{column} {short[column][0]}" for column in by)
        raise ValueError(f"maj@k: {short.height} groups have fewer than {wanted[-1]} answers (first: {name})")
    majorities = [
        credits[k - 1]
        for sizes, goods, unparseable in groups.select("_size", "_good", "_unparseable").iter_rows()
        for credits in [_credits(tuple(zip(sizes, goods, strict=True)), unparseable, wanted[-1])]
        for k in wanted
    ]
    each = pl.Series([wanted], dtype=pl.List(pl.Int64))
    return (
        groups.select(*by, pl.lit(each).first().alias("k"))
        .explode("k")
        .with_columns(pl.Series("maj", majorities, dtype=pl.Float64))
    )


def _answers(
    clusters: npt.NDArray[Any], correct: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool]]:
    """Clusters and grades [n] as integers and booleans; ValueError if they cannot be those of n answers."""
    if clusters.ndim != 1 or clusters.shape != correct.shape:
        raise ValueError(f"maj@k: clusters {clusters.shape} and grades {correct.shape} must be lists of one length")
    labels = clusters.astype(np.int64)
    right = correct.astype(np.bool)
    if np.any(labels != clusters) or np.any(labels < -1):
        raise ValueError("maj@k: a cluster is an integer from 0, or -1 for unparseable")
    if np.any(right != correct):
        raise ValueError("maj@k: a grade is right or wrong, 1 or 0")
    if np.any(right & (labels < 0)):
        raise ValueError("maj@k: an unparseable answer (cluster -1) is marked correct")
    return labels, right


@lru_cache(maxsize=65536)
def _credits(clusters: tuple[tuple[int, int], ...], unparseable: int, most: int) -> tuple[float, ...]:
    """Expected credit of the vote for k = 1..most, given sorted (size, correct answers) pairs and the unparseable.

    A cluster of s answers puts i of them into a subset in C(s, i) ways, so that the number of subsets of size k in
    which no cluster exceeds t answers is the coefficient of x^k in (1+x)^unparseable * prod_c sum_{i<=t} C(s_c, i) x^i.
    For each t, two counts are taken: of the subsets whose best credit among the clusters with t answers, the most of
    all, is q; and of those that a single cluster of credit q wins with t answers. Half of their sum is the credit.

    Polynomials are integers: their values at an x = 2^bits above any coefficient, reduced modulo x^(most+1). Products
    are so much faster, and a divisor, being odd, has an inverse.
    """
    n = sum(s for s, _ in clusters) + unparseable
    bits = comb(n, min(most, n // 2)).bit_length() + 2
    modulus = 1 << bits * (most + 1)

    def ways(s: int, t: int) -> int:
        """The sum over i <= t of C(s, i) x^i."""
        return sum(comb(s, i) << bits * i for i in range(min(s, t, most) + 1))

    twice: dict[Fraction, int] = {}  # credit -> polynomial of twice the number of subsets that earn it
    for t in range(1, min(max((s for s, _ in clusters), default=0), most) + 1):
        below = ways(unparseable, unparseable)
        by_credit: dict[Fraction, Counter[int]] = {}
        for s, good in clusters:
            below = below * ways(s, t - 1) % modulus
            if s >= t:
                by_credit.setdefault(Fraction(good, s), Counter())[s] += 1
        reached = below  # no cluster above t, and only those of a credit seen so far at t
        for credit in sorted(by_credit):
            before, alone = reached, 0
            for s, times in by_credit[credit].items():
                without = pow(ways(s, t - 1), -1, modulus)
                reached = reached * pow(without * ways(s, t), times, modulus) % modulus
                alone += times * comb(s, t) * (below * without % modulus) << bits * t
            twice[credit] = twice.get(credit, 0) + reached - before + alone % modulus
    credits = []
    for k in range(1, most + 1):
        subsets = {credit: total >> bits * k & (1 << bits) - 1 for credit, total in twice.items()}
        earned = sum((credit * number for credit, number in subsets.items()), Fraction(0))
        credits.append(float(earned / max(1, 2 * comb(n, k))))
    return tuple(credits)


class Statistic(Protocol):
    """What a bootstrap estimates: reduces one axis of an array, as `np.mean` and `np.median` do."""

    def __call__(self, values: Any, /, *, axis: int) -> Any: ...


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval; each a float, or an array [columns]."""

    estimate: Any
    low: Any
    high: Any


def bootstrap(
    values: npt.ArrayLike, statistic: Statistic = np.mean, repeats: int = 2000, seed: int = 0, level: float = 0.95
) -> Interval:
    """Percentile bootstrap over problems: every number reported carries one (the paper gives none).

    Args:
        values: one value a problem [problems], or several [problems, columns]. A resample draws whole rows, so columns
            stay paired.
        statistic: reduces the axis of the problems, given as `axis=`; must work on stacks of resamples.
        repeats: resamples.
        seed: the interval depends on it and the values alone; equal numbers of problems share their resamples.
        level: coverage of the interval.

    Returns:
        (estimate, low, high): the statistic of the values and its quantiles (1 -+ level)/2 over the resamples.

    Raises:
        ValueError: if there are no problems, a value is not finite, or an option is out of range.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim not in (1, 2) or not data.shape[0]:
        raise ValueError(f"bootstrap: values of shape {data.shape}; needs [problems] or [problems, columns]")
    return _bootstrap(data, statistic, repeats, seed, level)


def bootstrap_difference(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    statistic: Statistic = np.mean,
    repeats: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Interval of statistic(a) - statistic(b), two models on the same problems: each resample draws both.

    Args:
        a, b: values of the two models, rows of the same problems in the same order, [problems] or [problems, columns].

    The other arguments, the result and the errors are those of `bootstrap`; also ValueError if the shapes differ.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim not in (1, 2) or not first.shape[0]:
        raise ValueError(f"bootstrap: shapes {first.shape} and {second.shape} are not those of the same problems")

    def difference(pairs: Any, /, *, axis: int) -> Any:
        return statistic(pairs[..., 0], axis=axis) - statistic(pairs[..., 1], axis=axis)

    return _bootstrap(np.stack([first, second], axis=-1), difference, repeats, seed, level)


def bootstrap_average(
    groups: Sequence[npt.ArrayLike], repeats: int = 2000, seed: int = 0, level: float = 0.95
) -> Interval:
    """Interval of the average of several means, such as one a benchmark (Table 1's last column).

    Args:
        groups: one value a problem, for each benchmark [problems of it]. A resample draws each benchmark's problems
            apart, and each benchmark counts alike, whatever its size.

    The other arguments, the result and the errors are those of `bootstrap`; also ValueError if there are no groups.
    """
    data = [np.asarray(group, dtype=np.float64) for group in groups]
    if not data or any(values.ndim != 1 or not values.size for values in data):
        raise ValueError("bootstrap: needs at least one group, and in each a list of values")
    rng = np.random.default_rng(seed)
    draws = [values[rng.integers(0, values.size, (repeats, values.size))].mean(axis=1) for values in data]
    low, high = np.quantile(np.mean(draws, axis=0), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(np.mean([values.mean() for values in data])), float(low), float(high))


def bootstrap_runs(
    values: npt.ArrayLike,
    other: npt.ArrayLike | None = None,
    repeats: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Interval of a mean over training runs and problems, or of the difference of two methods' means.

    Both are samples: a resample draws runs and problems, each run being measured on the same drawn problems. Two
    methods share the problems drawn, not the runs. Of one run, the interval is for that run.

    Args:
        values, other: one value a run and problem [runs, problems]; of the same problems in the same order.

    The other arguments, the result and the errors are those of `bootstrap`; also ValueError if the problems differ.
    """
    grids = [np.asarray(grid, dtype=np.float64) for grid in (values, other) if grid is not None]
    if any(grid.ndim != 2 or not grid.size for grid in grids) or len({grid.shape[-1] for grid in grids}) > 1:
        raise ValueError("bootstrap: needs values [runs, problems] of the same problems")
    rng = np.random.default_rng(seed)
    problems = _counts(rng, repeats, grids[0].shape[1])
    drawn = [np.einsum("br,rp,bp->b", _counts(rng, repeats, g.shape[0]), g, problems, optimize=True) for g in grids]
    signs = (1.0, -1.0)
    estimate = sum(sign * grid.mean() for sign, grid in zip(signs, grids, strict=False))
    found = np.sum([sign * draws for sign, draws in zip(signs, drawn, strict=False)], axis=0)
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(estimate), float(low), float(high))


def _counts(rng: np.random.Generator, repeats: int, n: int) -> npt.NDArray[np.float64]:
    """How often each of n was drawn in a resample, as shares [repeats, n]."""
    return np.stack([np.bincount(pick, minlength=n) for pick in rng.integers(0, n, (repeats, n))]) / n


def token_efficiency(
    tokens: npt.ArrayLike, accuracy: npt.ArrayLike, other_tokens: npt.ArrayLike, other_accuracy: npt.ArrayLike
) -> tuple[float, str]:
    """How many times fewer tokens a model needs than another for the same accuracy (Section 8.3, Figure 7).

    Each curve gives the least tokens for an accuracy: along its running maximum, log tokens being interpolated
    linearly. The ratio is the geometric mean, over the accuracies that both curves reach, of the other's tokens divided
    by the model's. Where one curve begins above the other's best there are none; then the ratio is a bound: the best
    of the one below against the beginning of the one above.

    Args:
        tokens, accuracy: the model's curve, such as k times its tokens a completion and maj@k [points].
        other_tokens, other_accuracy: the other's [points].

    Returns:
        The ratio, above 1 if the model is the more efficient one, and "equal accuracy", "at least" or "at most".

    Raises:
        ValueError: unless the tokens of each curve are positive and increase.
    """
    curves = []
    for spent, found in ((tokens, accuracy), (other_tokens, other_accuracy)):
        x, y = np.asarray(spent, dtype=np.float64), np.asarray(found, dtype=np.float64)
        if x.ndim != 1 or x.shape != y.shape or not x.size or not (x > 0).all() or (np.diff(x) <= 0).any():
            raise ValueError("token efficiency: the tokens of a curve must be positive and increase")
        rises = np.append(True, y[1:] > np.maximum.accumulate(y)[:-1])
        curves.append((np.log(x[rises]), y[rises]))
    (x, y), (other_x, other_y) = curves
    if y[0] > other_y[-1]:
        return float(np.exp(other_x[-1] - x[0])), "at least"
    if other_y[0] > y[-1]:
        return float(np.exp(other_x[0] - x[-1])), "at most"
    shared = np.linspace(max(y[0], other_y[0]), min(y[-1], other_y[-1]), 101)
    return float(np.exp(np.mean(np.interp(shared, other_y, other_x) - np.interp(shared, y, x)))), "equal accuracy"


def bootstrap_token_efficiency(
    tokens: npt.ArrayLike,
    accuracy: npt.ArrayLike,
    other_tokens: npt.ArrayLike,
    other_accuracy: npt.ArrayLike,
    repeats: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[Interval, str]:
    """`token_efficiency` of two models' mean curves, with an interval over problems, both drawn together.

    Args:
        tokens, accuracy, other_tokens, other_accuracy: curves by problem, the same ones in the same order
            [problems, points].

    Returns:
        The interval of the ratio, and what kind of ratio the estimate is. A resample in which the curves do not meet
        counts with its bound.
    """
    data = [np.asarray(values, dtype=np.float64) for values in (tokens, accuracy, other_tokens, other_accuracy)]
    problems = data[0].shape[0]
    if any(values.ndim != 2 or values.shape[0] != problems for values in data) or not problems:
        raise ValueError("token efficiency: needs curves [problems, points] of the same problems")
    ratio, kind = token_efficiency(*(values.mean(axis=0) for values in data))
    counts = _counts(np.random.default_rng(seed), repeats, problems)
    means = [counts @ values for values in data]
    found = [token_efficiency(*curves)[0] for curves in zip(*means, strict=True)]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(ratio, float(low), float(high)), kind


def bootstrap_table(
    table: pl.DataFrame,
    by: Sequence[str],
    value: str,
    problem: str = "problem_id",
    statistic: Statistic = np.mean,
    repeats: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> pl.DataFrame:
    """`bootstrap` of every group of a table, over its problems.

    Args:
        table: rows with the columns `by`, `value` and `problem`. Several rows of a problem in a group, such as its
            traces, are averaged first.
        by: columns that name a group; none is one group, the whole table.
        value: column to estimate.
        problem: column of the problem's key.

    The other arguments are those of `bootstrap`. Groups over the same problems share their resamples.

    Returns:
        Columns `by`, problems (i64), estimate, low, high (f64), sorted by `by`.

    Raises:
        ValueError: as `bootstrap`, and if a column is missing or null.
    """
    by = list(by)
    _require(table, [*by, problem, value])
    means = table.group_by([*by, problem]).agg(pl.col(value).cast(pl.Float64).sort().mean()).sort([*by, problem])
    groups = means.group_by(by, maintain_order=True).agg(pl.col(value)) if by else means.select(pl.col(value).implode())
    if not by and means.is_empty():
        raise ValueError("bootstrap: the table is empty")
    rows = [(len(values), *bootstrap(values, statistic, repeats, seed, level)) for values in groups[value].to_list()]
    found = pl.DataFrame(
        rows,
        schema={"problems": pl.Int64, "estimate": pl.Float64, "low": pl.Float64, "high": pl.Float64},
        orient="row",
    )
    return groups.select(by).hstack(found) if by else found


@lru_cache(maxsize=16)
def _picks(seed: int, repeats: int, problems: int) -> npt.NDArray[np.int64]:
    """The resamples of so many problems [repeats, problems]; drawing them takes longer than using them once."""
    picks = np.random.default_rng(seed).integers(0, problems, (repeats, problems))
    picks.setflags(write=False)
    return picks


def _bootstrap(data: npt.NDArray[np.float64], statistic: Statistic, repeats: int, seed: int, level: float) -> Interval:
    """`bootstrap` of rows [problems, ...], in blocks of resamples that fit the memory."""
    if not np.all(np.isfinite(data)):
        raise ValueError("bootstrap: a value is not finite")
    if repeats < 1 or not 0 < level < 1:
        raise ValueError(f"bootstrap: needs repeats >= 1 and 0 < level < 1, got {repeats} and {level}")
    problems = data.shape[0]
    picks = _picks(seed, repeats, problems)
    block = max(1, 2_000_000 // data.size)
    found = [np.asarray(statistic(data[picks[i : i + block]], axis=1)) for i in range(0, repeats, block)]
    low, high = np.quantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2], axis=0)
    estimate = np.asarray(statistic(data, axis=0))
    return Interval(*(value if np.ndim(value) else float(value) for value in (estimate, low, high)))


def _require(table: pl.DataFrame, columns: Sequence[str]) -> None:
    """ValueError unless the table has the columns, without nulls."""
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}; found {', '.join(table.columns)}")
    empty = [name for name in columns if table[name].null_count()]
    if empty:
        raise ValueError(f"column {', '.join(empty)} has nulls")
