"""Regret of a trace: by episodes (Definition 4.1), normalized by a token budget (Section 8.5.1, Figures 9, 12), and
against more votes after fewer episodes (Appendix E, Figure 26).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

TRACE = ["problem_id", "sample"]


def cumulative_regret(accuracy: npt.ArrayLike, comparator: npt.ArrayLike = 1.0) -> float:
    """Cumulative regret of one trace (Definition 4.1): the sum over j of J(pi*_j) - J_j.

    Args:
        accuracy: J at the prefixes [k], each in [0, 1]; the definition's sum runs over prefixes 0 to k - 1.
        comparator: accuracy of the best policy with j episodes, a number or [k]; 1 is the oracle of Section 8.5.1.

    Returns:
        The regret in episodes, at most k; negative where the trace beats its comparator. Definition 4.1's expectation
        is the mean of this over traces.

    Raises:
        ValueError: if there is no prefix, a value is outside [0, 1], or the lengths differ.
    """
    J, best = _accuracies(accuracy), np.asarray(comparator, dtype=np.float64)
    if best.shape not in ((), J.shape):
        raise ValueError(f"regret: {best.size} comparator values for {J.size} prefixes")
    _accuracies(np.atleast_1d(best))
    return float(np.sum(best - J))


def episode_regret(maj: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Normalized regret of one trace by its episodes (Appendix E, Figure 26).

    At prefix i, more compute buys either one more episode, along the line from maj@1 at i to maj@1 at i + 1, or more
    votes at i. At compute 1, 2, 4, 6 the votes give maj@1, maj@2, maj@4 and the mean of maj@4 and maj@8. The comparator
    is the better of the two at each compute. The regret of the first b episodes is the area between comparator and
    thought, as a share of the comparator's area.

    Args:
        maj: maj@1, maj@2, maj@4, maj@8 at the prefixes 0 to k [k + 1, 4], each in [0, 1].

    Returns:
        The regret after b = 1 to k episodes [k], each in [0, 1]. It is 1 where the comparator's area is 0 (a hopeless
        trace); the authors drop such traces, which flatters a model that has many.

    Raises:
        ValueError: if the shape is wrong or a value is outside [0, 1].
    """
    majorities = np.asarray(maj, dtype=np.float64)
    if majorities.ndim != 2 or majorities.shape[1] != 4 or majorities.shape[0] < 2:
        raise ValueError(f"regret: maj of shape {majorities.shape}; needs 4 columns and at least two prefixes")
    if not np.all((majorities >= 0) & (majorities <= 1)):
        raise ValueError("regret: a maj@p is outside [0, 1]")
    at = np.array([1.0, 2.0, 4.0, 6.0])
    here, after = majorities[:-1], majorities[1:]
    votes = np.column_stack([here[:, :3], here[:, 2:].mean(axis=1)])
    thought = here[:, :1] + (after[:, :1] - here[:, :1]) * (at - 1) / 5
    gap = votes - thought
    left, right, width = np.maximum(gap[:, :-1], 0), np.maximum(gap[:, 1:], 0), np.diff(at)
    size = np.abs(gap[:, :-1]) + np.abs(gap[:, 1:])
    crosses = gap[:, :-1] * gap[:, 1:] < 0  # then only a triangle of the piece lies above the line
    share = np.where(crosses, np.divide(left + right, size, out=np.ones_like(size), where=size > 0), 1.0)
    lost = ((left + right) / 2 * share * width).sum(axis=1).cumsum()
    best = lost + (5 * (here[:, 0] + after[:, 0]) / 2).cumsum()
    return np.divide(lost, best, out=np.ones_like(lost), where=best > 0)


def episode_regret_table(prefixes: pl.DataFrame) -> pl.DataFrame:
    """`episode_regret` of every trace of the measure `prefixes` of `mrt.analysis.evaluate`.

    Args:
        prefixes: columns problem_id, sample, prefix, p, maj, with p = 1, 2, 4, 8 at every prefix.

    Returns:
        Columns problem_id, sample, prefix, regret (f64), hopeless, total, sorted by the first three. `prefix` counts
        the episodes so far, and each trace's first prefix is left out. `hopeless`: the comparator's area up to there is
        0. `total`: the trace's episodes.

    Raises:
        ValueError: if a prefix lacks one of the four p, or a trace has one prefix only.
    """
    rows = prefixes.filter(pl.col("p").is_in([1, 2, 4, 8])).sort([*TRACE, "prefix", "p"])
    if rows.group_by([*TRACE, "prefix"]).len().filter(pl.col("len") != 4).height:
        raise ValueError("regret by episodes: needs maj@p for p = 1, 2, 4 and 8 at every prefix")
    scored = rows.gather_every(4).select(*TRACE, "prefix", pl.col("prefix").last().over(TRACE).alias("total"))
    of_trace = scored.group_by(TRACE, maintain_order=True).len()["len"].to_numpy()
    per_trace = [(np.empty(0), np.empty(0, dtype=bool))]
    for maj in np.split(rows["maj"].to_numpy().reshape(-1, 4), of_trace.cumsum())[:-1]:  # the last one is empty
        ever_right = np.logical_or.accumulate(maj.max(axis=1) > 0)
        per_trace.append((episode_regret(maj), ~ever_right[:-1] & (maj[1:, 0] == 0)))
    regret, hopeless = map(np.concatenate, zip(*per_trace, strict=True))
    after_one = scored.filter(pl.col("prefix") != pl.col("prefix").first().over(TRACE))
    return after_one.select(*TRACE, "prefix", pl.Series("regret", regret), pl.Series("hopeless", hopeless), "total")


def to_the_longest(regrets: pl.DataFrame) -> pl.DataFrame:
    """Regrets by episodes of models and runs, each problem's last one carried on to the most episodes of its dataset.

    So a run of short thoughts counts at all points of a curve, and at them with all its episodes.

    Args:
        regrets: measure `episode_regret` with columns model, run and dataset. No trace has `reached` a row added here.
    """
    if regrets.is_empty():
        return regrets
    of_problem = ["model", "run", "dataset", "problem_id"]
    points = regrets.select("dataset", "episodes").unique()
    places = regrets.select(of_problem).unique(maintain_order=True).join(points, on="dataset").sort("episodes")
    rows = regrets.with_columns(last="episodes").sort("episodes")
    rows = places.join_asof(rows, on="episodes", by=of_problem, check_sortedness=False).drop_nulls("last")
    reached = pl.when(pl.col("last") == pl.col("episodes")).then("reached").otherwise(0.0).alias("reached")
    return rows.with_columns(reached).drop("last").sort(*of_problem, "episodes")


def normalized_regret(tokens: npt.ArrayLike, accuracy: npt.ArrayLike, budget: float) -> float:
    """Normalized regret of one trace at a token budget C_0 (Section 8.5.1, Figures 9, 12): 1 - area / C_0.

    The area lies under the piecewise-linear curve through (0, 0) and the trace's points (tokens, J), from 0 to C_0. The
    curve is cut by linear interpolation where C_0 falls inside a segment, and extended flat where the trace ends before
    C_0. Points at the same token count make a vertical jump. Token counts that decrease, as those of appended forced
    extensions may, are raised to the largest so far; the authors do not raise them, and get negative areas.

    Args:
        tokens: tokens spent at each prefix [prefixes], not negative.
        accuracy: J at each prefix [prefixes], each in [0, 1].
        budget: C_0 in tokens, positive.

    Returns:
        A number in [0, 1]; 0 would be an oracle that is right from the first token on.

    Raises:
        ValueError: if the lengths differ or are 0, tokens are negative or not finite, J is outside [0, 1], or the
            budget is not positive and finite.
    """
    spent, J = _token_counts(tokens), _accuracies(accuracy)
    if spent.shape != J.shape:
        raise ValueError(f"regret: {spent.size} token counts for {J.size} accuracies")
    return float(_regrets(np.maximum.accumulate(spent), J, np.array([0]), [budget])[0, 0])


def normalized_regret_table(progress: pl.DataFrame, budgets: Sequence[float]) -> pl.DataFrame:
    """Normalized regret of every trace of a progress artifact at every budget; see `normalized_regret`.

    Args:
        progress: columns problem_id, sample, prefix, tokens (spent by then), J (one row a prefix, in any order).
        budgets: values of C_0, in tokens.

    Returns:
        Columns problem_id, sample, budget, regret (f64), sorted by the first three.

    Raises:
        ValueError: if the table is empty, lacks a column, has nulls or repeats a key, there are no budgets, or a value
            is out of range.
    """
    columns = [*TRACE, "prefix", "tokens", "J"]
    missing = [name for name in columns if name not in progress.columns]
    if missing:
        raise ValueError(f"regret: no column {', '.join(missing)}; found {', '.join(progress.columns)}")
    if any(progress[name].null_count() for name in columns):
        raise ValueError("regret: the progress table has nulls")
    rows = progress.select(columns).sort([*TRACE, "prefix"])
    if rows.select([*TRACE, "prefix"]).is_duplicated().any():
        raise ValueError("regret: the progress table has two rows of one prefix")
    traces = rows.group_by(TRACE, maintain_order=True).len("_prefixes")
    ends = traces["_prefixes"].cast(pl.Int64).to_numpy().cumsum()
    _token_counts(rows["tokens"].to_numpy())
    spent = rows.select(pl.col("tokens").cast(pl.Float64).cum_max().over(TRACE)).to_series().to_numpy()
    wanted = sorted(set(budgets))
    regrets = _regrets(spent, _accuracies(rows["J"].to_numpy()), np.concatenate([[0], ends[:-1]]), wanted)
    each = pl.Series([wanted], dtype=pl.List(pl.Series(wanted).dtype))
    return (
        traces.select(*TRACE, pl.lit(each).first().alias("budget"))
        .explode("budget")
        .with_columns(pl.Series("regret", regrets.ravel()))
    )


def _accuracies(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Accuracies as floats [prefixes]; ValueError if there are none or one is outside [0, 1]."""
    accuracies = np.asarray(values, dtype=np.float64)
    if accuracies.ndim != 1 or not accuracies.size:
        raise ValueError(f"regret: accuracies of shape {accuracies.shape}; needs at least one prefix")
    if not np.all((accuracies >= 0) & (accuracies <= 1)):
        raise ValueError("regret: an accuracy is outside [0, 1]")
    return accuracies


def _token_counts(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Token counts as floats [prefixes]; ValueError if one is negative or not finite."""
    counts = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(counts) & (counts >= 0)):
        raise ValueError("regret: token counts must be finite and not negative")
    return counts


def _regrets(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], starts: npt.NDArray[Any], budgets: Sequence[float]
) -> npt.NDArray[np.float64]:
    """Normalized regrets [traces, budgets] of traces laid end to end, x not decreasing within each.

    Args:
        x, y: tokens and accuracies of all points [points].
        starts: index of the first point of each trace [traces]; each trace also begins with the point (0, 0).
        budgets: values of C_0 [budgets].
    """
    if not len(budgets) or not all(0 < budget < np.inf for budget in budgets):
        raise ValueError("regret: budgets must be positive and finite, and there must be one")
    x0, y0 = np.roll(x, 1), np.roll(y, 1)
    x0[starts] = y0[starts] = 0.0
    width, rise = x - x0, y - y0
    last = np.append(starts[1:], x.size) - 1
    regrets = np.empty((starts.size, len(budgets)))
    for i, budget in enumerate(budgets):
        inside = np.clip(budget - x0, 0.0, width)
        share = np.divide(inside, width, out=np.zeros_like(width), where=width > 0)
        area = np.add.reduceat(inside * (y0 + 0.5 * rise * share), starts)
        area += np.maximum(budget - x[last], 0.0) * y[last]
        regrets[:, i] = 1.0 - area / budget
    return np.clip(regrets, 0.0, 1.0)
