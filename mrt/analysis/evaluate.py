"""Measurements of one model on one dataset, one row per problem (or trace); figures and tables aggregate them.

    python -m mrt.analysis.evaluate --measure regret --progress progress.parquet --budgets 64 --budgets 256 \\
        --out regret.parquet

| measure | columns |
|---|---|
| accuracy | problem_id, difficulty, samples, accuracy, tokens and characters (means), unfinished, unparsed (shares) |
| maj | problem_id, k, maj, pass, tokens (k times answer_tokens), samples, correct (of these), answer_tokens (mean) |
| regret | problem_id, extensions (0 within the budget), budget, regret (mean over traces), samples (traces) |
| episode_regret | problem_id, episodes, regret, hopeless, reached (means over traces), samples (traces) |
| budget_forcing | problem_id, sample, extensions, accuracy, thought_tokens, tokens (with an answer) |
| prefixes | problem_id, sample, episodes, prefix, p, maj, tokens (of the prefix, the stop phrase and p answers); |
| | answers (sampled there), answer_tokens (mean); half-way affordable, affordable_maj (`halfway`) |
| episodes | problem_id, sample, episodes, closed |
| linearized | problem_id, k (first attempts), maj, pass, tokens (by then, markers too): means over samples (texts) |
"""

from math import inf
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import Field

from mrt.analysis.progress import KIND, LENGTHS, affordable, graded, progress_table, spent
from mrt.analysis.regret import episode_regret_table, normalized_regret_table
from mrt.analysis.votes import maj_at_k_table, pass_at_k
from mrt.core import artifacts
from mrt.core.artifacts import ANSWER, PREFIX, TRACE
from mrt.core.cli import Stage, run
from mrt.core.storage import read_table, write_table
from mrt.episodes.thinking import has_answer_part

KINDS = {
    "problems": artifacts.PROBLEMS,
    "rollouts": artifacts.ROLLOUTS,
    "grades": artifacts.GRADES,
    "episodes": artifacts.EPISODES,
    "prover": artifacts.PROVER,
    "progress": artifacts.PROGRESS,
}
Measure = Literal["accuracy", "maj", "regret", "prefixes", "episode_regret", "budget_forcing", "episodes", "linearized"]
PREFIXES = {"problem_id": pl.String, "sample": pl.Int64, "episodes": pl.Int64, "prefix": pl.Int64, "p": pl.Int64}
PREFIXES |= {"maj": pl.Float64, "tokens": pl.Float64}
HALFWAY = ("affordable", "affordable_maj")
FORCED = {"problem_id": pl.String, "sample": pl.Int64, "extensions": pl.Int64}
FORCED |= {"accuracy": pl.Float64, "thought_tokens": pl.Int64, "tokens": pl.Float64}
AXES = {"answer": "tokens", "thought": "prefix_tokens"}  # columns of the progress artifact
Axis = Literal["answer", "thought"]


def accuracy(
    problems: pl.DataFrame, rollouts: pl.DataFrame, grades: pl.DataFrame, closing: str | None = None
) -> pl.DataFrame:
    """Mean accuracy and length of each problem's completions (Table 1).

    A completion is finished if it holds `closing`, or, without one, if it leaves no thought open.
    """
    rows = rollouts.select("text", "inside", "thinking").iter_rows()
    finished = [closing in text if closing else has_answer_part(text, inside, tags) for text, inside, tags in rows]
    rollouts = rollouts.with_columns(pl.Series("finished", finished, pl.Boolean))
    return (
        graded(rollouts, grades, TRACE)
        .group_by("problem_id")
        .agg(
            pl.len().alias("samples"),
            pl.col("score" if "score" in grades.columns else "correct").mean().alias("accuracy"),
            pl.col("tokens").mean(),
            pl.col("text").str.len_chars().mean().alias("characters"),
            (~pl.col("finished")).mean().alias("unfinished"),
            (~pl.col("parsed")).mean().alias("unparsed"),
        )
        .join(problems.select(pl.col("id").alias("problem_id"), "difficulty"), on="problem_id", validate="1:1")
        .sort("problem_id")
    )


def maj(rollouts: pl.DataFrame, grades: pl.DataFrame, ks: list[int], inserted: int = 0) -> pl.DataFrame:
    """maj@k and pass@k of each problem, against k times its mean tokens (Figures 7, 8, 17 to 20).

    `inserted` tokens are added once: what the prompt holds to force an answer, as at a prefix of [maj@p]_j.
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


def prefixes(prover: pl.DataFrame, grades: pl.DataFrame, votes: list[int], *, weighted: bool = False) -> pl.DataFrame:
    """[maj@p]_j of each trace at each prefix (Section 5, Figures 3, 24 to 28).

    If `weighted`, an answer's vote is 2^(its mean token log-probability), as in the authors' figures. An answer without
    tokens, whose prompt left no room for any, is unparseable: its vote never counts. Raises ValueError if another
    answer lacks its log-probability.
    """
    joined = graded(prover, grades, ANSWER)
    if weighted:
        if joined.filter(pl.col("tokens") > 0)["mean_logprob"].null_count():
            raise ValueError("weighted votes need the answers' log-probabilities; sample with decoding.logprobs: true")
        joined = joined.with_columns((2.0 ** pl.col("mean_logprob").fill_null(0.0)).alias("weight"))
    answer = pl.col("tokens").mean()
    costs = joined.group_by(PREFIX).agg(
        answer.alias("answer_tokens"), (spent() - answer).alias("before"), pl.len().cast(pl.Int64).alias("answers")
    )
    lengths = joined.group_by(TRACE).agg(pl.col("prefix").max().alias("episodes"))
    costs = costs.join(lengths, on=TRACE, validate="m:1")
    return (
        maj_at_k_table(joined, PREFIX, votes)
        .rename({"k": "p"})
        .join(costs, on=PREFIX, validate="m:1")
        .join(halfway(joined, costs), on=PREFIX, how="left", validate="m:1")
        .with_columns((pl.col("before") + pl.col("p") * pl.col("answer_tokens")).alias("tokens"))
        .select(*TRACE, "episodes", "prefix", "p", "maj", "tokens", "answers", "answer_tokens", *HALFWAY)
        .sort(*PREFIX, "p")
    )


def halfway(answers: pl.DataFrame, costs: pl.DataFrame) -> pl.DataFrame:
    """The vote after half of a thought's episodes that costs no more than the whole thought with its answer.

    Args:
        answers: graded forced answers (columns PREFIX, cluster, correct, weight if votes are weighted).
        costs: columns PREFIX, episodes, before (tokens at the prefix without its answers), answer_tokens, answers.

    Returns:
        A row a trace of several episodes: the last prefix that was scored by half of them, affordable (answers that the
        whole thought's tokens buy there) and affordable_maj (maj of as many, at most of those sampled; null if none).
    """
    several = costs.filter(pl.col("episodes") > 1)
    whole = several.filter(pl.col("prefix") == pl.col("episodes"))
    most = whole.select(*TRACE, (pl.col("before") + pl.col("answer_tokens")).alias("most"))
    half = several.filter(pl.col("prefix") <= pl.col("episodes") // 2).sort("prefix").group_by(TRACE).last()
    votes = affordable("most", "before", "answer_tokens", "answers")
    half = half.join(most, on=TRACE, validate="1:1").with_columns(votes.alias("affordable"))
    half = half.with_columns(used=pl.min_horizontal("affordable", "answers"))
    majorities = [
        maj_at_k_table(answers.join(of, on=PREFIX, how="semi"), PREFIX, [int(used)])
        for (used,), of in half.filter(pl.col("used") > 0).group_by("used")
    ]
    by_prefix = pl.concat([part.select(*PREFIX, affordable_maj="maj") for part in majorities]) if majorities else None
    half = half.select(*PREFIX, "affordable")
    empty = half.with_columns(pl.lit(None, pl.Float64).alias("affordable_maj"))
    return empty if by_prefix is None else half.join(by_prefix, on=PREFIX, how="left", validate="1:1")


def budget_forcing(answers: pl.DataFrame, grades: pl.DataFrame) -> pl.DataFrame:
    """Accuracy of each trace after forced extensions, and its tokens by then (Figure 29)."""
    names = {"prefix": "extensions", "J": "accuracy", "prefix_tokens": "thought_tokens"}
    return progress_table(answers, grades).rename(names).select(list(FORCED))


def linearized(answers: pl.DataFrame, grades: pl.DataFrame, ks: list[int]) -> pl.DataFrame:
    """maj@k and pass@k over the first k attempts of each text, against the tokens written by then (Figure 8)."""
    joined = graded(answers, grades, ANSWER)
    parts = []
    for k in ks:
        first = joined.filter(pl.col("prefix") <= k)
        spent = first.group_by(TRACE).agg(
            (pl.col("prefix_tokens") + pl.col("tokens")).max().alias("tokens"),
            pl.col("correct").any().cast(pl.Float64).alias("pass"),
        )
        parts.append(maj_at_k_table(first, TRACE, [k]).join(spent, on=TRACE, validate="1:1"))
    return (
        pl.concat(parts)
        .group_by("problem_id", "k")
        .agg(pl.col("maj", "pass", "tokens").mean(), pl.len().cast(pl.Int64).alias("samples"))
        .sort("problem_id", "k")
    )


def regret(
    progress: pl.DataFrame,
    budgets: list[int],
    forced: pl.DataFrame | None = None,
    extrapolated: list[int] | None = None,
    axis: Axis = "answer",
) -> pl.DataFrame:
    """Normalized regret of each problem at each token budget, the mean over its traces (Section 8.5.1, Figure 9).

    With `forced` (the measure `budget_forcing`), also at the `extrapolated` budgets, one for each number of extensions:
    the curve of an extended trace continues through its points after up to that many extensions. These take the place
    of `budgets` as large (Figure 12, whose first model has a smaller budget than the second). `axis` says which tokens
    count: those until there is an answer, or those of the thought alone (docs/metrics.md).
    """
    progress = progress.select(*PREFIX, "J", pl.col(AXES[axis]).alias("tokens"))
    least = min(extrapolated or [], default=inf) if forced is not None else inf
    parts = [
        normalized_regret_table(progress, [c for c in budgets if c < least]).with_columns(
            pl.lit(0, pl.Int64).alias("extensions")
        )
    ]
    if forced is not None:
        last = progress.group_by(TRACE).agg(pl.col("prefix").max().alias("last"))
        points = forced.filter(pl.col("extensions") > 0).join(last, on=TRACE, validate="m:1")
        points = points.with_columns(
            (pl.col("last") + pl.col("extensions")).alias("prefix"),
            pl.col("accuracy").alias("J"),
            pl.col("thought_tokens" if axis == "thought" else "tokens").alias("tokens"),
        )
        curve = [*PREFIX, "J", "tokens"]
        thought = progress.join(points.select(TRACE).unique(), on=TRACE, how="semi")
        counts = sorted(points["extensions"].unique())
        if len(counts) != len(extrapolated or []):
            raise ValueError(f"{len(extrapolated or [])} extrapolated budgets for extensions {counts}")
        for count, budget in zip(counts, extrapolated or [], strict=True):
            longer = pl.concat([thought, points.filter(pl.col("extensions") <= count).select(curve)])
            regrets = normalized_regret_table(longer, [budget])
            parts.append(regrets.with_columns(pl.lit(count, pl.Int64).alias("extensions")))
    by = ["problem_id", "extensions", "budget"]
    samples = pl.len().cast(pl.Int64).alias("samples")
    return pl.concat(parts).group_by(by).agg(pl.col("regret").mean(), samples).sort(by)


def episode_regret(prefixes: pl.DataFrame, every: int = 1) -> pl.DataFrame:
    """Normalized regret of each problem by episodes (Appendix E, Figure 26), the means over its traces.

    At b episodes, a multiple of `every`, a shorter trace counts with all its episodes; the last b is that of the
    longest trace, rounded up. `hopeless` is the share of traces whose comparator never gets an answer right: these
    count with regret 1. `reached` is the share of traces with more than b - `every` episodes.
    """
    traces = episode_regret_table(prefixes)
    longest = int(traces["prefix"].max() or 0)  # type: ignore[arg-type]
    episodes = pl.DataFrame({"episodes": range(every, longest + every, every)}).cast(pl.Int64)
    of_all = traces.select(TRACE).unique(maintain_order=True).join(episodes, how="cross").sort("episodes")
    at = of_all.join_asof(
        traces.sort("prefix"), left_on="episodes", right_on="prefix", by=TRACE, check_sortedness=False
    )
    return (
        at.group_by("problem_id", "episodes")
        .agg(
            pl.col("regret").mean(),
            pl.col("hopeless").mean(),
            (pl.col("total") > pl.col("episodes") - every).mean().alias("reached"),
            pl.len().cast(pl.Int64).alias("samples"),
        )
        .sort("problem_id", "episodes")
    )


def episode_counts(episodes: pl.DataFrame) -> pl.DataFrame:
    """How many episodes each thought has (Figure 23)."""
    return episodes.group_by(TRACE).agg(pl.len().alias("episodes"), pl.col("closed").first()).sort(TRACE)


class Evaluate(Stage):
    """Measure one model on one dataset."""

    measure: Measure = Field(description="What is measured; each needs the artifacts that its table is made from.")
    out: Path = Field(description="Table of the measure (Parquet).")
    problems: Path | None = Field(None, description="Dataset (Parquet).")
    rollouts: Path | None = Field(None, description="Rollouts (Parquet).")
    grades: Path | None = Field(None, description="Grades of the rollouts, or for `prefixes` of the forced answers.")
    episodes: Path | None = Field(None, description="Episodes (Parquet).")
    prover: Path | None = Field(None, description="Forced answers (Parquet).")
    progress: Path | None = Field(None, description="Progress (Parquet).")
    prefixes: Path | None = Field(None, description="The measure `prefixes` (Parquet).")
    forced: Path | None = Field(None, description="The measure `budget_forcing` (Parquet), for extrapolated regret.")
    closing: str | None = Field(None, description="Text that marks a finished completion; else its closed thought.")
    ks: list[int] = Field([1, 2, 4, 8], description="Values of k for maj@k and pass@k.")
    inserted: int | None = Field(None, ge=1, description="`maj`: tokens that the prompt inserts in place of a thought.")
    votes: list[int] = Field([1, 2, 4, 8], description="Votes p of [maj@p]_j.")
    weighted: bool = Field(False, description="Weigh votes of [maj@p]_j by 2^(mean token log-probability).")
    budgets: list[int] = Field([4096, 8192, 12288, 16384], description="Token budgets C_0.")
    extrapolated: list[int] = Field([], description="Further C_0, one for each number of extensions (with `forced`).")
    axis: Axis = Field("answer", description="Tokens of `regret`: until there is an answer, or of the thought alone.")
    every: int = Field(1, ge=1, description="Episodes between two points of `episode_regret`.")

    def table(self, name: str, *columns: str) -> pl.DataFrame:
        """Read only these columns of a table: texts, which are most of it, mostly stay on disk."""
        path = getattr(self, name)
        if path is None:
            raise ValueError(f"--measure {self.measure} needs --{name}")
        of_answers = name == "grades" and self.measure in ("prefixes", "budget_forcing", "linearized")
        kind = artifacts.ANSWER_GRADES if of_answers else KINDS[name]
        return kind.read(path, columns)

    def cli_cmd(self) -> None:
        match self.measure:
            case "accuracy":
                problems, rollouts = (
                    self.table("problems", "id", "difficulty"),
                    self.table("rollouts", *TRACE, "tokens", "text", "inside", "thinking"),
                )
                result = accuracy(
                    problems, rollouts, self.table("grades", *TRACE, "parsed", "correct", "score"), self.closing
                )
            case "maj":
                rollouts, grades = (
                    self.table("rollouts", *TRACE, "tokens"),
                    self.table("grades", *TRACE, "correct", "cluster"),
                )
                result = maj(rollouts, grades, self.ks, self.inserted or 0)
            case "prefixes":
                prover = self.table("prover", *ANSWER, *LENGTHS, *(["mean_logprob"] if self.weighted else []))
                grades = self.table("grades", *ANSWER, "correct", "cluster")
                result = prefixes(prover, grades, self.votes, weighted=self.weighted)
            case "regret":
                forced = read_table(self.forced, FORCED) if self.forced else None
                progress = self.table("progress", *PREFIX, AXES[self.axis], "J")
                result = regret(progress, self.budgets, forced, self.extrapolated, self.axis)
            case "episode_regret":
                if self.prefixes is None:
                    raise ValueError("--measure episode_regret needs --prefixes")
                result = episode_regret(read_table(self.prefixes, PREFIXES), self.every)
            case "budget_forcing":
                answers = self.table("prover", *ANSWER, *LENGTHS, *KIND)
                result = budget_forcing(answers, self.table("grades", *ANSWER, "correct", "score"))
            case "episodes":
                result = episode_counts(self.table("episodes", *TRACE, "closed"))
            case "linearized":
                answers = self.table("prover", *ANSWER, "tokens", "prefix_tokens")
                result = linearized(answers, self.table("grades", *ANSWER, "correct", "cluster"), self.ks)
        write_table(result, self.out)
        print(f"{self.measure}: {result.height} rows")


if __name__ == "__main__":
    run(Evaluate)
