"""vLLM's processes end with the stage, even one that is killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, TOY_BASE, has_ended

pytestmark = pytest.mark.slow

PATIENCE = 10  # seconds


def children(process):
    """All processes below a process."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(child)]
    return found


def test_a_killed_stage_takes_vllms_processes_along(toy_problems, tmp_path):
    stage = [
        sys.executable,
        "-m",
        "mrt.core.fork_server",
        "mrt.sampling.rollouts",
        "--model",
        TOY_BASE,
        "--problems",
        toy_problems,
    ]
    stage += ["--names", "base", "--names", "test", "--samples", "200", "--cache.folder", tmp_path / "kept"]
    stage += ["--engine.max_model_len", "1024", "--engine.cpu_cache_gib", "0.1", "--engine.max_num_seqs", "2"]
    stage += ["--decoding.max_tokens", "900", "--out", tmp_path / "rollouts.parquet"]
    own = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "OMP_NUM_THREADS": "1"}
    environment = os.environ | own | {"MRT_FORK_SERVER": "off"}
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(list(map(str, stage)), cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 400
        while " requests" not in (said := (tmp_path / "log").read_text()):  # vLLM draws
            assert job.poll() is None and time.monotonic() < until, said
            time.sleep(0.5)
        below = children(job.pid)
        names = [Path(f"/proc/{process}/comm").read_text().strip() for process in below]
        assert any("EngineCor" in name for name in names), names
    finally:
        job.kill()
        job.wait()
    until = time.monotonic() + PATIENCE
    while not all(map(has_ended, below)):
        assert time.monotonic() < until, [name for name, p in zip(names, below, strict=True) if not has_ended(p)]
        time.sleep(0.2)
