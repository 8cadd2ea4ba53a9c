"""A finished run on this machine leaves its rates and lengths to the plans of others."""

import json
import shutil

import polars as pl
import pytest
import yaml
from conftest import ROOT, TOY_BASE

from mrt.config.hardware import architecture_of
from mrt.config.load import load
from mrt.planning.bill import Bill
from mrt.planning.rates import Rates

SIZE = architecture_of(TOY_BASE).parameters


@pytest.fixture
def finished_run(tmp_path, monkeypatch):
    """Logs and tables of a run: 1,000 rollouts of 80 tokens in 20 s, 2,000 answers of 6 in 12, a training in 30."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mrt").symlink_to(ROOT / "mrt")
    pools = {"sample_rollouts": ("rollouts", 1000, 80, 25), "force_answers": ("prover", 2000, 6, 17)}
    for rule, (kind, rows, tokens, took) in pools.items():
        table = pl.DataFrame(
            {"tokens": [tokens] * rows, "prompt_tokens": [20] * rows, "finish_reason": ["stop"] * rows}
        )
        places = pl.int_range(rows, eager=True)
        table = table.with_columns(problem_id=(places // 8).cast(pl.String), sample=0 * places, prefix=places // 2 % 4)
        file = tmp_path / "results" / "done" / kind / "base" / "toy_test.parquet"
        file.parent.mkdir(parents=True)
        table.write_parquet(file, metadata={"mrt": json.dumps({"options": {"model": "mrt/toy/weights"}})})
        log = tmp_path / "logs" / "done" / rule / "base" / "_evaluation" / "0.log"
        log.parent.mkdir(parents=True)
        log.write_text(f'"requests": ["x/toy_test.json"]\n0 completions cached, {rows} to sample\ntook {took}.0 s\n')
    history = tmp_path / "results" / "done" / "models" / "star_1.log.parquet"
    history.parent.mkdir(parents=True)
    pl.DataFrame({"num_tokens": [1000, 60_000]}).write_parquet(history)
    shutil.copytree(TOY_BASE, tmp_path / "results" / "done" / "models" / "star_1")
    (tmp_path / "logs" / "done" / "train").mkdir()
    (tmp_path / "logs" / "done" / "train" / "star_1.log").write_text("took 30.0 s\n")
    return tmp_path


def planned_of(results):
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text()) | {"results": results}
    raw["problems"]["toy_test"]["toy"]["count"] = 300
    return Bill(load(raw), look=True)


def test_another_experiment_is_planned_with_them(finished_run):
    bill = planned_of("results/next")
    samples = bill.config.evaluation.samples
    plan = bill.plan("sample_rollouts", "base", "toy_test", 1)
    assert plan.work.generated == 300 * samples * 80
    assert plan.seconds == pytest.approx(bill.start + 300 * samples * 80 * 20 / 80_000)
    thoughts = 300 * (bill.config.evaluation.prover.traces or samples)
    forced = bill.plan("force_answers", "base", "toy_test", 1)
    answers = thoughts * 4 * bill.config.evaluation.prover.answers  # prefixes of a thought
    assert forced.work.generated == answers * 6
    assert forced.seconds == pytest.approx(bill.start + answers * 6 * 12 / 12_000)
    trained = bill.plan("train", "star_1", "toy_train", 1)
    assert trained.seconds == pytest.approx(bill.start + trained.work.trained * 30 / 60_000)
    assert "in tokens a second: sample_rollouts 4,000" in bill.rates.in_words({SIZE})


def test_a_model_of_another_size_is_planned_without_them(finished_run):
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text()) | {"results": "results/next"}
    sizes = {"parameters": 134_515_008, "layers": 30, "hidden": 576, "intermediate": 1536, "heads": 9, "kv_heads": 3}
    larger = {"path": "a/model", "architecture": sizes | {"head_dim": 64, "vocabulary": 49152, "context": 8192}}
    raw["models"]["base"] = {"label": "Base"} | larger
    seen, unseen = (Bill(load(raw), look=look) for look in (True, False))
    for rule in ("sample_rollouts", "force_answers", "train"):
        model, dataset = ("star_1", "toy_train") if rule == "train" else ("base", "toy_test")
        assert seen.plan(rule, model, dataset, 1) == unseen.plan(rule, model, dataset, 1)
    assert not seen.rates.in_words({sizes["parameters"]})


def test_prefixes_that_were_scored_are_counted_as_their_episodes(finished_run):
    """A run that scored every second prefix, of thoughts of six episodes."""
    file = finished_run / "results" / "done" / "prover" / "base" / "toy_test.parquet"
    table = pl.read_parquet(file).with_columns(pl.col("prefix") * 2)
    metadata = pl.read_parquet_metadata(file)
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text()) | {"results": "results/next"}
    table.write_parquet(file, metadata={"mrt": metadata["mrt"]})
    assert Rates.left_by(finished_run / "results" / "next", 5.0).length("episodes", SIZE) == 6
    table.with_columns(prefix=0).write_parquet(file, metadata={"mrt": metadata["mrt"]})  # there was no thought
    assert Bill(load(raw), look=True).episodes("base", 80.0) == 0
    table.with_columns(finish_reason=pl.lit("scored")).write_parquet(file, metadata={"mrt": metadata["mrt"]})
    rates = Rates.left_by(finished_run / "results" / "next", 5.0)
    assert rates.seconds("force_answers", SIZE) is None and rates.length("answer", SIZE) is None


def test_further_runs_are_planned_as_the_first(finished_run):
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text()) | {"results": "results/next"}
    raw["expected"] = {"tokens": {"base": 3000}}
    raw["training"]["runs"] = 2
    bill = Bill(load(raw), look=True)
    assert {bill.lengths.rollout(name, "toy_test") for name in ("base", "base_seed1", "star_1", "star_1_seed1")} == {
        3000
    }
    assert not bill.lengths.guessed
    (finished_run / "results" / "next").mkdir()
    shutil.copytree(finished_run / "results" / "done" / "rollouts", finished_run / "results" / "next" / "rollouts")
    assert bill.lengths.rollout("base_seed1", "toy_test") == 80


def test_what_was_cached_tells_no_rate(finished_run):
    log = finished_run / "logs" / "done" / "sample_rollouts" / "base" / "_evaluation" / "0.log"
    log.write_text(log.read_text().replace("0 completions cached, 1000", "900 completions cached, 100"))
    trained = finished_run / "logs" / "done" / "train" / "star_1.log"
    trained.write_text("the cached checkpoint is taken\ntook 0.1 s\n")
    rates = Rates.left_by(finished_run / "results" / "next", 5.0)
    assert rates.seconds("sample_rollouts", SIZE) is None and rates.seconds("train", SIZE) is None
    assert rates.seconds("force_answers", SIZE) == pytest.approx(0.001)


def test_a_plan_for_a_gpu_takes_no_rate_of_the_cpu(finished_run):
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text()) | {"results": "results/next"}
    assert not Bill(load(raw | {"cluster": {"gpu": "h100"}}), look=True).rates.in_words({SIZE})
