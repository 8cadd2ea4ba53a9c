"""The longest texts that an engine samples, and the length that it is set up for, in tokens."""

from collections.abc import Iterator
from typing import NamedTuple

from mrt.config import lineage, measuring, roots
from mrt.config.schema import Config
from mrt.training.rl.recipe import RL

MARKER = 8  # tokens of a marker that extends a thought, at most
CHARACTERS = 3  # of a token, at least


def longest(config: Config, name: str) -> int | None:
    """Longest prompt plus completion, in tokens, that a model's engine accepts: at most its context.

    None without `engine.max_model_len`: the engine then accepts the model's context.
    """
    limit = config.engine.max_model_len
    return min(limit, roots.context(config, name) or limit) if limit else None


def prefix(config: Config, name: str) -> int:
    """Tokens of the longest thought prefix in a prompt of RL; 0 if prompts have none."""
    if not lineage.has_prefixes(config, name):
        return 0
    thought = config.training.decoding.max_tokens
    return min(thought, lineage.rl_recipe(config, name).max_prompt_length or thought)


class Text(NamedTuple):
    """The longest text of a kind that an engine samples."""

    path: str  # of the setting that gives `tokens`
    tokens: int
    parts: dict[str, int]  # of the text, in tokens
    readers: list[str]  # the models that read it


def texts(config: Config) -> Iterator[Text]:
    """The longest text of each kind that an engine samples.

    That of the direct baseline is none: nothing follows its completions.
    """
    prompt = {"the prompt (expected.prompt_tokens)": round(config.expected.prompt_tokens)}
    forcing = {"what forces an answer": len(measuring.parameterization(config).force("")) // CHARACTERS}
    yield from of_sampling(config, prompt, forcing)
    yield from of_search(config, prompt, forcing)
    for name in lineage.trained(config):
        if isinstance(lineage.recipe(config, name), RL):
            yield from of_rl(config, name, prompt, forcing)


def of_sampling(config: Config, prompt: dict[str, int], forcing: dict[str, int]) -> Iterator[Text]:
    """Rollouts and the meta-prover's answers, of training and of evaluation."""
    measured = [name for name in config.evaluation.models if not config.models[name].rollouts]
    teachers, scored = (lineage.sampled_for_training(config, kind) for kind in ("rollouts", "prover"))
    for section, sampling, thinking, answering in (
        ("training", config.training, teachers, scored),
        ("evaluation", config.evaluation, measured, measured if measuring.asks_mu(config) else []),
    ):
        completion, answer = sampling.decoding.max_tokens, sampling.prover.decoding.max_tokens
        thought = {**prompt, "the completion": completion}
        if thinking:
            yield Text(f"{section}.decoding.max_tokens", completion, thought, thinking)
        if answering and sampling.prover.estimate == "answers":
            parts, readers = {**thought, **forcing, "the answer": answer}, [sampling.mu] if sampling.mu else answering
            yield Text(f"{section}.prover.decoding.max_tokens", answer, parts, readers)


def of_search(config: Config, prompt: dict[str, int], forcing: dict[str, int]) -> Iterator[Text]:
    """Solution trees, linearized search and budget forcing."""
    evaluation = config.evaluation
    if searched := lineage.sampled_for_training(config, "trees"):
        solution = config.training.tree.decoding.max_tokens
        yield Text("training.tree.decoding.max_tokens", solution, {**prompt, "the solution": solution}, searched)
    if chains := measuring.linearized(config):
        parts = {**prompt, "its own text": chains.window, "an attempt": chains.decoding.max_tokens}
        measured = [name for name in evaluation.models if not config.models[name].rollouts]
        yield Text("evaluation.linearized.window", chains.window, parts, measured)
    if measuring.forces(config):
        settings = measuring.forcing(config)
        extension, most = settings.extension.max_tokens, settings.most
        thought = {"the thought": evaluation.decoding.max_tokens, f"{most} extensions": most * (extension + MARKER)}
        parts = {**prompt, **thought, **forcing, "the answer": settings.decoding.max_tokens}
        path = "evaluation.budget_forcing.extension.max_tokens"
        yield Text(path, extension, parts, measuring.extended(config))


def of_rl(config: Config, name: str, prompt: dict[str, int], forcing: dict[str, int]) -> Iterator[Text]:
    """Completions of a model's RL, and mu's answers."""
    model, recipe, start = config.models[name], lineage.rl_recipe(config, name), {**prompt}
    overridden = model.rl.model_fields_set if model.rl else set()
    section = {field: f"models.{name}.rl" if field in overridden else "training.rl" for field in RL.model_fields}
    if tokens := prefix(config, name):
        start["its prefix of a thought"] = tokens
    completion = {"the completion": recipe.decoding.max_tokens}
    path = f"{section['decoding']}.decoding.max_tokens"
    yield Text(path, recipe.decoding.max_tokens, {**start, **completion}, [name])
    variant = lineage.variant(config, name)
    if variant.asks_mu and recipe.estimate == "answers":
        along = completion if variant.asks_along else {}
        parts = {**start, **along, **forcing, "the answer": recipe.answer_tokens}
        yield Text(f"{section['answer_tokens']}.answer_tokens", recipe.answer_tokens, parts, [name])
