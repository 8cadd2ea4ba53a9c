"""Number of episodes of a thought.

The paper's R1 model has about 5 to 45 on AIME and Omni-MATH.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from mrt.figures.figure import CASE, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import Appearance, ModelStyle, labelled, legend, panels, sample_sizes

FIGURE = Figure(CASE, ("episodes",), paper=("fig23",))

BINS = 20
MOST_HISTOGRAMS = 5  # with more models they overlap; then each is a row of points and a box


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    data = tables["episodes"]
    table = data.group_by("dataset", "model", "episodes", maintain_order=True).agg(pl.len().alias("traces"))
    table = table.with_columns((pl.col("traces") / pl.col("traces").sum()).over("dataset", "model").alias("share"))
    counts_of = sample_sizes(data, ["dataset", "model"])
    table = table.join(counts_of, on=["dataset", "model"], maintain_order="left")
    look = Appearance(models)
    sets = table["dataset"].unique(maintain_order=True).to_list()
    figure, axes = panels(len(sets), height=max(2.3, 0.4 * len(models)))  # two lines of text per model
    for axis, name in zip(axes, sets, strict=True):
        here = data.filter(pl.col("dataset") == name)
        counts = {m: here.filter(pl.col("model") == m)["episodes"].to_numpy() for m in models}
        counts = {m: c for m, c in counts.items() if c.size}
        less = labelled(counts_of.filter(dataset=name), models)
        labels = {m: f"{less[m].label} (n = {c.size}, mean {c.mean():.1f})" for m, c in counts.items()}
        axis.set(title=name, xlabel="episodes of a thought")
        if len(models) > MOST_HISTOGRAMS:
            rows(axis, counts, labels, look)
        else:
            histograms(axis, counts, labels, look)
            if len(axes) == 1:
                legend(figure, axis)
            else:
                axis.legend()  # its numbers belong to this panel
    return figure, table.sort("dataset", "model", "episodes")


def histograms(axis: Any, counts: dict[str, Any], labels: dict[str, str], look: Appearance) -> None:
    most = max(int(c.max()) for c in counts.values())
    width = max(1, -(-most // BINS))
    edges = np.arange(0.5, most + width + 0.5, width)
    for model, values in counts.items():
        weights = np.full(values.size, 1 / values.size)
        axis.hist(values, bins=edges, weights=weights, histtype="step", label=labels[model], **look.outline(model))
    axis.set_ylabel("share of traces")
    if width > 1:
        axis.set_xlabel(f"episodes of a thought, {width} a bin")


def rows(axis: Any, counts: dict[str, Any], labels: dict[str, str], look: Appearance) -> None:
    jitter = np.random.default_rng(0)
    for row, (model, values) in enumerate(reversed(counts.items())):
        colour = look.colour(model)
        axis.plot(values, row + jitter.uniform(-0.2, 0.2, values.size), ".", color=colour, alpha=0.6, markersize=4)
        axis.boxplot(
            values, positions=[row], widths=0.6, orientation="horizontal", showfliers=False, manage_ticks=False
        )
    axis.set_ylim(-0.7, max(len(counts), 5) - 0.3)
    axis.set_yticks(range(len(counts)), [labels[model].replace(" (n =", "\n(n =") for model in reversed(counts)])


if __name__ == "__main__":
    main(draw, __doc__)
