"""Accuracy after forced extensions (Figure 29)."""

import polars as pl

from mrt.analysis.measure import Read, measure
from mrt.analysis.progress import KIND, LENGTHS, progress_table
from mrt.core.artifacts import ANSWER, FORCED, FORCED_GRADES, TRACE

COLUMNS = ["problem_id", "sample", "extensions", "accuracy", "thought_tokens", "tokens"]


@measure(
    COLUMNS,
    keys=[*TRACE, "extensions"],
    answers=Read(FORCED, [*ANSWER, *LENGTHS, *KIND]),
    grades=Read(FORCED_GRADES, [*ANSWER, "correct", "score"]),
)
def budget_forcing(answers: pl.DataFrame, grades: pl.DataFrame) -> pl.DataFrame:
    """Accuracy of each trace after forced extensions, and its tokens by then, with an answer (Figure 29)."""
    names = {"prefix": "extensions", "J": "accuracy", "prefix_tokens": "thought_tokens"}
    return progress_table(answers, grades).rename(names).select(COLUMNS)
