"""Accuracy and length of completions (Table 1)."""

import polars as pl

from mrt.analysis.measure import Read, measure
from mrt.analysis.progress import graded, value_of
from mrt.core.artifacts import GRADES, PROBLEMS, ROLLOUTS, TRACE
from mrt.episodes.thinking import has_answer_part


@measure(
    ["problem_id", "samples", "accuracy", "tokens", "characters", "unfinished", "unparsed", "difficulty"],
    keys=["problem_id"],
    problems=Read(PROBLEMS, ["id", "difficulty"]),
    rollouts=Read(ROLLOUTS, [*TRACE, "tokens", "text", "inside", "thinking"]),
    grades=Read(GRADES, [*TRACE, "parsed", "correct", "score"]),
)
def accuracy(
    problems: pl.DataFrame, rollouts: pl.DataFrame, grades: pl.DataFrame, closing: str | None = None
) -> pl.DataFrame:
    """Mean accuracy and length of each problem's completions (Table 1).

    A completion is finished if it holds `closing`, or, without one, if it leaves no thought open.
    `tokens` and `characters` are means, `unfinished` and `unparsed` shares.
    """
    rows = rollouts.select("text", "inside", "thinking").iter_rows()
    finished = [closing in text if closing else has_answer_part(text, inside, tags) for text, inside, tags in rows]
    rollouts = rollouts.with_columns(pl.Series("finished", finished, pl.Boolean))
    return (
        graded(rollouts, grades, TRACE)
        .group_by("problem_id")
        .agg(
            pl.len().alias("samples"),
            value_of(grades).mean().alias("accuracy"),
            pl.col("tokens").mean(),
            pl.col("text").str.len_chars().mean().alias("characters"),
            (~pl.col("finished")).mean().alias("unfinished"),
            (~pl.col("parsed")).mean().alias("unparsed"),
        )
        .join(problems.select(pl.col("id").alias("problem_id"), "difficulty"), on="problem_id", validate="1:1")
        .sort("problem_id")
    )
