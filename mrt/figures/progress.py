"""Progress of the episodes (Definition 6.1): its histogram, and J by prefix (compare Figures 1 and 16)."""

from typing import Any

import numpy as np
import polars as pl

from mrt.figures.common import Appearance, ModelStyle, errorbar, legend, main, panels, problems_in, with_intervals

EDGES = np.linspace(-1.05, 1.05, 22)


def draw(data: pl.DataFrame, models: dict[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    """Left: share of episodes by progress. Right: mean J after j episodes; a trace that has ended keeps its last J."""
    look = Appearance(models)
    figure, (left, right) = panels(2, columns=2)
    horizon = int(
        np.quantile(data.group_by("model", "problem_id", "sample").agg(pl.col("prefix").max())["prefix"], 0.95)
    )
    last = pl.col("prefix").max().over("model", "problem_set", "problem_id", "sample")
    grid = data.filter(pl.col("prefix") <= horizon)
    held = [
        data.filter((pl.col("prefix") == last) & (pl.col("prefix") < j)).with_columns(
            pl.lit(j).cast(pl.Int64).alias("prefix")
        )
        for j in range(1, horizon + 1)
    ]
    curve = with_intervals(pl.concat([grid, *held]).sort("model", "prefix"), ["model", "prefix"], ["J"])
    for model in models:
        values = data.filter(pl.col("model") == model)["progress"].drop_nulls().to_numpy()
        label = f"{models[model].label} (mean {values.mean():+.3f}, n = {values.size})"
        shares = np.histogram(values, bins=EDGES)[0] / max(values.size, 1)
        left.stairs(shares, EDGES, label=label, **look.outline(model))
        rows = curve.filter(pl.col("model") == model)
        errorbar(right, rows["prefix"], rows, "J", **look.line(model))
    left.set_yscale("log")
    left.set(xlabel="progress of an episode", ylabel="share of episodes")
    right.set(xlabel="episodes kept j", ylabel="$J(\\mu\\,|\\,z_{0:j})$", title=problems_in(curve))
    legend(figure, left)
    return figure, curve


if __name__ == "__main__":
    main(draw, __doc__)
