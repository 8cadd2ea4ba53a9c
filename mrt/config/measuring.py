"""Samples and measures: of which models, on which datasets, how many completions, by which mu."""

from collections.abc import Callable, Mapping
from itertools import takewhile
from math import inf
from typing import Any

from mrt.analysis.measure import Measure, Read, needing, needs
from mrt.config import lineage
from mrt.config.schema import Config
from mrt.config.sections import SamplingSettings
from mrt.core.digest import turns_off
from mrt.core.settings import overlaid
from mrt.episodes.parameterization import OpenEnded, Parameterization
from mrt.figures.looks import LINES, Style, looks
from mrt.sampling.allocation import Thresholds
from mrt.sampling.budget_forcing import BudgetForcing
from mrt.sampling.linearized import Linearized


def parameterization(config: Config) -> Parameterization:
    """How completions are cut into episodes and how the meta-prover answers."""
    return config.backtracking or OpenEnded(segmentation=config.segmentation, template=config.template)


def used_problems(config: Config) -> list[str]:
    """The datasets that models are trained or measured on, and those that these must be disjoint from."""
    waiting = [*config.evaluation.problems, *(m.problems for m in config.models.values() if m.problems)]
    used: dict[str, None] = {}
    while waiting:
        if (name := waiting.pop(0)) not in used:
            used[name] = None
            waiting += config.problems[name].disjoint_from
    return list(used)


def measured_on(config: Config, name: str) -> list[str]:
    """Evaluation sets that a model is measured on."""
    evaluated = config.evaluation.problems
    return [dataset for dataset in evaluated if dataset in (config.models[name].evaluate_on or evaluated)]


def measured_runs(config: Config) -> list[str]:
    """The models of the evaluation and their replicates."""
    return [run for name in config.evaluation.models for run in lineage.runs(config, name)]


def measured_checkpoints(config: Config) -> list[str]:
    """The checkpoints on the way of measured models, beside those that `evaluation.models` names."""
    measured = measured_runs(config)
    return [name for name in lineage.checkpoints(config, measured) if name not in measured]


def sampling_on(config: Config, dataset: str) -> SamplingSettings:
    """The sampling settings of a dataset: the evaluation's on its sets, else the training's."""
    return config.evaluation if dataset in config.evaluation.problems else config.training


def mu(config: Config, name: str, dataset: str) -> str:
    """The meta-prover of a model's thoughts on a dataset: by default the model itself."""
    return sampling_on(config, dataset).mu or name


def sampler(config: Config, rule: str, name: str, dataset: str) -> str:
    """The model whose engine a rule's job runs on a dataset: mu for forced answers, else the job's model itself."""
    return mu(config, name, dataset) if rule == "force_answers" else name


def asks_mu(config: Config) -> bool:
    """Whether a measure asks the meta-prover."""
    return bool(needing(config.evaluation.measures, "prover", "progress"))


def samples(config: Config, name: str, dataset: str) -> int:
    """Rollouts per problem sampled from a model on a dataset."""
    settings, direct = sampling_on(config, dataset), config.evaluation.direct
    without_thought = direct.samples if direct and direct.model == name and settings is config.evaluation else 0
    usual = settings.samples if name in config.evaluation.models or not without_thought else 0
    return max(without_thought, usual)


def ks(config: Config, name: str) -> list[int]:
    """The k at which maj@k and pass@k of a model are measured."""
    direct = config.evaluation.direct
    measured = [*measured_runs(config), *measured_checkpoints(config)]
    votes = config.evaluation.k if name in measured else []
    return sorted({*votes, *(direct.k if direct and direct.model == name else [])})


def inserted_tokens(config: Config, name: str) -> int | None:
    """Tokens that a model's prompt inserts in place of a thought, if it is the direct baseline."""
    direct = config.evaluation.direct
    return direct.inserted_tokens if direct and direct.model in (name, config.models[name].replicate_of) else None


def filters(config: Config, name: str, dataset: str) -> list[Thresholds]:
    """Thresholds of MRT (STaR)'s filters that decide where a model's answers on a dataset are sampled.

    Empty: at all prefixes; with `estimate: likelihood`, nowhere.

    They are the filters of its children that train on its traces of this dataset.
    """
    scored = config.training.prover.estimate == "likelihood"
    if not (config.training.allocation or scored) or dataset in config.evaluation.problems:
        return []
    limits = {each.limits for each in readers_of_J(config, name, dataset) if each}
    return [Thresholds(**dict(zip(Thresholds.model_fields, values, strict=True))) for values in sorted(limits)]


def asks_everywhere(config: Config, name: str, dataset: str) -> bool:
    """Whether a method that has no filter reads a model's answers on a dataset, those at all prefixes."""
    return None in readers_of_J(config, name, dataset)


def readers_of_J(config: Config, name: str, dataset: str) -> list[Thresholds | None]:
    """The filters of the models that learn from a model's answers on a dataset; None of a method without a filter."""
    children = [m for m in config.models.values() if m.method and (m.parent, m.problems) == (name, dataset)]
    settings = [m.method_settings for m in children if "prover" in m.trained_by.reads]
    return [each if isinstance(each, Thresholds) else None for each in settings]


def linearized(config: Config) -> Linearized | None:
    """How linearized search is run, if it is measured."""
    return config.evaluation.linearized if needing(config.evaluation.measures, "linearized") else None


def linearized_ks(config: Config) -> list[int]:
    """The k at which linearized search is measured: 1, 2, 4, ... and the number of attempts."""
    attempts = config.evaluation.linearized.attempts if config.evaluation.linearized else 0
    return sorted({*(2**i for i in range(attempts.bit_length()) if 2**i <= attempts), attempts} - {0})


def forcing(config: Config) -> BudgetForcing:
    """How thoughts are extended; by default, as many traces per problem as the meta-prover scores."""
    settings = config.evaluation.budget_forcing.model_dump(exclude={"models", "budgets"})
    return BudgetForcing.model_validate(settings | {"traces": settings["traces"] or config.evaluation.prover.traces})


def extended(config: Config) -> list[str]:
    """Models that budget forcing is applied to: the named ones among those evaluated and sampled here, all runs."""
    if config.backtracking:  # there is no thought to extend
        return []
    named = config.evaluation.budget_forcing.models or config.evaluation.models
    names = [name for name in config.evaluation.models if name in named and not config.models[name].rollouts]
    return [run for name in names for run in lineage.runs(config, name)]


def forces(config: Config) -> bool:
    """Whether budget forcing is measured."""
    return bool(needing(config.evaluation.measures, "budget_forcing") and extended(config))


def budgets(config: Config, name: str) -> list[int]:
    """The budgets C_0 at which regret of a model is measured, those of budget forcing included."""
    forced = extrapolated_budgets(config, name) or []
    return [c for c in config.evaluation.budgets if c < min(forced, default=inf)] + forced


def extrapolated_budgets(config: Config, name: str) -> list[int] | None:
    """The budgets of budget forcing; None of a model whose regret does not go on through its forced extensions.

    None beside another mu too, and beside likelihoods: their J would be another curve's.
    """
    evaluation = config.evaluation
    same_J = evaluation.mu is None and evaluation.prover.estimate == "answers"
    extrapolates = "budget_forcing" in evaluation.measures and same_J and name in extended(config)
    return evaluation.budget_forcing.budgets if extrapolates else None


def iteration(config: Config, name: str) -> int:
    """How often a model's method ran in a row; 0 of a model that is not trained here."""
    name = lineage.training_of(config, name)
    method = config.models[name].method
    methods = [config.models[ancestor].method for ancestor in lineage.ancestry(config, name)]
    return len(list(takewhile(lambda m: m == method, methods))) if method else 0


def look(config: Config, name: str) -> Style:
    """Colour, marker and line of a model, by its place in the file and as its `style` says.

    A further run of a training has the first run's colour and marker and another line. A checkpoint on the way looks
    like its model.
    """
    if of := config.models[name].checkpoint_of:
        return look(config, of)
    models = {name: model for name, model in config.models.items() if not model.checkpoint_of}
    first = {m: lineage.first_run(config, m) for m in models}
    colours = {m: models[m].trained_by.colour if models[m].method else None for m in models if first[m] == m}
    by_place = looks({m: (colour, iteration(config, m)) for m, colour in colours.items()})[first[name]]
    again = [m for m in models if first[m] == first[name] != m]
    if name in again:
        place = LINES.index(str(by_place.line)) + 1 + again.index(name)
        by_place = by_place.model_copy(update={"line": LINES[place % len(LINES)]})
    return overlaid(by_place, models[name].style)


def style(config: Config, name: str) -> dict[str, Any]:
    """How a model appears in figures: label, method, look, ancestors and iteration (of its method, in a row)."""
    model = config.models[name]
    trained = config.models[lineage.training_of(config, name)]
    on_the_way = {"checkpoint_of": model.checkpoint_of, "step": model.step} if model.checkpoint_of else {}
    return {
        "label": model.label or name,
        "method": trained.method or "base",
        **look(config, name).model_dump(),
        "iteration": iteration(config, name),
        "parameterization": parameterization(config).kind,
        "ancestors": list(lineage.trained_from(config, name)),
        "replicate_of": model.replicate_of,
        **on_the_way,
    }


SETTINGS: dict[str, Callable[[Config, str], Any]] = {  # of a model, by the parameters of measures that take them
    "closing": lambda config, _: parameterization(config).closing,
    "ks": ks,
    "inserted": inserted_tokens,
    "attempts": lambda config, _: linearized_ks(config),
    "votes": lambda config, _: config.evaluation.votes,
    "weighted": lambda config, _: config.evaluation.weighted_votes,
    "budgets": lambda config, _: config.evaluation.budgets,
    "extrapolated": extrapolated_budgets,
    "axis": lambda config, _: config.evaluation.regret_tokens,
    "every": lambda config, _: config.evaluation.prover.every,
}
OPTIONAL: dict[str, Callable[[Config, str], Any]] = {"forced": extrapolated_budgets}  # tables that some models have


def settings_of(config: Config, measure: Measure, name: str) -> dict[str, Any]:
    """The settings of a measure of a model; one that is off is left out."""
    values = {parameter: SETTINGS[parameter](config, name) for parameter in measure.settings}
    return {parameter: value for parameter, value in values.items() if not turns_off(value)}


def tables_of(config: Config, measure: Measure, name: str) -> dict[str, Read]:
    """The tables that a measure of a model reads, by parameter."""
    given = {table for table in measure.reads if table in OPTIONAL and OPTIONAL[table](config, name)}
    return {table: read for table, read in measure.reads.items() if table in {*measure.needed, *given}}


def is_measurable(config: Config, known: Mapping[str, Measure], measure: str, name: str) -> bool:
    """Whether a model has the tables that a measure needs: not all are extended, and search in a row is optional."""
    if needs(known, measure, "linearized") and not config.evaluation.linearized:
        return False
    return name in extended(config) or not needs(known, measure, "budget_forcing")
