"""Accuracy when thoughts are made to go on 0, 2, 4, 6, 8 times, by extensions and by tokens (Appendix F, Figure 29)."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.stage import Tables, main
from mrt.figures.style import ModelStyle, curves, name_lines, with_intervals


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    by = ["dataset", "model", "extensions"]
    table = with_intervals(tables["budget_forcing"], by, ["accuracy", "thought_tokens", "tokens"])
    figure, drawn = curves(table, models, ("extensions", "tokens"), "accuracy")
    for axis, rows in drawn[::2]:
        axis.set_xticks(rows["extensions"].unique().sort())
        axis.set(xlabel="forced extensions of the thought", ylabel="accuracy")
    for axis, _ in drawn[1::2]:
        axis.set(xlabel="tokens of the thought and its answer", ylabel="accuracy")
    name_lines(figure, [axis for axis, _ in drawn])
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
