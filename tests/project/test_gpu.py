"""The first fifteen minutes on a GPU: does it run, and how exact, how fast, how large (docs/gpu.md).

    make test-gpu     writes results/gpu_report.md

Where there is no GPU, those parts run on the CPU for which CUDA is not the point, and the rest is skipped.
`MRT_GPU_MODEL` names another model than the toy base for the tests of the engine and of RL: a folder, or a hub id.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import polars as pl
import pytest
from conftest import ROOT, TOY_BASE, checkout, python, snakemake

from mrt.core import accelerator
from mrt.core.artifacts import SET
from mrt.core.storage import write_text
from mrt.training.log import log_of

GPUS = len(accelerator.cards())
needs_gpu = pytest.mark.skipif(not GPUS, reason="no NVIDIA GPU here; what to do where there is one: docs/gpu.md")
needs_two = pytest.mark.skipif(GPUS < 2, reason="needs two NVIDIA GPUs")
on_cpu = pytest.mark.skipif(bool(GPUS), reason="vLLM's CUDA build does not run on a CPU")
DEVICES = [
    pytest.param("cpu", marks=on_cpu),
    pytest.param("cuda", marks=[needs_gpu, pytest.mark.gpu]),
]
MODEL = os.environ.get("MRT_GPU_MODEL", str(TOY_BASE))
QWEN_1_5B = {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2}
QWEN_1_5B |= {"intermediate_size": 8960, "vocab_size": 151936, "head_dim": 128}  # R1-Distill-Qwen-1.5B's shape


@pytest.fixture(scope="module")
def report():
    """What was measured, by test: written when the last test has run, and only where there is a GPU."""
    rows: list[tuple[str, str, str]] = []
    yield lambda test, what, value: rows.append((test, what, f"{value:.4g}" if isinstance(value, float) else value))
    if GPUS and rows:
        cards = accelerator.ask_driver("name", "memory.total", "driver_version")
        about = [f"- {', '.join(card)}" for card in cards]
        about += [f"- {name} {version(name)}" for name in ("vllm", "torch", "transformers", "trl", "deepspeed")]
        about += [f"- Python {platform.python_version()} on {platform.platform()}", f"- model: {Path(MODEL).name}"]
        lines = ["# Smoke test on a GPU", "", *about, "", "| test | what | value |", "|---|---|---|"]
        lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
        write_text("\n".join(lines) + "\n", ROOT / "results" / "gpu_report.md")
        print(f"\nthe report is {Path('results', 'gpu_report.md')}")


SAMPLE = """
import json, sys, time
from mrt.sampling.engine import Decoding, Engine, EngineSettings, Request

began = time.monotonic()
settings = EngineSettings(max_model_len=512, max_num_seqs=64, tensor_parallel_size=int(sys.argv[2]))
engine = Engine(sys.argv[1], settings)
drawing = Decoding(temperature=1.0, max_tokens=60)
question = "<|user|>Some of the numbers 9, 17, 8, 2, 10 add up to 29. Which?<|assistant|><think>\\n"
requests = [
    Request(question, 4, 7, drawing),
    Request(question, 1, 99, drawing.model_copy(update={"stop": ("\\n\\n",)}), priority=-1),
    Request("9 " * 2000, 2, 0, drawing),
    Request(question, 1, 0, Decoding(temperature=0.0, max_tokens=60)),
]
engine.generate(requests[-1:])
ready = time.monotonic()
found = engine.generate(requests)
done = time.monotonic()
texts = [[(c.text, c.tokens, c.finish_reason) for c in completions] for completions in found]
print(json.dumps({"start": ready - began, "sampling": done - ready, "texts": texts}))
"""


def sampled(gpus=1):
    """What a fresh process samples."""
    return json.loads(python("-c", SAMPLE, MODEL, gpus).splitlines()[-1])


@pytest.mark.parametrize("device", DEVICES)
def test_the_engine_starts_twice_in_a_row(device, report):
    """With several completions a prompt, stop texts, priorities, a prompt that is too long."""
    first, second = sampled(), sampled()
    many, stopped, too_long, greedy = first["texts"]
    assert len(many) == 4 and len({text for text, *_ in many}) > 1
    assert "\n\n" not in stopped[0][0]
    assert too_long == [["", 0, "length"]] * 2
    assert greedy[0][1] > 0
    if device == "cpu":
        assert first["texts"] == second["texts"]
    report("engine", "seconds until the first answer, cold and again", f"{first['start']:.0f}, {second['start']:.0f}")
    pairs = [pair for both in zip(first["texts"], second["texts"], strict=True) for pair in zip(*both, strict=True)]
    report("engine", "equal completions of two processes", f"{sum(a == b for a, b in pairs)} of {len(pairs)}")


@needs_two
@pytest.mark.gpu
def test_the_engine_on_two_gpus(report):
    """Tensor parallelism."""
    one, two = sampled(), sampled(2)
    assert [len(completions) for completions in two["texts"]] == [len(completions) for completions in one["texts"]]
    report("engine on two GPUs", "seconds until the first answer", two["start"])


def trained(folder, method, **recipe):
    """The log of a training of the toy base in the tiny experiment, by the workflow's own rules."""
    config = folder / "own.yaml"
    section = "rl" if method in ("grpo", "mrt_rl") else "recipe"
    settings = json.dumps({"bf16": True, "gradient_checkpointing": True, "save_steps": 1, **recipe})
    config.write_text(
        f"training: {{{section}: {settings}}}\n"
        f"models: {{own: {{parent: base, method: {method}, problems: toy_train, label: Own}}}}\n"
        "evaluation: {models: [base, own]}\n"
    )
    files = ["--configfile", folder / "tests" / "tiny.yaml", config]
    snakemake(folder, "--cores", "4", *files, "--", "results/tiny/models/own.log.parquet")
    return pl.read_parquet(folder / "results" / "tiny" / "models" / "own.log.parquet")


@pytest.fixture
def project(tmp_path):
    folder = checkout(tmp_path)
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "tiny.yaml", folder / "tests")
    return folder


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize(("method", "variant"), [("grpo", "explicit"), ("mrt_rl", "per_episode")])
def test_three_steps_of_rl(method, variant, project, report):
    """In bfloat16, weights handed over in TRL's own way; and how far engine and trainer are apart."""
    log = trained(project, method, variant=variant, epochs=1.2, batch_size=256, num_generations=8)
    assert log.height >= 3 and log["loss"].is_finite().all()
    steps = ", ".join(f"{value:.4f}" for value in log["logp_difference"].head(4))
    report(f"RL, {method}", "nats a token between vLLM and the trainer, by step", steps)
    report(f"RL, {method}", "seconds a step", float(log["seconds"].median()))
    assert log["logp_difference"].max() < 0.2


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=needs_two)])
def test_sft_is_killed_and_goes_on(processes, tmp_path, report):
    """In bfloat16 with gradient checkpointing; on two GPUs under ZeRO-3."""
    examples = [
        (f"p{i}", 0, None, f"<|user|>Question {i}<|assistant|><think>\n", f"Try {i}.\n</think>\n\n\\boxed{{{i}}}", 1.0)
        for i in range(64)
    ]
    pl.DataFrame(examples, schema=SET.columns, orient="row").write_parquet(tmp_path / "set.parquet")
    recipe = {"epochs": 4, "batch_size": 8, "micro_batch_size": 4, "max_length": 256, "save_steps": 1}
    command = [sys.executable, "-m", "mrt.training.launch", "--processes", str(processes), "mrt.training.sft"]
    command += ["--model", str(TOY_BASE), "--set", tmp_path / "set.parquet", "--recipe", json.dumps(recipe)]
    command += ["--state", tmp_path / "state", "--history", tmp_path / "history.parquet", "--out", tmp_path / "model"]
    command = list(map(str, command))
    killed = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    until = time.monotonic() + 300
    while not list((tmp_path / "state").glob("*/checkpoint-*/trainer_state.json")) and time.monotonic() < until:
        assert killed.poll() is None, "SFT ended before its first checkpoint"
        time.sleep(0.2)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    began = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True)
    log = log_of(tmp_path / "history.parquet")
    assert log["step"].to_list() == list(range(1, 33)) and log["loss"][-1] < log["loss"][0]
    report(f"SFT on {processes} GPU", "seconds to go on and end", time.monotonic() - began)


@needs_gpu
@pytest.mark.gpu
def test_two_jobs_share_one_gpu(report):
    """One after the other: the second waits for the first one's lock."""
    only = {**os.environ, "CUDA_VISIBLE_DEVICES": accelerator.cards()[0].name}
    began = time.monotonic()
    command = [sys.executable, "-c", SAMPLE, MODEL, "1"]
    both = [subprocess.Popen(command, cwd=ROOT, env=only, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [job.wait(600) for job in both] == [0, 0]
    report("two jobs on one GPU", "seconds", time.monotonic() - began)


PEAK = """
import json, sys, torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

shape, length, toy, out = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
from pathlib import Path
from mrt.training.sft import SFT, arguments, make_trainer

with torch.device("cuda"):
    model = Qwen2ForCausalLM(Qwen2Config(**shape, max_position_embeddings=length, dtype="float32"))
rows = [{"input_ids": [5] * length, "labels": [5] * length, "loss_weight": 1.0} for _ in range(2)]
recipe = SFT(epochs=2, batch_size=1, micro_batch_size=1, max_length=length, save_steps=100)
trainer = make_trainer(model, AutoTokenizer.from_pretrained(toy), rows, recipe, arguments(recipe, Path(out)))
trainer.train()
print(json.dumps({"peak": torch.cuda.max_memory_allocated(), "size": sum(p.numel() for p in model.parameters())}))
"""


@needs_gpu
@pytest.mark.gpu
def test_peak_memory_against_the_arithmetic(tmp_path, report):
    """Of SFT of a 1.5B model with random weights, at the longest example that is planned to fit on this GPU."""
    from mrt.config.hardware import GIB, Architecture, Hardware
    from mrt.config.memory import Training, longest_length, total, training_parts

    shape = Architecture(
        parameters=1_777_088_000,
        layers=QWEN_1_5B["num_hidden_layers"],
        hidden=QWEN_1_5B["hidden_size"],
        intermediate=QWEN_1_5B["intermediate_size"],
        heads=QWEN_1_5B["num_attention_heads"],
        kv_heads=QWEN_1_5B["num_key_value_heads"],
        head_dim=QWEN_1_5B["head_dim"],
        vocabulary=QWEN_1_5B["vocab_size"],
        context=131_072,
    )
    memory = float(accelerator.ask_driver("memory.total")[0][0].split()[0]) / 1024
    length = longest_length(shape, Training(1, 16384), Hardware(memory, 1e14, 1e12), 0.0, 1)
    if not length:
        pytest.skip(f"a 1.5B model cannot be trained whole in {memory:.0f} GiB: 16 bytes a parameter are 26 GiB")
    measured = json.loads(python("-c", PEAK, json.dumps(QWEN_1_5B), length, TOY_BASE, tmp_path).splitlines()[-1])
    plan = total(training_parts(shape, Training(1, length), 1))
    peak = measured["peak"] / GIB
    report("memory", f"GiB at the peak of SFT, {length:,} tokens: measured, planned", f"{peak:.1f}, {plan:.1f}")
    assert peak <= plan
