"""The settings that the pages of Understand show are those of a configuration that can run."""

import re

import pytest
import yaml
from conftest import ROOT

from mrt.config import lineage
from mrt.config.load import load
from mrt.core.settings import laid_over
from mrt.training.rl import RL

TINY = (ROOT / "tests" / "tiny.yaml").read_text()


def blocks(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


def of_tiny(block):
    tiny = yaml.safe_load(TINY)
    models = {name: model | {"problems": "toy_train"} for name, model in block.get("models", {}).items()}
    return load(laid_over(tiny, block | {"models": models}))


@pytest.mark.fast
def test_the_models_of_the_page_of_the_method():
    (block,) = blocks("method")
    config = of_tiny(block)
    assert [config.models[name].rules.minimum_J for name in ("mrt_1", "mrt_2")] == [0.6, 0.6]
    assert config.models["mrt_2"].parent == "mrt_1"


@pytest.mark.fast
def test_the_estimates_of_the_page_of_likelihood():
    (block,) = blocks("likelihood")
    config = of_tiny(laid_over({"evaluation": {"measures": ["accuracy", "regret", "progress"]}}, block))
    training, evaluation = config.training, config.evaluation
    assert {training.prover.estimate, training.rl.estimate, evaluation.prover.estimate} == {"likelihood"}


@pytest.mark.fast
def test_the_recipes_of_the_page_of_rl():
    ours, _, online = blocks("rl")
    recipe = lineage.recipe(of_tiny(ours), "mrt_rl")
    assert (recipe.variant, recipe.prefixes, recipe.estimate) == ("per_episode", 0, "likelihood")
    assert RL.model_validate(online["rl"]).max_episodes == 5  # cuts: six episodes
