"""What the workflow costs beside its stages' work: Snakemake, process starts, imports; and how that grows with jobs.

    python -m benchmarks overhead
    MRT_FINISHED_RUN=/a/checkout python -m benchmarks overhead # analyses the finished experiment there

The finished experiment of this checkout is analysed from Snakemake's log and the stages' logs, which end with the
seconds of their work; without one, the tests' smallest experiment is run. Core-seconds (wall time times cores) are
divided into
    stages      the work of the stages, without imports
    imports     of vLLM, torch, TRL and transformers: import times that Python logs in the stages, and waiting for the
                fork server (all of a job's time outside its stage, if that is more than 5 s)
    processes   the rest of a running job: Python starts, parses options, ends
    snakemake   cores that are free while a job that could run waits, and before the first job and after the last
    idle        cores that are free because no job can run yet
Overhead is all but the stages. Its growth is measured on jobs without work (datasets of a few problems) and on plans
(dry runs).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from benchmarks.record import ROOT, Goal, Record, Report, exponent, figures, has, markdown, middle

TITLE = "What the workflow adds"
TINY, FINISHED, EMPTY, PLAN = "smallest experiment", "finished experiment", "jobs without work", "plan"
PARTS = ("stages", "imports", "processes", "snakemake", "idle")
WAITING = 5.0  # seconds
HEAVY = {"vllm", "torch", "trl", "transformers", "accelerate", "datasets", "peft", "tokenizers"}
CORES = 2
# Jobs log their import times; Snakemake itself does not.
SNAKEMAKE = "import os; os.environ['PYTHONPROFILEIMPORTTIME'] = '1'; from snakemake.cli import main; main()"


@dataclass
class Job:
    """A job of a run; seconds since the run began."""

    rule: str
    start: float
    end: float = float("nan")
    threads: int = 1
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    log: str = ""


def jobs_of(lines: Iterable[tuple[float | None, str]]) -> list[Job]:
    """The finished jobs in Snakemake's output; lines without seconds take their time from its dates (whole seconds)."""
    started: dict[str, Job] = {}
    job, now = Job("", 0), 0.0
    for seconds, line in lines:
        if seconds is not None:
            now = seconds
        elif dated := re.fullmatch(r"\[(\w{3} \w{3} +\d+ [\d:]+ \d{4})\]", line):
            now = datetime.strptime(dated[1], "%a %b %d %H:%M:%S %Y").timestamp()
        if named := re.match(r"(?:local)?rule (\w+):$", line):
            job = Job(named[1], now)
        elif ended := re.match(r"Finished jobid: (\d+) ", line):
            started[ended[1]].end = now
        elif told := re.match(r" {4}(input|output|log|threads|jobid): (.*)$", line):
            key, value = told.groups()
            if key == "jobid":
                started[value] = job
            elif key == "threads":
                job.threads = int(value)
            elif key == "log":
                job.log = value.split(", ")[0]
            else:
                setattr(job, f"{key}s", tuple(value.split(", ")))
    # a target rule (`rule all`) has no log and starts no process
    return [each for each in started.values() if each.end == each.end and each.log]


def free_cores(jobs: Sequence[Job], wall: float, cores: int) -> tuple[float, float]:
    """Core-seconds that were free while a job could have run, and while none could."""
    made = {output: job.end for job in jobs for output in job.outputs}
    ready = [max((made.get(name, 0.0) for name in job.inputs), default=0.0) for job in jobs]
    times = sorted({0.0, wall, *ready, *(job.start for job in jobs), *(job.end for job in jobs)})
    last = max((job.end for job in jobs), default=0.0)
    late = idle = 0.0
    for begin, end in pairwise(times):
        free = max(0, cores - sum(job.threads for job in jobs if job.start <= begin < job.end))
        waiting = sum(job.threads for job, since in zip(jobs, ready, strict=True) if since <= begin < job.start)
        could = free if begin >= last else min(free, waiting)
        late += could * (end - begin)
        idle += (free - could) * (end - begin)
    return late, idle


def imported(log: str) -> float:
    """Seconds that a job's imports of heavy libraries took, if its log has them."""
    lines = re.findall(r"^import time: +\d+ \| +(\d+) \| (\w+)", log, re.MULTILINE)  # one blank: top-level imports
    return sum(int(microseconds) for microseconds, name in lines if name in HEAVY) / 1e6


def take_apart(
    record: Record, case: str, folder: Path, jobs: Sequence[Job], wall: float, cores: int, size: float = 0
) -> None:
    """Record where the core-seconds of a run went."""
    busy = worked = imports = waited = 0.0
    for job in jobs:
        log = (folder / job.log).read_text(errors="replace") if (folder / job.log).exists() else ""
        took = re.findall(r"^took ([\d.]+) s$", log, re.MULTILINE)
        ran = job.end - job.start
        stage = min(float(took[-1]), ran) if took else 0.0
        busy += job.threads * ran
        worked += job.threads * stage
        imports += job.threads * min(imported(log), stage)
        waited += job.threads * (ran - stage) if ran - stage > WAITING else 0.0
    late, idle = free_cores(jobs, wall, cores)
    parts = (worked - imports, imports + waited, busy - worked - waited, late, idle)
    record.add(case, "jobs", len(jobs), size)
    record.add(case, "wall seconds", wall, size)
    record.add(case, "core-seconds", cores * wall, size)
    for name, value in zip(PARTS, parts, strict=True):
        record.add(case, f"core-seconds, {name}", value, size)


def copy_of_project(folder: Path) -> None:
    """Copy what a run needs."""
    shutil.copy(ROOT / "Snakefile", folder)
    for name in ("workflow", "mrt", "envs", "config"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def snakemake(folder: Path, *arguments: object) -> tuple[float, list[tuple[float | None, str]]]:
    """Run Snakemake: its wall seconds, and its output lines with their seconds. Raises RuntimeError if it fails."""
    command = [sys.executable, "-c", SNAKEMAKE, *map(str, arguments)]
    since, lines = time.perf_counter(), []
    run = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.stdout
    for line in run.stdout:
        lines.append((time.perf_counter() - since, line.rstrip("\n")))
    if run.wait():
        said = "\n".join(line for _, line in lines if not line.startswith("import time:"))
        raise RuntimeError(f"snakemake {' '.join(map(str, arguments))[:300]}\n{said[-3000:]}")
    return time.perf_counter() - since, lines


def finished_run(folder: Path) -> tuple[list[Job], float, int] | None:
    """Jobs, wall seconds and cores of the largest run in a checkout's Snakemake logs; None if there is none."""
    runs = []
    for log in folder.glob(".snakemake/log/*.snakemake.log"):
        text = log.read_text(errors="replace")
        cores = re.search(r"^Provided cores: (\d+)", text, re.MULTILINE)
        begun = datetime.strptime(log.name.partition(".")[0], "%Y-%m-%dT%H%M%S").timestamp()
        jobs = jobs_of((None, line) for line in text.splitlines())
        if cores and jobs and "(100%) done" in text:
            for job in jobs:
                job.start, job.end = job.start - begun, job.end - begun
            runs.append((jobs, log.stat().st_mtime - begun, int(cores[1])))
    return max(runs, key=lambda run: len(run[0]), default=None)


def experiment(sets: int, measured: int = 0) -> str:
    """The tests' smallest experiment, with STaR, MRT (STaR) and `sets` more datasets, `measured` of them evaluated."""
    chosen = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    evaluation = chosen["evaluation"]
    evaluation["models"] = ["base", "star_1", "mrt_1"]
    chosen["models"] = {name: chosen["models"][name] for name in evaluation["models"]}
    evaluation["measures"] = ["accuracy", "maj", "regret", "episodes", "progress", "sft_log"]
    del evaluation["budget_forcing"], evaluation["direct"]
    for i in range(sets):
        toy = {"count": 5, "seed": 100 + i, "difficulties": [3 + i % 5]}
        chosen["problems"][f"set_{i}"] = {"toy": toy, "split": "test"}
    evaluation["problems"] += [f"set_{i}" for i in range(measured)]
    return str(yaml.safe_dump(chosen))


def measure(record: Record, quick: bool) -> None:
    """Measure jobs without work and plans at several sizes; and a finished experiment, or else the smallest one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_of_project(folder)
        measure_growth(record, folder, quick)
        there = Path(os.environ.get("MRT_FINISHED_RUN", ROOT))
        if run := finished_run(there):
            take_apart(record, FINISHED, there, *run)
        elif not quick:
            measure_run(record, folder)


def measure_growth(record: Record, folder: Path, quick: bool) -> None:
    """Jobs without work, run; and experiments, planned."""
    for jobs in (2, 4) if quick else (6, 24, 48):
        (folder / "config.yaml").write_text(experiment(jobs))
        targets = [f"results/tiny/problems/set_{i}.parquet" for i in range(jobs)]
        wall, lines = snakemake(folder, "--cores", CORES, *targets)
        take_apart(record, EMPTY, folder, jobs_of(lines), wall, CORES, jobs)
        shutil.rmtree(folder / "results")
    for measured in (0, 4, 8) if quick else (0, 32, 64, 128):  # fewer are lost in the constant cost
        (folder / "config.yaml").write_text(experiment(max(measured, 1), measured))
        # the first plan has one job: the constant cost of a plan
        target = [] if measured else ["results/tiny/problems/set_0.parquet"]
        wall, lines = snakemake(folder, "--dry-run", *target, "--quiet", "rules")
        totals = [re.fullmatch(r"total +(\d+)", line.strip()) for _, line in lines]
        record.add(PLAN, "seconds", wall, next(int(total[1]) for total in totals if total))


def measure_run(record: Record, folder: Path) -> None:
    """A whole experiment."""
    (folder / "config.yaml").write_text(experiment(0))
    wall, lines = snakemake(folder, "--cores", CORES)
    take_apart(record, TINY, folder, jobs_of(lines), wall, CORES)


def shares(table: pl.DataFrame, case: str) -> dict[str, float]:
    """Shares of the core-seconds by part."""
    total = middle(table, case, "core-seconds")
    return {part: middle(table, case, f"core-seconds, {part}") / total for part in PARTS}


def outside(table: pl.DataFrame, case: str, size: float | None = None) -> float:
    """Core-seconds outside the stages."""
    return sum(middle(table, case, f"core-seconds, {part}", size) for part in PARTS[1:])


def growth(table: pl.DataFrame, case: str) -> list[float]:
    """The sizes of a case."""
    return sorted(table.filter(pl.col("case") == case)["size"].unique().to_list())


def report(table: pl.DataFrame) -> Report:
    """Where core-seconds go, and how overhead grows."""
    runs = {case: shares(table, case) for case in (FINISHED, TINY) if has(table, case)}
    goals = []
    for case, share in runs.items():
        value, jobs = 1 - share["stages"], middle(table, case, "jobs")
        starting = middle(table, case, "core-seconds, processes") / jobs
        why = (
            f"{share['imports']:.1%} is the import of vLLM, for which all cores wait. {share['processes']:.1%} is"
            f" Python starting and ending, {starting:.2f} s in each of {jobs:.0f} jobs; most jobs take less than that"
            " for their work."
        )
        goals.append(Goal(f"{case}: share of core-seconds outside the stages", value, 0.15, at_most=True, why=why))
    jobs, planned = growth(table, EMPTY), growth(table, PLAN)
    added = [outside(table, EMPTY, size) for size in jobs]
    plans = [middle(table, PLAN, "seconds", size) for size in planned]
    processes = [middle(table, EMPTY, "core-seconds, processes", size) for size in jobs]
    each, first = np.polyfit(jobs, added, 1)
    each_planned, first_planned = np.polyfit(planned, plans, 1)
    beyond = [max(seconds - plans[0], 1e-3) for seconds in plans[1:]]
    for what, found in (
        ("Overhead, with its start", exponent(jobs, added)),
        ("Processes of jobs", exponent(jobs, processes)),
        ("Planning beyond that of one job", exponent(planned[1:], beyond)),
    ):
        goals.append(Goal(f"{what}: exponent of its growth with jobs", found, 1.15, at_most=True))
    text = [
        "Every core-second of a run falls into one of five classes, by Snakemake's output and the stages' logs."
        " `stages`: the work of a stage. `imports`: the import of vLLM, torch, TRL and transformers. `processes`: the"
        " rest of a job, in which Python starts and ends. `snakemake`: a core is free though a job could run, or before"
        " the first job or after the last. `idle`: a core is free because no job can run yet."
    ]
    rows = []
    for case, share in runs.items():
        counted = [f"{middle(table, case, name):,.0f}" for name in ("jobs", "wall seconds")]
        parts = [f"{share[part]:.1%}" for part in PARTS]
        rows.append((case, *counted, *parts))
    if runs:
        text.append(markdown(("run", "jobs", "seconds", *PARTS), rows))
    if FINISHED not in runs:
        text.append(
            "No finished experiment was found (`MRT_FINISHED_RUN=FOLDER`). The stages of the smallest one have little"
            " work, so that no experiment has a larger share of overhead."
        )
    text.append(
        f"A run of {figures(jobs[0])} to {figures(jobs[-1])} jobs without work, on {CORES} cores, spends"
        f" {figures(first)} core-seconds outside the stages, and {figures(each)} more for each job. A plan of"
        f" {figures(planned[0])} to {figures(planned[-1])} jobs takes {figures(first_planned)} seconds, and"
        f" {1000 * each_planned:.2g} milliseconds more for each job."
    )
    return Report(text, goals, {"growth": drawn(jobs, added, planned, plans)})


def drawn(jobs: Sequence[float], added: Sequence[float], planned: Sequence[float], plans: Sequence[float]) -> Any:
    """Overhead and planning over jobs."""
    from mrt.figures.style import panels

    figure, axes = panels(2)
    for axis, x, y, name in (
        (axes[0], jobs, added, "core-seconds outside the stages"),
        (axes[1], planned, plans, "seconds of planning"),
    ):
        axis.plot(x, y, "o-", color="#0072B2", markersize=3.5)
        axis.set_xlabel("jobs")
        axis.set_ylabel(name)
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    return figure
