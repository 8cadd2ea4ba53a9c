"""Length of traces over RL training.

Lengths count from the problem on: the prefix that a prompt has, and the completion. Lines: running mean over an eighth
of a training's steps; points: single steps. Of several training runs: their mean, and as a band the smallest and the
largest. The steps of a model that is trained from another one in the figure are counted on from that one's last. The
paper sees lengths oscillate about one value, with MRT a little shorter than GRPO.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.figure import TRAINING, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import ModelStyle
from mrt.figures.training import by_step

FIGURE = Figure(TRAINING, ("rl_log",), paper=("fig10",))


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    return by_step(tables["rl_log"], models, {"completion_tokens": "tokens of a trace"})


if __name__ == "__main__":
    main(draw, __doc__)
