"""Accuracy and regret over training.

Each point is a checkpoint on the way (`evaluate_steps`), measured like a model: at step 0 the parent, last the trained
model itself. Left: pass@1. Right: normalized regret, lower is better, at the largest token budget that all models have
within their own thoughts. Bands are 95 % intervals over |over|.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.figure import TRAINING, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import Appearance, ModelStyle, errorbar, heading, labelled, name_lines, panels, with_intervals
from mrt.figures.training import last_steps

FIGURE = Figure(
    TRAINING, ("accuracy", "regret", "rl_log", "sft_log"), ("Section 8.5.2",), checkpoints=True, skips_unmeasured=True
)
PANELS = {"accuracy": "pass@1", "regret": "normalized regret"}


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    by, points = ["dataset", "model"], places(tables, models)
    regret = tables.get("regret", pl.DataFrame())
    if regret.height:
        models_of = pl.col("model").n_unique()
        within = regret.filter(pl.col("extensions") == 0)
        of_all = within.filter(models_of.over("dataset", "budget") == models_of.over("dataset"))
        regret = of_all.filter(pl.col("budget") == pl.col("budget").max().over("dataset"))
    measured = {"accuracy": tables["accuracy"], "regret": regret}
    shown = {name: with_intervals(of, by, [name]) for name, of in measured.items() if of.height}
    rows = {name: points.join(table, on="model").sort("dataset", "trained", "step") for name, table in shown.items()}
    trained = {name: style for name, style in models.items() if name in points["trained"]}
    sets = rows["accuracy"]["dataset"].unique(maintain_order=True).to_list() if rows else []
    figure, axes = panels(len(sets) * len(rows), columns=len(rows) or 1)
    lines = ((name, part, of.filter(dataset=name)) for name in sets for part, of in rows.items())
    for axis, (name, part, here) in zip(axes, lines, strict=True):
        look = Appearance(labelled(here.with_columns(model="trained"), trained))
        for model in trained:
            line = here.filter(trained=model)
            errorbar(axis, line["step"], line, part, **look.line(model))
        axis.set(xlabel="training step", ylabel=PANELS[part])
        axis.set_title(heading(name, here))
    name_lines(figure, axes)
    values = [of.rename({part: "value", f"{part}_low": "low", f"{part}_high": "high"}) for part, of in rows.items()]
    named = [of.with_columns(pl.lit(part).alias("measure")) for part, of in zip(rows, values, strict=True)]
    return figure, pl.concat(named, how="diagonal_relaxed") if named else pl.DataFrame()


def places(tables: Tables, models: Mapping[str, ModelStyle]) -> pl.DataFrame:
    """The points of each line: `trained`, the model whose training it is; `step`; and `model`, which is measured.

    The last step is the smallest of the runs' logs: each point is a mean over all runs.
    """
    logs = [table.select("model", "run", "step") for name in ("rl_log", "sft_log") if (table := tables[name]).height]
    last = last_steps(pl.concat(logs)) if logs else {}
    points: list[tuple[str, int | None, str | None]] = [
        (of, style.step, name) for name, style in models.items() if (of := style.checkpoint_of) and of in models
    ]
    for trained in dict.fromkeys(of for of, *_ in points):
        parent = models[trained].parent
        points += [(trained, 0, parent)] if parent in models else []
        points += [(trained, last[trained], trained)] if trained in last else []
    return pl.DataFrame(points, schema={"trained": pl.String, "step": pl.Int64, "model": pl.String}, orient="row")


if __name__ == "__main__":
    main(draw, __doc__)
