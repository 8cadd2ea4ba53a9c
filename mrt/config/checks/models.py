"""Checks of models beside the others: lineage, problems, files, replicates."""

import re
from collections import Counter
from functools import partial
from pathlib import Path

from mrt.config.checks.given import Given, Mistakes, file_mistakes, in_a_circle, parsed, unknown
from mrt.config.sections import Model
from mrt.core.hub import has_chat_template, missing
from mrt.core.settings import overlaid
from mrt.sampling.imports import check_apart, check_ids, completions_in
from mrt.sampling.prompt import Prompt
from mrt.training.log import check_log


def origins(given: Given) -> Mistakes:
    """Mistakes of a model's parent and problems."""
    for name, model in given.models.items():
        path = f"models.{name}"
        if model.parent is not None:
            yield from parents(given, name, model)
        elif model.checkpoint_of is not None:
            yield from on_the_way(given, path, model)
        elif {"recipe", "rules", "rl", "replicate_of", "seed"} & model.model_fields_set:
            yield path, "recipe, rl, rules, seed and replicate_of are for trained models; this one has no parent"
        if model.problems is not None:
            yield from unknown(f"{path}.problems", model.problems, given.section("problems"))
            if model.problems in given.evaluated:
                yield f"{path}.problems", f"{model.problems!r} is an evaluation set; train on another"
        for other in model.evaluate_on or []:
            sets = given.section("problems")
            yield from unknown(f"{path}.evaluate_on", other, given.evaluated, "evaluation.problems", sets)


def on_the_way(given: Given, path: str, model: Model) -> Mistakes:
    """Mistakes of an intermediate checkpoint of a training."""
    yield from unknown(f"{path}.checkpoint_of", str(model.checkpoint_of), given.section("models"))
    of = given.models.get(str(model.checkpoint_of))
    if of and not of.parent:
        yield f"{path}.checkpoint_of", f"{model.checkpoint_of!r} is not trained here"


def parents(given: Given, name: str, model: Model) -> Mistakes:
    """Mistakes of the parent of a trained model."""
    path, parent = f"models.{name}", given.models.get(str(model.parent))

    def parent_of(other: str) -> list[str]:
        ancestor = given.models[other].parent if other in given.models else None
        return [ancestor] if ancestor else []

    yield from unknown(f"{path}.parent", str(model.parent), given.section("models"))
    if in_a_circle(name, parent_of):
        yield f"{path}.parent", "its ancestors go round in a circle"
    if parent and parent.rollouts:
        yield f"{path}.parent", f"{model.parent!r} is a file of completions; there are no weights to train from"
    if model.accumulate and parent and parent.method != model.method:
        yield f"{path}.accumulate", f"{model.parent!r} has no training set of method {model.method} to add to"


def files(given: Given) -> Mistakes:
    """Mistakes of logs, checkpoint folders, and names that no model of the hub can have."""
    for name, model in given.models.items():
        path = f"models.{name}"
        if model.training_log:
            yield from file_mistakes(f"{path}.training_log", model.training_log, partial(check_log, model.training_log))
            if model.parent:
                yield f"{path}.training_log", "this model is trained here, and has a log of its own"
        if model.path is None or (model.architecture is not None and not Path(model.path).is_dir()):
            continue  # with `architecture` given, the folder may be made before it is used
        folder = Path(model.path)
        if folder.is_dir() and (lacking := missing(folder)):
            why = f"{folder} is no whole checkpoint, with weights as safetensors: it lacks {', '.join(lacking)}"
            yield f"{path}.path", why
        elif folder.is_dir() and not has_chat_template(folder):
            wanted = "chat_template.jinja, or chat_template in tokenizer_config.json"
            yield f"{path}.path", f"{folder} has no chat template, by which a problem becomes a prompt: {wanted}"
        elif not folder.is_dir() and not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", model.path):
            why = f"there is no folder {model.path!r} in {Path.cwd()}, and a model of the hub has no such name"
            yield f"{path}.path", why


def completions(given: Given) -> Mistakes:
    """Files of completions that lack some of a problem that is measured, or learnt from."""
    for name, model in given.models.items():
        if not model.rollouts:
            continue
        most, asks = max(completions_taken(given, name), default=(0, ""))
        measured = (model.evaluate_on or given.evaluated) if most else []
        taught = [pupil.problems for pupil in given.models.values() if pupil.problems and pupil.teacher == name]
        needed = dict.fromkeys(taught, (1, "a training")) | dict.fromkeys(measured, (most, asks))
        check = partial(check_completions, given, model, needed)
        yield from file_mistakes(f"models.{name}.rollouts.file", model.rollouts.file, check)


def completions_taken(given: Given, name: str) -> list[tuple[int, str]]:
    """Numbers of completions of a problem that measures of a model take, and what asks; empty if it is not measured."""
    if not (evaluation := given.evaluation):
        return []
    votes = (max(evaluation.k), "evaluation.k") if "maj" in evaluation.measures else (1, "evaluation.measures")
    direct = evaluation.direct if evaluation.direct and evaluation.direct.model == name else None
    of_direct = [(max(direct.k), "evaluation.direct.k")] if direct else []
    return [*([votes] if name in evaluation.models else []), *of_direct]


def check_completions(given: Given, model: Model, needed: dict[str, tuple[int, str]]) -> None:
    """Raise ValueError if a file lacks completions of a problem: as many of each as are `needed`, by dataset."""
    assert model.rollouts
    file = model.rollouts.file
    rows = completions_in(file, model.rollouts)
    completions_of = Counter(row.problem_id for row in rows)
    known = {name: problems for name in needed if (problems := given.problems_of(name)) is not None}
    check_apart(file, rows, known)
    for dataset, problems in known.items():
        count, asks = needed[dataset]
        check_ids(file, rows, problems, dataset)
        counts = completions_of & Counter(dict.fromkeys(problems, len(rows)))
        fewest = min(counts, key=lambda problem: counts[problem])
        if counts[fewest] < count:
            has = f"{counts[fewest]} completion{'s' * (counts[fewest] != 1)} of problem {fewest!r} of {dataset}"
            raise ValueError(f"{file} has {has}, and {asks} asks for {count}")


def cold_starts(given: Given) -> Mistakes:
    """Contradictions in the settings of a cold start."""
    shared = parsed(Prompt, given.section("prompt"))
    for name, model in given.models.items():
        if model.teacher is not None:
            yield from unknown(f"models.{name}.teacher", model.teacher, given.section("models"))
            continue
        parent = given.models.get(str(model.parent)) if model.method == "cold_start" else None
        if shared and parent and not parent.method and overlaid(shared, parent.prompt).opens_thought:
            wrong = 'its prompt opens a thought, in which it would not answer; set its `prompt: {open_thought: ""}`'
            yield f"models.{model.parent}.prompt", wrong


def replicates(given: Given) -> Mistakes:
    """Contradictions in the settings of a replicate."""
    for name, model in given.models.items():
        if model.replicate_of is None:
            continue
        path = f"models.{name}.replicate_of"
        yield from unknown(path, model.replicate_of, given.section("models"))
        if (original := given.models.get(model.replicate_of)) and original.replicate_of:
            yield path, f"{model.replicate_of!r} is a replicate itself; name the model that it repeats"
        if model.seed is None:
            yield f"models.{name}.seed", "a replicate needs a seed, other than that of the model that it repeats"


def labels(given: Given) -> Mistakes:
    """Labels that several models have."""
    for label, count in Counter(model.label for model in given.models.values() if model.label).items():
        if count > 1:
            yield "models", f"several have the label {label!r}; figures could not tell them apart"
