# What all rules share: the typed config, paths, and the slices of the config that rules carry.
import json

from mrt.config import load, slice_of

try:
    experiment = load(config)
except ValueError as error:
    raise WorkflowError(str(error))

RESULTS = str(experiment.results)
TRAINED = [name for name, model in experiment.models.items() if model.parent]
SAMPLED = [name for name, model in experiment.models.items() if not model.rollouts]
ANALYSIS, INFERENCE, TRAINING = (
    f"../../envs/{kind}.yaml" for kind in ("analysis", "inference", "training")
)


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
    return "/".join(["logs", RESULTS.replace("/", "_"), rule_name, *[f"{{{w}}}" for w in wildcards]]) + ".log"


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
