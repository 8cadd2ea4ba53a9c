"""Training sets: the examples of a method, made from tables, and the rules that it applies to them.

    python -m mrt.training.sets --method star --rollouts rollouts.parquet --grades grades.parquet \\
        --out set.parquet --out_rules set.rules.parquet

How examples are made is in the method's file (`mrt/methods/`). Rules apply in the order of the table written beside the
set, which counts the traces that each rule kept and dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field, ValidationError

from mrt.analysis.progress import progress_table
from mrt.core.artifacts import (
    ANSWER,
    ANSWER_GRADES,
    EPISODES,
    GRADES,
    PROBLEMS,
    PROGRESS,
    PROVER,
    ROLLOUTS,
    RULES,
    SET,
    TRACE,
    TREE,
)
from mrt.core.cli import Stage, run
from mrt.core.hub import folder_of, tokenizer_of
from mrt.core.plugins import located
from mrt.episodes.parameterization import Backtracking, OpenEnded, Parameterization
from mrt.episodes.thinking import THINK, Thinking
from mrt.sampling.allocation import ROUNDING, Thresholds
from mrt.sampling.prompt import Prompt
from mrt.training.method import SFTMethod, method_named, parts_of

TABLES = {
    "rollouts": ROLLOUTS,
    "grades": GRADES,
    "episodes": EPISODES,
    "progress": PROGRESS,
    "prover": PROVER,
    "prover_grades": ANSWER_GRADES,
    "tree": TREE,
    "problems": PROBLEMS,
}
READ = {  # the tables of each item of a method's `reads`
    "rollouts": ("rollouts", "grades"),
    "prover": ("episodes", "progress", "prover", "prover_grades"),
    "attempts": ("episodes",),  # with backtracking alone
    "trees": ("tree",),
    "tokenizer": ("problems",),
}


def tables_of(method: SFTMethod, *, backtracking: bool) -> list[str]:
    """The tables that a method's examples are made from."""
    items = [item for item in method.reads if item != "attempts" or backtracking]
    return list(dict.fromkeys(table for item in items for table in READ[item]))


@dataclass
class Source:
    """The source of the examples of a method: tables and settings."""

    files: Mapping[str, Path]  # of the tables that it reads
    parameterization: Parameterization
    prompt: Prompt
    seed: int
    model: tuple[str, str | None] | None = None  # to train, with its revision, of a method that reads the tokenizer
    rule: Thresholds | None = None  # of a method that filters by J

    def table(self, name: str) -> pl.DataFrame:
        """A table of TABLES. Raises ValueError if the method's `reads` has it not.

        Of answers that were allocated to several filters, and of their J, it has those of the method's own filter.
        """
        if name not in self.files:
            raise ValueError(f"the table {name} is none of {', '.join(self.files)}; add it to `reads` of the method")
        if name in ("prover", "prover_grades", "progress") and self.allocated is not None:
            if name == "progress":
                return progress_table(self.table("prover"), self.table("prover_grades"))
            table = TABLES[name].read(self.files[name])
            return table.join(self.allocated, on=ANSWER, how="semi", maintain_order="left")
        return TABLES[name].read(self.files[name])

    @cached_property
    def allocated(self) -> pl.DataFrame | None:
        """The keys of the answers that were allocated to the filter; None if all prefixes have all answers."""
        if self.rule is None:
            return None
        answers = PROVER.read(self.files["prover"], [*ANSWER, "allocated"])
        if "allocated" not in answers.columns:
            return None
        return answers.filter(pl.col("allocated").list.contains(self.rule.key)).select(ANSWER)


class ModelTexts:
    """How the model to train reads and writes. Raises ValueError if the method's `reads` has no `tokenizer`."""

    def __init__(self, source: Source) -> None:
        if source.model is None:
            raise ValueError("there is no tokenizer; add it to `reads` of the method")
        self.tokenizer = tokenizer_of(folder_of(*source.model))
        problems = source.table("problems").select("id", "problem")
        self.prompts = {name: source.prompt.render(self.tokenizer, text) for name, text in problems.iter_rows()}
        self.thinking: Thinking = source.prompt.thinking_of(self.tokenizer) or THINK

    def count_tokens(self, texts: list[str]) -> list[int]:
        """Tokens of each text."""
        return [len(ids) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]] if texts else []


class Filter:
    """Applies rules one after the other and remembers how many rows each kept and dropped."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self.rows = rows
        self.counts: list[tuple[str, int, int]] = [("sampled", rows.height, 0)]

    def keep(self, rule: str, condition: pl.Expr) -> None:
        kept = self.rows.filter(condition)
        self.counts.append((rule, kept.height, self.rows.height - kept.height))
        self.rows = kept

    def table(self) -> pl.DataFrame:
        return pl.DataFrame(self.counts, schema=RULES.columns, orient="row")


def suffix_set(
    rollouts: pl.DataFrame,
    grades: pl.DataFrame,
    episodes: pl.DataFrame,
    progress: pl.DataFrame | None = None,
    *,
    minimum_progress: float = 0.0,
    weighted: bool = False,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Examples in the backtracking parameterization, and their table of rules (Appendix A.1).

    A trace is attempt, backtrack, revision. The completion to learn is the suffix from the backtrack on; the attempt
    belongs to the prompt. The revision must be right. With `progress`, for MRT (STaR), the backtrack's progress must be
    above `minimum_progress`, and is the loss weight if `weighted`. Without it, for STaR, right single attempts are
    learnt too.
    """
    parts = (
        episodes.sort(*TRACE, "episode")
        .group_by(TRACE, maintain_order=True)
        .agg(pl.col("text").alias("episodes"), pl.col("closed").first())
    )
    traces = (
        rollouts.join(grades.select(*TRACE, "correct"), on=TRACE, validate="1:1")
        .join(parts, on=TRACE, validate="1:1")
        .with_columns(pl.col("episodes").list.len().alias("count"))
    )
    if progress is not None:
        of_backtrack = progress.filter(pl.col("prefix") == 2).select(*TRACE, pl.col("progress").alias("gain"))
        traces = traces.join(of_backtrack, on=TRACE, how="left", validate="1:1")
    filtered = Filter(traces)
    filtered.keep(
        "ended by itself, with an answer in the last episode",
        (pl.col("finish_reason") != "length") & pl.col("closed"),
    )
    if progress is None:
        filtered.keep("one attempt, or attempt, backtrack, revision", pl.col("count").is_in([1, 3]))
    else:
        filtered.keep("attempt, backtrack, revision", pl.col("count") == 3)
    filtered.keep("last answer right", pl.col("correct"))
    if progress is not None:
        filtered.keep(
            f"progress of the backtrack above {minimum_progress:g}",
            pl.col("gain") > minimum_progress + ROUNDING,
        )
    rows = []
    for row in filtered.rows.iter_rows(named=True):
        attempt = row["episodes"][0] if row["count"] == 3 else ""
        weight = row["gain"] if weighted else 1.0
        kept = 1 if attempt else None
        suffix = "".join(row["episodes"])[len(attempt) :]
        rows.append((row["problem_id"], row["sample"], kept, row["prompt"] + attempt, suffix, weight))
    return pl.DataFrame(rows, schema=SET.columns, orient="row").sort(TRACE), filtered.table()


class MakeSet(Stage):
    """Make a training set from tables of the parent or of a teacher."""

    method: str = Field(description="The method: a name of mrt/methods, or FILE.py:NAME.")
    rollouts: Path | None = Field(None, description="Rollouts (Parquet).")
    grades: Path | None = Field(None, description="Grades of the rollouts (Parquet).")
    episodes: Path | None = Field(None, description="Episodes (Parquet).")
    progress: Path | None = Field(None, description="Progress (Parquet).")
    prover: Path | None = Field(None, description="Forced answers (Parquet).")
    prover_grades: Path | None = Field(None, description="Grades of the forced answers (Parquet).")
    tree: Path | None = Field(None, description="Nodes of solution trees (Parquet).")
    problems: Path | None = Field(None, description="Dataset (Parquet).")
    model: str | None = Field(None, description="Checkpoint folder or hub id of the model to train, for its tokenizer.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    prompt: Prompt = Field(default_factory=Prompt, description="How a problem becomes a prompt.")
    parameterization: Parameterization = Field(
        default_factory=OpenEnded, description="How mu closed the thought, or how a backtrack is written."
    )
    seed: int = Field(0, ge=0, description="Seed of the method's random choices.")
    method_settings: dict[str, Any] = Field({}, description="Settings of the method itself, as JSON.")
    joins: bool = Field(False, description="The set may be empty, as sets of earlier iterations are learnt, too.")
    out: Path = Field(description="Training set (Parquet).")
    out_rules: Path = Field(description="Table of rules: number of traces that each kept and dropped (Parquet).")

    def plugins(self) -> tuple[str, ...]:
        return tuple(parts_of(self.method))

    def cli_cmd(self) -> None:
        method = method_named(self.method)
        if not isinstance(method, SFTMethod):
            raise ValueError(f"{self.method} is a method of RL, which learns from no set")
        needed = tables_of(method, backtracking=isinstance(self.parameterization, Backtracking))
        files: dict[str, Path | None] = {name: getattr(self, name) for name in needed}
        needs_model = "tokenizer" in method.reads
        lacking = [name for name, file in files.items() if file is None]
        lacking += ["model"] if needs_model and self.model is None else []
        if lacking:
            raise ValueError(f"--method {self.method} needs {', '.join(f'--{name}' for name in lacking)}")
        source = Source(
            {name: file for name, file in files.items() if file},
            self.parameterization,
            self.prompt,
            self.seed,
            (self.model, self.revision) if needs_model and self.model else None,
        )
        settings = []
        if method.settings:
            try:
                settings.append(method.settings[1].model_validate(self.method_settings))
            except ValidationError as error:
                raise ValueError(f"method_settings: {error}") from error
            source.rule = settings[0] if isinstance(settings[0], Thresholds) else None
        with located(method.examples):
            examples, rules = method.examples(source, *settings)
        RULES.write(rules, self.out_rules)
        for rule, kept, dropped in rules.iter_rows():
            print(f"{rule}: {kept} kept, {dropped} dropped", flush=True)
        if examples.is_empty() and not self.joins:
            raise ValueError(f"{self.out}: the training set is empty. {why_empty(rules)}")
        SET.write(examples, self.out)


def why_empty(rules: pl.DataFrame) -> str:
    """Which rules dropped how many of what, and what to change."""
    dropped = [f"{count} by `{rule}`" for rule, _, count in rules.iter_rows() if count]
    first = [f"{kept} {rule}" for rule, kept, _ in rules.head(1).iter_rows()]
    lost = (
        f"Of {first[0]}, these were dropped: {', '.join(dropped)}" if first and dropped else "There was nothing to keep"
    )
    return (
        f"{lost}. Look at them with `mrt traces`; then loosen what drops most (`rules`), raise training.samples, add"
        " problems, raise training.decoding.max_tokens where thoughts are cut off, or teach the parent first"
    )


if __name__ == "__main__":
    run(MakeSet)
