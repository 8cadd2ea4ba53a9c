"""Normalized regret against the token budget C_0 (Figure 9)."""

from typing import Any

import polars as pl

from mrt.figures.common import Appearance, ModelStyle, errorbar, legend, main, panels, problems_in, with_intervals


def draw(data: pl.DataFrame, models: dict[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    table = with_intervals(data, ["problem_set", "model", "budget"], ["regret"])
    look = Appearance(models)
    sets = table["problem_set"].unique(maintain_order=True).to_list()
    figure, axes = panels(len(sets))
    for axis, name in zip(axes, sets, strict=True):
        here = table.filter(pl.col("problem_set") == name)
        for model in models:
            rows = here.filter(pl.col("model") == model)
            errorbar(axis, rows["budget"], rows, "regret", **look.line(model))
        axis.set_xticks(here["budget"].unique().sort())
        title = f"{name} ({problems_in(here)})"
        axis.set(title=title, xlabel="token budget $C_0$", ylabel="normalized regret (lower is better)")
    legend(figure, axes[0])
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
