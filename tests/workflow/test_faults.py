"""Kill anything at any moment, run it again: the artifacts are those of an undisturbed run. Full disks, bad inputs."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from conftest import ROOT, checkout, copy_of, snakemake

from workflow.sampling import SAMPLED

TIMES_KILLED = {
    "sample_rollouts": 2,
    "force_answers": 2,
    "train": 3,
    "train_rl": 2,
}  # each at a random moment; the others once
SECONDS = {
    **dict.fromkeys(TIMES_KILLED, 9.0),
    "train_rl": 25.0,
}  # within this number at first, then within the time that it took
OTHERS_SECONDS = 2.0


@pytest.fixture(scope="module")
def commands(finished):
    """One job of each rule as (its outputs, its command), from a dry run."""
    done = snakemake(finished, "-n", "--forceall", "--printshellcmds")
    found = {}
    for rule, block in re.findall(r"^(?:local)?rule (\w+):\n(.*?)\n\n", done.stdout + done.stderr, re.M | re.S):
        outputs = re.search(r"^ +output: (.*)$", block, re.M)
        if rule == "request":  # a line of text, written by the shell
            continue
        if outputs and rule not in found and on_the_training_set(rule, block):
            found[rule] = (outputs[1].split(", "), re.search(r"^Shell command: (.*)", block, re.M | re.S)[1])
    for sampled in SAMPLED.values():  # one of these samples, the other makes the table
        if sampled.samples in found:
            (mark, sample), (tables, gather) = ((found[rule][0], found[rule][1]) for rule in sampled[:2])
            found[sampled.samples] = tables, f"{sample} && {gather}"
            assert len(mark) == 1
    return found


def on_the_training_set(rule, block):
    """Whether a job may stand for its rule: of sampled tables, the same (model, dataset) for both rules."""
    rules = {name for sampled in SAMPLED.values() for name in sampled[:2]}
    only_evaluated = ("force_budget", "gather_forced")
    place = "toy_test" if rule == "gather_forced" else "_evaluation" if rule in only_evaluated else "toy_train"
    return rule not in rules or ("model=base" in block and f"={place}" in block)


def start(command, folder):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": path}, start_new_session=True
    )


def content(path):
    if path.is_dir():
        return {p.name: p.read_bytes() for p in path.iterdir() if not p.name.startswith(".")}
    return path.read_bytes()


def kill_and_run(rule, outputs, command, finished, folder, seed):
    """Kill a job at random moments, then let it end; returns how often it was killed before its end."""
    copy_of(finished, folder)
    rng, killed, wanted = random.Random(seed), 0, TIMES_KILLED.get(rule, 1)
    within = SECONDS.get(rule, OTHERS_SECONDS)
    before = {name: content(folder / name) for name in outputs}
    for name in outputs:
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    if not rule.startswith("gather_"):  # these sample nothing
        shutil.rmtree(folder / "results" / "tiny" / ".cache")
    log = folder / re.search(r"> (\S+) 2>&1", command)[1]
    log.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(8 * wanted):
        job, since = start(command, folder), time.monotonic()
        try:
            job.wait(rng.uniform(0.05, within))
            within = time.monotonic() - since  # it was sooner
            if not rule.startswith("gather_"):  # it would make the next sooner still
                shutil.rmtree(folder / "results" / "tiny" / ".cache", ignore_errors=True)
        except subprocess.TimeoutExpired:
            killed += 1
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        for name in outputs:  # whole or not there
            if (folder / name).is_file() and not rule.startswith("train"):
                assert content(folder / name) == before[name], (rule, name)
        if killed == wanted:
            break
    assert start(command, folder).wait() == 0, (rule, log.read_text()[-3000:])
    for name in outputs:
        if rule.startswith("train") and name.endswith(".history.parquet"):
            same_losses(finished / name, folder / name)
        else:
            assert content(folder / name) == before[name], (rule, name)
    assert not list((folder / "results" / "tiny" / ".state").rglob("checkpoint-*"))
    return killed


@pytest.mark.slow
def test_killed_jobs_end_like_undisturbed_ones(finished, commands, tmp_path):
    """Every kind of stage; the trained weights too are equal to the last bit."""
    with ThreadPoolExecutor(2) as pool:
        jobs = {
            rule: pool.submit(kill_and_run, rule, *job, finished, tmp_path / rule, seed)
            for seed, (rule, job) in enumerate(commands.items())
        }
        killed = {rule: job.result() for rule, job in jobs.items()}
    print(killed)
    assert len(killed) >= 22 and all(killed.values()) and sum(killed.values()) >= 20


def same_losses(one, other):
    columns = ["step", "loss", "learning_rate"]
    a, b = (pl.read_parquet(path).select(columns).drop_nulls().to_numpy() for path in (one, other))
    assert np.allclose(a, b, rtol=1e-4)


def stage(folder, *arguments, prefix=()):
    command = [*prefix, sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


def test_a_full_disk_leaves_no_half_a_file(finished, tmp_path):
    """On a tmpfs of 4 kB where one may be mounted, and in any case with a limit on the size of files."""
    rollouts = finished / "results" / "tiny" / "rollouts" / "base" / "toy_train.parquet"
    disk = tmp_path / "disk"
    disk.mkdir()
    inner = f'mount -t tmpfs -o size=4k none {disk} && exec "$@"'
    ways = {
        "limit": ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash"],
        "tmpfs": ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", inner, "bash"],
    }
    if subprocess.run([*ways["tmpfs"], "true"], capture_output=True).returncode:
        del ways["tmpfs"]
    for prefix in ways.values():
        done = stage(tmp_path, "mrt.episodes.cut", "--rollouts", rollouts, "--out", disk / "e.parquet", prefix=prefix)
        assert done.returncode == 1, done
        assert "mrt.episodes.cut: " in done.stderr and "e.parquet" in done.stderr and "Traceback" not in done.stderr
        assert not list(disk.iterdir())


def test_bad_inputs_stop_the_stage_that_reads_them(finished, tmp_path):
    results = finished / "results" / "tiny"
    whole = results / "rollouts" / "base" / "toy_train.parquet"
    bad = tmp_path / "bad.parquet"
    (tmp_path / "folder.parquet").mkdir()
    inputs = {
        "truncated": whole.read_bytes()[: whole.stat().st_size // 2],
        "empty": b"",
        "foreign": (results / "grades" / "base" / "toy_train.rollouts.parquet").read_bytes(),
    }
    for name, data in inputs.items():
        bad.write_bytes(data)
        done = stage(tmp_path, "mrt.episodes.cut", "--rollouts", bad, "--out", tmp_path / "e.parquet")
        assert done.returncode == 1 and str(bad) in done.stderr, (name, done)
        assert "remake it" in done.stderr and "Traceback" not in done.stderr
    unreadable = [tmp_path / "folder.parquet"]
    if os.geteuid():
        bad.chmod(0)
        unreadable.append(bad)
    for path in unreadable:
        done = stage(tmp_path, "mrt.episodes.cut", "--rollouts", path, "--out", tmp_path / "e.parquet")
        assert done.returncode == 1 and str(path) in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "e.parquet").exists()


@pytest.mark.slow
def test_two_snakemakes_at_once(tmp_path):
    folder = checkout(tmp_path)
    shutil.copy(ROOT / "tests" / "tiny.yaml", folder / "config.yaml")
    command = [
        str(Path(sys.executable).parent / "snakemake"),
        "--cores",
        "1",
        "results/tiny/rollouts/base/toy_test.parquet",
    ]
    first = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((folder / ".snakemake").glob("locks/*")) and first.poll() is None:
        time.sleep(0.05)
    second = snakemake(folder, "--cores", "1", check=False)
    assert (second.returncode == 1 and "Another Snakemake" in second.stderr) or "--unlock" in second.stderr
    assert first.wait() == 0
    assert (folder / "results" / "tiny" / "rollouts" / "base" / "toy_test.parquet").exists()
