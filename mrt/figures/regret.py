"""Normalized regret against the token budget C_0 (Figure 9)."""

from typing import Any

import polars as pl

from mrt.figures.common import ModelStyle, curves, main, with_intervals


def draw(data: pl.DataFrame, models: dict[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    table = with_intervals(data, ["problem_set", "model", "budget"], ["regret"])
    figure, drawn = curves(table, models, "budget", "regret")
    for axis, rows in drawn:
        axis.set_xticks(rows["budget"].unique().sort())
        axis.set(xlabel="token budget $C_0$", ylabel="normalized regret")
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
