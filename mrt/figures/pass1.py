"""pass@1 of every model on every dataset (Table 1): Markdown, LaTeX, HTML and Parquet.

    python -m mrt.figures.pass1 --tables '{"accuracy": {"base": {"toy_test": "accuracy.parquet"}}}' \\
        --models '{"base": {"label": "Base"}}' --out pass1

Rows are models. Columns are datasets, their average, each dataset by difficulty if it has few levels, and the mean
length. A cell is a mean with its 95 % interval (bootstrap over problems, and over training runs if there are several)
and, in parentheses, the difference to the parent on the same problems (marked * where its interval
excludes 0). The best of a column is bold.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from mrt.analysis.bootstrap import bootstrap_average, bootstrap_runs, runs_of
from mrt.figures.stage import Tables, main_table
from mrt.figures.style import ModelStyle, with_intervals
from mrt.figures.tables import Layout

MOST_DIFFICULTIES = 10
AVERAGE = "average"
NOTE = (
    "pass@1 in percent, 95 % interval over problems and training runs; in parentheses the difference to the parent,"
    " with * where its interval excludes 0; the best of a column in bold."
)
COLUMNS = ["accuracy", "tokens", "characters"]


def summary(tables: Tables, models: Mapping[str, ModelStyle]) -> pl.DataFrame:
    """Accuracy and length with intervals by dataset and model, over all problems and by difficulty; differences."""
    data = tables["accuracy"]
    parts = [with_intervals(data, ["dataset", "model"], COLUMNS).with_columns(pl.lit("all").alias("difficulty"))]
    of_set = pl.col("difficulty").n_unique().over("dataset")
    graded = data.drop_nulls("difficulty").filter((of_set > 1) & (of_set <= MOST_DIFFICULTIES))
    if graded.height:
        levels = with_intervals(graded, ["dataset", "model", "difficulty"], COLUMNS)
        parts.append(levels.with_columns(pl.col("difficulty").map_elements(lambda d: f"{d:g}", pl.String)))
    averages = list(over_sets(data, models))
    if averages:
        parts.append(pl.DataFrame(averages).with_columns(pl.lit("all").alias("difficulty")))
    table = pl.concat(parts, how="diagonal_relaxed")
    return table.join(differences(data, models), on=["dataset", "model"], how="left", maintain_order="left")


def over_sets(data: pl.DataFrame, models: Mapping[str, ModelStyle]) -> Iterator[dict[str, Any]]:
    """The average over datasets, for models measured on all of them; nothing if there is only one dataset."""
    sets = data["dataset"].unique(maintain_order=True)
    for model in models:
        here = data.filter(pl.col("model") == model)
        if len(sets) > 1 and here["dataset"].n_unique() == len(sets):
            grids = [runs_of(here.filter(dataset=s), "accuracy") for s in sets]
            estimate, low, high = bootstrap_average([grid.values for grid in grids])
            n = sum(len(grid.problems) for grid in grids)
            yield {
                **{"dataset": AVERAGE, "model": model, "n": n},
                **{"accuracy": estimate, "accuracy_low": low, "accuracy_high": high},
            }


def differences(data: pl.DataFrame, models: Mapping[str, ModelStyle]) -> pl.DataFrame:
    """Accuracy less the parent's on the same problems, where both were measured."""
    rows = []
    for (dataset, model), own in data.group_by("dataset", "model", maintain_order=True):
        parent = models[str(model)].parent if model in models else None
        other = data.filter(pl.col("dataset") == dataset, pl.col("model") == (parent or ""))
        own = own.join(other, on="problem_id", how="semi")
        other = other.join(own, on="problem_id", how="semi")
        if own.height:
            grids = (runs_of(own, "accuracy").values, runs_of(other, "accuracy").values)
            rows.append((dataset, model, *bootstrap_runs(*grids)))
    names = {"difference": pl.Float64, "difference_low": pl.Float64, "difference_high": pl.Float64}
    schema = {"dataset": pl.String, "model": pl.String, **names}
    return pl.DataFrame(rows, schema=schema, orient="row")


def layout(table: pl.DataFrame, models: Mapping[str, ModelStyle]) -> Layout:
    """The table as text."""
    header, cells = ["model"], [[style.label] for style in models.values()]
    bold: set[tuple[int, int]] = set()
    groups = table.select("dataset", "difficulty").unique(maintain_order=True)
    number = pl.col("difficulty").cast(pl.Float64, strict=False)  # "10" behind "2"; "all" last
    groups = groups.sort(pl.col("dataset") == AVERAGE, "dataset", number, "difficulty", nulls_last=True)
    known = table.filter(pl.col("dataset") != AVERAGE).group_by("dataset", maintain_order=True)
    columns = [(s, d, "accuracy") for s, d in groups.iter_rows()] + [
        (s, "all", "tokens" if counted else "characters")  # imported completions come without token counts
        for s, counted in known.agg(pl.col("tokens").count() > 0).iter_rows()
    ]
    for dataset, difficulty, column in columns:
        here = table.filter((pl.col("dataset") == dataset) & (pl.col("difficulty") == difficulty))
        values = {row["model"]: row for row in here.iter_rows(named=True)}
        if all(values.get(m, {}).get(column) is None for m in models):
            continue
        n = max(row["n"] for row in values.values())
        name = dataset if difficulty == "all" else f"{dataset}, {difficulty}"
        header.append(f"{name} (n = {n})" if column == "accuracy" else f"{name} {column}")
        best = max((row[column] for row in values.values() if row[column] is not None), default=None)
        for index, model in enumerate(models):
            row = values.get(model)
            if row is None or row[column] is None:
                cells[index].append("")
            elif column != "accuracy":
                cells[index].append(f"{row[column]:,.0f}")
            else:
                cells[index].append(cell(row))
                if row[column] == best:
                    bold.add((index, len(header) - 1))
    return Layout("pass@1", header, cells, bold, NOTE)


def cell(row: Mapping[str, Any]) -> str:
    """An accuracy with its interval and, for a whole dataset, the difference to the parent."""
    text = f"{100 * row['accuracy']:.1f} [{100 * row['accuracy_low']:.1f}, {100 * row['accuracy_high']:.1f}]"
    if row["difficulty"] != "all" or row["difference"] is None:
        return text
    clear = "*" if row["difference_low"] > 0 or row["difference_high"] < 0 else ""
    return f"{text} ({100 * row['difference']:+.1f}{clear})"


if __name__ == "__main__":
    main_table(summary, layout, __doc__)
