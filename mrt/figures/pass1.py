"""pass@1 of every model on every dataset.

Rows are models. Columns are datasets, their average, each dataset by difficulty if it has few levels, and the mean
length of a completion in tokens. A cell is a mean with its 95 % interval. In parentheses is the difference to the
model's parent on the problems that both were measured on, with a star where its interval excludes 0. Intervals are over
|over|. Cells with fewer problems than their column, or with fewer samples or runs than the table, say so. The best of a
column is bold, among models that were measured on all of its problems. The paper sees MRT gain 2 to 3 times as much
over the base as outcome-reward training does, and a length penalty lose accuracy.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from mrt.analysis.intervals import average_of, difference_of_shares, runs_of, share
from mrt.figures.figure import RESULT, Figure
from mrt.figures.stage import Tables, main_table
from mrt.figures.style import (
    SINGLE,
    ModelStyle,
    most_runs,
    one_run,
    over,
    sample_sizes,
    shortfall,
    usual_samples,
    with_intervals,
)
from mrt.figures.tables import Layout

FIGURE = Figure(RESULT, ("accuracy", "reading"), paper=("table1",))

MOST_DIFFICULTIES = 10
AVERAGE = "average"
NOTE = (
    "pass@1 in percent, {samples}with 95 % intervals over {over}; in parentheses the difference to the parent, with *"
    " where its interval excludes 0; the best of a column in bold, among models measured on all of its problems."
)
COLUMNS = ["accuracy", "tokens", "characters"]
MOST_UNREAD = 0.25  # share of completions without a readable answer that needs no warning


def summary(tables: Tables, models: Mapping[str, ModelStyle]) -> pl.DataFrame:
    """Accuracy and length with intervals by dataset and model, over all problems and by difficulty; differences.

    Columns besides are sample sizes (see `mrt.figures.style.with_intervals`): n, of, runs, samples_least, samples_most,
    `tokens_n` and `characters_n`. `reading` says how the rows of imported completions were read, where there are such.
    `difference_n` counts the problems of the difference. `difference_over` is "runs and problems", or "problems" where
    a training has one run, so that the variance between runs is unknown.
    """
    data, reading = tables["accuracy"], tables.get("reading", pl.DataFrame())
    by, parents = ["dataset", "model"], {name: style.parent for name, style in models.items()}
    parts = [
        with_intervals(data, by, COLUMNS)
        .with_columns(pl.lit("all").alias("difficulty"))
        .join(differences(data, models, by, parents), on=by, how="left", maintain_order="left")
        .pipe(with_unread, data, by)
    ]
    of_set = pl.col("difficulty").n_unique().over("dataset")
    graded = data.drop_nulls("difficulty").filter((of_set > 1) & (of_set <= MOST_DIFFICULTIES))
    if graded.height:
        by = [*by, "difficulty"]
        levels = with_intervals(graded, by, COLUMNS)
        levels = levels.join(differences(graded, models, by, parents), on=by, how="left", maintain_order="left")
        parts.append(levels.with_columns(pl.col("difficulty").map_elements(lambda d: f"{d:g}", pl.String)))
    averages = list(over_sets(data, models))
    if averages:
        parts.append(pl.DataFrame(averages).with_columns(pl.lit("all").alias("difficulty")))
    result = pl.concat(parts, how="diagonal_relaxed")
    if reading.height:
        said = pl.concat_str("rows", "what", separator=" ").str.join("; ").alias("reading")
        result = result.join(reading.group_by("dataset", "model").agg(said), on=["dataset", "model"], how="left")
    return result


def over_sets(data: pl.DataFrame, models: Mapping[str, ModelStyle]) -> Iterator[dict[str, Any]]:
    """The average over datasets, of the runs that were measured on all of them; nothing if there is one dataset."""
    sets = data["dataset"].unique(maintain_order=True)
    counts = sample_sizes(data, ["dataset", "model"])
    for model in models:
        here = data.filter(pl.col("model") == model)
        on_all = here.group_by("run").agg(pl.col("dataset").n_unique() == len(sets)).filter("dataset")["run"]
        if len(sets) > 1 and on_all.len():
            here = here.filter(pl.col("run").is_in(on_all.implode()))
            grids = [runs_of(here.filter(dataset=s), "accuracy") for s in sets]
            average = average_of([grid.values for grid in grids]).interval()
            estimate, low, high = share(average, min(len(grid.problems) for grid in grids))
            of_model = counts.filter(model=model)
            yield {
                **{"dataset": AVERAGE, "model": model, "n": sum(len(grid.problems) for grid in grids)},
                **{"of": of_model["of"].sum(), "runs": len(grids[0].values)},
                **{"samples_least": of_model["samples_least"].min(), "samples_most": of_model["samples_most"].max()},
                **{"accuracy": estimate, "accuracy_low": low, "accuracy_high": high},
            }


def differences(
    data: pl.DataFrame, models: Mapping[str, ModelStyle], by: list[str], others: Mapping[str, str | None]
) -> pl.DataFrame:
    """Accuracy less that of another model on the problems that both were measured on, by `by` (dataset, model, ...).

    Args:
        others: the other model of each; None of a model that is not compared.
    """
    rows = []
    for key, rows_of_model in data.group_by(by, maintain_order=True):
        place = dict(zip(by, key, strict=True))
        model = str(place["model"])
        other_model = others.get(model) or ""
        other = data.filter(*(pl.col(name) == value for name, value in (place | {"model": other_model}).items()))
        of_both = [runs_of(rows_of, "accuracy") for rows_of in (rows_of_model, other)]
        shared = set.intersection(*(set(runs.problems) for runs in of_both))
        if shared:
            grids = [runs.values[:, [p in shared for p in runs.problems]] for runs in of_both]
            fixed = any(one_run(models, name, grid) for name, grid in zip((model, other_model), grids, strict=True))
            interval = difference_of_shares(*grids, fixed=fixed)
            rows.append((*key, *interval, grids[0].shape[1], "problems" if fixed else "runs and problems"))
    names = {"difference": pl.Float64, "difference_low": pl.Float64, "difference_high": pl.Float64}
    counts = {"difference_n": pl.Int64, "difference_over": pl.String}
    schema = {name: data.schema[name] for name in by} | names | counts
    return pl.DataFrame(rows, schema=schema, orient="row")


def layout(table: pl.DataFrame, models: Mapping[str, ModelStyle]) -> Layout:
    """The table as text."""
    header, cells = ["model"], [[style.label] for style in models.values()]
    bold: set[tuple[int, int]] = set()
    groups = table.select("dataset", "difficulty").unique(maintain_order=True)
    number = pl.col("difficulty").cast(pl.Float64, strict=False)  # "10" after "2"; "all" last
    groups = groups.sort(pl.col("dataset") == AVERAGE, "dataset", number, "difficulty", nulls_last=True)
    known = table.filter(pl.col("dataset") != AVERAGE).group_by("dataset", maintain_order=True)
    columns = [(s, d, "accuracy") for s, d in groups.iter_rows()] + [
        (s, "all", "tokens" if counted else "characters")  # imported completions come without token counts
        for s, counted in known.agg(pl.col("tokens").count() > 0).iter_rows()
    ]
    samples, runs = usual_samples(table), most_runs(table, models)
    for dataset, difficulty, column in columns:
        here = table.filter((pl.col("dataset") == dataset) & (pl.col("difficulty") == difficulty))
        values = {row["model"]: row for row in here.iter_rows(named=True) if row[column] is not None}
        if values.keys().isdisjoint(models):
            continue
        name = dataset if difficulty == "all" else f"{dataset}, {difficulty}"
        header.append(f"{name} (n = {here['of'].to_numpy().max()})" if column == "accuracy" else f"{name} {column}")
        whole = {model: row["accuracy"] for model, row in values.items() if row["n"] == row["of"]}
        best = max(whole.values(), default=None)
        for index, model in enumerate(models):
            row = values.get(model)
            if row is None:
                cells[index].append("")
                continue
            n = row["n"] if column == "accuracy" else row[f"{column}_n"]
            less = shortfall(row | {"n": n}, samples, runs if models[model].trained else 0)
            text = cell(row) if column == "accuracy" else f"{row[column]:,.0f}"
            cells[index].append(f"{text}, {less}" if less else text)
            if column == "accuracy" and whole.get(model) == best and len(whole) > 1:
                bold.add((index, len(header) - 1))
    remarks = readings(table, {name: style.label for name, style in models.items()})
    return Layout("pass@1", header, cells, bold, " ".join([note(table, samples, runs), *remarks]))


def note(table: pl.DataFrame, samples: int, runs: int) -> str:
    """The note below the table."""
    of_each = f"{samples} samples a problem, " if samples > 1 else ""
    text = NOTE.format(samples=of_each, over=over(runs))
    marked = runs > 1 and table.filter(pl.col("difference_over") == "problems").height
    return " ".join([text, *([SINGLE] if marked else [])])


def with_unread(table: pl.DataFrame, data: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """The table with the share of completions without a readable answer, if the measure has it: column unread."""
    if "unparsed" not in data.columns:
        return table
    unread = data.group_by(by).agg(pl.col("unparsed").mean().alias("unread"))
    return table.join(unread, on=by, how="left", maintain_order="left")


def unread_warnings(table: pl.DataFrame, labels: Mapping[str, str]) -> list[str]:
    """A sentence for each model and dataset where many completions have no readable answer."""
    if "unread" not in table.columns:
        return []
    whole = table.filter(difficulty="all") if "difficulty" in table.columns else table
    many = whole.filter(pl.col("unread") > MOST_UNREAD).select("model", "dataset", "unread")
    return [
        f"warning: {labels.get(m, m)} on {d}: no answer can be read in {share:.0%} of the completions. Look at them in"
        f" traces.html: does the prompt suit the model, and do answers end in a box?"
        for m, d, share in many.iter_rows()
    ]


def readings(table: pl.DataFrame, labels: Mapping[str, str]) -> list[str]:
    """How the rows of imported completions were read, a sentence for each model and dataset; and warnings."""
    warnings = unread_warnings(table, labels)
    if "reading" not in table.columns:
        return warnings
    imported = table.filter(pl.col("reading").is_not_null(), difficulty="all").select("model", "dataset", "reading")
    return [f"{labels.get(m, m)} on {d}, imported: {text}." for m, d, text in imported.iter_rows()] + warnings


def cell(row: Mapping[str, Any]) -> str:
    """An accuracy with its interval and, for a whole dataset, the difference to the parent."""
    text = f"{100 * row['accuracy']:.1f} [{100 * row['accuracy_low']:.1f}, {100 * row['accuracy_high']:.1f}]"
    if row["difficulty"] != "all" or row["difference"] is None:
        return text
    clear = "*" if row["difference_low"] > 0 or row["difference_high"] < 0 else ""
    alone = "†" if row["difference_over"] == "problems" and row["runs"] > 1 else ""
    on = f" on {row['difference_n']}" if row["difference_n"] < row["n"] else ""
    return f"{text} ({100 * row['difference']:+.1f}{clear}{alone}{on})"


if __name__ == "__main__":
    main_table(summary, layout, __doc__)
