"""Why jobs would run again, and which of them would train or sample anything.

    mrt why                                        every job that `snakemake` would run
    mrt why regret --configfile config/gsm8k.yaml  those of a target

The jobs are those of a dry run of the workflow. To find changed code, the definitions that a stage reached when it last
ran, recorded in the metadata of its table (`mrt show FILE`), are compared with the current ones. The old value of a
changed setting comes from Snakemake's record.

Completions and checkpoints in the caches are neither sampled nor trained again (mrt/planning/cached.py). Inputs that
are not made yet may turn out as before: then a job is said to do so much at most.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from pydantic_settings import CliPositionalArg

from mrt.core.cli import Stage, run
from mrt.core.fingerprint import reached, versions
from mrt.core.storage import read_provenance
from mrt.planning.bill import STAGES
from mrt.planning.cached import TRAININGS, Caches, Lack
from mrt.planning.dry_run import config_files_named, described, dry_run

HEX = re.compile(r"[0-9a-f]{16}")
CHANGED = "Params have changed since last execution: "
BY_JOB = "Input files updated by another job: "
# Snakemake separates reasons by semicolons, which the settings that they name may contain too.
BETWEEN = re.compile(r"; (?=(?:Forced|Missing|Incomplete|Updated|Input|Code|Set|Params|Software|Rules|Pipe|Service) )")
NOTHING = "<nothing exclusive>"
REQUEST = "request"  # the rule of a model's sampling request on a dataset: it decides for the rules that sample


@dataclass
class Job:
    """A job that would run: its rule, wildcards, outputs, Snakemake's reason, and our explanation of it."""

    rule: str
    wildcards: str
    outputs: list[str]
    reason: str
    causes: list[str] = field(default_factory=list)  # its direct reasons
    behind: list[str] = field(default_factory=list)  # jobs that run again and that it depends on

    @property
    def name(self) -> str:
        return f"{self.rule} {self.wildcards}".strip()


def planned_jobs(printed: str) -> list[Job]:
    """The jobs that a dry run printed, without targets, which make nothing: `all`, and figures by their numbers."""
    return [
        Job(job.rule, " ".join(job.wildcards.values()), job.outputs, job.fields.get("reason", ""))
        for job in described(printed)
        if job.outputs
    ]


def explain(job: Job, made_by: dict[str, Job]) -> None:
    """Fill in a job's causes."""
    for reason in BETWEEN.split(job.reason.strip()):
        if reason.startswith(CHANGED):
            before, _, now = reason.partition("before: ")[2].partition(" now: ")
            job.causes += changed_code(job) if HEX.search(now) else []
            job.causes += changed_settings(values(before), values(now))
            job.causes = job.causes or ["its code or a file that it reads is not what it was"]
        elif reason.startswith(BY_JOB):
            files = reason.removeprefix(BY_JOB).split(", ")
            job.behind += dict.fromkeys(made_by[file].name for file in files if file in made_by)
        elif reason:
            job.causes.append(reason[0].lower() + reason[1:])


def changed_code(job: Job) -> list[str]:
    """Definitions and library versions that have changed since a job's table was made."""
    requested = [Path(file) for file in job.outputs if job.rule == REQUEST and Path(file).is_file()]
    tables = [json.loads(file.read_text(encoding="utf-8"))["inputs"]["out"] for file in requested]
    for file in map(Path, [*job.outputs, *tables]):
        made = read_provenance(file) if file.suffix == ".parquet" and file.is_file() else None
        if made and "definitions" in made:
            plugins = [
                each for each in made.get("plugins", ()) if ".py:" not in each or Path(each.partition(":")[0]).is_file()
            ]
            then, now = made["definitions"], reached(made["stage"], *plugins).definitions
            changes = [f"{name} is changed" for name in sorted(now) if name in then and then[name] != now[name]]
            # of the others, one that has only moved to another module is the same
            ours, theirs = (
                {ends(n): n for n in sorted(of) if n not in others} for of, others in ((now, then), (then, now))
            )
            for name, whole in ours.items():
                if name not in theirs or then[theirs[name]] != now[whole]:
                    changes.append(f"{whole} is {'changed' if name in theirs else 'new'}")
            changes += [f"{whole} is gone" for name, whole in theirs.items() if name not in ours]
            libraries = versions(made["stage"], *plugins) if made["versions"] else {}
            return changes + [
                f"{name}: {made['versions'].get(name, 'not used')} -> {installed}"
                for name, installed in libraries.items()
                if installed != made["versions"].get(name)
            ]
    return []


def ends(name: str) -> str:
    """A definition's name without its module."""
    return name.rpartition(".")[2]


def values(listed: str) -> list[Any]:
    """The params that Snakemake lists, as `'a', 'b'` or `<nothing exclusive>`; JSON among them parsed."""
    parsed: list[Any] = []
    literals = re.findall(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s,'\"]+", listed.strip().removeprefix(NOTHING))
    for text in literals:
        one = ast.literal_eval(text) if text[0] in "'\"" else text
        try:
            parsed.append(json.loads(one))
        except ValueError:
            parsed.append(one)
    return [one for one in parsed if not (isinstance(one, str) and HEX.fullmatch(one))]


def changed_settings(before: list[Any], now: list[Any]) -> Iterator[str]:
    """Settings that differ; within groups, with their path."""
    groups = [[one for one in listed if isinstance(one, dict)] for listed in (before, now)]
    for old, new in zip(*groups, strict=False):
        yield from differences(old, new)
    plain = [[one for one in listed if not isinstance(one, dict)] for listed in (before, now)]
    if any(plain):
        yield f"a setting: {', '.join(map(str, plain[0])) or 'none'} -> {', '.join(map(str, plain[1])) or 'none'}"


def differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> Iterator[str]:
    for name in sorted({*old, *new}):
        one, other = old.get(name), new.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from differences(one, other, f"{path}{name}.")
        elif one != other:
            yield f"{path}{name}: {one} -> {other}"


class Why(Stage):
    """Print why jobs would run again, and which of them would train or sample."""

    timed: ClassVar[bool] = False
    configfile: list[Path] = Field([], description="Configuration files, as Snakemake takes them; else config.yaml.")
    targets: CliPositionalArg[list[str]] = Field([], description="Targets of the workflow; by default all.")

    def cli_cmd(self) -> None:
        printed = dry_run(self.configfile, self.targets, "--printshellcmds")
        jobs = planned_jobs(printed)
        made_by = {file: job for job in jobs for file in job.outputs}
        for job in jobs:
            explain(job, made_by)
        for rule in (REQUEST, *STAGES):
            self.add_direct_causes([job for job in jobs if job.rule == rule and job.behind and not job.causes])
        print(report(jobs, Caches(described(printed)).lacks()))

    def add_direct_causes(self, jobs: list[Job]) -> None:
        """Fill in the causes of jobs of one rule that depend on others: for these Snakemake looks no further.

        So its dry run is repeated for this rule alone, as if the other jobs had run and made their former outputs.
        """
        if not jobs:
            return
        try:
            printed = dry_run(self.configfile, [job.outputs[0] for job in jobs], "--allowed-rules", jobs[0].rule)
        except ValueError:  # some of their inputs are missing: a dry run for each
            for job in jobs if len(jobs) > 1 else []:
                self.add_direct_causes([job])
            return
        alone = {job.name: job for job in planned_jobs(printed)}
        for job in jobs:
            if planned := alone.get(job.name):
                explain(planned, {})
                job.causes = planned.causes


def report(jobs: list[Job], lacks: Mapping[str, Lack]) -> str:
    """Jobs by cause, then those that only depend on them; `lacks`: the lack of each job that samples or trains."""
    if not jobs:
        return "Nothing would run."
    verbs = {job.name: "train" if job.rule in TRAININGS else "sample" for job in jobs if job.name in lacks}
    does = {name: lacks[name].in_words(verb) for name, verb in verbs.items()}
    kinds = ("will train", "may train", "will sample", "may sample")
    counts = [f"{sum(what.startswith(kind) for what in does.values())} {kind}" for kind in kinds]
    lines = [f"{len(jobs)} jobs would run; of these {', '.join(counts)}.", ""]
    causes: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        causes.setdefault(tuple(job.causes), []).append(job)
    for why, those in causes.items():
        shown = [job for job in those if why or job.name in does]
        lines += [*why] if why else ["because of the jobs above"]
        lines += [f"    {job.name}{f'  ({does[job.name]})' if job.name in does else ''}" for job in shown]
        lines += [f"    and {len(those) - len(shown)} that measure or draw"] if len(shown) < len(those) else []
    return "\n".join(lines)


if __name__ == "__main__":
    sys.argv[1:] = config_files_named(sys.argv[1:])
    run(Why)
