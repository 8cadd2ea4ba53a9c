"""Accuracy when thoughts are made to go on 0, 2, 4, 6, 8 times (Appendix F, Figure 29)."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.common import ModelStyle, Tables, curves, main, name_lines, with_intervals


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    table = with_intervals(tables["budget_forcing"], ["dataset", "model", "extensions"], ["accuracy", "thought_tokens"])
    figure, drawn = curves(table, models, "extensions", "accuracy")
    for axis, rows in drawn:
        axis.set_xticks(rows["extensions"].unique().sort())
        axis.set(xlabel="forced extensions of the thought", ylabel="accuracy")
    name_lines(figure, [axis for axis, _ in drawn])
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
