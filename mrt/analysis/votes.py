"""The paper's metrics pass@k and maj@k, on arrays and tables.

maj@k is exact: the authors draw 100,000 random subsets, we count all of them. Nothing here reads a file.
"""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain, combinations
from math import comb
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import polars as pl

from mrt.analysis.intervals import require_columns

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
        n: sampled answers; integer, or integer array (the three arguments broadcast together).
        c: correct ones among them.
        k: answers that one may submit.

    Returns:
        Probability that at least one of k answers, chosen without replacement from the n, is correct: a float for
        scalars, else an array of the broadcast shape.

    Raises:
        ValueError: unless all are integers with 0 <= c <= n and 1 <= k <= n.
    """
    arrays = [np.asarray(value) for value in (n, c, k)]
    if any(array.dtype.kind not in "iu" for array in arrays):
        raise ValueError("pass@k: n, c and k must be integers")
    total, correct, ks = np.broadcast_arrays(*(array.astype(np.int64) for array in arrays))
    if np.any(correct < 0) or np.any(correct > total):
        raise ValueError("pass@k: c must lie between 0 and n")
    if np.any(ks < 1) or np.any(ks > total):
        raise ValueError("pass@k: k must lie between 1 and n")
    miss = np.ones(total.shape)
    for i in range(int(ks.max(initial=0))):
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.maximum(total - correct - i, 0) / (total - i)
        miss = np.where(i < ks, miss * factor, miss)
    return 1.0 - miss if total.ndim else float(1.0 - miss)


def maj_at_k(clusters: npt.ArrayLike, correct: npt.ArrayLike, k: int, weights: npt.ArrayLike | None = None) -> float:
    """Exact maj@k: the expected credit of the plurality vote over the subsets of k of the n answers (Section 5).

    A subset's credit is that of its winning cluster: 1 if correct, 0 if not. If several clusters tie for the top, the
    credit is half the best credit among them: 1/2 if any of them is correct, however many tie (the authors' rule). An
    unparseable answer occupies its draw but never wins; a subset without a parseable answer earns 0. The answers of a
    cluster are equal, hence equally right. If grades within a cluster disagree nevertheless, its credit is the share
    graded correct; so maj@1 is always the mean accuracy.

    Args:
        clusters: integers [n]; equal answers share one, -1 is unparseable.
        correct: booleans (or 0/1) [n].
        k: size of the subsets, chosen without replacement.
        weights: positive votes [n], such as the authors' 2^(mean token log-probability in nats); None gives one each.

    Returns:
        A number in [0, 1]. Without weights, generating functions count the subsets, in rational arithmetic rounded
        once. With weights, all C(n, k) subsets are enumerated, and votes within a relative 1e-12 of the top are tied.

    Raises:
        ValueError: if lengths differ, k is not in 1..n, a cluster is below -1, or an unparseable answer is marked
            correct. With weights, if one is not positive and finite, or C(n, k) exceeds 200,000.
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
    members = np.fromiter(chain.from_iterable(combinations(range(labels.size), k)), np.int64, subsets * k)
    tally = np.zeros((subsets, size.size))
    for column in members.reshape(subsets, k).T:
        tally += ballots[column]
    top = tally.max(axis=1, keepdims=True)
    winners = (tally >= top * (1 - TIE)) & (top > 0)
    credit = np.where(winners, good / size, 0.0).max(axis=1)
    return float(np.mean(credit * np.where(winners.sum(axis=1) > 1, 0.5, 1.0)))


def maj_at_k_table(table: pl.DataFrame, by: Sequence[str], ks: Sequence[int]) -> pl.DataFrame:
    """maj@k of every group of answers of a table of grades, for every k; see `maj_at_k`.

    Args:
        table: one row an answer, with the columns `by`, `cluster` (integer, -1 unparseable) and `correct`. A column
            `weight` gives the weights of votes; without one they are equal.
        by: columns that name a group, such as problem_id, sample, prefix.
        ks: numbers of answers that vote.

    Returns:
        Columns `by`, k (i64), maj (f64), sorted by `by` and k. Groups whose clusters have the same sizes and grades
        are counted once, so tens of thousands of groups take well under a second.

    Raises:
        ValueError: if a column is missing or null, `by` or `ks` is empty, or an answer is impossible (see `maj_at_k`).
            Also if a k is below 1 or exceeds the size of a group.
    """
    by, wanted = list(by), sorted(set(ks))
    if not by or not wanted:
        raise ValueError("maj@k: needs at least one column to group by and one k")
    require_columns(table, [*by, "cluster", "correct"])
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
    if "weight" in table.columns:
        of_group = table.group_by(by).agg("cluster", "correct", "weight").sort(by)
        majorities = [
            maj_at_k(clusters, correct, k, weights)
            for clusters, correct, weights in of_group.select("cluster", "correct", "weight").iter_rows()
            for k in wanted
        ]
    else:
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

    A cluster of s answers puts i of them into a subset in C(s, i) ways. Consider the subsets of size k in which no
    cluster exceeds t answers. Their number is the coefficient of x^k in
    `(1+x)^unparseable * prod_c sum_{i<=t} C(s_c, i) x^i`. For each winning count t and credit q, two counts are added.
    One is of the subsets in which q is the best credit among the clusters with t answers. The other is of the subsets
    that a single cluster of credit q wins with t answers. Each subset earns q times half its part in this sum: q for a
    sole winner, q/2 for a tie.

    A polynomial is stored as one integer, its value at x = 2^bits, which exceeds any coefficient, modulo x^(most+1).
    This makes products fast; and divisors are odd, so they have an inverse.
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
        reached = below  # no cluster above t; at t only clusters of the credits seen so far
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
