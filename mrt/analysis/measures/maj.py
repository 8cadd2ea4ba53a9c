"""maj@k and pass@k (Figures 7, 8, 17 to 20)."""

import polars as pl

from mrt.analysis.measure import Read, measure
from mrt.analysis.progress import graded
from mrt.analysis.votes import maj_at_k_table, pass_at_k
from mrt.core.artifacts import GRADES, ROLLOUTS, TRACE


@measure(
    ["problem_id", "k", "maj", "pass", "tokens", "samples", "correct", "answer_tokens"],
    keys=["problem_id", "k"],
    rollouts=Read(ROLLOUTS, [*TRACE, "tokens"]),
    grades=Read(GRADES, [*TRACE, "correct", "cluster"]),
)
def maj(rollouts: pl.DataFrame, grades: pl.DataFrame, ks: list[int], inserted: int = 0) -> pl.DataFrame:
    """maj@k and pass@k of each problem, against k times its mean tokens (Figures 7, 8, 17 to 20).

    `inserted` tokens, by which the prompt forces an answer, are added once, as at a prefix of [maj@p]_j.
    `tokens` are k times `answer_tokens`, the mean of the `samples`, of which `correct` are right.
    """
    joined = graded(rollouts.select(*TRACE, "tokens"), grades, TRACE)
    totals = joined.group_by("problem_id").agg(
        pl.len().cast(pl.Int64).alias("n"),
        pl.col("correct").sum().cast(pl.Int64).alias("c"),
        pl.col("tokens").mean().alias("answer_tokens"),
    )
    table = maj_at_k_table(joined, ["problem_id"], ks).join(totals, on="problem_id", validate="m:1")
    passes = pl.Series("pass", pass_at_k(table["n"].to_numpy(), table["c"].to_numpy(), table["k"].to_numpy()))
    return (
        table.with_columns(passes, (inserted + pl.col("k") * pl.col("answer_tokens")).alias("tokens"))
        .select(
            "problem_id",
            "k",
            "maj",
            "pass",
            "tokens",
            pl.col("n").alias("samples"),
            pl.col("c").alias("correct"),
            "answer_tokens",
        )
        .sort("problem_id", "k")
    )
