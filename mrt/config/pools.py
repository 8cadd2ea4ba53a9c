"""Which datasets one engine samples in one go, for one model and one stage.

A model's evaluation sets are one pool. Each dataset that only trainings read is a separate pool. So no training waits
for an evaluation, and no evaluation set is sampled for a training alone.
"""

from mrt.config.measuring import measured_on
from mrt.config.schema import Config

EVALUATION = "_evaluation"  # names of datasets begin with a letter or a digit


def pool_of(config: Config, model: str, dataset: str) -> str:
    """The pool of a dataset that a model samples on."""
    return EVALUATION if dataset in measured_on(config, model) else dataset


def pooled(config: Config, model: str, pool: str) -> list[str]:
    """The datasets of a pool."""
    return measured_on(config, model) if pool == EVALUATION else [pool]
