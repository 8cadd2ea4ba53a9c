"""The trial of a machine as a whole (docs/gpu.md): all of it on a GPU, in small on a CPU.

make test-gpu     writes results/trial/report.md
"""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

from mrt.core import accelerator
from mrt.planning.trial_stages import STAGES

pytestmark = pytest.mark.slow

needs_gpu = pytest.mark.skipif(not accelerator.cards(), reason="no NVIDIA GPU here; where there is one: docs/gpu.md")


def trial(folder, seconds, **environment):
    """How the stages ended that a call of the trial has run, or found done, by name."""
    command = [sys.executable, "-m", "mrt", "trial", "--out", str(folder), "--seconds", str(seconds)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: result["ended"] for name, result in json.loads((folder / "stages.json").read_text()).items()}


@needs_gpu
@pytest.mark.gpu
def test_the_trial_on_a_gpu():
    """Its report stays, for docs/gpu/."""
    ended = trial(ROOT / "results" / "trial", sum(stage.limit for stage in STAGES.values()))
    assert ended.keys() == STAGES.keys() and set(ended.values()) <= {"ok", "not here"}


@pytest.mark.skipif(bool(accelerator.cards()), reason="vLLM's CUDA build does not run on a CPU")
def test_the_trial_in_small_on_a_cpu(tmp_path):
    ended = trial(tmp_path, 3000, MRT_DEVICE="cpu")
    assert ended == {name: "ok" for name, stage in STAGES.items() if stage.on_cpu}
    report = (tmp_path / "report.md").read_text()
    for value in ("J by likelihood against transformers", "nats a token between engine and trainer", "GiB planned"):
        assert value in report
