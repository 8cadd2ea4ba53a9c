"""Training loss of supervised fine-tuning.

Lines: running mean over an eighth of a training's steps; points: single steps. Of several training runs: their mean,
and as a band the smallest and the largest. The steps of a model that is trained from another one in the figure are
counted on from that one's last. At an equal token budget, a lower loss means a set that is easier to fit; it does not
measure the trained model. Losses are means over tokens; if a recipe weights its examples, the weights are left out
here.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.figure import TRAINING, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import ModelStyle
from mrt.figures.training import by_step

FIGURE = Figure(TRAINING, ("sft_log",), paper=("fig15",))


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    return by_step(tables["sft_log"], models, {"loss": "training loss (nats a token)"})


if __name__ == "__main__":
    main(draw, __doc__)
