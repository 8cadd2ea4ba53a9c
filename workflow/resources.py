"""The resources that jobs request on a cluster: GPUs, nodes, cores, memory, time."""

from collections.abc import Callable
from functools import cache
from typing import Any

from mrt.config import lineage, measuring, roots, sizing
from mrt.config.memory import host_bytes
from mrt.config.pools import pooled
from mrt.config.schema import Config
from mrt.planning.bill import Bill
from mrt.training.sft import SFT
from workflow.paths import Wildcards

Number = Callable[[Wildcards], int]
TEXT, NUMBERS = 12.0, 1.5  # bytes a token: of text that is held three times; of the grades and counts of short answers


class JobResources:
    """The resources of each kind of job, of an experiment."""

    def __init__(self, experiment: Config) -> None:
        self.experiment = experiment
        self.bill = Bill(experiment)
        self.minutes = cache(self.bill.runtime)

    def nodes(self, w: Wildcards) -> int:
        return sizing.training_processes(self.experiment, w.model)[0]

    def training_gpus(self, w: Wildcards) -> int:
        """GPUs of a training on one node; of several, `gres` has them a node."""
        nodes, processes = sizing.training_processes(self.experiment, w.model)
        return processes if self.experiment.cluster.gpu and nodes == 1 else 0

    def training_gres(self, w: Wildcards) -> str:
        nodes, processes = sizing.training_processes(self.experiment, w.model)
        cluster = self.experiment.cluster
        kind = f"gpu:{cluster.slurm_type}" if cluster.slurm_type else "gpu"
        return f"{kind}:{processes}" if cluster.gpu and nodes > 1 else ""

    def gpu_model(self, gpus: Number) -> Callable[[Wildcards], str]:
        """The type of GPU to request, for jobs that need any."""
        return lambda w: self.experiment.cluster.slurm_type or "" if gpus(w) else ""

    def cores(self, gpus: Number) -> Callable[[Wildcards, int], int]:
        """CPU cores of a job: some with each GPU, else its threads, which Snakemake caps at the login node's cores."""
        per_gpu = self.experiment.cluster.cpus_per_gpu
        return lambda w, threads: max(threads, per_gpu * gpus(w))

    def training_cores(self, w: Wildcards, threads: int) -> int:
        """CPU cores of a training, on each node."""
        gpus = sizing.training_processes(self.experiment, w.model)[1] if self.experiment.cluster.gpu else 0
        return self.cores(lambda _: gpus)(w, threads)

    def training_memory(self, w: Wildcards, attempt: int) -> int:
        """Memory of a training's node in MB, more at each attempt; with GPUs as mrt/config/memory.py has it."""
        if not self.experiment.cluster.gpu:
            return round(attempt * 1024 * (4 + self.experiment.engine.cpu_cache_gib))
        config, model = self.experiment, self.experiment.models[w.model]
        size, recipe, tokens = roots.architecture(config, w.model), lineage.recipe(config, w.model), 0.0
        if isinstance(recipe, SFT):
            tokens = self.bill.a_pass(w.model, str(model.problems)).trained
        rank = recipe.lora.rank if recipe.lora else 0
        return round(attempt * host_bytes(size, *sizing.training_processes(config, w.model), tokens, rank) / 2**20)

    def time_limit(self, rule: str, shards: int = 1) -> Callable[[Wildcards, int], int]:
        """Minutes of a job, more at each attempt."""

        def runtime(wildcards: Wildcards, attempt: int) -> int:
            model, pool = wildcards.model, wildcards.get("pool")
            datasets = pooled(self.experiment, model, pool) if pool else [self.experiment.models[model].problems]
            minutes = attempt * self.minutes(rule, model, tuple(datasets), shards)
            return min(minutes, self.experiment.cluster.max_runtime or minutes)

        return runtime

    def reading(self, rule: str, each: float = TEXT, least: int = 2000) -> Callable[[Wildcards, int], int]:
        """Memory in MB, more at each attempt, of a job that reads the output of a sampling rule.

        `each`: bytes that it holds for each sampled token; `least`: MB that it takes besides.
        """

        def memory(w: Wildcards, attempt: int) -> int:
            config, dataset = self.experiment, w.get("dataset")
            learnt = w.model if dataset else lineage.teacher(config, w.model)
            generated = self.bill.work(rule, learnt, dataset or str(config.models[w.model].problems)).generated
            return round(attempt * (least + each * generated / 2**20))

        return memory

    def reading_for_set(self, w: Wildcards, attempt: int) -> int:
        """Memory in MB of a job that makes a training set."""
        reads = self.experiment.models[w.model].trained_by.reads
        rules = {"prover": "force_answers", "trees": "search_tree"}
        return self.reading(next((rules[kind] for kind in rules if kind in reads), "sample_rollouts"))(w, attempt)

    def sampling(self, rule: str) -> dict[str, Any]:
        """Resources of a job that samples: the GPUs of one engine, all on one node."""
        experiment = self.experiment

        def sampler(w: Wildcards) -> str:
            return measuring.sampler(experiment, rule, w.model, pooled(experiment, w.model, w.pool)[0])

        def gpus(w: Wildcards) -> int:
            return sizing.sampling_gpus(experiment, sampler(w))

        def memory(wildcards: Wildcards, attempt: int) -> int:
            """In MB, more at each attempt: libraries, cache, prompts, and the weights' file in float32."""
            loads = experiment.cluster.gpu
            size = roots.architecture(experiment, sampler(wildcards)).parameters if loads else 0
            return round(attempt * 1024 * (4 + experiment.engine.cpu_cache_gib + 4 * size / 2**30))

        return {
            "gpu": gpus,
            "gpu_model": self.gpu_model(gpus),
            "nodes": 1,
            "cpus_per_task": self.cores(gpus),
            "mem_mb": memory,
            "runtime": self.time_limit(rule, self.experiment.cluster.shards),
        }

    def gathering(self, rule: str) -> dict[str, Any]:
        """Resources of a job that reads completions of a rule, or grades them again, as that of a tree does."""
        least = round(1024 * (4 + self.experiment.engine.cpu_cache_gib))
        minutes = 240 if rule == "search_tree" else 60
        return {"mem_mb": self.reading(rule, least=least), "runtime": lambda w, attempt: minutes * attempt}

    def training(self, rule: str) -> dict[str, Any]:
        """Resources of a job that trains: the GPUs of a node, or of several nodes, on which `srun` then starts it."""
        return {
            "gpu": self.training_gpus,
            "gpu_model": self.gpu_model(self.training_gpus),
            "gres": self.training_gres,
            "nodes": self.nodes,
            "tasks": self.nodes,
            "tasks_per_gpu": 0,  # else SLURM wants that many tasks for each GPU, and the job waits for ever
            "mpi": lambda w: "srun" if self.nodes(w) > 1 else "",  # else the plugin starts it on one node
            "cpus_per_task": self.training_cores,
            "mem_mb": self.training_memory,
            "runtime": self.time_limit(rule),
        }
