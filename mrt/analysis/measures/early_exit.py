"""Early exit: stop a thought where mu's answers agree (docs/metrics.md)."""

import polars as pl

from mrt.analysis.measure import Read, measure
from mrt.analysis.progress import LENGTHS, graded, spent, value_of
from mrt.core.artifacts import ANSWER, ANSWER_GRADES, GRADES, PREFIX, PROVER, ROLLOUTS, TRACE

TAUS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
COLUMNS = [*TRACE, "rule", "tau", "prefix", "accuracy", "tokens", "paid_tokens"]


@measure(
    COLUMNS,
    keys=[*TRACE, "rule"],
    prover=Read(PROVER, [*ANSWER, *LENGTHS]),
    grades=Read(ANSWER_GRADES, [*ANSWER, "correct", "cluster", "score"]),
    rollouts=Read(ROLLOUTS, [*TRACE, "tokens"]),
    verdicts=Read(GRADES, [*TRACE, "correct", "score"]),
)
def early_exit(
    prover: pl.DataFrame, grades: pl.DataFrame, rollouts: pl.DataFrame, verdicts: pl.DataFrame
) -> pl.DataFrame:
    """Accuracy and tokens of each trace that the meta-prover scored, when a rule stops its thought.

    `agree TAU` stops at the first prefix where a share of at least `tau` of mu's answers agree, and gives the
    majority's answer. `oracle` stops at the first prefix of the highest J, and scores J. `whole` never stops. `prefix`
    is where the thought was stopped; null where the whole thought and its answer count. `tokens` are those until there
    is an answer; `paid_tokens` include all answers that the rule reads (docs/metrics.md).
    """
    prefixes = prefixes_of(graded(prover, grades, ANSWER))
    traces = prefixes.select(TRACE).unique(maintain_order=True)
    completions = graded(rollouts, verdicts, TRACE)
    completions = completions.select(*TRACE, value_of(completions).alias("accuracy"), pl.col("tokens").cast(pl.Float64))
    whole = traces.join(completions, on=TRACE, validate="1:1").with_columns(
        pl.lit(None, pl.Int64).alias("prefix"), pl.col("tokens").alias("paid_tokens")
    )
    best = prefixes.filter(pl.col("J") == pl.col("J").max().over(TRACE)).group_by(TRACE).first()
    oracle = best.with_columns(accuracy="J", paid_tokens="tokens")
    rules: list[tuple[str, float | None, pl.DataFrame]] = [("oracle", None, oracle), ("whole", None, whole)]
    rules += [(f"agree {tau}", tau, stopped(prefixes, whole, tau)) for tau in TAUS]
    return pl.concat(
        table.with_columns(pl.lit(rule).alias("rule"), pl.lit(tau, pl.Float64).alias("tau")).select(COLUMNS)
        for rule, tau, table in rules
    ).sort(*TRACE, "rule")


def prefixes_of(answers: pl.DataFrame) -> pl.DataFrame:
    """The vote of mu's answers at each prefix, and its costs.

    Args:
        answers: graded forced answers (columns ANSWER, LENGTHS, cluster, correct, score if there is partial credit).

    Returns:
        A row a prefix, sorted by PREFIX. J; share: of the answers that are in the largest cluster; majority: credit of
        the vote, as in maj@k. tokens: until there is one answer; paid_tokens: until there is a vote, with those of the
        votes at earlier prefixes; vote_tokens: of the stop phrase and of all answers at this prefix.
    """
    answers = answers.with_columns(value_of(answers).alias("value"))
    parsed = answers.filter(pl.col("cluster") >= 0)
    clusters = parsed.group_by(*PREFIX, "cluster").agg(pl.len().alias("votes"), pl.col("value").mean())
    largest = pl.col("votes") == pl.col("votes").max()
    credit = pl.col("value").filter(largest).max() * pl.when(largest.sum() > 1).then(0.5).otherwise(1.0)
    votes = clusters.group_by(PREFIX).agg(credit.alias("majority"), pl.col("votes").max())
    stop_phrase = (pl.col("prompt_tokens") - pl.col("problem_tokens") - pl.col("prefix_tokens")).first().clip(0)
    costs = answers.group_by(PREFIX).agg(
        pl.col("value").mean().alias("J"),
        pl.len().alias("answers"),
        spent().alias("tokens"),
        (pl.col("tokens").sum() - pl.col("tokens").mean()).alias("other_tokens"),
        (stop_phrase + pl.col("tokens").sum()).alias("vote_tokens"),
    )
    earlier = pl.col("vote_tokens").cum_sum().over(TRACE) - pl.col("vote_tokens")
    return (
        costs.join(votes, on=PREFIX, how="left", validate="1:1")
        .sort(PREFIX)
        .with_columns(pl.col("majority", "votes").fill_null(0))  # where no answer can be read
        .select(
            *PREFIX,
            "J",
            (pl.col("votes") / pl.col("answers")).alias("share"),
            "majority",
            "tokens",
            (pl.col("tokens") + pl.col("other_tokens") + earlier).alias("paid_tokens"),
            "vote_tokens",
        )
    )


def stopped(prefixes: pl.DataFrame, whole: pl.DataFrame, tau: float) -> pl.DataFrame:
    """Traces stopped at the first prefix where a share of at least tau of the answers agree.

    Args:
        prefixes: those of `prefixes_of`.
        whole: columns TRACE, prefix (null), accuracy, tokens, paid_tokens, a row a trace: what counts of a trace
            without such a prefix. It pays for the answers at all its prefixes.
        tau: a share; above 1 no trace is stopped.

    Returns:
        The same columns, a row a trace.
    """
    exits = prefixes.filter(pl.col("share") >= tau).group_by(TRACE).first().with_columns(accuracy="majority")
    votes = prefixes.group_by(TRACE).agg(pl.col("vote_tokens").sum())
    late = whole.join(exits, on=TRACE, how="anti").join(votes, on=TRACE, validate="1:1")
    late = late.with_columns(pl.col("paid_tokens") + pl.col("vote_tokens"))
    return pl.concat(table.select(whole.columns) for table in (exits, late))
