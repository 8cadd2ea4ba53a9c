"""maj@k against the tokens that the k completions cost (Figures 7 and 19)."""

from typing import Any

import polars as pl

from mrt.figures.common import ModelStyle, curves, main, with_intervals


def draw(data: pl.DataFrame, models: dict[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    table = with_intervals(data, ["problem_set", "model", "k"], ["maj", "tokens"])
    figure, drawn = curves(table, models, "tokens", "maj")
    for axis, rows in drawn:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")
        ks = ", ".join(map(str, rows["k"].unique().sort()))
        axis.set(xlabel=f"tokens of k completions, k = {ks}", ylabel="maj@k")
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
