"""[maj@p]_j: votes at each prefix of each trace (Section 5, Figures 3, 24 to 28)."""

import polars as pl

from mrt.analysis.measure import Read, measure
from mrt.analysis.progress import LENGTHS, affordable, graded, spent
from mrt.analysis.votes import maj_at_k_table
from mrt.core.artifacts import ANSWER, ANSWER_GRADES, PREFIX, PROVER, TRACE

HALFWAY = ("affordable", "affordable_maj")


@measure(
    [*TRACE, "episodes", "prefix", "p", "maj", "tokens", "answers", "answer_tokens", *HALFWAY],
    keys=[*PREFIX, "p"],
    prover=Read(PROVER, [*ANSWER, *LENGTHS, "mean_logprob"]),
    grades=Read(ANSWER_GRADES, [*ANSWER, "correct", "cluster"]),
)
def prefixes(prover: pl.DataFrame, grades: pl.DataFrame, votes: list[int], *, weighted: bool = False) -> pl.DataFrame:
    """[maj@p]_j of each trace at each prefix (Section 5, Figures 3, 24 to 28).

    `tokens` are those of the prefix, of the stop phrase and of p answers, of `answer_tokens` on average; `answers` were
    sampled there. `affordable` and `affordable_maj` are of `halfway`, and null at other prefixes.

    If `weighted`, an answer's vote is 2^(its mean token log-probability), as in the authors' figures. An answer without
    tokens, whose prompt fills the context, is unparseable: its vote never counts. Raises ValueError if another
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
        A row a trace of several episodes: the last prefix that was scored by half of them, affordable and
        affordable_maj. `affordable` counts the answers that the whole thought's tokens buy there. `affordable_maj` is
        the maj of as many, at most of those sampled; null if none.
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
