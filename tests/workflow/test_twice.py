"""Two jobs that sample the same at once, as a killed run's and the next one's: it is sampled once."""

import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT, TOY_BASE

pytestmark = pytest.mark.slow


def alone(problems, folder):
    """Jobs that sample a dataset, and make its table."""
    command = [
        "mrt.sampling.rollouts",
        "--model",
        TOY_BASE,
        "--problems",
        problems,
        "--names",
        "base",
        "--names",
        "toy",
    ]
    command += ["--cache.folder", folder / "cache" / "toy", "--decoding.max_tokens", "50"]
    return [[*command, "--out", folder / name] for name in ("one.parquet", "two.parquet")]


def pooled(problems, folder):
    """Jobs that sample all of a pool, here one dataset."""
    settings = {"model": str(TOY_BASE), "names": ["base", "toy"], "decoding": {"max_tokens": 50}}
    inputs = {"problems": str(problems), "out": str(folder / "table.parquet")}
    request = folder / "toy.json"
    request.write_text(json.dumps({"stage": "mrt.sampling.rollouts", "settings": settings, "inputs": inputs}))
    command = ["mrt.sampling.pool", "--requests", json.dumps([str(request)]), "--folder", folder / "cache"]
    return [[*command, "--out", folder / name] for name in ("one.parquet", "two.parquet")]


@pytest.mark.parametrize("of", [alone, pooled])
def test_what_two_jobs_sample_at_once_is_sampled_once(of, toy_problems, tmp_path):
    commands = [
        [sys.executable, "-m", *command, "--engine.max_model_len", "256"] for command in of(toy_problems, tmp_path)
    ]
    outputs = [tmp_path / name for name in ("one.parquet", "two.parquet")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    jobs = [subprocess.Popen(list(map(str, command)), cwd=ROOT, **pipes) for command in commands]
    said = [job.communicate(timeout=500)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    missing = [int(re.search(r"(\d+) to sample", text)[1]) for text in said]
    assert sorted(missing)[0] == 0 < sorted(missing)[1]
    assert "waiting for" in said[missing.index(0)]
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
