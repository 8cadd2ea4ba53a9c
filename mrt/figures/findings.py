"""Is a method better than its baseline, by how much and at what cost?

Each row compares a model with its baseline. This is the first GRPO or STaR model of the same base after as many
trainings; of a baseline, the nearest ancestor that was measured. Differences in accuracy are on the problems that both
were measured on, with 95 % intervals over |over|. They are significant if the interval excludes 0; nothing is corrected
for the number of rows. Tokens are the mean length of a completion. Cost is that of the training and of all trainings
before it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

from mrt.figures.figure import RESULT, Figure
from mrt.figures.pass1 import differences
from mrt.figures.runs import OUTCOME_REWARD, costs
from mrt.figures.stage import Tables, main_table
from mrt.figures.style import ModelStyle, with_intervals
from mrt.figures.tables import Layout

FIGURE = Figure(RESULT, ("accuracy", "cost"), opens=True)

FINE_TUNED = ("mrt", "warmstart", "cold_start")  # methods whose baseline is STaR, where there is GRPO too
NOTE = (
    "Intervals are of 95 %. Tokens and FLOPs are multiples of the baseline's. Look next at maj_tokens, regret, traces."
)
RUNS = "There is one training run, and another may differ: `training: {runs: 5}` tells by how much."
COLUMNS = ["accuracy", "tokens"]
HEADER = ["model", "is", "its baseline", "by, points of accuracy", "tokens of a completion", "training FLOPs"]


def baseline_of(name: str, models: Mapping[str, ModelStyle]) -> str | None:
    """The model that a trained model is compared with; None of one that was not trained."""
    style = models[name]
    kinds = OUTCOME_REWARD if style.method not in FINE_TUNED else OUTCOME_REWARD[::-1]
    alike = [
        other
        for other, rival in models.items()
        if (rival.root, len(rival.ancestors)) == (style.root, len(style.ancestors)) and not rival.checkpoint_of
    ]
    rivals = [other for kind in kinds for other in alike if models[other].method == kind]
    if rivals and style.trained and style.method not in OUTCOME_REWARD:
        return rivals[0]
    return next((ancestor for ancestor in style.ancestors if ancestor in models), None)


def summary(tables: Tables, models: Mapping[str, ModelStyle]) -> pl.DataFrame:
    """A row for each dataset and model that has a baseline there.

    Columns: dataset, model and baseline; accuracy, tokens and flops of the model, and of the baseline with
    `baseline_` before their names. The difference of accuracies is in difference, difference_low and difference_high.
    difference_n are its problems. difference_over is "runs and problems", or "problems" if a training has one run.
    """
    by = ["dataset", "model"]
    baselines = {name: baseline_of(name, models) for name in models}
    means = with_intervals(tables["accuracy"], by, COLUMNS).select(*by, *COLUMNS)
    spent = [(name, flops) for name, (_, flops) in costs(tables["cost"]).items()]
    flops = pl.DataFrame(spent, schema={"model": pl.String, "flops": pl.Float64}, orient="row")
    means = means.join(flops, on="model", how="left", maintain_order="left")
    name = pl.col("model").replace_strict(baselines, default=None, return_dtype=pl.String)
    of_baseline = means.rename({column: f"baseline_{column}" for column in [*COLUMNS, "flops"]} | {"model": "baseline"})
    return (
        means.with_columns(name.alias("baseline"))
        .join(of_baseline, on=["dataset", "baseline"], maintain_order="left")
        .join(differences(tables["accuracy"], models, by, baselines), on=by, maintain_order="left")
    )


class Words(NamedTuple):
    """The parts of a row in words; empty where something is not known."""

    model: str
    verdict: str
    baseline: str
    right: str
    points: str
    interval: str
    tokens: str
    flops: str


def words_of(row: Mapping[str, Any], labels: Mapping[str, str]) -> Words:
    """Is it better, by how much, with which tokens, at what cost?"""
    points, low, high = (100 * row[f"difference{end}"] for end in ("", "_low", "_high"))
    verdict = "better than" if low > 0 else "worse than" if high < 0 else "not significantly different from"
    times = [
        f"{row[name] / row[f'baseline_{name}']:.2f} times" if row[name] and row[f"baseline_{name}"] else ""
        for name in ("tokens", "flops")
    ]
    model, baseline = (labels.get(row[name], row[name]) for name in ("model", "baseline"))
    by = (f"{points:+.1f}", f"[{low:.1f}, {high:.1f}]")
    return Words(model, verdict, baseline, f"{row['accuracy']:.1%}", *by, *times)


def sentences(words: Words) -> str:
    """A row in sentences."""
    by = f"{words.points} points {words.interval}"
    text = f"{words.model} is {words.verdict} {words.baseline}: {words.right} right, {by}."
    text += f" A completion takes {words.tokens} the tokens." if words.tokens else ""
    return text + (f" Training took {words.flops} the FLOPs." if words.flops else "")


def readings(table: pl.DataFrame, labels: Mapping[str, str]) -> list[str]:
    """All rows in sentences, and what to do if a training has a single run."""
    several = table["dataset"].n_unique() > 1
    rows = table.iter_rows(named=True)
    lines = [(f"On {row['dataset']}: " if several else "") + sentences(words_of(row, labels)) for row in rows]
    return lines + remarks(table)


def remarks(table: pl.DataFrame) -> list[str]:
    return [RUNS] * bool(table.filter(difference_over="problems").height)


def layout(table: pl.DataFrame, models: Mapping[str, ModelStyle]) -> Layout:
    """The table as text."""
    labels = {name: style.label for name, style in models.items()}
    several = table["dataset"].n_unique() > 1
    header = [*(["dataset"] if several else []), *HEADER]
    cells = []
    for row in table.iter_rows(named=True):
        words = words_of(row, labels)
        differences = [f"{words.points} {words.interval}", words.tokens, words.flops]
        cells.append([*([row["dataset"]] if several else []), words.model, words.verdict, words.baseline, *differences])
    return Layout("findings", header, cells, set(), " ".join([NOTE, *remarks(table)]))


if __name__ == "__main__":
    main_table(summary, layout, __doc__)
