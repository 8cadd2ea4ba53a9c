# What all rules share: the typed config, paths, and the slices of the config that rules carry.
import json
from functools import cache
from pathlib import Path

from mrt.config import load, slice_of
from mrt.fingerprint import digest_of_files, fingerprint, identity_of_model

try:
    experiment = load(config, workflow.configfiles)
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


def code_of(stage):
    """Fingerprint of the code that a stage runs: in params, where Snakemake sees it change."""
    return fingerprint(f"mrt.{stage}", with_versions=experiment.track_versions)


TRACK_VERSIONS = "" if experiment.track_versions else " --track_versions false"


def made_checkpoint(name):
    """Folder of the weights of a model that this workflow makes; of others None."""
    model = experiment.models[name]
    if model.parent:
        return f"{RESULTS}/models/{name}"
    return f"{RESULTS}/models/toy_base" if model.toy == "remade" else None


def weights_input(name):
    """The weights as an input. Given ones are none: their content stands in params, so that dates do not matter."""
    folder = made_checkpoint(name)
    return [folder] if folder else []


def given_path(name):
    model = experiment.models[name]
    return "mrt/toy/weights" if model.toy == "shipped" else model.path


def model_options(name):
    """Command-line options that name a model's weights."""
    model = experiment.models[name]
    revision = f" --revision {model.revision}" if model.revision else ""
    return f"--model {made_checkpoint(name) or given_path(name)}{revision}{TRACK_VERSIONS}"


@cache
def identity_of(name):
    """Content of given weights; of those that this workflow makes, nothing: they are an input."""
    return None if made_checkpoint(name) else identity_of_model(given_path(name), experiment.models[name].revision)


def engine_options(wildcards, threads):
    """All engine settings. Snakemake does not compare params that are made from threads, and most of these settings
    change nothing in what is sampled; `engine_decides` has the others.
    """
    return slice_of(experiment.engine)


def engine_decides():
    return [experiment.engine.max_model_len, experiment.engine.dtype]


def draws(wildcards):
    return experiment.draws(wildcards.dataset)


def problem_file(wildcards):
    file = experiment.problems[wildcards.dataset].file
    return [str(file)] if file else []


def content_of(file):
    """Content of a given file, for params: there, unlike as an input, its date does not matter."""
    return digest_of_files([Path(file)]) if file else None


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


def trained_ancestors():
    """The trained models among those that are measured and all that these descend from."""
    return {a for name in experiment.evaluation.models for a in experiment.lineage(name)} & set(TRAINED)


def contamination_checks():
    """For each set that a measured model descends from."""
    used = {experiment.models[name].problems for name in trained_ancestors()}
    return [f"{RESULTS}/problems/{d}.contamination.parquet" for d in sorted(used)]


def sets_rules():
    """Tables of what each training set kept and dropped."""
    return [f"{RESULTS}/sets/{name}.rules.parquet" for name in sorted(trained_ancestors())]


def parent_of(wildcards):
    return experiment.models[wildcards.model].parent


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
