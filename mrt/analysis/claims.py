"""Claims about models as comparisons that measurements decide, over training runs and problems.

A claim compares a value (accuracy, regret at a budget, ...) of one model with that of another on the same problems, or
with 0. Its interval resamples training runs and problems (`mrt.analysis.bootstrap`), of what a training logs the runs
alone. It is confirmed or refuted only if that interval excludes 0 (of a ratio 1); else it is undecided, and the spread
of the runs tells how many would decide it.
"""

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field, StringConstraints, model_validator

from mrt.analysis.bootstrap import Interval, bootstrap_runs, percentile_interval, resampled_means
from mrt.core.settings import Settings

KEY = ["model", "run", "dataset", "problem_id"]
Grid = npt.NDArray[np.float64]  # [runs, problems]
Verdict = Literal["confirmed", "refuted", "undecided"]
EFFICIENCY = {"token efficiency": "maj", "linearized token efficiency": "linearized"}  # ratios, and their measures
EQUAL_TOKENS = "maj at equal tokens"
CURVES = {**EFFICIENCY, EQUAL_TOKENS: "maj"}  # values of whole curves, and their measures
LOGGED = {"training loss": ("sft_log", "loss"), "training length": ("rl_log", "completion_tokens")}  # measure, column
SIGNED = ("gain", "progress")  # values of which 0 is none
BACKTRACK = 2  # prefix after the backtracking episode: attempt, backtrack, revision
VALUES = (
    *("accuracy", "tokens", r"regret at \d+", r"(maj|pass|linearized) at \d+", r"regret after \d+ episodes"),
    *(r"accuracy after \d+ extensions", r"gain from \d+ extensions", "progress( of the backtrack)?", "episodes"),
    *(*CURVES, *LOGGED),
    *("answer at the end", "(answer|votes) halfway", "direct at the end"),
)
Value = Annotated[str, StringConstraints(pattern=f"^({'|'.join(VALUES)})$")]
MEASURES = {  # of other values, by how they begin
    **{"accuracy after": "budget_forcing", "gain from": "budget_forcing", "accuracy": "accuracy", "tokens": "accuracy"},
    **{"regret after": "episode_regret", "regret": "regret", "maj": "maj", "pass": "maj", "linearized": "linearized"},
    **{"progress": "progress", "episodes": "episodes"},
    **dict.fromkeys(("answer", "votes", "direct"), "prefixes"),
}


class Claim(Settings):
    """What the paper says of two models, or of one, and the comparison that decides it."""

    section: str = Field(description="Where the paper says it; `ours` for a question that is not the paper's.")
    says: str = Field(description="What it says, with its number.")
    value: Value = Field(
        description="What is compared: `accuracy`, `tokens`, `regret at 256`, `maj at 8`, `pass at 8`, `linearized at"
        " 8`, `regret after 4 episodes`, `accuracy after 2 extensions`, `gain from 2 extensions`, `progress` (of an"
        " episode, or `of the backtrack`), `episodes`, `token efficiency`, `linearized token efficiency` or `maj at"
        " equal tokens`; of Section 5 `answer at the end`, `answer halfway`, `votes halfway` and `direct at the end`;"
        " of the second half of a training's steps `training loss` (SFT) and `training length` (RL, tokens)."
    )
    model: str = Field(description="The model that it is about.")
    than: str | None = Field(
        None, description="The model that it is compared with; a gain, or progress, may be without: with 0."
    )
    than_value: Value | None = Field(
        None,
        description="What of `than` it is compared with, if not the same value: of `linearized token efficiency` the"
        " other mode, `token efficiency`.",
    )
    episodes: tuple[int, int] | None = Field(
        None, description="Section 5's values: only of thoughts with so many episodes, first and last number included."
    )
    gains_over: str | None = Field(
        None,
        description="Compare gains over this model: (model - it) / (than - it), which is 1 if both gain as much; their"
        " difference, unless `than` clearly gains.",
    )
    expect: Literal["more", "less", "same", "not more"] = Field(
        description="What the paper says of `model` against `than`."
    )
    margin: float = Field(0.0, ge=0, description="same, not more: the largest difference that counts as none.")
    redraw: str = Field(description="Target that redraws what it is seen in.")

    @model_validator(mode="after")
    def _compares_like_with_like(self) -> Self:
        if self.than is None and (self.gains_over or self.than_value or not self.value.startswith(SIGNED)):
            raise ValueError(f"{self.value} needs `than`; only a gain, and progress, are compared with 0")
        both = {self.value, self.than_value or self.value}
        if len(both) == 2 and both & CURVES.keys() and not both <= EFFICIENCY.keys():
            raise ValueError(f"{self.value} cannot be compared with {self.than_value}")
        if self.value in CURVES and self.gains_over:
            raise ValueError(f"{self.value} compares two curves; leave out gains_over")
        return self


def measure_of(value: str) -> str:
    """The measure that a claim's value is read from."""
    if value in LOGGED:
        return LOGGED[value][0]
    return CURVES.get(value) or next(measure for begins, measure in MEASURES.items() if value.startswith(begins))


def values_of(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The values of all measures, a row a problem: columns value, model, run, dataset, problem_id, x.

    Args:
        tables: measures of `mrt.analysis.evaluate` by name, of all models (columns model, run and dataset besides).
    """

    def part(measure: str, name: pl.Expr | str, column: str) -> list[pl.DataFrame]:
        return part_of(tables.get(measure, pl.DataFrame()), name, column)

    def part_of(table: pl.DataFrame, name: pl.Expr | str, column: str) -> list[pl.DataFrame]:
        if table.is_empty():
            return []
        named = pl.lit(name).alias("value") if isinstance(name, str) else name.alias("value")
        x = pl.col(column).cast(pl.Float64).alias("x")
        return [table.select(named, *KEY, x).drop_nulls("x").group_by("value", *KEY, maintain_order=True).mean()]

    parts = [
        *part("accuracy", "accuracy", "accuracy"),
        *part("accuracy", "tokens", "tokens"),
        *part("maj", pl.format("maj at {}", "k"), "maj"),
        *part("maj", pl.format("pass at {}", "k"), "pass"),
        *part("linearized", pl.format("linearized at {}", "k"), "maj"),
        *part("regret", pl.format("regret at {}", "budget"), "regret"),
        *part("episode_regret", pl.format("regret after {} episodes", "episodes"), "regret"),
        *part("budget_forcing", pl.format("accuracy after {} extensions", "extensions"), "accuracy"),
        *part_of(gains(tables.get("budget_forcing")), pl.format("gain from {} extensions", "extensions"), "gain"),
        *part("progress", "progress", "progress"),
        *part_of(backtracks(tables.get("progress")), "progress of the backtrack", "progress"),
        *part("episodes", "episodes", "episodes"),
        *(
            found
            for name, table in ends(tables.get("prefixes"), tables.get("direct"))
            for found in part_of(table, name, "pass" if "pass" in table.columns else "maj")
        ),
        *(
            found
            for name, (measure, column) in LOGGED.items()
            for found in part_of(second_half(tables.get(measure)), name, column)
        ),
    ]
    return pl.concat(parts) if parts else pl.DataFrame(schema={"value": pl.String, **dict.fromkeys(KEY, pl.String)})


def backtracks(progress: pl.DataFrame | None) -> pl.DataFrame:
    """Rows of backtracks: the second episode, between an attempt and its revision (Figure 16)."""
    return pl.DataFrame() if progress is None else progress.filter(pl.col("prefix") == BACKTRACK)


def gains(forced: pl.DataFrame | None) -> pl.DataFrame:
    """Rows of `budget_forcing` with the accuracy that the extensions brought to each trace: column gain."""
    if forced is None or forced.is_empty():
        return pl.DataFrame()
    as_written = pl.col("accuracy").filter(pl.col("extensions") == 0).first().over(*KEY, "sample")
    return forced.with_columns((pl.col("accuracy") - as_written).alias("gain"))


def second_half(log: pl.DataFrame | None) -> pl.DataFrame:
    """The second half of each training's steps, as rows of one problem: a training has one log for all of them."""
    if log is None or log.is_empty():
        return pl.DataFrame()
    late = log.filter(pl.col("step") > pl.col("step").max().over("model", "run") / 2)
    return late.with_columns(dataset=pl.lit("training"), problem_id=pl.lit("all"))


def direct(prefixes: pl.DataFrame | None, answers: pl.DataFrame | None) -> pl.DataFrame:
    """pass@k of a model that does not think, with as many answers as cost no more than each whole thought.

    Args:
        prefixes: measure `prefixes`, [maj@p]_j of each trace.
        answers: measure `maj` of the model that does not think.
    """
    if prefixes is None or prefixes.is_empty() or answers is None or answers.is_empty():
        return pl.DataFrame()
    whole = prefixes.filter(pl.col("prefix") == pl.col("episodes"), pl.col("p") == 1)
    trace = [*KEY, "sample"]
    return (
        whole.select(*trace, most="tokens")
        .join(answers.select("dataset", "problem_id", "k", "pass", "tokens"), on=["dataset", "problem_id"])
        .filter(pl.col("tokens") <= pl.col("most"))
        .sort("k")
        .group_by(trace, maintain_order=True)
        .last()
    )


def ends(prefixes: pl.DataFrame | None, answers: pl.DataFrame | None = None) -> Iterator[tuple[str, pl.DataFrame]]:
    """Section 5's comparison at the tokens of a whole thought: its answer, votes after half of it, or `direct`.

    Args:
        prefixes: measure `prefixes`, [maj@p]_j of each trace.
        answers: measure `maj` of the model that does not think, if there is one.

    Yields:
        Name and rows, all of the same traces, of: the answer at the end of a thought; one answer after half of its
        episodes; the vote there of as many answers as cost no more than the whole thought with its answer; and
        `direct`. Left out are thoughts of one episode, which have no half, and those that afford no answer there or, on
        a dataset that has `answers`, no direct one.
    """
    if prefixes is None or prefixes.is_empty():
        return
    trace = ["model", "run", "dataset", "problem_id", "sample"]
    whole = prefixes.filter(pl.col("prefix") == pl.col("episodes"), pl.col("p") == 1, pl.col("episodes") > 1)
    last = pl.col("prefix").filter(pl.col("prefix") <= pl.col("episodes") // 2).max().over(trace)  # of those scored
    half = prefixes.filter(pl.col("prefix") == last)
    affordable = half.join(whole.select(*trace, most="tokens"), on=trace).filter(pl.col("tokens") <= pl.col("most"))
    votes = affordable.sort("p").group_by(trace, maintain_order=True).last()
    of_both, baseline = votes.select(trace), direct(prefixes, answers)
    if baseline.height:
        elsewhere = ~pl.col("dataset").is_in(baseline["dataset"].unique().implode())
        of_both = pl.concat([of_both.join(baseline, on=trace, how="semi"), of_both.filter(elsewhere)])
        yield "direct at the end", baseline.join(of_both, on=trace, how="semi")
    yield "answer at the end", whole.join(of_both, on=trace, how="semi")
    yield "answer halfway", half.filter(pl.col("p") == 1).join(of_both, on=trace, how="semi")
    yield "votes halfway", votes.join(of_both, on=trace, how="semi")


def compare(own: Grid, other: Grid, base: Grid | None = None, *, same_runs: bool = False) -> Interval:
    """Interval of mean(own) - mean(other), or, with `base`, of (own - base) / (other - base), over runs and problems.

    Args:
        own, other, base: values [runs, problems] of the same problems in the same order.
        same_runs: whether `own` and `other` are values of the same runs.
    """
    if base is None:
        return bootstrap_runs(own, other, same_runs=same_runs)
    a, b, zero = resampled_means((own, other, base))
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = (a - zero) / (b - zero)
        estimate = (own.mean() - base.mean()) / (other.mean() - base.mean())
    return percentile_interval(estimate, drawn)


def verdict(claim: Claim, interval: Interval, bound: str | None = None, *, ratio: bool = False) -> Verdict:
    """Whether the interval confirms or refutes the claim; a ratio is compared with 1, a difference with 0.

    What is only known as a `bound`, `at least` or `at most`, may lie anywhere beyond it.
    """
    none = 1.0 if ratio else 0.0
    if bound == "at least":
        interval = interval._replace(high=np.inf)
    if bound == "at most":
        interval = interval._replace(low=-np.inf)
    above, below = interval.low > none, interval.high < none
    if claim.expect == "not more":
        more = interval.low > none + claim.margin
        return "refuted" if more else "confirmed" if interval.high <= none + claim.margin else "undecided"
    if claim.expect == "same":
        within = interval.low >= none - claim.margin and interval.high <= none + claim.margin
        outside = interval.low > none + claim.margin or interval.high < none - claim.margin
        return "confirmed" if within else "refuted" if outside else "undecided"
    as_said, otherwise = (above, below) if claim.expect == "more" else (below, above)
    return "confirmed" if as_said else "refuted" if otherwise else "undecided"


def runs_needed(own: Grid, other: Grid, *, same_runs: bool = False) -> int | None:
    """Runs of each model with which the present difference would exclude 0; None if no number of runs would.

    More runs lower the variance between runs, and that of what a run says of a single problem. They do not lower the
    variance between problems. Of values of the `same_runs`, what varies is their difference within a run (`compare`).
    """
    if same_runs:
        own, other = own - other, np.zeros((1, own.shape[1]))
    trained = [grid for grid in (own, other) if grid.shape[0] > 1]
    of_problems = 0.0
    if own.shape[1] > 1:
        noise = sum(unexplained(grid) / grid.size for grid in trained)
        of_problems = (own.mean(axis=0) - other.mean(axis=0)).var(ddof=1) / own.shape[1] - noise
    of_runs = sum(grid.mean(axis=1).var(ddof=1) for grid in trained)
    return enough(float(own.mean() - other.mean()), max(0.0, of_problems), of_runs, max(map(len, (own, other))))


def unexplained(grid: Grid) -> float:
    """Variance of values [runs, problems] that neither the run nor the problem explains."""
    rest = grid - grid.mean(axis=0) - grid.mean(axis=1, keepdims=True) + grid.mean()
    return float((rest**2).sum() / ((grid.shape[0] - 1) * (grid.shape[1] - 1)))


def runs_needed_of_curves(interval: Interval, of_problems: Interval, runs: int) -> int | None:
    """`runs_needed` for a difference of curves, by its intervals over runs and problems and over problems alone."""
    both, fixed = (((ends.high - ends.low) / (2 * 1.96)) ** 2 for ends in (interval, of_problems))
    return enough(interval.estimate, fixed, runs * max(0.0, both - fixed), runs)


def runs_needed_for_ratio(interval: Interval, of_problems: Interval, runs: int) -> int | None:
    """`runs_needed` for a ratio of curves."""
    both, fixed = (Interval(*(float(np.log(end)) for end in ends)) for ends in (interval, of_problems))
    return runs_needed_of_curves(both, fixed, runs)


def enough(difference: float, fixed: float, of_runs: float, present: int) -> int | None:
    """Runs, more than the present ones, whose 95 % interval excludes 0, given the variance `fixed + of_runs / runs`."""
    left = (difference / 1.96) ** 2 - fixed
    return max(present + 1, ceil(of_runs / left)) if left > 0 else None
