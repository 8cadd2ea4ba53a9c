"""Normalized regret by episodes.

Loss of the first b episodes of a thought against a comparator, the better of two: thinking on, or voting after fewer
episodes. 0 means that stopping early and voting is never better. A trace is never right if neither an answer nor a vote
is, after any number of episodes. It counts as regret 1; the authors drop such traces, as hopeless. Each model's name is
followed by the share of these traces over all datasets. A line ends where fewer than a twentieth of the traces have
that many episodes. Bands are 95 % intervals over |over|. The paper sees MRT lowest.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from mrt.analysis.regret import to_the_longest
from mrt.figures.figure import REGRET, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import ModelStyle, curves, name_lines, with_intervals

FIGURE = Figure(REGRET, ("episode_regret",), paper=("Appendix E", "fig26"))

MOST_TICKS = 10


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    data = to_the_longest(tables["episode_regret"])
    table = with_intervals(data, ["dataset", "model", "episodes"], ["regret", "hopeless", "reached"])
    table = table.filter(pl.col("reached") >= 0.05)
    whole = data.sort("episodes").group_by("dataset", "model", "run", "problem_id").agg(pl.col("hopeless").last())
    hopeless = whole.group_by("model").agg(pl.col("hopeless").mean()).rows()  # a model of short thoughts may have none
    labels = {model: f"{models[model].label}, {share:.0%} never right" for model, share in hopeless}
    named = {m: s.model_copy(update={"label": labels.get(m, s.label)}) for m, s in models.items()}
    figure, panels = curves(table, named, "episodes", "regret")
    for axis, rows in panels:
        ticks = rows["episodes"].unique().sort().to_numpy()
        axis.set_xticks(ticks[:: int(np.ceil(ticks.size / MOST_TICKS))])
        axis.set(xlabel="first b episodes", ylabel="normalized regret")
    name_lines(figure, [axis for axis, _ in panels])
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
