"""pass@k against tokens.

Is any of k completions right? If this curve rises further than that of maj@k, the model finds right answers that do not
win the vote. Bands are 95 % intervals over |over|. The paper sees MRT best "as more tokens are
sampled" (Figure 20).
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.figure import RESULT, Figure
from mrt.figures.maj_tokens import against_tokens
from mrt.figures.stage import Tables, main
from mrt.figures.style import ModelStyle

FIGURE = Figure(RESULT, ("maj", "linearized"), paper=("fig17", "fig18", "fig20"))


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    return against_tokens(tables, models, "pass")


if __name__ == "__main__":
    main(draw, __doc__)
