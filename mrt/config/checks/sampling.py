"""Checks of how completions are sampled, and of the meta-prover."""

from collections.abc import Iterator
from typing import NamedTuple

from mrt.config import lineage, measuring
from mrt.config.checks.given import Given, Mistakes, unknown
from mrt.config.schema import Config
from mrt.episodes.segmentation import splitter
from mrt.grading.task import has_golds, name_of
from mrt.sampling.engine import Decoding
from mrt.sampling.likelihood import EXAMPLES
from mrt.training.rl.recipe import RL


def meta_provers(given: Given) -> Mistakes:
    """Mistakes of mu as one of the models, and numbers of scored traces larger than those of samples."""
    for path, sampling in (("training", given.training), ("evaluation", given.evaluation)):
        if not sampling:
            continue
        if sampling.mu is not None:
            yield from unknown(f"{path}.mu", sampling.mu, given.section("models"))
            judge = given.models.get(sampling.mu)
            if judge and (judge.rollouts or judge.parent):
                why = (
                    "is a file of completions" if judge.rollouts else "is trained here, perhaps on what it would judge"
                )
                yield f"{path}.mu", f"{sampling.mu!r} {why}; name a model that is given"
        if sampling.prover.traces and sampling.prover.traces > sampling.samples:
            yield f"{path}.prover.traces", f"{sampling.prover.traces} is more than the {sampling.samples} samples"


def segmentation(config: Config) -> Mistakes:
    """Mistakes of a user's way to cut thoughts."""
    try:
        splitter(measuring.parameterization(config))
    except ValueError as error:
        yield "segmentation.by", str(error)


class Request(NamedTuple):
    """Completions of one prompt that are sampled at once."""

    path: str  # of their decoding
    decoding: Decoding
    completions: int
    setting: str  # that says how many


def greedy(config: Config) -> Mistakes:
    """Temperature 0 in a request for several completions: they would be the same one, and vLLM refuses it.

    Where nothing is sampled it may be 0.
    """
    for path, decoding, completions, setting in requests(config):
        if completions > 1 and not decoding.temperature:
            why = f"at 0 all {completions} completions would be the same one; set {setting} to 1, or raise it"
            yield f"{path}.temperature", why
    prover = config.training.prover
    scored = prover.estimate == "likelihood" and lineage.sampled_for_training(config, "prover")
    if scored and not prover.decoding.temperature:
        why = f"at 0 all {EXAMPLES} answers from which MRT (STaR) chooses an example would be the same one; raise it"
        yield "training.prover.decoding.temperature", why


def requests(config: Config) -> Iterator[Request]:
    """The requests to engines for training sets and measures."""
    training, evaluation = config.training, config.evaluation
    teachers, scored, searched = (
        lineage.sampled_for_training(config, kind) for kind in ("rollouts", "prover", "trees")
    )
    measured = any(not config.models[name].rollouts for name in evaluation.models)
    for section, sampling, thinks, answers in (
        ("training", training, bool(teachers), bool(scored)),
        ("evaluation", evaluation, measured, measuring.asks_mu(config)),
    ):
        prover = sampling.prover
        if thinks:
            yield Request(f"{section}.decoding", sampling.decoding, sampling.samples, f"{section}.samples")
        if answers and prover.estimate == "answers":
            path = f"{section}.prover"
            yield Request(f"{path}.decoding", prover.decoding, prover.answers, f"{path}.answers")
    if searched:
        tree, path = training.tree, "training.tree"
        yield Request(f"{path}.decoding", tree.decoding, tree.rollouts, f"{path}.rollouts")
        yield Request(f"{path}.decoding", tree.decoding, tree.child_rollouts or 0, f"{path}.child_rollouts")
    if (direct := evaluation.direct) and not config.models[direct.model].rollouts:
        yield Request("evaluation.decoding", evaluation.decoding, direct.samples, "evaluation.direct.samples")
    if measuring.forces(config):
        forcing, path = measuring.forcing(config), "evaluation.budget_forcing"
        yield Request(f"{path}.decoding", forcing.decoding, forcing.answers, f"{path}.answers")
    if chains := measuring.linearized(config):
        path = "evaluation.linearized"
        yield Request(f"{path}.decoding", chains.decoding, chains.samples, f"{path}.samples")


def likelihoods(config: Config) -> Mistakes:
    """J by likelihood on problem sets whose task has no text of the gold answer."""
    for path, datasets in read_off(config).items():
        for name in dict.fromkeys(datasets):
            if (task := config.problems[name].task) and not has_golds(task):
                why = f"the task of problems.{name}, {name_of(task)}, has no texts of gold answers (`golds`)"
                yield path, f"{why}; J cannot be read off, only counted: `estimate: answers`"


def read_off(config: Config) -> dict[str, list[str]]:
    """The problem sets on which J is a likelihood, by the setting that says so."""
    datasets: dict[str, list[str]] = {}
    for name in lineage.trained(config):
        model, recipe = config.models[name], lineage.recipe(config, name)
        if isinstance(recipe, RL) and recipe.estimate == "likelihood" and lineage.variant(config, name).asks_mu:
            datasets[f"models.{name}.rl.estimate"] = [str(model.problems)]
        if config.training.prover.estimate == "likelihood" and "prover" in lineage.sources(config, name):
            datasets.setdefault("training.prover.estimate", []).append(str(model.problems))
    if config.evaluation.prover.estimate == "likelihood" and measuring.asks_mu(config):
        datasets["evaluation.prover.estimate"] = config.evaluation.problems
    return datasets
