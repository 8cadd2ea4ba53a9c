"""The tables that stages hand on: their columns, types and keys (docs/architecture.md, "Artifacts").

A table is checked when it is written (columns, types, keys neither null nor repeated, rows) and when it is read, so
that a truncated, empty or foreign file stops the stage that reads it, with its name and how to remake it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from mrt.core.storage import read_table, write_table

TRACE = ["problem_id", "sample"]
PREFIX = [*TRACE, "prefix"]
ANSWER = [*PREFIX, "answer_index"]


@dataclass(frozen=True)
class Artifact:
    """A kind of table: its columns with their types, and the columns that name a row."""

    columns: Mapping[str, Any]
    keys: Sequence[str]

    def write(self, table: pl.DataFrame, path: Path) -> None:
        """Write a table of this kind, sorted as it comes; raises ValueError if it is not of this kind."""
        if dict(table.schema) != dict(self.columns):
            raise ValueError(f"{path}: columns {dict(table.schema)} where {dict(self.columns)} belong")
        write_table(table, path, self.keys)

    def read(self, path: Path, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Read such a table, or some of its columns; raises ValueError, naming the file, if it is not one."""
        wanted = self.columns if columns is None else {name: self.columns[name] for name in columns}
        return read_table(path, wanted)


PROBLEMS = Artifact(
    {
        "id": pl.String,
        "problem": pl.String,
        "answer": pl.String,
        "solution": pl.String,
        "difficulty": pl.Float64,
        "source": pl.String,
        "split": pl.String,
    },
    ["id"],
)
ROLLOUTS = Artifact(
    {
        "problem_id": pl.String,
        "sample": pl.Int64,
        "prompt": pl.String,
        "text": pl.String,
        "tokens": pl.Int64,
        "finish_reason": pl.String,
        "mean_logprob": pl.Float64,
    },
    TRACE,
)
EPISODES = Artifact(
    {"problem_id": pl.String, "sample": pl.Int64, "episode": pl.Int64, "text": pl.String, "closed": pl.Boolean},
    [*TRACE, "episode"],
)
PROVER = Artifact(
    {
        "problem_id": pl.String,
        "sample": pl.Int64,
        "prefix": pl.Int64,
        "answer_index": pl.Int64,
        "text": pl.String,
        "tokens": pl.Int64,
        "prefix_tokens": pl.Int64,
        "prompt_tokens": pl.Int64,
        "finish_reason": pl.String,
    },
    ANSWER,
)
EXTENSIONS = Artifact(
    {
        "problem_id": pl.String,
        "sample": pl.Int64,
        "extension": pl.Int64,
        "text": pl.String,
        "tokens": pl.Int64,
        "finish_reason": pl.String,
    },
    [*TRACE, "extension"],
)
VERDICT = {"answer": pl.String, "parsed": pl.Boolean, "correct": pl.Boolean, "cluster": pl.Int64}
GRADES = Artifact({"problem_id": pl.String, "sample": pl.Int64, **VERDICT}, TRACE)
ANSWER_GRADES = Artifact(
    {"problem_id": pl.String, "sample": pl.Int64, "prefix": pl.Int64, "answer_index": pl.Int64, **VERDICT}, ANSWER
)
PROGRESS = Artifact(
    {
        "problem_id": pl.String,
        "sample": pl.Int64,
        "prefix": pl.Int64,
        "episodes": pl.Int64,
        "prefix_tokens": pl.Int64,
        "answers": pl.Int64,
        "J": pl.Float64,
        "progress": pl.Float64,
    },
    PREFIX,
)
SET = Artifact(
    {
        "problem_id": pl.String,
        "sample": pl.Int64,
        "prefix": pl.Int64,
        "prompt": pl.String,
        "completion": pl.String,
        "weight": pl.Float64,
    },
    TRACE,
)
TREE = Artifact(
    {
        "problem_id": pl.String,
        "node": pl.Int64,
        "parent": pl.Int64,
        "depth": pl.Int64,
        "text": pl.String,
        "value": pl.Float64,
        "visits": pl.Int64,
        "right": pl.Int64,
        "drawn": pl.Int64,
        "tokens": pl.Int64,
        "leaf": pl.Boolean,
    },
    ["problem_id", "node"],
)
RL_PROMPTS = Artifact(
    {
        "problem_id": pl.String,
        "sample": pl.Int64,
        "prefix": pl.Int64,
        "prefix_text": pl.String,
        "prompt": pl.String,
        "forced": pl.String,
        "answer": pl.String,
        "inside": pl.Boolean,
    },
    TRACE,
)
COST = Artifact(
    {
        "trained_model": pl.String,
        "phase": pl.String,
        "generated_tokens": pl.Int64,
        "prefill_tokens": pl.Int64,
        "trained_tokens": pl.Int64,
        "flops": pl.Float64,
    },
    ["trained_model", "phase"],
)
RULES = Artifact({"rule": pl.String, "kept": pl.Int64, "dropped": pl.Int64}, [])
