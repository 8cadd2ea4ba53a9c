"""Shared by the figures of training logs: a quantity by step, one line per model, smoothed over neighbouring steps."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.style import Appearance, ModelStyle, name_lines, panels

SMOOTHED_OVER = 8  # a line is a running mean over an eighth of the steps


def last_steps(logs: pl.DataFrame) -> dict[str | None, int]:
    """The last step that all training runs of a model have, by model."""
    whole = logs.group_by("model", "run").agg(pl.col("step").max())
    return dict(whole.group_by("model").agg(pl.col("step").min()).iter_rows())


def by_step(
    logs: pl.DataFrame, models: Mapping[str, ModelStyle], columns: Mapping[str, str]
) -> tuple[Any, pl.DataFrame]:
    """A panel for each of the `columns` (name: label) of training logs; returns the figure and the plotted data.

    A line is the mean of a model's training runs, as far as all of them go; its band reaches from the lowest to the
    highest. Points are single steps. The steps of a model that goes on from another one in the figure are counted
    on from that one's last, as in a curriculum (Figure 11).
    """
    lines, windows, last = [], set(), last_steps(logs)
    for (model, _), log in logs.sort("step").group_by("model", "run", maintain_order=True):
        before = sum(last.get(ancestor, 0) for ancestor in models[model].ancestors)
        log = log.with_columns(pl.col("step") + before)
        windows.add(window := max(1, log.height // SMOOTHED_OVER))
        means = [pl.col(c).rolling_mean(window, min_samples=1, center=True).alias(f"{c}_smoothed") for c in columns]
        lines.append(log.select("model", "run", "step", *columns).with_columns(*means))
    smoothed = [pl.col(f"{c}_smoothed") for c in columns]
    table = (
        pl.concat(lines)
        .group_by("model", "step")
        .agg(
            pl.len().alias("runs"),
            pl.col(*columns).mean(),
            *(c.mean() for c in smoothed),
            *(c.min().name.suffix("_low") for c in smoothed),
            *(c.max().name.suffix("_high") for c in smoothed),
        )
        .filter((pl.col("runs") == pl.col("runs").max()).over("model"))
        .sort("model", "step")
    )
    smoothing = " to ".join(map(str, sorted({min(windows), max(windows)}))) + " steps" if windows else "no step"
    look = Appearance(models)
    figure, axes = panels(len(columns))
    for axis, (column, label) in zip(axes, columns.items(), strict=True):
        for model in models:
            rows = table.filter(pl.col("model") == model)
            if rows.height:
                style = look.outline(model)
                axis.plot(rows["step"], rows[column], ".", color=style["color"], markersize=1.5, alpha=0.35)
                axis.plot(rows["step"], rows[f"{column}_smoothed"], label=models[model].label, **style)
                ends = (rows[f"{column}_smoothed_low"], rows[f"{column}_smoothed_high"])
                axis.fill_between(rows["step"], *ends, color=style["color"], alpha=0.13, linewidth=0)
        axis.set(xlabel="training step", ylabel=label)
        axis.set_title(f"lines: running mean over {smoothing}; points: single steps", fontsize="small")
    name_lines(figure, axes)
    return figure, table
