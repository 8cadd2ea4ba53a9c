"""The page on sweeps: its examples are planned as it says."""

import re

import polars as pl
import pytest
import yaml
from conftest import ROOT, checkout, planned_jobs, snakemake

from mrt.core.artifacts import COST

PAGE = (ROOT / "docs" / "sweep.md").read_text()
SHOWN = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_each_value_of_the_page_is_trained_and_measured_where_it_says(tmp_path):
    folder = checkout(tmp_path)
    shown, *_ = SHOWN
    assert len(shown.splitlines()) <= 10
    (folder / "sweep.yaml").write_text(shown)
    jobs = planned_jobs(folder, "--configfile", "config.yaml", "sweep.yaml")
    names = ["mrt_05", "mrt_07", "mrt_09"]
    runs = {f"{name}{run}" for name in names for run in ("", "_seed1", "_seed2")}
    assert jobs["train"] == runs
    assert jobs["measure_accuracy"] == {" ".join(sorted((m, "toy_val"))) for m in ("base", *runs)}
    assert jobs["sample_rollouts"] >= {"0 base toy_train"} and "index" in jobs
    thresholds = {name: model["rules"]["minimum_J"] for name, model in yaml.safe_load(shown)["models"].items()}
    assert thresholds == {"mrt_05": 0.5, "mrt_07": 0.7, "mrt_09": 0.9}
    assert f"results/{yaml.safe_load(shown)['results'].split('/')[1]}/index.html" in PAGE


def test_checkpoints_on_the_way_are_measured_like_models(tmp_path):
    folder = checkout(tmp_path)
    (folder / "over_training.yaml").write_text(SHOWN[1])
    jobs = planned_jobs(folder, "over_training", "--configfile", "config.yaml", "over_training.yaml")
    trained = {f"mrt_1{run}" for run in ("", "_seed1", "_seed2")}
    on_the_way = {f"{name}_step{step}" for name in trained for step in (5, 10, 20)}
    assert jobs["train"] >= trained and jobs["train"].isdisjoint(on_the_way)
    for rule in ("measure_accuracy", "measure_regret"):
        assert jobs[rule] >= {f"{name} toy_test" for name in on_the_way | trained}
    (folder / "parent.yaml").write_text("models: {next: {parent: mrt_1_step5, method: star, problems: toy_train}}")
    target = "results/over_training/models/next"
    jobs = planned_jobs(folder, target, "--configfile", "config.yaml", "over_training.yaml", "parent.yaml")
    assert jobs["train"] == {"mrt_1", "next"} and "0 mrt_1_step5 toy_train" in jobs["sample_rollouts"]
    cost = "results/over_training/costs/next.parquet"
    done = snakemake(folder, "-n", "-p", cost, "--configfile", "config.yaml", "over_training.yaml", "parent.yaml")
    commands = re.findall(r"mrt\.training\.cost (.*)", done.stdout)
    assert len(commands) == 2  # of the parent's training until step 5, and of the model's
    for part in (
        '"step": 5',
        "/mrt_1.log.",
        "--rollouts ",
        "--prover ",
        "--out results/over_training/costs/mrt_1_step5",
    ):
        assert part in commands[0].replace("\\", "")
    assert "--parent results/over_training/costs/mrt_1_step5.parquet" in commands[1] and '"step"' not in commands[1]


def test_what_was_spent_is_added_up_before_trainings_that_a_budget_ends(tmp_path):
    """The shared recipe of config.yaml says `epochs`, and a model without `flops` has no such input."""
    folder = checkout(tmp_path)
    (folder / "budget.yaml").write_text(SHOWN[2])
    jobs = planned_jobs(folder, "--configfile", "config.yaml", "budget.yaml")
    assert jobs["add_up_spent"] == {"star_1", "mrt_1"} == jobs["train"]
    assert "add_up_spent" not in planned_jobs(folder, "--configfile", "config.yaml")


@pytest.mark.thorough
def test_a_lineage_takes_what_its_budget_says(tmp_path):
    """Data by mu, a parent with another budget, SFT and RL; each within half a step, and 3 %."""
    folder = checkout(tmp_path)
    tiny = ROOT / "tests" / "tiny.yaml"
    budgets = {"star_1": 1e11, "mrt_1": 2e11, "mrt_rl": 4e11}
    models = {name: {"recipe": {"flops": flops, "batch_size": 4}} for name, flops in budgets.items()}
    models["mrt_rl"] = {"parent": "star_1", "rl": {"flops": budgets["mrt_rl"]}}
    (folder / "budget.yaml").write_text(yaml.safe_dump({"models": models}))
    costs = [f"results/tiny/costs/{name}.parquet" for name in models]
    snakemake(folder, "--cores", 2, "--configfile", tiny, "budget.yaml", "--", *costs)
    for name, flops in budgets.items():
        cost = COST.read(folder / f"results/tiny/costs/{name}.parquet")
        log = pl.read_parquet(folder / f"results/tiny/models/{name}.log.parquet")
        assert abs(cost["flops"].sum() - flops) < min(0.03 * flops, 0.75 * log["flops"][-1] / log.height)
        before = COST.read(folder / f"results/tiny/costs/{name}.before.parquet")
        assert cost.head(before.height).equals(before) and cost.height == before.height + 1
        assert log["learning_rate"].min() > 0
    assert cost["trained_model"].unique().sort().to_list() == ["mrt_rl", "star_1"]
