"""Checks across settings: each is valid by itself, but together they contradict each other or do not fit.

A check yields (path of a setting, message). Checks of `AS_GIVEN` get the configuration as it was given: its groups may
be invalid by themselves. Checks of `WHOLE` get a valid one.
"""

from collections.abc import Iterator
from typing import Any

from mrt.config import steps
from mrt.config.checks import backtracking, datasets, evaluation, learning, models, sampling, sizes
from mrt.config.checks.given import Given, Mistakes
from mrt.config.schema import Config

AS_GIVEN = (
    datasets.result_folder,
    datasets.names,
    datasets.sources,
    datasets.remade_toy,
    models.origins,
    models.files,
    models.completions,
    models.cold_starts,
    models.replicates,
    models.labels,
    learning.tolerances,
    learning.rl_batches,
    learning.rl_merged,
    evaluation.names,
    evaluation.numbers,
    evaluation.settings,
    evaluation.forcing,
    evaluation.claims,
    evaluation.expectations,
    evaluation.curves,
    backtracking.thoughts_alone,
    backtracking.attempts_alone,
    sampling.meta_provers,
    sizes.gpu,
)
WHOLE = (
    sizes.memory_and_gpus,
    sizes.texts,
    learning.seeds,
    sampling.segmentation,
    sampling.greedy,
    learning.weights,
    learning.engines,
    learning.pass_rates,
    learning.one_card,
    sampling.likelihoods,
    evaluation.claimed_values,
    evaluation.tokenizers,
    learning.headers,
    steps.unbudgeted,
    steps.refused,
    steps.unkept,
)


def raw_mistakes(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """All that is wrong between the groups of a configuration as it was given; invalid groups are skipped."""
    given = Given.of(config)
    for check in AS_GIVEN:
        yield from check(given)


def mistakes_of(config: Config) -> Mistakes:
    """All that is wrong with a configuration whose settings are valid one by one."""
    for check in WHOLE:
        yield from check(config)
