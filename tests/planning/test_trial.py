"""The trial of a machine: reports of its stages, failures, limits, and readers of its numbers."""

import json
from pathlib import Path

import polars as pl
import pytest
from conftest import ROOT, python

from mrt.config.hardware import GPUS
from mrt.planning import trial
from mrt.planning.bill import CORE, Reached
from mrt.planning.calibrate import DECODE, MEMORY, PREFILL, TRAINING, Calibrate, of_trial, training_speed
from mrt.planning.plan import Plan
from mrt.planning.trial import MEASURED, Trial, about, card_here, reason_in
from mrt.planning.trial_stages import STAGES, NotHere, Place, command_of


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setenv("MRT_DEVICE", "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.slow
def test_what_succeeded_is_not_done_again_and_what_failed_is(tmp_path, on_cpu, capsys):
    file = tmp_path / "stages.json"
    finished = {name: {"seconds": 1, "ended": "ok", "why": ""} for name in STAGES}
    file.write_text(json.dumps(finished | {"card": {"seconds": 1, "ended": "FAILED", "why": "OSError: x"}}))
    Trial(out=tmp_path).cli_cmd()
    assert capsys.readouterr().out.startswith("card: ok")
    Trial(out=tmp_path, stages=["two_jobs"]).cli_cmd()
    assert "two_jobs: not here" in capsys.readouterr().out
    report = (tmp_path / "report.md").read_text()
    assert "TFLOP/s of a matrix product: " in report and "NotHere: needs a GPU" in report
    rows = pl.read_parquet(tmp_path / "measured.parquet")
    assert {"date", "commit", "torch"} <= set(rows.filter(pl.col("stage") == "about")["what"])
    assert rows.filter(pl.col("stage") == "card", pl.col("number") > 0).height == 2


@pytest.mark.slow
def test_a_stage_that_fails_or_takes_too_long_stops_no_other(tmp_path, on_cpu, capsys, monkeypatch):
    (tmp_path / "problems.parquet").mkdir()  # which the stage cannot write
    monkeypatch.setitem(STAGES, "engine", STAGES["engine"]._replace(limit=0))
    with pytest.raises(ValueError, match=r"failed: sampling, engine; their logs are in .* the next call repeats them"):
        Trial(out=tmp_path, stages=["sampling", "engine", "card"]).cli_cmd()
    failed, slow, last, *_ = capsys.readouterr().out.splitlines()
    assert failed.startswith("sampling: FAILED") and "Is a directory" in failed
    assert slow.startswith("engine: FAILED") and slow.endswith("not done after 0 s") and last.startswith("card: ok")


def test_a_stage_that_this_call_has_no_time_for_is_left_to_the_next(tmp_path, on_cpu, capsys, monkeypatch):
    monkeypatch.setitem(STAGES, "card", STAGES["card"]._replace(least=0))
    Trial(out=tmp_path, stages=["card", "engine"], seconds=1).cli_cmd()
    printed = capsys.readouterr().out
    assert "card: out of time" in printed and "call again for what is left: card, engine, " in printed
    assert not (tmp_path / "stages.json").exists()
    assert "Left: card, engine, " in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("mrt.training.sft: [Errno 20] Not a directory: 'x'", "mrt.training.sft: [Errno 20] Not a directory: 'x'"),
        ("(EngineCore pid=7) ERROR 11-27 [core.py:1] ValueError: no kernel", "ValueError: no kernel"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "torch.OutOfMemoryError: CUDA out of memory."),
        ("error: GPUs lack", "error: GPUs lack"),
    ],
)
def test_the_reason_of_a_failure_is_no_echo_and_no_progress_bar(line, reason):
    echoes = ["RuntimeError: Engine core initialization failed. See root cause above.", "Loading: 0%\rLoading: 100%"]
    assert reason_in(["Traceback:", line, *echoes, "subprocess.CalledProcessError: Command"]) == reason
    assert reason_in([]) == ""


def test_unknown_stages_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no engin; there are card, engine"):
        Trial(out=tmp_path, stages=["engin"]).cli_cmd()


def of_machine(folder, *numbers):
    """A report that has these numbers."""
    facts = [("about", "machine", "h200", None), ("about", "date", "2026-11-27", None)]
    rows = [("any", what, str(number), number) for what, number in numbers]
    pl.DataFrame([*facts, *rows], schema=MEASURED, orient="row").write_parquet(folder / "measured.parquet")


@pytest.mark.slow
def test_calibrate_reads_the_report_and_the_plan_says_where_it_was_measured(tmp_path):
    of_lengths = [(TRAINING, 0.4), (MEMORY, 0.86), (TRAINING, 0.35), (MEMORY, 0.8)]
    of_machine(tmp_path, (PREFILL, 0.4), (DECODE, 0.3), *of_lengths)
    Calibrate(trial=tmp_path, out=tmp_path / "c.parquet").cli_cmd()
    plan = ["-m", "mrt", "plan", "--configfile", "tests/tiny.yaml", "--gpu"]
    estimated, measured = python(*plan, "h200"), python(*plan, "h200", "--calibration", tmp_path / "c.parquet")
    shares = "{} in prefill, {} in decoding, {} in training of what the data sheet promises"
    assert f"hours: estimated: {shares.format('50%', '50%', '40%')}" in estimated
    assert "memory at most (estimated), in GiB" in estimated
    where = "measured on h200, 2026-11-27"
    assert f"hours: {where}: {shares.format('40%', '30%', '35%')}" in measured
    assert f"memory at most ({where}, SFT takes 86% of it)" in measured


def test_a_plan_takes_no_calibration_of_another_machine(tmp_path):
    of_machine(tmp_path, (PREFILL, 0.4), (DECODE, 0.3))
    Calibrate(trial=tmp_path, out=tmp_path / "c.parquet").cli_cmd()
    plan = Plan(configfile=[ROOT / "tests" / "tiny.yaml"], gpu="h100", calibration=tmp_path / "c.parquet")
    with pytest.raises(ValueError, match=r"was measured on h200, and the plan is for h100: give one"):
        plan.cli_cmd()


def test_a_report_without_speeds_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no report of a trial; run `python -m mrt trial`"):
        of_trial(tmp_path)
    of_machine(tmp_path, (PREFILL, 0.4))
    with pytest.raises(ValueError, match=f"lacks: {DECODE}. Call"):
        of_trial(tmp_path)
    of_machine(tmp_path, (PREFILL, 1.4), (DECODE, 0.3))
    expected = {"prefill": 1.0, "decode": 0.3, "training": 0.8, "machine": "h200", "date": "2026-11-27"}
    assert of_trial(tmp_path) == Reached(**expected)
    with pytest.raises(ValueError, match="either --model, to measure, or --trial"):
        Calibrate(out=tmp_path / "c.parquet").cli_cmd()


def test_a_step_at_the_data_sheets_speed_is_all_of_it():
    from architectures import QWEN_1_5B

    card, tokens = GPUS["h100"], 8192
    attention = 2 * QWEN_1_5B.layers * QWEN_1_5B.heads * QWEN_1_5B.head_dim * tokens
    seconds = tokens * 4 * (2 * QWEN_1_5B.parameters + attention) / card.flops
    assert training_speed(QWEN_1_5B, card, tokens, 2 * seconds) == pytest.approx(0.5)


def test_the_card_is_found_by_its_name_and_memory(monkeypatch):
    monkeypatch.setattr(trial.accelerator, "cards", lambda: [trial.accelerator.Card("1", "GPU-b")])

    def driver(name, memory):
        cards = [["GPU-a", "NVIDIA H100 80GB HBM3", "81559 MiB"], ["GPU-b", name, memory]]
        monkeypatch.setattr(trial.accelerator, "ask_driver", lambda *fields: cards)
        return card_here()[0]

    assert driver("NVIDIA A100-SXM4-80GB", "81920 MiB") == "a100-80gb"
    assert driver("NVIDIA A100-SXM4-40GB", "40960 MiB") == "a100-40gb"
    assert driver("NVIDIA A10G", "23028 MiB") == "a10g"
    assert driver("NVIDIA GeForce RTX 4090", "24564 MiB") == "rtx4090"
    with pytest.raises(ValueError, match=r"Tesla T4 is not a listed GPU: give --gpu NAME --gpu_memory 15\.0"):
        driver("Tesla T4", "15360 MiB")
    monkeypatch.setattr(trial.accelerator, "ask_driver", lambda *fields: [])
    with pytest.raises(ValueError, match="a card that nvidia-smi does not list is not a listed GPU"):
        card_here()


def test_versions_that_are_not_the_locks_are_named(tmp_path, monkeypatch, on_cpu):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "gpu.lock").write_text("torch==1.0.0 \\\n    --hash=sha256:0\n")
    monkeypatch.setattr(trial, "ROOT", tmp_path)
    facts = dict(about("h100", GPUS["h100"]))
    assert facts["torch"].endswith("(the lock has 1.0.0)") and "lock" not in facts["trl"]
    assert facts["machine"] == "h100" and facts["its data sheet"] == "79.1 GiB, 989 TFLOP/s, 3.35 TB/s"


def test_trainings_are_started_as_rules_start_them():
    assert command_of("mrt.x", "--a", 1)[1:] == ["-m", "mrt.x", "--a", "1"]
    launched = ["-m", "mrt.training.launch", "--processes", "2", "mrt.x", "--a", "1"]
    assert command_of("mrt.x", "--a", 1, processes=2)[1:] == launched


@pytest.mark.parametrize(("cards", "processes"), [(0, 2), (2, 2), (3, 2), (6, 4), (8, 8)])
def test_zero_3_takes_a_power_of_two_of_the_cards(cards, processes):
    assert Place(Path(), "sft_zero3", CORE, cards).several() == processes


def test_zero_3_is_not_tried_on_one_card():
    with pytest.raises(NotHere, match="needs two cards"):
        Place(Path(), "sft_zero3", CORE, 1).several()
