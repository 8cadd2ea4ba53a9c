"""The paper's claims and what this experiment says of them (`claims` in the configuration).

Rows are claims: what the paper says, the same comparison here with its 95 % interval over training runs and problems,
and the verdict. An undecided claim says how many runs would decide it at the present estimate.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from mrt.analysis.claims import Claim, compare, efficiency, runs_needed, values_of, verdict
from mrt.figures.common import ModelStyle, Tables, main_table
from mrt.figures.runs import Runs, runs_of
from mrt.figures.tables import Layout

NOTE = (
    "Differences, or ratios where an x stands behind them, with 95 % intervals over training runs and problems."
    " Confirmed or refuted: the interval excludes no difference; else undecided, with the runs of each model that would"
    " decide it at this estimate."
)
SCHEMA = {
    "section": pl.String,
    "says": pl.String,
    "value": pl.String,
    "model": pl.String,
    "than": pl.String,
    **dict.fromkeys(["estimate", "low", "high"], pl.Float64),
    "ratio": pl.Boolean,
    "runs": pl.Int64,
    "problems": pl.Int64,
    "verdict": pl.String,
    "needed": pl.Int64,
    "redraw": pl.String,
}


def summary(tables: Tables, models: Mapping[str, ModelStyle], claims: list[Any]) -> pl.DataFrame:
    """A row for each claim and dataset that has both models."""
    values = values_of(tables)
    rows = []
    for claim in map(Claim.model_validate, claims):
        for dataset in values["dataset"].unique(maintain_order=True):
            found = row_of(claim, values.filter(dataset=dataset), tables["maj"], models)
            if found:
                rows.append(found)
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def row_of(
    claim: Claim, values: pl.DataFrame, maj: pl.DataFrame, models: Mapping[str, ModelStyle]
) -> tuple[Any, ...] | None:
    """The row of a claim on one dataset; None if a model has no such value there."""
    names = [claim.model, claim.than, *([claim.gains_over] if claim.gains_over else [])]
    by_tokens = claim.value == "token efficiency"
    here = values.filter(value="accuracy" if by_tokens else claim.value)
    grids = [runs_of(here, name, models) for name in names]
    if any(grid is None or grid.problems != grids[0].problems for grid in grids if grids[0]) or grids[0] is None:
        return None
    own, other, *base = (grid.values for grid in grids if grid)
    if by_tokens:
        interval = efficiency(*curves_of(maj, claim.model, models), *curves_of(maj, claim.than, models))
    else:
        interval = compare(own, other, base[0] if base else None)
    decided = verdict(claim, interval)
    ratio = bool(base) or by_tokens
    needed = None if ratio or decided != "undecided" or claim.expect == "same" else runs_needed(own, other)
    sizes = (min(len(own), len(other)), own.shape[1])
    of = (models[claim.model].label, models[claim.than].label)
    return (claim.section, claim.says, claim.value, *of, *interval, ratio, *sizes, decided, needed, claim.redraw)


def curves_of(maj: pl.DataFrame, name: str, models: Mapping[str, ModelStyle]) -> tuple[Any, Any]:
    """Tokens and maj@k of a model's runs, each [runs, problems, points]."""
    wide = []
    for column in ("tokens", "maj"):
        points = [
            runs_of(of_k.select("model", "problem_id", pl.col(column).alias("x")), name, models)
            for _, of_k in maj.sort("k").group_by("k", maintain_order=True)
        ]
        wide.append(np.stack([point.values for point in points if isinstance(point, Runs)], axis=-1))
    return wide[0], wide[1]


def layout(table: pl.DataFrame, models: Mapping[str, ModelStyle]) -> Layout:
    """The table as text."""
    header = ["", "the paper", "here", "runs", "verdict", "redraw"]
    cells = []
    for row in table.iter_rows(named=True):
        scale = 100 if row["value"].startswith(("accuracy", "maj", "pass", "linearized")) and not row["ratio"] else 1
        digits = 2 if row["ratio"] else 1 if scale == 100 or row["value"] == "tokens" else 3
        sign, unit = ("", " x") if row["ratio"] else ("+", "")
        low, middle, high = (f"{scale * row[name]:{sign}.{digits}f}" for name in ("low", "estimate", "high"))
        needed = f", would need about {row['needed']} runs" if row["needed"] else ""
        if row["verdict"] == "undecided" and not needed and not row["ratio"]:
            needed = ", not by more runs"
        what = f"{row['value']}, {row['model']} against {row['than']}: {middle} [{low}, {high}]{unit}"
        cells.append([row["section"], row["says"], what, str(row["runs"]), row["verdict"] + needed, row["redraw"]])
    return Layout("claims", header, cells, set(), NOTE)


if __name__ == "__main__":
    main_table(summary, layout, __doc__)
