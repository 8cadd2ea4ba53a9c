"""Contradictions between the two parameterizations: settings of one that do not apply to the other."""

from collections.abc import Iterator
from typing import Any

from mrt.analysis.measure import needing
from mrt.config.checks.given import Given, Mistakes, parsed
from mrt.sampling.prompt import Prompt
from mrt.training.method import variant_named

OF_SUFFIXES = {"minimum_progress", "weight"}  # rules that hold for suffixes from a backtrack too


def thoughts_alone(given: Given) -> Mistakes:
    """Settings of backtracking search, without `backtracking`."""
    if given.raw.get("backtracking") is not None:
        return
    for name, model in given.models.items():
        if model.method and model.trained_by.only == "backtracking":
            yield f"models.{name}.method", f"{model.method} learns to backtrack: set `backtracking: {{}}`"
    if given.evaluation and given.evaluation.linearized:
        yield "evaluation.linearized", "attempts in a row are of backtracking search: set `backtracking: {}`"
    if given.evaluation and given.evaluation.episodes:
        yield "evaluation.episodes", "only completions of backtracking search are cut: set `backtracking: {}`"


def attempts_alone(given: Given) -> Mistakes:
    """Settings of thoughts, with `backtracking`."""
    if given.raw.get("backtracking") is None:
        return
    for name, model in given.models.items():
        if model.method and model.trained_by.only == "thoughts":
            yield f"models.{name}.method", f"{model.method} teaches thoughts, and with `backtracking` there are none"
        for rule in sorted(model.rules.model_fields_set - OF_SUFFIXES):
            yield f"models.{name}.rules.{rule}", "it is about prefixes of thoughts; suffixes from a backtrack have none"
    if given.section("training").get("allocation") is not None:
        yield "training.allocation", "it is made for MRT (STaR)'s choice of a prefix; attempts have one backtrack each"
    for path, settings in of_mu(given):
        if settings.get("estimate") == "likelihood":
            yield f"{path}.estimate", "after an attempt mu repeats its answer: J is 0 or 1, and needs no likelihood"
        if asks_to_stop(settings.get("variant")):
            yield f"{path}.variant", "after a backtrack mu is the model itself: both halves of a group would be alike"
        if settings.get("every", 1) != 1:
            yield f"{path}.every", "progress of a backtrack needs J right before and after it; leave it out"
    prompt, evaluation = parsed(Prompt, given.raw.get("prompt", {})), given.evaluation
    if prompt and prompt.opens_thought:
        yield "prompt.open_thought", 'attempts stand in no thought: with `backtracking` set it to ""'
    if evaluation and evaluation.direct:
        yield "evaluation.direct", "with `backtracking` there is no thought that could be skipped"
    if evaluation and "measures" in evaluation.model_fields_set:
        for name in needing(evaluation.measures, "budget_forcing"):
            yield "evaluation.measures", f"{name} extends thoughts, and with `backtracking` there are none"


def of_mu(given: Given) -> Iterator[tuple[str, dict[str, Any]]]:
    """The settings of the meta-prover and of RL as they were given, with their paths."""
    for section in ("training", "evaluation"):
        for part in ("prover", "rl"):
            if isinstance(settings := given.section(section).get(part), dict):
                yield f"{section}.{part}", settings
    for name, model in given.models.items():
        if model.rl:
            yield f"models.{name}.rl", model.rl.model_dump()


def asks_to_stop(variant: Any) -> bool:
    """Whether a variant, if there is one of this name, has half of each group stop."""
    try:
        return isinstance(variant, str) and variant_named(variant).asks == "stop"
    except ValueError:
        return False
