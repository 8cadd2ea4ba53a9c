"""Cold start: the training set that teaches a model without thoughts to think (DeepSeek-R1, Section 2.3.1).

The completions come from the model itself, with a prompt that opens no thought, or from a teacher. Each right one
becomes an example. Its prompt is the thinking model's, which opens a thought. Its completion is the reasoning, the tag
that closes it, and a short boxed answer. A teacher's completion that already closes a thought keeps its answer.
"""

import polars as pl
from pydantic import Field, field_validator

from mrt.core.artifacts import SET, TRACE
from mrt.core.settings import Settings
from mrt.episodes.thinking import THINK, Parts, Thinking, of_cell, take_apart
from mrt.training.method import SFTMethod
from mrt.training.sets import Filter, ModelTexts, Source


class ColdStart(Settings):
    """How a completion without a thought becomes a thinking model's completion."""

    answer: str = Field(
        "**Step-by-Step Explanation and Answer:**\n\n1. **Answer:** \\boxed{{answer}}",
        description="Text after the closed thought; `{answer}` stands for the answer of the completion. It"
        " begins like `template.header`, so that the model knows how to continue a forced answer.",
    )
    per_problem: int | None = Field(
        None, ge=1, description="Maximum examples per problem, from its first samples; else all right completions."
    )

    @field_validator("answer")
    @classmethod
    def _has_the_answer_in_a_box(cls, answer: str) -> str:
        if "\\boxed{{answer}}" not in answer:
            raise ValueError(r"the answer has to stand in a box: \boxed{{answer}}")
        return answer

    def completion(self, parts: Parts, answer: str, thinking: Thinking = THINK) -> str:
        """The text to learn after a prompt that opens a thought, made from a right completion and its answer.

        `thinking` has the tags of the model to train.
        """
        if parts.closed:
            return f"{reasoning(parts)}\n{thinking.closing}{parts.answer}"
        return f"{reasoning(parts)}\n{thinking.close}{self.answer.replace('{answer}', answer)}"


def reasoning(parts: Parts) -> str:
    """The thought of a completion, without its tags; of one without a thought, all of it."""
    return (parts.thought if parts.closed else parts.answer or "").strip("\r\n")


def examples(source: Source, settings: ColdStart) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The examples and their table of rules."""
    rollouts, grades, chat = source.table("rollouts"), source.table("grades"), ModelTexts(source)
    parts = {
        (*key,): take_apart(text, inside=inside, thinking=of_cell(tags))
        for *key, text, inside, tags in rollouts.select(*TRACE, "text", "inside", "thinking").iter_rows()
    }
    reasons = pl.Series("reasons", [bool(reasoning(part).strip()) for part in parts.values()], pl.Boolean)
    graded = grades.select(*TRACE, "answer", "correct")
    filtered = Filter(rollouts.with_columns(reasons).join(graded, on=TRACE, validate="1:1"))
    filtered.keep("ended by itself", pl.col("finish_reason") != "length")
    filtered.keep("answer right", pl.col("correct"))
    filtered.keep("some reasoning", pl.col("reasons"))
    if settings.per_problem:
        rank = pl.col("sample").rank("ordinal").over("problem_id")
        filtered.keep(f"the first {settings.per_problem} of a problem", rank <= settings.per_problem)
    rows = [
        (row["problem_id"], row["sample"], None, chat.prompts[row["problem_id"]], completion, 1.0)
        for row in filtered.rows.iter_rows(named=True)
        for completion in [settings.completion(parts[row["problem_id"], row["sample"]], row["answer"], chat.thinking)]
    ]
    return pl.DataFrame(rows, schema=SET.columns, orient="row").sort(TRACE), filtered.table()


cold_start = SFTMethod(
    "#999999",
    ("rollouts", "tokenizer"),
    examples,
    settings=("cold_start", ColdStart),
    teacher=True,
    asks_new_prompt=True,
    only="thoughts",
)
