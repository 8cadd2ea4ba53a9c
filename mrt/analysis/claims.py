"""Claims about models as comparisons that measurements decide, over training runs and problems.

A claim compares a value (accuracy, regret at a budget, ...) of one model with that of another on the same problems, or
with 0. It is supported or contradicted if the difference is significant at 5 %, over training runs and problems
(`mrt.analysis.intervals`). Values of training logs vary over the runs alone. Otherwise the claim is not significant, or
without a p-value not tested (`mrt.figures.claims`).
Its p-value is corrected for the number of claims about the same two methods (`holm`).
"""

import csv
import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field, StringConstraints, model_validator

from mrt.analysis.intervals import Estimate, estimate_of, influence, mean_of, quantile
from mrt.analysis.measures.early_exit import TAUS
from mrt.analysis.progress import affordable
from mrt.analysis.regret import to_the_longest
from mrt.analysis.votes import pass_at_k
from mrt.core.settings import Settings

KEY = ["model", "run", "dataset", "problem_id"]
MOST_RUNS = 10_000  # more are as good as none
Grid = npt.NDArray[np.float64]  # [runs, problems]
Verdict = Literal["supported", "contradicted", "not significant"]
EFFICIENCY = {"token efficiency": "maj", "linearized token efficiency": "linearized"}  # ratios, and their measures
EQUAL_TOKENS = "maj at equal tokens"
CURVES = {**EFFICIENCY, EQUAL_TOKENS: "maj"}  # values of whole curves, and their measures
TRAINING = "training"  # the dataset of a log's values
LOGGED = {"training loss": ("sft_log", "loss"), "training length": ("rl_log", "completion_tokens")}  # measure, column
SIGNED = ("gain", "progress")  # values of which 0 is none
BACKTRACK = 2  # prefix after the backtracking episode: attempt, backtrack, revision
VALUES = (
    *("accuracy", "tokens", r"regret at \d+", r"(maj|pass|linearized) at \d+", r"regret after \d+ episodes"),
    *(r"accuracy after \d+ extensions", r"gain from \d+ extensions", "progress( of the backtrack)?", "episodes"),
    *(*CURVES, *LOGGED),
    *("answer at the end", "(answer|votes) halfway", "direct at the end"),
    rf"(accuracy|tokens|paid tokens) (at exit ({'|'.join(map(str, TAUS))})|without exit)",
)
Value = Annotated[str, StringConstraints(pattern=f"^({'|'.join(VALUES)})$")]
MEASURES = {  # of other values, by how they begin
    **{
        f"{name} {exit}": "early_exit"
        for name in ("accuracy", "tokens", "paid tokens")
        for exit in ("at exit", "without")
    },
    **{"accuracy after": "budget_forcing", "gain from": "budget_forcing", "accuracy": "accuracy", "tokens": "accuracy"},
    **{"regret after": "episode_regret", "regret": "regret", "maj": "maj", "pass": "maj", "linearized": "linearized"},
    **{"progress": "progress", "episodes": "episodes"},
    **dict.fromkeys(("answer", "votes", "direct"), "prefixes"),
}


class Claim(Settings):
    """A statement of the paper about two models, or one, and the comparison that decides it."""

    claim: str | None = Field(
        None,
        description="The paper's claim that this comparison decides first. Rows after it, up to the next"
        " `claim`, are further comparisons about the same claim.",
    )
    section: str = Field(
        description="Section of the paper; `ours` for a question that is not the paper's, `league` for a"
        " comparison of methods."
    )
    says: str = Field(description="The statement, with its number.")
    value: Value = Field(
        description="The value to compare: `accuracy`, `tokens`, `regret at 256`, `maj at 8`, `pass at 8`,"
        " `linearized at 8`, `regret after 4 episodes`, `accuracy after 2 extensions`, `gain from 2"
        " extensions`, `progress` (of an episode, or `of the backtrack`), `episodes`, `token"
        " efficiency`, `linearized token efficiency` or `maj at equal tokens`. Of early exit where"
        " 0.75 of mu's answers agree: `accuracy at exit 0.75`, `tokens at exit 0.75`, `paid tokens at"
        " exit 0.75`; of the same traces `accuracy without exit`. Of Section 5: `answer at the end`,"
        " `answer halfway`, `votes halfway`, `direct at the end`. Of the second half of a training's"
        " steps: `training loss` (SFT), `training length` (RL, tokens)."
    )
    model: str = Field(description="The model of the statement.")
    than: str | None = Field(
        None, description="The model to compare with. A gain, or progress, may be compared with 0 instead."
    )
    than_value: Value | None = Field(
        None,
        description="Value of `than`, if it is another one: for `linearized token efficiency` it is the other"
        " mode, `token efficiency`.",
    )
    episodes: tuple[int, int] | None = Field(
        None,
        description="Section 5's values: only thoughts with a number of episodes from the first to the last of these.",
    )
    gains_over: str | None = Field(
        None,
        description="Compare gains over this model, (model - it) / (than - it), which is 1 for equal gains. If"
        " the gain of `than` is not significant, the difference of the gains is compared.",
    )
    expect: Literal["more", "less", "same", "not more"] = Field(
        description="The paper's statement on `model` against `than`."
    )
    margin: float = Field(0.0, ge=0, description="same, not more: the largest difference that counts as equal.")
    redraw: str = Field(description="Target that shows it, as a figure or table.")

    @model_validator(mode="after")
    def _compares_like_with_like(self) -> Self:
        if self.than is None and (self.gains_over or self.than_value or not self.value.startswith(SIGNED)):
            raise ValueError(f"{self.value} needs `than`; only a gain, and progress, are compared with 0")
        both = {self.value, self.than_value or self.value}
        if len(both) == 2 and both & CURVES.keys() and not both <= EFFICIENCY.keys():
            raise ValueError(f"{self.value} cannot be compared with {self.than_value}")
        if self.gains_over in (self.model, self.than) and self.gains_over:
            raise ValueError(f"gains_over {self.gains_over}: a third model is needed")
        if self.value in CURVES and self.gains_over:
            raise ValueError(f"{self.value} compares two curves; leave out gains_over")
        return self


def claims_in(file: Path) -> dict[int, dict[str, Any]]:
    """The claims of a table by line: tab-separated, a column a field of `Claim`, an empty cell for its default.

    Cells are texts, but `episodes` (`[2, 5]`) and `margin`, which are as in YAML. They are not checked here.

    Raises:
        ValueError: for columns that are no fields, repeated or missing, and for rows of another length.
    """
    rows = {}
    with file.open(encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, "excel-tab", strict=True)
        columns = next(reader, [])
        for row in reader:
            rows[reader.line_num] = row
    fields = Claim.model_fields
    needed = [name for name, field in fields.items() if field.is_required()]
    if unknown := [name for name in columns if name not in fields]:
        raise ValueError(f"{file}, line 1: there is no column {unknown[0]!r}, but {', '.join(fields)}")
    if missing := [name for name in needed if name not in columns]:
        raise ValueError(f"{file}, line 1: columns are missing: {', '.join(missing)}")
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise ValueError(f"{file}, line 1: the column {twice[0]!r} stands twice")
    for line, row in rows.items():
        if row and len(row) != len(columns):
            raise ValueError(f"{file}, line {line}: {len(row)} cells under {len(columns)} columns")
    return {
        line: {name: typed(name, cell) for name, cell in zip(columns, row, strict=True) if cell}
        for line, row in rows.items()
        if row
    }


def typed(name: str, cell: str) -> Any:
    """A cell of a table of claims; one that is invalid in its column stays a text, for the error."""
    try:
        return json.loads(cell) if name in ("episodes", "margin") else cell
    except json.JSONDecodeError:
        return cell


def measure_of(value: str) -> str:
    """The measure that a claim's value is read from."""
    if value in LOGGED:
        return LOGGED[value][0]
    return CURVES.get(value) or next(measure for begins, measure in MEASURES.items() if value.startswith(begins))


def values_of(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The values of all measures, a row a problem: columns value, model, run, dataset, problem_id, x, and samples (how
    many completions or traces it is the mean of).

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
        samples = pl.col("samples") if "samples" in table.columns else pl.lit(1, pl.Int64).alias("samples")
        rows = table.select(named, *KEY, x, samples).drop_nulls("x").group_by("value", *KEY, maintain_order=True)
        return [rows.agg(pl.col("x").mean(), pl.col("samples").sum().cast(pl.Int64))]

    by_episodes = tables.get("episode_regret", pl.DataFrame())
    parts = [
        *part("accuracy", "accuracy", "accuracy"),
        *part("accuracy", "tokens", "tokens"),
        *part("maj", pl.format("maj at {}", "k"), "maj"),
        *part("maj", pl.format("pass at {}", "k"), "pass"),
        *part("linearized", pl.format("linearized at {}", "k"), "maj"),
        *part("regret", pl.format("regret at {}", "budget"), "regret"),
        *part_of(to_the_longest(by_episodes), pl.format("regret after {} episodes", "episodes"), "regret"),
        *part("budget_forcing", pl.format("accuracy after {} extensions", "extensions"), "accuracy"),
        *part_of(gains(tables.get("budget_forcing")), pl.format("gain from {} extensions", "extensions"), "gain"),
        *part_of(of_episode(tables.get("progress")), "progress", "progress"),
        *part_of(backtracks(tables.get("progress")), "progress of the backtrack", "progress"),
        *part("episodes", "episodes", "episodes"),
        *(
            selected
            for name, table in ends(tables.get("prefixes"), tables.get("direct"))
            for selected in part_of(table, name, "pass" if "pass" in table.columns else "maj")
        ),
        *(
            selected
            for column in ("accuracy", "tokens", "paid_tokens")
            for selected in part_of(
                exits(tables.get("early_exit")), pl.format(f"{column.replace('_', ' ')} {{}}", "exit"), column
            )
        ),
        *(
            selected
            for name, (measure, column) in LOGGED.items()
            for selected in part_of(second_half(tables.get(measure)), name, column)
        ),
    ]
    return pl.concat(parts) if parts else pl.DataFrame(schema={"value": pl.String, **dict.fromkeys(KEY, pl.String)})


def of_episode(progress: pl.DataFrame | None) -> pl.DataFrame:
    """Progress of one episode, the mean of each problem in a run; `samples` are the scored steps.

    A step has several episodes where mu scores every n-th prefix, and fewer at a trace's end.
    """
    if progress is None or progress.is_empty():
        return pl.DataFrame()
    before = pl.col("prefix").shift().over(*KEY, "sample")
    steps = progress.sort(*KEY, "sample", "prefix").with_columns(episodes=pl.col("prefix") - before)
    of_problem = steps.drop_nulls("progress").group_by(KEY, maintain_order=True)
    return of_problem.agg(pl.col("progress").sum() / pl.col("episodes").sum(), samples=pl.len().cast(pl.Int64))


def backtracks(progress: pl.DataFrame | None) -> pl.DataFrame:
    """Rows of backtracks: the second episode, between an attempt and its revision (Figure 16)."""
    return pl.DataFrame() if progress is None else progress.filter(pl.col("prefix") == BACKTRACK)


def gains(forced: pl.DataFrame | None) -> pl.DataFrame:
    """Rows of `budget_forcing` with the accuracy that the extensions brought to each trace: column gain."""
    if forced is None or forced.is_empty():
        return pl.DataFrame()
    as_written = pl.col("accuracy").filter(pl.col("extensions") == 0).first().over(*KEY, "sample")
    return forced.with_columns((pl.col("accuracy") - as_written).alias("gain"))


def exits(early_exit: pl.DataFrame | None) -> pl.DataFrame:
    """Rows of `early_exit` with the words for their rule in a claim: column exit. The oracle has none."""
    if early_exit is None or early_exit.is_empty():
        return pl.DataFrame()
    words = pl.when(rule="whole").then(pl.lit("without exit")).otherwise(pl.format("at exit {}", "tau"))
    return early_exit.filter(pl.col("rule") != "oracle").with_columns(words.alias("exit"))


def second_half(log: pl.DataFrame | None) -> pl.DataFrame:
    """The second half of each training's steps, as rows of one problem: a training has one log for all of them."""
    if log is None or log.is_empty():
        return pl.DataFrame()
    step = pl.col("step")  # an imported log need not begin at 1
    late = log.filter(step > (step.max() + step.min() - 1).over("model", "run") / 2)
    return late.with_columns(dataset=pl.lit(TRAINING), problem_id=pl.lit("all"))


def direct(prefixes: pl.DataFrame | None, answers: pl.DataFrame | None) -> pl.DataFrame:
    """pass@k of a model that does not think, with as many answers as cost no more than each whole thought.

    Args:
        prefixes: measure `prefixes`, [maj@p]_j of each trace.
        answers: measure `maj` of the model that does not think.

    Returns:
        A row a trace whose tokens buy an answer: its key, affordable (answers that they buy), used (of these, those
        that were sampled), answer_tokens (of one) and pass.
    """
    if prefixes is None or prefixes.is_empty() or answers is None or answers.is_empty():
        return pl.DataFrame()
    whole = prefixes.filter(pl.col("prefix") == pl.col("episodes"), pl.col("p") == 1)
    inserted = pl.col("tokens") - pl.col("k") * pl.col("answer_tokens")  # of the prompt, once
    of_problem = answers.unique(["dataset", "problem_id"], keep="first", maintain_order=True).select(
        "dataset", "problem_id", "samples", "correct", "answer_tokens", inserted=inserted
    )
    traces = whole.select(*KEY, "sample", most="tokens").join(
        of_problem, on=["dataset", "problem_id"], maintain_order="left"
    )
    answers_bought = affordable("most", "inserted", "answer_tokens", "samples")
    traces = traces.with_columns(affordable=answers_bought).filter(pl.col("affordable") > 0)
    traces = traces.with_columns(used=pl.min_horizontal("affordable", "samples"))
    right = pass_at_k(*(traces[name].to_numpy() for name in ("samples", "correct", "used")))
    return traces.select(*KEY, "sample", "affordable", "used", "answer_tokens", pl.Series("pass", right))


def ends(prefixes: pl.DataFrame | None, answers: pl.DataFrame | None = None) -> Iterator[tuple[str, pl.DataFrame]]:
    """Section 5's comparison at the tokens of a whole thought: its answer, votes after half of it, or `direct`.

    Args:
        prefixes: measure `prefixes`, [maj@p]_j of each trace.
        answers: measure `maj` of the model that does not think, if there is one.

    Yields:
        Name and rows, all of the same traces. There are four: the answer at the end of a thought; one answer after half
        of its episodes; a vote there; and `direct`. The vote has as many answers as cost no more than the whole thought
        with its answer. Left out are thoughts of one episode, which have no half, and those that afford no answer
        there. On a dataset that has `answers`, those that afford no direct answer are left out too. Rows of votes and
        of `direct` have the columns affordable, used and answer_tokens (see `direct`).
    """
    if prefixes is None or prefixes.is_empty():
        return
    trace = ["model", "run", "dataset", "problem_id", "sample"]
    whole = prefixes.filter(pl.col("prefix") == pl.col("episodes"), pl.col("p") == 1, pl.col("episodes") > 1)
    half = prefixes.filter(pl.col("affordable").is_not_null(), pl.col("p") == pl.col("p").min().over(trace))
    votes = half.filter(pl.col("affordable") > 0).select(
        *trace, "affordable", "answer_tokens", used=pl.min_horizontal("affordable", "answers"), maj="affordable_maj"
    )
    of_both, baseline = votes.select(trace), direct(prefixes, answers)
    if baseline.height:
        elsewhere = ~pl.col("dataset").is_in(baseline["dataset"].unique().implode())
        of_both = pl.concat([of_both.join(baseline, on=trace, how="semi"), of_both.filter(elsewhere)])
        yield "direct at the end", baseline.join(of_both, on=trace, how="semi")
    yield "answer at the end", whole.join(of_both, on=trace, how="semi")
    yield "answer halfway", half.filter(pl.col("p") == 1).join(of_both, on=trace, how="semi")
    yield "votes halfway", votes.join(of_both, on=trace, how="semi")


class Spent(NamedTuple):
    """How far the answers that were sampled spend the tokens that they may cost."""

    share: float  # of the answers' tokens that the budgets buy
    used: int  # most answers used in a trace
    affordable: int  # most that a trace's tokens buy


def spent(rows: pl.DataFrame) -> Spent | None:
    """How far rows of `ends` spend their budgets; None of those that have one answer."""
    if "used" not in rows.columns or rows.is_empty():
        return None
    used, bought = (float((rows[name] * rows["answer_tokens"]).sum()) for name in ("used", "affordable"))
    return Spent(used / bought if bought else 1.0, *(int(max(rows[name])) for name in ("used", "affordable")))


def compare(
    values: Grid, reference: Grid, base: Grid | None = None, *, same_runs: bool = False, fixed: bool = False
) -> Estimate:
    """Estimate of mean(values) - mean(reference), or of (values - base) / (reference - base) given `base`.

    Args:
        values, reference, base: values [runs, problems] of the same problems in the same order.
        same_runs, fixed: as of `mrt.analysis.intervals.mean_of`.
    """
    if base is None:
        return mean_of(values, reference, same_runs=same_runs, fixed=fixed)
    gain = float(reference.mean() - base.mean())
    ratio = float(values.mean() - base.mean()) / gain
    weights = (1.0, -ratio, ratio - 1.0)
    parts = [weight * influence(grid) / gain for weight, grid in zip(weights, (values, reference, base), strict=True)]
    if same_runs:
        parts = [parts[0] + parts[1], parts[2]]
    return estimate_of(ratio, parts, fixed=fixed)


def verdict(claim: Claim, estimate: float, bound: str | None = None, *, ratio: bool = False) -> tuple[Verdict, float]:
    """The verdict of an estimate about a claim if it is significant, and the value that it then differs from.

    A ratio is compared with 1, a difference with 0; where models are said to be alike, with the nearer end of the
    margin. An estimate that is only a `bound`, `at least` or `at most`, may lie anywhere beyond it: it decides nothing
    on that side.
    """
    none = 1.0 if ratio else 0.0
    said: Verdict = "supported"
    denied: Verdict = "contradicted"
    if claim.expect in ("more", "less"):
        limit, (below, above) = none, (denied, said) if claim.expect == "more" else (said, denied)
    elif claim.expect == "not more" or estimate >= none or (ratio and claim.margin >= 1):  # no ratio is below 0
        limit, below, above = none + claim.margin, said, denied
    else:
        limit, below, above = none - claim.margin, denied, said
    word, open_side = (above, "at most") if estimate > limit else (below, "at least")
    alike = claim.expect == "same" and word == said  # needs both sides
    silent = estimate == limit or bound == open_side or (alike and bound in ("at least", "at most"))
    return ("not significant" if silent else word), limit


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of a family of tests (Holm 1979): those below 0.05 hold a false one in at most 5 % of cases.

    Raises ValueError if one is no number: it would silence the others.
    """
    if any(isnan(p) for p in p_values):
        raise ValueError("holm: a p-value is no number")
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def runs_needed(estimate: Estimate, none: float = 0.0) -> int | None:
    """Runs of each model with which the present estimate's interval would exclude `none`; None if no number would.

    More runs lower the variance between runs, and that of a run's value on a single problem. They do not lower the
    variance between problems. None also of an estimate by draws, whose variance has no such parts.
    """

    def enough(runs: int) -> bool:
        critical = float(quantile(estimate.df * (runs - 1) / (estimate.runs - 1)))
        variance = estimate.of_problems + estimate.of_runs * estimate.runs / runs
        return bool(variance <= ((estimate.value - none) / critical) ** 2)

    if estimate.runs < 2 or estimate.draws is not None or estimate.value == none or not enough(MOST_RUNS):
        return None
    return estimate.runs + 1 + bisect_left(range(estimate.runs + 1, MOST_RUNS), True, key=enough)
