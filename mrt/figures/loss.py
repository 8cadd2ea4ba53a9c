"""Training loss of supervised fine-tuning by step, one line per model (Figure 15): lower means easier to fit.

It is the mean over tokens, not weighted, also of models whose examples are.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.stage import Tables, main
from mrt.figures.style import ModelStyle
from mrt.figures.training import by_step


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    return by_step(tables["sft_log"], models, {"loss": "training loss (nats a token)"})


if __name__ == "__main__":
    main(draw, __doc__)
