"""`config.yaml` as a typed model. The rules take each stage's settings from it; the stages never see a config file."""

from collections.abc import Iterator
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import Any

from pydantic import Field

from mrt.analysis.claims import Claim
from mrt.config import memory
from mrt.config.hardware import Architecture, Cluster, UnknownSizes, architecture_of, sizes_in
from mrt.config.sections import Evaluation, Expected, Model, SamplingSettings, TracesPage, Training
from mrt.core.hub import cached
from mrt.core.settings import Settings, overlaid
from mrt.episodes.parameterization import Backtracking, OpenEnded, Parameterization, Segmentation, Template
from mrt.grading.task import Choice
from mrt.problems.settings import Dataset
from mrt.sampling.allocation import Thresholds
from mrt.sampling.budget_forcing import BudgetForcing
from mrt.sampling.engine import EngineSettings
from mrt.sampling.prompt import Prompt
from mrt.training.method import RLMethod, advantages_of
from mrt.training.rl.recipe import RL
from mrt.training.sft import SFT
from mrt.training.variant import Variant

PROMPT = 2048  # tokens: an upper bound for a problem's prompt, to size trainings


def or_a_file(field: dict[str, Any]) -> None:
    """Let the schema of a list admit the path of a table, which `mrt.config.load` reads."""
    field["anyOf"] = [{name: field.pop(name) for name in ("items", "type")}, {"format": "path", "type": "string"}]


class Config(Settings):
    """A whole experiment."""

    results: Path = Field(description="Folder for all outputs of the experiment.")
    seed: int = Field(0, ge=0, lt=2**62, description="Seed from which all sampling seeds derive.")
    problems: dict[str, Dataset] = Field(description="Datasets by name.")
    models: dict[str, Model] = Field(description="Models by name.")
    prompt: Prompt = Field(default_factory=Prompt, description="How a problem becomes a prompt.")
    segmentation: Segmentation = Field(default_factory=Segmentation, description="How thoughts are cut into episodes.")
    template: Template = Field(
        default_factory=Template, description="What the meta-prover adds to a prefix to end the thought and to answer."
    )
    backtracking: Backtracking | None = Field(
        None,
        description="Backtracking search (Appendix A) instead of thoughts; `{}` for its defaults.",
    )
    engine: EngineSettings = Field(default_factory=EngineSettings, description="How the sampling engine is built.")
    engine_threads: int = Field(1, ge=1, le=1024, description="CPU cores of a sampling job.")
    training_threads: int = Field(2, ge=1, le=1024, description="CPU cores of a training job.")
    track_versions: bool = Field(
        True, description="Whether a new version of vllm, torch, transformers, trl ... reruns the stages that use it."
    )
    cluster: Cluster = Field(default_factory=Cluster, description="GPUs that jobs are sized for.")
    expected: Expected = Field(default_factory=Expected, description="Estimated lengths and counts, to plan with.")
    training: Training = Field(default_factory=Training, description="Sampling for training sets; the shared recipe.")
    evaluation: Evaluation = Field(description="What is measured.")
    figures: list[Path] | None = Field(
        None,
        description="Your own figures and tables beside those of `mrt/figures/`: Python files, relative to the working"
        " folder, each with the parts that docs/architecture.md lists under Figure.",
    )
    traces: TracesPage = Field(default_factory=TracesPage, description="The page that shows traces.")
    claims: list[Claim] = Field(
        [],
        description="Claims of the paper that the table `claims` decides. Or a tab-separated file (`.tsv`) of them: a"
        " row is a claim, a column a field.",
        json_schema_extra=or_a_file,
    )

    def lineage(self, name: str) -> Iterator[str]:
        """The model and its ancestors, nearest first; stops after len(models) + 1 steps if they form a cycle."""
        current: str | None = name
        for _ in range(len(self.models) + 1):
            if current is None or current not in self.models:
                return
            yield current
            current = self.models[current].parent

    def root(self, name: str) -> str:
        """The given model that a model's lineage begins with."""
        return list(self.lineage(name))[-1]

    @property
    def parameterization(self) -> Parameterization:
        """How completions are cut into episodes and how the meta-prover answers."""
        return self.backtracking or OpenEnded(segmentation=self.segmentation, template=self.template)

    @property
    def imported(self) -> list[str]:
        """Models that are files of completions."""
        return [name for name, model in self.models.items() if model.rollouts]

    def prompt_of(self, name: str) -> Prompt:
        """How problems become prompts for a model: as its `prompt` says; of a trained model, as its parent's does.

        The parent's is what stands in its training data. A cold start teaches another one: by default the shared one.
        """
        model = self.models[name]
        if model.prompt is None and model.parent and not model.trained_by.asks_new_prompt:
            return self.prompt_of(model.parent)
        return overlaid(self.prompt, model.prompt)

    def learns_from(self, name: str) -> str | None:
        """The model whose completions or trees a trained model learns from: its teacher, by default its parent."""
        return self.models[name].teacher or self.models[name].parent

    def learnt(self, name: str) -> tuple[str, ...]:
        """The artifacts that a trained model's data are made from; of RL, rollouts if prompts have prefixes of them."""
        method = self.models[name].trained_by
        if isinstance(method, RLMethod):
            return ("rollouts",) if self.begun(name) else ()
        return tuple(kind for kind in method.reads if kind in ("rollouts", "prover", "trees"))

    @property
    def used_problems(self) -> list[str]:
        """The datasets that models are trained or measured on, and those that these must be disjoint from."""
        waiting = [*self.evaluation.problems, *(m.problems for m in self.models.values() if m.problems)]
        used: dict[str, None] = {}
        while waiting:
            if (name := waiting.pop(0)) not in used:
                used[name] = None
                waiting += self.problems[name].disjoint_from
        return list(used)

    def measured_on(self, name: str) -> list[str]:
        """Evaluation sets that a model is measured on."""
        return [d for d in self.evaluation.problems if d in (self.models[name].evaluate_on or self.evaluation.problems)]

    def task(self, dataset: str) -> Choice | None:
        """The task of a dataset, in canonical form: None for math."""
        return self.problems[dataset].task

    def sampling(self, dataset: str) -> SamplingSettings:
        """What is sampled on a dataset: the evaluation's settings on its sets, else the training's."""
        return self.evaluation if dataset in self.evaluation.problems else self.training

    def mu(self, name: str, dataset: str) -> str:
        """The meta-prover of a model's thoughts on a dataset: by default the model itself."""
        return self.sampling(dataset).mu or name

    def samples(self, name: str, dataset: str) -> int:
        """Rollouts per problem sampled from a model on a dataset."""
        sampling, direct = self.sampling(dataset), self.evaluation.direct
        asked = direct.samples if direct and direct.model == name and sampling is self.evaluation else 0
        return max(asked, sampling.samples if name in self.evaluation.models or not asked else 0)

    def ks(self, name: str) -> list[int]:
        """The k at which maj@k and pass@k of a model are measured."""
        direct = self.evaluation.direct
        own = self.evaluation.k if name in self.measured else []
        return sorted({*own, *(direct.k if direct and direct.model == name else [])})

    def budgets(self, name: str) -> list[int]:
        """The budgets C_0 at which regret of a model is measured, those of budget forcing included."""
        forced = self.extrapolated_budgets(name) or []
        return [c for c in self.evaluation.budgets if c < min(forced, default=inf)] + forced

    def extrapolated_budgets(self, name: str) -> list[int] | None:
        """The budgets of budget forcing; None of a model whose regret does not go on through its forced extensions."""
        return self.evaluation.budget_forcing.budgets if self.extrapolates and name in self.extended else None

    def inserted_tokens(self, name: str) -> int | None:
        """Tokens that a model's prompt inserts in place of a thought, if it is the direct baseline."""
        direct = self.evaluation.direct
        return direct.inserted_tokens if direct and direct.model in (name, self.models[name].replicate_of) else None

    def filters(self, name: str, dataset: str) -> list[Thresholds]:
        """Thresholds of MRT (STaR)'s filters that decide where a model's answers on a dataset are sampled.

        Empty: at all prefixes; with `estimate: likelihood`, nowhere.

        They are the filters of its children that train on its traces of this dataset.
        """
        scored = self.training.prover.estimate == "likelihood"
        if not (self.training.allocation or scored) or dataset in self.evaluation.problems:
            return []
        children = [m for m in self.models.values() if m.method and (m.parent, m.problems) == (name, dataset)]
        settings = [m.method_settings for m in children if "prover" in m.trained_by.reads]
        filters = [each for each in settings if isinstance(each, Thresholds)]
        if len(filters) < len(settings):  # some method reads the answers at all prefixes
            return []
        limits = {tuple(getattr(each, field) for field in Thresholds.model_fields) for each in filters}
        return [Thresholds(**dict(zip(Thresholds.model_fields, values, strict=True))) for values in sorted(limits)]

    @property
    def linearized_ks(self) -> list[int]:
        """The k at which linearized search is measured: 1, 2, 4, ... and the number of attempts."""
        attempts = self.evaluation.linearized.attempts if self.evaluation.linearized else 0
        return sorted({*(2**i for i in range(attempts.bit_length()) if 2**i <= attempts), attempts} - {0})

    @property
    def forcing(self) -> BudgetForcing:
        """How thoughts are extended; by default, as many traces per problem as the meta-prover scores."""
        settings = self.evaluation.budget_forcing.model_dump(exclude={"models", "budgets"})
        return BudgetForcing.model_validate(settings | {"traces": settings["traces"] or self.evaluation.prover.traces})

    @property
    def extended(self) -> list[str]:
        """Models that budget forcing is applied to: the named ones among those evaluated and sampled here, all runs."""
        named = self.evaluation.budget_forcing.models or self.evaluation.models
        if self.backtracking:  # there is no thought to extend
            return []
        names = [name for name in self.evaluation.models if name in named and not self.models[name].rollouts]
        return [run for name in names for run in self.runs(name)]

    @property
    def extrapolates(self) -> bool:
        """Whether regret is extrapolated by budget forcing: not beside another mu, whose J would be another curve's."""
        return self.forces and self.evaluation.mu is None

    @property
    def forces(self) -> bool:
        """Whether budget forcing is measured."""
        return "budget_forcing" in self.evaluation.measures and bool(self.extended)

    def method(self, name: str) -> str:
        """A model's method for colours and labels: `base` for a model that is given."""
        return self.models[name].method or "base"

    def recipe(self, name: str) -> SFT | RL:
        """The hyperparameters that a model is trained with."""
        model = self.models[name]
        by_rl = bool(model.method) and isinstance(model.trained_by, RLMethod)
        recipe = overlaid(self.training.rl, model.rl) if by_rl else overlaid(self.training.recipe, model.recipe)
        return recipe if model.seed is None else recipe.model_copy(update={"seed": model.seed})

    def variant(self, name: str) -> Variant:
        """The reward or the advantages by which RL trains a model."""
        recipe = self.recipe(name)
        assert isinstance(recipe, RL)
        return advantages_of(str(self.models[name].method), recipe.variant)

    def prefixes(self, name: str) -> float:
        """Share of the problems whose prompt, in a model's RL, has a prefix beyond `least_prefix`."""
        recipe, method = self.recipe(name), self.models[name].trained_by
        return recipe.prefixes if isinstance(recipe, RL) and isinstance(method, RLMethod) and method.prefixes else 0.0

    def weights(self, name: str) -> str | None:
        """Checkpoint folder or hub id of a model that is not trained, shipped toy bases included."""
        model = self.models[name]
        toy = Path("mrt", "toy", "weights_attempts" if self.backtracking else "weights")
        return str(toy) if model.toy else model.path

    def root_folder(self, name: str) -> Path | None:
        """Folder of the given model that a model's lineage begins with, if it is on this machine."""
        root = self.root(name)
        weights = self.weights(root)
        if weights is None or Path(weights, "config.json").is_file():
            return Path(weights) if weights else None
        return cached(weights, self.models[root].revision)

    def architecture(self, name: str) -> Architecture:
        """A model's sizes, which are those of the root of its lineage; raises UnknownSizes."""
        root = self.root(name)
        if declared := self.models[root].architecture:
            return declared
        if (folder := self.root_folder(name)) is None:
            weights = self.weights(root)
            raise UnknownSizes(
                f"models.{root}.architecture: nothing tells how large {weights or root} is. Give its sizes here, or,"
                f" for a model of the hub, download it first: hf download {weights or 'NAME'}"
            )
        return architecture_of(folder)

    def context(self, name: str) -> int | None:
        """The longest text, in tokens, that a model can read; None of a model that is not downloaded yet."""
        declared = self.models[self.root(name)].architecture
        if declared:
            return declared.context
        folder = self.root_folder(name)
        return sizes_in(folder).get("max_position_embeddings") if folder else None

    def longest(self, name: str) -> int | None:
        """Longest prompt plus completion, in tokens, that a model's engine is told to accept: at most its context.

        None without `engine.max_model_len`: the engine then accepts the model's context.
        """
        asked = self.engine.max_model_len
        return min(asked, self.context(name) or asked) if asked else None

    def engine_size(self, name: str) -> memory.Engine:
        """What the engine that samples from a model has to hold."""
        longest = self.longest(name) or self.architecture(name).context
        width = 4 if self.engine.dtype == "float32" else 2
        return memory.Engine(longest, self.engine.max_num_seqs, self.engine.gpu_memory_utilization, width)

    def rl_engine_size(self, name: str) -> memory.Engine:
        """What the engine beside a model's RL training has to hold (trl/generation/vllm_generation.py)."""
        recipe = self.recipe(name)
        assert isinstance(recipe, RL)
        return self.engine_size(name)._replace(share=recipe.gpu_memory_utilization, batched=4096)

    def sampling_gpus(self, name: str) -> int:
        """Number of GPUs of the engine that samples from a model; 0 if jobs are sized for CPUs.

        Raises ValueError if the engine does not fit.
        """
        if not (hardware := self.cluster.hardware):
            return 0
        architecture, engine = self.architecture(name), self.engine_size(name)
        if asked := self.engine.tensor_parallel_size:
            if asked > self.cluster.gpus_per_node:
                raise ValueError(f"engine.tensor_parallel_size {asked} is more than a node's GPUs (gpus_per_node)")
            if not memory.divides(architecture, asked):
                raise ValueError(f"engine.tensor_parallel_size {asked} does not divide its {architecture.heads} heads")
            return memory.check_engine(architecture, engine, hardware, asked)
        return memory.sampling_gpus(architecture, engine, hardware, self.cluster.gpus_per_node)

    def tensor_parallel_size(self, name: str) -> int:
        """Number of devices that a model's engine is spread over; without `cluster.gpu`, as many as are asked for."""
        return self.sampling_gpus(name) or self.engine.tensor_parallel_size or 1

    def training_size(self, name: str) -> memory.Training:
        """What a model's training holds on a GPU at once."""
        recipe = self.recipe(name)
        length = (
            recipe.max_length if isinstance(recipe, SFT) else PROMPT + self.begun(name) + recipe.decoding.max_tokens
        )
        if isinstance(recipe, SFT):
            return memory.Training(recipe.micro_batch_size, length, recipe.bf16, recipe.gradient_checkpointing)
        rows, length = recipe.micro_batch_size, min(length, self.longest(name) or self.architecture(name).context)
        other = recipe.beta > 0, recipe.mu == "parent" and self.variant(name).asks_mu
        return memory.Training(rows, length, recipe.bf16, recipe.gradient_checkpointing, *other, True)

    def begun(self, name: str) -> int:
        """Tokens of the longest thought prefix in a prompt of RL; 0 if prompts have none."""
        recipe = self.recipe(name)
        if not isinstance(recipe, RL):
            return 0
        has_prefix = recipe.least_prefix or self.prefixes(name)
        longest = self.training.decoding.max_tokens if has_prefix else 0
        return min(longest, recipe.max_prompt_length or longest)

    def engine_share(self, name: str) -> float:
        """Share of each GPU's memory that the engine takes during a model's training."""
        recipe = self.recipe(name)
        return recipe.gpu_memory_utilization if isinstance(recipe, RL) else 0.0

    def training_processes(self, name: str) -> tuple[int, int]:
        """(nodes, processes per node) of a model's training: one process per GPU, by default all of one or more nodes.

        Raises ValueError if the training does not fit on the GPUs requested, or on any number of GPUs.
        """
        asked, own = self.cluster, self.cluster.gpus_per_node
        if not (hardware := asked.hardware):
            total = asked.training_gpus or asked.training_nodes or 1
        else:
            sizes = self.architecture(name), self.training_size(name), hardware, self.engine_share(name)
            all_of_nodes = own * asked.training_nodes if asked.training_nodes else None
            total = asked.training_gpus or all_of_nodes or memory.training_gpus(*sizes, own)
            memory.check_training(*sizes, total)
        nodes = asked.training_nodes or -(-total // own)
        if total % nodes:
            raise ValueError(f"its {total} GPUs (cluster.training_gpus) cannot be divided over {nodes} nodes")
        if hardware and total // nodes > own:
            raise ValueError(f"{total // nodes} GPUs of a node are asked for, which has {own} (cluster.gpus_per_node)")
        return nodes, total // nodes

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
            "colour": self.models[name].trained_by.colour if self.models[name].method else None,
            "iteration": iteration,
            "parameterization": self.parameterization.kind,
            "parent": parent if parent in self.evaluation.models else None,
            "replicate_of": self.models[name].replicate_of,
        }
