"""Normalized regret at token budgets (Section 8.5.1, Figures 9, 12)."""

from math import inf
from typing import Literal

import polars as pl

from mrt.analysis.measure import Read, measure
from mrt.analysis.regret import normalized_regret_table
from mrt.core.artifacts import PREFIX, PROGRESS, TRACE

AXES = {"answer": "tokens", "thought": "prefix_tokens"}  # columns of the progress artifact


@measure(
    ["problem_id", "extensions", "budget", "regret", "samples"],
    keys=["problem_id", "extensions", "budget"],
    progress=Read(PROGRESS, [*PREFIX, "prefix_tokens", "tokens", "J"]),
    forced=Read("budget_forcing", [*TRACE, "extensions", "accuracy", "thought_tokens", "tokens"]),
)
def regret(
    progress: pl.DataFrame,
    budgets: list[int],
    forced: pl.DataFrame | None = None,
    extrapolated: list[int] | None = None,
    axis: Literal["answer", "thought"] = "answer",
) -> pl.DataFrame:
    """Normalized regret of each problem at each token budget, the mean over its traces (Section 8.5.1, Figure 9).

    With `forced` (the measure `budget_forcing`), also at the `extrapolated` budgets, one for each number of extensions.
    The curve of an extended trace continues through its points after up to that many extensions. These replace
    `budgets` as large (Figure 12, whose first model has a smaller budget than the second). `axis` says which tokens
    count: those until there is an answer, or those of the thought alone (docs/metrics.md). `extensions` is 0 within the
    budget; `samples` counts traces.
    """
    progress = progress.select(*PREFIX, "J", pl.col(AXES[axis]).alias("tokens"))
    least = min(extrapolated or [], default=inf) if forced is not None else inf
    parts = [
        normalized_regret_table(progress, [c for c in budgets if c < least]).with_columns(
            pl.lit(0, pl.Int64).alias("extensions")
        )
    ]
    if forced is not None:
        last = progress.group_by(TRACE).agg(pl.col("prefix").max().alias("last"))
        points = forced.filter(pl.col("extensions") > 0).join(last, on=TRACE, validate="m:1")
        points = points.with_columns(
            (pl.col("last") + pl.col("extensions")).alias("prefix"),
            pl.col("accuracy").alias("J"),
            pl.col("thought_tokens" if axis == "thought" else "tokens").alias("tokens"),
        )
        curve = [*PREFIX, "J", "tokens"]
        thought = progress.join(points.select(TRACE).unique(), on=TRACE, how="semi")
        counts = sorted(points["extensions"].unique())
        if len(counts) != len(extrapolated or []):
            raise ValueError(f"{len(extrapolated or [])} extrapolated budgets for extensions {counts}")
        for count, budget in zip(counts, extrapolated or [], strict=True):
            longer = pl.concat([thought, points.filter(pl.col("extensions") <= count).select(curve)])
            regrets = normalized_regret_table(longer, [budget])
            parts.append(regrets.with_columns(pl.lit(count, pl.Int64).alias("extensions")))
    by = ["problem_id", "extensions", "budget"]
    samples = pl.len().cast(pl.Int64).alias("samples")
    return pl.concat(parts).group_by(by).agg(pl.col("regret").mean(), samples).sort(by)
