"""`mrt why` names the definition, setting or file, and says what will train or sample."""

import json
from types import SimpleNamespace

import polars as pl
import pytest
from conftest import copy_of, python
from test_invalidation import GRADER, edit, setting

from mrt.core import storage
from mrt.core.storage import write_table
from mrt.planning.why import (
    CHANGED,
    Job,
    changed_code,
    differences,
    explain,
    planned_jobs,
    report,
    values,
)


@pytest.fixture(scope="module")
def folder(finished, tmp_path_factory):
    return copy_of(finished, tmp_path_factory.mktemp("why") / "run")


def why(folder, apply, *targets):
    """The output after an edit, which is then undone."""
    before = {path: path.read_bytes() for path in [folder / "config.yaml", *(folder / "mrt").rglob("*.py")]}
    apply(folder)
    try:
        return python("-m", "mrt", "why", *targets, folder=folder)
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def test_a_finished_run_needs_nothing(folder):
    assert why(folder, lambda _: None).strip() == "Nothing would run."


def test_a_changed_definition_is_named(folder):
    said = why(folder, edit("mrt/training/sft.py", "width = 50 * batch", "width = 60 * batch"), "pass1")
    assert "mrt.training.sft.bucketed_order is changed\n    train" in said
    assert "2 will train, 0 may train, 2 will sample, 0 may sample" in said
    assert "sample_rollouts mrt_1 _evaluation 0  (will sample" in said


@pytest.mark.slow
def test_a_grader_trains_rl_anew_and_others_only_if_their_sets_differ(folder):
    said = why(folder, edit(*GRADER))
    grading = said[: said.index("because of the jobs above")]
    assert "mrt.grading.equality." in grading and "    grade_rollouts base toy_train" in grading
    assert "train_rl mrt_rl  (will train)" in grading
    assert "train star_1  (trains nothing: all is kept)" in said  # its set is foreseen, and stays
    assert "that measure or draw" in said


@pytest.mark.slow
def test_a_cause_of_its_own_is_told_of_a_job_behind_others(folder):
    """Snakemake says only that its input is made again, while the trainer has changed too."""

    def both(folder):
        edit(*GRADER)(folder)
        edit("mrt/training/sft.py", "width = 50 * batch", "width = 60 * batch")(folder)

    said = why(folder, both, "pass1")
    assert "mrt.training.sft.bucketed_order is changed\n    train" in said
    assert "3 will train, 0 may train, 3 will sample" in said  # RL too, which grades


def test_a_changed_setting_is_told_with_both_values(folder):
    said = why(folder, setting("training.recipe.epochs", 2), "results/tiny/models/star_1.history.parquet")
    assert said.splitlines()[2:4] == ["recipe.epochs: 1.0 -> 2.0", "    train star_1  (will train)"]


@pytest.mark.slow
def test_more_samples_are_drawn(folder):
    said = why(folder, setting("evaluation.samples", 6), "results/tiny/rollouts/base/toy_test.parquet")
    assert "samples: 4 -> 6\n    request rollouts base toy_test\n" in said
    assert "sample_rollouts base _evaluation 0  (will sample" in said


def test_a_missing_file_is_said_to_be_missing(folder):
    (folder / "results" / "tiny" / "figures" / "loss.csv").unlink()
    assert "missing output files: results/tiny/figures/loss.csv\n    loss" in why(folder, lambda _: None)


def test_params_are_read_as_snakemake_writes_them():
    group = json.dumps({"epochs": 1, "inner": {"rate": 0.1}})
    assert values(f"'572579f47e541640', '{group}', 4, 'it is'") == [json.loads(group), 4, "it is"]
    assert values("<nothing exclusive>") == []
    changed = {"epochs": 2, "inner": {"rate": 0.2, "new": True}}
    assert list(differences(json.loads(group), changed)) == [
        "epochs: 1 -> 2", "inner.new: None -> True", "inner.rate: 0.1 -> 0.2",
    ]  # fmt: skip


def test_settings_may_hold_what_separates_reasons_and_values():
    old, new = ({"samples": n, "prompt": {"open_thought": "<think>\n", "said": "it's; Stop"}} for n in (4, 5))
    listed = [repr(json.dumps(group)) for group in (old, new)]
    assert values(listed[0]) == [old] and values("<nothing exclusive>") == []
    reason = f"{CHANGED}before: {listed[0]} now: {listed[1]}; Input files updated by another job: a.parquet"
    job, above = Job("r", "", ["b.parquet"], reason), Job("s", "x", ["a.parquet"], "")
    explain(job, {"a.parquet": above})
    assert (job.causes, job.behind) == (["samples: 4 -> 5"], ["s x"])


def test_namesakes_of_two_modules_are_told_apart(tmp_path, monkeypatch):
    then = {"mrt.a.run": "1", "mrt.b.run": "2", "mrt.a.moved": "3", "mrt.a.gone": "4"}
    now = {"mrt.a.run": "1", "mrt.b.run": "9", "mrt.c.moved": "3", "mrt.c.new": "5"}
    monkeypatch.setattr(storage, "provenance", {"stage": "mrt.a", "definitions": then, "versions": {}})
    write_table(pl.DataFrame({"x": [1]}), tmp_path / "t.parquet")
    monkeypatch.setattr("mrt.planning.why.reached", lambda _: SimpleNamespace(definitions=now))
    told = ["mrt.b.run is changed", "mrt.c.new is new", "mrt.a.gone is gone"]
    assert changed_code(Job("r", "", [str(tmp_path / "t.parquet")], "")) == told


def test_no_jobs():
    assert report(planned_jobs("Nothing to be done."), {}) == "Nothing would run."
