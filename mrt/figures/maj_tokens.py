"""maj@k against tokens.

Each point is the majority vote of k completions; further left at the same height is more efficient. If the experiment
has backtracking models, dashed lines with open points are linearized search: the first k attempts of one text. Bands
are 95 % intervals over |over|. The paper sees MRT reach the base's accuracy with 4 to 5 times fewer tokens, and that of
outcome-only training with 1.2 to 1.6 times fewer.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.figure import RESULT, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import (
    Appearance,
    ModelStyle,
    beside,
    curves,
    errorbar,
    name_lines,
    of_known_length,
    with_intervals,
)

FIGURE = Figure(RESULT, ("maj", "linearized"), paper=("fig7", "fig8", "fig19"), opens=True)


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    return against_tokens(tables, models, "maj")


def against_tokens(tables: Tables, models: Mapping[str, ModelStyle], column: str) -> tuple[Any, pl.DataFrame]:
    """maj@k or pass@k (`column`) of k completions by their tokens; linearized, of the first k attempts of a text."""
    parts = {mode: tables[mode] for mode in ("maj", "linearized") if mode in tables and tables[mode].height}
    by_mode = {
        mode: with_intervals(of_known_length(part), ["dataset", "model", "k"], [column, "tokens"]).with_columns(
            pl.lit({"maj": "parallel"}.get(mode, mode)).alias("mode")
        )
        for mode, part in parts.items()
    }
    figure, panels = curves(by_mode["maj"], models, "tokens", column)
    look = Appearance(models)
    for axis, rows in panels:
        if rows["tokens"].count():  # else the panel is empty: imported completions may have no token counts
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter("{x:.0f}")
        ks = ", ".join(map(str, rows["k"].unique().sort()))
        axis.set(xlabel=f"tokens of k completions, k = {ks}", ylabel=f"{column}@k")
        if "linearized" in by_mode:
            here = by_mode["linearized"].filter(dataset=rows["dataset"][0])
            for model in models:
                line = here.filter(pl.col("model") == model)
                errorbar(axis, line["tokens"], line, column, **beside(look.line(model)))
            axis.plot([], [], **beside({"color": "0.5", "marker": "o", "markersize": 3.5}) | {"label": "linearized"})
    name_lines(figure, [axis for axis, _ in panels], at_ends="linearized" not in by_mode)
    return figure, pl.concat(by_mode.values())


if __name__ == "__main__":
    main(draw, __doc__)
