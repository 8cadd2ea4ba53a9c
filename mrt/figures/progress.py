"""Progress of the episodes.

First panel: J after j episodes; a trace that has ended keeps its last J. Other panels: histograms of the change in J
that each episode brings, a panel a model, with the same axes. Where only every n-th prefix is scored, it is the change
by n episodes. Of backtracking models, only the backtracking episodes count, those between a first attempt and its
revision. All episodes count alike. The vertical line and the number above are the mean over problems, of each the mean
over its episodes. The number n of problems that have such episodes is given where it is less than in the first panel.
The table of claims compares models on the problems that all their runs have alone. Bands, and numbers in brackets, are
95 % intervals over |over|. The paper sees more progress with MRT.
"""

from collections.abc import Mapping
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from mrt.analysis.claims import backtracks
from mrt.figures.figure import CASE, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import (
    Appearance,
    ModelStyle,
    carried,
    errorbar,
    labelled,
    name_lines,
    name_panel,
    panels,
    problems_in,
    with_intervals,
)

FIGURE = Figure(CASE, ("progress",), paper=("Definition 6.1", "fig16"))

EDGES = np.linspace(-1.0625, 1.0625, 18)  # an eighth wide, around the progress that 2, 4 or 8 answers can show
TRACE = ["dataset", "model", "run", "problem_id", "sample"]


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    """For each dataset mean J after j episodes, and the share of episodes by progress, a panel a model."""
    data = tables["progress"]
    look = Appearance(models)
    every = spacing(data)
    unit = "progress" if every == 1 else f"progress of {every} episodes"
    curve = with_intervals(at_every_nth(data, every), ["dataset", "model", "prefix"], ["J"])
    shown: dict[tuple[str, str], pl.DataFrame] = {}  # rows of each panel; without a model, the first one of a dataset
    for dataset in data["dataset"].unique(maintain_order=True):
        shown[dataset, ""] = curve.filter(dataset=dataset)
        for model, style in models.items():
            episodes = data.filter(dataset=dataset, model=model).drop_nulls("progress")
            episodes = backtracks(episodes) if style.parameterization == "backtracking" else episodes
            shown |= {(dataset, model): episodes} if episodes.height else {}
    figure, axes = panels(len(shown), height=1.8, least=1.6)
    of_model = [axis for axis, (_, model) in zip(axes, shown, strict=True) if model]
    shares = []
    for axis, ((dataset, model), rows) in zip(axes, shown.items(), strict=True):
        if model:
            title = labelled(shown[dataset, ""], models)[model].label
            title += f", {dataset}" if curve["dataset"].n_unique() > 1 else ""
            share = histogram(axis, rows, shown[dataset, ""]["n"].to_numpy().max(initial=0), title, look.colour(model))
            axis.set(xlabel=unit)
            bins = {"from": EDGES[:-1], "to": EDGES[1:], "share": share}
            names = {"dataset": pl.lit(dataset), "model": pl.lit(model)}
            shares.append(pl.DataFrame(bins).with_columns(**names))
            continue
        for name in (each for each in models if each in set(rows["model"])):
            line = rows.filter(pl.col("model") == name)
            errorbar(axis, line["prefix"], line, "J", **look.line(name))
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set(xlabel="episodes kept j", ylabel="$J(\\mu\\,|\\,z_{0:j})$")
        name_panel(axis, dataset, problems_in(rows), "black")
    least = min((float(s["share"].filter(s["share"] > 0).to_numpy().min()) for s in shares), default=1.0)
    for axis in of_model:
        axis.set_ylim(0.7 * least, 1.2)
    name_lines(figure, [axis for axis in axes if axis not in of_model], at_ends=False)
    return figure, pl.concat([curve, *shares], how="diagonal")


def histogram(axis: Any, episodes: pl.DataFrame, problems: int, title: str, colour: str) -> npt.NDArray[np.float64]:
    """The panel of a model's episodes; `problems` are those of the first panel. Returns the share in each bin."""
    share = shares_of(episodes["progress"].to_numpy())
    axis.stairs(share, EDGES, fill=True, color=colour, alpha=0.75)
    mean = with_intervals(episodes, ["model"], ["progress"]).row(0, named=True)
    axis.axvline(mean["progress"], color="0.2", linewidth=0.8)
    interval = f" [{mean['progress_low']:+.2f}, {mean['progress_high']:+.2f}]" if mean["n"] > 1 else ""
    fewer = f", n = {mean['n']}" if mean["n"] < problems else ""
    name_panel(axis, title, f"mean {mean['progress']:+.2f}{interval}{fewer}", colour)
    axis.set(ylabel="share", xlim=(EDGES[0], EDGES[-1]), yscale="log")
    return share


def shares_of(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Share of the values in each bin of EDGES.

    What lies on an edge counts half on either side: else gains and losses of one size fell into other bins.
    """
    gains, losses = (np.histogram(sign * values, bins=EDGES)[0] for sign in (1, -1))
    return np.asarray((gains + losses[::-1]) / (2 * values.size))


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
