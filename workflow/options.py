"""The options that rules hand to stages: those that decide a result, and those that do not.

A rule has the first in `params.settings`, which Snakemake compares; a change of it runs the job again. It has the
second in `params.execution`, made by functions of `threads`, since Snakemake does not compare such params.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

from mrt.config import lengths, lineage, measuring, roots, sizing
from mrt.config.pools import pooled
from mrt.config.schema import Config
from mrt.core.digest import canonical, digest_of_files, identity_of_model, options_of
from mrt.core.plugins import is_in_user_file
from mrt.episodes.segmentation import ways_of
from mrt.grading.task import poses, reference, task_of
from mrt.sampling.imports import Completions
from mrt.training.launch import ZERO_3
from mrt.training.method import SFTMethod, parts_of
from mrt.training.rl.recipe import RL
from workflow.fingerprints import Fingerprints
from workflow.paths import Paths, Wildcards
from workflow.resources import JobResources


def optional(*names: str) -> Callable[[Wildcards, Any], str]:
    """Command-line options that name those of a rule's inputs that are there."""
    return lambda w, input: " ".join(f"--{n} {quote(path)}" for n in names if (path := getattr(input, n)))


def files_of(name: str) -> Callable[[Wildcards, Any], str]:
    """The files of an input as one JSON: options that are lists, given one by one, lose a path's quotation marks."""
    return lambda w, input: options_of(**{name: list(getattr(input, name))})


def content_of(file: Path | None) -> str | None:
    """Content of a given file or folder, for params: there, unlike as an input, its date does not matter."""
    return digest_of_files([Path(file)]) if file else None


class Options:
    """Options of each stage, of an experiment."""

    def __init__(self, experiment: Config, paths: Paths, resources: JobResources) -> None:
        self.experiment, self.paths, self.resources = experiment, paths, resources
        self.words = canonical(measuring.parameterization(experiment), {"segmentation"})  # which mu does not answer by
        self.fingerprints = Fingerprints(Path(".snakemake", "fingerprints"))
        self.code = cache(self.code)  # type: ignore[method-assign]
        self.identity = cache(self.identity)  # type: ignore[method-assign]

    def code(self, stage: str, *plugins: str) -> str:
        """Fingerprint of the code that a stage runs: in params, where Snakemake sees it change."""
        name = stage if stage.endswith(".py") else f"mrt.{stage}"
        return self.fingerprints.of(name, *plugins, with_versions=self.experiment.track_versions)

    def judging(self, stage: str) -> Callable[[Wildcards], str]:
        """Fingerprint of a stage that judges answers, with the task of the problem set that it judges."""

        def code(w: Wildcards) -> str:
            dataset = getattr(w, "dataset", None) or self.trained_on(w)
            return self.code(stage, reference(self.experiment.problems[dataset].task))

        return code

    def trained_on(self, w: Wildcards) -> str:
        """The problem set that a model is trained on."""
        return str(self.experiment.models[w.model].problems)

    def identity(self, name: str) -> str | None:
        """Content of given weights; of those that this workflow makes, nothing: they are an input."""
        if self.paths.checkpoint(name):
            return None
        return identity_of_model(str(roots.weights(self.experiment, name)), self.experiment.models[name].revision)

    def options(self, **options: Any) -> str:
        """Options as one JSON."""
        return options_of(**options, **({} if self.experiment.track_versions else {"track_versions": "false"}))

    def of_weights(self, name: str) -> dict[str, str | None]:
        """The options that name a model's weights."""
        given = roots.weights(self.experiment, name)
        return {"model": self.paths.checkpoint(name) or given, "revision": self.experiment.models[name].revision}

    def dataset(self, w: Wildcards) -> str:
        """A dataset, whose task judges it later, and the further columns that the task reads."""
        dataset = self.experiment.problems[w.dataset]
        extra = list(task_of(dataset.task).columns) if dataset.task else []
        task = dataset.task if poses(dataset.task) else None
        return options_of(set=canonical(dataset, {"task"}), extra=extra or None, task=task)

    def dataset_code(self, w: Wildcards) -> str:
        """Fingerprint of the stage that makes a dataset, with the task, if it changes how a problem is posed."""
        task = self.experiment.problems[w.dataset].task
        return self.code("problems.build", *([reference(task)] if poses(task) else []))

    @property
    def way_to_cut(self) -> tuple[str, ...]:
        """The function of a user's file that cuts thoughts, for fingerprints; none if ours do."""
        return ways_of(measuring.parameterization(self.experiment))

    def cut(self) -> str:
        """How completions are cut, without what forces answers."""
        return options_of(parameterization=canonical(measuring.parameterization(self.experiment), {"template"}))

    # ---- sampling ----

    def sampler(self, kind: str, w: Wildcards) -> str:
        """The model that a stage samples from: mu for its answers (`prover`), else the one whose artifact it makes."""
        if kind != "prover":
            return str(w.model)
        dataset = getattr(w, "dataset", None) or pooled(self.experiment, w.model, w.pool)[0]
        return measuring.mu(self.experiment, w.model, dataset)

    def of_sampling(self, w: Wildcards, kind: str = "", **options: Any) -> str:
        """Options of a sampling stage."""
        names, weights = [w.model, w.dataset], self.of_weights(self.sampler(kind, w))
        return self.options(**weights, names=names, seed=self.experiment.seed, **options)

    def rollouts(self, w: Wildcards) -> str:
        decoding = measuring.sampling_on(self.experiment, w.dataset).decoding
        samples, evaluation = measuring.samples(self.experiment, w.model, w.dataset), self.experiment.evaluation
        cut: dict[str, Any] = {}
        if evaluation.episodes and w.dataset in evaluation.problems:
            cut = {"episodes": evaluation.episodes, "parameterization": self.words}
        prompt = lineage.prompt_of(self.experiment, w.model)
        return self.of_sampling(w, samples=samples, decoding=decoding, prompt=prompt, **cut)

    def completions(self, w: Wildcards) -> str:
        imported = self.experiment.models[w.model].rollouts
        assert imported
        return options_of(completions=Completions.model_validate(imported.model_dump(exclude={"file"})))

    def prover_stage(self, w: Wildcards) -> str:
        """The stage that gives J: by as many answers at all prefixes, by as many as sets need, or by likelihood."""
        if measuring.sampling_on(self.experiment, w.dataset).prover.estimate == "likelihood":
            return "sampling.likelihood"
        return "sampling.allocation" if measuring.filters(self.experiment, w.model, w.dataset) else "sampling.prover"

    def prover_golds(self, w: Wildcards) -> str | list[str]:
        """The gold answers, an input of stages that need them."""
        return self.paths.problems(w.dataset) if self.prover_stage(w) != "sampling.prover" else []

    def prover(self, w: Wildcards) -> str:
        stage, filters = self.prover_stage(w), measuring.filters(self.experiment, w.model, w.dataset)
        options: dict[str, Any] = {"filters": filters} if filters else {}
        if stage == "sampling.allocation":
            options["allocation"] = self.experiment.training.allocation
            options["everywhere"] = measuring.asks_everywhere(self.experiment, w.model, w.dataset)
        if stage != "sampling.prover":
            options["task"] = self.experiment.problems[w.dataset].task
        options["learnt_from"] = w.dataset not in self.experiment.evaluation.problems
        prover = measuring.sampling_on(self.experiment, w.dataset).prover
        return self.of_sampling(w, "prover", prover=prover, parameterization=self.words, **options)

    def budget_forcing(self, w: Wildcards) -> str:
        return self.of_sampling(w, forcing=measuring.forcing(self.experiment), template=self.experiment.template)

    def tree(self, w: Wildcards) -> str:
        search = self.experiment.training.tree
        options = {"parameterization": self.words, "prompt": lineage.prompt_of(self.experiment, w.model)}
        return self.of_sampling(w, search=search, task=self.experiment.problems[w.dataset].task, **options)

    def linearized(self, w: Wildcards) -> str:
        settings, prompt = self.experiment.evaluation.linearized, lineage.prompt_of(self.experiment, w.model)
        return self.of_sampling(w, linearized=settings, parameterization=self.words, prompt=prompt)

    def engine(self, name: str) -> Any:
        """All engine settings of a model; most change no distribution (docs/operations.md)."""
        gpus, longest = sizing.tensor_parallel_size(self.experiment, name), lengths.longest(self.experiment, name)
        sizes = {"tensor_parallel_size": gpus if gpus > 1 else None, "max_model_len": longest}
        return self.experiment.engine.model_copy(update=sizes)

    def engine_decides(self, kind: str = "") -> Callable[[Wildcards], list[Any]]:
        """The engine settings that change completions."""
        return lambda w: [lengths.longest(self.experiment, self.sampler(kind, w)), self.experiment.engine.dtype]

    def gathered(self, kind: str, w: Wildcards, files: dict[str, str]) -> str:
        """The engine, the completion cache and the files of a stage that gathers what all shards have sampled."""
        cache = {"folder": f"{self.paths.cache(kind, w.model)}/{w.dataset}", "gather": self.paths.shard_count}
        return options_of(engine=self.engine(self.sampler(kind, w)), cache=cache, **files)

    def sampled(self, kind: str) -> Callable[..., str]:
        """The engine, the requests, the completion caches and the shard of a job that samples a pool."""

        def execution(w: Wildcards, threads: int, input: Any) -> str:
            folder, shard = self.paths.cache(kind, w.model), f"{w.shard}/{self.paths.shard_count}"
            engine, requests = self.engine(self.sampler(kind, w)), list(input.requests)
            return options_of(engine=engine, folder=folder, shard=shard, requests=requests)

        return execution

    def grading(self, w: Wildcards) -> str:
        return options_of(task=self.experiment.problems[w.dataset].task)

    # ---- training ----

    def of_parent(self, w: Wildcards, **options: Any) -> str:
        """Options of a stage that reads the parent's weights or tokenizer."""
        return self.options(**self.of_weights(self.paths.parent(w)), **options)

    def set_code(self, w: Wildcards) -> str:
        """Fingerprint of a training set, with the parts of the method's file."""
        method = str(self.experiment.models[w.model].method)
        return self.code("training.sets", *parts_of(method), *(self.way_to_cut if is_in_user_file(method) else ()))

    def trainer_code(self, w: Wildcards) -> str:
        """Fingerprint of RL, with the parts of the method's file and the task that judges."""
        recipe: Any = lineage.recipe(self.experiment, w.model)
        parts = parts_of(str(self.experiment.models[w.model].method), recipe.variant)
        way = self.way_to_cut if lineage.variant(self.experiment, w.model).cuts else ()
        return self.code("training.rl", *parts, reference(self.experiment.problems[self.trained_on(w)].task), *way)

    def training_set(self, w: Wildcards) -> str:
        """What decides a model's training set: of the shared settings, those that its method reads."""
        model, method = self.experiment.models[w.model], self.experiment.models[w.model].trained_by
        assert isinstance(method, SFTMethod)
        closes = "prover" in method.reads or self.experiment.backtracking  # other thoughts are learnt whole
        of_user = is_in_user_file(str(model.method))  # it may cut thoughts, and write prompts
        words = canonical(measuring.parameterization(self.experiment)) if of_user else self.words
        options: dict[str, Any] = {"parameterization": words if closes or of_user else None}
        options |= {"method": model.method, "method_settings": model.method_settings}
        options |= {"seed": self.experiment.seed, "joins": model.accumulate}
        prompt = lineage.prompt_of(self.experiment, w.model if method.asks_new_prompt else self.paths.parent(w))
        if self.paths.reads_tokenizer(w):
            return self.of_parent(w, prompt=prompt, **options)
        return options_of(**options, prompt=prompt if of_user else None)

    def rl_prompts(self, w: Wildcards) -> str:
        recipe: Any = lineage.recipe(self.experiment, w.model)
        seed, prefixes = self.experiment.seed + recipe.seed, lineage.prefix_share(self.experiment, w.model)
        prompt = lineage.prompt_of(self.experiment, self.paths.parent(w))
        longest = lengths.longest(self.experiment, w.model)
        of_prefixes = recipe.model_dump(include=recipe.of_prompts - {"prefixes"}, exclude_none=True)
        forced = lineage.variant(self.experiment, w.model).forces_at_prompts
        words = self.words if forced or self.experiment.backtracking else None
        rows = self.experiment.problems[self.trained_on(w)].task is not None
        options = {"prompt": prompt, "max_model_len": longest, "parameterization": words, "rows": rows, **of_prefixes}
        return self.of_parent(w, prefixes=prefixes, forced=forced, seed=seed, **options)

    def recipe(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """A model's hyperparameters: those that affect the weights, and the others."""
        recipe = lineage.recipe(self.experiment, name)
        method = str(self.experiment.models[name].method)
        unread = recipe.unread(method) if isinstance(recipe, RL) else recipe.execution
        return canonical(recipe, unread), canonical(recipe, set(type(recipe).model_fields) - recipe.execution)

    def sft(self, w: Wildcards) -> str:
        return self.of_parent(w, recipe=self.recipe(w.model)[0])

    def rl(self, w: Wildcards) -> str:
        method, variant = self.experiment.models[w.model].method, lineage.variant(self.experiment, w.model)
        # only a variant that forces answers reads how, and only one that credits episodes cuts them
        parameterization = self.words if variant.forces else None
        if variant.cuts:
            without = set() if variant.forces else {"template"}
            parameterization = canonical(measuring.parameterization(self.experiment), without)
        options = {"parameterization": parameterization, "task": self.experiment.problems[self.trained_on(w)].task}
        return self.of_parent(w, method=method, recipe=self.recipe(w.model)[0], **options)

    def sharding(self, w: Wildcards) -> str:
        """DeepSpeed's configuration, if several processes train a model."""
        return ZERO_3.read_text() if sizing.training_processes(self.experiment, w.model) != (1, 1) else ""

    def trained_by(self, *files: str, with_engine: bool = False) -> Callable[..., str]:
        """Where a trainer keeps its state and its checkpoints, where it logs, RL's engine, and lists of files."""

        def execution(w: Wildcards, threads: int, input: Any = None) -> str:
            state, folder = f"{self.paths.results}/.state/{w.model}", f"{self.paths.results}/.cache/models/{w.model}"
            cached = canonical(self.experiment.training.keep) | {"folder": folder}
            report_to = self.experiment.training.report_to or None
            engine = self.engine(w.model) if with_engine else None
            recipe, lists = self.recipe(w.model)[1], {name: list(getattr(input, name)) for name in files}
            inputs: dict[str, Any] = {**lists, "spent": self.paths.spent(w) or None}
            return options_of(state=state, cache=cached, report_to=report_to, engine=engine, recipe=recipe, **inputs)

        return execution

    def launch(self, w: Wildcards, threads: int) -> str:
        """Options that start a training's processes.

        They change SFT within rounding, and by the examples that fill the last batches of an epoch, of which all
        processes have equally many. RL draws by process.
        """
        nodes, processes = sizing.training_processes(self.experiment, w.model)
        cpus = self.resources.training_cores(w, threads)
        return f"--nodes {nodes} --processes {processes} --cpus {cpus}"

    def cost(self, w: Wildcards) -> str:
        return options_of(sampled_by=self.others(w), step=self.experiment.models[w.model].step)

    def spent(self, w: Wildcards) -> str:
        """As `cost`, with the weights that a model is trained from, of which the sizes are known before."""
        weights = tuple(self.of_weights(self.paths.parent(w)).values())
        return options_of(sampled_by=self.others(w), weights=weights)

    def others(self, w: Wildcards) -> dict[str, Any] | None:
        """The models of another lineage, and perhaps of other sizes, that a model's training data came from."""
        experiment, learnt = self.experiment, lineage.teacher(self.experiment, w.model)
        mu = measuring.mu(experiment, learnt, str(experiment.models[self.paths.training_of(w)].problems))
        phases = {"rollouts": ("rollouts", learnt), "tree": ("trees", learnt), "prover": ("prover", mu)}
        others = {}
        for phase, (kind, name) in phases.items():
            root = lineage.root(experiment, name)
            weights = roots.weights(experiment, root)  # None: completions that were sampled elsewhere
            if self.paths.if_learnt(kind)(w) and root != lineage.root(experiment, w.model) and weights:
                others[phase] = weights, experiment.models[root].revision
        return others or None
