"""Early exit: accuracy against tokens.

Lines: each thought is stopped at the first prefix where a share of at least tau of mu's answers agree, and answered
with their majority. Points are tau = 0.5, 0.6, 0.7, 0.75, 0.8, 0.9 and 1; a thought whose answers never agree counts
whole. Large filled marks: whole thoughts with their answers. Open marks: an oracle, which stops where J is highest, and
needs the gold answer for that. The first panel counts the tokens of the thought and of one answer. The second counts
all answers of mu up to the exit, which the rule has to sample; the oracle and whole thoughts need none of them. Bars
and bands are 95 % intervals of the accuracy over |over|.
"""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import polars as pl

from mrt.figures.figure import RESULT, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import Appearance, ModelStyle, curves, name_lines, with_intervals

FIGURE = Figure(RESULT, ("early_exit",))

AXES = {"tokens": "tokens of the thought and one answer", "paid_tokens": "tokens of the thought and all answers of mu"}
MARK: dict[str, Any] = {"linestyle": "none", "linewidth": 0.8, "markersize": 6}
MARKS: dict[str, dict[str, Any]] = {  # of the rules without tau
    "whole": {
        "label": "whole thought",
        "fillstyle": "full",
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
        "markersize": 7,
    },
    "oracle": {"label": "oracle", "fillstyle": "none"},
}


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    data = tables["early_exit"]
    table = with_intervals(data, ["dataset", "model", "rule"], ["accuracy", *AXES])
    table = table.join(data.select("rule", "tau").unique(), on="rule", maintain_order="left")
    agreeing = table.drop_nulls("tau").sort("tau", maintain_order=True)
    figure, panels = curves(agreeing, models, list(AXES), "accuracy")
    look = Appearance(models)
    for (axis, rows), x in zip(panels, cycle(AXES), strict=False):
        for row in table.filter(pl.col("tau").is_null(), dataset=rows["dataset"][0]).iter_rows(named=True):
            # where all problems are alike, an end may lie on the wrong side by rounding
            below, above = row["accuracy"] - row["accuracy_low"], row["accuracy_high"] - row["accuracy"]
            style = look.line(row["model"]) | MARK | MARKS[row["rule"]] | {"label": None}
            axis.errorbar(row[x], row["accuracy"], yerr=[[max(0.0, below)], [max(0.0, above)]], **style)
        for look_of_rule in MARKS.values():
            axis.plot([], [], color="0.5", marker="o", **MARK | look_of_rule)
        axis.set(xlabel=AXES[x], ylabel="accuracy")
        if x == "paid_tokens":  # several times those of whole thoughts
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter("{x:.0f}")
    name_lines(figure, [axis for axis, _ in panels], at_ends=False)
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
