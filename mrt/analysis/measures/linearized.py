"""Votes over attempts in a row (Figure 8)."""

import polars as pl

from mrt.analysis.measure import Read, measure
from mrt.analysis.progress import graded
from mrt.analysis.votes import maj_at_k_table
from mrt.core.artifacts import ANSWER, LINEARIZED, LINEARIZED_GRADES, TRACE


@measure(
    ["problem_id", "k", "maj", "pass", "tokens", "samples"],
    keys=["problem_id", "k"],
    answers=Read(LINEARIZED, [*ANSWER, "tokens", "prefix_tokens"]),
    grades=Read(LINEARIZED_GRADES, [*ANSWER, "correct", "cluster"]),
)
def linearized(answers: pl.DataFrame, grades: pl.DataFrame, attempts: list[int]) -> pl.DataFrame:
    """maj@k and pass@k over the first k attempts of each text, against the tokens written by then (Figure 8).

    Values are means over a problem's texts, `samples` in number. Markers count as tokens.
    """
    joined = graded(answers, grades, ANSWER)
    parts = []
    for k in attempts:
        first = joined.filter(pl.col("prefix") <= k)
        spent = first.group_by(TRACE).agg(
            (pl.col("prefix_tokens") + pl.col("tokens")).max().alias("tokens"),
            pl.col("correct").any().cast(pl.Float64).alias("pass"),
        )
        parts.append(maj_at_k_table(first, TRACE, [k]).join(spent, on=TRACE, validate="1:1"))
    return (
        pl.concat(parts)
        .group_by("problem_id", "k")
        .agg(pl.col("maj", "pass", "tokens").mean(), pl.len().cast(pl.Int64).alias("samples"))
        .sort("problem_id", "k")
    )
