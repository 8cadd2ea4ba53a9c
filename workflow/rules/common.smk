# What all rules share: the typed config, paths, and the slices of the config that rules carry.
import json
from pathlib import Path

from mrt.config import load, slice_of

try:
    experiment = load(config)
except ValueError as error:
    raise WorkflowError(str(error))

RESULTS = str(experiment.results)
TRAINED = [name for name, model in experiment.models.items() if model.parent]
SAMPLED = [name for name, model in experiment.models.items() if not model.rollouts]
ANALYSIS, INFERENCE, TRAINING = (f"../../envs/{kind}.yaml" for kind in ("analysis", "inference", "training"))


def any_of(names):
    """A wildcard constraint that matches just these names."""
    return "|".join(names) or "(?!)"


wildcard_constraints:
    model=any_of(experiment.models),
    dataset=any_of(experiment.problems),


def artifact(kind, suffix="parquet"):
    """Path pattern of an artifact of a model on a problem set."""
    return f"{RESULTS}/{kind}/{{model}}/{{dataset}}.{suffix}"


def log_of(rule_name, *wildcards):
    return str(Path("logs", experiment.results.name, rule_name, *[f"{{{w}}}" for w in wildcards])) + ".log"


def checkpoint_folder(name):
    """Folder of a model's weights on this disk, or None for a hub model."""
    model = experiment.models[name]
    if model.parent:
        return f"{RESULTS}/models/{name}"
    if model.toy:
        return "mrt/toy/weights" if model.toy == "shipped" else f"{RESULTS}/models/toy_base"
    return None


def checkpoint_input(wildcards):
    """The weights as an input: nothing to wait for if they are on the hub."""
    folder = checkpoint_folder(wildcards.model)
    return [folder] if folder else []


def model_options(wildcards):
    """Command-line options that name a model's weights."""
    model = experiment.models[wildcards.model]
    revision = f" --revision {model.revision}" if model.revision else ""
    return f"--model {checkpoint_folder(wildcards.model) or model.path}{revision}"


def draws(wildcards):
    return experiment.draws(wildcards.dataset)


def problem_file(wildcards):
    file = experiment.problems[wildcards.dataset].file
    return [str(file)] if file else []


def of_parent(kind, suffix="parquet"):
    """The parent's artifact on the model's training problems."""

    def path(wildcards):
        model = experiment.models[wildcards.model]
        return artifact(kind, suffix).format(model=model.parent, dataset=model.problems)

    return path


def template_of(wildcards):
    return slice_of(experiment.draws(experiment.models[wildcards.model].problems).prover.template)


def trained_with(method):
    return any_of([name for name in TRAINED if experiment.models[name].method == method])


def sets_rules():
    """Tables of what each training set kept and dropped."""
    wanted = {a for name in experiment.evaluation.models for a in experiment.lineage(name)} & set(TRAINED)
    return [f"{RESULTS}/sets/{name}.rules.parquet" for name in sorted(wanted)]


def parent_checkpoint(wildcards):
    folder = checkpoint_folder(experiment.models[wildcards.model].parent)
    return [folder] if folder else []


def parent_name(wildcards):
    parent = experiment.models[wildcards.model].parent
    return checkpoint_folder(parent) or experiment.models[parent].path


FIGURES = {  # figure: the measure that it draws
    "maj_tokens": "maj",
    "regret": "regret",
    "scaling": "prefixes",
    "episode_counts": "episodes",
    "progress": "progress",
}


def measure_path(measure):
    return artifact("progress") if measure == "progress" else artifact("metrics", f"{measure}.parquet")


def measured(measure):
    """The measure's tables: {model: {problem set: path}}."""
    path = measure_path(measure)
    return {
        m: {d: path.format(model=m, dataset=d) for d in experiment.measured_on(m)} for m in experiment.evaluation.models
    }


def measured_files(measure):
    return [path for sets in measured(measure).values() for path in sets.values()]


def tables():
    return f"{RESULTS}/tables/pass1.md" if "accuracy" in experiment.evaluation.measures else []


def figures():
    wanted = [f for f, measure in FIGURES.items() if measure in experiment.evaluation.measures]
    return expand(f"{RESULTS}/figures/{{figure}}.png", figure=wanted)


def model_styles():
    return json.dumps({m: experiment.style(m) for m in experiment.evaluation.models})
