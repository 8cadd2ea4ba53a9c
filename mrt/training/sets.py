"""Training sets: which traces a method learns from, and where they are cut (Section 7.1, Algorithm 1).

    python -m mrt.training.sets --method star --rollouts rollouts.parquet --grades grades.parquet \\
        --out set.parquet --out_rules set.rules.parquet

STaR keeps every trace whose answer is right, in full. MRT (STaR) keeps the prefix z_0:i of maximal cumulative progress
of every trace that makes progress, closes the thought there, and adds a right answer y ~ mu(. | x, z_0:i). The rules
apply in the order of the table written beside the set, which counts the traces that each rule kept and dropped.
"""

from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import Field

from mrt.core.artifacts import ANSWER_GRADES, EPISODES, GRADES, PROGRESS, PROVER, ROLLOUTS, RULES, SET, TRACE
from mrt.core.cli import Stage, run
from mrt.episodes.parameterization import Backtracking, OpenEnded, Parameterization, Template
from mrt.episodes.thinking import THINK, of_cell, take_apart
from mrt.sampling.allocation import ROUNDING, Thresholds
from mrt.training.methods import TraceMethod


class Rules(Thresholds):
    """Which traces enter a training set."""

    whole_trace_correct: bool = Field(False, description="MRT keeps a prefix only if the whole trace was right too.")
    keep_stop_phrase: bool = Field(False, description='Leave "Time is up." in the text that MRT trains on.')
    weight: Literal["none", "progress"] = Field(
        "none", description="Loss weight of an MRT example: 1, or its cumulative progress (Appendix B.2)."
    )


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


def star_set(rollouts: pl.DataFrame, grades: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """STaR's examples and its table of rules, from rollouts and grades (correct)."""
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


def best_prefixes(progress: pl.DataFrame, tolerance: float = 0.0) -> pl.DataFrame:
    """The prefix of maximal cumulative progress of each trace, the shortest one in a tie or within `tolerance`.

    Columns problem_id, sample, prefix, episodes, J, gain; `gain` is the cumulative progress J_i - J_0 (Algorithm 1,
    line 8). Not eligible are the empty prefix and any prefix with fewer answers than another of its trace, on which
    adaptive allocation gave up (mrt.sampling.allocation).
    """
    cumulative = progress.sort(*TRACE, "prefix").with_columns(
        (pl.col("J") - pl.col("J").first()).over(TRACE).alias("gain")
    )
    return (
        cumulative.filter(pl.col("prefix") > 0)
        .filter((pl.col("answers") == pl.col("answers").max()).over(TRACE))
        .filter((pl.col("gain") >= pl.col("gain").max() - tolerance - ROUNDING).over(TRACE))
        .sort(*TRACE, "prefix")
        .group_by(TRACE, maintain_order=True)
        .agg(pl.col("prefix", "episodes", "J", "gain").first())
    )


def mrt_set(
    rollouts: pl.DataFrame,
    grades: pl.DataFrame,
    episodes: pl.DataFrame,
    progress: pl.DataFrame,
    prover: pl.DataFrame,
    prover_grades: pl.DataFrame,
    rules: Rules,
    template: Template,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """MRT (STaR)'s examples and its table of rules; the tables are those of docs/artifacts.md."""
    answered = prover.join(
        prover_grades.select(*TRACE, "prefix", "answer_index", "correct"), on=[*TRACE, "prefix", "answer_index"]
    )
    right = (
        answered.filter(pl.col("correct") & (pl.col("finish_reason") == "stop"))
        .sort(*TRACE, "prefix", "answer_index")
        .group_by([*TRACE, "prefix"], maintain_order=True)
        .agg(pl.col("text").first().alias("y"))
    )
    thoughts = (
        episodes.sort(*TRACE, "episode").group_by(TRACE, maintain_order=True).agg("text", pl.col("closed").first())
    )
    traces = (
        best_prefixes(progress, rules.tolerance)
        .join(rollouts.select(*TRACE, "prompt", "thinking"), on=TRACE, validate="1:1")
        .join(grades.select(*TRACE, pl.col("correct").alias("whole_correct")), on=TRACE, validate="1:1")
        .join(thoughts, on=TRACE, validate="1:1")
        .join(right, on=[*TRACE, "prefix"], how="left", validate="1:1")
    )
    filtered = Filter(traces)
    filtered.keep(
        f"cumulative progress above {rules.minimum_progress:g}", pl.col("gain") > rules.minimum_progress + ROUNDING
    )
    if rules.minimum_J:
        filtered.keep(f"J at least {rules.minimum_J:g}", pl.col("J") >= rules.minimum_J)
    if rules.whole_trace_correct:
        filtered.keep("whole trace right", pl.col("whole_correct"))
    filtered.keep("a right answer y that ended by itself", pl.col("y").is_not_null())
    rows = []
    for row in filtered.rows.iter_rows(named=True):
        prefix = "".join(row["text"][: row["prefix"]])
        whole = row["closed"] and row["prefix"] == row["episodes"]
        thinking = of_cell(row["thinking"]) or THINK
        stop = rules.keep_stop_phrase
        opening = template.finish(prefix, thinking) if whole else template.force(prefix, stop=stop, thinking=thinking)
        weight = row["gain"] if rules.weight == "progress" else 1.0
        rows.append((row["problem_id"], row["sample"], row["prefix"], row["prompt"], opening + row["y"], weight))
    return pl.DataFrame(rows, schema=SET.columns, orient="row").sort(TRACE), filtered.table()


def suffix_set(
    rollouts: pl.DataFrame,
    grades: pl.DataFrame,
    episodes: pl.DataFrame,
    progress: pl.DataFrame | None,
    rules: Rules,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Examples in the backtracking parameterization, and their table of rules (Appendix A.1).

    A trace is attempt, backtrack, revision. The completion to learn is the suffix from the backtrack on; the attempt
    belongs to the prompt. The revision must be right. With `progress`, for MRT (STaR), the backtrack's progress must be
    above `minimum_progress`, and may be the loss weight. Without it, for STaR, right single attempts are learnt too.
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
            f"progress of the backtrack above {rules.minimum_progress:g}",
            pl.col("gain") > rules.minimum_progress + ROUNDING,
        )
    rows = []
    for row in filtered.rows.iter_rows(named=True):
        attempt = row["episodes"][0] if row["count"] == 3 else ""
        weight = row["gain"] if progress is not None and rules.weight == "progress" else 1.0
        kept = 1 if attempt else None
        suffix = "".join(row["episodes"])[len(attempt) :]
        rows.append((row["problem_id"], row["sample"], kept, row["prompt"] + attempt, suffix, weight))
    return pl.DataFrame(rows, schema=SET.columns, orient="row").sort(TRACE), filtered.table()


class SetStage(Stage):
    """A stage that makes a training set, and a table of its rules."""

    out: Path = Field(description="Training set (Parquet).")
    out_rules: Path = Field(description="Table of rules: how many traces each kept and dropped (Parquet).")

    def write(self, examples: pl.DataFrame, rules: pl.DataFrame) -> None:
        """Write the set and its rules, and print how many traces each rule kept and dropped."""
        RULES.write(rules, self.out_rules)
        SET.write(examples, self.out)
        for rule, kept, dropped in rules.iter_rows():
            print(f"{rule}: {kept} kept, {dropped} dropped")


class MakeSet(SetStage):
    """Filter graded and scored traces into a training set."""

    method: TraceMethod = Field(description="star: right traces, whole; mrt: prefixes of maximal progress.")
    rollouts: Path = Field(description="Rollouts (Parquet).")
    grades: Path = Field(description="Grades of the rollouts (Parquet).")
    episodes: Path | None = Field(None, description="Episodes (Parquet); for mrt, and for star in backtracking.")
    progress: Path | None = Field(None, description="Progress (Parquet); mrt only.")
    prover: Path | None = Field(None, description="Forced answers (Parquet); mrt only.")
    prover_grades: Path | None = Field(None, description="Grades of the forced answers (Parquet); mrt only.")
    rules: Rules = Field(default_factory=Rules, description="Which traces enter.")
    parameterization: Parameterization = Field(default_factory=OpenEnded, description="How mu closed the thought.")

    def cli_cmd(self) -> None:
        rollouts, grades = ROLLOUTS.read(self.rollouts), GRADES.read(self.grades)
        if isinstance(self.parameterization, Backtracking):
            if self.episodes is None or (self.progress is None and self.method == "mrt"):
                raise ValueError("in the backtracking parameterization --episodes is needed, by mrt --progress too")
            examples, counts = suffix_set(
                rollouts,
                grades,
                EPISODES.read(self.episodes),
                PROGRESS.read(self.progress) if self.method == "mrt" and self.progress else None,
                self.rules,
            )
        elif self.method == "star":
            examples, counts = star_set(rollouts, grades)
        else:
            if self.episodes is None or self.progress is None or self.prover is None or self.prover_grades is None:
                raise ValueError("--method mrt needs --episodes, --progress, --prover and --prover_grades")
            examples, counts = mrt_set(
                rollouts,
                grades,
                episodes=EPISODES.read(self.episodes),
                progress=PROGRESS.read(self.progress),
                prover=PROVER.read(self.prover),
                prover_grades=ANSWER_GRADES.read(self.prover_grades),
                rules=self.rules,
                template=self.parameterization.template,
            )
        self.write(examples, counts)


if __name__ == "__main__":
    run(MakeSet)
