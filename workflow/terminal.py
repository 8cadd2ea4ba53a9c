"""What a run says in the terminal: a line for each job that ended, and at its end the table and where the figures are.

The bars are those of the logger plugin `rich` (profiles/default/config.yaml); they stand below these lines, and only in
a terminal. Snakemake's whole text is in .snakemake/log/.
"""

import logging
import os
import sys
import time
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent


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


def tell_jobs(workflow: Any) -> None:
    """Print a line for each job that ends, where the plugin `rich` shows bars only: not in a dry run, nor in a job."""
    plugins = workflow.output_settings.log_handler_settings or {}
    if "rich" in plugins and workflow.is_main_process and not workflow.dryrun:
        logger.addHandler(JobLines())


def tell_results(workflow: Any, results: str) -> None:
    """Print the table of pass@1, if there is one, where the figures are, and the command that makes the report."""
    table, figures = Path(results, "tables", "pass1.md"), sorted(Path(results, "figures").glob("*.png"))
    if not table.is_file():
        return
    console = Console(stderr=True)
    text = table.read_text()
    console.print(Markdown(text) if console.is_terminal else text, markup=False, highlight=False, soft_wrap=True)
    configs = [quote(os.path.relpath(path)) for path in workflow.configfiles]
    options = f" --configfile {' '.join(configs)}" if configs != ["config.yaml"] else ""
    lines = [f"Tables: {table.parent}", *([f"Figures: {figures[0].parent} ({len(figures)})"] if figures else [])]
    lines += [f"Traces, to look at in a browser: {page}"] if (page := Path(results, "traces.html")).is_file() else []
    print(*lines, f"All on one page: snakemake --report report.html{options}", sep="\n", file=sys.stderr)
