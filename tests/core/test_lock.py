"""Locks beside artifacts: one holder at a time; a dead one, here or on another node, is known; old runs write none."""

import fcntl
import json
import os
import subprocess
import sys
import time

import pytest
from conftest import ROOT

from mrt.core import lock, storage

HOLD = """
import sys, time
from pathlib import Path
from mrt.core import lock
lock.AFTER = 0
with lock.held(Path(sys.argv[1])):
    print("holds", flush=True)
    sys.stdin.readline()
print("released", flush=True)
"""


@pytest.fixture
def process(tmp_path):
    """Starts processes that hold a lock until they read a line."""
    processes = []

    def start(**environment):
        command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, **pipes))
        return processes[-1]

    yield start
    for each in processes:
        each.kill()
        each.communicate()


def test_one_holds_and_the_other_waits_until_it_ends_or_is_killed(process):
    first = process()
    assert first.stdout.readline() == "holds\n"
    second = process()
    assert second.stdout.readline().startswith(f"waiting for {os.environ.get('USER') or os.getuid()} on ")
    first.kill()
    assert second.stdout.readline() == "holds\n"
    third = process()
    assert f"process {second.pid}" in third.stdout.readline()
    second.communicate("\n")
    assert third.stdout.readline() == "holds\n"


def test_who_need_not_wait_is_told_who_holds_it(process, tmp_path):
    first = process()
    first.stdout.readline()
    with pytest.raises(lock.Locked, match=f"process {first.pid}"), lock.held(tmp_path / "lock", wait=False):
        pass


def test_a_holder_may_take_its_lock_again_and_leaves_it_free(tmp_path):
    with lock.held(tmp_path / "lock") as one, lock.held(tmp_path / "lock") as two:
        assert one == two
    assert lock.record_of(tmp_path / "lock")["released"]
    with lock.held(tmp_path / "lock", wait=False) as three:
        assert three != one


def on_another_node(file, silence, **record):
    """A lock whose holder on another node gave its last sign of life n seconds ago."""
    record = {"id": "1", "host": "another", "process": 1, "started": "1", "user": "ada", "job": None} | record
    file.write_text(json.dumps(record))
    os.utime(file, (time.time() - silence, time.time() - silence))


SQUEUE = """#!/bin/sh
case "$*" in
*--jobs=7*) echo RUNNING ;;
*--jobs=8*) ;;
*--jobs=9*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
*) echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("silence", "job", "alive"),
    [
        (0, None, True),
        (lock.SILENT / 2, None, True),
        (lock.SILENT * 2, None, False),
        (0, "9", True),  # SLURM may have lost a node on which it goes on
        (lock.SILENT * 2, "7", True),  # in the queue
        (lock.BEAT * 4, "8", False),
        (lock.BEAT * 4, "9", False),
        (lock.BEAT * 4, "10", True),  # SLURM does not answer
        (lock.SILENT * 2, "10", False),
    ],
)
def test_a_holder_on_another_node_lives_while_it_gives_signs_or_has_a_job(tmp_path, monkeypatch, silence, job, alive):
    """The kernel's lock says nothing here: file systems may have none between nodes."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "squeue").write_text(SQUEUE)
    (tmp_path / "bin" / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    on_another_node(tmp_path / "lock", silence, job=job)
    if alive:
        with pytest.raises(lock.Locked, match="ada on another"), lock.held(tmp_path / "lock", wait=False):
            pass
        assert lock.record_of(tmp_path / "lock")["id"] == "1"
    else:
        with lock.held(tmp_path / "lock", wait=False):
            assert lock.record_of(tmp_path / "lock")["host"] == os.uname().nodename


def test_without_locks_of_the_file_system_the_record_decides(process, tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(38, "Function not implemented")

    first = process()
    first.stdout.readline()
    monkeypatch.setattr(fcntl, "flock", unsupported)
    monkeypatch.setattr(lock, "SETTLE", 0.01)
    with pytest.raises(lock.Locked, match=f"process {first.pid}"), lock.held(tmp_path / "lock", wait=False):
        pass
    first.kill()
    first.wait()
    with lock.held(tmp_path / "lock", wait=False):
        pass


def test_signs_of_life_are_given_and_a_holder_that_was_given_up_ends(process, tmp_path, monkeypatch):
    file = tmp_path / "lock"
    monkeypatch.setattr(lock, "BEAT", 0.05)
    with lock.held(file):
        os.utime(file, (0, 0))
        time.sleep(1)
        assert file.stat().st_mtime > time.time() - 60
    hold = f"import sys; from mrt.core import lock; lock.BEAT = 0.05; sys.argv[1:] = [{str(file)!r}]; exec({HOLD!r})"
    late = subprocess.Popen([sys.executable, "-c", hold], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert late.stdout.readline() == b"holds\n"
    on_another_node(file, 0)
    assert late.wait(timeout=60) == -9
    out, _ = late.communicate()
    assert b"gave no sign of life" in out


def test_the_processes_of_a_training_hold_its_lock_together(process):
    together = {"MASTER_ADDR": "n1", "MASTER_PORT": "1", "WORLD_SIZE": "2"}
    second = process(RANK="1", **together)
    time.sleep(1)
    other = process(RANK="0", MASTER_ADDR="n2", MASTER_PORT="1", WORLD_SIZE="2")
    assert other.stdout.readline() == "holds\n"
    first = process(RANK="0", **together)
    assert first.stdout.readline().startswith("waiting for")
    other.communicate("\n")
    assert first.stdout.readline() == second.stdout.readline() == "holds\n"


def test_a_job_of_an_earlier_run_adds_to_caches_but_writes_no_output(tmp_path, monkeypatch):
    file, output, kept = tmp_path / ".running", tmp_path / "table", tmp_path / ".cache" / "table"
    with lock.held(file) as run:
        monkeypatch.setenv(lock.RUN, f"{run} {file}")
        storage.write_text("mine", output)
    storage.write_text("mine", output)  # its run has ended, none has started
    with lock.held(file):
        storage.write_text("kept", kept)
        with pytest.raises(lock.Superseded, match="a later run of Snakemake works on these results"):
            storage.write_text("stale", output)
        with pytest.raises(lock.Superseded), storage.atomic_folder(output):
            pass
    assert output.read_text() == "mine" and kept.read_text() == "kept"
    file.unlink()
    storage.write_text("new", output)
