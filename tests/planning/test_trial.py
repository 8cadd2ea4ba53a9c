"""The trial of a machine: what its stages report, how it treats failures and limits, and who reads its numbers."""

import json

import polars as pl
import pytest
from conftest import python

from mrt.planning import trial
from mrt.planning.bill import Reached
from mrt.planning.calibrate import DECODE, MEMORY, PREFILL, TRAINING, Calibrate, of_trial, training_speed
from mrt.planning.trial import MEASURED, Trial, about, hardware_here
from mrt.planning.trial_stages import STAGES, command_of


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setenv("MRT_DEVICE", "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_what_was_done_is_not_done_again_and_what_is_not_here_says_why(tmp_path, on_cpu, capsys):
    file = tmp_path / "stages.json"
    finished = {name: {"seconds": 1, "ended": "ok", "why": ""} for name in STAGES if name != "card"}
    file.write_text(json.dumps(finished | {"two_jobs": {"seconds": 1, "ended": "FAILED (limit)", "why": ""}}))
    with pytest.raises(ValueError, match="failed: two_jobs"):
        Trial(out=tmp_path).cli_cmd()
    assert capsys.readouterr().out.startswith("card: ok")
    Trial(out=tmp_path, stages=["two_jobs"]).cli_cmd()
    assert "two_jobs: not here" in capsys.readouterr().out
    report = (tmp_path / "report.md").read_text()
    assert "TFLOP/s of a matrix product: " in report and "NotHere: needs a GPU" in report
    rows = pl.read_parquet(tmp_path / "measured.parquet")
    assert {"date", "commit", "torch"} <= set(rows.filter(pl.col("stage") == "about")["what"])
    assert rows.filter(pl.col("stage") == "card", pl.col("number") > 0).height == 4


def test_a_stage_that_fails_or_takes_too_long_stops_no_other(tmp_path, on_cpu, capsys, monkeypatch):
    (tmp_path / "problems.parquet").mkdir()  # which the stage cannot write
    monkeypatch.setitem(STAGES, "engine", STAGES["engine"]._replace(limit=1))
    with pytest.raises(ValueError, match=r"failed: sampling, engine; their logs are in"):
        Trial(out=tmp_path, stages=["sampling", "engine", "card"]).cli_cmd()
    failed, slow, last, *_ = capsys.readouterr().out.splitlines()
    assert failed.startswith("sampling: FAILED (exit code 1)") and "Is a directory" in failed
    assert slow.startswith("engine: FAILED (limit), 1 s") and last.startswith("card: ok")


def test_a_stage_that_this_call_has_no_time_for_is_left_to_the_next(tmp_path, on_cpu, capsys, monkeypatch):
    monkeypatch.setitem(STAGES, "card", STAGES["card"]._replace(least=0))
    Trial(out=tmp_path, stages=["card", "engine"], seconds=1).cli_cmd()
    printed = capsys.readouterr().out
    assert "card: out of time" in printed and "engine: " in printed and "call again" in printed
    assert json.loads((tmp_path / "stages.json").read_text()) == {}
    assert "Not run yet: card, engine, " in (tmp_path / "report.md").read_text()


def test_unknown_stages_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no engin; there are card, engine"):
        Trial(out=tmp_path, stages=["engin"]).cli_cmd()


def of_machine(folder, **numbers):
    """A report that has these numbers."""
    facts = [("about", "card", "NVIDIA H200", None), ("about", "date", "2026-11-27", None)]
    rows = [("any", what, str(number), number) for what, number in numbers.items()]
    pl.DataFrame([*facts, *rows], schema=MEASURED, orient="row").write_parquet(folder / "measured.parquet")


def test_calibrate_reads_the_report_and_the_plan_says_where_it_was_measured(tmp_path):
    of_machine(tmp_path, **{PREFILL: 0.4, DECODE: 0.3, TRAINING: 0.35, MEMORY: 0.86})
    Calibrate(trial=tmp_path, out=tmp_path / "c.parquet").cli_cmd()
    plan = ["-m", "mrt", "plan", "--configfile", "tests/tiny.yaml", "--gpu", "h200"]
    estimated, measured = python(*plan), python(*plan, "--calibration", tmp_path / "c.parquet")
    assert "hours estimated: of the data sheet's speed prefill 0.5, decoding 0.5, training 0.4" in estimated
    assert "memory estimated, an upper bound, in GiB" in estimated
    where = "measured on NVIDIA H200, 2026-11-27"
    assert f"hours {where}: of the data sheet's speed prefill 0.4, decoding 0.3, training 0.35" in measured
    assert f"({where}: SFT took 0.86 of it)" in measured


def test_a_report_without_speeds_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no report of a trial; run `python -m mrt trial`"):
        of_trial(tmp_path)
    of_machine(tmp_path, **{PREFILL: 0.4})
    with pytest.raises(ValueError, match=f"lacks: {DECODE}. Run"):
        of_trial(tmp_path)
    of_machine(tmp_path, **{PREFILL: 0.4, DECODE: 0.3})
    assert of_trial(tmp_path) == Reached(
        prefill=0.4, decode=0.3, training=0.8 * 0.4, machine="NVIDIA H200", date="2026-11-27"
    )
    with pytest.raises(ValueError, match="either --model, to measure, or --trial"):
        Calibrate(out=tmp_path / "c.parquet")


def test_a_step_at_the_data_sheets_speed_is_all_of_it():
    from architectures import QWEN_1_5B

    from mrt.config.hardware import GPUS

    card, tokens = GPUS["h100"], 8192
    attention = 2 * QWEN_1_5B.layers * QWEN_1_5B.heads * QWEN_1_5B.head_dim * tokens
    seconds = tokens * 4 * (2 * QWEN_1_5B.parameters + attention) / card.flops
    assert training_speed(QWEN_1_5B, card, tokens, 2 * seconds) == pytest.approx(0.5)


def test_the_card_is_found_by_its_name_and_memory(monkeypatch):
    def driver(name, memory):
        monkeypatch.setattr(trial.accelerator, "ask_driver", lambda *fields: [[name, memory]])
        return hardware_here()

    from mrt.config.hardware import GPUS

    assert driver("NVIDIA A100-SXM4-80GB", "81920 MiB") == GPUS["a100-80gb"]
    assert driver("NVIDIA A100-SXM4-40GB", "40960 MiB") == GPUS["a100-40gb"]
    assert driver("NVIDIA A10G", "23028 MiB") == GPUS["a10g"]
    assert driver("NVIDIA GeForce RTX 4090", "24564 MiB") == GPUS["rtx4090"]
    with pytest.raises(ValueError, match=r"Tesla T4 is not a listed GPU: give --gpu NAME --gpu_memory 15\.0"):
        driver("Tesla T4", "15360 MiB")


def test_versions_that_are_not_the_locks_are_named(tmp_path, monkeypatch, on_cpu):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "gpu.lock").write_text("torch==1.0.0 \\\n    --hash=sha256:0\n")
    monkeypatch.setattr(trial, "ROOT", tmp_path)
    facts = dict(about())
    assert facts["torch"].endswith("(the lock has 1.0.0)") and "lock" not in facts["trl"]


def test_several_processes_are_started_with_zero_3():
    assert command_of("mrt.x", "--a", 1)[1:] == ["-m", "mrt.x", "--a", "1"]
    command = command_of("mrt.x", "--a", 1, processes=2)
    assert command[command.index("--nproc-per-node") + 1] == "2" and "--deepspeed" in command
