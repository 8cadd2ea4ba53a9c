"""Accuracy, tokens and cost of every model, against the model that it was trained from.

Rows are models. Accuracy is pass@1 with its 95 % interval. Differences in accuracy are to the base (the first ancestor
that was measured) and to the parent, on the problems that both were measured on. A star marks an interval that excludes
0. Tokens are the mean length of a completion. Cost is that of the training and of all ancestors' trainings: tokens
generated and FLOPs, the mean over training runs. The tables of claims and of training runs compare methods.
"""

from collections.abc import Mapping

import polars as pl

from mrt.figures.figure import RESULT, Figure
from mrt.figures.pass1 import differences, unread_warnings, with_unread
from mrt.figures.runs import costs
from mrt.figures.stage import Tables, main_table
from mrt.figures.style import SINGLE, ModelStyle, most_runs, over, shortfall, usual_samples, with_intervals
from mrt.figures.tables import Layout

FIGURE = Figure(RESULT, ("accuracy", "cost"), opens=True)

NOTE = (
    "Accuracy is pass@1 in percent{samples}, differences are in points, both with 95 % intervals over {over}; * where"
    " that of a difference excludes 0. Tokens are of a completion. Tokens generated and FLOPs are those of the training"
    " and of all trainings before it."
)
SIDES = ("base", "parent")  # models that a model is compared with


def summary(tables: Tables, models: Mapping[str, ModelStyle]) -> pl.DataFrame:
    """A row for each dataset and model.

    Columns: accuracy and tokens with intervals and counts (`mrt.figures.style.with_intervals`); for `base` and `parent`
    the model's name, and `to_base`, `to_base_low`, `to_base_high`, `to_base_n`, `to_base_over` (see
    `mrt.figures.pass1.summary`); generated_tokens, flops.
    """
    by = ["dataset", "model"]
    result = with_unread(with_intervals(tables["accuracy"], by, ["accuracy", "tokens"]), tables["accuracy"], by)
    others = {
        "base": {name: first_shown(style, models) for name, style in models.items()},
        "parent": {name: style.parent for name, style in models.items()},
    }
    for side in SIDES:
        differ = differences(tables["accuracy"], models, by, others[side])
        differ = differ.rename({name: name.replace("difference", f"to_{side}") for name in differ.columns})
        name = pl.col("model").replace_strict(others[side], default=None, return_dtype=pl.String).alias(side)
        result = result.with_columns(name).join(differ, on=by, how="left", maintain_order="left")
    spent = [(name, *of) for name, of in costs(tables["cost"]).items()]
    schema = {"model": pl.String, "generated_tokens": pl.Float64, "flops": pl.Float64}
    spending = pl.DataFrame(spent, schema=schema, orient="row")
    return result.join(spending, on="model", how="left", maintain_order="left")


def first_shown(style: ModelStyle, models: Mapping[str, ModelStyle]) -> str | None:
    """The first of a model's ancestors that is shown; None of a model that has none."""
    return next((name for name in reversed(style.ancestors) if name in models), None)


def layout(table: pl.DataFrame, models: Mapping[str, ModelStyle]) -> Layout:
    """The table as text."""
    sets, runs, samples = table["dataset"].n_unique(), most_runs(table, models), usual_samples(table)
    sides = [side for side in SIDES if table[f"to_{side}"].count()]
    if sides == list(SIDES) and table["base"].equals(table["parent"]):
        sides.remove("parent")
    spent = bool(table["flops"].count())
    header = [*(["dataset"] if sets > 1 else []), "model", "accuracy", *(f"to the {side}" for side in sides), "tokens"]
    header += ["training: tokens generated", "training: FLOPs"] if spent else []
    order = {name: i for i, name in enumerate(models)}
    rows = table.sort(pl.col("dataset").rank("dense"), pl.col("model").replace_strict(order, return_dtype=pl.Int64))
    cells = []
    for row in rows.iter_rows(named=True):
        low, middle, high = (f"{100 * row[name]:.1f}" for name in ("accuracy_low", "accuracy", "accuracy_high"))
        less = shortfall(row, samples, runs if models[row["model"]].trained else 0)
        line = [row["dataset"]] if sets > 1 else []
        line += [models[row["model"]].label, f"{middle} [{low}, {high}]" + (f", {less}" if less else "")]
        line += [cell(row, f"to_{side}", runs) for side in sides]
        line.append("" if row["tokens"] is None else f"{row['tokens']:,.0f}")
        line += [] if not spent else ["", ""] if row["flops"] is None else spending_of(row)
        cells.append(line)
    note = NOTE.format(samples=f" of {samples} samples a problem" if samples > 1 else "", over=over(runs))
    alone = runs > 1 and any(table.filter(pl.col(f"to_{side}_over") == "problems").height for side in sides)
    warnings = unread_warnings(table, {name: style.label for name, style in models.items()})
    return Layout("overview", header, cells, set(), " ".join([note, *([SINGLE] if alone else []), *warnings]))


def cell(row: Mapping[str, object], name: str, runs: int) -> str:
    """A difference with its interval, in points; nothing where there is none. `runs`: the most of a model."""
    values = [row[column] for column in (name, f"{name}_low", f"{name}_high")]
    if any(value is None for value in values):
        return ""
    middle, low, high = (100 * float(str(value)) for value in values)
    clear = "*" if low > 0 or high < 0 else ""
    alone = "†" if row[f"{name}_over"] == "problems" and runs > 1 else ""
    return f"{middle:+.1f}{clear}{alone} [{low:.1f}, {high:.1f}]"


def spending_of(row: Mapping[str, float]) -> list[str]:
    """Tokens generated and FLOPs, for people."""
    return [f"{row['generated_tokens']:,.0f}", f"{row['flops']:.1e}"]


if __name__ == "__main__":
    main_table(summary, layout, __doc__)
