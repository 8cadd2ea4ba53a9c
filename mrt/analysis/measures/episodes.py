"""Number of episodes (Figure 23)."""

import polars as pl

from mrt.analysis.measure import Read, measure
from mrt.core.artifacts import EPISODES, TRACE


@measure(
    ["problem_id", "sample", "episodes", "closed"],
    keys=TRACE,
    pieces=Read(EPISODES, [*TRACE, "text", "closed"]),
)
def episodes(pieces: pl.DataFrame) -> pl.DataFrame:
    """How many episodes each thought has (Figure 23); none, if a completion has no thought."""
    count = (pl.col("text") != "").sum().cast(pl.Int64).alias("episodes")  # without a thought it is one of no text
    return pieces.group_by(TRACE).agg(count, pl.col("closed").first()).sort(TRACE)
