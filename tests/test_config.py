from copy import deepcopy

import pytest
import yaml
from conftest import ROOT, SHARED

from mrt.config import load

LAPTOP = yaml.safe_load((ROOT / "config.yaml").read_text())


def change(path, value):
    config = deepcopy(LAPTOP)
    *parents, last = path.split(".")
    at = config
    for key in parents:
        at = at[key]
    at[last] = value
    return config


def test_the_configs_are_valid():
    for path in [ROOT / "config.yaml", *(ROOT / "config").glob("*.yaml")]:
        content = yaml.safe_load(path.read_text())
        if "results" in content and (SHARED.is_dir() or "../shared" not in path.read_text()):
            load(content)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("models.mrt_1.parent", "bse", "models.mrt_1.parent: there is no 'bse'"),
        ("models.star_1.parent", "star_2", "round in a circle"),
        ("models.star_1.problems", "toy_test", "'toy_test' is an evaluation set"),
        ("models.base.path", "x", "exactly one of path, toy, rollouts, parent"),
        ("models.mrt_1.method", None, "all of parent, method and problems"),
        ("evaluation.models", ["base", "nobody"], "evaluation.models: there is no 'nobody'"),
        ("evaluation.k", [64], "evaluation.k: 64 is more than the 8 samples"),
        ("evaluation.votes", [64], "evaluation.votes: 64 is more than the 8 answers"),
        ("training.recipe.learning_rate", -1, r"training.recipe.learning_rate: .*greater than 0 \(got -1\)"),
        ("training.recipe.learning_rat", 1, "did you mean 'learning_rate'"),
    ],
)
def test_mistakes_are_named_with_their_path(path, value, message):
    with pytest.raises(ValueError, match=message):
        load(change(path, value))


def test_iterations_are_counted_along_the_lineage():
    config = load(LAPTOP)
    assert [config.style(m)["iteration"] for m in ("base", "star_1", "mrt_2")] == [0, 1, 2]
    assert [config.style(m)["method"] for m in ("base", "star_1", "mrt_2")] == ["base", "star", "mrt"]


def test_evaluation_sets_have_their_own_settings():
    config = load(LAPTOP)
    assert config.draws("toy_test").samples == config.evaluation.samples
    assert config.draws("toy_train").samples == config.training.samples
