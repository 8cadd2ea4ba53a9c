"""The paper's claims and what this experiment says of them (`claims` in the configuration).

Rows are claims: what the paper says, the same comparison here with its 95 % interval over training runs and problems,
and the verdict. An undecided claim says how many runs would decide it at the present estimate.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from mrt.analysis.bootstrap import runs_of
from mrt.analysis.claims import (
    CURVES,
    EFFICIENCY,
    EQUAL_TOKENS,
    KEY,
    LOGGED,
    Claim,
    Grid,
    compare,
    runs_needed,
    runs_needed_for_ratio,
    runs_needed_of_curves,
    values_of,
    verdict,
)
from mrt.analysis.token_efficiency import accuracy_gain, bootstrap_curves, bootstrap_token_efficiency
from mrt.figures.stage import Tables, main_table
from mrt.figures.style import ModelStyle
from mrt.figures.tables import Layout
from mrt.figures.token_efficiency import maj_curves

NOTE = (
    "Differences, or ratios where an x stands behind them, with 95 % intervals over training runs and problems."
    " Confirmed or refuted: the interval excludes 0 (of a ratio 1); else undecided, with the runs of each model that"
    " would decide it if the estimate stayed what it is (one run does not tell). The verdict is of the direction, not"
    " of the size; where models are said to be alike, a difference within the margin in parentheses counts as none."
)
MOST = 100  # runs; more are not counted one by one
SHARES = ("accuracy", "maj", "pass", "linearized", "answer", "votes", "direct", "gain")  # values shown in percent
BOUNDS = {"at least": "≥ ", "at most": "≤ "}
SCHEMA = {
    "section": pl.String,
    "says": pl.String,
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
    "needed": pl.Int64,  # runs that would decide it; null where that is not known, or none would
    "redraw": pl.String,
}


def summary(tables: Tables, models: Mapping[str, ModelStyle], claims: list[Any]) -> pl.DataFrame:
    """A row for each claim and dataset that has both models."""
    asked = [Claim.model_validate(claim) for claim in claims]
    of_group = {group: values_of(of_episodes(tables, group)) for group in dict.fromkeys(c.episodes for c in asked)}
    rows = []
    for claim in asked:
        values = of_group[claim.episodes]
        curve = CURVES.get(claim.value)
        measured = tables.get(curve, pl.DataFrame()) if curve else values.filter(value=claim.value)
        there = measured["dataset"].unique(maintain_order=True).to_list() if measured.height else []
        for dataset in there or ["any dataset"]:
            found = row_of(claim, dataset, values, tables, models)
            if found:
                rows.append(found)
            else:
                of = " or ".join(filter(None, (claim.model, claim.than)))
                print(f"{claim.value} of {of} is not measured on {dataset}: {claim.says}")
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def of_episodes(tables: Tables, group: tuple[int, int] | None) -> Tables:
    """The tables, with prefixes of thoughts with so many episodes only."""
    if group is None or "prefixes" not in tables:
        return tables
    return {**tables, "prefixes": tables["prefixes"].filter(pl.col("episodes").is_between(*group))}


def row_of(
    claim: Claim, dataset: str, values: pl.DataFrame, tables: Tables, models: Mapping[str, ModelStyle]
) -> tuple[Any, ...] | None:
    """The row of a claim on one dataset; None if a model has no such value there."""
    sides = [(claim.model, claim.value)]
    sides += [(claim.than, claim.than_value or claim.value)] if claim.than else []
    sides += [(claim.gains_over, claim.value)] if claim.gains_over else []
    curves = [curves_of(tables, dataset, *side) for side in sides] if claim.value in CURVES else []
    found = curves or [values.filter(dataset=dataset, model=name, value=value) for name, value in sides]
    if any(side.is_empty() for side in found):
        return None
    if curves:  # their problems, in whose stead `x` stands
        found = [curve.unique(KEY, maintain_order=True).select(*KEY, x="maj") for curve in curves]
    of_runs = [runs_of(side, "x") for side in found]
    shared = set.intersection(*(set(runs.problems) for runs in of_runs))
    if not shared:
        return None
    own, *others = (runs.values[:, [p in shared for p in runs.problems]] for runs in of_runs)
    other, *base = others or [np.zeros((1, own.shape[1]))]
    # one problem has no interval; a log is of one, and has that of the runs
    alone = own.shape[1] == 1 and (claim.value not in LOGGED or min(len(own), len(other)) == 1)
    most, same_runs = max(len(own), len(other)), claim.model == claim.than
    bound, ratio = None, claim.value in EFFICIENCY
    if curves:
        one, two = (maj_curves(curve.filter(pl.col("problem_id").is_in(shared))) for curve in curves)
        of_problems = (*mean_of_runs(*one), *mean_of_runs(*two))
        if claim.value == EQUAL_TOKENS:
            interval = bootstrap_curves(accuracy_gain, *one, *two, same_runs=same_runs)
            needed = runs_needed_of_curves(interval, bootstrap_curves(accuracy_gain, *of_problems), most)
        else:
            interval, bound = bootstrap_token_efficiency(*one, *two, same_runs=same_runs)
            needed = runs_needed_for_ratio(interval, bootstrap_token_efficiency(*of_problems)[0], most)
    else:
        # a ratio of gains says nothing where the other model may have lost
        ratio = bool(base) and compare(other, base[0]).low > 0
        interval = compare(own, other, base[0] if ratio else None, same_runs=same_runs)
        needed = runs_needed(own, other, same_runs=same_runs)
    decided = "undecided" if alone else verdict(claim, interval, bound, ratio=ratio)
    narrow = verdict(claim, interval, ratio=ratio) != "undecided"  # then more runs change nothing, of a bound neither
    if alone or most == 1 or narrow or claim.expect not in ("more", "less"):
        needed = None
    sizes = (len(own), len(other) if claim.than else len(own), own.shape[1])
    labels = (models[claim.model].label, models[claim.than].label if claim.than else None)
    what = claim.value if claim.than_value is None else f"{claim.value} against {claim.than_value}"
    found_here = (*interval, ratio, bound, *sizes, decided)
    margin = None if claim.expect in ("more", "less") else claim.margin or None
    return (claim.section, claim.says, what, *labels, *found_here, claim.expect, margin, needed, claim.redraw)


def curves_of(tables: Tables, dataset: str, model: str, value: str) -> pl.DataFrame:
    """The rows of maj@k and its tokens on a dataset that a model's curve is drawn from."""
    table = tables.get(CURVES[value], pl.DataFrame())
    return table if table.is_empty() else table.filter(dataset=dataset, model=model).drop_nulls("tokens")


def mean_of_runs(tokens: Grid, accuracy: Grid) -> tuple[Grid, Grid]:
    """Curves [runs, problems, points] as those of one run, their mean."""
    return tokens.mean(axis=0, keepdims=True), accuracy.mean(axis=0, keepdims=True)


def layout(table: pl.DataFrame, models: Mapping[str, ModelStyle]) -> Layout:
    """The table as text."""
    header = ["", "claim", "here", "runs", "verdict", "redraw"]
    cells = []
    for row in table.iter_rows(named=True):
        scale = 100 if row["value"].startswith(SHARES) and not row["ratio"] else 1
        digits = 2 if row["ratio"] else 1 if scale == 100 or row["value"] in ("tokens", "training length") else 3
        sign, unit = ("", " x") if row["ratio"] else ("+", "")
        low, middle, high = (f"{scale * row[name]:{sign}.{digits}f}" for name in ("low", "estimate", "high"))
        number = f"about {row['needed']}" if (row["needed"] or 0) <= MOST else f"over {MOST}"
        needed = f", would need {number} runs" if row["needed"] else ""
        if row["verdict"] == "undecided" and row["expect"] in ("more", "less") and not needed:
            needed = ", not by more runs" if max(row["runs"], row["than_runs"]) > 1 else ""
        needed += "" if row["margin"] is None else f" (alike within {scale * row['margin']:g})"
        sides = list(dict.fromkeys(side for side in (row["model"], row["than"]) if side))
        of = " against ".join(sides)
        what = f"{row['value']}, {of}: {BOUNDS.get(row['bound'], '')}{middle} [{low}, {high}]{unit}"
        runs = "{runs}" if row["runs"] == row["than_runs"] else "{runs} against {than_runs}"
        cells.append([row["section"], row["says"], what, runs.format(**row), row["verdict"] + needed, row["redraw"]])
    return Layout("claims", header, cells, set(), NOTE)


if __name__ == "__main__":
    main_table(summary, layout, __doc__)
