"""The trial of a machine as a whole (docs/gpu.md): all of it on a GPU, in small on a CPU.

make test-gpu     writes results/trial/report.md
"""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

from mrt.core import accelerator

needs_gpu = pytest.mark.skipif(not accelerator.cards(), reason="no NVIDIA GPU here; where there is one: docs/gpu.md")


def trial(*options, **environment):
    """Run the trial: what it prints, a line a stage."""
    command = [sys.executable, "-m", "mrt", "trial", *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": ok, " in line or ": not here, " in line]


@needs_gpu
@pytest.mark.gpu
def test_the_trial_on_a_gpu():
    """Its report stays, for docs/gpu/."""
    assert trial("--seconds", 3000)


@pytest.mark.skipif(bool(accelerator.cards()), reason="vLLM's CUDA build does not run on a CPU")
def test_the_trial_in_small_on_a_cpu(tmp_path):
    stages = trial("--out", tmp_path, "--seconds", 1500, MRT_DEVICE="cpu")
    ended = {name: rest.split(",")[0] for name, _, rest in (line.partition(": ") for line in stages)}
    small = ("card", "engine", "sft", "grpo", "mrt_rl", "memory_sft_8k", "throughput")
    assert ended == dict.fromkeys(small, "ok")
    report = (tmp_path / "report.md").read_text()
    for value in ("J by likelihood against transformers", "nats a token between engine and trainer", "GiB planned"):
        assert value in report
