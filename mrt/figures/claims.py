"""The paper's claims, and the verdicts of this experiment.

Rows are the `claims` of the configuration: the paper's statement, and the same comparison here with its 95 % interval
over |over|. A claim is supported or contradicted where its difference is significant at 5 %; else
it is not significant. It is not tested where a training has a single run, or there is one problem. Neither is it where
curves share no tokens, or answers are not at equal tokens. p-values are corrected (Holm) for the claims about the same
two methods. Where more runs would make an interval exclude 0 at the present estimate, the row says how many.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from mrt.analysis.claims import (
    CURVES,
    EFFICIENCY,
    EQUAL_TOKENS,
    KEY,
    LOGGED,
    TRAINING,
    Claim,
    Spent,
    compare,
    ends,
    holm,
    runs_needed,
    spent,
    values_of,
    verdict,
)
from mrt.analysis.intervals import LEVEL, Estimate, runs_of
from mrt.analysis.token_efficiency import efficiency_of_curves, gain_of_curves, ratio_interval
from mrt.figures.figure import RESULT, Figure
from mrt.figures.stage import Tables, main_table
from mrt.figures.style import ModelStyle, one_run, shortfall
from mrt.figures.tables import Layout
from mrt.figures.token_efficiency import maj_curves

FIGURE = Figure(
    RESULT,
    (
        "maj",
        "accuracy",
        "linearized",
        "regret",
        "episode_regret",
        "budget_forcing",
        "progress",
        "episodes",
        "prefixes",
        "direct",
        "early_exit",
        "sft_log",
        "rl_log",
    ),
    settings=("claims",),
    needs="claims",
    skips_unmeasured=True,
)

NOTE = "A comparison is a difference, or a ratio (x), with its 95 % interval over {over}{single}."
TESTED = (
    " Supported or contradicted comparisons are significant at 5 %. p-values are corrected (Holm) within a"
    " family, which is the claims about the same two methods: here {claims} in {families} families. A family holds a"
    " false verdict in at most 5 % of cases. So at most {expected:.2g} of {families} families are expected to hold one."
    " There is one anywhere in at most {anywhere:.0%} of cases. A comparison that is not significant says with how many"
    " runs of each model its interval would exclude 0, without correction, if the estimate stayed what it is. The"
    " verdict is of the direction, not of the size. Where models are said to be alike, a difference within the margin"
    " in parentheses counts as none."
)
SINGLE = "; †: over problems alone, as a training has a single run, whose spread is not known, and so not tested"
MOST = 100  # runs; more are not counted one by one
MOST_RATIO = 100  # a larger one is not shown, nor its inverse: the curves of the two models hardly overlap
ENOUGH = 0.99  # share of the tokens that answers may cost; below it a comparison is not at equal tokens
SHARES = ("accuracy", "maj", "pass", "linearized", "answer", "votes", "direct", "gain")  # values shown in percent
COUNTS = ("tokens", "paid tokens", "training length")  # values shown with one digit
BOUNDS = {"at least": "≥ ", "at most": "≤ "}
SCHEMA = {
    "claim": pl.String,  # of the paper, of its first comparison
    "part_of": pl.String,  # the same, of each of its comparisons
    "section": pl.String,
    "says": pl.String,
    "dataset": pl.String,
    "value": pl.String,
    "model": pl.String,
    "than": pl.String,
    **dict.fromkeys(["estimate", "low", "high"], pl.Float64),
    "ratio": pl.Boolean,
    "bound": pl.String,  # of a ratio: "equal accuracy", or "at least" or "at most" if the curves share none
    "runs": pl.Int64,
    "than_runs": pl.Int64,
    "problems": pl.Int64,
    "verdict": pl.String,
    "expect": pl.String,
    "margin": pl.Float64,  # the difference that counts as none, where models are said to be alike
    "needed": pl.Int64,  # runs with which its interval would exclude 0; null where that is not known, or none would
    "redraw": pl.String,
    "of": pl.Int64,  # problems on which either model was measured
    "samples_least": pl.Int64,  # completions or traces of a problem in a run, of either model
    "samples_most": pl.Int64,
    "over": pl.String,  # the interval is over runs and problems, or problems
    "spent": pl.Float64,  # share of the tokens that answers may cost which those sampled do; null where none are bought
    "used": pl.Int64,  # most answers used in a trace
    "affordable": pl.Int64,  # most that a trace's tokens buy
    "family": pl.String,  # the two methods
    "p": pl.Float64,  # null where nothing is tested
    "p_corrected": pl.Float64,
}


def summary(tables: Tables, models: Mapping[str, ModelStyle], claims: list[Any]) -> pl.DataFrame:
    """A row for each claim and dataset that has both models."""
    parsed = [Claim.model_validate(claim) for claim in claims]
    whole: str | None = None
    of_group = {group: values_of(of_episodes(tables, group)) for group in dict.fromkeys(c.episodes for c in parsed)}
    rows = []
    for claim in parsed:
        whole = claim.claim or whole
        values = of_group[claim.episodes]
        curve = CURVES.get(claim.value)
        measured = tables.get(curve, pl.DataFrame()) if curve else values.filter(value=claim.value)
        datasets = measured["dataset"].unique(maintain_order=True).to_list() if measured.height else []
        for dataset in datasets or ["any dataset"]:
            row = row_of(claim, dataset, values, tables, models)
            if row:
                rows.append(row | {"part_of": whole})
            else:
                of = " or ".join(filter(None, (claim.model, claim.than)))
                print(f"{claim.value} of {of} is not measured on {dataset}: {claim.says}")
    return corrected(pl.DataFrame(rows, schema=SCHEMA))


def corrected(table: pl.DataFrame) -> pl.DataFrame:
    """The table with p-values corrected within each family, and verdicts by these."""
    adjusted = pl.col("p").map_batches(lambda p: pl.Series(holm(p.to_list()), dtype=pl.Float64), pl.Float64)
    tested = table.with_row_index().filter(pl.col("p").is_not_null())
    tested = tested.select("index", adjusted.over("family").alias("p_corrected"))
    table = table.with_row_index().drop("p_corrected").join(tested, on="index", how="left", maintain_order="left")
    of_tested = pl.when(pl.col("p_corrected") < LEVEL).then("verdict").otherwise(pl.lit("not significant"))
    verdicts = pl.when(pl.col("p").is_null()).then(pl.lit("not tested")).otherwise(of_tested)
    return table.with_columns(verdict=verdicts).select(list(SCHEMA))


def of_episodes(tables: Tables, group: tuple[int, int] | None) -> Tables:
    """The tables, with prefixes of only those thoughts whose number of episodes is in the group."""
    if group is None or "prefixes" not in tables:
        return tables
    return {**tables, "prefixes": tables["prefixes"].filter(pl.col("episodes").is_between(*group))}


def row_of(
    claim: Claim, dataset: str, values: pl.DataFrame, tables: Tables, models: Mapping[str, ModelStyle]
) -> dict[str, Any] | None:
    """The row of a claim on one dataset, its verdict not yet corrected; None if a model has no such value there."""
    sides = sides_of(claim)
    curves = [curves_of(tables, dataset, *side) for side in sides] if claim.value in CURVES else []
    side_tables = curves or [values.filter(dataset=dataset, model=name, value=value) for name, value in sides]
    if any(side.is_empty() for side in side_tables):
        return None
    if curves:  # only their problems and samples count; `x` is a placeholder
        counts = ["samples"] if all("samples" in curve.columns for curve in curves) else []
        side_tables = [curve.unique(KEY, maintain_order=True).select(*KEY, *counts, x="maj") for curve in curves]
    of_runs = [runs_of(side, "x") for side in side_tables]
    shared = set.intersection(*(set(runs.problems) for runs in of_runs))
    if not shared:
        return None
    model_grid, *other_grids = (runs.values[:, [p in shared for p in runs.problems]] for runs in of_runs)
    reference_grid, *base = other_grids or [np.zeros((1, model_grid.shape[1]))]
    same_runs = claim.model == claim.than
    # the variance between runs is unknown from a single training run; a model that is given has none
    fixed = any(one_run(models, name, grid) for (name, _), grid in zip(sides, (model_grid, *other_grids), strict=True))
    # one problem has no interval; a log is of one, and has that of the runs
    alone = model_grid.shape[1] == 1 and (claim.value not in LOGGED or min(len(model_grid), len(reference_grid)) == 1)
    bound, ratio = None, claim.value in EFFICIENCY
    if curves:
        curves = [curve.filter(pl.col("problem_id").is_in(shared)) for curve in curves]
        estimate, bound = estimate_of_curves(claim.value, curves, same_runs=same_runs, fixed=fixed)
    else:
        # a ratio of gains says nothing where the other model may have lost
        ratio = bool(base) and compare(reference_grid, base[0], fixed=fixed).interval().low > 0
        estimate = compare(model_grid, reference_grid, base[0] if ratio else None, same_runs=same_runs, fixed=fixed)
    logarithm = claim.value in EFFICIENCY
    interval = ratio_interval(estimate) if logarithm else estimate.interval()
    known = bool(np.isfinite(estimate.value))  # not where curves share no tokens
    word, limit = verdict(claim, interval.estimate, bound, ratio=ratio) if known else ("not significant", 0.0)
    none = float(ratio and not logarithm)
    cost = spending(claim, dataset, tables)
    p = needed = None
    if known and not (alone or fixed or (cost and cost.share < ENOUGH)):
        p = 1.0 if word == "not significant" else estimate.p_value(float(np.log(limit)) if logarithm else limit)
        if claim.expect in ("more", "less") and estimate.p_value(none) >= LEVEL:
            needed = runs_needed(estimate, none)
    return {
        **words_of(claim, models),
        "dataset": dataset,
        **(interval._asdict() if known else dict.fromkeys(interval._fields)),
        "ratio": ratio,
        "bound": bound,
        "runs": len(model_grid),
        "than_runs": len(reference_grid) if claim.than else len(model_grid),
        "problems": model_grid.shape[1],
        "verdict": word,
        "needed": needed,
        **samples_of(side_tables),
        "over": "problems" if fixed else "runs and problems",
        **dict(zip(("spent", "used", "affordable"), cost or (None,) * 3, strict=True)),
        "p": p,
        "p_corrected": None,
    }


def estimate_of_curves(
    value: str, curves: list[pl.DataFrame], *, same_runs: bool, fixed: bool
) -> tuple[Estimate, str | None]:
    """The estimate of a value of two models' curves, and the kind of a ratio (`efficiency_of_curves`)."""
    one, two = map(maj_curves, curves)
    if value == EQUAL_TOKENS:
        return gain_of_curves(*one, *two, same_runs=same_runs, fixed=fixed), None
    return efficiency_of_curves(*one, *two, same_runs=same_runs, fixed=fixed)


def sides_of(claim: Claim) -> list[tuple[str, str]]:
    """(model, value) of the sides of a claim: its model, the other one, and the one that both gain over."""
    sides = [(claim.model, claim.value)]
    sides += [(claim.than, claim.than_value or claim.value)] if claim.than else []
    return sides + ([(claim.gains_over, claim.value)] if claim.gains_over else [])


def words_of(claim: Claim, models: Mapping[str, ModelStyle]) -> dict[str, Any]:
    """The columns of a row that come from the claim alone."""
    styles = [models[name] for name in (claim.model, claim.than) if name]
    return {
        "claim": claim.claim,
        "section": claim.section,
        "says": claim.says,
        "value": claim.value if claim.than_value is None else f"{claim.value} against {claim.than_value}",
        "model": styles[0].label,
        "than": styles[1].label if claim.than else None,
        "expect": claim.expect,
        "margin": None if claim.expect in ("more", "less") else claim.margin or None,
        "redraw": claim.redraw,
        "family": " against ".join(sorted(style.method for style in styles)),
    }


def samples_of(tables: list[pl.DataFrame]) -> dict[str, Any]:
    """Problems on which a side was measured, and the fewest and the most samples of one."""
    samples = [table["samples"].to_numpy() for table in tables if "samples" in table.columns]
    return {
        "of": len(set().union(*(table["problem_id"] for table in tables))),
        "samples_least": min((int(counts.min()) for counts in samples), default=None),
        "samples_most": max((int(counts.max()) for counts in samples), default=None),
    }


def spending(claim: Claim, dataset: str, tables: Tables) -> Spent | None:
    """How far the answers of a claim about equal tokens spend them, of the side that spends least."""
    bought = [(model, value) for model, value in sides_of(claim) if value in ("votes halfway", "direct at the end")]
    if not bought:
        return None
    of_group = of_episodes(tables, claim.episodes)
    rows = dict(ends(of_group.get("prefixes"), of_group.get("direct")))
    costs = [spent(rows[value].filter(dataset=dataset, model=model)) for model, value in bought if value in rows]
    return min((cost for cost in costs if cost), default=None)


def curves_of(tables: Tables, dataset: str, model: str, value: str) -> pl.DataFrame:
    """The rows of maj@k and its tokens on a dataset: the points of a model's curve."""
    table = tables.get(CURVES[value], pl.DataFrame())
    return table if table.is_empty() else table.filter(dataset=dataset, model=model).drop_nulls("tokens")


def layout(table: pl.DataFrame, models: Mapping[str, ModelStyle]) -> Layout:
    """The table as text."""
    header = ["", "claim", "here", "runs", "n", "verdict", "redraw"]
    cells, several = [], table.filter(pl.col("dataset") != TRAINING)["dataset"].n_unique() > 1
    for row in table.iter_rows(named=True):
        sides = list(dict.fromkeys(side for side in (row["model"], row["than"]) if side))
        what = difference_text(row)
        runs = "{runs}" if row["runs"] == row["than_runs"] else "{runs} against {than_runs}"
        less = shortfall(row | {"n": row["problems"], "runs": None}, row["samples_most"] or 0)
        n = less if "n =" in less else ", ".join(filter(None, (str(row["problems"]), less)))
        here = [runs.format(**row), n.removeprefix("n = "), verdict_text(row), row["redraw"]]
        where = f" on {row['dataset']}" if several and row["dataset"] != TRAINING else ""
        cells.append([row["section"], row["says"], f"{row['value']}{where}, {' against '.join(sides)}: {what}", *here])
    return Layout("claims", header, cells, set(), note(table))


def difference_text(row: Mapping[str, Any]) -> str:
    """The estimate of a row with its interval: points of a share, times of a ratio, else in the value's unit."""
    if row["estimate"] is None:
        return "the curves share no tokens"
    numbers = [row[name] for name in ("low", "estimate", "high")]
    if row["ratio"]:
        low, middle, high = (ratio_text(number) for number in numbers)
    else:
        scale = 100 if row["value"].startswith(SHARES) else 1
        digits = 1 if scale == 100 or row["value"].startswith(COUNTS) else 3
        low, middle, high = (f"{scale * number:+.{digits}f}" for number in numbers)
    unit = " x" if row["ratio"] else ""
    single = "†" if row["over"] == "problems" else ""
    return f"{BOUNDS.get(row['bound'], '')}{middle} [{low}, {high}]{unit}{single}"


def ratio_text(ratio: float) -> str:
    """A ratio with two digits, if it is within `MOST_RATIO`."""
    if ratio > MOST_RATIO:
        return f"> {MOST_RATIO}"
    return f"{ratio:.2f}" if ratio >= 1 / MOST_RATIO else f"< {1 / MOST_RATIO:.2f}"


def verdict_text(row: Mapping[str, Any]) -> str:
    """A verdict with its corrected p-value, and what keeps it from another one."""
    text = row["verdict"]
    if row["p_corrected"] is not None:
        text += " (p < 0.001)" if row["p_corrected"] < 0.001 else f" (p = {row['p_corrected']:.3f})"
    if row["spent"] is not None and row["spent"] < 1:
        text += f", {row['used']} answers sampled, where tokens buy up to {row['affordable']}"
        text += f": {row['spent']:.0%} of them spent" + ("" if row["spent"] >= ENOUGH else ", not at equal tokens")
    if row["verdict"] == "not significant" and row["expect"] in ("more", "less"):
        number = f"about {row['needed']}" if (row["needed"] or 0) <= MOST else f"over {MOST}"
        if row["needed"]:
            text += f", would need {number} runs"
        elif max(row["runs"], row["than_runs"]) > 1 and row["p"] >= LEVEL and row["bound"] is None:
            text += ", not by more runs"
    if row["margin"] is not None:
        scale = 100 if row["value"].startswith(SHARES) and not row["ratio"] else 1
        text += f" (alike within {scale * row['margin']:g})"
    return str(text)


def note(table: pl.DataFrame) -> str:
    """The note below the table: how verdicts are corrected, and how many may be false."""
    tested = table.filter(pl.col("p").is_not_null())
    families = tested["family"].n_unique()
    bounds = {"expected": LEVEL * families, "anywhere": min(1.0, LEVEL * families)}
    single = SINGLE if "problems" in table["over"] else ""
    over = "problems" if set(table["over"]) == {"problems"} else "training runs and problems"
    text = NOTE.format(over=over, single=single)
    return text + TESTED.format(claims=tested.height, families=families, **bounds) if families else text


if __name__ == "__main__":
    main_table(summary, layout, __doc__)
