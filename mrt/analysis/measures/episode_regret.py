"""Normalized regret by episodes (Appendix E, Figure 26)."""

import polars as pl

from mrt.analysis.measure import Read, measure
from mrt.analysis.regret import episode_regret_table
from mrt.core.artifacts import PREFIX, TRACE


@measure(
    ["problem_id", "episodes", "regret", "hopeless", "reached", "samples"],
    keys=["problem_id", "episodes"],
    prefixes=Read("prefixes", [*PREFIX, "p", "maj"]),
)
def episode_regret(prefixes: pl.DataFrame, every: int = 1) -> pl.DataFrame:
    """Normalized regret of each problem by episodes (Appendix E, Figure 26), the means over its traces.

    At b episodes, a multiple of `every`, a shorter trace counts with all its episodes; the last b is that of the
    longest trace, rounded up. `hopeless` is the share of traces whose comparator never gets an answer right: these
    count with regret 1. `reached` is the share of traces with more than b - `every` episodes.
    """
    traces = episode_regret_table(prefixes)
    longest = int(traces["prefix"].max() or 0)  # type: ignore[arg-type]
    episodes = pl.DataFrame({"episodes": range(every, longest + every, every)}).cast(pl.Int64)
    of_all = traces.select(TRACE).unique(maintain_order=True).join(episodes, how="cross").sort("episodes")
    at = of_all.join_asof(
        traces.sort("prefix"), left_on="episodes", right_on="prefix", by=TRACE, check_sortedness=False
    )
    return (
        at.group_by("problem_id", "episodes")
        .agg(
            pl.col("regret").mean(),
            pl.col("hopeless").mean(),
            (pl.col("total") > pl.col("episodes") - every).mean().alias("reached"),
            pl.len().cast(pl.Int64).alias("samples"),
        )
        .sort("problem_id", "episodes")
    )
