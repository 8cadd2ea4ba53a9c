"""Progress of the episodes.

Left: histogram of the change in J that each episode brings (each n episodes, where only every n-th prefix is scored);
for backtracking models, of the backtracking episodes alone, those between a first attempt and its revision. All
episodes count alike; the mean in the legend is over problems, of each the mean over its episodes, n how many these are
(the table of claims compares models on the problems that all their runs have alone). Right: J after j episodes; a trace
that has ended keeps its last J. Bands and intervals are 95 %, over problems and training runs. The paper sees more
progress with MRT.
"""

from collections.abc import Mapping
from math import gcd
from typing import Any

import numpy as np
import polars as pl

from mrt.analysis.claims import backtracks
from mrt.figures.figure import CASE, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import (
    Appearance,
    ModelStyle,
    carried,
    errorbar,
    heading,
    labelled,
    legend,
    panels,
    with_intervals,
)

FIGURE = Figure(CASE, ("progress",), paper=("Definition 6.1", "fig16"))

EDGES = np.linspace(-1.0625, 1.0625, 18)  # an eighth wide, around the progress that 2, 4 or 8 answers can show
TRACE = ["dataset", "model", "run", "problem_id", "sample"]


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    """Left: share of episodes by progress. Right: mean J after j episodes; a trace that has ended keeps its last J."""
    data = tables["progress"]
    look = Appearance(models)
    sets = data["dataset"].unique(maintain_order=True).to_list()
    figure, axes = panels(2 * len(sets), columns=2)
    every = spacing(data)
    unit = "an episode" if every == 1 else f"{every} episodes"
    curve = with_intervals(at_every_nth(data, every), ["dataset", "model", "prefix"], ["J"])
    shares = []
    for left, right, dataset in zip(axes[::2], axes[1::2], sets, strict=True):
        here, after = data.filter(dataset=dataset), curve.filter(dataset=dataset)
        less = labelled(after, models)
        for model in models:
            rows = after.filter(pl.col("model") == model)
            if rows.height:
                errorbar(right, rows["prefix"], rows, "J", **look.line(model))
            episodes = here.filter(pl.col("model") == model).drop_nulls("progress")
            if models[model].parameterization == "backtracking":
                episodes = backtracks(episodes)
            if episodes.is_empty():
                continue
            values = episodes["progress"].to_numpy()
            mean = with_intervals(episodes, ["model"], ["progress"]).row(0, named=True)
            interval = f" [{mean['progress_low']:+.3f}, {mean['progress_high']:+.3f}]" if mean["n"] > 1 else ""
            label = f"{less[model].label} (mean {mean['progress']:+.3f}{interval}, n = {mean['n']})"
            # what lies on an edge counts half on either side: else gains and losses of one size fell into other bins
            gains, losses = (np.histogram(sign * values, bins=EDGES)[0] for sign in (1, -1))
            share = (gains + losses[::-1]) / (2 * values.size)
            left.stairs(share, EDGES, label=label, **look.outline(model))
            names = {"dataset": dataset, "model": model}
            shares.append(
                pl.DataFrame({"from": EDGES[:-1], "to": EDGES[1:], "share": share}).with_columns(
                    **{k: pl.lit(v) for k, v in names.items()}
                )
            )
        left.set_yscale("log")
        left.set(xlabel=f"progress of {unit}", ylabel="share", title=dataset)
        right.set(xlabel="episodes kept j", ylabel="$J(\\mu\\,|\\,z_{0:j})$", title=heading(dataset, after))
        if len(sets) == 1:
            legend(figure, left)
        else:
            left.legend()
    return figure, pl.concat([curve, *shares], how="diagonal")


def spacing(data: pl.DataFrame) -> int:
    """The n of a meta-prover that scores every n-th prefix, and each trace's last one."""
    return gcd(*data.filter(pl.col("prefix") < pl.col("episodes"))["prefix"].unique()) or 1


def at_every_nth(data: pl.DataFrame, every: int) -> pl.DataFrame:
    """A row of every trace at each `every`-th prefix up to the 95th percentile of lengths."""
    horizon = int(np.quantile(data.group_by(TRACE).agg(pl.col("prefix").max())["prefix"], 0.95))
    rows = carried(data, "prefix", TRACE, horizon).filter(pl.col("prefix") % every == 0)
    return rows.drop_nulls("J").sort("dataset", "model", "prefix")


if __name__ == "__main__":
    main(draw, __doc__)
