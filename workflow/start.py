"""What happens when Snakemake starts here: the server that stages are forked from, and what this machine cannot run."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from mrt.config import lineage, roots
from mrt.config.schema import Config
from mrt.core import accelerator
from mrt.core.storage import write_text
from workflow.fingerprints import Fingerprints

Workflow = Any  # Snakemake's, which comes without types
LONGEST_RUN = 90 * 24 * 3600  # seconds: records of older runs are removed


def fork_stages(workflow: Workflow) -> None:
    """Have stages that import vLLM or TRL forked from one process that has them, for as long as this Snakemake runs.

    See mrt/core/fork_server.py; not if MRT_FORK_SERVER=off, nor in a cluster's job, which has one such stage or none.
    """
    if os.environ.get("MRT_FORK_SERVER") != "off" and not workflow.subprocess_exec:
        os.environ["MRT_FORK_SERVER"] = "off" if workflow.remote_exec else str(os.getpid())


def hold_to_the_plan(workflow: Workflow, fingerprints: Fingerprints, config: dict[str, Any]) -> None:
    """Record the code and the configuration that this run is planned with.

    A job stops if its code is edited meanwhile, and a job on a cluster, whose Snakemake would read the configuration
    again, takes it from here (`planned_config`). Else an edit that is undone later would leave other results behind,
    and no later plan would see it. The record is of this run alone, since others may begin meanwhile.
    """
    if workflow.subprocess_exec or workflow.remote_exec:
        return
    for job in workflow.dag.needrun_jobs():
        _ = job.params  # has each stage's fingerprint found now, of the code that is there now
    record = Path(".snakemake", "planned", f"{os.uname().nodename}-{os.getpid()}.json")
    for old in record.parent.glob("*.json"):
        with suppress(FileNotFoundError):  # another run has removed it
            if time.time() - old.stat().st_mtime > LONGEST_RUN:
                old.unlink()
    fingerprints.write(record)
    settings = record.with_suffix(".config.json")
    write_text(json.dumps(config, default=str), settings)
    os.environ |= {"MRT_PLANNED": str(record.resolve()), "MRT_PLANNED_CONFIG": str(settings.resolve())}


def planned_config(workflow: Workflow) -> dict[str, Any] | None:
    """The configuration that the run was planned with, if this Snakemake is one of its jobs on a cluster."""
    file = Path(os.environ.get("MRT_PLANNED_CONFIG", ""))
    if not workflow.remote_exec or not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def remember_signatures() -> None:
    """Have Snakemake look at the signature of a rule's function once, not for each job.

    A plan of 5,000 jobs takes 0.84 of the time (the mean of six pairs of runs).
    """
    from snakemake import common, jobs, rules

    remembered = lru_cache(10_000)(common.get_function_params)
    for module in (common, jobs, rules):
        module.get_function_params = remembered


def start_early(workflow: Workflow) -> None:
    """Start the fork server now, if a planned job needs it: it imports vLLM and TRL while the first jobs run."""
    if not workflow.local_exec:
        return
    ask_for_it = ("mrt.core.fork_server", "mrt.training.launch")
    shells = {job.rule.shellcmd or "" for job in workflow.dag.needrun_jobs()}
    if os.environ["MRT_FORK_SERVER"] == str(os.getpid()) and any(
        name in shell for name in ask_for_it for shell in shells
    ):
        subprocess.Popen(
            [sys.executable, "-m", "mrt.core.fork_server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def planned_trainings(workflow: Workflow) -> list[Any]:
    """The planned jobs that train."""
    return [job for job in workflow.dag.needrun_jobs() if "mrt.training.launch" in (job.rule.shellcmd or "")]


def refuse_what_does_not_fit(workflow: Workflow) -> None:
    """Raise WorkflowError if a training takes more GPUs than are here, or several nodes, which SLURM alone gives."""
    if not workflow.local_exec or workflow.remote_exec or workflow.touch:
        return
    trainings = planned_trainings(workflow)
    asked = {job.wildcards.model: job.resources.get("nodes", 1) for job in trainings}
    if several := [f"The training of {name} takes {nodes} nodes." for name, nodes in asked.items() if nodes > 1]:
        raise WorkflowError(
            "\n".join(sorted(several))
            + "\nThis machine is one node: use SLURM (--profile slurm), leave out cluster.training_nodes, set"
            " cluster.gpus_per_node and cluster.training_gpus to what this machine has, or lower what a training holds"
            " (`mrt plan` tells)."
        )
    there = len(accelerator.cards())  # without GPUs a training that would take some runs on the CPU
    most = max((int(str(job.params.launch).split()[3]) for job in trainings), default=0)  # not `gpu`, which is capped
    if there and most > there:
        raise WorkflowError(
            f"A training takes {most} GPUs, this machine has {there}. Set cluster.gpus_per_node and"
            " cluster.training_gpus to what it has, or use SLURM (--profile slurm)."
        )


def refuse_missing_reporters(workflow: Workflow, names: Iterable[str]) -> None:
    """Raise WorkflowError if trainings log to what is not installed; with conda they have their own environment."""
    if planned_trainings(workflow) and not workflow.deployment_settings.deployment_method:
        from mrt.training.stage import check_reporters  # only now: its imports take time

        try:
            check_reporters(names)
        except ValueError as error:
            raise WorkflowError(f"training.{error}") from None


def refuse_chat_templates(workflow: Workflow, experiment: Config) -> None:
    """Raise WorkflowError if the chat template of a model at hand cannot write the prompts of a planned job.

    Of a hub model that is not downloaded yet, and of the toy's bases, nothing is asked.
    """
    if workflow.remote_exec or workflow.subprocess_exec or workflow.touch:
        return
    sampling = [job for job in workflow.dag.needrun_jobs() if " mrt.sampling." in (job.rule.shellcmd or "")]
    prompts = dict[tuple[Path, str], str]()
    for name in dict.fromkeys(job.wildcards.model for job in sampling):
        folder = roots.folder(experiment, name)
        if folder and not experiment.models[lineage.root(experiment, name)].toy:
            prompts.setdefault((folder, lineage.prompt_of(experiment, name).model_dump_json()), name)
    for (folder, _), name in prompts.items():
        from mrt.core.hub import tokenizer_of  # only now: transformers takes seconds

        try:
            lineage.prompt_of(experiment, name).chat(tokenizer_of(folder), "What is 1 + 1?")
        except ValueError as error:
            raise WorkflowError(f"models.{lineage.root(experiment, name)}: {error}") from None


def limit_gpus(workflow: Workflow) -> None:
    """Start no more jobs at once than this machine has GPUs for, unless `--resources gpu=` says how many.

    More would do no harm, as jobs claim their GPUs (mrt/core/accelerator.py), but would hold cores while they wait.
    """
    cards = accelerator.cards()
    if cards and "gpu" not in workflow.global_resources:
        workflow.global_resources["gpu"] = len(cards)
