"""Predict the cost of an experiment, from its configuration and its jobs, before any job is submitted.

    python -m mrt plan --configfile config/paper.yaml
    python -m mrt plan --configfile config/paper.yaml --calibration calibration.parquet

The jobs are those of a dry run of the workflow. For each job that needs an engine or a trainer, the plan counts tokens
generated, prefilled and trained on. Prefilled tokens are counted as with a prefix cache (each distinct prefix once) and
as without one (`unshared`: once a prompt). GPU-hours follow from these and a throughput. Lengths are those of earlier
results where there are any, else the configuration's `expected`.

The throughput is that of the data sheet (`mrt/config/hardware.py`) times the fraction that is usually reached. With
`--calibration` it is the fraction that `python -m mrt calibrate` measured in a minute on the real machine. On a CPU,
runs of this folder that have finished give seconds a token and lengths of texts (mrt/planning/rates.py). Jobs that have
run are compared with their plan: the last line of a stage's log says how long it took.
"""

import sys
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import polars as pl
from pydantic import Field
from pydantic_settings import CliImplicitFlag

from mrt.config import measuring, roots, sizing
from mrt.config.checks.sizes import memory_and_gpus
from mrt.config.hardware import GPUS, Card
from mrt.config.load import read_files
from mrt.config.memory import breakdown, engine_parts, training_parts
from mrt.config.schema import Config
from mrt.config.steps import short_trainings
from mrt.core.cli import Stage, run
from mrt.planning.bill import CORE, CPU, STAGES, Bill, Planned, Reached, Work, longest_path, planned, size_of
from mrt.planning.cached import Caches, in_all, shares_of
from mrt.planning.dry_run import config_files_named, counted, described, dry_run


class Plan(Stage):
    """Print the cost of an experiment, by stage and in all."""

    timed: ClassVar[bool] = False
    configfile: list[Path] = Field([], description="Configuration files, as Snakemake takes them; else config.yaml.")
    gpu: str | None = Field(None, description=f"GPU to plan for, of {', '.join(GPUS)}; by default the configuration's.")
    calibration: Path | None = Field(None, description="Output of `mrt calibrate` (Parquet).")
    remaining: CliImplicitFlag[bool] = Field(
        False, description="Count only the jobs that are left, and of these the part that is not cached."
    )
    targets: list[str] = Field([], description="Targets of the workflow; by default all.")

    @cached_property
    def config(self) -> Config:
        return read_files(self.configfile)

    def cli_cmd(self) -> None:
        if self.gpu and self.gpu not in GPUS:
            raise ValueError(f"--gpu {self.gpu}: not known; there are {', '.join(GPUS)}")
        config = self.config
        if self.gpu:
            card = dict.fromkeys(Card.model_fields) | {"gpu": self.gpu}
            config = config.model_copy(update={"cluster": config.cluster.model_copy(update=card)})
            if mistakes := [f"{path}: {what}" for path, what in memory_and_gpus(config)]:
                raise ValueError("\n".join(mistakes))
        reached = Reached()
        if self.calibration:
            reached = Reached(**pl.read_parquet(self.calibration).row(0, named=True))
            if reached.machine and reached.machine != (machine := config.cluster.gpu or CPU):
                raise ValueError(
                    f"{self.calibration} was measured on {reached.machine}, and the plan is for {machine}: give one"
                    " that was measured there, or none"
                )
        bill = Bill(config, reached, look=True)
        options = ["--printshellcmds"] if self.remaining else ["--forceall"]
        jobs = list(described(dry_run(self.configfile, self.targets, *options)))
        lacks = Caches(jobs).lacks() if self.remaining else {}
        plans = list(planned(bill, counted(jobs), shares_of(jobs, lacks)))
        print(report(bill, plans, len(jobs)))
        for line in in_all((job.rule, lacks[job.name]) for job in jobs if job.name in lacks):
            print(line)


def report(bill: Bill, plans: list[Planned], jobs: int) -> str:
    """The bill as text."""
    unit = "core" if bill.hardware is CORE else "GPU"
    head = ["stage", "jobs", "generated", "prefill", "unshared", "trained", f"{unit}-hours", "actual", "disk"]
    lines = []
    for rule, stage in STAGES.items():
        if of := [p for p in plans if p.rule == rule]:
            lines.append([stage, *figures(of)])
    lines.append(["in all", *figures(plans)])
    widths = [max(len(str(line[i])) for line in [head, *lines]) for i in range(len(head))]
    table = [
        "  ".join(
            str(cell).ljust(w) if i == 0 else str(cell).rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in [head, *lines]
    ]
    seconds, chain = longest_path(bill.config, plans)
    name = bill.config.cluster.gpu or "a CPU core"
    guessed = [f"guessed: {', '.join(sorted(bill.lengths.guessed))}"] if bill.lengths.guessed else []
    return "\n".join(
        [
            f"{jobs} jobs, of which {sum(p.jobs for p in plans)} sample or train, on {name}",
            f"{sum(p.jobs for p in plans if p.rule != 'train')} engine starts: for each training of RL; and for each"
            " model, stage and shard, on all evaluation sets together and on each training set",
            "",
            *table,
            "",
            f"longest path: {seconds / 3600:.1f} h: {' -> '.join(chain)}",
            "tokens; prefill: each distinct prefix once; unshared: prefill without a prefix cache",
            f"hours: {hours_from(bill, plans)}",
            *guessed,
            *short_trainings(bill.config),
            *memory_taken(bill, plans),
        ]
    )


def hours_from(bill: Bill, plans: list[Planned]) -> str:
    """Where the hours of a plan are from: finished runs of models of the same sizes, else rates of the machine."""
    sizes = {size_of(bill.config, plan.model) for plan in plans}
    rest = "" if sizes <= {size for _, size in bill.rates.sums} else bill.reached.in_words()
    return "; else ".join(filter(None, (bill.rates.in_words(sizes), rest)))


def memory_taken(bill: Bill, plans: list[Planned]) -> list[str]:
    """Peak memory of the planned jobs on each GPU, with one line for all models that need the same."""
    lines: dict[str, dict[str, None]] = {}
    config, reached = bill.config, bill.reached
    hardware = config.cluster.hardware
    for plan in plans if hardware else []:
        model = measuring.sampler(config, plan.rule, plan.model, plan.datasets[0])
        size, what = roots.architecture(config, model), "training" if plan.rule.startswith("train") else "sampling"
        if what == "training":
            parts = training_parts(size, sizing.training_size(config, plan.model), plan.gpus)
        else:
            assert hardware is not None
            parts = engine_parts(size, sizing.engine_size(config, model), hardware, plan.gpus)
        models = lines.setdefault(f"{breakdown(parts)} on each of {plan.gpus}, {what}", {})
        models[model] = None
    if not hardware:
        return []
    source = f"{reached.source}, SFT takes {reached.memory:.0%} of it" if reached.memory else "estimated"
    head = [
        "",
        f"memory at most ({source}), in GiB of the {hardware.memory:g} of a GPU;",
        "an engine's cache then takes the rest of its share:",
    ]
    return [*head, *(f"{line} {', '.join(models)}" for line, models in lines.items())]


def figures(plans: list[Planned]) -> list[str]:
    """The cells of a line of the bill."""
    work = sum((p.work for p in plans), Work())
    done = [p for p in plans if p.actual is not None]
    actual = (
        f"{sum(p.actual or 0 for p in done) / 3600:.2f} of {sum(p.gpu_seconds for p in done) / 3600:.2f}"
        if done
        else ""
    )
    return [
        str(sum(p.jobs for p in plans)),
        *(short(n) for n in (work.generated, work.read, work.read_unshared, work.trained)),
        f"{sum(p.gpu_seconds for p in plans) / 3600:.3g}",
        actual,
        short(sum(p.disk for p in plans)) + "B",
    ]


def short(number: float) -> str:
    """12300 as 12.3k."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(number) < 1000 or unit == "T":
            return f"{number:.3g}{unit}"
        number /= 1000
    raise AssertionError


if __name__ == "__main__":
    sys.argv[1:] = config_files_named(sys.argv[1:])
    run(Plan)
