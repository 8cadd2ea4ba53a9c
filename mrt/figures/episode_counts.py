"""How many episodes thoughts have (Figure 23)."""

from typing import Any

import numpy as np
import polars as pl

from mrt.figures.common import Appearance, ModelStyle, main, panels

BINS = 20


def draw(data: pl.DataFrame, models: dict[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    table = data.group_by("problem_set", "model", "episodes", maintain_order=True).agg(pl.len().alias("traces"))
    table = table.with_columns((pl.col("traces") / pl.col("traces").sum()).over("problem_set", "model").alias("share"))
    look = Appearance(models)
    sets = table["problem_set"].unique(maintain_order=True).to_list()
    figure, axes = panels(len(sets))
    for axis, name in zip(axes, sets, strict=True):
        here = data.filter(pl.col("problem_set") == name)
        most = int(str(here["episodes"].max()))
        width = max(1, -(-most // BINS))
        edges = np.arange(0.5, most + width + 0.5, width)
        for model in models:
            counts = here.filter(pl.col("model") == model)["episodes"].to_numpy()
            if counts.size:
                label = f"{models[model].label} (n = {counts.size}, mean {counts.mean():.1f})"
                line = {k: v for k, v in look.line(model).items() if k in ("color", "linestyle", "linewidth")}
                weights = np.full(counts.size, 1 / counts.size)
                axis.hist(counts, bins=edges, weights=weights, histtype="step", label=label, **line)
        bins = "" if width == 1 else f", {width} a bin"
        axis.set(title=name, xlabel=f"episodes of a thought{bins}", ylabel="share of traces")
        axis.legend()
    return figure, table.sort("problem_set", "model", "episodes")


if __name__ == "__main__":
    main(draw, __doc__)
