"""The plan before the bill: what an experiment will cost, from its configuration and its jobs, before any is submitted.

    python -m mrt plan --configfile config/paper.yaml
    python -m mrt plan --configfile config/paper.yaml --calibration calibration.parquet

The jobs are those of a dry run of the workflow. Of each that needs an engine or a trainer it counts tokens drawn, read
(each distinct prefix once, as with a prefix cache, and once a prompt, as without) and trained on; from these and a
throughput, GPU-hours. Lengths are those of earlier results where there are any, else the configuration's `expected`.

The throughput is that of the data sheet (`mrt/config/hardware.py`) times what is usually reached of it, or, after
`python -m mrt calibrate` has run for a minute on the real machine, times what was measured there. Jobs that have run
are set against their plan: the last line of a stage's log says how long it took.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import polars as pl
from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import CliImplicitFlag

from mrt.core.cli import Stage, run
from mrt.config.hardware import GPUS, Architecture, Card, Hardware
from mrt.config.schema import RL_METHODS, Config, check_yaml, load, size_mistakes
from mrt.config.memory import engine_parts, told, training_parts
from mrt.training.rl import RL

CORE = Hardware(8, 5e10, 1e10)  # of a machine without GPUs: a core, roughly; calibrate
START = 90.0  # seconds until an engine or a trainer is ready on a GPU, weights in the page cache; 12 on a CPU
ALLOCATED = 0.25  # share of the answers that an allocation of them draws (docs/performance.md)
TOOK = re.compile(r"^took ([\d.]+) s", re.MULTILINE)  # mrt/core/cli.py
STAGES = {  # rules that need an engine or a trainer, in the order of the paper
    "search_tree": "search trees",
    "sample_rollouts": "sample rollouts",
    "force_answers": "meta-prover",
    "force_budget": "budget forcing",
    "linearize": "linearized search",
    "train": "train (SFT)",
    "train_rl": "train (RL)",
}


class Reached(BaseModel):
    """Shares of the data sheet that are reached: of its FLOPs, and in decoding of what bounds it, mostly bandwidth."""

    model_config = ConfigDict(extra="forbid")

    prefill: float = Field(0.5, gt=0, le=1)
    decode: float = Field(0.5, gt=0, le=1)
    training: float = Field(0.4, gt=0, le=1)

    @classmethod
    def ideal(cls) -> "Reached":
        """All of it."""
        return cls(prefill=1, decode=1, training=1)


@dataclass
class Work:
    """What jobs do: tokens, and the longest text that is in the cache when they are drawn."""

    drawn: float = 0.0
    read: float = 0.0
    read_unshared: float = 0.0  # without a prefix cache
    trained: float = 0.0
    context: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.drawn + other.drawn,
            self.read + other.read,
            self.read_unshared + other.read_unshared,
            self.trained + other.trained,
            max(self.context, other.context),
        )


@dataclass
class Planned:
    """Jobs of a rule for one model and problem set: the work, GPUs of each, their seconds in all, seconds of one."""

    rule: str
    model: str
    problems: str
    jobs: int
    work: Work
    gpus: int
    gpu_seconds: float
    seconds: float
    disk: float
    actual: float | None = field(default=None)  # GPU-seconds, of those that have run


def seconds_of(
    work: Work, architecture: Architecture, hardware: Hardware, gpus: int, seqs: int, reached: Reached
) -> float:
    """Seconds that so many GPUs take for the work.

    Decoding is bound by reading the weights and the cache of all sequences that fit, prefill and training by FLOPs: 2
    a parameter and token read, 8 trained on (gradient checkpointing reads twice), and attention to half of the context.
    """
    n, bandwidth, flops = architecture.parameters, gpus * hardware.bandwidth, gpus * hardware.flops
    attention = 2 * architecture.layers * architecture.heads * architecture.head_dim * work.context
    room = max(0.0, 0.9 * gpus * hardware.memory * 2**30 - 2 * n)
    batch = max(1.0, min(seqs, room / (architecture.cache_bytes * max(work.context, 1))))
    step = max(
        (2 * n + batch * architecture.cache_bytes * work.context / 2) / bandwidth, batch * (2 * n + attention) / flops
    )
    decoding = work.drawn / batch * step / reached.decode
    reading = work.read * (2 * n + attention) / (flops * reached.prefill)
    training = work.trained * 4 * (2 * n + attention) / (flops * reached.training)
    return decoding + reading + training


class Lengths:
    """How many problems and how long texts are: as the configuration expects, or, if one may `look`, as found."""

    def __init__(self, config: Config, *, look: bool) -> None:
        self.config, self.expected, self.look = config, config.expected, look
        self.guessed: set[str] = set()  # what neither results nor the configuration tell

    def found(self, *path: str) -> Path | None:
        file = Path(self.config.results, *path)
        return file if self.look and file.is_file() else None

    def problems(self, name: str) -> int:
        if file := self.found("problems", f"{name}.parquet"):
            return int(pl.scan_parquet(file).select(pl.len()).collect().item())
        problem_set = self.config.problems[name]
        count = problem_set.toy.count if problem_set.toy else problem_set.count
        per = problem_set.per_difficulty * len(problem_set.difficulties or ()) if problem_set.per_difficulty else None
        if known := self.expected.problems.get(name) or count or per:
            return known
        self.guessed.add(f"expected.problems.{name}: 100")
        return 100

    def rollout(self, model: str, problem_set: str) -> float:
        """Mean tokens of a rollout: of those that there are, else as expected of the nearest of its lineage."""
        if file := self.found("rollouts", model, f"{problem_set}.parquet"):
            return float(pl.scan_parquet(file).select(pl.col("tokens").mean()).collect().item())
        for name in self.config.lineage(model):
            if name in self.expected.tokens:
                return self.expected.tokens[name]
        half = self.config.draws(problem_set).decoding.max_tokens / 2
        self.guessed.add(f"expected.tokens.{list(self.config.lineage(model))[-1]}: {half:.0f}")
        return half


class Bill:
    """Work and time of an experiment's jobs."""

    def __init__(self, config: Config, reached: Reached | None = None, *, look: bool = False) -> None:
        self.config, self.lengths, self.reached = config, Lengths(config, look=look), reached or Reached()
        self.hardware = config.cluster.hardware or CORE
        self.start = 12.0 if self.hardware is CORE else START

    def prefixes(self, problem_set: str, thoughts: float, length: float, settings: Any, forcing: float) -> Work:
        """Forced answers at the prefixes of thoughts of a mean length, with `forcing` tokens that end each."""
        expected = self.config.expected
        at = expected.episodes / settings.every + 1  # prefixes a thought
        read = length + at * forcing
        unshared = at * (expected.prompt_tokens + length / 2 + forcing)
        drawn = at * settings.answers * min(expected.answer_tokens, settings.decoding.max_tokens)
        prompts = thoughts * expected.prompt_tokens
        return Work(thoughts * drawn, thoughts * read + prompts, thoughts * unshared, 0, length / 2)

    def work(self, rule: str, model: str, problem_set: str) -> Work:
        """What the jobs of a rule do for a model on a problem set (that which a trained model's parent solves)."""
        config, expected, count = self.config, self.config.expected, self.lengths.problems(problem_set)
        prompt = expected.prompt_tokens
        if rule == "sample_rollouts":
            samples, length = config.samples(model, problem_set), self.lengths.rollout(model, problem_set)
            read, unshared = count * prompt, count * samples * prompt
            return Work(count * samples * length, read, unshared, 0, prompt + length)
        if rule == "force_answers":
            draws = config.draws(problem_set)
            thoughts = count * min(draws.prover.traces or draws.samples, config.samples(model, problem_set))
            found = self.prefixes(problem_set, thoughts, self.lengths.rollout(model, problem_set), draws.prover, 40)
            share = ALLOCATED if config.filters(model, problem_set) else 1.0
            return replace(found, drawn=found.drawn * share)
        if rule == "force_budget":
            forced, length = config.forcing, self.lengths.rollout(model, problem_set)
            thoughts = count * min(forced.traces or config.evaluation.samples, config.evaluation.samples)
            extended = forced.most * forced.extension.max_tokens / 2
            answers = len(forced.answered()) * forced.answers * min(expected.answer_tokens, forced.decoding.max_tokens)
            unshared = (forced.most + len(forced.answered())) * (length + extended / 2)
            return Work(thoughts * (extended + answers), thoughts * length, thoughts * unshared, 0, length + extended)
        if rule == "search_tree":
            tree = config.training.tree
            drawn = count * tree.breadth * tree.depth * tree.rollouts * tree.decoding.max_tokens / 2
            return Work(drawn, count * tree.breadth * tree.depth * prompt, drawn, 0, prompt + tree.decoding.max_tokens)
        if rule == "linearize":
            asked = config.evaluation.linearized
            assert asked is not None
            attempts = count * asked.samples * asked.attempts
            drawn = attempts * asked.decoding.max_tokens / 2
            return Work(drawn, attempts * (prompt + asked.window), attempts * (prompt + asked.window), 0, asked.window)
        recipe, trained = config.recipe(model), config.models[model]
        parents = self.lengths.rollout(str(config.learns_from(model)), problem_set)
        if isinstance(recipe, RL):
            completions = count * recipe.epochs * recipe.group
            length = min(self.lengths.rollout(model, problem_set), recipe.decoding.max_tokens)
            made = Work(
                completions * length, count * prompt, completions * prompt, completions * (length + prompt), length
            )
            if trained.method != "mrt_rl":
                return made
            at = {"per_episode": completions * (1 + expected.episodes), "explicit": completions + count}
            answers = (recipe.answers or recipe.group) * min(expected.answer_tokens, recipe.answer_tokens)
            asked_at = at.get(recipe.variant, 0)
            return made + Work(asked_at * answers, asked_at * 40, asked_at * (prompt + length / 2), 0, length)
        kept = config.training.samples * expected.kept
        return Work(0, 0, 0, count * kept * recipe.epochs * (prompt + parents), prompt + parents)

    def plan(self, rule: str, model: str, problem_set: str, jobs: int) -> Planned:
        config, work = self.config, self.work(rule, model, problem_set)
        architecture = config.architecture(model)
        training = rule.startswith("train")
        nodes, processes = config.training_processes(model) if training else (1, config.sampling_gpus(model) or 1)
        gpus = nodes * processes
        seconds = seconds_of(work, architecture, self.hardware, gpus, config.engine.max_num_seqs, self.reached)
        longest = self.start + seconds / jobs
        text = 4.0 * (work.drawn + work.read) * 0.4  # characters a token, compressed
        disk = 4.0 * architecture.parameters if training else 2 * text  # a checkpoint in 32 bits; a table, and `.kept`
        return Planned(rule, model, problem_set, jobs, work, gpus, gpus * (seconds + jobs * self.start), longest, disk)

    def runtime(self, rule: str, model: str, problem_set: str, jobs: int = 1) -> int:
        """Minutes to ask for: three times the plan, an hour at least."""
        return max(60, round(3 * self.plan(rule, model, problem_set, jobs).seconds / 60))


def dry_run(files: Iterable[Path], targets: Iterable[str] = (), *options: str) -> str:
    """What a dry run of the workflow prints. Raises ValueError, with its end, if it fails."""
    command = [sys.executable, "-m", "snakemake", "-n", "--quiet", "host", "--nolock", "--workflow-profile", "none"]
    command += [*options, *(["--configfile", *map(str, files)] if files else []), "--", *targets]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"the dry run of the workflow failed:\n{(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout + done.stderr


class Described(NamedTuple):
    """A job as a dry run describes it: its rule, its wildcards, and its other fields as text."""

    rule: str
    wildcards: dict[str, str]
    told: dict[str, str]


def described(printed: str) -> Iterator[Described]:
    """The jobs that a dry run printed, the target rule among them."""
    for rule, block in re.findall(r"^rule (\w+):\n((?: +.*\n)*)", printed, re.MULTILINE):
        told = dict(re.findall(r"^ +(\w+): (.*)$", block, re.MULTILINE))
        yield Described(rule, dict(re.findall(r"(\w+)=([^,\s]+)", told.get("wildcards", ""))), told)


def counted(jobs: Iterable[Described]) -> dict[tuple[str, str, str], int]:
    """How many jobs there are of each (rule, model, problem set)."""
    return dict(Counter((job.rule, job.wildcards.get("model", ""), job.wildcards.get("dataset", "")) for job in jobs))


def planned(bill: Bill, jobs: dict[tuple[str, str, str], int]) -> Iterator[Planned]:
    """The plan of each stage's jobs; a stage's parts count as its jobs, and not the one that gathers them."""
    for (rule, model, dataset), count in sorted(jobs.items()):
        if rule in STAGES and not jobs.get((f"{rule}_part", model, dataset)):
            yield with_actual(bill, bill.plan(rule, model, dataset or str(bill.config.models[model].problems), count))
        elif rule.removesuffix("_part") in STAGES and rule.endswith("_part"):
            yield with_actual(bill, bill.plan(rule.removesuffix("_part"), model, dataset, count))


def with_actual(bill: Bill, plan: Planned) -> Planned:
    """The plan, with the GPU-seconds that these jobs took by their logs, the last line of which says so."""
    folder = Path("logs", bill.config.results.name)
    where = f"{plan.model}.log" if plan.rule.startswith("train") else f"{plan.model}/{plan.problems}.log"
    files = [folder / plan.rule / where, *(folder / f"{plan.rule}_part" / plan.model / plan.problems).glob("*.log")]
    took = [TOOK.search(file.read_text(errors="replace")) for file in files if file.is_file()]
    if seconds := [float(found[1]) for found in took if found]:
        plan.actual = plan.gpus * sum(seconds)
    return plan


def longest_path(config: Config, plans: list[Planned]) -> tuple[float, list[str]]:
    """(seconds, steps) of the longest chain of jobs that wait for each other, if every other job finds a free GPU."""
    of = {(p.rule, p.model, p.problems): p for p in plans}

    def then(path: tuple[float, list[str]], *steps: tuple[str, str, str]) -> tuple[float, list[str]]:
        there = [of[step] for step in steps if step in of]
        return path[0] + sum(p.seconds for p in there), [*path[1], *(f"{STAGES[p.rule]} {p.model}" for p in there)]

    def ready(model: str) -> tuple[float, list[str]]:
        trained = config.models[model]
        if trained.parent is None or trained.problems is None:
            return 0.0, []
        parent, d = trained.parent, trained.problems
        learnt = str(config.learns_from(model))
        train = "train_rl" if trained.method in RL_METHODS else "train"
        before = {
            "mrt": [("sample_rollouts", parent, d), ("force_answers", parent, d)],
            "warmstart": [("search_tree", parent, d)],
            "rise": [("search_tree", parent, d)],
            "rejection": [("search_tree", parent, d)],
        }.get(str(trained.method), [("sample_rollouts", learnt, d)])
        return then(ready(parent), *before, (train, model, d))

    chains = [
        then(ready(p.model), ("sample_rollouts", p.model, p.problems), (after, p.model, p.problems))
        for p in plans
        for after in ("force_answers", "force_budget")
    ]
    return max((*chains, *(ready(m) for m in config.models)), default=(0.0, []))


class Plan(Stage):
    """Print what an experiment will cost, by stage and in all."""

    timed: ClassVar[bool] = False
    configfile: list[Path] = Field([], description="Configuration files, as Snakemake takes them; else config.yaml.")
    gpu: str | None = Field(None, description=f"GPU to plan for, of {', '.join(GPUS)}; else the configuration's.")
    calibration: Path | None = Field(None, description="What `mrt calibrate` measured (Parquet).")
    remaining: CliImplicitFlag[bool] = Field(False, description="Count only the jobs that are still to run.")
    targets: list[str] = Field([], description="Targets of the workflow; else all.")

    @cached_property
    def config(self) -> Config:
        import yaml

        merged: dict[str, Any] = {}
        for file in self.configfile or [Path("config.yaml")]:
            check_yaml(file)
            merged = laid_over(merged, yaml.safe_load(file.read_text()))
        return load(merged, self.configfile)

    def cli_cmd(self) -> None:
        if self.gpu and self.gpu not in GPUS:
            raise ValueError(f"--gpu {self.gpu}: not known; there are {', '.join(GPUS)}")
        config = self.config
        if self.gpu:
            card = dict.fromkeys(Card.model_fields) | {"gpu": self.gpu}
            config = config.model_copy(update={"cluster": config.cluster.model_copy(update=card)})
            if mistakes := list(size_mistakes(config)):
                raise ValueError("\n".join(mistakes))
        reached = Reached(**pl.read_parquet(self.calibration).row(0, named=True)) if self.calibration else Reached()
        bill = Bill(config, reached, look=True)
        jobs = counted(described(dry_run(self.configfile, self.targets, *([] if self.remaining else ["--forceall"]))))
        plans = list(planned(bill, jobs))
        print(report(bill, plans, sum(jobs.values())))


def config_files_named(arguments: Sequence[str]) -> list[str]:
    """A command line with `--configfile` before each of its files, where Snakemake takes `--configfile A B`."""
    named: list[str] = []
    after = False
    for argument in arguments:
        if argument.startswith("-"):
            after = argument == "--configfile"
            named += [] if after else [argument]
        else:
            named += ["--configfile", argument] if after else [argument]
    return named


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two configurations merged as Snakemake merges them: groups key by key, all else replaced."""
    both = {
        k: laid_over(below[k], v) if isinstance(v, dict) and isinstance(below.get(k), dict) else v
        for k, v in above.items()
    }
    return {**below, **both}


def report(bill: Bill, plans: list[Planned], jobs: int) -> str:
    """The bill as text."""
    unit = "core" if bill.hardware is CORE else "GPU"
    head = ["stage", "jobs", "drawn", "read", "unshared", "trained", f"{unit}-hours", "actual", "disk"]
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
            "",
            *table,
            "",
            f"longest path: {seconds / 3600:.1f} h: {' -> '.join(chain)}",
            "tokens; read: each distinct prefix once, unshared: once a prompt, as without a prefix cache",
            *guessed,
            *memory_taken(bill.config, plans),
        ]
    )


def memory_taken(config: Config, plans: list[Planned]) -> list[str]:
    """What the planned jobs take of each of their GPUs at their peak, a line for all models that take the same."""
    lines: dict[str, dict[str, None]] = {}
    hardware = config.cluster.hardware
    for plan in plans if hardware else []:
        size, what = config.architecture(plan.model), "training" if plan.rule.startswith("train") else "sampling"
        if what == "training":
            parts = training_parts(size, config.training_size(plan.model), plan.gpus)
        else:
            assert hardware is not None
            parts = engine_parts(size, config.engine_size(plan.model), hardware, plan.gpus)
        models = lines.setdefault(f"{told(parts)} on each of {plan.gpus}, {what}", {})
        models[plan.model] = None
    if not hardware:
        return []
    head = [
        "",
        f"memory, in GiB of the {hardware.memory:g} of a GPU; an engine's cache then takes the rest of its share:",
    ]
    return [*head, *(f"{line} {', '.join(models)}" for line, models in lines.items())]


def figures(plans: list[Planned]) -> list[str]:
    """The figures of a line of the bill."""
    work = sum((p.work for p in plans), Work())
    done = [p for p in plans if p.actual is not None]
    actual = (
        f"{sum(p.actual or 0 for p in done) / 3600:.2f} of {sum(p.gpu_seconds for p in done) / 3600:.2f}"
        if done
        else ""
    )
    return [
        str(sum(p.jobs for p in plans)),
        *(short(n) for n in (work.drawn, work.read, work.read_unshared, work.trained)),
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
