"""Number of episodes (Figure 23)."""

import polars as pl

from mrt.analysis.measure import Read, measure
from mrt.core.artifacts import EPISODES, TRACE


@measure(
    ["problem_id", "sample", "episodes", "closed"],
    keys=TRACE,
    pieces=Read(EPISODES, [*TRACE, "closed"]),
)
def episodes(pieces: pl.DataFrame) -> pl.DataFrame:
    """How many episodes each thought has (Figure 23)."""
    return pieces.group_by(TRACE).agg(pl.len().alias("episodes"), pl.col("closed").first()).sort(TRACE)
