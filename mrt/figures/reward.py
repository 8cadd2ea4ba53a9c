"""Reward and length over RL training.

Lengths are of whole traces: the prefix that a prompt has, and the completion. Lines: running mean over an eighth of a
training's steps; points: single steps. Of several training runs: their mean, and as a band the smallest and the
largest. The steps of a model that is trained from another one in the figure are counted on from that one's last. In the
paper (DeepScaleR's log) reward rises in the first phase, at an 8K budget, while length falls.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.figure import TRAINING, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import ModelStyle
from mrt.figures.training import by_step

FIGURE = Figure(TRAINING, ("rl_log",), paper=("fig11",))


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    columns = {"reward": "mean reward", "completion_tokens": "tokens of a trace"}
    return by_step(tables["rl_log"], models, columns)


if __name__ == "__main__":
    main(draw, __doc__)
