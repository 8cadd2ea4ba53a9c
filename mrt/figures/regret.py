"""Normalized regret against the token budget.

The area between the accuracy of the meta-prover along the thought and an oracle that is always right, divided by the
budget; lower is better. Filled points: budgets within the model's own thoughts. Open points, right of the grey line:
larger budgets, of models whose thoughts budget forcing extends. The number in parentheses says how often the end of the
thought was suppressed. The point takes the trace and its answers after that (Section 8.5.1, Appendix F). The line of a
model that is not extended ends at the grey line. Bands are 95 % intervals over |over|. The paper sees MRT lowest at
every budget, within and beyond, and outcome-only training fall back to the base beyond.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.figure import REGRET, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import Appearance, ModelStyle, beside, curves, errorbar, name_lines, spaced_ticks, with_intervals

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
                line = pl.concat([rows.filter(pl.col("model") == model)[-1:], line])
                errorbar(axis, line["budget"], line, "regret", **beside(look.line(model)))
        times = dict(outside.select("budget", "extensions").iter_rows())
        ticks = spaced_ticks(sorted({*rows["budget"], *times}), 0.12 * max(*rows["budget"], *times, 1))
        axis.set_xticks(ticks, [f"{tick}\n({times[tick]})" if tick in times else f"{tick}" for tick in ticks])
        axis.set(xlabel="token budget $C_0$", ylabel="normalized regret")
        if times:
            inner = max(budget for budget in rows["budget"] if budget < min(times))
            axis.axvline((inner + min(times)) / 2, color="0.6", linewidth=0.8)
            axis.set(xlabel="token budget $C_0$ (forced extensions)")
    name_lines(figure, [axis for axis, _ in panels])
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
