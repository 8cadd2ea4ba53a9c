"""Parse a dry run of Snakemake: which jobs it would start."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mrt.config.load import check_yaml

PLANS = "MRT_PLANS"  # environment variable: the dry run is one of `mrt plan` or `mrt why`, which count themselves


def dry_run(files: Sequence[Path], targets: Iterable[str] = (), *options: str) -> str:
    """The output of a dry run of the workflow. Raises ValueError, with the end of this output, if it fails.

    Configuration files are read here first: Snakemake tells of a missing or broken one without its line.
    """
    for file in files:
        check_yaml(file)
    command = [sys.executable, "-m", "snakemake", "-n", "--quiet", "host", "--nolock", "--workflow-profile", "none"]
    command += [*options, *(["--configfile", *map(str, files)] if files else []), "--", *targets]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {PLANS: "1"})
    if done.returncode:
        raise ValueError(f"the dry run of the workflow failed:\n{(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout + done.stderr


class Described(NamedTuple):
    """A job as a dry run describes it: its rule, its wildcards, its other fields as text, and its command, if asked."""

    rule: str
    wildcards: dict[str, str]
    fields: dict[str, str]
    command: str = ""

    @property
    def name(self) -> str:
        return " ".join([self.rule, *self.wildcards.values()])

    @property
    def outputs(self) -> list[str]:
        """Its files; a target such as `all` has none."""
        return self.fields["output"].split(", ") if "output" in self.fields else []


def described(printed: str) -> Iterator[Described]:
    """The jobs that a dry run printed, including the target rule."""
    for rule, block, command in re.findall(
        r"^rule (\w+):\n((?: +.*\n)*)(?:Shell command: (.*)\n)?", printed, re.MULTILINE
    ):
        fields = dict(re.findall(r"^ +(\w+): (.*)$", block, re.MULTILINE))
        yield Described(rule, dict(re.findall(r"(\w+)=([^,\s]+)", fields.get("wildcards", ""))), fields, command)


def key_of(job: Described) -> tuple[str, str, str]:
    """A job's rule, model, and dataset or pool of datasets."""
    of = job.wildcards
    return job.rule, of.get("model", ""), of.get("dataset") or of.get("pool", "")


def counted(jobs: Iterable[Described]) -> dict[tuple[str, str, str], int]:
    """Number of jobs per rule, model, and dataset or pool of datasets."""
    return dict(Counter(map(key_of, jobs)))


def config_files_named(arguments: Sequence[str]) -> list[str]:
    """A command line with Snakemake's `--configfile A B` expanded to `--configfile A --configfile B`."""
    named: list[str] = []
    after = False
    for argument in arguments:
        if argument.startswith("-"):
            after = argument == "--configfile"
            named += [] if after else [argument]
        else:
            named += ["--configfile", argument] if after else [argument]
    return named
