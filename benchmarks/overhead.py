"""What the workflow adds to the work of its stages, from the logs of a finished run.

    MRT_FINISHED_RUN=/a/checkout python -m benchmarks overhead # by default this checkout

The largest run in the checkout is analysed from Snakemake's log and the stages' logs, which end with the seconds of
their work. Core-seconds (wall time times cores) are divided into
    stages      the work of the stages, without imports
    imports     of vLLM, torch, TRL and transformers: import times that Python logs in the stages, and waiting for them
                (all of a job's time outside its stage, if that is more than 5 s)
    processes   the rest of a running job: Python starts, parses options, ends
    snakemake   cores that are free while a job that could run waits, and before the first job and after the last
    idle        cores that are free because no job can run yet
Overhead is all but the stages.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import polars as pl

from benchmarks.record import ROOT, Goal, Record, Report, has, markdown, middle

TITLE = "What the workflow adds"
FINISHED = "finished experiment"
PARTS = ("stages", "imports", "processes", "snakemake", "idle")
WAITING = 5.0  # seconds
HEAVY = {"vllm", "torch", "trl", "transformers", "accelerate", "datasets", "peft", "tokenizers"}


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


def jobs_of(lines: Iterable[str]) -> list[Job]:
    """The finished jobs in Snakemake's output, by its dates (whole seconds since the epoch)."""
    started: dict[str, Job] = {}
    job, now = Job("", 0), 0.0
    for line in lines:
        if dated := re.fullmatch(r"\[(\w{3} \w{3} +\d+ [\d:]+ \d{4})\]", line):
            now = datetime.strptime(dated[1], "%a %b %d %H:%M:%S %Y").timestamp()
        elif named := re.match(r"(?:local)?rule (\w+):$", line):
            job = Job(named[1], now)
        elif ended := re.match(r"Finished jobid: (\d+) ", line):
            started[ended[1]].end = now
        elif field := re.match(r" {4}(input|output|log|threads|jobid): (.*)$", line):
            key, value = field.groups()
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


def take_apart(record: Record, folder: Path, jobs: Sequence[Job], wall: float, cores: int) -> None:
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
    for quantity, value in (("jobs", len(jobs)), ("wall seconds", wall), ("core-seconds", cores * wall)):
        record.add(FINISHED, quantity, value)
    for name, value in zip(PARTS, parts, strict=True):
        record.add(FINISHED, f"core-seconds, {name}", value)


def finished_run(folder: Path) -> tuple[list[Job], float, int] | None:
    """Jobs, wall seconds and cores of the largest run in a checkout's Snakemake logs; None if there is none."""
    runs = []
    for log in folder.glob(".snakemake/log/*.snakemake.log"):
        text = log.read_text(errors="replace")
        cores = re.search(r"^Provided cores: (\d+)", text, re.MULTILINE)
        start = datetime.strptime(log.name.partition(".")[0], "%Y-%m-%dT%H%M%S").timestamp()
        jobs = jobs_of(text.splitlines())
        if cores and jobs and "(100%) done" in text:
            for job in jobs:
                job.start, job.end = job.start - start, job.end - start
            runs.append((jobs, log.stat().st_mtime - start, int(cores[1])))
    return max(runs, key=lambda run: len(run[0]), default=None)


def measure(record: Record, quick: bool) -> None:
    folder = Path(os.environ.get("MRT_FINISHED_RUN", ROOT))
    if run := finished_run(folder):
        take_apart(record, folder, *run)
    elif not quick:
        raise SystemExit(f"no finished run has its log in {folder}/.snakemake/log: run one, or set MRT_FINISHED_RUN")


def report(table: pl.DataFrame) -> Report:
    """Where the core-seconds of the run went."""
    text = [
        "Every core-second of a run falls into one of five classes, by Snakemake's output and the stages' logs."
        " `stages`: the work of a stage. `imports`: the import of vLLM, torch, TRL and transformers. `processes`: the"
        " rest of a job, in which Python starts and ends. `snakemake`: a core is free though a job could run, or before"
        " the first job or after the last. `idle`: a core is free because no job can run yet."
    ]
    if not has(table, FINISHED):
        return Report([*text, "No finished run was measured."])
    total, jobs, wall = (middle(table, FINISHED, quantity) for quantity in ("core-seconds", "jobs", "wall seconds"))
    share = {part: middle(table, FINISHED, f"core-seconds, {part}") / total for part in PARTS}
    shares = [f"{value:.1%}" for value in share.values()]
    text.append(markdown(("run", "jobs", "seconds", *PARTS), [(FINISHED, f"{jobs:,.0f}", f"{wall:,.0f}", *shares)]))
    why = (
        f"{share['imports']:.1%} is the import of vLLM, for which all cores wait. {share['processes']:.1%} is Python"
        f" starting and ending, {share['processes'] * total / jobs:.2f} s in each of {jobs:.0f} jobs; most jobs take"
        " less than that for their work."
    )
    what = f"{FINISHED}: share of core-seconds outside the stages"
    return Report(text, [Goal(what, 1 - share["stages"], 0.15, at_most=True, why=why)])
