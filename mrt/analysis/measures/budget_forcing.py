"""Accuracy after forced extensions (Figure 29)."""

import polars as pl

from mrt.analysis.measure import Read, measure
from mrt.analysis.progress import KIND, LENGTHS, progress_table
from mrt.core.artifacts import ANSWER, FORCED, FORCED_GRADES, TRACE

COLUMNS = {
    "problem_id": pl.String,
    "sample": pl.Int64,
    "extensions": pl.Int64,
    "accuracy": pl.Float64,
    "thought_tokens": pl.Int64,
    "tokens": pl.Float64,
}


@measure(
    COLUMNS,
    keys=[*TRACE, "extensions"],
    notes={"tokens": "with an answer"},
    answers=Read(FORCED, [*ANSWER, *LENGTHS, *KIND]),
    grades=Read(FORCED_GRADES, [*ANSWER, "correct", "score"]),
)
def budget_forcing(answers: pl.DataFrame, grades: pl.DataFrame) -> pl.DataFrame:
    """Accuracy of each trace after forced extensions, and its tokens by then (Figure 29)."""
    names = {"prefix": "extensions", "J": "accuracy", "prefix_tokens": "thought_tokens"}
    return progress_table(answers, grades).rename(names).select(list(COLUMNS))
