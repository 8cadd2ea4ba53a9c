"""The page on sweeps: what it shows is planned as it says."""

import re

import yaml
from conftest import ROOT, checkout, planned_jobs

PAGE = (ROOT / "docs" / "sweep.md").read_text()


def test_each_value_of_the_page_is_trained_and_measured_where_it_says(tmp_path):
    folder = checkout(tmp_path)
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
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
