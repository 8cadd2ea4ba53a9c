"""Synthetic tables of any size, in the artifacts' columns (`mrt/core/artifacts.py`), for `benchmarks.scaling`.

Sizes are numbers of problems, samples (traces per problem), prefixes (episodes per trace) and answers (per prefix).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mrt.analysis.evaluate import PREFIXES
from mrt.core import artifacts

EPISODE = (
    "Wait, let me try {} + 4 again.\n\nThat makes {} in all, which is too much.\n\nSo some other pair is needed.\n\n"
)
OPENING = (
    "<|user|>Some of the numbers 3, 5, 9 add up to {}. What is the sum of the smallest and the largest?"
    "<|assistant|><think>\n"
)
WORDS = 4000  # distinct words of problem texts
COMMON = "As in every problem of this set, find the least positive integer for which the following statement holds. "

Sizes = dict[str, int]


def crossed(*columns: pl.DataFrame) -> pl.DataFrame:
    """Every combination of rows, in order."""
    found = columns[0]
    for column in columns[1:]:
        found = found.join(column, how="cross", maintain_order="left_right")
    return found


def numbered(name: str, count: int) -> pl.DataFrame:
    return pl.DataFrame({name: pl.int_range(count, eager=True)})


def traces(sizes: Sizes) -> pl.DataFrame:
    problems = numbered("problem_id", sizes["problems"]).select(
        pl.format("p{}", pl.col("problem_id").cast(pl.String).str.zfill(6))
    )
    return crossed(problems, numbered("sample", sizes["samples"]))


def answers(sizes: Sizes) -> pl.DataFrame:
    """Keys of forced answers, and at random which of eight answers each is."""
    found = crossed(
        traces(sizes), numbered("prefix", sizes["prefixes"] + 1), numbered("answer_index", sizes["answers"])
    )
    draw = np.random.default_rng(0)
    return found.with_columns(pl.Series("given", (draw.random(found.height) ** 2 * 8).astype(np.int64)))


def problems(sizes: Sizes) -> pl.DataFrame:
    """Problems of random words after a sentence that they all share, as those of one source do."""
    draw = np.random.default_rng(sizes.get("seed", 0))
    texts = [
        COMMON
        + " ".join(f"{chr(97 + w % 26)}w{'abcdefghij'[w % 10]}{'x' * (w // 400)}" for w in draw.integers(0, WORDS, 60))
        for _ in range(sizes["problems"])
    ]
    return traces({**sizes, "samples": 1}).select(
        pl.col("problem_id").alias("id"),
        pl.Series("problem", texts),
        pl.lit("3").alias("answer"),
        pl.lit(None, pl.String).alias("solution"),
        pl.lit(1.0).alias("difficulty"),
        pl.lit("synthetic").alias("source"),
        pl.lit("train").alias("split"),
    )


def rollouts(sizes: Sizes) -> pl.DataFrame:
    thought = "".join(EPISODE.format(i, i + 4) for i in range(sizes["prefixes"]))
    found = traces(sizes)
    given = pl.Series("given", np.random.default_rng(1).integers(0, 8, found.height))
    return found.with_columns(given).select(
        *artifacts.TRACE,
        pl.format(OPENING, "problem_id").alias("prompt"),
        pl.concat_str(pl.lit(thought + "</think>\n\nThe answer is \\boxed{"), "given", pl.lit("}.")).alias("text"),
        (pl.col("given") + 40 * sizes["prefixes"]).alias("tokens"),
        pl.lit(70, pl.Int64).alias("prompt_tokens"),
        pl.lit("stop").alias("finish_reason"),
        pl.lit(-0.5).alias("mean_logprob"),
    )


def grades(sizes: Sizes) -> pl.DataFrame:
    given = pl.Series("given", np.random.default_rng(1).integers(0, 8, traces(sizes).height))
    return traces(sizes).with_columns(given).select(*artifacts.TRACE, *verdict())


def verdict() -> list[pl.Expr]:
    given = pl.col("given")
    return [
        given.cast(pl.String).alias("answer"),
        pl.lit(True).alias("parsed"),
        (given == 3).alias("correct"),
        given.alias("cluster"),
    ]


def episodes(sizes: Sizes) -> pl.DataFrame:
    texts = pl.DataFrame(
        {"episode": range(sizes["prefixes"]), "text": [EPISODE.format(i, i + 4) for i in range(sizes["prefixes"])]}
    )
    return crossed(traces(sizes), texts.cast({"episode": pl.Int64})).with_columns(pl.lit(True).alias("closed"))


def prover(sizes: Sizes) -> pl.DataFrame:
    return answers(sizes).select(
        *artifacts.ANSWER,
        pl.concat_str(pl.lit("Some of the numbers.\n\nSo it is \\boxed{"), "given", pl.lit("}.")).alias("text"),
        (pl.col("given") + 12).alias("tokens"),
        pl.lit(70, pl.Int64).alias("problem_tokens"),
        (pl.col("prefix") * 40).alias("prefix_tokens"),
        (pl.col("prefix") * 40 + 90).alias("prompt_tokens"),
        pl.lit("stop").alias("finish_reason"),
        pl.lit(None, pl.Float64).alias("mean_logprob"),
    )


def prover_grades(sizes: Sizes) -> pl.DataFrame:
    return answers(sizes).select(*artifacts.ANSWER, *verdict())


def progress(sizes: Sizes) -> pl.DataFrame:
    found = crossed(traces(sizes), numbered("prefix", sizes["prefixes"] + 1))
    right = pl.Series("J", np.random.default_rng(2).integers(0, 9, found.height) / 8)
    return found.with_columns(right).select(
        *artifacts.PREFIX,
        pl.lit(sizes["prefixes"], pl.Int64).alias("episodes"),
        (pl.col("prefix") * 40).alias("prefix_tokens"),
        (pl.col("prefix") * 40.0 + 36).alias("tokens"),
        pl.lit(8, pl.Int64).alias("answers"),
        "J",
        pl.col("J").diff().over(artifacts.TRACE).alias("progress"),
    )


def prefixes(sizes: Sizes) -> pl.DataFrame:
    """The measure `prefixes` of `mrt.analysis.evaluate`."""
    votes = pl.DataFrame({"p": [1, 2, 4, 8]})
    found = crossed(traces(sizes), numbered("prefix", sizes["prefixes"] + 1), votes)
    return found.with_columns(
        pl.lit(sizes["prefixes"], pl.Int64).alias("episodes"),
        pl.Series("maj", np.random.default_rng(3).random(found.height)),
        (pl.col("prefix") * 40.0).alias("tokens"),
    ).select(list(PREFIXES))


def examples(sizes: Sizes) -> pl.DataFrame:
    """A training set."""
    return rollouts(sizes).select(
        *artifacts.TRACE,
        pl.lit(None, pl.Int64).alias("prefix"),
        "prompt",
        pl.col("text").alias("completion"),
        pl.lit(1.0).alias("weight"),
    )


MAKERS: dict[str, tuple[Callable[[Sizes], pl.DataFrame], Any]] = {
    "problems": (problems, artifacts.PROBLEMS),
    "others": (lambda sizes: problems({**sizes, "seed": 1}), artifacts.PROBLEMS),
    "rollouts": (rollouts, artifacts.ROLLOUTS),
    "grades": (grades, artifacts.GRADES),
    "episodes": (episodes, artifacts.EPISODES),
    "prover": (prover, artifacts.PROVER),
    "prover_grades": (prover_grades, artifacts.ANSWER_GRADES),
    "progress": (progress, artifacts.PROGRESS),
    "prefixes": (prefixes, None),
    "examples": (examples, artifacts.SET),
}


def make(folder: str, kinds: list[str], sizes: Sizes) -> None:
    """Write tables of some kinds, as `<folder>/<kind>.parquet`."""
    for kind in kinds:
        table, artifact = MAKERS[kind][0](sizes), MAKERS[kind][1]
        if artifact and dict(table.schema) != dict(artifact.columns):
            raise ValueError(f"{kind}: columns {dict(table.schema)} where {dict(artifact.columns)} belong")
        table.write_parquet(Path(folder) / f"{kind}.parquet")
