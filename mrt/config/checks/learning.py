"""Checks of how models are trained: hyperparameters, seeds, weights, the format that a cold start teaches."""

import json
from pathlib import Path

from pydantic import ValidationError

from mrt.config import lineage, measuring, roots
from mrt.config.checks.given import Given, Mistakes
from mrt.config.hardware import linear_layers
from mrt.config.schema import Config
from mrt.core.settings import overlaid, suggestion
from mrt.episodes.parameterization import OpenEnded
from mrt.episodes.thinking import FAMILIES, THINK, Thinking, of_template
from mrt.training.method import RLMethod
from mrt.training.one_card import contradictions
from mrt.training.rl.recipe import RL
from mrt.training.sft import SFT


def tolerances(given: Given) -> Mistakes:
    """A choice among prefixes that are nearly best, where answers are sampled to settle which is best."""
    if given.training and given.training.allocation:
        for name, model in given.models.items():
            if model.rules.tolerance:
                why = "training.allocation settles which prefix is best, not which is nearly so; drop one"
                yield f"models.{name}.rules.tolerance", why


def rl_recipes(given: Given) -> dict[str, RL]:
    """The shared hyperparameters of RL and those of single models, by their path."""
    shared = given.training.rl if given.training else None
    by_model = {f"models.{n}.rl": overlaid(shared or RL(), model.rl) for n, model in given.models.items() if model.rl}
    return ({"training.rl": shared} if shared else {}) | by_model


def rl_batches(given: Given) -> Mistakes:
    """Sizes of RL batches that do not divide each other, and trainings on fewer problems than a step takes."""
    recipes = rl_recipes(given)
    for path, recipe in recipes.items():
        completions, group, micro = recipe.batch_size, recipe.num_generations, recipe.micro_batch_size
        if completions % group:
            yield f"{path}.batch_size", f"{completions} completions are not whole groups of {group}"
        if completions % min(micro, completions):
            yield f"{path}.micro_batch_size", f"{micro} does not divide {completions}"
    for name, model in given.models.items():
        if not model.method or not isinstance(model.trained_by, RLMethod) or model.problems not in given.problems:
            continue
        recipe = recipes.get(f"models.{name}.rl") or recipes.get("training.rl") or RL()
        needed, problems = recipe.batch_size // recipe.num_generations, given.problems_of(model.problems)
        count = given.problems[model.problems].size if problems is None else len(problems)
        if count is not None and count < needed:
            of_a_step = f"a step takes {needed} problems (batch_size / num_generations)"
            yield f"models.{name}", f"{of_a_step}, and {model.problems} has {count}"


def rl_merged(given: Given) -> Mistakes:
    """Mistakes of a model's hyperparameters that appear only once they are laid over those of `training.rl`."""
    for path, recipe in rl_recipes(given).items():
        if path == "training.rl":
            continue
        try:
            RL.model_validate(recipe.model_dump())
        except ValidationError as error:
            for wrong in error.errors():
                where = ".".join([path, *map(str, wrong["loc"])])
                yield where, f"with those of training.rl: {wrong['msg'].removeprefix('Value error, ')}"


def pass_rates(config: Config) -> Mistakes:
    """Bounds of a pass rate that no number of right completions meets."""
    samples = config.training.samples
    for name in lineage.trained(config):
        rates = recipe.pass_rate if isinstance(recipe := lineage.recipe(config, name), RL) else None
        if rates and not any(rates[0] <= right / samples <= rates[1] for right in range(samples + 1)):
            why = f"with {samples} completions a problem no share is from {rates[0]:g} to {rates[1]:g}"
            yield f"models.{name}.rl.pass_rate", f"{why}; raise training.samples"


def engines(config: Config) -> Mistakes:
    """Settings of RL that the variant of a model does not work with."""
    for name in lineage.trained(config):
        if isinstance(recipe := lineage.recipe(config, name), RL):
            variant = lineage.variant(config, name)
            for field, why in recipe.clashes(variant):
                yield f"models.{name}.rl.{field}", f"with the {variant.name} variant, {why}"
            try:
                recipe.cutting(measuring.parameterization(config) if variant.cuts else OpenEnded())
            except ValueError as error:
                yield f"models.{name}.rl", str(error)


def seeds(config: Config) -> Mistakes:
    """Training runs of one model with the same seed: they would be the same run."""
    runs: dict[tuple[str, int], str] = {}
    for name in lineage.trained(config):
        key = (config.models[name].replicate_of or name, lineage.recipe(config, name).seed)
        if (first := runs.setdefault(key, name)) != name:
            yield f"models.{name}.seed", f"{key[1]} is the seed of {first} too: they would be one training run"


def weights(config: Config) -> Mistakes:
    """Weights of MRT (STaR)'s examples that are not learnt with, and learning with weights where all are 1."""
    for name, model in config.models.items():
        recipe = lineage.recipe(config, name)
        if model.method != "mrt" or not isinstance(recipe, SFT):
            continue
        if model.rules.weight == "progress" and not recipe.weighted:
            yield f"models.{name}.rules.weight", "it counts only with `recipe: {weighted: true}`"
        if recipe.weighted and model.rules.weight == "none":
            yield f"models.{name}.recipe.weighted", "all examples weigh the same; set `rules: {weight: progress}`"


def one_card(config: Config) -> Mistakes:
    """Settings of trainings on one card that do not go together, and adapters of layers that a model has not."""
    for name, model in config.models.items():
        if not model.parent:
            continue
        recipe, where = lineage.recipe(config, name), "rl" if isinstance(model.trained_by, RLMethod) else "recipe"
        for field, wrong in contradictions(recipe):
            yield f"models.{name}.{where}.{field}", wrong
        targets, folder = recipe.lora.targets if recipe.lora else [], roots.folder(config, name)
        names = linear_layers(folder) if folder and isinstance(targets, list) and targets else []
        for target in targets if names else []:
            if target not in names:
                wrong = f"{lineage.root(config, name)} has no linear layer {target!r}{suggestion(target, names)}"
                yield f"models.{name}.{where}.lora.targets", wrong


def headers(config: Config) -> Mistakes:
    """Cold starts that teach answers which begin otherwise than those that mu is made to give."""
    for name, model in config.models.items():
        if model.method != "cold_start":
            continue
        kinds, answer, template = kinds_of_thought(config, name), model.cold_start.answer, config.template
        if not any((kind.close + answer).startswith(template.closing(kind) + template.header) for kind in kinds):
            tags = " or ".join(repr(kind.close) for kind in kinds)
            yield (
                f"models.{name}.cold_start.answer",
                f"an answer has to begin as mu is made to, with `template.header`: {template.header!r} (and"
                f" `template.close` is the model's, {tags})",
            )


def kinds_of_thought(config: Config, name: str) -> tuple[Thinking, ...]:
    """How a model that thinks may write thoughts, as far as its configuration and local chat template tell."""
    setting = lineage.prompt_of(config, name).thinking
    if isinstance(setting, Thinking):
        return (setting,)
    if setting == "none":
        return (THINK,)
    folder = roots.folder(config, name)
    try:
        template = chat_template(folder) if folder else None
        return (of_template(template) or THINK,) if template else FAMILIES
    except (OSError, ValueError):  # reported where the model is used
        return FAMILIES


def chat_template(folder: Path) -> str | None:
    """The chat template of a checkpoint folder; None if it has none, or several.

    Raises OSError or ValueError if it cannot be read.
    """
    if (file := folder / "chat_template.jinja").is_file():
        return file.read_text()
    template = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
    return template if isinstance(template, str) else None
