"""Budget forcing.

Accuracy after the end of the thought has been suppressed 0, 2, 4, ... times, each time forcing the model to go on, by
extensions and by tokens. Bands are 95 % intervals over |over|. The paper sees MRT (STaR) ahead of
the other two at 2, 4 and 6 extensions, with a dip at 8.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.figure import REGRET, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import ModelStyle, curves, name_lines, with_intervals

FIGURE = Figure(REGRET, ("budget_forcing",), paper=("Appendix F", "fig29"))


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    by = ["dataset", "model", "extensions"]
    table = with_intervals(tables["budget_forcing"], by, ["accuracy", "thought_tokens", "tokens"])
    figure, panels = curves(table, models, ("extensions", "tokens"), "accuracy")
    for axis, rows in panels[::2]:
        axis.set_xticks(rows["extensions"].unique().sort())
        axis.set(xlabel="forced extensions of the thought", ylabel="accuracy")
    for axis, _ in panels[1::2]:
        axis.set(xlabel="tokens of the thought and its answer", ylabel="accuracy")
    name_lines(figure, [axis for axis, _ in panels])
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
