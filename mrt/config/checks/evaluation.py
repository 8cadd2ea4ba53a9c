"""Checks of measures, claims, expectations and the page of traces."""

import re
from functools import partial

from mrt.analysis.claims import measure_of
from mrt.analysis.measure import measures, needing
from mrt.config import lineage, measuring
from mrt.config.checks.given import Given, Mistakes, file_mistakes, parsed, unknown
from mrt.config.schema import Config
from mrt.config.sections import Expected, TracesPage
from mrt.problems.sources import prefix_accuracy


def names(given: Given) -> Mistakes:
    """Datasets and models that there are not."""
    if not (evaluation := given.evaluation):
        return
    problems, models = sorted(given.section("problems")), sorted(given.section("models"))
    for name in evaluation.problems:
        yield from unknown("evaluation.problems", name, problems)
    for name in evaluation.models:
        yield from unknown("evaluation.models", name, models)
    if evaluation.direct:
        yield from unknown("evaluation.direct.model", evaluation.direct.model, models)
    for name in evaluation.budget_forcing.models or []:
        yield from unknown("evaluation.budget_forcing.models", name, evaluation.models, "evaluation.models", models)


def numbers(given: Given) -> Mistakes:
    """Numbers of votes and tokens that cannot be measured, and files of completions in measures that need an engine."""
    if not (evaluation := given.evaluation):
        return
    files = [name for name in evaluation.models if name in given.models and given.models[name].rollouts]
    if len(files) < len(evaluation.models):
        if max(evaluation.k) > evaluation.samples:
            yield "evaluation.k", f"{max(evaluation.k)} is more than the {evaluation.samples} samples"
        longest = evaluation.decoding.max_tokens
        if "regret" in evaluation.measures and max(evaluation.budgets) > longest:
            yield "evaluation.budgets", f"{max(evaluation.budgets)} is beyond decoding.max_tokens, {longest}"
    if "episode_regret" in evaluation.measures and not {1, 2, 4, 8} <= set(evaluation.votes):
        yield "evaluation.votes", "regret by episodes needs 1, 2, 4 and 8 among them; or leave out that measure"
    if of_mu := needing(evaluation.measures, "prover", "progress"):
        for name in files:
            wrong = f"{name!r} is a file of completions, whose model cannot be asked; leave out {', '.join(of_mu)}"
            yield "evaluation.measures", wrong


def settings(given: Given) -> Mistakes:
    """Parameters of measures that are neither a table nor a setting."""
    for name, measure in measures(given.evaluation.measures if given.evaluation else ()).items():
        for setting in measure.settings:
            if setting not in measuring.SETTINGS:
                known = ", ".join(measuring.SETTINGS)
                yield "evaluation.measures", f"{name}: {setting} is no table that it reads, and no setting: {known}"
        for table in measure.reads:
            if table not in measure.needed and table not in measuring.OPTIONAL:
                yield "evaluation.measures", f"{name}: {table} is a table, whose parameter has no default"


def tokenizers(config: Config) -> Mistakes:
    """A measure that compares tokens of a model with those that another model's tokenizer counts."""
    evaluation = config.evaluation
    if evaluation.mu is None or "early_exit" not in evaluation.measures:
        return
    roots = {lineage.root(config, name) for name in evaluation.models}
    if roots - {lineage.root(config, evaluation.mu)}:
        yield (
            "evaluation.measures",
            "early_exit compares the tokens of a stopped thought, which the tokenizer of evaluation.mu counts, with"
            " those of the whole one; leave out early_exit or mu",
        )


def forcing(given: Given) -> Mistakes:
    """Contradictions in the section `evaluation.budget_forcing`."""
    evaluation, path = given.evaluation, "evaluation.budget_forcing"
    if not evaluation or "budget_forcing" not in evaluation.measures:
        return
    settings, traces = evaluation.budget_forcing, evaluation.prover.traces
    counts = settings.answered()[1:]
    if len(settings.budgets) != len(counts):
        yield f"{path}.budgets", f"{len(settings.budgets)} budgets for {len(counts)} numbers of extensions, {counts}"
    if sorted(settings.budgets) != settings.budgets:
        yield f"{path}.budgets", f"more extensions go with a larger budget (got {settings.budgets})"
    elif settings.budgets and "regret" in evaluation.measures and settings.budgets[0] <= min(evaluation.budgets):
        within = f"evaluation.budgets begins at {min(evaluation.budgets)}"
        yield f"{path}.budgets", f"no budget is left that is not extrapolated: got {settings.budgets}, but {within}"
    if settings.traces and traces and settings.traces > traces:
        yield f"{path}.traces", f"{settings.traces} is more than the {traces} of prover.traces"


def claims(given: Given) -> Mistakes:
    """Models of claims that are not measured."""
    rows = given.raw.get("claims")
    if not given.evaluation or not isinstance(rows, list):
        return
    for i, claim in enumerate(rows):
        for role in ("model", "than", "gains_over"):
            if isinstance(claim, dict) and claim.get(role):
                models = given.evaluation.models
                yield from unknown(
                    f"claims.{i}.{role}", claim[role], models, "evaluation.models", given.section("models")
                )


def claimed_values(config: Config) -> Mistakes:
    """Values of claims that are not measured: such a claim would be missing in the table."""
    for i, claim in enumerate(config.claims):
        other = "than_value" if claim.than_value else "value"
        sides = [("value", claim.model, claim.value), (other, claim.than, claim.than_value or claim.value)]
        for field, model, value in [*sides, ("value", claim.gains_over, claim.value)]:
            measure, number = measure_of(value), re.search(r"\d+", value)
            if measure not in config.evaluation.measures:
                yield f"claims.{i}.{field}", f"{value!r} needs {measure!r} among evaluation.measures"
                continue
            taken = numbers_of(config, measure, model) if model and number else None
            if number and taken is not None and int(number[0]) not in taken:
                known = ", ".join(map(str, taken)) or "nothing"
                yield f"claims.{i}.{field}", f"{value!r} is not measured of {model!r}, but {known} is"


def numbers_of(config: Config, measure: str, model: str) -> list[int] | None:
    """The numbers (k, budgets, extensions) at which a measure of a model is taken; None if any may be."""
    match measure:
        case "maj":
            return measuring.ks(config, model)
        case "regret":
            return measuring.budgets(config, model)
        case "budget_forcing":
            return measuring.forcing(config).answered() if model in measuring.extended(config) else []
        case "linearized":
            return measuring.linearized_ks(config)
    return None


def expectations(given: Given) -> Mistakes:
    """Expected numbers of models and datasets that there are not."""
    if expected := parsed(Expected, given.section("expected")):
        for name in expected.tokens:
            yield from unknown("expected.tokens", name, given.section("models"))
        for name in expected.problems:
            yield from unknown("expected.problems", name, given.section("problems"))


def curves(given: Given) -> Mistakes:
    """Mistakes of the file of curves that were measured elsewhere (`traces.prefix_accuracy`)."""
    if (page := parsed(TracesPage, given.section("traces"))) and (file := page.prefix_accuracy):
        yield from file_mistakes("traces.prefix_accuracy", file, partial(prefix_accuracy, file))
