"""maj@k against the tokens that the k completions cost (Figures 7 and 19)."""

from typing import Any

import polars as pl

from mrt.figures.common import Appearance, ModelStyle, errorbar, legend, main, panels, problems_in, with_intervals


def draw(data: pl.DataFrame, models: dict[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    table = with_intervals(data, ["problem_set", "model", "k"], ["maj", "tokens"])
    look = Appearance(models)
    sets = table["problem_set"].unique(maintain_order=True).to_list()
    figure, axes = panels(len(sets))
    for axis, name in zip(axes, sets, strict=True):
        here = table.filter(pl.col("problem_set") == name)
        for model in models:
            rows = here.filter(pl.col("model") == model)
            errorbar(axis, rows["tokens"], rows, "maj", **look.line(model))
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")
        ks = ", ".join(map(str, here["k"].unique().sort()))
        axis.set(
            title=f"{name} ({problems_in(here)})",
            xlabel=f"tokens of k completions, k = {ks}",
            ylabel="maj@k",
        )
    legend(figure, axes[0])
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
