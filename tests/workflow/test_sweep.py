"""The page on sweeps: what it shows is planned as it says."""

import re

import yaml
from conftest import ROOT, checkout, planned_jobs

PAGE = (ROOT / "docs" / "sweep.md").read_text()
SHOWN = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_each_value_of_the_page_is_trained_and_measured_where_it_says(tmp_path):
    folder = checkout(tmp_path)
    shown, _ = SHOWN
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
