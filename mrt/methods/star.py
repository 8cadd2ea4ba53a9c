"""STaR: every trace whose answer is right, in full (Section 7.1)."""

import polars as pl

from mrt.core.artifacts import SET, TRACE
from mrt.episodes.parameterization import Backtracking
from mrt.episodes.thinking import of_cell, take_apart
from mrt.training.method import SFTMethod
from mrt.training.sets import Filter, Source, suffix_set


def examples(source: Source) -> tuple[pl.DataFrame, pl.DataFrame]:
    """STaR's examples and its table of rules."""
    rollouts, grades = source.table("rollouts"), source.table("grades")
    if isinstance(source.parameterization, Backtracking):
        return suffix_set(rollouts, grades, source.table("episodes"))
    rollouts = rollouts.with_columns(
        pl.Series("closed", [is_closed(*row) for row in rollouts.select("text", "inside", "thinking").iter_rows()])
    )
    filtered = Filter(rollouts.join(grades.select(*TRACE, "correct"), on=TRACE, validate="1:1"))
    filtered.keep("ended by itself, thought closed", (pl.col("finish_reason") != "length") & pl.col("closed"))
    filtered.keep("answer right", pl.col("correct"))
    rows = filtered.rows.with_columns(
        pl.lit(None, pl.Int64).alias("prefix"), pl.col("text").alias("completion"), pl.lit(1.0).alias("weight")
    )
    return rows.select(list(SET.columns)).sort(TRACE), filtered.table()


def is_closed(text: str, inside: bool, tags: str | None) -> bool:
    """Whether a completion has a thought that is closed; a model that writes no thoughts needs none."""
    parts = take_apart(text, inside=inside, thinking=of_cell(tags))
    return parts.answer is not None and (parts.closed or tags is None)


star = SFTMethod("#009E73", ("rollouts", "attempts"), examples)
