"""Number of episodes of a thought.

A panel for each model: the share of its traces by their number of episodes. The vertical line is the mean. All panels
have the same axes. The paper's R1 model has about 5 to 45 on AIME and Omni-MATH.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from mrt.figures.figure import CASE, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import Appearance, ModelStyle, labelled, name_panel, panels, room, sample_sizes

FIGURE = Figure(CASE, ("episodes",), paper=("fig23",))

BINS = 20  # at most


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    data = tables["episodes"]
    table = data.group_by("dataset", "model", "episodes", maintain_order=True).agg(pl.len().alias("traces"))
    table = table.with_columns((pl.col("traces") / pl.col("traces").sum()).over("dataset", "model").alias("share"))
    sizes = sample_sizes(data, ["dataset", "model"])
    table = table.join(sizes, on=["dataset", "model"], maintain_order="left")
    look = Appearance(models)
    sets = table["dataset"].unique(maintain_order=True).to_list()
    measured = set(table.select("dataset", "model").iter_rows())
    places = [(name, model) for name in sets for model in models if (name, model) in measured]
    figure, axes = panels(len(places), height=1.5, columns=4, least=1.6)
    least, most = int(data["episodes"].to_numpy().min()), int(data["episodes"].to_numpy().max())
    width = -(-(most - least + 1) // BINS)
    edges = np.arange(least, most + width + 1, width) - 0.5
    highest = 0.0
    for axis, (name, model) in zip(axes, places, strict=True):
        values = data.filter(dataset=name, model=model)["episodes"].to_numpy()
        shares = np.histogram(values, bins=edges)[0] / values.size
        axis.stairs(shares, edges, fill=True, color=look.colour(model), alpha=0.75)
        highest = max(highest, shares.max())
        axis.axvline(values.mean(), color="0.2", linewidth=0.8)
        label = labelled(sizes.filter(dataset=name), models)[model].label
        about = f"mean {values.mean():.1f}, {values.size} traces"
        name_panel(axis, label if len(sets) == 1 else f"{label}, {name}", about, look.colour(model))
        name_bins(axis, edges, width)
        axis.set(xlabel="episodes of a thought", ylabel="share of traces" if axis in axes[:1] else "")
    for axis in axes:
        axis.set_ylim(0, 1.05 * highest)
    return figure, table.sort("dataset", "model", "episodes")


def name_bins(axis: Any, edges: Any, width: int) -> None:
    """Ticks in the middle of bins alone, as many as can be read, with the numbers of episodes in the bin."""
    firsts = [int(edge + 0.5) for edge in edges[:-1]]
    every = -(-len(firsts) // max(1, int(room(axis) / (0.5 if width > 1 else 0.25))))
    shown = firsts[::every]
    names = [f"{first}" if width == 1 else f"{first}–{first + width - 1}" for first in shown]
    axis.set_xticks([first + (width - 1) / 2 for first in shown], names)
    axis.set_xlim(edges[0], edges[-1])


if __name__ == "__main__":
    main(draw, __doc__)
