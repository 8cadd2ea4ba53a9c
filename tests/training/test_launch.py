"""How a training's processes are started, and which GPUs they see."""

import os
import subprocess
import sys

import polars as pl
import pytest
from conftest import ROOT, TOY_BASE, fake_cards

from mrt.core.artifacts import SET
from mrt.training import launch
from mrt.training.devices import batches

SHOW = """
import os, sys
from mrt.training import launch
allocator = lambda: f"allocator={os.environ.get('PYTORCH_ALLOC_CONF')}"
os.execvp = lambda program, command: print(os.environ.get("CUDA_VISIBLE_DEVICES"), *command, allocator())
launch.main(sys.argv[1:])
"""


def launched(*arguments, stage="mrt.training.sft", **environment):
    command = [sys.executable, "-c", SHOW, *arguments, stage, "--set", "x"]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)


def test_the_processes_of_a_node_see_as_many_gpus(tmp_path, monkeypatch):
    fake_cards(tmp_path, monkeypatch, 8)
    said = launched("--processes", "4").stdout
    assert said.startswith("0,1,2,3 ") and "--nproc-per-node 4" in said
    too_many = launched("--processes", "9")
    assert too_many.returncode == 1 and "9 GPUs are asked for, 8 are there" in too_many.stderr
    assert "cluster.training_gpus" in too_many.stderr


def test_segments_of_a_gpus_memory_grow_unless_an_engine_shares_them_between_processes(tmp_path, monkeypatch):
    grows = "allocator=expandable_segments:True"
    assert grows not in launched("--processes", "2", MRT_DEVICE="cpu").stdout
    fake_cards(tmp_path, monkeypatch, 8)
    assert grows in launched("--processes", "2").stdout
    assert "allocator=own" in launched("--processes", "2", PYTORCH_ALLOC_CONF="own").stdout
    assert "allocator=None" in launched("--processes", "2", stage="mrt.training.rl").stdout


def test_on_several_nodes_each_claims_its_own_and_the_step_has_the_cores_of_the_job(tmp_path, monkeypatch):
    fake_cards(tmp_path, monkeypatch, 8)
    several = ("--nodes", "2", "--processes", "2", "--cpus", "24")
    job = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    (tmp_path / "bin" / "srun").write_text("#!/bin/sh")
    (tmp_path / "bin" / "srun").chmod(0o755)
    said = launched(*several, **job).stdout.split()
    assert said[:2] == ["0,1,2,3", "srun"] and "--cpus-per-task=24" in said
    step = {"SLURM_STEP_ID": "0", "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURM_LAUNCH_NODE_IPADDR": "n1"}
    said = launched(*several, **job, **step).stdout
    assert said.startswith("0,1 ") and "--nproc-per-node 2" in said and "--node-rank 1" in said


@pytest.mark.parametrize("world", [None, "4"])
def test_a_step_has_the_whole_batch_on_however_many_devices(monkeypatch, world):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world:
        monkeypatch.setenv("WORLD_SIZE", world)
    micro, accumulation = batches(64, 4)
    assert micro * accumulation * int(world or 1) == 64


def test_a_training_of_one_process_has_one_gpu_and_never_falls_back_to_the_cpu(tmp_path, monkeypatch):
    fake_cards(tmp_path, monkeypatch, 8)
    row = {"problem_id": "a", "sample": 0, "prefix": None, "prompt": "1", "completion": "2", "weight": 1.0}
    SET.write(pl.DataFrame([row], schema=SET.columns), tmp_path / "set.parquet")
    command = [sys.executable, "-m", "mrt.training.launch", "mrt.training.sft", "--model", TOY_BASE]
    for option, value in (("set", "set.parquet"), ("state", "state"), ("history", "history.parquet"), ("out", "model")):
        command += [f"--{option}", tmp_path / value]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    import torch

    cause = "torch finds none" if torch.version.cuda else "this torch is built for CPUs"  # setup.sh may have either
    assert f"CUDA_VISIBLE_DEVICES=0, but torch cannot use them: {cause}" in done.stderr


def test_a_training_on_several_nodes_is_a_job(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(SystemExit, match=r"lower cluster\.training_nodes"):
        launch.main(["--nodes", "2", "mrt.training.sft"])
