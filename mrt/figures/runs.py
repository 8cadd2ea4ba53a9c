"""Cost and results of training, over training runs: a model and its replicates, which differ only by seed.

    python -m mrt.figures.runs --out runs \\
        --models '{"grpo": {"label": "GRPO"}, "again": {"label": "seed 1", "replicate_of": "grpo"}}' \\
        --tables '{"cost": {...}, "accuracy": {...}, "regret": {...}}'

Rows are methods. A cell is a mean over runs and problems with its 95 % interval (both are resampled). In parentheses is
the difference to the outcome-reward baseline on the same problems (the first GRPO model, else the first STaR model),
marked * if the interval excludes 0. Cost is the mean over runs and includes the whole lineage.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from mrt.analysis.bootstrap import bootstrap_runs, runs_of
from mrt.analysis.claims import values_of
from mrt.figures.stage import Tables, main_table
from mrt.figures.style import ModelStyle
from mrt.figures.tables import Layout

OUTCOME_REWARD = ("grpo", "star")  # methods that a difference is taken to, the first that there is
NOTE = (
    "Mean over training runs and problems, with a 95 % interval (bootstrap over both){difference}. Tokens are those"
    " generated to train the model and its ancestors, FLOPs those of generating, prefilling and training; the mean over"
    " runs."
)
DIFFERENCE = "; in parentheses the difference to {reference}, with * where its interval excludes 0"
SCHEMA = {
    "dataset": pl.String,
    "model": pl.String,
    "value": pl.String,
    "runs": pl.Int64,
    "n": pl.Int64,
    **dict.fromkeys(["estimate", "low", "high", "difference", "difference_low", "difference_high"], pl.Float64),
    "generated_tokens": pl.Float64,
    "flops": pl.Float64,
}


def baseline(names: Iterable[str], models: Mapping[str, ModelStyle]) -> str | None:
    """The model, among those named, that the others are compared with."""
    return next((n for method in OUTCOME_REWARD for n in names if models[n].method == method), None)


def summary(tables: Tables, models: Mapping[str, ModelStyle]) -> pl.DataFrame:
    """A row for each dataset, measured value and method."""
    regret = tables.get("regret", pl.DataFrame())
    within = regret.filter(pl.col("extensions") == 0) if regret.height else regret
    values = values_of({"accuracy": tables.get("accuracy", pl.DataFrame()), "regret": within})
    cost = tables["cost"]
    totals: dict[str, tuple[float, float]] = {}  # a model that was not trained here has no cost
    if cost.height:
        of_run = cost.group_by("model", "run").agg(pl.col("generated_tokens", "flops").sum().cast(pl.Float64))
        means = of_run.group_by("model").agg(pl.col("generated_tokens", "flops").mean())
        totals = {name: tuple(sums) for name, *sums in means.iter_rows()}
    rows: list[tuple[Any, ...]] = []
    for (dataset, value), here in values.group_by("dataset", "value", maintain_order=True):
        grids = {name: runs_of(of, "x") for name in models if (of := here.filter(pl.col("model") == name)).height}
        reference = grids.get(baseline(grids, models) or "")
        for name, grid in grids.items():
            interval = bootstrap_runs(grid.values)
            difference: tuple[Any, ...] = (None, None, None)
            if reference and reference is not grid and reference.problems == grid.problems:
                difference = bootstrap_runs(grid.values, reference.values)
            sizes = (len(grid.values), len(grid.problems))
            rows.append((dataset, name, value, *sizes, *interval, *difference, *totals.get(name, (0.0, 0.0))))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def layout(table: pl.DataFrame, models: Mapping[str, ModelStyle]) -> Layout:
    """The table as text."""
    names = table["model"].unique(maintain_order=True).to_list()
    first = {row["model"]: row for row in table.unique("model", keep="first").iter_rows(named=True)}
    header = ["model", "runs", "generated tokens", "FLOPs"]
    cells = [
        [models[n].label, str(first[n]["runs"]), f"{first[n]['generated_tokens']:,.0f}", f"{first[n]['flops']:.2e}"]
        for n in names
    ]
    for (dataset, value), here in table.group_by("dataset", "value", maintain_order=True):
        header.append(f"{dataset}: {value}")
        rows = {row["model"]: row for row in here.iter_rows(named=True)}
        for index, name in enumerate(names):
            cells[index].append(cell(rows[name]) if name in rows else "")
    reference = baseline(names, models)
    difference = DIFFERENCE.format(reference=models[reference].label) if reference else ""
    return Layout("training runs", header, cells, set(), NOTE.format(difference=difference))


def cell(row: Mapping[str, Any]) -> str:
    scale, digits = {"accuracy": (100, 1), "tokens": (1, 1)}.get(row["value"], (1, 3))
    low, middle, high = (f"{scale * row[name]:.{digits}f}" for name in ("low", "estimate", "high"))
    text = f"{middle} [{low}, {high}]"
    if row["difference"] is None:
        return text
    clear = "*" if row["difference_low"] > 0 or row["difference_high"] < 0 else ""
    return f"{text} ({scale * row['difference']:+.{digits}f}{clear})"


if __name__ == "__main__":
    main_table(summary, layout, __doc__)
