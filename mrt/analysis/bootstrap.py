"""Bootstrap over problems and training runs: the confidence interval of every reported number."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl


class Interval(NamedTuple):
    """An estimate and the ends of its 95 % confidence interval."""

    estimate: float
    low: float
    high: float


def percentile_interval(estimate: Any, draws: npt.ArrayLike) -> Interval:
    """An estimate, with the quantiles 0.025 and 0.975 of its resamples [repeats]; those that are NaN do not count."""
    low, high = np.nanquantile(np.asarray(draws, dtype=np.float64), [0.025, 0.975])
    return Interval(float(estimate), float(low), float(high))


def bootstrap(values: npt.ArrayLike, repeats: int = 2000, seed: int = 0) -> Interval:
    """Interval of a mean over problems: every reported number has such an interval (the paper gives none).

    Args:
        values: one finite value per problem [problems].
        repeats: number of resamples.
        seed: it and the values alone determine the interval; equal numbers of problems share their resamples.

    Raises:
        ValueError: if there are no problems, a value is not finite, or there are no repeats.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or not np.isfinite(data).all():
        raise ValueError(f"bootstrap: needs finite values [problems], got values of shape {data.shape}")
    return bootstrap_runs(data[None], None, repeats, seed)


def bootstrap_average(groups: Sequence[npt.ArrayLike], repeats: int = 2000, seed: int = 0) -> Interval:
    """Interval of the average of several means, such as one per benchmark (Table 1's last column).

    Args:
        groups: for each benchmark, one value per run and problem [runs, problems of it]. A resample draws each
            benchmark's problems separately and the runs together; benchmarks have equal weight, whatever their size.
        repeats, seed: as of `bootstrap`.

    Raises:
        ValueError: if there are no groups, one is empty, or they are not of as many runs.
    """
    data = [np.asarray(group, dtype=np.float64) for group in groups]
    if not data or any(values.ndim != 2 or not values.size for values in data) or len({len(v) for v in data}) > 1:
        raise ValueError("bootstrap: needs at least one group of values [runs, problems], all of the same runs")
    runs, *problems = resampled_counts(seed, repeats, len(data[0]), *(values.shape[1] for values in data))
    draws = [
        np.einsum("br,rp,bp->b", runs, values, counts, optimize=True) / values.size
        for values, counts in zip(data, problems, strict=True)
    ]
    return percentile_interval(np.mean([values.mean() for values in data]), np.mean(draws, axis=0))


def bootstrap_runs(
    values: npt.ArrayLike,
    other: npt.ArrayLike | None = None,
    repeats: int = 2000,
    seed: int = 0,
    *,
    same_runs: bool = False,
) -> Interval:
    """Interval of a mean over training runs and problems, or of the difference of two methods' means.

    A resample draws both runs and problems; all runs are measured on the same drawn problems. Two methods share the
    drawn problems, and the runs if they are the `same_runs`. With a single run, the interval holds for that run only.

    Args:
        values, other: one value per run and problem [runs, problems], for the same problems in the same order; NaN
            where a run has none for a problem (no trace of so many episodes, say), each of the others weighs the same.
        repeats, seed: as of `bootstrap`.

    Raises:
        ValueError: if there are no values or no repeats, or if the problems differ.
    """
    grids = [np.asarray(grid, dtype=np.float64) for grid in (values, other) if grid is not None]
    if any(grid.ndim != 2 or not grid.size for grid in grids) or len({grid.shape[-1] for grid in grids}) > 1:
        raise ValueError("bootstrap: needs values [runs, problems] of the same problems")
    own, *others = resampled_means(grids, repeats, seed, same_runs=same_runs)
    estimate = np.nanmean(grids[0]) - sum(np.nanmean(grid) for grid in grids[1:])
    return percentile_interval(estimate, own - sum(others))


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
    grids: Sequence[npt.NDArray[np.float64]], repeats: int = 2000, seed: int = 0, *, same_runs: bool = False
) -> list[npt.NDArray[np.float64]]:
    """Means over drawn runs and problems [repeats, ...] of each grid [runs, problems, ...].

    They share the problems, and with `same_runs`, where all are of the same runs in the same order, these too. Of a
    grid with NaN the mean of the other values; NaN if a resample has none of these.
    """
    problems, *runs = resampled_counts(
        seed, repeats, grids[0].shape[1], *(len(grid) for grid in (grids[:1] if same_runs else grids))
    )
    means = []
    for grid, drawn in zip(grids, runs * len(grids) if same_runs else runs, strict=True):
        known = ~np.isnan(grid)
        sums = np.einsum("br,rp...,bp->b...", drawn, np.where(known, grid, 0.0), problems, optimize=True)
        if known.all():
            sums = sums / (grid.shape[0] * grid.shape[1])
        else:
            weights = np.einsum("br,rp...,bp->b...", drawn, known.astype(float), problems, optimize=True)
            sums = np.divide(sums, weights, out=np.full_like(sums, np.nan), where=weights > 0)
        means.append(sums)
    return means


@lru_cache(maxsize=16)
def resampled_counts(seed: int, repeats: int, *sizes: int) -> tuple[npt.NDArray[np.float64], ...]:
    """How often each of n items was drawn in a resample [repeats, n], for each n in `sizes` in turn.

    Numbers, not shares: sums of eighths, say, are then exact, and equal on every machine. They are cached: drawing them
    takes longer than using them once.

    Raises:
        ValueError: if there are no repeats.
    """
    if repeats < 1:
        raise ValueError(f"bootstrap: needs at least one resample, got {repeats} repeats")
    rng, counts = np.random.default_rng(seed), []
    for n in sizes:
        drawn = np.stack([np.bincount(pick, minlength=n) for pick in rng.integers(0, n, (repeats, n))]).astype(float)
        drawn.setflags(write=False)
        counts.append(drawn)
    return tuple(counts)


def bootstrap_table(
    table: pl.DataFrame,
    by: Sequence[str],
    value: str,
    problem: str = "problem_id",
    repeats: int = 2000,
    seed: int = 0,
    run: str | None = None,
) -> pl.DataFrame:
    """`bootstrap` of every group of a table, over its problems, and over its training runs if it has several.

    Args:
        table: rows with the columns `by`, `value` and `problem`. Several rows of a problem in a group, such as its
            traces, are averaged first.
        by: columns that name a group; if empty, the whole table is one group.
        value: column to estimate.
        problem: column of the problem's key.
        repeats, seed: as of `bootstrap`. Groups of as many problems share their resamples.
        run: column of the training run, if the table has one. Not every run needs to have every problem.

    Returns:
        Columns `by`, problems (i64), runs (i64, with `run`), estimate, low, high (f64), sorted by `by`.

    Raises:
        ValueError: if a column is missing, null or not finite, or if there is nothing to estimate.
    """
    by = list(by)
    require_columns(table, [*by, problem, value, *([run] if run else [])])
    if not by and table.is_empty():
        raise ValueError("bootstrap: the table is empty")
    keys = [*by, *([run] if run else []), problem]
    means = table.group_by(keys).agg(pl.col(value).cast(pl.Float64).sort().mean()).sort(keys)
    if not means[value].is_finite().all():
        raise ValueError(f"bootstrap: a value of {value} is not finite")
    rows: list[tuple[Any, ...]] = []
    for key, group in means.group_by(by, maintain_order=True) if by else [((), means)]:
        if run and group[run].n_unique() > 1:
            grid = runs_of(group, value, run, problem, complete=False).values
        else:
            grid = group[value].to_numpy()[None]
        runs, problems = grid.shape
        rows.append((*key, problems, *([runs] if run else []), *bootstrap_runs(grid, None, repeats, seed)))
    counts = {"problems": pl.Int64} | ({"runs": pl.Int64} if run else {})
    estimates = dict.fromkeys(["estimate", "low", "high"], pl.Float64)
    schema: dict[str, Any] = {**{name: table.schema[name] for name in by}, **counts, **estimates}
    return pl.DataFrame(rows, schema=schema, orient="row")


def require_columns(table: pl.DataFrame, columns: Sequence[str]) -> None:
    """Raise ValueError unless the table has the columns, without nulls."""
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}; found {', '.join(table.columns)}")
    empty = [name for name in columns if table[name].null_count()]
    if empty:
        raise ValueError(f"column {', '.join(empty)} has nulls")
