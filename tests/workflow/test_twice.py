"""Two jobs that sample the same at once, as a killed run's and the next one's: it is sampled once."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT, TOY_BASE

pytestmark = pytest.mark.slow


def test_what_two_jobs_sample_at_once_is_sampled_once(toy_problems, tmp_path):
    command = [sys.executable, "-m", "mrt.sampling.rollouts", "--model", TOY_BASE, "--problems", toy_problems]
    command += ["--names", "base", "--names", "toy", "--cache.folder", tmp_path / "cache" / "toy"]
    command += ["--engine.max_model_len", "256", "--decoding.max_tokens", "50"]
    outputs = [tmp_path / name for name in ("one.parquet", "two.parquet")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    jobs = [subprocess.Popen([*map(str, command), "--out", str(out)], cwd=ROOT, **pipes) for out in outputs]
    said = [job.communicate(timeout=500)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    missing = [int(re.search(r"(\d+) to sample", text)[1]) for text in said]
    assert sorted(missing)[0] == 0 < sorted(missing)[1]
    assert "waiting for" in said[missing.index(0)]
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
