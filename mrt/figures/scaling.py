"""[maj@p]_j scaling curves: one more episode, or more votes after fewer episodes? (Figures 3, 24, 25, 27, 28)

The solid line is maj@1 after each prefix, from left to right with more episodes; the dashed lines that branch from it
take p = 2, 4, 8 votes after the same prefix. Traces are grouped by how many episodes they have in all: curves of short
and long thoughts differ (Section 5). A panel is a model and a group.
"""

from typing import Any

import numpy as np
import polars as pl

from mrt.figures.common import Appearance, ModelStyle, errorbar, legend, main, panels, with_intervals

GROUPS = 3
VOTES_COLOUR = "#4C9A2A"


def draw(data: pl.DataFrame, models: dict[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    """Groups are terciles of the total number of episodes over all models, so that panels of one column compare."""
    traces = data.unique(["model", "problem_set", "problem_id", "sample"])
    edges = np.unique(
        np.quantile(traces["episodes"].to_numpy(), [i / GROUPS for i in range(GROUPS + 1)], method="nearest")
    )
    lows = [int(e) + (1 if i else 0) for i, e in enumerate(edges[:-1])] or [int(edges[0])]
    highs = [int(e) for e in edges[1:]] or [int(edges[0])]
    names = [f"{low} to {high} episodes" for low, high in zip(lows, highs, strict=True)]
    grouped = pl.concat(
        data.filter(pl.col("episodes").is_between(low, high)).with_columns(pl.lit(name).alias("group"))
        for name, low, high in zip(names, lows, highs, strict=True)
    )
    table = with_intervals(grouped, ["group", "model", "prefix", "p"], ["maj", "tokens"]).sort(
        "group", "model", "p", "prefix"
    )
    look = Appearance(models)
    figure, axes = panels(len(models) * len(names), height=2.3, columns=len(names))
    for index, axis in enumerate(axes):
        model, name = list(models)[index // len(names)], names[index % len(names)]
        here = table.filter((pl.col("model") == model) & (pl.col("group") == name))
        largest = here["n"].to_numpy().max(initial=0)
        here = here.filter(pl.col("n") >= max(5, 0.2 * largest))  # the last prefixes of a group have few traces
        one = here.filter(pl.col("p") == 1)
        for (_,), branch in here.group_by(["prefix"], maintain_order=True):
            axis.plot(
                branch["tokens"], branch["maj"], "--", color=VOTES_COLOUR, linewidth=0.8, marker=".", markersize=2.5
            )
        if one.height:
            line = look.line(model) | {"linestyle": "-", "label": "one vote, more episodes"}
            errorbar(axis, one["tokens"], one, "maj", **line)
        axis.set(
            title=f"{models[model].label}\n{name} (n ≤ {largest} problems)",
            xlabel="tokens",
            ylabel="$[\\mathrm{maj@}p]_j$",
        )
        axis.set_ylim(0, 1)
    axes[0].plot(
        [], [], "--", color=VOTES_COLOUR, label="more votes: p = " + ", ".join(map(str, table["p"].unique().sort()))
    )
    legend(figure, axes[0])
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
