"""The tables that stages pass on: their columns, types and keys (docs/artifacts.md).

A table is checked when it is written (columns, types, keys neither null nor repeated, number of rows) and when it is
read. A truncated, empty or foreign file stops the stage that reads it, with an error that names the file and says how
to remake it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from mrt.core.storage import columns_of, read_table, write_table

TRACE = ["problem_id", "sample"]
PREFIX = [*TRACE, "prefix"]
ANSWER = [*PREFIX, "answer_index"]


@dataclass(frozen=True)
class Artifact:
    """A kind of table: its columns with their types, the columns that identify a row, its path and its content.

    In `path`, `m` is a model and `d` a dataset. `notes` explains columns whose names do not suffice. A table has its
    `optional` columns, after the others, only where something needs them.
    """

    columns: Mapping[str, Any]
    keys: Sequence[str]
    path: str
    about: str
    notes: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)

    def write(self, table: pl.DataFrame, path: Path) -> None:
        """Write a table of this kind in its row order; raises ValueError if its columns or keys are wrong."""
        extra = {name: kind for name, kind in self.optional.items() if name in table.columns}
        if dict(table.schema) != {**self.columns, **extra}:
            raise ValueError(f"{path}: columns {dict(table.schema)} where {dict(self.columns)} belong")
        write_table(table, path, self.keys)

    def read(self, path: Path, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Read a table of this kind, or some of its columns; raises ValueError, naming the file, if it is not one.

        Optional columns are read where the table has them.
        """
        names, present = columns or [*self.columns, *self.optional], columns_of(path) if self.optional else {}
        every = {**self.columns, **self.optional}
        return read_table(path, {name: every[name] for name in names if name not in self.optional or name in present})


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
    "problems/{d}.parquet",
    "problems and gold answers, whatever they come from",
    {"answer": "gold", "extra": "JSON of further columns of the source, which the task reads"},
    optional={"extra": pl.String},
)
ROLLOUTS = Artifact(
    {
        "problem_id": pl.String,
        "sample": pl.Int64,
        "prompt": pl.String,
        "text": pl.String,
        "tokens": pl.Int64,
        "prompt_tokens": pl.Int64,
        "finish_reason": pl.String,
        "mean_logprob": pl.Float64,
        "inside": pl.Boolean,
        "thinking": pl.String,
    },
    TRACE,
    "rollouts/{m}/{d}.parquet",
    "completions of every problem, sampled here or imported",
    {
        "text": "the completion, after the chat prompt",
        "tokens": "of the text; null if imported without",
        "prompt_tokens": "of the chat prompt; null if imported without",
        "finish_reason": "`stop`, `length`, `unknown`",
        "mean_logprob": "nats a token, if asked for",
        "inside": "the prompt left a thought open: the text begins inside it",
        "thinking": "the tags of a thought, as JSON; null for a model that writes none",
    },
)
READING = Artifact(
    {"what": pl.String, "rows": pl.Int64},
    ["what"],
    "rollouts/{m}/{d}.reading.parquet",
    "how the rows of imported rollouts were read",
    {"what": "such as `are cut off`"},
)
EPISODES = Artifact(
    {"problem_id": pl.String, "sample": pl.Int64, "episode": pl.Int64, "text": pl.String, "closed": pl.Boolean},
    [*TRACE, "episode"],
    "episodes/{m}/{d}.parquet",
    "every thought, cut; joining its episodes gives it back",
    {
        "episode": "from 0",
        "closed": "the thought was closed by its tag; in backtracking search: the last episode has an answer",
    },
)
PROVER = Artifact(
    {
        "problem_id": pl.String,
        "sample": pl.Int64,
        "prefix": pl.Int64,
        "answer_index": pl.Int64,
        "text": pl.String,
        "tokens": pl.Int64,
        "problem_tokens": pl.Int64,
        "prefix_tokens": pl.Int64,
        "prompt_tokens": pl.Int64,
        "finish_reason": pl.String,
        "mean_logprob": pl.Float64,
    },
    ANSWER,
    "prover/{m}/{d}.parquet",
    "the meta-prover's forced answers. `budget_forcing/{m}/{d}.parquet` and `linearized/{m}/{d}.parquet` have the same"
    " columns: there `prefix` counts extensions, or attempts from 1",
    {
        "prefix": "episodes kept, 0 to k",
        "tokens": "of the answer",
        "finish_reason": "`stop`, `length`; `scored`: not sampled, but its probability read off",
        "problem_tokens": "of the chat prompt",
        "prefix_tokens": "of z_0:j",
        "prompt_tokens": "chat prompt, prefix and stop phrase; of linearized search what the model saw",
        "allocated": "with `training.allocation`: the filters that it counts for",
    },
    optional={"allocated": pl.List(pl.String)},
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
    "budget_forcing/{m}/{d}.thoughts.parquet",
    "what budget forcing added to a thought",
    {
        "extension": "from 1",
        "text": "a blank line and the marker, or the blank line alone after a cut",
        "tokens": "generated",
    },
)
VERDICT = {"answer": pl.String, "parsed": pl.Boolean, "correct": pl.Boolean, "cluster": pl.Int64}
SCORE = {"score": pl.Float64}
GRADES = Artifact(
    {"problem_id": pl.String, "sample": pl.Int64, **VERDICT},
    TRACE,
    "grades/{m}/{d}.rollouts.parquet",
    "rollouts, right or wrong",
    {
        "answer": "extracted",
        "correct": "the score is 1",
        "cluster": "equal answers of a problem share it; -1: unparseable",
        "score": "0 to 1, where an answer has partial credit",
    },
    optional=SCORE,
)
ANSWER_GRADES = Artifact(
    {"problem_id": pl.String, "sample": pl.Int64, "prefix": pl.Int64, "answer_index": pl.Int64, **VERDICT},
    ANSWER,
    "grades/{m}/{d}.prover.parquet",
    "forced answers, right or wrong; so `{d}.budget_forcing.parquet`, `{d}.linearized.parquet`",
    {"score": "0 to 1, where an answer has partial credit"},
    optional=SCORE,
)
FORCED = replace(PROVER, path="budget_forcing/{m}/{d}.parquet")
FORCED_GRADES = replace(ANSWER_GRADES, path="grades/{m}/{d}.budget_forcing.parquet")
LINEARIZED = replace(PROVER, path="linearized/{m}/{d}.parquet")
LINEARIZED_GRADES = replace(ANSWER_GRADES, path="grades/{m}/{d}.linearized.parquet")
PROGRESS = Artifact(
    {
        "problem_id": pl.String,
        "sample": pl.Int64,
        "prefix": pl.Int64,
        "episodes": pl.Int64,
        "prefix_tokens": pl.Int64,
        "tokens": pl.Float64,
        "answers": pl.Int64,
        "J": pl.Float64,
        "progress": pl.Float64,
    },
    PREFIX,
    "progress/{m}/{d}.parquet",
    "J and progress at every prefix",
    {
        "episodes": "k",
        "tokens": "that an answer there costs, without the problem's: z_0:j, what forces the answer, mean answer",
        "answers": "that J is the mean of; by likelihood, spellings that it is the sum over",
        "progress": "null at prefix 0",
    },
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
    "sets/{m}.parquet",
    "what SFT trains a model on",
    {"prefix": "episodes kept; null: the whole", "completion": "what carries the loss"},
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
        "context_tokens": pl.Int64,
        "leaf": pl.Boolean,
    },
    ["problem_id", "node"],
    "trees/{m}/{d}.parquet",
    "solution trees, a node a row",
    {
        "node": "0: the problem",
        "depth": "in steps",
        "text": "the step, with the blank line after it",
        "value": "right / visits",
        "visits": "rollouts that passed it, from where they were sampled on",
        "right": "right ones among them",
        "drawn": "rollouts sampled from it",
        "tokens": "of those",
        "context_tokens": "that those continue: chat prompt and steps; null if none was sampled",
        "leaf": "an answer",
    },
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
        "thinking": pl.String,
    },
    TRACE,
    "prompts/{m}.parquet",
    "what RL trains a model on",
    {
        "prefix": "j",
        "prefix_text": "z_0:j",
        "prompt": "chat prompt and z_0:j",
        "forced": "the same, told that time is up; empty unless MRT (RL)",
        "answer": "gold",
        "inside": "the chat prompt, or z_0:j behind it, leaves a thought open",
        "thinking": "the tags of a thought, as JSON; null for a model that writes none",
        "row": "the problem's row, as JSON, for tasks other than math",
    },
    optional={"row": pl.String},
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
    "costs/{m}.parquet",
    "what the training of a model and of its ancestors took",
    {"phase": "`rollouts`, `tree`, `prover`, `training`"},
)
RULES = Artifact(
    {"rule": pl.String, "kept": pl.Int64, "dropped": pl.Int64},
    [],
    "sets/{m}.rules.parquet",
    "what each rule of a training set kept and dropped, in the order applied",
)

TABLES = (
    *(PROBLEMS, ROLLOUTS, READING, EPISODES, PROVER, EXTENSIONS, GRADES, ANSWER_GRADES, PROGRESS, SET, RULES),
    *(RL_PROMPTS, TREE, COST),
)
OTHERS = {  # files that are no tables, or tables without a fixed schema here
    "problems/{d}.contamination.parquet": "of a training set: evaluation_set, problems, training_problems",
    "costs/{m}.before.parquet": "with `flops`: the rows of `costs/{m}.parquet` but the training's, added up before it",
    "models/{m}/": "a Hugging Face checkpoint: safetensors, tokenizer",
    "models/{m}.history.parquet": "what the trainer logged, a row an entry, as TRL names it",
    "models/{m}.log.parquet": "the log of a training, a row a step (`mrt/training/log.py`)",
    "figures/{name}.{pdf,png,parquet,csv}": "a figure, and the data that it shows",
    "tables/{name}.{md,tex,html,parquet,csv}": "a table, and its data",
    ".cache/{stage}/{m}/{d}/*.parquet": "the completion cache: key, text, tokens, finish_reason, mean_logprob",
    ".cache/models/{m}/{key}/": "a kept checkpoint of a training, its log and its digest",
    ".state/{m}/": "the trainer's state, to resume from",
}
