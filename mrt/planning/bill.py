"""Cost of jobs: their tokens, the seconds that these take on a machine, and the longest path through the jobs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from mrt.config import lineage, measuring, roots, sizing
from mrt.config.hardware import Architecture, Hardware, UnknownSizes
from mrt.config.pools import pooled
from mrt.config.schema import Config
from mrt.config.steps import most_steps
from mrt.planning.rates import TOOK, Rates
from mrt.problems.sources import read_file
from mrt.training.method import RLMethod
from mrt.training.rl.recipe import RL

CPU = "a CPU"
CORE = Hardware(8, 5e10, 1e10)  # one core of a machine without GPUs, roughly; calibrate
START = 90.0  # seconds until an engine or a trainer is ready on a GPU, weights in the page cache
ALLOCATED = 0.25  # fraction of the answers that are sampled with `training.allocation` (docs/performance.md)
CPU_START, EPISODE_TOKENS = 5.0, 20.0
STAGES = {  # rules that need an engine or a trainer, in the order of the paper
    "search_tree": "search trees",
    "sample_rollouts": "sample rollouts",
    "force_answers": "meta-prover",
    "force_budget": "budget forcing",
    "linearize": "linearized search",
    "train": "train (SFT)",
    "train_rl": "train (RL)",
}

MADE_BY = {"rollouts": "sample_rollouts", "prover": "force_answers", "trees": "search_tree"}  # of `lineage.sources`


class Reached(BaseModel):
    """Fractions of the data sheet that are reached: of its FLOPs; in decoding of the bottleneck, mostly bandwidth."""

    model_config = ConfigDict(extra="forbid")

    prefill: float = Field(0.5, gt=0, le=1)
    decode: float = Field(0.5, gt=0, le=1)
    training: float = Field(0.4, gt=0, le=1)
    memory: float | None = Field(None, gt=0, description="Peak memory of SFT over the planned one, where measured.")
    machine: str | None = Field(None, description="The GPU's name in `cluster.gpu`, or `a CPU`; None: estimated.")
    date: str | None = Field(None, description="When it was measured.")

    @classmethod
    def ideal(cls) -> "Reached":
        """All of the data sheet."""
        return cls(prefill=1, decode=1, training=1)

    @classmethod
    def at_most_all(cls, prefill: float, decode: float, training: float | None = None, **more: Any) -> "Reached":
        """The measured fractions; those above 1, more than the data sheet gives, are taken as 1.

        Training that was not measured is taken as 0.8 of prefill.
        """
        prefill = min(1.0, prefill)
        training = 0.8 * prefill if training is None else min(1.0, training)
        return cls(prefill=prefill, decode=min(1.0, decode), training=training, **more)

    def in_words(self) -> str:
        """The fractions, and whether they are estimated or measured."""
        shares = f"{self.prefill:.0%} in prefill, {self.decode:.0%} in decoding, {self.training:.0%} in training"
        return f"{self.source}: {shares} of what the data sheet promises"

    @property
    def source(self) -> str:
        """`estimated`, or where and when it was measured."""
        if self.machine is None:
            return "estimated"
        return f"measured on {self.machine}" + (f", {self.date}" if self.date else "")


@dataclass
class Work:
    """Work of jobs: tokens generated (`drawn`), prefilled (`read`) and trained on, and the longest context of these."""

    generated: float = 0.0
    read: float = 0.0
    read_unshared: float = 0.0  # without a prefix cache
    trained: float = 0.0
    context: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.generated + other.generated,
            self.read + other.read,
            self.read_unshared + other.read_unshared,
            self.trained + other.trained,
            max(self.context, other.context),
        )

    def __mul__(self, share: float) -> "Work":
        read, unshared = share * self.read, share * self.read_unshared
        return Work(share * self.generated, read, unshared, share * self.trained, self.context)


@dataclass
class Planned:
    """Jobs of a rule for one model and its datasets: work, GPUs per job, GPU-seconds in all, seconds of one, bytes."""

    rule: str
    model: str
    datasets: tuple[str, ...]
    jobs: int
    work: Work
    gpus: int
    gpu_seconds: float
    seconds: float
    disk: float
    actual: float | None = field(default=None)  # GPU-seconds of the jobs that have run


def seconds_of(
    work: Work, architecture: Architecture, hardware: Hardware, gpus: int, seqs: int, reached: Reached, passes: int = 4
) -> float:
    """Seconds that `gpus` GPUs take for the work.

    Decoding is bound by reading the weights and the cache of all sequences that fit. Prefill and training are bound by
    FLOPs: 2 per parameter and prefill token, 8 per parameter and trained token, plus attention to half of the context.
    These 8 are of 4 `passes`, as gradient checkpointing runs the forward pass twice; with adapters there are 3.
    """
    n, bandwidth, flops = architecture.parameters, gpus * hardware.bandwidth, gpus * hardware.flops
    each = flops_a_token(architecture, work.context)
    room = max(0.0, 0.9 * gpus * hardware.memory * 2**30 - 2 * n)
    batch = max(1.0, min(seqs, room / (architecture.cache_bytes * max(work.context, 1))))
    step = max((2 * n + batch * architecture.cache_bytes * work.context / 2) / bandwidth, batch * each / flops)
    decoding = work.generated / batch * step / reached.decode
    reading = work.read * each / (flops * reached.prefill)
    training = work.trained * passes * each / (flops * reached.training)
    return decoding + reading + training


def flops_a_token(architecture: Architecture, context: float) -> float:
    """FLOPs of a token's forward pass: 2 per parameter, and attention to half of the context."""
    return 2 * architecture.parameters + 2 * architecture.layers * architecture.heads * architecture.head_dim * context


def size_of(config: Config, model: str) -> int | None:
    """Parameters of a model; None if they are not known."""
    with suppress(UnknownSizes):
        return roots.architecture(config, model).parameters
    return None


class Lengths:
    """Numbers of problems and lengths of texts: as found in the results, with `look`, else as the config expects."""

    def __init__(self, config: Config, *, look: bool) -> None:
        self.config, self.expected, self.look = config, config.expected, look
        self.rates = Rates()
        self.guessed: set[str] = set()  # values that neither results nor the configuration give
        self.problems = cache(self.problems)  # type: ignore[method-assign]

    def existing(self, *path: str) -> Path | None:
        file = Path(self.config.results, *path)
        return file if self.look and file.is_file() else None

    def problems(self, name: str) -> int:
        """Problems of a dataset: of the table if it is made, whether or not to `look`: time limits depend on them."""
        file = Path(self.config.results, "problems", f"{name}.parquet")
        if file.is_file():
            return int(pl.scan_parquet(file).select(pl.len()).collect().item())
        dataset = self.config.problems[name]
        if known := self.expected.problems.get(name) or dataset.size:
            return known
        if dataset.file and dataset.file.is_file():
            return len(read_file(dataset.file))  # all, also those that rules will drop
        self.guessed.add(f"expected.problems.{name}: 100")
        return 100

    def rollout(self, model: str, dataset: str) -> float:
        """Mean tokens of a rollout: of existing rollouts, else as expected for the model or its nearest ancestor.

        Those of a further run of a training are those of the first one, where it has none.
        """
        first = lineage.first_run(self.config, model)
        table = f"{dataset}.parquet"
        if file := next(filter(None, (self.existing("rollouts", name, table) for name in (model, first))), None):
            mean = pl.scan_parquet(file).select(pl.col("tokens").mean()).collect().item()
            if mean is not None:  # imported completions may have no counts
                return float(mean)
        for name in lineage.ancestry(self.config, model):
            if (named := lineage.first_run(self.config, name)) in self.expected.tokens:
                return self.expected.tokens[named]
        most, size = measuring.sampling_on(self.config, dataset).decoding.max_tokens, size_of(self.config, model)
        measured = self.rates.length(f"rollout of {first}", size) or self.rates.length("rollout", size)
        if measured and measured <= most:
            return measured
        half = most / 2
        self.guessed.add(f"expected.tokens.{lineage.root(self.config, model)}: {half:.0f}")
        return half


class Bill:
    """Work and time of an experiment's jobs."""

    def __init__(self, config: Config, reached: Reached | None = None, *, look: bool = False) -> None:
        self.config, self.lengths, self.hardware = config, Lengths(config, look=look), config.cluster.hardware or CORE
        self.reached = reached or (Reached(training=0.8) if self.hardware is CORE else Reached())
        self.start = CPU_START if self.hardware is CORE else START
        on_cpu = look and self.hardware is CORE and self.reached.machine is None
        self.rates = Rates.left_by(config.results, self.start) if on_cpu else Rates()
        self.lengths.rates = self.rates

    def measured(self, length: str, model: str) -> float | None:
        """A length as finished runs of a model of this size had it."""
        return self.rates.length(length, size_of(self.config, model))

    def answer_tokens(self, model: str, most: int) -> float:
        """Tokens of a forced answer of at most `most`: as finished runs had them, or expected."""
        expected = self.config.expected
        if "answer_tokens" not in expected.model_fields_set and self.hardware is CORE:
            return min(self.measured("answer", model) or min(expected.answer_tokens, most / 2), most)
        return min(expected.answer_tokens, most)

    def episodes(self, model: str, length: float) -> float:
        """Episodes of a thought of `length` tokens: as finished runs had them, or expected."""
        expected = self.config.expected
        if "episodes" not in expected.model_fields_set and self.hardware is CORE:
            measured = self.measured("episodes", model)
            return min(expected.episodes, length / EPISODE_TOKENS) if measured is None else measured
        return expected.episodes

    def prompt_tokens(self, model: str) -> float:
        """Tokens of a problem with its chat prompt: as finished runs had them, or expected."""
        expected = self.config.expected
        measured = None if "prompt_tokens" in expected.model_fields_set else self.measured("prompt", model)
        return measured or expected.prompt_tokens

    def prefixes(self, model: str, mu: str, thoughts: float, length: float, settings: Any, forcing: float) -> Work:
        """Work of mu's answers at the prefixes of thoughts of mean `length`; `forcing` tokens end each prefix."""
        at = self.episodes(model, length) / settings.every + 1  # prefixes per thought
        prompt = self.prompt_tokens(model)
        read = length + at * forcing
        unshared = at * (prompt + length / 2 + forcing)
        generated = at * settings.answers * self.answer_tokens(mu, settings.decoding.max_tokens)
        prompts = thoughts * prompt
        return Work(thoughts * generated, thoughts * read + prompts, thoughts * unshared, 0, length / 2)

    def work(self, rule: str, model: str, dataset: str) -> Work:
        """Work of a rule's jobs for a model on a dataset (for a trained model, its training dataset)."""
        config, count, prompt = self.config, self.lengths.problems(dataset), self.prompt_tokens(model)
        if rule == "sample_rollouts":
            samples, length = measuring.samples(config, model, dataset), self.lengths.rollout(model, dataset)
            read, unshared = count * prompt, count * samples * prompt
            return Work(count * samples * length, read, unshared, 0, prompt + length)
        if rule == "force_answers":
            sampling = measuring.sampling_on(config, dataset)
            thoughts = count * min(
                sampling.prover.traces or sampling.samples, measuring.samples(config, model, dataset)
            )
            mu, length = measuring.mu(config, model, dataset), self.lengths.rollout(model, dataset)
            forced_work = self.prefixes(model, mu, thoughts, length, sampling.prover, 40)
            if sampling.prover.estimate == "likelihood":  # two tokens of an answer are read; few are sampled
                return replace(forced_work, generated=0)
            everywhere = measuring.asks_everywhere(config, model, dataset)
            share = ALLOCATED if measuring.filters(config, model, dataset) and not everywhere else 1.0
            return replace(forced_work, generated=forced_work.generated * share)
        if rule == "force_budget":
            forced, length = measuring.forcing(config), self.lengths.rollout(model, dataset)
            thoughts = count * min(forced.traces or config.evaluation.samples, config.evaluation.samples)
            extended = forced.most * forced.extension.max_tokens / 2
            answers = len(forced.answered()) * forced.answers * self.answer_tokens(model, forced.decoding.max_tokens)
            unshared = (forced.most + len(forced.answered())) * (length + extended / 2)
            return Work(thoughts * (extended + answers), thoughts * length, thoughts * unshared, 0, length + extended)
        if rule == "search_tree":
            tree = config.training.tree
            expanded = count * tree.breadth * tree.depth  # nodes of beams; a child of each of their rollouts, at most
            children = expanded * tree.rollouts if tree.child_rollouts else 0
            length = tree.decoding.max_tokens / 4  # of half of `max_tokens`, as rounds begin ever deeper, one half
            generated = (expanded * tree.rollouts + children * (tree.child_rollouts or 0)) * length
            return Work(generated, (expanded + children) * prompt, generated, 0, prompt + tree.decoding.max_tokens)
        if rule == "linearize":
            chains = config.evaluation.linearized
            assert chains is not None
            attempts = count * chains.samples * chains.attempts
            generated = attempts * chains.decoding.max_tokens / 2
            read = attempts * (prompt + chains.window)
            return Work(generated, read, read, 0, chains.window)
        return self.training_work(model, dataset)

    def training_work(self, model: str, dataset: str) -> Work:
        """Work of a model's training on a problem set."""
        recipe, a_pass = lineage.recipe(self.config, model), self.a_pass(model, dataset)
        if recipe.flops is None:
            return a_pass * float(recipe.epochs or 1)
        left = recipe.flops - self.flops_before(model)
        return a_pass * max(0.0, left / self.flops(a_pass, model, training=True))

    def flops_before(self, model: str) -> float:
        """FLOPs of a model's data and ancestors, which its budget of FLOPs counts too."""
        config, parent, dataset = self.config, str(self.config.models[model].parent), self.config.models[model].problems
        learnt, taken = lineage.teacher(config, model), 0.0
        for kind in lineage.sources(config, model):
            sampler = measuring.sampler(config, MADE_BY[kind], learnt, str(dataset))
            taken += self.flops(self.work(MADE_BY[kind], learnt, str(dataset)), sampler)
        step, trained = config.models[parent].step, lineage.training_of(config, parent)
        if trained not in lineage.trained(config):
            return taken
        if budget := lineage.recipe(config, trained).flops:
            return taken + budget
        work = self.training_work(trained, str(config.models[trained].problems))
        steps, _ = most_steps(config, trained)
        share = step / max(step, steps) if step and steps else 1.0
        return taken + self.flops_before(trained) + share * self.flops(work, trained, training=True)

    def flops(self, work: Work, model: str, *, training: bool = False) -> float:
        """FLOPs of work with a model, as `seconds_of` counts them."""
        passes = 3 + lineage.recipe(self.config, model).gradient_checkpointing if training else 0
        tokens = work.generated + work.read + passes * work.trained
        return tokens * flops_a_token(roots.architecture(self.config, model), work.context)

    def a_pass(self, model: str, dataset: str) -> Work:
        """Work of one pass of a model's training over a problem set."""
        config, count, prompt = self.config, self.lengths.problems(dataset), self.prompt_tokens(model)
        recipe = lineage.recipe(config, model)
        parents = self.lengths.rollout(lineage.teacher(config, model), dataset)
        if isinstance(recipe, RL):
            completions = count * recipe.num_generations
            rounds = 1 + (recipe.dynamic_sampling or 0)  # at most
            length = min(self.lengths.rollout(model, dataset), recipe.decoding.max_tokens)
            learnt = completions * (length + prompt) * (recipe.num_iterations or 1)
            read, unshared = rounds * count * prompt, rounds * completions * prompt
            made = Work(rounds * completions * length, read, unshared, learnt, length)
            # one query for each prompt, whatever the number of its completions
            variant = lineage.variant(config, model)
            queries = variant.queries(count, completions, config.expected.episodes, recipe.budgets)
            if not queries:
                return made
            if variant.asks == "continuations":  # of half a completion in the mean; prefixes are cached
                continued = queries * (recipe.answers or recipe.num_generations) * length / 2
                return made + Work(continued, 0, queries * (prompt + length / 2), 0, length)
            answers = (recipe.answers or recipe.num_generations) * self.answer_tokens(model, recipe.answer_tokens)
            if recipe.estimate == "likelihood":  # read, not sampled; the parent reads the thoughts too
                again = completions * (length + prompt) if recipe.mu == "parent" else 0
                return made + Work(0, queries * 40 + again, queries * (prompt + length / 2), 0, length)
            return made + Work(queries * answers, queries * 40, queries * (prompt + length / 2), 0, length)
        sets = 1 + sum(
            1 for _ in takewhile(lambda name: config.models[name].accumulate, lineage.ancestry(config, model))
        )
        kept = sets * config.training.samples * config.expected.kept
        return Work(0, 0, 0, count * kept * (prompt + parents), prompt + parents)

    def plan(self, rule: str, model: str, datasets: str | Sequence[str], jobs: int, share: float = 1.0) -> Planned:
        """The plan of the jobs that sample on datasets together, or that train on one; `share`: of it, not cached."""
        datasets = (datasets,) if isinstance(datasets, str) else tuple(datasets)
        config, works = self.config, [self.work(rule, model, dataset) * share for dataset in datasets]
        training, work = rule.startswith("train"), sum(works, Work())
        runs = measuring.sampler(config, rule, model, datasets[0])
        architecture = roots.architecture(config, runs)
        nodes, processes = (
            sizing.training_processes(config, model) if training else (1, sizing.sampling_gpus(config, runs) or 1)
        )
        gpus, sequences = nodes * processes, config.engine.max_num_seqs
        rate, counted = self.rates.seconds(rule, architecture.parameters), work.generated + work.trained
        if rate and counted:
            seconds = counted * rate
        else:  # contexts of datasets differ
            passes = 3 if training and lineage.recipe(config, model).lora else 4
            machine = self.hardware, gpus, sequences, self.reached, passes
            by_dataset = (seconds_of(each, architecture, *machine) for each in works)
            seconds = sum(by_dataset)
        start = self.start if share else 0.0
        longest = start + seconds / jobs
        text = 4.0 * (work.generated + work.read) * 0.4  # characters a token, compressed
        on_the_way = len(lineage.recipe(config, model).evaluate_steps or []) if training else 0
        checkpoint = lineage.weight_bytes(config, model) * share * architecture.parameters * (1 + on_the_way)
        disk = checkpoint if training else 2 * text  # a table, and `.cache`
        gpu_seconds = gpus * (seconds + jobs * start)
        return Planned(rule, model, datasets, jobs, work, gpus, gpu_seconds, longest, disk)

    def runtime(self, rule: str, model: str, datasets: str | Sequence[str], jobs: int = 1) -> int:
        """Time limit of a job in minutes: three times the plan, at least an hour; a day, if that cannot be planned."""
        try:
            return max(60, round(3 * self.plan(rule, model, datasets, jobs).seconds / 60))
        except UnknownSizes:
            if self.config.cluster.gpu:
                raise
            return 24 * 60


def planned(
    bill: Bill, jobs: Mapping[tuple[str, str, str], int], shares: Mapping[tuple[str, str, str], float] | None = None
) -> Iterator[Planned]:
    """The plan of each stage's jobs: all shards of a model and pool together, or a training.

    `shares`: the parts of their work that are not cached; by default all.
    """
    for (rule, model, pool), count in sorted(jobs.items()):
        if rule in STAGES:
            datasets = pooled(bill.config, model, pool) if pool else [str(bill.config.models[model].problems)]
            share = (shares or {}).get((rule, model, pool), 1.0)
            yield with_actual(bill, bill.plan(rule, model, datasets, count, share), pool)


def with_actual(bill: Bill, plan: Planned, pool: str) -> Planned:
    """The plan, with the GPU-seconds that its jobs took, from the last lines of their logs."""
    folder = Path("logs", bill.config.results.name, plan.rule)
    files = (folder / plan.model / pool).glob("*.log") if pool else [folder / f"{plan.model}.log"]
    took = [TOOK.search(file.read_text(errors="replace")) for file in files if file.is_file()]
    if seconds := [float(match[1]) for match in took if match]:
        plan.actual = plan.gpus * sum(seconds)
    return plan


def longest_path(config: Config, plans: list[Planned]) -> tuple[float, list[str]]:
    """(seconds, steps) of the longest chain of dependent jobs, if no job has to wait for a GPU."""
    of = {(p.rule, p.model, dataset): p for p in plans for dataset in p.datasets}

    def then(path: tuple[float, list[str]], *steps: tuple[str, str, str]) -> tuple[float, list[str]]:
        known = [of[step] for step in steps if step in of]
        return path[0] + sum(p.seconds for p in known), [*path[1], *(f"{STAGES[p.rule]} {p.model}" for p in known)]

    def ready(model: str) -> tuple[float, list[str]]:
        model = lineage.training_of(config, model)
        trained = config.models[model]
        if trained.parent is None or trained.problems is None:
            return 0.0, []
        parent, d = trained.parent, trained.problems
        learnt = lineage.teacher(config, model)
        train = "train_rl" if isinstance(trained.trained_by, RLMethod) else "train"
        before = [(MADE_BY[kind], parent if kind == "prover" else learnt, d) for kind in lineage.sources(config, model)]
        return then(ready(parent), *before, (train, model, d))

    chains = [
        then(ready(p.model), ("sample_rollouts", p.model, dataset), (after, p.model, dataset))
        for p in plans
        for dataset in p.datasets
        for after in ("force_answers", "force_budget")
    ]
    return max((*chains, *(ready(m) for m in config.models)), default=(0.0, []))
