"""Bootstrap over problems and training runs: the confidence interval of every reported number."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl


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
    """Percentile bootstrap over problems: every reported number has such an interval (the paper gives none).

    Args:
        values: one value per problem [problems] or several [problems, columns]. A resample draws whole rows, so columns
            stay paired.
        statistic: reduces the axis of the problems, given as `axis=`; must work on stacks of resamples.
        repeats: number of resamples.
        seed: it and the values alone determine the interval; equal numbers of problems share their resamples.
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


def bootstrap_average(
    groups: Sequence[npt.ArrayLike], repeats: int = 2000, seed: int = 0, level: float = 0.95
) -> Interval:
    """Interval of the average of several means, such as one per benchmark (Table 1's last column).

    Args:
        groups: for each benchmark, one value per run and problem [runs, problems of it]. A resample draws each
            benchmark's problems separately and the runs together; benchmarks have equal weight, whatever their size.

    The other arguments, the result and the errors are those of `bootstrap`; also ValueError if there are no groups.
    """
    data = [np.asarray(group, dtype=np.float64) for group in groups]
    if not data or any(values.ndim != 2 or not values.size for values in data) or len({len(v) for v in data}) > 1:
        raise ValueError("bootstrap: needs at least one group of values [runs, problems], all of the same runs")
    rng = np.random.default_rng(seed)
    runs = resample_shares(rng, repeats, len(data[0]))
    draws = [
        np.einsum("br,rp,bp->b", runs, values, resample_shares(rng, repeats, values.shape[1]), optimize=True)
        for values in data
    ]
    low, high = np.quantile(np.mean(draws, axis=0), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(np.mean([values.mean() for values in data])), float(low), float(high))


def bootstrap_runs(
    values: npt.ArrayLike,
    other: npt.ArrayLike | None = None,
    repeats: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    *,
    same_runs: bool = False,
) -> Interval:
    """Interval of a mean over training runs and problems, or of the difference of two methods' means.

    A resample draws both runs and problems; all runs are measured on the same drawn problems. Two methods share the
    drawn problems, and the runs if they are the `same_runs`. With a single run, the interval holds for that run only.

    Args:
        values, other: one value per run and problem [runs, problems], for the same problems in the same order; NaN
            where a run has none for a problem (no trace of so many episodes, say), each of the others weighs the same.

    The other arguments, the result and the errors are those of `bootstrap`; also ValueError if the problems differ.
    """
    grids = [np.asarray(grid, dtype=np.float64) for grid in (values, other) if grid is not None]
    if any(grid.ndim != 2 or not grid.size for grid in grids) or len({grid.shape[-1] for grid in grids}) > 1:
        raise ValueError("bootstrap: needs values [runs, problems] of the same problems")
    drawn = resampled_means(grids, repeats, seed, same_runs=same_runs)
    signs = (1.0, -1.0)
    estimate = sum(sign * np.nanmean(grid) for sign, grid in zip(signs, grids, strict=False))
    found = np.sum([sign * draws for sign, draws in zip(signs, drawn, strict=False)], axis=0)
    low, high = np.nanquantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(estimate), float(low), float(high))


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


def resampled_means(
    grids: Sequence[npt.NDArray[np.float64]], repeats: int, seed: int, *, same_runs: bool = False
) -> list[npt.NDArray[np.float64]]:
    """Means over drawn runs and problems [repeats, ...] of each grid [runs, problems, ...].

    They share the problems, and with `same_runs`, where all are of the same runs in the same order, these too. Of a
    grid with NaN the mean of the other values; NaN if a resample has none of these.
    """
    rng = np.random.default_rng(seed)
    problems = resample_shares(rng, repeats, grids[0].shape[1])
    means, runs = [], None
    for grid in grids:
        if runs is None or not same_runs:
            runs = resample_shares(rng, repeats, grid.shape[0])
        known = ~np.isnan(grid)
        sums = np.einsum("br,rp...,bp->b...", runs, np.where(known, grid, 0.0), problems, optimize=True)
        if not known.all():
            weights = np.einsum("br,rp...,bp->b...", runs, known.astype(float), problems, optimize=True)
            sums = np.divide(sums, weights, out=np.full_like(sums, np.nan), where=weights > 0)
        means.append(sums)
    return means


def resample_shares(rng: np.random.Generator, repeats: int, n: int) -> npt.NDArray[np.float64]:
    """How often each of n items was drawn in a resample, as shares [repeats, n]."""
    return np.stack([np.bincount(pick, minlength=n) for pick in rng.integers(0, n, (repeats, n))]) / n


def bootstrap_table(
    table: pl.DataFrame,
    by: Sequence[str],
    value: str,
    problem: str = "problem_id",
    statistic: Statistic = np.mean,
    repeats: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    run: str | None = None,
) -> pl.DataFrame:
    """`bootstrap` of every group of a table, over its problems, and over its training runs if it has several.

    Args:
        table: rows with the columns `by`, `value` and `problem`. Several rows of a problem in a group, such as its
            traces, are averaged first.
        by: columns that name a group; if empty, the whole table is one group.
        value: column to estimate.
        problem: column of the problem's key.
        run: column of the training run, if the table has one. Of several runs in a group the mean is estimated, also
            where not every run has every problem.

    The other arguments are those of `bootstrap`. Groups over the same problems share their resamples.

    Returns:
        Columns `by`, problems (i64), runs (i64, with `run`), estimate, low, high (f64), sorted by `by`.

    Raises:
        ValueError: as `bootstrap`, and if a column is missing or null.
    """
    by = list(by)
    require_columns(table, [*by, problem, value, *([run] if run else [])])
    if not by and table.is_empty():
        raise ValueError("bootstrap: the table is empty")
    keys = [*by, *([run] if run else []), problem]
    means = table.group_by(keys).agg(pl.col(value).cast(pl.Float64).sort().mean()).sort(keys)
    rows: list[tuple[Any, ...]] = []
    for key, group in means.group_by(by, maintain_order=True) if by else [((), means)]:
        if run and group[run].n_unique() > 1:
            grid = runs_of(group, value, run, problem, complete=False)
            rows.append(
                (*key, len(grid.problems), len(grid.values), *bootstrap_runs(grid.values, None, repeats, seed, level))
            )
        else:
            interval = bootstrap(group[value].to_numpy(), statistic, repeats, seed, level)
            rows.append((*key, group.height, *([1] if run else []), *interval))
    counts = {"problems": pl.Int64} | ({"runs": pl.Int64} if run else {})
    estimates = dict.fromkeys(["estimate", "low", "high"], pl.Float64)
    schema: dict[str, Any] = {**{name: table.schema[name] for name in by}, **counts, **estimates}
    return pl.DataFrame(rows, schema=schema, orient="row")


@lru_cache(maxsize=16)
def _picks(seed: int, repeats: int, problems: int) -> npt.NDArray[np.int64]:
    """Drawn problems of each resample [repeats, problems], cached: drawing them takes longer than using them once."""
    picks = np.random.default_rng(seed).integers(0, problems, (repeats, problems))
    picks.setflags(write=False)
    return picks


def _bootstrap(data: npt.NDArray[np.float64], statistic: Statistic, repeats: int, seed: int, level: float) -> Interval:
    """`bootstrap` of rows [problems, ...], in blocks of resamples that fit in memory."""
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


def require_columns(table: pl.DataFrame, columns: Sequence[str]) -> None:
    """Raise ValueError unless the table has the columns, without nulls."""
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}; found {', '.join(table.columns)}")
    empty = [name for name in columns if table[name].null_count()]
    if empty:
        raise ValueError(f"column {', '.join(empty)} has nulls")
