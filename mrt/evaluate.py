"""Measurements of one model on one problem set, one row a problem (or a trace); figures and tables aggregate them.

    python -m mrt.evaluate --measure regret --progress progress.parquet --budgets 64 --budgets 256 --out regret.parquet

| measure | columns |
|---|---|
| accuracy | problem_id, difficulty, samples, accuracy, tokens and characters (means), unfinished, unparsed (shares) |
| maj | problem_id, k, maj, pass, tokens (k times the mean of the problem's completions) |
| regret | problem_id, budget, regret (mean over the problem's traces) |
| prefixes | problem_id, sample, episodes, prefix, p, maj, tokens (prompt with prefix and stop phrase, and p answers) |
| episodes | problem_id, sample, episodes, closed |
| progress | problem_id, sample, prefix, episodes, J, progress |
"""

from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import Field

from mrt import artifacts
from mrt.artifacts import PREFIX, TRACE
from mrt.cli import Stage, run
from mrt.episodes import CLOSE
from mrt.metrics import maj_at_k_table, pass_at_k
from mrt.regret import normalized_regret_table
from mrt.storage import write_table

KINDS = {
    "problems": artifacts.PROBLEMS,
    "rollouts": artifacts.ROLLOUTS,
    "grades": artifacts.GRADES,
    "episodes": artifacts.EPISODES,
    "prover": artifacts.PROVER,
    "progress": artifacts.PROGRESS,
}
Measure = Literal["accuracy", "maj", "regret", "prefixes", "episodes", "progress"]


def accuracy(problems: pl.DataFrame, rollouts: pl.DataFrame, grades: pl.DataFrame) -> pl.DataFrame:
    """Mean accuracy and length of each problem's completions (Table 1)."""
    return (
        rollouts.join(grades, on=TRACE, validate="1:1")
        .group_by("problem_id")
        .agg(
            pl.len().alias("samples"),
            pl.col("correct").mean().alias("accuracy"),
            pl.col("tokens").mean(),
            pl.col("text").str.len_chars().mean().alias("characters"),
            (~pl.col("text").str.contains(CLOSE, literal=True)).mean().alias("unfinished"),
            (~pl.col("parsed")).mean().alias("unparsed"),
        )
        .join(problems.select(pl.col("id").alias("problem_id"), "difficulty"), on="problem_id", validate="1:1")
        .sort("problem_id")
    )


def maj(rollouts: pl.DataFrame, grades: pl.DataFrame, ks: list[int]) -> pl.DataFrame:
    """maj@k and pass@k of each problem, against k times its mean tokens (Figures 7, 17 to 19)."""
    joined = rollouts.select(*TRACE, "tokens").join(grades, on=TRACE, validate="1:1")
    totals = joined.group_by("problem_id").agg(
        pl.len().alias("n"), pl.col("correct").sum().alias("c"), pl.col("tokens").mean()
    )
    table = maj_at_k_table(joined, ["problem_id"], ks).join(totals, on="problem_id", validate="m:1")
    passes = pl.Series("pass", pass_at_k(table["n"].to_numpy(), table["c"].to_numpy(), table["k"].to_numpy()))
    return (
        table.with_columns(passes, (pl.col("k") * pl.col("tokens")).alias("tokens"))
        .select("problem_id", "k", "maj", "pass", "tokens")
        .sort("problem_id", "k")
    )


def prefixes(prover: pl.DataFrame, grades: pl.DataFrame, votes: list[int]) -> pl.DataFrame:
    """[maj@p]_j of each trace at each prefix (Section 5, Figures 3, 24 to 28)."""
    joined = prover.join(grades, on=[*PREFIX, "answer_index"], validate="1:1")
    costs = joined.group_by(PREFIX).agg(pl.col("prompt_tokens").first(), pl.col("tokens").mean().alias("answer_tokens"))
    lengths = joined.group_by(TRACE).agg(pl.col("prefix").max().alias("episodes"))
    return (
        maj_at_k_table(joined, PREFIX, votes)
        .rename({"k": "p"})
        .join(costs, on=PREFIX, validate="m:1")
        .join(lengths, on=TRACE, validate="m:1")
        .with_columns((pl.col("prompt_tokens") + pl.col("p") * pl.col("answer_tokens")).alias("tokens"))
        .select(*TRACE, "episodes", "prefix", "p", "maj", "tokens")
        .sort(*PREFIX, "p")
    )


def regret(progress: pl.DataFrame, budgets: list[int]) -> pl.DataFrame:
    """Normalized regret of each problem at each token budget, the mean over its traces (Section 8.5.1, Figure 9)."""
    return (
        normalized_regret_table(progress, budgets)
        .group_by("problem_id", "budget")
        .agg(pl.col("regret").mean())
        .sort("problem_id", "budget")
    )


def episode_counts(episodes: pl.DataFrame) -> pl.DataFrame:
    """How many episodes each thought has (Figure 23)."""
    return episodes.group_by(TRACE).agg(pl.len().alias("episodes"), pl.col("closed").first()).sort(TRACE)


class Evaluate(Stage):
    """Measure one model on one problem set."""

    measure: Measure = Field(description="What is measured; each needs the artifacts that its table is made from.")
    out: Path = Field(description="Table of the measure (Parquet).")
    problems: Path | None = Field(None, description="Problem set (Parquet).")
    rollouts: Path | None = Field(None, description="Rollouts (Parquet).")
    grades: Path | None = Field(None, description="Grades of the rollouts, or for `prefixes` of the forced answers.")
    episodes: Path | None = Field(None, description="Episodes (Parquet).")
    prover: Path | None = Field(None, description="Forced answers (Parquet).")
    progress: Path | None = Field(None, description="Progress (Parquet).")
    ks: list[int] = Field([1, 2, 4, 8], description="Votes of maj@k and draws of pass@k.")
    votes: list[int] = Field([1, 2, 4, 8], description="Votes p of [maj@p]_j.")
    budgets: list[int] = Field([4096, 8192, 12288, 16384], description="Token budgets C_0.")

    def table(self, name: str) -> pl.DataFrame:
        path = getattr(self, name)
        if path is None:
            raise ValueError(f"--measure {self.measure} needs --{name}")
        kind = artifacts.ANSWER_GRADES if (name, self.measure) == ("grades", "prefixes") else KINDS[name]
        return kind.read(path)

    def cli_cmd(self) -> None:
        match self.measure:
            case "accuracy":
                result = accuracy(self.table("problems"), self.table("rollouts"), self.table("grades"))
            case "maj":
                result = maj(self.table("rollouts"), self.table("grades"), self.ks)
            case "prefixes":
                result = prefixes(self.table("prover"), self.table("grades"), self.votes)
            case "regret":
                result = regret(self.table("progress"), self.budgets)
            case "episodes":
                result = episode_counts(self.table("episodes"))
            case "progress":
                result = self.table("progress").select(*PREFIX, "episodes", "J", "progress")
        write_table(result, self.out)
        print(f"{self.measure}: {result.height} rows")


if __name__ == "__main__":
    run(Evaluate)
