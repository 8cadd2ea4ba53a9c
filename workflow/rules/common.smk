# What all rules share: the typed config, paths, and the slices of the config that rules carry.
import json
from functools import cache
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from mrt.config.load import load
from mrt.config.schema import RL_METHODS, TREE_METHODS
from mrt.core.digest import digest_of_files, identity_of_model, slice_of
from mrt.core.fingerprint import fingerprint
from mrt.config.memory import host_bytes
from mrt.planning.bill import Bill

try:
    experiment = load(config, workflow.configfiles)
except ValueError as error:
    raise WorkflowError(str(error))

RESULTS = str(experiment.results)
TRAINED = [name for name, model in experiment.models.items() if model.parent]
LOGGED = [name for name, model in experiment.models.items() if model.training_log]
SHARDS = experiment.cluster.shards
BILL = Bill(experiment)
SAMPLED = [name for name, model in experiment.models.items() if not model.rollouts]
FORCING = slice_of(experiment.parameterization, without="segmentation")  # what mu needs to answer
ANALYSIS, INFERENCE, TRAINING = (f"../../envs/{kind}.yaml" for kind in ("analysis", "inference", "training"))


def any_of(names):
    """A wildcard constraint that matches just these names."""
    return "|".join(names) or "(?!)"


wildcard_constraints:
    model=any_of(experiment.models),
    dataset=any_of(experiment.problems),


def artifact(kind, suffix="parquet"):
    """Path pattern of an artifact of a model on a dataset."""
    return f"{RESULTS}/{kind}/{{model}}/{{dataset}}.{suffix}"


def log_of(rule_name, *wildcards):
    return str(Path("logs", experiment.results.name, rule_name, *[f"{{{w}}}" for w in wildcards])) + ".log"


@cache
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


def model_options(name):
    """Command-line options that name a model's weights."""
    model = experiment.models[name]
    revision = f" --revision {quote(model.revision)}" if model.revision else ""
    return f"--model {quote(made_checkpoint(name) or experiment.weights(name))}{revision}{TRACK_VERSIONS}"


@cache
def identity_of(name):
    """Content of given weights; of those that this workflow makes, nothing: they are an input."""
    return (
        None if made_checkpoint(name) else identity_of_model(experiment.weights(name), experiment.models[name].revision)
    )


def engine_options(wildcards, threads):
    """All engine settings. Snakemake does not compare params that are made from threads, and most of these settings
    change no distribution that is sampled from (docs/operations.md); `engine_decides` has the others.
    """
    gpus, longest = experiment.sampling_gpus(wildcards.model), experiment.longest(wildcards.model)
    sizes = {"tensor_parallel_size": gpus if gpus > 1 else None, "max_model_len": longest}
    return slice_of(experiment.engine.model_copy(update=sizes))


def engine_decides(wildcards):
    return [experiment.longest(wildcards.model), experiment.engine.dtype]


def reported_to(wildcards, threads):
    """Options that say where trainers log; made from threads, as they change no result."""
    return " ".join(f"--report_to {name}" for name in experiment.training.report_to)


def extrapolates(name):
    """Whether a model's regret goes on through its forced extensions."""
    return experiment.extrapolates and name in experiment.extended


def extrapolated_budgets(name):
    return experiment.evaluation.budget_forcing.budgets if extrapolates(name) else []


def prover_stage(wildcards):
    """The stage that forces answers: at all prefixes as many, or as many as training sets need."""
    return "allocation" if experiment.filters(wildcards.model, wildcards.dataset) else "prover"


def golds_to_allocate(wildcards):
    allocated = experiment.filters(wildcards.model, wildcards.dataset)
    return f"{RESULTS}/problems/{wildcards.dataset}.parquet" if allocated else []


def allocation_options(wildcards):
    """Options of the stage `allocation` that `prover` has not."""
    filters = experiment.filters(wildcards.model, wildcards.dataset)
    if not filters:
        return ""
    listed = "[" + ", ".join(map(slice_of, filters)) + "]"
    return (
        f" --problems {quote(f'{RESULTS}/problems/{wildcards.dataset}.parquet')}"
        f" --allocation {quote(slice_of(experiment.training.allocation))} --filters {quote(listed)}"
    )


def parts_of(kind):
    """Marks of the parts that sampling is spread over, inputs of the job that gathers what they drew."""
    parts = [f"{RESULTS}/.cache/{kind}/{{model}}/{{dataset}}/part-{i}-of-{SHARDS}" for i in range(SHARDS)]
    return parts if SHARDS > 1 else []


def gathered(wildcards, threads):
    """The option of the job that gathers what parts drew; made from threads, as it changes no result."""
    return f" --keep.gather {SHARDS}" if SHARDS > 1 else ""


def launched(wildcards, threads):
    """Options that start a training's processes; made from threads, as they change results within rounding only."""
    nodes, processes = experiment.training_processes(wildcards.model)
    return f"--nodes {nodes} --processes {processes} --cpus {training_cores(wildcards, threads)}"


def sampling_gpus(wildcards):
    return experiment.sampling_gpus(wildcards.model)


def spread_gpus(wildcards):
    """GPUs of a stage that parts can do: where they do, the job that gathers needs none."""
    return 0 if SHARDS > 1 else sampling_gpus(wildcards)


def training_gpus(wildcards):
    """GPUs of a training on one node; of several, `gres` has them a node."""
    nodes, processes = experiment.training_processes(wildcards.model)
    return processes if experiment.cluster.gpu and nodes == 1 else 0


def training_gres(wildcards):
    nodes, processes = experiment.training_processes(wildcards.model)
    kind = f"gpu:{experiment.cluster.slurm_type}" if experiment.cluster.slurm_type else "gpu"
    return f"{kind}:{processes}" if experiment.cluster.gpu and nodes > 1 else ""


def nodes(wildcards):
    return experiment.training_processes(wildcards.model)[0]


def gpu_model(gpus):
    """The type of GPU to ask for, of jobs that ask for any."""
    return lambda w: experiment.cluster.slurm_type or "" if gpus(w) else ""


def cores(gpus):
    """CPU cores of a job: some with each GPU, else its threads. Snakemake caps threads at what the login node has."""
    own = experiment.cluster.cpus_per_gpu
    return lambda w, threads: max(threads, own * gpus(w))


def training_cores(wildcards, threads):
    """CPU cores of a training, on each node."""
    gpus = experiment.training_processes(wildcards.model)[1] if experiment.cluster.gpu else 0
    return cores(lambda w: gpus)(wildcards, threads)


def sampling_memory(wildcards, attempt):
    """Memory of a job in MB, more at each attempt: libraries, cache and prompts, and the model's file, 4 bytes a
    parameter.
    """
    size = experiment.architecture(wildcards.model).parameters if experiment.cluster.gpu else 0
    return round(attempt * 1024 * (4 + experiment.engine.cpu_cache_gib + 4 * size / 2**30))


def training_memory(wildcards, attempt):
    """Memory of a training's node in MB, more at each attempt; with GPUs as mrt/config/memory.py has it."""
    if not experiment.cluster.gpu:
        return round(attempt * 1024 * (4 + experiment.engine.cpu_cache_gib))
    size = experiment.architecture(wildcards.model)
    return round(attempt * host_bytes(size, *experiment.training_processes(wildcards.model)) / 2**20)


@cache
def minutes(*planned):
    return BILL.runtime(*planned)


def time_limit(rule, parts=1):
    """Minutes of a job, more at each attempt."""

    def runtime(wildcards, attempt):
        problems = wildcards.get("dataset") or experiment.models[wildcards.model].problems
        return attempt * minutes(rule, wildcards.model, problems, parts)

    return runtime


def sampling_resources(rule, gpus, parts=1):
    """What a job asks for that samples: the GPUs of one engine, all on one node."""
    return {
        "gpu": gpus,
        "gpu_model": gpu_model(gpus),
        "nodes": 1,
        "cpus_per_task": cores(gpus),
        "mem_mb": sampling_memory,
        "runtime": time_limit(rule, parts),
    }


def training_resources(rule):
    """What a job asks for that trains: the GPUs of a node, or of several nodes, which `srun` then starts it on."""
    return {
        "gpu": training_gpus,
        "gpu_model": gpu_model(training_gpus),
        "gres": training_gres,
        "nodes": nodes,
        "tasks": nodes,
        "tasks_per_gpu": 0,  # else SLURM wants so many tasks for each GPU, and the job waits for ever
        "mpi": lambda w: "srun" if nodes(w) > 1 else "",  # else the plugin starts it on one node
        "cpus_per_task": training_cores,
        "mem_mb": training_memory,
        "runtime": time_limit(rule),
    }


def prompt_of(wildcards):
    return slice_of(experiment.models[wildcards.model].prompt or experiment.prompt)


def draws(wildcards):
    return experiment.sampling(wildcards.dataset)


def problem_file(wildcards):
    file = experiment.problems[wildcards.dataset].file
    return [str(file)] if file else []


def content_of(file):
    """Content of a given file, for params: there, unlike as an input, its date does not matter."""
    return digest_of_files([Path(file)]) if file else None


def of_parent(kind, suffix="parquet"):
    """The artifact, on the model's training problems, of its parent, or of the teacher of a cold start."""

    def path(wildcards):
        problems = experiment.models[wildcards.model].problems
        return artifact(kind, suffix).format(model=experiment.learns_from(wildcards.model), dataset=problems)

    return path


def option(name):
    """The command-line option that names an input, if the rule has that input."""
    return lambda w, input: f"--{name} {quote(getattr(input, name))}" if getattr(input, name) else ""


def of_parent_for(kind, *methods):
    """The parent's artifact, of models that these methods train: others do not rest on it."""
    return lambda w: of_parent(kind)(w) if experiment.models[w.model].method in methods else []


def trained_with(*methods):
    return any_of([name for name in TRAINED if experiment.models[name].method in methods])


def trained_ancestors():
    """The trained models among those that are measured and all that these descend from."""
    return {a for name in experiment.evaluation.models for a in experiment.lineage(name)} & set(TRAINED)


def by_rl():
    """Models that RL trains."""
    return {name for name in TRAINED if experiment.models[name].method in RL_METHODS}


def contamination_checks():
    """For each set that a measured model descends from."""
    used = {experiment.models[name].problems for name in trained_ancestors()}
    return [f"{RESULTS}/problems/{d}.contamination.parquet" for d in sorted(used)]


def sets_rules():
    """Tables of what each training set kept and dropped."""
    return [f"{RESULTS}/sets/{name}.rules.parquet" for name in sorted(trained_ancestors() - by_rl())]


def parents_cost(wildcards):
    """What the parent's training took, if it was trained here."""
    parent = parent_of(wildcards)
    return f"{RESULTS}/costs/{parent}.parquet" if parent in TRAINED else []


def parent_of(wildcards):
    return experiment.models[wildcards.model].parent


class Drawn(NamedTuple):
    """A figure or table: its section of the report, the measures that it reads, and its numbers in the paper, or the
    place there of one without a number; whether it is a table, and whether it is of all training runs, replicates too.
    """

    section: str
    measures: list[str]
    numbers: list[str]
    place: str = ""
    table: bool = False
    runs: bool = False


RESULT, REGRET, CASE, TRAINED_HOW = (
    "1 Accuracy and token efficiency (Section 8.2, 8.3)",
    "2 Regret (Section 8.5.1, Appendices E, F)",
    "3 Episodes and progress (Sections 5, 6)",
    "4 Training (Section 8.5.2, Appendix A)",
)
DRAWN = {
    "pass1": Drawn(RESULT, ["accuracy"], ["table1"], table=True),
    "token_efficiency": Drawn(RESULT, ["maj", "linearized"], [], "Section 8.3", table=True),
    "maj_tokens": Drawn(RESULT, ["maj", "linearized"], ["fig7", "fig8", "fig19"]),
    "pass_tokens": Drawn(RESULT, ["maj", "linearized"], ["fig17", "fig18", "fig20"]),
    "regret": Drawn(REGRET, ["regret"], ["fig9", "fig12"]),
    "episode_regret": Drawn(REGRET, ["episode_regret"], ["fig26"]),
    "budget_forcing": Drawn(REGRET, ["budget_forcing"], ["fig29"]),
    "scaling": Drawn(CASE, ["prefixes", "direct"], ["fig3", "fig24", "fig25", "fig27", "fig28"]),
    "episode_counts": Drawn(CASE, ["episodes"], ["fig23"]),
    "progress": Drawn(CASE, ["progress"], ["fig16"]),
    "backtrack": Drawn(CASE, ["traces", "progress"], ["fig13"]),
    "length": Drawn(TRAINED_HOW, ["rl_log"], ["fig10"]),
    "reward": Drawn(TRAINED_HOW, ["rl_log"], ["fig11"]),
    "constructions": Drawn(TRAINED_HOW, ["constructions", "trees"], ["fig14"]),
    "loss": Drawn(TRAINED_HOW, ["sft_log"], ["fig15"]),
    "cost": Drawn(TRAINED_HOW, ["cost", "accuracy", "regret"], [], "Section 9", runs=True),
    "runs": Drawn(TRAINED_HOW, ["cost", "accuracy", "regret"], [], "Section 9", table=True, runs=True),
}
LACKING = {  # measures that not every experiment has, and what it takes
    "sft_log": "a model with a parent",
    "rl_log": "a model that RL trained, or one with a training_log",
    "cost": "a model with a parent",
    "constructions": "a model of method warmstart, rise or rejection",
    "traces": "backtracking",
}


def measure_path(measure):
    of_others = {
        "progress": artifact("progress"),
        "traces": artifact("episodes"),
        "direct": artifact("metrics", "maj.parquet"),
    }
    return of_others.get(measure, artifact("metrics", f"{measure}.parquet"))


def measured(measure, models=experiment.evaluation.models):
    """The measure's tables of the models: {model: {dataset: path}}."""
    if measure == "sft_log":
        names = [name for name in experiment.models if name in trained_ancestors() - by_rl()]
        return {m: {experiment.models[m].problems: f"{RESULTS}/models/{m}.log.parquet"} for m in names}
    if measure == "rl_log":
        names = [name for name in experiment.models if name in LOGGED or name in trained_ancestors() & by_rl()]
        return {m: {"training": f"{RESULTS}/models/{m}.log.parquet"} for m in names}
    if measure == "cost":
        return {m: {"training": f"{RESULTS}/costs/{m}.parquet"} for m in models if m in TRAINED}
    if measure in ("constructions", "trees"):
        return of_first_tree()[measure]
    direct = [experiment.evaluation.direct.model] if experiment.evaluation.direct else []
    linearized = experiment.evaluation.models if experiment.evaluation.linearized else []
    fewer = {
        "direct": direct,
        "linearized": linearized,
        "budget_forcing": experiment.extended,
        "traces": models if experiment.backtracking else [],
    }
    path = measure_path(measure)
    return {
        m: {d: path.format(model=m, dataset=d) for d in experiment.measured_on(m)} for m in fewer.get(measure, models)
    }


def of_first_tree():
    """Warmstart sets, and the solution trees that they are made from; of the first model that was searched."""
    names = [m for m in experiment.models if m in trained_ancestors() and experiment.models[m].method in TREE_METHODS]
    of = {m: (experiment.models[m].parent, experiment.models[m].problems) for m in names}
    parent, problems = next(iter(of.values()), (None, None))
    return {
        "constructions": {m: {problems: f"{RESULTS}/sets/{m}.parquet"} for m in names if of[m] == (parent, problems)},
        "trees": {parent: {problems: artifact("trees").format(model=parent, dataset=problems)}} if parent else {},
    }


def drawn_tables(name):
    """All tables that a figure or table is drawn from: {measure: {model: {dataset: path}}}."""
    models = experiment.measured if DRAWN[name].runs else experiment.evaluation.models
    return {measure: measured(measure, models) for measure in DRAWN[name].measures}


def drawn_files(name):
    """The files of these tables; if the experiment can have none, what it lacks, which Snakemake reports as missing."""
    found = [path for of in drawn_tables(name).values() for sets in of.values() for path in sets.values()]
    return found or [LACKING.get(DRAWN[name].measures[0], "models to measure")]


def drawn_models(name):
    """How the models appear that a figure draws, the measured ones first."""
    there = {m for of in drawn_tables(name).values() for m in of}
    order = [*experiment.measured, *(m for m in experiment.models if m not in experiment.measured)]
    return json.dumps({m: experiment.style(m) for m in order if m in there})


def wanted(name):
    """Whether a figure or table is of what the experiment measures, and has something to draw."""
    measures = DRAWN[name].measures
    return measures[0] in experiment.evaluation.measures and bool(measured(measures[0]))


def labels(name, form):
    """How the report lists a figure, a table, or the data behind it."""
    number = ", ".join(n.replace("fig", "Figure ").replace("table", "Table ") for n in DRAWN[name].numbers)
    return {"what": name.replace("_", " "), "paper": number or DRAWN[name].place, "form": form}


def drawn_as(name):
    """What a figure or table is to be looked at, and the data behind it."""
    if DRAWN[name].table:
        return multiext(f"{RESULTS}/tables/{name}", ".md", ".csv")
    return multiext(f"{RESULTS}/figures/{name}", ".png", ".csv")


def tables_and_figures():
    return [path for name in DRAWN if wanted(name) for path in drawn_as(name)]


def provenance_files():
    """What the page of provenance tells of: {name: path}."""
    sets = [(m, d) for m in experiment.evaluation.models for d in experiment.measured_on(m)]
    trained = [m for m in experiment.models if m in trained_ancestors()]
    drawn = dict.fromkeys(Path(path).with_suffix(".parquet") for path in tables_and_figures())
    return {
        **{f"problems {d}": f"{RESULTS}/problems/{d}.parquet" for d in experiment.problems},
        **{f"rollouts {m}/{d}": artifact("rollouts").format(model=m, dataset=d) for m, d in sets},
        **{f"set {m}": f"{RESULTS}/sets/{m}.parquet" for m in trained if m not in by_rl()},
        **{f"model {m}": f"{RESULTS}/models/{m}.log.parquet" for m in trained},
        **{f"{path.parent.name} {path.stem}": str(path) for path in drawn},
    }
