"""The start of Snakemake here: the server that stages are forked from, and refusals of jobs that cannot run."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from mrt.config import lineage, roots
from mrt.config.schema import Config
from mrt.config.steps import short_trainings
from mrt.core import accelerator
from mrt.core.digest import local_folder
from mrt.core.hub import cached
from mrt.core.storage import read_provenance, write_text
from mrt.training.rl.recipe import RL
from workflow import running
from workflow.fingerprints import Fingerprints

Workflow = Any  # Snakemake's, which comes without types
PLACEHOLDER = re.compile(r"(?<![A-Za-z])YOURS(?![A-Za-z])")  # as in slurm/config.yaml
LONGEST_RUN = 90 * 24 * 3600  # seconds: records of older runs are removed


_runs: list[Callable[[], None]] = []  # what begins the run of the Snakefile that was read


def prepare(workflow: Workflow, experiment: Config, fingerprints: Fingerprints, config: dict[str, Any]) -> None:
    """Say what `begin` begins: a run of this experiment."""

    def run() -> None:
        running.begin(experiment.results)
        refuse_storage(workflow)
        if not is_local(workflow):
            os.environ["MRT_FORK_SERVER"] = "off"  # jobs inherit it: the server's process would outlive theirs
        refuse_foreign_settings(workflow)
        if workflow.executor_plugin.name == "slurm":
            running.mend_plugin(
                final_when_preempted=workflow.executor_settings.no_requeue,
                longest_pause=workflow.remote_execution_settings.seconds_between_status_checks,
            )
        hold_to_the_plan(workflow, fingerprints, config)
        refuse_what_does_not_fit(workflow, experiment)
        refuse_missing_packages(workflow, experiment)
        refuse_chat_templates(workflow, experiment)
        refuse_another_commit(experiment)
        start_early(workflow)

    _runs.append(run)


def begin() -> None:
    """Begin the run, for `onstart`: hold the results folder, keep to the plan, refuse what cannot run.

    A workflow that uses this one as a module calls it by `mrt.onstart()`; Snakemake calls no handler of a module.
    """
    for run in _runs:
        run()
    _runs.clear()


def tell_of_short_trainings(experiment: Config) -> None:
    """Warn of trainings that are still to be made and cannot have enough steps to teach anything."""
    for remark in short_trainings(experiment):
        name = remark.removeprefix("models.").partition(":")[0]
        if not (experiment.results / "models" / name).exists():
            logger.warning(remark)


def import_from_here() -> None:
    """Have jobs import the package beside this file, in whichever folder the workflow runs."""
    folders = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))


def fork_stages() -> None:
    """Have stages that import vLLM or TRL forked from one process that has them, for as long as this Snakemake runs.

    See mrt/core/fork_server.py; not if MRT_FORK_SERVER=off, nor in a cluster's job, which has one such stage or none.
    """
    if not running.is_job() and os.environ.get("MRT_FORK_SERVER") != "off":
        os.environ["MRT_FORK_SERVER"] = str(os.getpid())


def hold_to_the_plan(workflow: Workflow, fingerprints: Fingerprints, config: dict[str, Any]) -> None:
    """Record the code and the configuration that this run is planned with.

    A job stops if its code is edited meanwhile, and a job on a cluster, whose Snakemake would read the configuration
    again, takes it from here (`planned_config`). Else an edit that is undone later would leave results of the edited
    code, and no later plan would see it. The record is of this run alone, since others may begin meanwhile.
    """
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


def planned_config() -> dict[str, Any] | None:
    """The configuration that the run was planned with, if this Snakemake runs one of its jobs."""
    file = Path(os.environ.get("MRT_PLANNED_CONFIG", ""))
    if not running.is_job() or not file.is_file():
        return None
    config: dict[str, Any] = json.loads(file.read_text())
    return config


def is_local(workflow: Workflow) -> bool:
    """Whether jobs run on this machine."""
    return bool(workflow.executor_plugin.name == "local")


def start_early(workflow: Workflow) -> None:
    """Start the fork server now, if a planned job needs it: it imports vLLM and TRL while the first jobs run."""
    if not is_local(workflow):
        return
    ask_for_it = ("mrt.core.fork_server", "mrt.training.launch")
    shells = {job.rule.shellcmd or "" for job in workflow.dag.needrun_jobs()}
    if os.environ["MRT_FORK_SERVER"] == str(os.getpid()) and any(
        name in shell for name in ask_for_it for shell in shells
    ):
        subprocess.Popen(
            [sys.executable, "-m", "mrt.core.fork_server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def planned(workflow: Workflow, modules: str) -> list[Any]:
    """The planned jobs that run one of our modules whose names begin like this."""
    return [job for job in workflow.dag.needrun_jobs() if f" {modules}" in (job.rule.shellcmd or "")]


def planned_trainings(workflow: Workflow) -> list[Any]:
    """The planned jobs that train."""
    return planned(workflow, "mrt.training.launch")


def refuse_what_does_not_fit(workflow: Workflow, experiment: Config) -> None:
    """Raise WorkflowError if a training takes more GPUs than are here, or several nodes, which SLURM alone gives.

    Or if its recipe needs a GPU, and there is none.
    """
    if not is_local(workflow):
        return
    trainings = planned_trainings(workflow)
    nodes_of = {job.wildcards.model: job.resources.get("nodes", 1) for job in trainings}
    if several := [f"The training of {name} takes {nodes} nodes." for name, nodes in nodes_of.items() if nodes > 1]:
        raise WorkflowError(
            "\n".join(sorted(several))
            + "\nThis machine is one node: use SLURM (--profile slurm), leave out cluster.training_nodes, set"
            " cluster.gpus_per_node and cluster.training_gpus to what this machine has, or lower what a training holds"
            " (`mrt plan` tells)."
        )
    available = len(accelerator.cards())  # without GPUs a training that would take some runs on the CPU
    for job in trainings if not available else ():
        recipe = lineage.recipe(experiment, job.wildcards.model)
        if isinstance(recipe, RL) and (field := recipe.for_a_gpu()):
            raise WorkflowError(f"models.{job.wildcards.model}.rl.{field}: it needs a GPU, and this machine has none")
    most = max((int(str(job.params.launch).split()[3]) for job in trainings), default=0)  # not `gpu`, which is capped
    if available and most > available:
        raise WorkflowError(
            f"A training takes {most} GPUs, this machine has {available}. Set cluster.gpus_per_node and"
            " cluster.training_gpus to what it has, or use SLURM (--profile slurm)."
        )


def refuse_storage(workflow: Workflow) -> None:
    """Raise WorkflowError if a storage plugin is to move the outputs of our jobs, as Kubernetes needs it."""
    if any(file.is_storage for job in planned(workflow, "mrt.") for file in job.output):
        raise WorkflowError(
            "A storage plugin (--default-storage-provider) would move outputs alone. Caches, checkpoints and locks lie"
            " beside them, so all jobs must see one results folder: leave the plugin out. Where jobs share none, as in"
            " Kubernetes, run Snakemake as a single job that has all GPUs (docs/cluster.md)."
        )


def placeholders(values: Any, name: str = "") -> list[str]:
    """The settings in nested mappings and lists that are still placeholders, each as `name: value`."""
    if isinstance(values, Mapping) and values:
        items = [(f"{name}.{key}" if name else str(key), value) for key, value in values.items()]
    elif isinstance(values, list | tuple):
        items = [(name, value) for value in values]
    else:
        return [f"{name}: {values}"] if PLACEHOLDER.search(f"{name} {values}") else []
    return [left for item, value in items for left in placeholders(value, item)]


def refuse_placeholders(workflow: Workflow, config: Mapping[str, Any]) -> None:
    """Raise WorkflowError if the configuration, or the resources of jobs, still have placeholders.

    `refuse_foreign_settings` looks at the settings that a dry run does not know.
    """
    settings = workflow.resource_settings
    resources = {
        "default-resources": {name: given.raw for name, given in (settings.default_resources or {}).items()},
        "set-resources": {
            rule: {name: given.raw for name, given in of_rule.items()}
            for rule, of_rule in settings.overwrite_resources.items()
        },
    }
    names = [left for left in placeholders(config) if not re.search(r"\s", left.partition(": ")[2])]  # no texts
    refuse(names, "configuration")
    refuse(placeholders(resources), "profile (slurm/config.yaml) or command line")


def refuse(left: list[str], place: str) -> None:
    """Raise WorkflowError if placeholders were left in this place."""
    if left:
        raise WorkflowError(f"{place}: {'; '.join(left)} is a placeholder. Write what you have, or leave it out.")


def refuse_foreign_settings(workflow: Workflow) -> None:
    """Raise WorkflowError if the executor's settings have a placeholder, or partitions that are not this cluster's.

    Partitions of other clusters are not checked, and none where `sinfo` does not answer.
    """
    plugin, given = workflow.executor_plugin.name, workflow.executor_settings  # None: the plugin has no settings
    settings = {f"{plugin}-{name.replace('_', '-')}": value for name, value in (vars(given) if given else {}).items()}
    refuse(placeholders(settings), "profile (slurm/config.yaml) or command line")
    file = settings.get("slurm-partition-config") or os.environ.get("SNAKEMAKE_SLURM_PARTITIONS")
    named = yaml.safe_load(Path(file).read_text())["partitions"] if file and plugin == "slurm" else {}
    refuse(placeholders(named, "partitions"), str(file))
    if not named or not shutil.which("sinfo"):
        return
    elsewhere = ("slurm_cluster", "cluster", "clusters")
    wanted = [name for name, limits in named.items() if not set(limits or ()).intersection(elsewhere)]
    partitions = subprocess.run(
        ["sinfo", "--all", "--noheader", "--format=%R"], capture_output=True, text=True, check=False
    )
    known = sorted(set(partitions.stdout.split()))
    if known and (missing := [name for name in wanted if name not in known]):
        raise WorkflowError(
            f"{file}: this cluster has no partition {', '.join(missing)}; it has {', '.join(known)}. Write its"
            ' partitions there (docs/cluster.md); `sinfo -o "%P %l %G %c %m"` tells what they allow.'
        )


def refuse_missing_packages(workflow: Workflow, experiment: Config) -> None:
    """Raise WorkflowError if trainings need missing packages; with conda they have their own environment."""
    trainings = planned_trainings(workflow)
    if trainings and not workflow.deployment_settings.deployment_method:
        from mrt.training.one_card import check
        from mrt.training.stage import check_reporters  # only now: its imports take time

        where = "training."
        try:
            check_reporters(experiment.training.report_to)
            for name in dict.fromkeys(job.wildcards.model for job in trainings):
                where = f"models.{name}: "
                check(lineage.recipe(experiment, name))
        except ValueError as error:
            raise WorkflowError(f"{where}{error}") from None


def refuse_chat_templates(workflow: Workflow, experiment: Config) -> None:
    """Raise WorkflowError if the chat template of a local model cannot write the prompts of a planned job.

    Hub models that are not downloaded yet, and the toy's bases, are not checked.
    """
    if workflow.executor_plugin.name == "touch":
        return
    prompts = dict[tuple[Path, str], str]()
    for name in dict.fromkeys(job.wildcards.model for job in planned(workflow, "mrt.sampling.")):
        folder = roots.folder(experiment, name)
        if folder and not experiment.models[lineage.root(experiment, name)].toy:
            prompts.setdefault((folder, lineage.prompt_of(experiment, name).model_dump_json()), name)
    for (folder, _), name in prompts.items():
        from mrt.core.hub import tokenizer_of  # only now: transformers takes seconds

        try:
            lineage.prompt_of(experiment, name).chat(tokenizer_of(folder), "What is 1 + 1?")
        except ValueError as error:
            raise WorkflowError(f"models.{lineage.root(experiment, name)}: {error}") from None


def refuse_another_commit(experiment: Config) -> None:
    """Raise WorkflowError if the hub's cache has another commit of a model than its rollouts in the results are of.

    No rule sees that. It may happen to a model without a `revision`, or at a branch.
    """
    for name, model in experiment.models.items():
        given = roots.weights(experiment, name)
        folder = cached(given, model.revision) if given and not local_folder(given).is_dir() else None
        if not folder:
            continue
        for table in sorted(experiment.results.glob(f"rollouts/{name}/*.parquet")):
            provenance = read_provenance(table) or {}
            of, _, commit = provenance.get("weights", "").rpartition("@")
            revision = provenance.get("options", {}).get("revision")
            same = (of, revision) == (given, model.revision)  # else the rollouts are made again
            if same and commit not in (folder.name, str(model.revision)):
                raise WorkflowError(
                    f"models.{name}: {table} is of {given} at {commit}, and the hub's cache has it at {folder.name}."
                    f" Write `revision: {commit}` to go on with the one, or begin with the other in an empty"
                    " folder: `results`"
                )


def limit_gpus(workflow: Workflow) -> None:
    """Start no more jobs at once than this machine has GPUs for, unless `--resources gpu=` says how many.

    More would do no harm, as jobs claim their GPUs (mrt/core/accelerator.py), but would hold cores while they wait.
    Where there is SLURM, it counts.
    """
    cards = [] if shutil.which("sbatch") else accelerator.cards()
    if cards and "gpu" not in workflow.global_resources:
        workflow.global_resources["gpu"] = len(cards)
