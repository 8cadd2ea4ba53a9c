"""Progress of every prefix of every trace (Definition 6.1): the meta-prover's accuracy J and how much an episode adds.

    python -m mrt.analysis.progress --prover P.parquet --grades G.parquet --out X.parquet

J(mu | z_0:j) is the share of right answers among those forced after prefix j, or the probability of the right one. An
episode's progress is J after it less J before it; cumulative progress up to prefix j is J_j - J_0.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from mrt.core.artifacts import ANSWER, ANSWER_GRADES, PREFIX, PROGRESS, PROVER, TRACE
from mrt.core.cli import Stage, run

LENGTHS = ("tokens", "problem_tokens", "prefix_tokens", "prompt_tokens")
KIND = ("finish_reason", "mean_logprob")


def spent() -> pl.Expr:
    """Tokens that an answer at a prefix costs, for a group of its answers: all but those of the problem.

    They are those of z_0:j, of what forces the answer, and the mean of the answers'. So at the whole thought they are
    the completion's tokens, as in maj@k (docs/metrics.md).
    """
    return (pl.col("prompt_tokens") - pl.col("problem_tokens")).first() + pl.col("tokens").mean()


def affordable(most: str, before: str, answer: str, sampled: str) -> pl.Expr:
    """How many answers of `answer` tokens the tokens `most` buy beside those `before`; all `sampled` if they are free.

    The arguments are names of columns. A quotient of mean lengths may lie a rounding error below a whole number.
    """
    bought = ((pl.col(most) - pl.col(before)) / pl.col(answer) + 1e-9).floor().cast(pl.Int64, strict=False)
    return pl.when(pl.col(answer) == 0).then(sampled).otherwise(bought.clip(0))


def value_of(answers: pl.DataFrame) -> pl.Expr:
    """The credit of each graded answer, from 0 to 1: its score, or whether it is correct."""
    return pl.col("score" if "score" in answers.columns else "correct").cast(pl.Float64)


def graded(answers: pl.DataFrame, grades: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Inner 1:1 join of answers and grades by their keys; raises polars' ComputeError if a key repeats.

    Grades are written in the order of the graded answers. Tables in the same order are put side by side, which takes an
    eighth of the join's time: a full-size table has millions of answers.
    """
    answer_keys, grade_keys = answers.select(keys), grades.select(keys)
    whole = not any(column.null_count() for column in answer_keys)  # a null matches nothing
    if whole and answer_keys.equals(grade_keys) and answer_keys.unique().height == answer_keys.height:
        return answers.hstack(grades.drop(keys))
    return answers.join(grades, on=keys, validate="1:1")


def progress(accuracy: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Progress of each episode of one trace (Definition 6.1): r_prg(z_j; c) = J(mu | z_j, c) - J(mu | c).

    Args:
        accuracy: J at prefixes 0 to k [k + 1].

    Returns:
        Progress of episodes 1 to k [k], each in [-1, 1]; it sums to the last J less the first.

    Raises:
        ValueError: if there is no prefix or a J is outside [0, 1].
    """
    J = np.asarray(accuracy, dtype=np.float64)
    if J.ndim != 1 or not J.size:
        raise ValueError(f"progress: accuracies of shape {J.shape}; needs at least one prefix")
    if not np.all((J >= 0) & (J <= 1)):
        raise ValueError("progress: an accuracy is outside [0, 1]")
    return np.diff(J)


def progress_table(answers: pl.DataFrame, grades: pl.DataFrame) -> pl.DataFrame:
    """The progress artifact: J and progress of every prefix.

    At a prefix with scored answers (mrt.sampling.likelihood), J is the probability of the right ones among these;
    answers that were sampled there besides do not count.

    Args:
        answers: forced answers: columns problem_id, sample, prefix, answer_index, tokens (of the answer),
            problem_tokens, prefix_tokens and prompt_tokens (of chat prompt, of z_0:j, of all that precedes the answer),
            finish_reason and mean_logprob.
        grades: their grades: the same four keys and correct, and score if answers have partial credit, whose mean is J.

    Returns:
        Columns problem_id, sample, prefix, episodes, prefix_tokens, tokens, answers, J, progress, sorted by the keys.
        `episodes` is the largest prefix of the trace. `tokens` are those that an answer there costs, without the
        problem's, and `answers` is their number in J. `progress` is that since the previous prefix. It is null at each
        trace's first, and in a completion without a thought, all of whose prefixes are empty. If prefixes are left out
        of a trace, progress spans the gap and still adds up.

    Raises:
        ValueError: if there are no answers, a key repeats, an answer or a grade lacks its counterpart, or a grade is
            null. Also if the answers of one prefix disagree on its tokens.
    """
    if answers.is_empty():
        raise ValueError("there are no forced answers")
    try:
        value = value_of(grades).alias("value")
        rows = graded(answers.select(*ANSWER, *LENGTHS, *KIND), grades.select(*ANSWER, "correct", value), ANSWER)
    except pl.exceptions.ComputeError:
        rows = None  # a key repeats
    if rows is None or not rows.height == answers.height == grades.height:
        for name, table in (("forced answers", answers), ("grades", grades)):
            _refuse(table.filter(table.select(ANSWER).is_duplicated()), f"{name} with a key that repeats")
        _refuse(answers.join(grades, on=ANSWER, how="anti"), "forced answers without a grade")
        _refuse(grades.join(answers, on=ANSWER, how="anti"), "grades without a forced answer")
        raise AssertionError("forced answers and grades do not match, and no row says why")
    _refuse(grades.filter(pl.col("correct").is_null()), "grades neither right nor wrong")
    scored = pl.col("finish_reason") == "scored"
    probability = (pl.col("mean_logprob") * pl.col("tokens")).exp()
    if rows.select(scored.any()).item():
        rows = rows.filter(scored | ~scored.any().over(PREFIX))
    sampled_J = pl.col("value").cast(pl.Float64).mean()
    scored_J = (probability * pl.col("value")).sum().clip(upper_bound=1.0)
    prefixes = (
        rows.group_by(*PREFIX)
        .agg(
            pl.col("prefix_tokens").min(),
            pl.col("prefix_tokens").n_unique().alias("_tokens"),
            spent().alias("tokens"),
            pl.len().cast(pl.Int64).alias("answers"),
            pl.when(scored.any()).then(scored_J).otherwise(sampled_J).alias("J"),
        )
        .sort(*PREFIX)
    )
    _refuse(prefixes.filter(pl.col("_tokens") > 1), "prefixes whose answers disagree on prefix_tokens")
    return prefixes.select(
        *TRACE,
        "prefix",
        pl.col("prefix").max().over(TRACE).alias("episodes"),
        "prefix_tokens",
        "tokens",
        "answers",
        "J",
        pl.when(pl.col("prefix_tokens").max().over(TRACE) > 0).then(pl.col("J").diff().over(TRACE)).alias("progress"),
    )


def _refuse(rows: pl.DataFrame, what: str) -> None:
    """Raise ValueError if there are any such rows, naming the first by its key."""
    if rows.height:
        keys = [name for name in ANSWER if name in rows.columns]
        first = rows.select(keys).sort(keys).row(0, named=True)
        raise ValueError(f"{rows.height} {what} (first: {', '.join(f'{k} {v}' for k, v in first.items())})")


class Progress(Stage):
    """Join the meta-prover's forced answers with their grades into J and progress of every prefix."""

    prover: Path = Field(description="Forced answers (Parquet): keys and lengths.")
    grades: Path = Field(description="Their grades (Parquet): the same keys and correct.")
    out: Path = Field(description="Progress of every prefix (Parquet).")

    def cli_cmd(self) -> None:
        answers = PROVER.read(self.prover, [*ANSWER, *LENGTHS, *KIND])
        grades = ANSWER_GRADES.read(self.grades, [*ANSWER, "correct", "score"])
        try:
            table = progress_table(answers, grades)
        except ValueError as error:
            raise ValueError(f"{self.prover}, graded in {self.grades}: {error}") from error
        PROGRESS.write(table, self.out)
        print(f"{table.select(TRACE).unique().height} traces, {table.height} prefixes", flush=True)


if __name__ == "__main__":
    run(Progress)
