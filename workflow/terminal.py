"""What a run says in the terminal: a line for each job that ended, and at its end the table and where the figures are.

The bars are those of the logger plugin `rich` (profiles/default/config.yaml); they stand below these lines, and only in
a terminal. Snakemake's whole text is in .snakemake/log/.
"""

import atexit
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent

from mrt.planning.dry_run import PLANS


class JobLines(logging.Handler):
    """Prints `12/117  sample_rollouts base toy_test  34 s` when a job has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.started: dict[int, tuple[str, float]] = {}
        self.ended = self.total = 0

    def emit(self, record: Any) -> None:
        event = getattr(record, "event", None)
        if event == LogEvent.RUN_INFO:
            self.total = record.stats.get("total", 0)
        elif event == LogEvent.JOB_INFO:
            name = " ".join([record.rule_name, *map(str, record.wildcards.values())])
            self.started[record.jobid] = (name, time.monotonic())
        elif event == LogEvent.JOB_FINISHED:
            self.ended += 1
            name, start = self.started.pop(record.job_id, (f"job {record.job_id}", time.monotonic()))
            width = len(str(self.total))
            print(f"{self.ended:{width}}/{self.total}  {name}  {time.monotonic() - start:.0f} s", file=sys.stderr)


def print_jobs(workflow: Any) -> None:
    """Print a line for each job that ends, where the plugin `rich` shows bars only; of a dry run, the plan."""
    if any(type(handler).__module__.startswith("snakemake_logger_plugin_rich") for handler in logger.handlers):
        logger.addHandler(JobLines())
    if PLANS not in os.environ:
        atexit.register(print_plan, workflow)  # whether it is a dry run is not known yet


def print_plan(workflow: Any) -> None:
    """At the end of a dry run, print how much its jobs will sample and train."""
    if workflow.executor_plugin.name != "dryrun" or workflow.dag is None:
        return
    jobs = [job for job in workflow.dag.jobs if workflow.dag.needrun(job)]  # `needrun_jobs` lacks those shown already
    described = [
        (job.rule.name, dict(job.wildcards_dict), fields_of(job), job.shellcmd or "") for job in jobs if job.output
    ]
    command = [sys.executable, "-m", "mrt.planning.cached"]
    done = subprocess.run(command, input=json.dumps(described), stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", file=sys.stderr)


def fields_of(job: Any) -> dict[str, str]:
    """A job's files, as a dry run prints them."""
    return {"input": ", ".join(map(str, job.input)), "output": ", ".join(map(str, job.output))}


def accuracies(summary: pl.DataFrame, labels: Mapping[str, str]) -> Table:
    """The table of pass@1 (`mrt.figures.pass1`) in at most 80 columns: a row for each dataset and model."""
    alone = pl.col("difference_over") == "problems"  # a training has a single run
    single = summary.filter(alone).height and " over problems; of these training runs, not of others (†)"
    caption = f"95 % intervals{single or ''}; * where that of the difference excludes 0"
    table = Table("dataset", "model", box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    for heading in ("pass@1, %", "to parent", "tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in summary.filter(pl.col("difficulty") == "all").iter_rows(named=True):
        right, low, high, more = (
            100 * (row[name] or 0) for name in ("accuracy", "accuracy_low", "accuracy_high", "difference")
        )
        clear = row["difference"] is not None and not row["difference_low"] <= 0 <= row["difference_high"]
        marks = ("*" if clear else " ") + ("†" if row["difference_over"] == "problems" else "")
        table.add_row(
            row["dataset"],
            labels.get(row["model"], row["model"]),
            f"{right:.1f} [{low:.1f}, {high:.1f}]",
            "" if row["difference"] is None else f"{more:+.1f}{marks}",
            "" if row["tokens"] is None else f"{row['tokens']:,.0f}",
        )
    return table


def print_results(workflow: Any, results: str, labels: Mapping[str, str]) -> None:
    """Print pass@1 of every model, if this run was to make it, where all results are, and the report's command."""
    tables, figures = Path(results, "tables"), sorted(Path(results, "figures").glob("*.png"))
    summary = tables / "pass1.parquet"
    if not any(job.rule.name == "pass1" for job in workflow.dag.jobs) or not summary.is_file():
        return
    from mrt.figures.pass1 import readings  # only now: its imports take time

    Console(stderr=True, highlight=False, markup=False).print(accuracies(table := pl.read_parquet(summary), labels))
    configs = [quote(os.path.relpath(path)) for path in workflow.configfiles]
    options = f" --configfile {' '.join(configs)}" if configs != ["config.yaml"] else ""
    lines = [f"Tables: {tables}", *([f"Figures: {figures[0].parent} ({len(figures)})"] if figures else [])]
    lines += [f"Traces, to look at in a browser: {page}"] if (page := Path(results, "traces.html")).is_file() else []
    fewer = table.filter(pl.col("n") < pl.col("of"), difficulty="all").select("model", "dataset", "n", "of")
    remarks = [f"{labels.get(m, m)} on {d}: n = {n} of {of} problems" for m, d, n, of in fewer.iter_rows()]
    lines = [*remarks, *readings(table, labels), *lines]
    print(*lines, f"All on one page: snakemake --report report.html{options}", sep="\n", file=sys.stderr)
