"""The output of a run in the terminal: a line for each job that ended, and at its end the table and the files made.

The bars are those of the logger plugin `rich` (profiles/default/config.yaml); they are below these lines, and only in a
terminal. Snakemake's whole text is in .snakemake/log/.
"""

import atexit
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent

from mrt.planning.dry_run import PLANS, described, dry_run

WARNING = "warning: "  # begins a line of a log that people should see (mrt/training/stage.py)
KINDS = ("models", "sets", "tables", "figures")  # folders of results, by what people look for there


class JobLines(logging.Handler):
    """Prints `12/117  sample_rollouts base toy_test  34 s` when a job has ended, and the warnings of its log.

    `lines` says whether to print the line, which Snakemake's plain text makes needless.
    """

    def __init__(self, *, lines: bool) -> None:
        super().__init__()
        self.lines = lines
        self.started: dict[int, tuple[str, float, list[str]]] = {}
        self.ended = self.total = 0
        self.made: set[str] = set()  # outputs of the jobs that have started

    def emit(self, record: Any) -> None:
        event = getattr(record, "event", None)
        if event == LogEvent.RUN_INFO:
            self.total = record.stats.get("total", 0)
        elif event == LogEvent.JOB_INFO:
            name = " ".join([record.rule_name, *map(str, record.wildcards.values())])
            self.made.update(map(str, record.output or ()))
            self.started[record.jobid] = (name, time.monotonic(), [str(log) for log in record.log or ()])
        elif event == LogEvent.JOB_FINISHED:
            self.ended += 1
            name, start, logs = self.started.pop(record.job_id, (f"job {record.job_id}", time.monotonic(), []))
            width = len(str(self.total))
            line = f"{self.ended:{width}}/{self.total}  {name}  {time.monotonic() - start:.0f} s"
            for text in ([line] if self.lines else []) + warnings_of(name, logs):
                print(text, file=sys.stderr)


def warnings_of(name: str, logs: Iterable[str]) -> list[str]:
    """The warnings in the logs of a job, each once."""
    texts = [file.read_text(errors="replace") for file in map(Path, logs) if file.is_file()]
    lines = [line for text in texts for line in text.splitlines() if line.startswith(WARNING)]
    return [f"{name}: {line}" for line in dict.fromkeys(lines)]


def print_jobs(workflow: Any) -> JobLines:
    """Print a line for each job that ends, where a logger plugin shows bars in place of Snakemake's text.

    Snakemake's advice to share results between workflows, a line for each rule that can, is left out. A dry run ends
    with its plan.
    """
    plain = any(type(handler) is logging.StreamHandler for handler in logger.handlers)
    logger.addFilter(lambda record: "is eligible for caching between workflows" not in record.getMessage())
    logger.addHandler(shown := JobLines(lines=not plain))
    if PLANS not in os.environ:
        atexit.register(print_plan, workflow)  # whether it is a dry run is not known yet
    return shown


def print_plan(workflow: Any) -> None:
    """At the end of a dry run, print how much its jobs will sample and train."""
    if workflow.executor_plugin is None or workflow.executor_plugin.name != "dryrun" or workflow.dag is None:
        return
    jobs = [job for job in workflow.dag.jobs if workflow.dag.needrun(job)]  # `needrun_jobs` lacks those shown already
    jobs_described = [
        (job.rule.name, dict(job.wildcards_dict), fields_of(job), job.shellcmd or "") for job in jobs if job.output
    ]
    command = [sys.executable, "-m", "mrt.planning.cached"]
    done = subprocess.run(command, input=json.dumps(jobs_described), stdout=subprocess.PIPE, text=True)
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


def print_results(
    workflow: Any, results: str, labels: Mapping[str, str], made: Collection[str], targets: Collection[str] = ()
) -> None:
    """Print findings, the files of this run, its warnings, the other files that are out of date, and the next commands.

    Of pass@1, if this run was to make it, the table too. `labels` are those of all models; `made`
    are the files that this run made, `targets` its targets.
    """
    lines, rules = [], {job.rule.name for job in workflow.dag.jobs}
    summary, findings = (Path(results, "tables", f"{name}.parquet") for name in ("pass1", "findings"))
    if "pass1" in rules and summary.is_file():
        from mrt.figures.pass1 import readings  # only now: its imports take time

        Console(stderr=True, highlight=False, markup=False).print(accuracies(table := pl.read_parquet(summary), labels))
        fewer = table.filter(pl.col("n") < pl.col("of"), difficulty="all").select("model", "dataset", "n", "of")
        lines = [f"{labels.get(m, m)} on {d}: n = {n} of {of} problems" for m, d, n, of in fewer.iter_rows()]
        lines += readings(table, labels)
    if "findings" in rules and findings.is_file():
        from mrt.figures.findings import readings as findings_of

        lines += findings_of(pl.read_parquet(findings), labels)
    lines += remarks_of(results, labels)
    lines += [f"Made: {kind}" for kind in made_of_each_kind(sorted(made), results)]
    files = [os.path.relpath(path) for path in workflow.configfiles]
    files = files if files != ["config.yaml"] else []
    options = f" --configfile {' '.join(map(quote, files))}" if files else ""
    if {*targets} - {"all"} and (rest := rest_of(files)):
        old = [file.stem for file in rest if file.exists()]
        lines += [f"Out of date: {', '.join(old)}"] if old else []
        lines += [f"Not made yet: {more} of the figures and tables"] if (more := len(rest) - len(old)) else []
        lines.append(f"To make all of it: snakemake --cores {os.cpu_count()}{options} (`mrt why{options}` says why)")
    for page, what in (("index", "All on one page"), ("traces", "Traces")):
        if str(file := Path(results, f"{page}.html")) in made:
            lines.append(f"{what}, to look at in a browser: {file}")
    if any(suffix in file for file in made for suffix in (".png", ".html")):
        lines.append(f"With rules, code and run times: snakemake --report report.html{options}")
    if lines:
        print(*lines, sep="\n", file=sys.stderr)


def remarks_of(results: str, labels: Mapping[str, str]) -> list[str]:
    """Of each model, what tells that its training may have taught nothing."""
    from mrt.training.log import log_of, remarks  # only now: its imports take time

    histories = {name: Path(results, "models", f"{name}.history.parquet") for name in labels}
    by_model = {name: remarks(log_of(file)) for name, file in histories.items() if file.is_file()}
    return [f"warning: {labels[name]}: {remark}" for name, of_model in by_model.items() for remark in of_model]


def made_of_each_kind(files: Iterable[str], results: str) -> list[str]:
    """The files that people look at, by kind: models, sets, tables, figures, and where the others are."""
    names: dict[str, dict[str, None]] = {}
    others = 0
    for file in files:
        path = Path(os.path.relpath(file, results))
        kind = path.parts[0]
        if kind in KINDS and len(path.parts) == 2:
            names.setdefault(kind, {})[path.name.partition(".")[0] if kind != "models" else path.name] = None
        else:
            others += 1
    names["models"] = {name: None for name in names.get("models", {}) if not name.endswith(".parquet")}
    lines = [
        f"{len(of)} {kind.removesuffix('s') if len(of) == 1 else kind} in {Path(results, kind)}: {', '.join(of)}"
        for kind, of in names.items()
        if of
    ]
    return lines + ([f"{others} other file{'s' * (others > 1)} in {results}"] if others else [])


def rest_of(files: Sequence[str]) -> list[Path]:
    """The figures, tables and pages that a run of all would make, with these configurations: a dry run tells.

    Empty where it fails, or where the configuration was changed on the command line, which it would not know.
    """
    if {"--config", "-C"} & {*sys.argv}:
        return []
    try:
        jobs = described(dry_run([Path(file) for file in files]))
    except ValueError:
        return []
    outputs = [Path(file) for job in jobs for file in job.fields.get("output", "").split(", ")]
    return list({file.with_suffix(""): file for file in outputs if file.suffix in (".png", ".md", ".html")}.values())
