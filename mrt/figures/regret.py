"""Normalized regret against the token budget.

The area between the accuracy of the meta-prover along the thought and an oracle that is always right, divided by the
budget; lower is better. Open points are extrapolated: budget forcing makes the thought go on, and the point takes the
trace and its answers after that many forced extensions (Section 8.5.1, Appendix F). Bands are 95 % intervals over
problems and training runs. The paper sees MRT lowest at every budget, within and beyond, and outcome-only training fall
back to the base beyond.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.figure import REGRET, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import Appearance, ModelStyle, curves, errorbar, name_lines, spaced_ticks, with_intervals

FIGURE = Figure(REGRET, ("regret",), paper=("fig9", "fig12"), opens=True)


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    table = with_intervals(tables["regret"], ["dataset", "model", "extensions", "budget"], ["regret"])
    within, beyond = table.filter(pl.col("extensions") == 0), table.filter(pl.col("extensions") > 0)
    figure, panels = curves(within, models, "budget", "regret")
    look = Appearance(models)
    for axis, rows in panels:
        outside = beyond.filter(dataset=rows["dataset"][0])
        for model in models:
            line = outside.filter(pl.col("model") == model)
            if line.height:
                last = rows.filter(pl.col("model") == model)[-1:]
                line = pl.concat([last, line])
                style = look.line(model) | {"linestyle": (0, (2, 2)), "label": None, "fillstyle": "none"}
                errorbar(axis, line["budget"], line, "regret", **style)
        inner, outer = rows["budget"].to_numpy(), outside["budget"].to_numpy()
        ticks = sorted({*inner, *outer})
        axis.set_xticks(spaced_ticks(ticks, 0.08 * ticks[-1]))
        if outside.height:
            edge = (inner[inner < outer.min()].max() + outer.min()) / 2
            axis.axvline(edge, color="0.7", linewidth=0.6)
            counts = ", ".join(map(str, outside["extensions"].unique().sort()))
            text = f"open points: extrapolated, {counts} extensions"
            axis.text(0.99, 0.98, text, fontsize=6, ha="right", va="top", color="0.4", transform=axis.transAxes)
        axis.set(xlabel="token budget $C_0$", ylabel="normalized regret")
    name_lines(figure, [axis for axis, _ in panels], at_ends=beyond.is_empty())
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
