"""A model's lineage: its ancestors, the model whose data it learns from, and its recipe."""

from collections.abc import Collection, Iterator
from itertools import pairwise

from mrt.config.schema import Config
from mrt.core.settings import overlaid
from mrt.sampling.prompt import Prompt
from mrt.training.method import RLMethod, advantages_of
from mrt.training.rl.recipe import RL
from mrt.training.sft import SFT
from mrt.training.variant import Variant


def ancestry(config: Config, name: str) -> Iterator[str]:
    """The model and its ancestors, nearest first; stops after len(models) + 1 steps if they form a cycle."""
    current: str | None = name
    for _ in range(len(config.models) + 1):
        if current is None or current not in config.models:
            return
        yield current
        current = config.models[current].parent or config.models[current].checkpoint_of


def trained_from(config: Config, name: str) -> Iterator[str]:
    """The models that a model was trained from, nearest first: its ancestry without models that checkpoints are of."""
    return (later for name, later in pairwise(ancestry(config, name)) if config.models[name].checkpoint_of != later)


def root(config: Config, name: str) -> str:
    """The given model that a model's lineage begins with."""
    return list(ancestry(config, name))[-1]


def first_run(config: Config, name: str) -> str:
    """The model that another is a further run of, by `replicate_of` or, of a given model, by `training.runs`."""
    copied, _, seed = name.rpartition("_seed")
    return config.models[name].replicate_of or (copied if copied in config.models and seed.isdecimal() else name)


def runs(config: Config, name: str) -> list[str]:
    """A model and its replicates."""
    return [name, *(other for other, model in config.models.items() if model.replicate_of == name)]


def checkpoints(config: Config, names: Collection[str]) -> list[str]:
    """The checkpoints on the way of these models."""
    return [name for name, model in config.models.items() if model.checkpoint_of in names]


def imported(config: Config) -> list[str]:
    """Models that are files of completions."""
    return [name for name, model in config.models.items() if model.rollouts]


def trained(config: Config) -> list[str]:
    """Models that are trained here."""
    return [name for name, model in config.models.items() if model.parent]


def prompt_of(config: Config, name: str) -> Prompt:
    """How problems become prompts for a model: by its `prompt`; for a trained model, by its parent's.

    Its training data contain the parent's prompt. A cold start teaches another one: by default the shared one.
    """
    model = config.models[name]
    if model.checkpoint_of:
        return prompt_of(config, model.checkpoint_of)
    if model.prompt is None and model.parent and not model.trained_by.asks_new_prompt:
        return prompt_of(config, model.parent)
    return overlaid(config.prompt, model.prompt)


def training_of(config: Config, name: str) -> str:
    """The model whose training makes a model: for a checkpoint on the way another one, else the model."""
    return config.models[name].checkpoint_of or name


def teacher(config: Config, name: str) -> str:
    """The model whose completions or trees a trained model learns from: its teacher, by default its parent."""
    model = config.models[training_of(config, name)]
    return str(model.teacher or model.parent)


def recipe(config: Config, name: str) -> SFT | RL:
    """The hyperparameters that a model is trained with."""
    model = config.models[name]
    by_rl = bool(model.method) and isinstance(model.trained_by, RLMethod)
    hyperparameters = (
        overlaid(config.training.rl, model.rl) if by_rl else overlaid(config.training.recipe, model.recipe)
    )
    return hyperparameters if model.seed is None else hyperparameters.model_copy(update={"seed": model.seed})


def weight_bytes(config: Config, name: str) -> float:
    """Bytes of a weight in a model's checkpoint: 4 after a training of all weights, else 2, as in given models."""
    name = training_of(config, name)
    model = config.models[name]
    if model.parent is None:
        return 2.0
    return weight_bytes(config, model.parent) if recipe(config, name).lora else 4.0


def rl_recipe(config: Config, name: str) -> RL:
    """The hyperparameters of a model that RL trains."""
    hyperparameters = recipe(config, name)
    assert isinstance(hyperparameters, RL)
    return hyperparameters


def variant(config: Config, name: str) -> Variant:
    """The reward or the advantages by which RL trains a model."""
    return advantages_of(str(config.models[name].method), rl_recipe(config, name).variant)


def prefix_share(config: Config, name: str) -> float:
    """Share of the problems whose prompt, in a model's RL, has a prefix beyond `least_prefix`."""
    hyperparameters, model = recipe(config, name), config.models[name]
    if not isinstance(hyperparameters, RL) or not isinstance(model.trained_by, RLMethod):
        return 0.0
    return hyperparameters.prefixes if model.trained_by.prefixes else 0.0


def has_prefixes(config: Config, name: str) -> bool:
    """Whether a model is trained by RL on prompts that may end inside a thought."""
    hyperparameters = recipe(config, name)
    return isinstance(hyperparameters, RL) and bool(hyperparameters.least_prefix or prefix_share(config, name))


def sources(config: Config, name: str) -> tuple[str, ...]:
    """The artifacts that a trained model's data are made from; of RL, rollouts for prefixes and pass rates."""
    method = config.models[name].trained_by
    if isinstance(method, RLMethod):
        return ("rollouts",) if has_prefixes(config, name) or rl_recipe(config, name).pass_rate else ()
    return tuple(kind for kind in method.reads if kind in ("rollouts", "prover", "trees"))


def sampled_for_training(config: Config, kind: str) -> list[str]:
    """The models from which an engine samples an artifact of this kind (of `sources`) for a training set."""
    teachers = [teacher(config, name) for name in trained(config) if kind in sources(config, name)]
    return [name for name in dict.fromkeys(teachers) if not config.models[name].rollouts]
