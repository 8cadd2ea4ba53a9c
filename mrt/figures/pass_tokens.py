"""pass@k against the tokens that the k completions cost (Figures 17, 18 and 20)."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.maj_tokens import against_tokens
from mrt.figures.stage import Tables, main
from mrt.figures.style import ModelStyle


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    return against_tokens(tables, models, "pass")


if __name__ == "__main__":
    main(draw, __doc__)
