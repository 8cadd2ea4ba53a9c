"""Confidence intervals over training runs and problems, from variance components.

A value varies between problems, between training runs, and, as completions are sampled, between runs on one problem.
The variance of a mean is the sum of these three components. The interval takes Student's t with Satterthwaite's degrees
of freedom (Satterthwaite 1946, "An approximate distribution of estimates of variance components"). Ratios of means are
linearized first: the contributions of all runs and problems to them are averaged. Token efficiency, which is far from
linear, has the interval of draws (`mrt.analysis.token_efficiency`). `python -m benchmarks.intervals` measures how often
such intervals exclude the truth (benchmarks/intervals.md).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import hypot, lgamma, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]
LEVEL = 0.05  # of a test; intervals are of 1 - LEVEL
ROUNDING = 1e-12  # relative to the largest value; a mean of equal values may differ from them by so much
NODES, WEIGHTS = np.polynomial.legendre.leggauss(48)
SHARES = ("accuracy", "maj", "pass", "regret", "J", "hopeless", "reached", "unfinished", "unparsed")  # between 0 and 1


class Interval(NamedTuple):
    """An estimate and the ends of its 95 % confidence interval."""

    estimate: float
    low: float
    high: float


class Estimate(NamedTuple):
    """An estimate with the components of its variance."""

    value: float
    of_problems: float  # variance of the estimate that more runs would not lower
    of_runs: float  # and that between runs, 0 where these are held fixed or there is one
    df: float  # degrees of freedom
    runs: int = 1  # of the model with most
    error: float = 0.0  # standard error
    units: int = 1  # problems; runs, if there is one problem
    draws: Floats | None = None  # of an estimate that is far from linear in what varies; it has no components

    def interval(self) -> Interval:
        """The 95 % interval; without width where nothing varies, or there is one problem and one run."""
        if self.draws is not None:
            low, high = np.quantile(self.draws, (LEVEL / 2, 1 - LEVEL / 2), method="nearest")  # may be infinite
            return Interval(self.value, min(self.value, float(low)), max(self.value, float(high)))
        half = float(quantile(self.df)) * self.error if self.error else 0.0
        return Interval(self.value, self.value - half, self.value + half)

    def p_value(self, null: float = 0.0) -> float:
        """Two-sided p-value of the hypothesis that the true value is `null`.

        Where nothing varies, it is that of the sign test: n problems came out on one side. Of one problem and one run
        it is 1.
        """
        if self.draws is not None:
            beyond = min(int((self.draws <= null).sum()), int((self.draws >= null).sum()))
            return min(1.0, 2 * (beyond + 1) / (self.draws.size + 1))
        if not self.error:
            return min(1.0, 2 * 0.5**self.units) if self.value != null and self.df else 1.0
        return float(two_sided(np.array((self.value - null) / self.error), np.array(self.df)))


def two_sided(t: Floats, df: Floats) -> Floats:
    """Probability that |T| exceeds |t| for Student's t with `df` degrees of freedom.

    It is the incomplete beta function I_x(df / 2, 1 / 2) at x = df / (df + t^2). Substituting x (1 - v^2)^(2 / df)
    makes its integrand smooth; p-values below 0.2 are exact to five digits.
    """
    a, v = np.asarray(df, dtype=np.float64)[..., None] / 2, (NODES + 1) / 2
    x = 2 * a / (2 * a + np.asarray(t, dtype=np.float64)[..., None] ** 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        integral = (v * WEIGHTS / np.sqrt(1 - x * (1 - v**2) ** (1 / a))).sum(axis=-1)
        scale = np.vectorize(lambda a: lgamma(a + 0.5) - lgamma(a) - lgamma(0.5))(a[..., 0])
        probability = np.exp(a[..., 0] * np.log(x[..., 0]) + scale) / a[..., 0] * integral
    return np.clip(probability, 0.0, 1.0)


def quantile(df: npt.ArrayLike, level: float = LEVEL) -> Floats:
    """The t that |T| exceeds with probability `level`, for each number of degrees of freedom."""
    wanted = np.asarray(df, dtype=np.float64)
    return np.array(_quantile(float(wanted), level)) if wanted.ndim == 0 else _bisect(wanted, level)


@lru_cache(maxsize=4096)
def _quantile(df: float, level: float) -> float:
    return float(_bisect(np.array([df]), level)[0])


def _bisect(df: Floats, level: float) -> Floats:
    low, high = np.zeros_like(df), np.full_like(df, 2 / level)  # of one degree of freedom it is below 2 / (pi level)
    for _ in range(48):
        middle = (low + high) / 2
        above = two_sided(middle, df) > level
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return high


class Components(NamedTuple):
    """Variances of the mean over runs and problems, each with any leading axes."""

    of_problems: Floats
    of_runs: Floats
    error: Floats  # the standard error
    df: Floats


def components(
    parts: Sequence[Floats], *, fixed: bool = False, strata: Sequence[int] | None = None, rounding: float = 0.0
) -> Components:
    """Variance components of a sum of means over runs and problems, and Satterthwaite's degrees of freedom.

    Args:
        parts: for each set of runs, its contributions by run and problem [..., runs, problems]; the estimate is the sum
            of their means. All are of the same problems in the same order, and of different runs.
        fixed: hold the runs fixed. The variance is then that over problems and samples, of these very runs.
        strata: sizes of the datasets that the problems are of, in order; each dataset's problems are compared with each
            other alone. None: one dataset.
        rounding: contributions that differ by at most this are equal.

    A part of one run has no component between runs: it is a model that is given, or runs are to be held fixed. The
    residual of a problem in a run, beyond the effects of both, is in the problems' component and in the runs', and is
    subtracted once.
    """
    of_problem = np.sum([part.mean(axis=-2) for part in parts], axis=0)
    problems = of_problem.shape[-1]
    sizes = list(strata or [problems])
    pieces = np.split(of_problem, np.cumsum(sizes)[:-1], axis=-1)
    variances = [_variance(piece, rounding) for piece in pieces]
    terms = [(of * size / problems**2, size - 1) for of, size in zip(variances, sizes, strict=True)]
    of_problems = np.sum([variance for variance, _ in terms], axis=0)
    within, between = np.zeros_like(of_problems), np.zeros_like(of_problems)
    for part in () if fixed else parts:
        runs = part.shape[-2]
        if runs > 1:
            of_run = part.mean(axis=-1)
            rest = part - part.mean(axis=-2, keepdims=True) - of_run[..., None] + of_run.mean(axis=-1)[..., None, None]
            df = (runs - 1) * max(1, problems - len(sizes))
            rest = np.where(np.abs(rest) > rounding, rest, 0.0)
            residual = (rest**2).sum(axis=(-1, -2)) / df / (runs * problems)
            terms += [(_variance(of_run, rounding) / runs, runs - 1), (residual, df)]
            between, within = between + terms[-2][0], within + residual
    # noise may leave the difference small or negative where runs hardly differ: half of the problems' part stays
    variance = np.maximum(of_problems + between - within, of_problems / 2)
    spent = np.sum([variance_of**2 / max(1, df_of) for variance_of, df_of in terms], axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        df = np.clip(np.where(spent > 0, variance**2 / spent, np.inf), 1.0, 1e6)
    df = df if any(df > 0 for _, df in terms) else np.zeros_like(df)
    return Components(np.maximum(of_problems - within, 0.0), between, np.sqrt(variance), df)


def _variance(values: Floats, rounding: float) -> Floats:
    """Variance [...] of values [..., n]; 0 of a single one, and of those that differ by no more than `rounding`."""
    if values.shape[-1] < 2:
        return np.zeros(values.shape[:-1])
    equal = np.ptp(values, axis=-1) <= rounding
    return np.where(equal, 0.0, values.var(axis=-1, ddof=1))


def estimate_of(
    value: Any,
    parts: Sequence[Floats],
    *,
    fixed: bool = False,
    strata: Sequence[int] | None = None,
    rounding: float = 0.0,
) -> Estimate:
    """An estimate that varies as the sum of the means of its `parts` does (see `components`)."""
    variance = components(parts, fixed=fixed, strata=strata, rounding=rounding)
    most = max(part.shape[-2] for part in parts)
    return Estimate(
        float(value),
        float(variance.of_problems),
        float(variance.of_runs),
        float(variance.df),
        most,
        float(variance.error),
        parts[0].shape[-1] if parts[0].shape[-1] > 1 else most,
    )


def influence(values: npt.ArrayLike) -> Floats:
    """The contribution of each run and problem to a mean [runs, problems], less the mean.

    Each value counts the same; where a run has none for a problem (NaN), it contributes nothing, and the others more.
    """
    grid = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(grid)
    return grid - grid.mean() if known.all() else np.where(known, grid - np.nanmean(grid), 0.0) / known.mean()


def mean_of(
    values: npt.ArrayLike, other: npt.ArrayLike | None = None, *, same_runs: bool = False, fixed: bool = False
) -> Estimate:
    """A mean over training runs and problems, or the difference of two methods' means.

    Args:
        values, other: one value per run and problem [runs, problems], for the same problems in the same order. NaN:
            a run has none for a problem, for example no trace of some number of episodes. The others weigh the same.
        same_runs: whether both are of the same runs in the same order; then their difference within a run varies.
        fixed: hold the runs fixed; the estimate is then one of these very runs, over problems and samples alone.

    Raises:
        ValueError: if there are no values, or if the problems differ.
    """
    grids = [np.asarray(grid, dtype=np.float64) for grid in (values, other) if grid is not None]
    if any(grid.ndim != 2 or not grid.size for grid in grids) or len({grid.shape[-1] for grid in grids}) > 1:
        raise ValueError("intervals: needs values [runs, problems] of the same problems")
    value = np.nanmean(grids[0]) - sum(np.nanmean(grid) for grid in grids[1:])
    parts = [sign * influence(grid) for sign, grid in zip((1, -1), grids, strict=False)]
    parts = [np.sum(parts, axis=0)] if same_runs else parts
    rounding = ROUNDING * max(float(np.nanmax(np.abs(grid), initial=0.0)) for grid in grids)
    return estimate_of(value, parts, fixed=fixed, rounding=rounding)


def interval(values: npt.ArrayLike) -> Interval:
    """95 % interval of a mean over problems, of one model or run (the paper gives none).

    Args:
        values: one finite value per problem [problems].

    Raises:
        ValueError: if there are no problems, or a value is not finite.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or not np.isfinite(data).all():
        raise ValueError(f"intervals: needs finite values [problems], got values of shape {data.shape}")
    return mean_of(data[None]).interval()


def average_of(groups: Sequence[npt.ArrayLike]) -> Estimate:
    """The average of several means, such as one per benchmark (Table 1's last column).

    Args:
        groups: for each benchmark, one value per run and problem [runs, problems of it], of the same runs. Benchmarks
            have equal weight, whatever their size.

    Raises:
        ValueError: if there are no groups, one is empty, or they are not of as many runs.
    """
    data = [np.asarray(group, dtype=np.float64) for group in groups]
    if not data or any(values.ndim != 2 or not values.size for values in data) or len({len(v) for v in data}) > 1:
        raise ValueError("intervals: needs at least one group of values [runs, problems], all of the same runs")
    sizes = [values.shape[1] for values in data]
    weighted = [values * sum(sizes) / (size * len(data)) for values, size in zip(data, sizes, strict=True)]
    value = np.mean([values.mean() for values in data])
    return estimate_of(value, [np.concatenate(weighted, axis=1)], strata=sizes)


def linearized(statistic: Callable[..., float], *grids: Floats) -> list[Floats]:
    """The contribution of each run and problem to a statistic of means, to first order: one grid for each of `grids`.

    Args:
        statistic: of the means of the grids over runs and problems, each [points].
        grids: values by run and problem [runs, problems, points].

    Returns:
        Grids [runs, problems]; the statistic varies as the sum of their means.
    """
    means = [grid.mean(axis=(0, 1)) for grid in grids]
    at, slopes = statistic(*means), [np.zeros_like(mean) for mean in means]
    for mean, slope in zip(means, slopes, strict=True):
        for point in range(mean.size):
            before, step = mean[point], 1e-7 * max(1.0, abs(mean[point]))
            mean[point] = before + step
            slope[point] = (statistic(*means) - at) / (mean[point] - before)
            mean[point] = before
    return [(grid - mean) @ slope for grid, mean, slope in zip(grids, means, slopes, strict=True)]


class Runs(NamedTuple):
    """Values of a model's training runs on the same problems."""

    problems: list[str]
    values: npt.NDArray[np.float64]  # [runs, problems]


def runs_of(
    table: pl.DataFrame, value: str, run: str = "run", problem: str = "problem_id", *, complete: bool = True
) -> Runs:
    """The values of a model's training runs, on the problems that all of them were measured on.

    Several rows of a problem in a run, such as its traces, are averaged. Unless `complete`, problems that some of the
    runs were measured on count too; the others have NaN there.
    """
    means = table.group_by(run, problem).agg(pl.col(value).cast(pl.Float64).sort().mean())
    wide = means.sort(run, problem).pivot(run, index=problem, values=value).sort(problem)
    wide = wide.drop_nulls() if complete else wide
    return Runs(wide[problem].to_list(), wide.drop(problem).fill_null(float("nan")).to_numpy().T)


def interval_table(
    table: pl.DataFrame, by: Sequence[str], value: str, problem: str = "problem_id", run: str | None = None
) -> pl.DataFrame:
    """Mean and interval of every group of a table, over its problems, and over its training runs if it has several.

    Args:
        table: rows with the columns `by`, `value` and `problem`. Several rows of a problem in a group, such as its
            traces, are averaged first.
        by: columns that name a group; if empty, the whole table is one group.
        value: column to estimate; that of a share (`SHARES`) gets the interval that `share` gives.
        problem: column of the problem's key.
        run: column of the training run, if the table has one. Not every run needs to have every problem.

    Returns:
        Columns `by`, problems (i64), runs (i64, with `run`), estimate, low, high (f64), sorted by `by`.

    Raises:
        ValueError: if a column is missing, null or not finite, or if there is nothing to estimate.
    """
    by = list(by)
    require_columns(table, [*by, problem, value, *([run] if run else [])])
    if not by and table.is_empty():
        raise ValueError("intervals: the table is empty")
    keys = [*by, *([run] if run else []), problem]
    means = table.group_by(keys).agg(pl.col(value).cast(pl.Float64).sort().mean()).sort(keys)
    if not means[value].is_finite().all():
        raise ValueError(f"intervals: a value of {value} is not finite")
    rows: list[tuple[Any, ...]] = []
    for key, group in means.group_by(by, maintain_order=True) if by else [((), means)]:
        if run and group[run].n_unique() > 1:
            grid = runs_of(group, value, run, problem, complete=False).values
        else:
            grid = group[value].to_numpy()[None]
        runs, problems = grid.shape
        interval = mean_of(grid).interval()
        interval = share(interval, problems) if value in SHARES else interval
        rows.append((*key, problems, *([runs] if run else []), *interval))
    counts = {"problems": pl.Int64} | ({"runs": pl.Int64} if run else {})
    estimates = dict.fromkeys(["estimate", "low", "high"], pl.Float64)
    schema: dict[str, Any] = {**{name: table.schema[name] for name in by}, **counts, **estimates}
    return pl.DataFrame(rows, schema=schema, orient="row")


def share(interval: Interval, problems: int) -> Interval:
    """The interval of a share, whose ends are kept between 0 and 1.

    Where nothing varies, because all of few `problems` came out alike, it is that of as many coins (Wilson 1927).
    """
    if interval.low < interval.high:
        return interval._replace(low=max(0.0, interval.low), high=min(1.0, interval.high))
    z, mean = float(quantile(1e6)), interval.estimate
    middle = (mean + z**2 / (2 * problems)) / (1 + z**2 / problems)
    half = z / (1 + z**2 / problems) * sqrt(mean * (1 - mean) / problems + (z / (2 * problems)) ** 2)
    return interval._replace(low=max(0.0, min(mean, middle - half)), high=min(1.0, max(mean, middle + half)))


def difference_of_shares(values: npt.ArrayLike, other: npt.ArrayLike, *, fixed: bool = False) -> Interval:
    """The interval of the difference of two shares on the same problems (see `mean_of`).

    A side on which nothing varies adds what `share` does not know of it, in quadrature (Newcombe 1998).
    """
    result = mean_of(values, other, fixed=fixed).interval()
    below, above = result.estimate - result.low, result.high - result.estimate
    for grid, sign in ((np.asarray(values), 1), (np.asarray(other), -1)):
        side = mean_of(grid, fixed=fixed).interval()
        if side.low == side.high:
            known = share(side, grid.shape[-1])
            down, up = known.estimate - known.low, known.high - known.estimate
            below, above = hypot(below, down if sign > 0 else up), hypot(above, up if sign > 0 else down)
    return result._replace(low=result.estimate - below, high=result.estimate + above)


def require_columns(table: pl.DataFrame, columns: Sequence[str]) -> None:
    """Raise ValueError unless the table has the columns, without nulls."""
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}; found {', '.join(table.columns)}")
    empty = [name for name in columns if table[name].null_count()]
    if empty:
        raise ValueError(f"column {', '.join(empty)} has nulls")
