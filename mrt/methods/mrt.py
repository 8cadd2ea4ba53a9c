"""MRT (STaR): the prefix z_0:i of maximal cumulative progress, closed there, and a right answer (Algorithm 1).

Of every trace that makes progress, the set has the prefix and an answer y ~ mu(. | x, z_0:i) that is right.
"""

from typing import Literal

import polars as pl
from pydantic import Field

from mrt.core.artifacts import SET, TRACE
from mrt.episodes.parameterization import Backtracking
from mrt.episodes.thinking import THINK, of_cell
from mrt.sampling.allocation import ROUNDING, Thresholds
from mrt.training.method import SFTMethod
from mrt.training.sets import Filter, Source, suffix_set


class Rules(Thresholds):
    """Which traces enter a training set."""

    whole_trace_correct: bool = Field(False, description="MRT keeps a prefix only if the whole trace was right, too.")
    keep_stop_phrase: bool = Field(False, description='Leave "Time is up." in the text that MRT trains on.')
    weight: Literal["none", "progress"] = Field(
        "none", description="Loss weight of an MRT example: 1, or its cumulative progress (Appendix B.2)."
    )


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


def examples(source: Source, rules: Rules) -> tuple[pl.DataFrame, pl.DataFrame]:
    """MRT (STaR)'s examples and its table of rules."""
    rollouts, grades, episodes, progress = map(source.table, ("rollouts", "grades", "episodes", "progress"))
    if isinstance(source.parameterization, Backtracking):
        weighted, least = rules.weight == "progress", rules.minimum_progress
        return suffix_set(rollouts, grades, episodes, progress, minimum_progress=least, weighted=weighted)
    prover, prover_grades = source.table("prover"), source.table("prover_grades")
    template = source.parameterization.template
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
    thinks = pl.col("text").list.join("") != ""
    if not traces.select(thinks.all()).item():  # without a thought there is nothing to close
        filtered.keep("a thought", thinks)
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


mrt = SFTMethod("#D55E00", ("rollouts", "prover"), examples, settings=("rules", Rules))
