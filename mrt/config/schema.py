"""`config.yaml` as a typed model. The rules read their slices from here; the stages never see a config file."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mrt.config.schema import memory
from mrt.sampling.allocation import Allocation, Kept
from mrt.sampling.linearized import Linearized
from mrt.sampling.tree import BeamSearch
from mrt.sampling.budget_forcing import BudgetForcing
from mrt.config.hardware import Architecture, Cluster, architecture_of
from mrt.training.cold_start import ColdStart
from mrt.sampling.engine import Decoding, EngineSettings
from mrt.sampling.imports import check_completions
from mrt.episodes.parameterization import Backtracking, OpenEnded, Parameterization, Segmentation, Template
from mrt.problems.build import ProblemSet, build
from mrt.sampling.prover import ProverSettings
from mrt.sampling.rollouts import Prompt
from mrt.training.sets import Rules
from mrt.training.log import check_log
from mrt.training.rl import RL
from mrt.training.sft import SFT

RL_METHODS = ("grpo", "length_penalty", "mrt_rl")
TREE_METHODS = ("warmstart", "rise", "rejection")
Method = Literal["star", "mrt", "grpo", "length_penalty", "mrt_rl", "cold_start", "warmstart", "rise", "rejection"]
PROMPT = 2048  # tokens: a bound of the problems' prompts, to size trainings with
READ_AT_ONCE = 50_000_000  # bytes: larger given files are checked by the first job, not with the config
Count = Annotated[int, Field(ge=1, le=10_000_000)]


Recipe = TypeVar("Recipe", SFT, RL)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Imported(Strict):
    """Completions that somebody sampled elsewhere."""

    file: Path = Field(
        description="JSONL, Parquet or CSV with columns problem_id, text, and perhaps model, tokens, finish."
    )
    model: str | None = Field(None, description="Keep the rows whose `model` is this.")


class Model(Strict):
    """A model: a checkpoint, the toy base, a file of completions, or a child of another model."""

    label: str | None = Field(None, description="Name in tables and figures; else the key.")
    path: str | None = Field(None, description="Checkpoint folder or hub id.")
    revision: str | None = Field(None, description="Commit of a hub model.")
    toy: Literal["shipped", "remade"] | None = Field(
        None, description="The toy base: its shipped weights, or made anew."
    )
    rollouts: Imported | None = Field(None, description="A model that is a file of completions.")
    prompt: Prompt | None = Field(None, description="How a problem becomes its prompt; else as for all, `prompt`.")
    training_log: Path | None = Field(
        None,
        description="Log of the RL training that made it elsewhere, as CSV or Parquet with columns step, reward,"
        " completion_tokens: for Figures 10 and 11.",
    )
    evaluate_on: list[str] | None = Field(None, description="Evaluation sets that it is measured on; all if not given.")
    parent: str | None = Field(None, description="Model that this one is trained from.")
    method: Method | None = Field(
        None,
        description="How it is trained: by SFT on traces (star, mrt), by RL (grpo, length_penalty, mrt_rl), by SFT on"
        " right answers of a model without thoughts, so that it thinks (cold_start), or, to backtrack, by SFT on"
        " solution trees (warmstart, rise, rejection; Figure 14).",
    )
    teacher: str | None = Field(
        None, description="cold_start: the model whose right completions it learns; else its parent's own."
    )
    cold_start: ColdStart = Field(default_factory=ColdStart, description="How these become thoughts with an answer.")
    problems: str | None = Field(None, description="Problem set that its parent's traces solve.")
    rules: Rules = Field(default_factory=Rules, description="Which traces enter the training set.")
    recipe: SFT | None = Field(None, description="Hyperparameters of SFT other than those of `training.recipe`.")
    rl: RL | None = Field(None, description="Hyperparameters of RL other than those of `training.rl`.")
    replicate_of: str | None = Field(
        None, description="Trained again as that model was, with another `seed`: for intervals over training runs."
    )
    seed: int | None = Field(None, ge=0, description="Seed of the training; else that of its hyperparameters.")
    architecture: Architecture | None = Field(
        None, description="Its sizes, of a hub model; those of a folder, and of a model trained here, are known."
    )

    @model_validator(mode="after")
    def one_origin(self) -> Self:
        origins = [name for name in ("path", "toy", "rollouts", "parent") if getattr(self, name) is not None]
        if len(origins) != 1 and not (self.replicate_of and not origins):  # one of nothing is told of in its own words
            raise ValueError(f"a model has exactly one of path, toy, rollouts, parent; got {origins or 'none'}")
        if (self.parent is None) != (self.method is None) or (self.parent is None) != (self.problems is None):
            raise ValueError("a trained model has all of parent, method and problems; any other model has none")
        return self


class Draws(Strict):
    """What is sampled from a model on a problem set."""

    samples: int = Field(ge=1, le=10_000, description="Rollouts a problem.")
    decoding: Decoding = Field(
        default_factory=lambda: Decoding(max_tokens=16384),
        description="How rollouts are drawn (Section 8.1: 16K tokens).",
    )
    prover: ProverSettings = Field(default_factory=ProverSettings, description="How the meta-prover is run.")


Settings = TypeVar("Settings", bound=BaseModel)


def keep_to(settings: Settings, **most: int) -> Settings:
    """The settings, where lists that were not given leave out what is more than can be had."""
    for name, limit in most.items():
        if name not in settings.model_fields_set:
            vars(settings)[name] = [value for value in getattr(settings, name) if value <= limit]
    return settings


class Training(Draws):
    """Sampling for training sets, and the recipe that models share."""

    samples: int = Field(1, ge=1, le=10_000, description="Rollouts a training problem (Algorithm 1, line 5: one).")
    recipe: SFT = Field(default_factory=SFT, description="Hyperparameters of SFT (Table 2).")
    rl: RL = Field(default_factory=RL, description="Hyperparameters of RL (Table 3).")
    allocation: Allocation | None = Field(
        None,
        description="Give a prefix of a training trace only as many of the prover's `answers` as MRT (STaR)'s filter"
        " needs; `{}` for the defaults of mrt.sampling.allocation. If not given, all.",
    )
    tree: BeamSearch = Field(default_factory=BeamSearch, description="How solution trees are searched (Appendix A.2).")
    report_to: list[Literal["tensorboard", "wandb"]] = Field(
        [], description="Where trainers log besides Parquet: TensorBoard (files in the log folder), Weights & Biases."
    )


class Direct(Strict):
    """The baseline that does not think (Section 5): pass@k of one model's answers."""

    model: str = Field(description="A model whose prompt leaves no room for a thought.")
    samples: int = Field(32, ge=1, le=10_000, description="Answers a problem (Appendix D: 32).")
    k: list[Count] = Field(
        [1, 2, 4, 8, 16, 32], min_length=1, description="Draws of pass@k; if not given, those of them that can be had."
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        return keep_to(self, k=self.samples)


class Extrapolation(BudgetForcing):
    """Budget forcing (Appendix F), and where normalized regret is extrapolated to (Figure 9)."""

    models: list[str] | None = Field(None, description="Models whose thoughts are extended; all if not given.")
    budgets: list[Count] = Field(
        [20480, 24576, 28672, 32768], description="C_0 for each number of extensions that is answered, but 0."
    )


MEASURES = (
    "accuracy",
    "maj",
    "regret",
    "prefixes",
    "episode_regret",
    "budget_forcing",
    "episodes",
    "progress",
    "traces",
    "linearized",
    "constructions",
    "sft_log",
    "rl_log",
    "cost",
)


class Evaluation(Draws):
    """What is measured, of which models, on which problem sets."""

    samples: int = Field(20, ge=1, le=10_000, description="Rollouts a problem (Section 8.2: 20).")
    problems: list[str] = Field(min_length=1, description="Evaluation problem sets.")
    models: list[str] = Field(min_length=1, description="Models in the tables and figures, in this order.")
    k: list[Count] = Field(
        [1, 2, 4, 8],
        min_length=1,
        description="Votes of maj@k and draws of pass@k; if not given, those of them up to `samples`.",
    )
    votes: list[Count] = Field(
        [1, 2, 4, 8],
        min_length=1,
        description="Votes p of [maj@p]_j at a prefix; if not given, those of them up to `prover.answers`.",
    )
    budgets: list[Count] = Field(
        [4096, 8192, 12288, 16384],
        min_length=1,
        description="Token budgets C_0 of normalized regret (Figure 9); if not given, quarters of `max_tokens`.",
    )
    direct: Direct | None = Field(None, description="The baseline that does not think (Figure 3).")
    linearized: Linearized | None = Field(None, description="Attempts in a row, in a sliding window (Section 8.4).")
    budget_forcing: Extrapolation = Field(default_factory=Extrapolation, description="Thoughts made to go on.")
    measures: list[Literal[MEASURES]] = Field(  # type: ignore[valid-type]
        list(MEASURES), description="What is measured."
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        longest = self.decoding.max_tokens
        if "budgets" not in self.model_fields_set:
            vars(self)["budgets"] = sorted({-(-longest * i // 4) for i in range(1, 5)})
        return keep_to(self, k=self.samples, votes=self.prover.answers)


class Expected(Strict):
    """What nobody knows before the first run, for `python -m mrt plan` and for the time limits of jobs."""

    problems: dict[str, Count] = Field({}, description="Problems of sets that are not made yet and have no `count`.")
    tokens: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="Mean tokens of a rollout by model, for its descendants too; else half of `max_tokens`."
    )
    prompt_tokens: float = Field(150, gt=0, description="Tokens of a problem with its chat prompt.")
    episodes: float = Field(20, gt=0, description="Episodes of a thought.")
    answer_tokens: float = Field(300, gt=0, description="Tokens of a forced answer.")
    kept: float = Field(0.5, gt=0, description="Share of the traces that training sets keep.")


class Config(Strict):
    """A whole experiment."""

    results: Path = Field(description="Folder of everything that the experiment makes.")
    seed: int = Field(0, ge=0, lt=2**62, description="Seed from which all sampling seeds derive.")
    problems: dict[str, ProblemSet] = Field(description="Problem sets by name.")
    models: dict[str, Model] = Field(description="Models by name.")
    prompt: Prompt = Field(default_factory=Prompt, description="How a problem becomes a prompt.")
    segmentation: Segmentation = Field(default_factory=Segmentation, description="How thoughts are cut into episodes.")
    template: Template = Field(default_factory=Template, description="What mu says to end a thought and to answer.")
    backtracking: Backtracking | None = Field(
        None,
        description="Backtracking search (Appendix A) in the place of thoughts; `{}` for its defaults.",
    )
    engine: EngineSettings = Field(default_factory=EngineSettings, description="How the sampling engine is built.")
    engine_threads: int = Field(1, ge=1, le=1024, description="CPU cores of a sampling job.")
    training_threads: int = Field(2, ge=1, le=1024, description="CPU cores of a training job.")
    track_versions: bool = Field(
        True, description="Whether a new version of vllm, torch, transformers, trl ... reruns the stages that use it."
    )
    cluster: Cluster = Field(default_factory=Cluster, description="GPUs that jobs are sized for.")
    expected: Expected = Field(default_factory=Expected, description="Lengths and counts to plan with.")
    training: Training = Field(default_factory=Training, description="Sampling for training sets; the shared recipe.")
    evaluation: Evaluation = Field(description="What is measured.")

    def lineage(self, name: str) -> Iterator[str]:
        """The model and its ancestors, nearest first; stops after one step too many if they go round in a circle."""
        current: str | None = name
        for _ in range(len(self.models) + 1):
            if current is None or current not in self.models:
                return
            yield current
            current = self.models[current].parent

    @property
    def parameterization(self) -> Parameterization:
        """How completions are cut into episodes and how mu answers."""
        return self.backtracking or OpenEnded(segmentation=self.segmentation, template=self.template)

    @property
    def imported(self) -> list[str]:
        """Models that are files of completions."""
        return [name for name, model in self.models.items() if model.rollouts]

    def learns_from(self, name: str) -> str | None:
        """The model whose completions a trained model learns from: its parent, or the teacher of a cold start."""
        return self.models[name].teacher or self.models[name].parent

    def measured_on(self, name: str) -> list[str]:
        """Evaluation sets that a model is measured on."""
        return [d for d in self.evaluation.problems if d in (self.models[name].evaluate_on or self.evaluation.problems)]

    def draws(self, problem_set: str) -> Draws:
        """What is sampled on a problem set: the evaluation's settings on its sets, else the training's."""
        return self.evaluation if problem_set in self.evaluation.problems else self.training

    def samples(self, name: str, problem_set: str) -> int:
        """Rollouts a problem that are sampled from a model on a problem set."""
        draws, direct = self.draws(problem_set), self.evaluation.direct
        asked = direct.samples if direct and direct.model == name and draws is self.evaluation else 0
        return max(asked, draws.samples if name in self.evaluation.models or not asked else 0)

    def ks(self, name: str) -> list[int]:
        """The k at which maj@k and pass@k of a model are measured."""
        direct = self.evaluation.direct
        own = self.evaluation.k if name in self.evaluation.models else []
        return sorted({*own, *(direct.k if direct and direct.model == name else [])})

    def filters(self, name: str, problem_set: str) -> list[Kept]:
        """The filters of MRT (STaR) that answers are allocated for, of a model on a problem set; none: not allocated.

        They are those of its children that learn from its traces there.
        """
        if not self.training.allocation or problem_set in self.evaluation.problems:
            return []
        of = [m for m in self.models.values() if (m.method, m.parent, m.problems) == ("mrt", name, problem_set)]
        asked = {(m.rules.minimum_J, m.rules.minimum_progress) for m in of}
        return [Kept(minimum_J=J, minimum_progress=progress) for J, progress in sorted(asked)]

    @property
    def linearized_ks(self) -> list[int]:
        """The k at which linearized search is measured: 1, 2, 4, ... and its last attempt."""
        attempts = self.evaluation.linearized.attempts if self.evaluation.linearized else 0
        return sorted({*(2**i for i in range(attempts.bit_length()) if 2**i <= attempts), attempts} - {0})

    @property
    def forcing(self) -> BudgetForcing:
        """How thoughts are extended; no more traces a problem than the meta-prover scores."""
        settings = self.evaluation.budget_forcing.model_dump(exclude={"models", "budgets"})
        return BudgetForcing.model_validate(settings | {"traces": settings["traces"] or self.evaluation.prover.traces})

    @property
    def extended(self) -> list[str]:
        """Models whose thoughts are extended by force: those named, of the measured ones that are sampled here."""
        named = self.evaluation.budget_forcing.models or self.evaluation.models
        if self.backtracking:  # there is no thought to extend
            return []
        return [name for name in self.evaluation.models if name in named and not self.models[name].rollouts]

    @property
    def extrapolates(self) -> bool:
        """Whether regret is extrapolated by budget forcing."""
        return "budget_forcing" in self.evaluation.measures and bool(self.extended)

    def method(self, name: str) -> str:
        """A model's method for colours and labels: `base`, `star` or `mrt`."""
        return self.models[name].method or "base"

    def recipe(self, name: str) -> SFT | RL:
        """The hyperparameters that a model is trained with."""
        model = self.models[name]
        by_rl = model.method in RL_METHODS
        recipe = overlaid(self.training.rl, model.rl) if by_rl else overlaid(self.training.recipe, model.recipe)
        return recipe if model.seed is None else recipe.model_copy(update={"seed": model.seed})

    def weights(self, name: str) -> str | None:
        """Checkpoint folder or hub id of a model that is given, the shipped toy bases among them."""
        model = self.models[name]
        toy = Path("mrt", "toy", "weights_attempts" if self.backtracking else "weights")
        return str(toy) if model.toy else model.path

    def architecture(self, name: str) -> Architecture:
        """A model's sizes, which are those of the root of its lineage; ValueError if nothing tells them."""
        root = list(self.lineage(name))[-1]
        if declared := self.models[root].architecture:
            return declared
        folder = Path(self.weights(root) or "")
        if not (folder / "config.json").is_file():
            raise ValueError(f"models.{root}.architecture: cluster.gpu is set, and nothing tells how large it is")
        return architecture_of(folder)

    def longest(self, name: str) -> int | None:
        """Longest prompt and completion in tokens that an engine takes of a model: no more than the model's own."""
        root = self.models[list(self.lineage(name))[-1]]
        file = Path(self.weights(list(self.lineage(name))[-1]) or "", "config.json")
        own = root.architecture.context if root.architecture else None
        if own is None and file.is_file():
            own = json.loads(file.read_text()).get("max_position_embeddings")
        return min(filter(None, (self.engine.max_model_len, own)), default=None) if self.engine.max_model_len else None

    def engine_size(self, name: str) -> memory.Engine:
        """What the engine that samples from a model has to hold."""
        longest = self.longest(name) or self.architecture(name).context
        width = 4 if self.engine.dtype == "float32" else 2
        return memory.Engine(longest, self.engine.max_num_seqs, self.engine.gpu_memory_utilization, width)

    def rl_engine_size(self, name: str) -> memory.Engine:
        """The same, of the engine beside a model's training by RL (trl/generation/vllm_generation.py)."""
        recipe = self.recipe(name)
        assert isinstance(recipe, RL)
        return self.engine_size(name)._replace(share=recipe.gpu_memory_utilization, width=2, batched=4096)

    def sampling_gpus(self, name: str) -> int:
        """GPUs that the engine is spread over which samples from a model; 0 if jobs are sized for CPUs.

        Raises ValueError if it fits on none.
        """
        if not (hardware := self.cluster.hardware):
            return 0
        architecture, engine = self.architecture(name), self.engine_size(name)
        if asked := self.engine.tensor_parallel_size:
            return memory.check_engine(architecture, engine, hardware, asked)
        return memory.sampling_gpus(architecture, engine, hardware, self.cluster.gpus_per_node)

    def training_size(self, name: str) -> memory.Training:
        """What a model's training holds on a GPU at once."""
        recipe = self.recipe(name)
        length = (
            recipe.max_length if isinstance(recipe, SFT) else PROMPT + self.begun(name) + recipe.decoding.max_tokens
        )
        if isinstance(recipe, SFT):
            return memory.Training(recipe.micro_batch_size, length, recipe.bf16, recipe.gradient_checkpointing)
        rows, length = recipe.micro_batch_size, min(length, self.longest(name) or self.architecture(name).context)
        return memory.Training(rows, length, recipe.bf16, recipe.gradient_checkpointing, recipe.beta > 0, True)

    def begun(self, name: str) -> int:
        """Tokens of the longest prefix of a thought that a prompt of RL ends with."""
        recipe = self.recipe(name)
        inside = isinstance(recipe, RL) and self.models[name].method == "mrt_rl" and recipe.prefixes > 0
        return self.training.decoding.max_tokens if inside else 0

    def engine_share(self, name: str) -> float:
        """Share of each GPU's memory that the engine has during a model's training."""
        recipe = self.recipe(name)
        return recipe.gpu_memory_utilization if isinstance(recipe, RL) else 0.0

    def training_processes(self, name: str) -> tuple[int, int]:
        """(nodes, processes on each) of a model's training: one process a GPU, all of a node and of more if need be.

        Raises ValueError if it fits on no number of GPUs, or not on those that were asked for.
        """
        asked, own = self.cluster, self.cluster.gpus_per_node
        if not (hardware := asked.hardware):
            total = asked.training_gpus or asked.training_nodes or 1
        else:
            sizes = self.architecture(name), self.training_size(name), hardware, self.engine_share(name)
            total = asked.training_gpus or memory.training_gpus(*sizes, own)
            memory.check_training(*sizes, total)
        nodes = asked.training_nodes or -(-total // own)
        return nodes, -(-total // nodes)

    def runs(self, name: str) -> list[str]:
        """A model and its replicates."""
        return [name, *(other for other, model in self.models.items() if model.replicate_of == name)]

    @property
    def measured(self) -> list[str]:
        """The models of the evaluation and their replicates."""
        return [run for name in self.evaluation.models for run in self.runs(name)]

    def style(self, name: str) -> dict[str, Any]:
        """How a model appears in figures: label, method (colour) and iteration (how often that method ran in a row)."""
        method = self.method(name)
        chain = [self.method(ancestor) for ancestor in self.lineage(name)]
        iteration = 0 if method == "base" else len(list(takewhile(lambda m: m == method, chain)))
        parent = self.models[name].parent
        return {
            "label": self.models[name].label or name,
            "method": method,
            "iteration": iteration,
            "parameterization": self.parameterization.kind,
            "parent": parent if parent in self.evaluation.models else None,
            "replicate_of": self.models[name].replicate_of,
        }


def check_yaml(file: Path | str) -> None:
    """Raise ValueError, with file and line, if a file is not YAML with names at its top level."""
    try:
        found = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{file}{line}: not YAML ({getattr(error, 'problem', None) or error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file}: the names of the sections (results, problems, models, ...) belong at its top level")


def with_replicates(config: dict[str, Any]) -> dict[str, Any]:
    """The config with what each replicate takes from the model that it repeats written out."""
    models = config.get("models")
    if not isinstance(models, dict):
        return config
    full = dict(models)
    for name, own in models.items():
        original = models.get(own.get("replicate_of")) if isinstance(own, dict) else None
        if isinstance(original, dict):
            label = f"{original.get('label') or own['replicate_of']}, seed {own.get('seed')}"
            full[name] = {**original, "label": label, **own}
    return {**config, "models": full}


def load(config: dict[str, Any], files: Iterable[Path | str] = ()) -> Config:
    """The typed config; raises ValueError that lists every mistake at once, each with its path and value.

    `files` are the YAML files that it was read from: a key that stands twice in one would silently count once.
    """
    mistakes = [
        f"{path}: stands twice in {file}" for file in files for path in repeated(yaml.compose(Path(file).read_text()))
    ]
    loaded, config = None, with_replicates(config)
    try:
        loaded = Config.model_validate(config)
    except ValidationError as error:
        mistakes += [explain(mistake) for mistake in error.errors()]
    mistakes += [f"{path}: {what}" for path, what in (*switches_for_numbers(config), *contradictions(config))]
    if loaded and not mistakes:
        mistakes += list(size_mistakes(loaded))
    if mistakes or loaded is None:
        lines = [f"  {mistake}" for mistake in dict.fromkeys(mistakes)]
        raise ValueError("\n".join([f"the configuration is not right ({len(lines)} mistakes):", *lines]))
    return loaded


def size_mistakes(config: Config) -> Iterator[str]:
    """Models that the GPUs cannot hold, train or draw as long texts from as the config has it."""
    found: dict[str, list[str]] = {}
    for name, model in config.models.items():
        checks: list[Callable[[str], object]] = [config.sampling_gpus] if not model.rollouts else []
        checks += [partial(training_mistakes, config)] if model.parent else []
        for check in checks:
            try:
                check(name)
            except ValueError as error:
                found.setdefault(str(error), []).append(name)
    for message, names in found.items():
        on = f" on {config.cluster.gpu}" if config.cluster.gpu and "fit" in message else ""
        yield message if message.startswith("models.") else f"models.{', '.join(names)}{on}: {message}"
    yield from length_mistakes(config)


def training_mistakes(config: Config, name: str) -> None:
    """Raise ValueError if a model cannot be trained on its GPUs."""
    nodes, processes = config.training_processes(name)
    if config.recipe(name).batch_size % (nodes * processes):
        raise ValueError(
            f"batch_size {config.recipe(name).batch_size} is not divided by its {nodes} x {processes} GPUs"
        )
    shared = config.sampling_gpus(name)  # in RL the processes of a node share engines
    if isinstance(config.recipe(name), RL) and shared > 1 and processes % shared:
        raise ValueError(f"its engine, on {shared} GPUs, does not divide the {processes} of a node")
    if config.cluster.hardware and isinstance(config.recipe(name), RL):
        sizes = config.architecture(name), config.rl_engine_size(name), config.cluster.hardware
        memory.check_engine(*sizes, config.sampling_gpus(name), "the engine of its RL (rl.gpu_memory_utilization)")


def length_mistakes(config: Config) -> Iterator[str]:
    """Settings whose longest texts do not fit into `engine.max_model_len`: the engine would cut them without a word."""
    for path, tokens, terms in lengths(config):
        needed, longest = sum(terms.values()), config.engine.max_model_len
        if longest and needed > longest:
            parts = " + ".join(f"{count:,} of {what}" for what, count in terms.items())
            yield f"{path}: {tokens} does not fit into engine.max_model_len, {longest}: {parts} are {needed:,} tokens"


def lengths(config: Config) -> Iterator[tuple[str, int, dict[str, int]]]:
    """(path of a setting, its tokens, the longest text by what it has) of all that an engine draws."""
    trained = {name: model for name, model in config.models.items() if model.parent}
    prompt = {"the prompt": round(config.expected.prompt_tokens)}
    forcing = {"what forces an answer": len(config.parameterization.force("")) // 3}  # characters a token, at least
    for name, draws in (("training", config.training), ("evaluation", config.evaluation)):
        if name == "evaluation" or trained:
            completion, answer = draws.decoding.max_tokens, draws.prover.decoding.max_tokens
            yield f"{name}.decoding.max_tokens", completion, {**prompt, "the completion": completion}
            whole = {**prompt, "the completion": completion, **forcing, "the answer": answer}
            yield f"{name}.prover.decoding.max_tokens", answer, whole
    if config.extrapolates:
        forced, thought = config.forcing, {"the thought": config.evaluation.decoding.max_tokens}
        added = {f"{forced.most} extensions": forced.most * (forced.extension.max_tokens + 8)}  # 8: a marker
        answer = forced.decoding.max_tokens
        whole = {**prompt, **thought, **added, **forcing, "the answer": answer}
        yield "evaluation.budget_forcing.extension.max_tokens", forced.extension.max_tokens, whole
    for name, model in trained.items():
        recipe, start = config.recipe(name), {**prompt}
        if isinstance(recipe, RL):
            path = f"models.{name}.rl" if model.rl and "decoding" in model.rl.model_fields_set else "training.rl"
            if begun := config.begun(name):
                start["its prefix of a thought"] = begun
            completion = recipe.decoding.max_tokens
            yield f"{path}.decoding.max_tokens", completion, {**start, "the completion": completion}
            if model.method == "mrt_rl":
                whole = {**start, **forcing, "the answer": recipe.answer_tokens}
                yield f"{path}.answer_tokens", recipe.answer_tokens, whole


def repeated(node: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Paths of the keys of a YAML document that stand twice in their group."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from repeated(item, path)
    elif isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value]
        for key, value in node.value:
            if key.value != "<<":
                if names.count(key.value) > 1:
                    yield ".".join([*path, key.value])
                yield from repeated(value, (*path, key.value))


def explain(mistake: Any) -> str:
    """One line for a mistake that pydantic found: its path, what is wrong, the value, and what would be right."""
    path = ".".join(map(str, mistake["loc"]))
    if mistake["type"] == "extra_forbidden":
        known = list(settings_at(mistake["loc"][:-1]))
        return f"{path}: there is no such setting{suggestion(str(mistake['loc'][-1]), known)}"
    value = "" if isinstance(mistake["input"], dict) else f" (got {shortened(mistake['input'])})"
    return f"{path}: {mistake['msg'].removeprefix('Value error, ')}{value}"


def shortened(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 80 else f"{written[:77]}..."


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or what there is."""
    names = list(known)
    near = get_close_matches(wrong, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names) or 'none'}"


def settings_at(path: Sequence[str | int]) -> dict[str, Any]:
    """The settings (name: type) of the group at a path of the config."""
    group: Any = Config
    for part in path:
        kinds = [group] if not get_args(group) else list(get_args(group))
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if get_origin(group) is dict:
            group = get_args(group)[1]
        elif models and str(part) in models[0].model_fields:
            group = models[0].model_fields[str(part)].annotation
        else:
            return {}
    models = [g for g in (group, *get_args(group)) if isinstance(g, type) and issubclass(g, BaseModel)]
    return {name: field.annotation for name, field in models[0].model_fields.items()} if models else {}


def switches_for_numbers(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """(path, what is wrong) of each `true` or `yes` that stands for a number: YAML would let them pass as 1."""
    for name, value in config.items() if isinstance(config, dict) else ():
        here = (*path, str(name))
        if isinstance(value, bool):
            kind = settings_at(path).get(str(name))
            if kind in (int, float) or {int, float} & set(get_args(kind)):
                yield ".".join(here), f"a number is wanted (got {value}; YAML reads yes, no, on, off as true or false)"
        else:
            yield from switches_for_numbers(value, here)


Parsed = TypeVar("Parsed", bound=BaseModel)


def parsed(kind: type[Parsed], raw: Any) -> Parsed | None:
    """The settings group, or None if it has mistakes of its own."""
    try:
        return kind.model_validate(raw)
    except ValidationError:
        return None


def contradictions(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(path, what is wrong) of settings that do not go together, as far as the groups that they stand in are right."""

    def section(name: str) -> dict[str, Any]:
        found = config.get(name)
        return found if isinstance(found, dict) else {}

    if {"{", "}"} & set(str(config.get("results"))):
        yield "results", "braces are Snakemake's; name the folder without them"
    problems = {str(name): parsed(ProblemSet, raw) for name, raw in section("problems").items()}
    models = {str(name): parsed(Model, raw) for name, raw in section("models").items()}
    evaluation, training = parsed(Evaluation, section("evaluation")), parsed(Training, section("training"))
    evaluated = evaluation.problems if evaluation else []

    if gpus := parsed(Cluster, section("cluster")):
        try:
            _ = gpus.hardware
        except ValueError as error:
            yield "cluster.gpu", str(error)
    for kind, names in (("problems", problems), ("models", models)):
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
                yield (
                    f"{kind}.{name}",
                    "a name is made of letters, digits, _, - and ., and begins with one of the first two",
                )
    for name, problem_set in problems.items():
        for other in problem_set.disjoint_from if problem_set else []:
            yield from unknown(f"problems.{name}.disjoint_from", other, problems)
        if around(name, lambda n: p.disjoint_from if (p := problems.get(n)) else []):
            yield f"problems.{name}.disjoint_from", "the sets that it must be disjoint from wait for itself"
        if problem_set and problem_set.file:
            yield from file_mistakes(f"problems.{name}", problem_set.file, partial(build, name, problem_set))
    for name, model in models.items():
        if model is None:
            continue
        path = f"models.{name}"
        if model.parent is not None:
            yield from unknown(f"{path}.parent", model.parent, models)
            if around(name, lambda n: [p] if (m := models.get(n)) and (p := m.parent) else []):
                yield f"{path}.parent", "its ancestors go round in a circle"
            if (parent := models.get(model.parent)) and parent.rollouts:
                yield f"{path}.parent", f"{model.parent!r} is a file of completions; there are no weights to train from"
        elif {"recipe", "rules", "rl", "replicate_of", "seed", "teacher"} & model.model_fields_set:
            wrong = "recipe, rl, rules, seed, teacher and replicate_of are for trained models; this one has no parent"
            yield path, wrong
        yield from cold_start_mistakes(path, model, models, section("prompt"))
        yield from replicate_mistakes(name, model, models)
        if model.method and "recipe" in model.model_fields_set and model.method in RL_METHODS:
            yield f"{path}.recipe", f"{model.method} is trained by RL; its hyperparameters stand under rl"
        if model.method and {"rl"} & model.model_fields_set and model.method not in RL_METHODS:
            yield f"{path}.rl", f"{model.method} is trained by SFT; its hyperparameters stand under recipe"
        if model.rl:
            yield from group_mistakes(f"{path}.rl", overlaid(training.rl if training else RL(), model.rl))
        if model.problems is not None:
            yield from unknown(f"{path}.problems", model.problems, problems)
            if model.problems in evaluated:
                yield f"{path}.problems", f"{model.problems!r} is an evaluation set; train on another"
        if model.rollouts:
            file = model.rollouts.file
            yield from file_mistakes(f"{path}.rollouts", file, partial(check_completions, file))
        if model.training_log:
            yield from file_mistakes(f"{path}.training_log", model.training_log, partial(check_log, model.training_log))
            if model.parent:
                yield f"{path}.training_log", "this model is trained here, and has a log of its own"
        if model.path and model.path.startswith((".", "/", "~")) and not Path(model.path).is_dir():
            yield f"{path}.path", f"there is no folder {model.path}"
        for other in model.evaluate_on or []:
            yield from unknown(f"{path}.evaluate_on", other, evaluated)
    labels = [model.label for model in models.values() if model and model.label]
    for label in {label for label in labels if labels.count(label) > 1}:
        yield "models", f"several have the label {label!r}; figures could not tell them apart"
    if evaluation:
        yield from evaluation_contradictions(evaluation, problems, models)
    longest = section("engine").get("max_model_len")
    yield from backtracking_contradictions(config, models, evaluation, longest)
    for name, draws in (("training", training), ("evaluation", evaluation)):
        if draws is None:
            continue
        if isinstance(draws, Training):
            yield from group_mistakes("training.rl", draws.rl)
        if draws.prover.traces and draws.prover.traces > draws.samples:
            yield f"{name}.prover.traces", f"{draws.prover.traces} is more than the {draws.samples} samples"


def backtracking_contradictions(
    config: Mapping[str, Any], models: Mapping[str, Model | None], evaluation: Evaluation | None, longest: object
) -> Iterator[tuple[str, str]]:
    """Those of the two parameterizations: what is of one does not go with the other."""
    linearized = evaluation.linearized if evaluation else None
    if config.get("backtracking") is None:
        for name, model in models.items():
            if model and model.method in TREE_METHODS:
                yield f"models.{name}.method", f"{model.method} learns to backtrack: set `backtracking: {{}}`"
        if linearized:
            yield "evaluation.linearized", "attempts in a row are of backtracking search: set `backtracking: {}`"
        return
    for name, model in models.items():
        if model and model.method == "cold_start":
            yield f"models.{name}.method", "cold_start teaches thoughts, and with `backtracking` there are none"
    if isinstance(training := config.get("training"), dict) and training.get("allocation") is not None:
        yield "training.allocation", "it is made for MRT (STaR)'s choice of a prefix; attempts have one backtrack each"
    prompt = parsed(Prompt, config.get("prompt", {}))
    if prompt and prompt.open_thought:
        yield "prompt.open_thought", 'attempts stand in no thought: with `backtracking` set it to ""'
    if evaluation and evaluation.direct:
        yield "evaluation.direct", "with `backtracking` there is no thought that could be skipped"
    if evaluation and "measures" in evaluation.model_fields_set and "budget_forcing" in evaluation.measures:
        yield "evaluation.measures", "budget_forcing extends thoughts, and with `backtracking` there are none"
    if linearized and isinstance(longest, int) and linearized.window + linearized.decoding.max_tokens >= longest:
        needed = f"{linearized.window} + {linearized.decoding.max_tokens} tokens (window, attempt)"
        yield "evaluation.linearized", f"{needed} do not fit into engine.max_model_len, {longest}, with a prompt"


def cold_start_mistakes(
    path: str, model: Model, models: Mapping[str, Model | None], prompt: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Those of a model that learns to think."""
    if model.method != "cold_start":
        for name in sorted({"teacher", "cold_start"} & model.model_fields_set):
            yield f"{path}.{name}", "it is for a model of method cold_start"
        return
    if model.teacher is not None:
        yield from unknown(f"{path}.teacher", model.teacher, models)
    elif (parent := models.get(str(model.parent))) and parent.method is None:
        own = parent.prompt or parsed(Prompt, prompt)
        if own and own.open_thought:
            wrong = 'its prompt opens a thought, in which it would not answer; set its `prompt: {open_thought: ""}`'
            yield f"models.{model.parent}.prompt", wrong


def replicate_mistakes(name: str, model: Model, models: Mapping[str, Model | None]) -> Iterator[tuple[str, str]]:
    """Those of a replicate."""
    if model.replicate_of is None:
        return
    path = f"models.{name}.replicate_of"
    yield from unknown(path, model.replicate_of, models)
    if (original := models.get(model.replicate_of)) and original.replicate_of:
        yield path, f"{model.replicate_of!r} is a replicate itself; name the model that it repeats"
    if model.seed is None:
        yield f"models.{name}.seed", "a replicate needs a seed, other than that of the model that it repeats"


def overlaid(shared: Recipe, own: Recipe | None) -> Recipe:
    """Shared hyperparameters, with those that a model sets itself."""
    return shared.model_copy(update={name: getattr(own, name) for name in own.model_fields_set}) if own else shared


def group_mistakes(path: str, recipe: RL) -> Iterator[tuple[str, str]]:
    """Sizes of RL batches that do not divide each other."""
    if recipe.batch_size % recipe.group:
        yield f"{path}.batch_size", f"{recipe.batch_size} completions are not whole groups of {recipe.group}"
    if recipe.batch_size % min(recipe.micro_batch_size, recipe.batch_size):
        yield f"{path}.micro_batch_size", f"{recipe.micro_batch_size} does not divide {recipe.batch_size}"


def unknown(path: str, name: str, known: Collection[str]) -> Iterator[tuple[str, str]]:
    """The mistake of naming what is not there, with what may have been meant."""
    if name not in known:
        yield path, f"there is no {name!r}{suggestion(name, known)}"


def file_mistakes(path: str, file: Path, check: Callable[[], object]) -> Iterator[tuple[str, str]]:
    """What is wrong with a given file, found by reading it unless it is too large for that."""
    if not file.is_file():
        yield f"{path}.file", f"there is no file {file}"
    elif file.stat().st_size <= READ_AT_ONCE:
        try:
            check()
        except (ValueError, OSError) as error:
            yield path, str(error)


def evaluation_contradictions(
    evaluation: Evaluation, problems: Mapping[str, Any], models: Mapping[str, Model | None]
) -> Iterator[tuple[str, str]]:
    """Those of the section `evaluation`."""
    for where, names, known in (
        ("problems", evaluation.problems, set(problems)),
        ("models", evaluation.models, set(models)),
    ):
        for name in names:
            yield from unknown(f"evaluation.{where}", name, sorted(known))
        if len(set(names)) < len(names):
            yield f"evaluation.{where}", "a name occurs twice"
    if not any(model.rollouts for model in models.values() if model):
        if max(evaluation.k) > evaluation.samples:
            yield "evaluation.k", f"{max(evaluation.k)} is more than the {evaluation.samples} samples"
        if "regret" in evaluation.measures and max(evaluation.budgets) > evaluation.decoding.max_tokens:
            longest = evaluation.decoding.max_tokens
            yield "evaluation.budgets", f"{max(evaluation.budgets)} is beyond decoding.max_tokens, {longest}"
    if "episode_regret" in evaluation.measures and not {1, 2, 4, 8} <= set(evaluation.votes):
        yield "evaluation.votes", "regret by episodes needs 1, 2, 4 and 8 among them; or leave out that measure"
    if direct := evaluation.direct:
        yield from unknown("evaluation.direct.model", direct.model, sorted(models))
        if max(direct.k) > direct.samples:
            yield "evaluation.direct.k", f"{max(direct.k)} is more than the {direct.samples} samples"
    yield from forcing_contradictions(evaluation)
    if max(evaluation.votes) > evaluation.prover.answers:
        yield "evaluation.votes", f"{max(evaluation.votes)} is more than the {evaluation.prover.answers} answers"


def forcing_contradictions(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    """Those of the section `evaluation.budget_forcing`."""
    forcing, path = evaluation.budget_forcing, "evaluation.budget_forcing"
    for name in forcing.models or []:
        yield from unknown(f"{path}.models", name, evaluation.models)
    if "budget_forcing" not in evaluation.measures:
        return
    counts = forcing.answered()[1:]
    if len(forcing.budgets) != len(counts):
        yield f"{path}.budgets", f"{len(forcing.budgets)} budgets for {len(counts)} numbers of extensions, {counts}"
    if sorted(forcing.budgets) != forcing.budgets:
        yield f"{path}.budgets", f"more extensions go with a larger budget (got {forcing.budgets})"
    if forcing.traces and evaluation.prover.traces and forcing.traces > evaluation.prover.traces:
        yield f"{path}.traces", f"{forcing.traces} is more than the {evaluation.prover.traces} of prover.traces"


def around(start: str, following: Callable[[str], Sequence[str]]) -> bool:
    """Whether one comes back to a name by following."""
    seen, waiting = set[str](), list(following(start))
    while waiting:
        name = waiting.pop()
        if name == start:
            return True
        if name not in seen:
            seen.add(name)
            waiting += following(name)
    return False
