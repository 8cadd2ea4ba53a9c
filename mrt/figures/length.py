"""Mean length of traces over RL training, from the problem on: prefix, if any, and completion (Figure 10)."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.stage import Tables, main
from mrt.figures.style import ModelStyle
from mrt.figures.training import by_step


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    return by_step(tables["rl_log"], models, {"completion_tokens": "tokens of a trace"})


if __name__ == "__main__":
    main(draw, __doc__)
