"""Attempt, backtrack, revision.

Two traces that the last model with such traces sampled. Shown are J of the meta-prover after each episode, and the
progress of each episode (Definition 6.1), which MRT adds to the reward. They are of the problem in which the progress
of backtracks differs most: the trace whose backtrack makes the most progress, and the one whose makes the least.
"""

import textwrap
from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.figure import CASE, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import ModelStyle, panels

FIGURE = Figure(CASE, ("traces", "progress"), paper=("fig13",), first_run_only=True)

NAMES = ("attempt $z_0$", "backtrack $z_1$", "revision $z_2$")
WIDTH = 58  # characters per line
TRACE = ["dataset", "problem_id", "sample"]


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    """One column per trace: the text of its three episodes, and above each its J and progress."""
    chosen = two_traces(tables, models)
    if not chosen:
        return panels(0)[0], tables["traces"].clear()
    figure, axes = panels(len(chosen), height=2.6, columns=2)
    tallest = 0
    for axis, (trace, rows) in zip(axes, chosen, strict=True):
        axis.set_axis_off()
        axis.set_title(f"{models[trace['model']].label}, {trace['problem_id']}", parse_math=False)
        lines = 0
        for name, row in zip(NAMES, rows.iter_rows(named=True), strict=True):
            head = f"{name}:  J = {row['J']:.2f},  $r_\\mathrm{{prg}}$ = {row['progress']:+.2f}"
            body = [part for text in row["text"].strip().split("\n") for part in textwrap.wrap(text, WIDTH)]
            axis.text(0, -lines, head, fontsize=7, weight="bold", va="top")
            box = {"facecolor": "#f4f4f4", "edgecolor": colour(row["progress"]), "boxstyle": "round,pad=0.3"}
            axis.text(
                0.02,
                -lines - 1.4,
                "\n".join(body),
                fontsize=6,
                va="top",
                family="monospace",
                bbox=box,
                parse_math=False,
            )
            lines += len(body) + 3
        tallest = max(tallest, lines)
    for axis in axes:
        axis.set(xlim=(0, 1), ylim=(-tallest, 0.5))
    figure.set_figheight(0.45 + 0.115 * tallest)
    return figure, pl.concat([rows for _, rows in chosen])


def colour(progress: float) -> str:
    """Green for positive progress, red for negative, grey for none."""
    return "#009E73" if progress > 0 else "#D55E00" if progress < 0 else "#999999"


def two_traces(tables: Tables, models: Mapping[str, ModelStyle]) -> list[tuple[dict[str, Any], pl.DataFrame]]:
    """The traces to draw, each with one row per episode: its text, its progress, and J after it.

    Empty if no scored trace of any model is attempt, backtrack, revision.
    """
    scored = tables["progress"].with_columns((pl.col("prefix") - 1).alias("episode"))
    rows = tables["traces"].join(
        scored.select("model", *TRACE, "episode", "episodes", "J", "progress"), on=["model", *TRACE, "episode"]
    )
    rows = rows.filter(pl.col("episodes") == len(NAMES)).sort("model", *TRACE, "episode")
    available = [name for name in models if rows.filter(model=name).height]
    if not available:
        return []
    rows = rows.filter(model=available[-1])
    backtracks = rows.filter(episode=1).with_columns(
        (pl.col("progress").max() - pl.col("progress").min()).over("problem_id").alias("spread")
    )
    backtracks = backtracks.filter(pl.col("spread") == pl.col("spread").max())
    if backtracks["spread"][0] > 0:
        backtracks = backtracks.filter(problem_id=backtracks["problem_id"][0])
    ends = backtracks.sort("progress", *TRACE, descending=[True, False, False, False])
    extremes = [ends.row(i, named=True) for i in (0, -1)][: min(2, ends.height)]
    return [(t, rows.join(pl.DataFrame([{k: t[k] for k in TRACE}]), on=TRACE, how="semi")) for t in extremes]


if __name__ == "__main__":
    main(draw, __doc__)
