"""How many steps a training can have, as far as a configuration tells."""

import json

import pytest
import yaml
from conftest import ROOT

from mrt.config import lineage
from mrt.config.load import load
from mrt.config.steps import most_examples, short_trainings
from mrt.core.settings import laid_over
from mrt.planning.bill import Bill

TINY = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())


def tiny(**changes):
    """The tiny experiment with changes, by sections."""
    return load(laid_over(TINY, changes))


def said_of(config, name):
    return [line for line in short_trainings(config) if line.startswith(f"models.{name}: ")]


def test_a_training_that_can_only_have_few_steps_is_told_of():
    (line,) = said_of(tiny(), "star_1")
    assert line.startswith("models.star_1: at most 5 steps on 80 examples, one a trace: fewer than 10 hardly teach")
    assert said_of(tiny(), "mrt_rl")[0].startswith("models.mrt_rl: at most 3 steps on 80 problems: ")
    assert not said_of(tiny(training={"recipe": {"epochs": 2}}), "star_1")
    assert not said_of(tiny(training={"rl": {"epochs": 0.5}}), "mrt_rl")
    assert not said_of(tiny(training={"rl": {"num_iterations": 4}}), "mrt_rl")  # 3 batches, 12 updates


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"training": {"samples": 3}}, 240),
        ({"training": {"samples": 3, "prover": {"traces": 2}}}, 160),
        ({"problems": {"toy_train": {"toy": {"count": 7}}}}, 7),
        ({"models": {"mrt_2": {"parent": "mrt_1", "method": "mrt", "problems": "toy_train", "accumulate": True}}}, 160),
    ],
)
def test_a_set_has_at_most_an_example_a_trace(changes, count):
    config = tiny(**changes)
    assert most_examples(config, "mrt_2" if "mrt_2" in config.models else "mrt_1") == count


def test_a_file_tells_how_many_problems_there_are_and_a_hub_set_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"problem": f"What is {i} + 1?", "answer": str(i + 1)}) for i in range(11)]
    (tmp_path / "p.jsonl").write_text("\n".join(rows))
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    del raw["models"]["mrt_rl"]
    raw["evaluation"]["models"].remove("mrt_rl")
    raw["problems"]["toy_train"] = {"file": "p.jsonl", "split": "train"}
    assert "at most 1 step on 11 examples" in said_of(load(raw), "star_1")[0]
    raw["problems"]["toy_train"] = {"hub": {"path": "a/b", "revision": "c"}, "split": "train"}
    assert most_examples(load(raw), "star_1") is None and not said_of(load(raw), "star_1")


def test_a_budget_of_flops_takes_the_place_of_passes_over_the_data():
    """Those of the shared recipe; how many steps it gives, no configuration tells."""
    config = tiny(models={"star_1": {"recipe": {"flops": 1e12}}})
    recipe = lineage.recipe(config, "star_1")
    assert (recipe.epochs, recipe.flops, recipe.batch_size) == (None, 1e12, 16)
    assert lineage.recipe(config, "mrt_1").flops is None and not said_of(config, "star_1")
    shared = tiny(training={"recipe": {"flops": 1e12, "epochs": None}}, models={"mrt_1": {"recipe": {"epochs": 2}}})
    recipes = [lineage.recipe(shared, name) for name in ("star_1", "mrt_1")]
    assert [(each.epochs, each.flops) for each in recipes] == [(None, 1e12), (2, None)]


def test_a_plan_works_out_the_passes_that_a_budget_gives():
    """What data and parent took is not left: twice the rest gives twice the work."""
    rl = {"parent": "star_1", "rl": {"flops": 1e12}}
    bill = Bill(tiny(models={"mrt_rl": rl}))
    before = bill.flops_before("mrt_rl")
    assert 0 < bill.flops_before("star_1") < before < 1e12

    def trained(flops):
        return Bill(tiny(models={"mrt_rl": rl | {"rl": {"flops": flops}}})).training_work("mrt_rl", "toy_train").trained

    assert trained(before + 2e11) == pytest.approx(2 * trained(before + 1e11))
    a_pass = bill.a_pass("mrt_rl", "toy_train")
    assert trained(before + bill.flops(a_pass, "mrt_rl", training=True)) == pytest.approx(a_pass.trained)
    assert trained(before / 2) == 0
    parent = tiny(models={"mrt_rl": rl, "star_1": {"recipe": {"flops": 5e11}}})
    own = Bill(tiny(models={"mrt_rl": {"rl": {"flops": 1e12}}})).flops_before("mrt_rl")
    assert Bill(parent).flops_before("mrt_rl") == pytest.approx(own + 5e11)
    on_the_way = {"mrt_rl": rl | {"parent": "star_1_step2"}, "star_1": {"recipe": {"evaluate_steps": [2]}}}
    early = Bill(tiny(models=on_the_way)).flops_before("mrt_rl")
    assert bill.flops_before("star_1") < early < before
