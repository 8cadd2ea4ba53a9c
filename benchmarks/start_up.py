"""Engine start-up: what a job pays before its first token, in a process of its own and in a fork of the fork server.

    python -m benchmarks start_up

Each stage that samples or trains is a job, a process. Alone, it imports vLLM or TRL, builds its engine or trainer,
works, and tears down what it has imported. Forked (mrt/core/fork_server.py), it only builds and works. Both do the same
work here: one problem and one token of the toy base; a training run of one step. A dry run counts the jobs of the
laptop experiment.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

from benchmarks.record import ROOT, TOY_BASE, Goal, Record, Report, alone, markdown, middle
from mrt.core.artifacts import PROBLEMS, SET
from mrt.planning.dry_run import dry_run

TITLE = "Engine start-up"
ENGINE_RULES = ("sample_rollouts", "force_answers", "force_budget")
ANATOMY = f"""
import time
began = time.perf_counter()
from mrt.core import vllm_environment
vllm_environment.configure(cpu=True)
from vllm import LLM
imported = time.perf_counter()
from mrt.sampling.engine import Decoding, Engine, EngineSettings, Request
engine = Engine({str(TOY_BASE)!r}, EngineSettings(max_model_len=1024))
engine.llm
built = time.perf_counter()
engine.generate([Request("x", 1, 0, Decoding(max_tokens=1))])
print(imported - began, built - imported, time.perf_counter() - built, time.time())
"""


def stages(folder: Path) -> dict[str, list[object]]:
    """The commands: a stage that samples and one that trains."""
    problem = ("p", "Some of the numbers 1, 2, 3 add up to 5.", "5", None, 3.0, "toy", "train")
    pl.DataFrame([problem], schema=PROBLEMS.columns, orient="row").write_parquet(folder / "problems.parquet")
    example = ("p", 0, None, "a prompt ", "and an answer", 1.0)
    pl.DataFrame([example] * 4, schema=SET.columns, orient="row").write_parquet(folder / "set.parquet")
    recipe = '{"epochs": 1, "batch_size": 4, "micro_batch_size": 4, "bf16": false, "gradient_checkpointing": false}'
    return {
        "sampling": [
            *("mrt.sampling.rollouts", "--model", TOY_BASE, "--problems", folder / "problems.parquet"),
            *("--names", "base", "--names", "toy", "--engine.max_model_len", 1024, "--decoding.max_tokens", 1),
        ],
        "training": [
            *("mrt.training.sft", "--model", TOY_BASE, "--set", folder / "set.parquet", "--recipe", recipe),
            *("--history", folder / "history.parquet"),
        ],
    }


def jobs() -> dict[str, int]:
    """Jobs by rule of a whole run of the laptop experiment."""
    printed = dry_run([], [], "--forceall")
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", printed, re.MULTILINE)}


def measure(record: Record, quick: bool) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        commands, ways = stages(folder), {"alone": "off", "forked": str(os.getpid())}
        since = time.perf_counter()
        alone(
            "mrt.core.fork_server",
            *commands["sampling"],
            "--out",
            folder / "first.parquet",
            MRT_FORK_SERVER=str(os.getpid()),
        )
        record.add("forked, the first, with the import", "seconds", time.perf_counter() - since)
        for repeat in range(1 if quick else 2):
            for name, command in commands.items():
                for way, owner in ways.items():
                    own = folder / f"{name} {way} {repeat}"
                    places = ["--out", own] + (["--state", own.with_suffix(".state")] if name == "training" else [])
                    since = time.perf_counter()
                    alone("mrt.core.fork_server", *command, *places, MRT_FORK_SERVER=owner, OMP_NUM_THREADS="1")
                    record.add(f"{name}, {way}", "seconds", time.perf_counter() - since)
            if repeat:
                continue
            began = time.time()
            done = subprocess.run([sys.executable, "-c", ANATOMY], cwd=ROOT, capture_output=True, text=True, check=True)
            imported, built, drawn, left = map(float, done.stdout.splitlines()[-1].split())
            parts = {"importing vLLM": imported, "building the engine": built, "the first token": drawn}
            parts["leaving"] = time.time() - left
            parts["Python"] = left - began - imported - built - drawn
            for part, seconds in parts.items():
                record.add(part, "seconds", seconds)
    for rule, count in jobs().items():
        if rule in ENGINE_RULES or rule == "train":
            record.add(rule, "jobs", count)


def report(table: pl.DataFrame) -> Report:
    engines = sum(middle(table, rule, "jobs") for rule in ENGINE_RULES if table.filter(pl.col("case") == rule).height)
    trainers = middle(table, "train", "jobs")
    way = {f"{name}, {how}": middle(table, f"{name}, {how}", "seconds") for name in ("sampling", "training")
           for how in ("alone", "forked")}  # fmt: skip
    before = engines * way["sampling, alone"] + trainers * way["training, alone"]
    first = middle(table, "forked, the first, with the import", "seconds") - way["sampling, forked"]
    after = first + engines * way["sampling, forked"] + trainers * way["training, forked"]
    parts = ("Python", "importing vLLM", "building the engine", "the first token", "leaving")
    text = [
        "A job that samples one token, or trains one step, from start to end:",
        markdown(
            ("", "in a process of its own, seconds", "forked, seconds"),
            [(n, way[f"{n}, alone"], way[f"{n}, forked"]) for n in ("sampling", "training")],
        ),
        f"The laptop experiment starts an engine {engines:.0f} times and a trainer {trainers:.0f} times: {before:.0f} s"
        f" of start-up in processes of their own, {after:.0f} s forked, of which the one import takes {first:.0f} s."
        " Where the time of a sampling job in its own process goes:",
        markdown(("part", "seconds"), [(part, middle(table, part, "seconds")) for part in parts]),
        "On a GPU jobs are not forked, as CUDA does not survive a fork. There a stage is cut into fewer and longer"
        " shards (`cluster.shards`).",
    ]
    goals = [Goal("start-up of the laptop run: times less when forked", before / after, 2.0)]
    return Report(text, goals)
