"""Checks across settings: each is valid by itself, but together they contradict each other or do not fit.

A check yields (path of a setting, what is wrong with it). `raw_mistakes` looks at the configuration as it was given, of
which groups may be invalid by themselves; the others look at one that is valid.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mrt.analysis.claims import measure_of
from mrt.config import memory
from mrt.config.hardware import Cluster
from mrt.config.schema import Config
from mrt.config.sections import OF_MU, Evaluation, Expected, Model, TracesPage, Training
from mrt.core.hub import has_chat_template, missing
from mrt.core.settings import overlaid, suggestion
from mrt.episodes.thinking import FAMILIES, THINK, Thinking, of_template
from mrt.grading.task import has_golds, name_of, task_of
from mrt.problems.build import build
from mrt.problems.settings import Dataset
from mrt.problems.sources import prefix_accuracy
from mrt.sampling.engine import Decoding
from mrt.sampling.imports import check_ids, completions_in
from mrt.sampling.likelihood import EXAMPLES
from mrt.sampling.prompt import Prompt
from mrt.training.log import check_log
from mrt.training.method import RLMethod, variant_named
from mrt.training.rl.recipe import RL
from mrt.training.sft import SFT

READ_AT_ONCE = 50_000_000  # bytes: larger input files are checked by the first job, not with the config


Mistakes = Iterator[tuple[str, str]]


def mistakes_of(config: Config) -> Mistakes:
    """All that is wrong with a configuration whose settings are valid one by one."""
    for check in (
        size_mistakes,
        seed_mistakes,
        greedy_mistakes,
        weighting_mistakes,
        likelihood_mistakes,
        claimed_value_mistakes,
        header_mistakes,
    ):
        yield from check(config)


def size_mistakes(config: Config) -> Mistakes:
    """Models that the GPUs cannot hold, train or sample from as configured, and texts that are too long."""
    found: dict[str, list[str]] = {}
    for name, model in config.models.items():
        checks: list[Callable[[str], object]] = [config.sampling_gpus] if not model.rollouts else []
        checks += [partial(training_mistakes, config)] if model.parent else []
        for check in checks:
            try:
                check(name)
            except ValueError as error:
                found.setdefault(str(error), []).append(name)
    for message, names in found.items():
        on = f" on {config.cluster.gpu}" if config.cluster.gpu and "fit" in message else ""
        named = ", ".join(dict.fromkeys(names))
        path, _, rest = message.partition(": ")
        yield (path, rest) if path.startswith("models.") else (f"models.{named}{on}", message)
    yield from length_mistakes(config)


def weighting_mistakes(config: Config) -> Mistakes:
    """Weights of MRT (STaR)'s examples that are not learnt with, and learning with weights where all are 1."""
    for name, model in config.models.items():
        recipe = config.recipe(name)
        if model.method != "mrt" or not isinstance(recipe, SFT):
            continue
        if model.rules.weight == "progress" and not recipe.weighted:
            yield f"models.{name}.rules.weight", "it counts only with `recipe: {weighted: true}`"
        if recipe.weighted and model.rules.weight == "none":
            yield f"models.{name}.recipe.weighted", "all examples weigh the same; set `rules: {weight: progress}`"


def likelihood_mistakes(config: Config) -> Mistakes:
    """J by likelihood on problem sets whose task has no text of the gold answer."""
    read_off: dict[str, list[str]] = {}  # the problem sets of each setting
    for name, model in config.models.items():
        recipe = config.recipe(name) if model.method else None
        if model.method == "mrt_rl" and isinstance(recipe, RL) and recipe.estimate == "likelihood":
            read_off[f"models.{name}.rl.estimate"] = [str(model.problems)]
        if "prover" in (config.learnt(name) if model.method else ()):
            read_off.setdefault("training.prover.estimate", []).append(str(model.problems))
    if config.training.prover.estimate != "likelihood":
        read_off.pop("training.prover.estimate", None)
    if config.evaluation.prover.estimate == "likelihood" and asks_mu_to_measure(config.evaluation):
        read_off["evaluation.prover.estimate"] = config.evaluation.problems
    for path, names in read_off.items():
        for name in dict.fromkeys(names):
            if (task := config.task(name)) and not has_golds(task):
                why = f"the task of problems.{name}, {name_of(task)}, has no texts of gold answers (`golds`)"
                yield path, f"{why}; J cannot be read off, only counted: `estimate: answers`"


def claimed_value_mistakes(config: Config) -> Mistakes:
    """Values of claims that are not measured: such a claim would be missing in the table."""

    def numbers(measure: str, model: str) -> list[int] | None:
        """The numbers (k, budgets, extensions) at which a measure of a model is taken; None if any may be."""
        if measure == "maj":
            return config.ks(model)
        if measure == "regret":
            return config.budgets(model)
        if measure == "budget_forcing":
            return config.forcing.answered() if model in config.extended else []
        if measure == "linearized":
            return config.linearized_ks
        return None

    for i, claim in enumerate(config.claims):
        other = "than_value" if claim.than_value else "value"
        sides = [("value", claim.model, claim.value), (other, claim.than, claim.than_value or claim.value)]
        for field, model, value in [*sides, ("value", claim.gains_over, claim.value)]:
            measure, number = measure_of(value), re.search(r"\d+", value)
            if measure not in config.evaluation.measures:
                yield f"claims.{i}.{field}", f"{value!r} needs {measure!r} among evaluation.measures"
            elif model and number and (there := numbers(measure, model)) is not None and int(number[0]) not in there:
                known = ", ".join(map(str, there)) or "nothing"
                yield f"claims.{i}.{field}", f"{value!r} is not measured of {model!r}, but {known} is"


def header_mistakes(config: Config) -> Mistakes:
    """Cold starts that teach answers which begin otherwise than those that mu is made to give."""
    for name, model in config.models.items():
        if model.method != "cold_start":
            continue
        known, answer, template = kinds_of_thought(config, name), model.cold_start.answer, config.template
        if not any((kind.close + answer).startswith(template.closing(kind) + template.header) for kind in known):
            tags = " or ".join(repr(kind.close) for kind in known)
            yield (
                f"models.{name}.cold_start.answer",
                f"an answer has to begin as mu is made to, with `template.header`: {template.header!r} (and"
                f" `template.close` is the model's, {tags})",
            )


def kinds_of_thought(config: Config, name: str) -> tuple[Thinking, ...]:
    """How a model that thinks may write thoughts, as far as its configuration and chat template at hand tell."""
    setting = config.prompt_of(name).thinking
    if isinstance(setting, Thinking):
        return (setting,)
    if setting == "none":
        return (THINK,)
    folder = config.root_folder(name)
    try:
        template = chat_template(folder) if folder else None
        return (of_template(template) or THINK,) if template else FAMILIES
    except (OSError, ValueError):  # what is wrong with it is told where the model is used
        return FAMILIES


def chat_template(folder: Path) -> str | None:
    """The chat template of a checkpoint folder; None if it has none, or several.

    Raises OSError or ValueError if it cannot be read.
    """
    if (file := folder / "chat_template.jinja").is_file():
        return file.read_text()
    template = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
    return template if isinstance(template, str) else None


def seed_mistakes(config: Config) -> Mistakes:
    """Training runs of one model with the same seed: they would be the same run."""
    seen: dict[tuple[str, int], str] = {}
    for name, model in config.models.items():
        if model.parent:
            key = (model.replicate_of or name, config.recipe(name).seed)
            if (first := seen.setdefault(key, name)) != name:
                yield f"models.{name}.seed", f"{key[1]} is the seed of {first} too: they would be one training run"


def training_mistakes(config: Config, name: str) -> None:
    """Raise ValueError if a model cannot be trained on its GPUs."""
    nodes, processes = config.training_processes(name)
    if config.recipe(name).batch_size % (nodes * processes):
        raise ValueError(
            f"batch_size {config.recipe(name).batch_size} is not divided by its {nodes} x {processes} GPUs"
        )
    shared = config.tensor_parallel_size(name)  # in RL the processes of a node share engines
    if isinstance(config.recipe(name), RL) and shared > 1 and processes % shared:
        raise ValueError(f"its engine, on {shared} GPUs, does not divide the {processes} of a node")
    if config.cluster.hardware and isinstance(config.recipe(name), RL):
        sizes = config.architecture(name), config.rl_engine_size(name), config.cluster.hardware
        memory.check_engine(*sizes, config.sampling_gpus(name), "the engine of its RL (rl.gpu_memory_utilization)")


def length_mistakes(config: Config) -> Mistakes:
    """Settings whose longest texts exceed `engine.max_model_len` or a context: an engine truncates silently."""
    context = cache(config.context)
    for path, tokens, terms, readers in lengths(config):
        contexts = {f"the context of {name}": context(name) for name in readers}
        asked = {"engine.max_model_len": config.engine.max_model_len} | contexts
        known = {what: length for what, length in asked.items() if length}
        shortest = min(known, key=lambda what: known[what], default="")
        if known and (needed := sum(terms.values())) > known[shortest]:
            parts = " + ".join(f"{count:,} of {what}" for what, count in terms.items())
            yield path, f"{tokens} does not fit into {shortest}, {known[shortest]}: {parts} are {needed:,} tokens"


def lengths(config: Config) -> Iterator[tuple[str, int, dict[str, int], list[str]]]:
    """(path, tokens, parts, readers) of each text that an engine samples.

    `path` is the setting of so many `tokens`; `parts` are those of the longest text, in tokens; `readers` the models
    that read it. The direct baseline is none: nothing is asked behind its completions.
    """
    trained = {name: model for name, model in config.models.items() if model.parent}
    measured = [name for name in config.evaluation.models if name not in config.imported]
    prompt = {"the prompt (expected.prompt_tokens)": round(config.expected.prompt_tokens)}
    forcing = {"what forces an answer": len(config.parameterization.force("")) // 3}  # at least 3 characters a token
    read = {kind: learnt_from(config, kind) for kind in ("rollouts", "prover", "trees")}
    for name, sampling, thinking, answering in (
        ("training", config.training, read["rollouts"], read["prover"]),
        ("evaluation", config.evaluation, measured, measured if asks_mu_to_measure(config.evaluation) else []),
    ):
        completion, answer = sampling.decoding.max_tokens, sampling.prover.decoding.max_tokens
        if thinking:
            yield f"{name}.decoding.max_tokens", completion, {**prompt, "the completion": completion}, thinking
        if answering:
            whole = {**prompt, "the completion": completion, **forcing, "the answer": answer}
            yield f"{name}.prover.decoding.max_tokens", answer, whole, [sampling.mu] if sampling.mu else answering
    if read["trees"]:
        solution = config.training.tree.decoding.max_tokens
        yield "training.tree.decoding.max_tokens", solution, {**prompt, "the solution": solution}, read["trees"]
    if "linearized" in config.evaluation.measures and (chains := config.evaluation.linearized):
        seen = {**prompt, "its own text": chains.window, "an attempt": chains.decoding.max_tokens}
        yield "evaluation.linearized.window", chains.window, seen, measured
    if config.forces:
        forced, thought = config.forcing, {"the thought": config.evaluation.decoding.max_tokens}
        added = {f"{forced.most} extensions": forced.most * (forced.extension.max_tokens + 8)}  # 8: tokens of a marker
        answer = forced.decoding.max_tokens
        whole = {**prompt, **thought, **added, **forcing, "the answer": answer}
        yield "evaluation.budget_forcing.extension.max_tokens", forced.extension.max_tokens, whole, config.extended
    for name, model in trained.items():
        recipe, start = config.recipe(name), {**prompt}
        if isinstance(recipe, RL):
            own = model.rl.model_fields_set if model.rl else set()
            under = {field: f"models.{name}.rl" if field in own else "training.rl" for field in RL.model_fields}
            if begun := config.begun(name):
                start["its prefix of a thought"] = begun
            completion = recipe.decoding.max_tokens
            whole = {**start, "the completion": completion}
            yield f"{under['decoding']}.decoding.max_tokens", completion, whole, [name]
            variant = config.variant(name)
            if variant.asks_mu and recipe.estimate == "answers":
                along = {"the completion": completion} if variant.asks == "boundaries" else {}
                whole = {**start, **along, **forcing, "the answer": recipe.answer_tokens}
                yield f"{under['answer_tokens']}.answer_tokens", recipe.answer_tokens, whole, [name]


def asks_mu_to_measure(evaluation: Evaluation) -> bool:
    """Whether a measure asks the meta-prover."""
    return any(measure in OF_MU for measure in evaluation.measures)


def sampled_to_learn(config: Config) -> set[str]:
    """The artifacts of training that an engine samples: `rollouts`, `trees`, answers of the `prover`."""
    return {kind for kind in ("rollouts", "trees", "prover") if learnt_from(config, kind)}


def learnt_from(config: Config, kind: str) -> list[str]:
    """The models from which an engine samples an artifact of this kind for a training set."""
    trained = [name for name, model in config.models.items() if model.parent]
    teachers = [str(config.learns_from(name)) for name in trained if kind in config.learnt(name)]
    return [name for name in dict.fromkeys(teachers) if name not in config.imported]


Parsed = TypeVar("Parsed", bound=BaseModel)


def parsed(kind: type[Parsed], raw: Any) -> Parsed | None:
    """The settings group, or None if it has mistakes of its own."""
    try:
        return kind.model_validate(raw)
    except ValidationError:
        return None


def raw_mistakes(config: dict[str, Any]) -> Mistakes:
    """All that is wrong between the groups of a configuration as it was given; invalid groups are skipped."""

    def section(name: str) -> dict[str, Any]:
        found = config.get(name)
        return found if isinstance(found, dict) else {}

    if {"{", "}"} & set(str(config.get("results"))):
        yield "results", "braces are Snakemake's; name the folder without them"
    problems = {str(name): parsed(Dataset, raw) for name, raw in section("problems").items()}
    models = {str(name): parsed(Model, raw) for name, raw in section("models").items()}
    evaluation, training = parsed(Evaluation, section("evaluation")), parsed(Training, section("training"))
    evaluated = evaluation.problems if evaluation else []

    if gpus := parsed(Cluster, section("cluster")):
        try:
            _ = gpus.hardware
        except ValueError as error:
            yield "cluster.gpu", str(error)
    yield from name_mistakes("problems", problems)
    yield from name_mistakes("models", models)
    ids: dict[str, list[str]] = {}  # of the problems in local files
    for name, dataset in problems.items():
        if dataset:
            yield from dataset_mistakes(name, dataset, problems, ids)
    for name, model in models.items():
        if model:
            yield from model_mistakes(name, model, models, problems, evaluated)
            votes = votes_of(name, evaluation)
            measured_on = (model.evaluate_on or evaluated) if votes else []
            taught_on = [pupil.problems for pupil in models.values() if pupil and pupil.teacher == name]
            of = {d: ids[d] for d in (*measured_on, *taught_on) if d in ids}
            yield from completions_mistakes(name, model, of, dict.fromkeys(measured_on, max(votes, default=1)))
            yield from cold_start_mistakes(f"models.{name}", model, models, section("prompt"))
            yield from replicate_mistakes(name, model, models)
            if model.rules.tolerance and training and training.allocation:
                why = "training.allocation settles which prefix is best, not which is nearly so; drop one"
                yield f"models.{name}.rules.tolerance", why
            recipe = overlaid(training.rl if training else RL(), model.rl)
            if model.rl:
                yield from group_mistakes(f"models.{name}.rl", recipe)
                yield from merged_mistakes(f"models.{name}.rl", recipe)
            by_rl = model.method and isinstance(model.trained_by, RLMethod)
            if by_rl and model.problems and (dataset := problems.get(model.problems)):
                count = len(ids[model.problems]) if model.problems in ids else dataset.size
                yield from group_count_mistakes(name, model.problems, count, recipe)
    yield from label_mistakes(models.values())
    if config.get("seed") and any(model and model.toy == "remade" for model in models.values()):
        yield from remade_mistakes(problems)
    if evaluation:
        yield from evaluation_mistakes(evaluation, problems, models)
        yield from claim_mistakes(config.get("claims"), evaluation.models)
    if expected := parsed(Expected, section("expected")):
        for name in expected.tokens:
            yield from unknown("expected.tokens", name, models)
        for name in expected.problems:
            yield from unknown("expected.problems", name, problems)
    if (page := parsed(TracesPage, section("traces"))) and (file := page.prefix_accuracy):
        yield from file_mistakes("traces.prefix_accuracy", file, partial(prefix_accuracy, file))
    yield from backtracking_mistakes(config, models, evaluation)
    if training:
        yield from group_mistakes("training.rl", training.rl)
        yield from sampling_mistakes("training", training, models)
    if evaluation:
        yield from sampling_mistakes("evaluation", evaluation, models)


def votes_of(name: str, evaluation: Evaluation | None) -> list[int]:
    """Numbers of completions of a problem that measures of a model take; empty if it is not measured."""
    if not evaluation:
        return []
    votes = evaluation.k if "maj" in evaluation.measures else [1]
    direct = evaluation.direct.k if evaluation.direct and evaluation.direct.model == name else []
    return [*(votes if name in evaluation.models else []), *direct]


def name_mistakes(path: str, names: Iterable[str]) -> Mistakes:
    """Names that could not stand in a path or a pattern."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            why = "a name is made of letters, digits, _, - and ., and begins with one of the first two"
            yield f"{path}.{name}", why


def label_mistakes(models: Iterable[Model | None]) -> Mistakes:
    """Labels that several models have."""
    labels = [model.label for model in models if model and model.label]
    for label in {label for label in labels if labels.count(label) > 1}:
        yield "models", f"several have the label {label!r}; figures could not tell them apart"


def claim_mistakes(claims: Any, measured: Sequence[str]) -> Mistakes:
    """Models of claims that are not measured."""
    for i, claim in enumerate(claims if isinstance(claims, list) else []):
        for role in ("model", "than", "gains_over"):
            if isinstance(claim, dict) and claim.get(role):
                yield from unknown(f"claims.{i}.{role}", claim[role], measured)


def sampling_mistakes(path: str, sampling: Training | Evaluation, models: Mapping[str, Model | None]) -> Mistakes:
    """What is wrong with rollouts and the meta-prover of training or evaluation, beside the models."""
    if sampling.mu is not None:
        yield from unknown(f"{path}.mu", sampling.mu, models)
        own = models.get(sampling.mu)
        if own and (own.rollouts or own.parent):
            why = "is a file of completions" if own.rollouts else "is trained here, perhaps on what it would judge"
            yield f"{path}.mu", f"{sampling.mu!r} {why}; name a model that is given"
    if sampling.prover.traces and sampling.prover.traces > sampling.samples:
        yield f"{path}.prover.traces", f"{sampling.prover.traces} is more than the {sampling.samples} samples"


def greedy_mistakes(config: Config) -> Mistakes:
    """Temperature 0 where a request asks for several completions: they would be the same one, and vLLM refuses it.

    Where nothing is drawn it may be 0.
    """
    training, evaluation, learnt = config.training, config.evaluation, sampled_to_learn(config)
    sampled = set(config.models) - set(config.imported)
    several: list[tuple[str, Decoding, int, str]] = []  # path, how they are drawn, how many, the setting that says so
    to_measure = {"rollouts", *(["prover"] if asks_mu_to_measure(evaluation) else [])}
    for name, sampling, drawn in (("training", training, learnt), ("evaluation", evaluation, to_measure)):
        prover = sampling.prover
        if "rollouts" in drawn and (name == "training" or sampled & set(evaluation.models)):
            several.append((f"{name}.decoding", sampling.decoding, sampling.samples, f"{name}.samples"))
        if "prover" in drawn and prover.estimate == "answers":
            several.append((f"{name}.prover.decoding", prover.decoding, prover.answers, f"{name}.prover.answers"))
    if "trees" in learnt:
        tree, path = training.tree, "training.tree"
        several.append((f"{path}.decoding", tree.decoding, tree.rollouts, f"{path}.rollouts"))
        several.append((f"{path}.decoding", tree.decoding, tree.child_rollouts or 0, f"{path}.child_rollouts"))
    if (direct := evaluation.direct) and direct.model in sampled:
        several.append(("evaluation.decoding", evaluation.decoding, direct.samples, "evaluation.direct.samples"))
    if config.forces:
        forcing, path = config.forcing, "evaluation.budget_forcing"
        several.append((f"{path}.decoding", forcing.decoding, forcing.answers, f"{path}.answers"))
    if "linearized" in evaluation.measures and (chains := evaluation.linearized):
        path = "evaluation.linearized"
        several.append((f"{path}.decoding", chains.decoding, chains.samples, f"{path}.samples"))
    for path, decoding, n, setting in several:
        if n > 1 and not decoding.temperature:
            yield (
                f"{path}.temperature",
                f"at 0 all {n} completions would be the same one; set {setting} to 1, or raise it",
            )
    scored = training.prover.estimate == "likelihood" and "prover" in learnt
    if scored and not training.prover.decoding.temperature:
        why = f"at 0 all {EXAMPLES} answers from which MRT (STaR) chooses an example would be the same one; raise it"
        yield "training.prover.decoding.temperature", why


def dataset_mistakes(
    name: str, dataset: Dataset, problems: Mapping[str, Dataset | None], ids: dict[str, list[str]]
) -> Mistakes:
    """What is wrong with a dataset beside the others; `ids` becomes those of its problems, if it is a file."""
    for other in dataset.disjoint_from:
        yield from unknown(f"problems.{name}.disjoint_from", other, problems)
    if around(name, lambda n: p.disjoint_from if (p := problems.get(n)) else []):
        yield f"problems.{name}.disjoint_from", "the sets that it must be disjoint from wait for itself"
    extra: Sequence[str] = ()  # the columns that its task reads
    try:
        extra = task_of(dataset.task).columns if dataset.task else ()
    except ValueError as error:
        yield f"problems.{name}.task", str(error)
    if dataset.toy and extra:
        yield f"problems.{name}.task", f"it reads {', '.join(extra)}, which problems of the toy world do not have"
    if dataset.file:

        def check() -> None:
            ids[name] = build(name, dataset, extra=extra)[0]["id"].to_list()

        yield from file_mistakes(f"problems.{name}.file", dataset.file, check)


def model_mistakes(
    name: str,
    model: Model,
    models: Mapping[str, Model | None],
    problems: Mapping[str, Dataset | None],
    evaluated: Collection[str],
) -> Mistakes:
    """What is wrong with a model beside the others: its lineage, its problems, its files."""
    path = f"models.{name}"
    if model.parent is not None:
        yield from unknown(f"{path}.parent", model.parent, models)
        if around(name, lambda n: [p] if (m := models.get(n)) and (p := m.parent) else []):
            yield f"{path}.parent", "its ancestors go round in a circle"
        if (parent := models.get(model.parent)) and parent.rollouts:
            yield f"{path}.parent", f"{model.parent!r} is a file of completions; there are no weights to train from"
        if model.accumulate and parent and parent.method != model.method:
            yield f"{path}.accumulate", f"{model.parent!r} has no training set of method {model.method} to add to"
    elif {"recipe", "rules", "rl", "replicate_of", "seed"} & model.model_fields_set:
        yield path, "recipe, rl, rules, seed and replicate_of are for trained models; this one has no parent"
    if model.problems is not None:
        yield from unknown(f"{path}.problems", model.problems, problems)
        if model.problems in evaluated:
            yield f"{path}.problems", f"{model.problems!r} is an evaluation set; train on another"
    if model.training_log:
        yield from file_mistakes(f"{path}.training_log", model.training_log, partial(check_log, model.training_log))
        if model.parent:
            yield f"{path}.training_log", "this model is trained here, and has a log of its own"
    if model.path is not None and (model.architecture is None or Path(model.path).is_dir()):
        yield from weights_mistakes(f"{path}.path", model.path)  # what has its sizes here may be made until it is used
    for other in model.evaluate_on or []:
        yield from unknown(f"{path}.evaluate_on", other, evaluated)


def completions_mistakes(
    name: str, model: Model, ids: Mapping[str, Collection[str]], votes: Mapping[str, int]
) -> Mistakes:
    """What is wrong with a file of completions, given what it is used on.

    By dataset: `ids` are those of the problems, and `votes` the completions of a problem that maj@k takes.
    """
    if not model.rollouts:
        return
    file, settings = model.rollouts.file, model.rollouts

    def check() -> None:
        rows = completions_in(file, settings)
        for dataset, known in ids.items():
            check_ids(file, rows, known, dataset)
            counts = Counter(row.problem_id for row in rows) & Counter(dict.fromkeys(known, len(rows)))
            fewest = min(counts, key=lambda problem: counts[problem])
            if counts[fewest] < (needed := votes.get(dataset, 1)):
                has = f"{counts[fewest]} completions of problem {fewest!r} of {dataset}"
                raise ValueError(f"{file} has {has}, and evaluation.k or evaluation.direct.k asks for {needed}")

    yield from file_mistakes(f"models.{name}.rollouts.file", file, check)


def weights_mistakes(path: str, weights: str) -> Mistakes:
    """What is wrong with a checkpoint folder, or with what can be no model's name on the hub."""
    folder = Path(weights)
    if folder.is_dir() and (lacking := missing(folder)):
        yield path, f"{folder} is no whole checkpoint, with weights as safetensors: it lacks {', '.join(lacking)}"
    elif folder.is_dir() and not has_chat_template(folder):
        wanted = "chat_template.jinja, or chat_template in tokenizer_config.json"
        yield path, f"{folder} has no chat template, by which a problem becomes a prompt: {wanted}"
    elif not folder.is_dir() and not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", weights):
        yield path, f"there is no folder {weights!r} in {Path.cwd()}, and a model of the hub has no such name"


def backtracking_mistakes(
    config: Mapping[str, Any], models: Mapping[str, Model | None], evaluation: Evaluation | None
) -> Mistakes:
    """Contradictions between the two parameterizations: settings of one that do not apply to the other."""
    linearized = evaluation.linearized if evaluation else None
    if config.get("backtracking") is None:
        for name, model in models.items():
            if model and model.method and model.trained_by.only == "backtracking":
                yield f"models.{name}.method", f"{model.method} learns to backtrack: set `backtracking: {{}}`"
        if linearized:
            yield "evaluation.linearized", "attempts in a row are of backtracking search: set `backtracking: {}`"
        if evaluation and evaluation.episodes:
            yield "evaluation.episodes", "only completions of backtracking search are cut: set `backtracking: {}`"
        return
    for name, model in models.items():
        if model and model.method and model.trained_by.only == "thoughts":
            yield f"models.{name}.method", f"{model.method} teaches thoughts, and with `backtracking` there are none"
        for rule in sorted(model.rules.model_fields_set - {"minimum_progress", "weight"} if model else ()):
            yield f"models.{name}.rules.{rule}", "it is about prefixes of thoughts; suffixes from a backtrack have none"
    if isinstance(training := config.get("training"), dict) and training.get("allocation") is not None:
        yield "training.allocation", "it is made for MRT (STaR)'s choice of a prefix; attempts have one backtrack each"
    sections = {name: config.get(name) or {} for name in ("training", "evaluation")}
    asked = {f"{name}.{part}": own.get(part) for name, own in sections.items() for part in ("prover", "rl")}
    asked |= {f"models.{name}.rl": model.rl.model_dump() for name, model in models.items() if model and model.rl}
    for path, settings in asked.items():
        if isinstance(settings, dict) and settings.get("estimate") == "likelihood":
            yield f"{path}.estimate", "after an attempt mu repeats its answer: J is 0 or 1, and needs no likelihood"
        if isinstance(settings, dict) and asks_to_stop(settings.get("variant")):
            yield f"{path}.variant", "after a backtrack mu is the model itself: both halves of a group would be alike"
        if isinstance(settings, dict) and settings.get("every", 1) != 1:
            yield f"{path}.every", "progress of a backtrack needs J right before and after it; leave it out"
    prompt = parsed(Prompt, config.get("prompt", {}))
    if prompt and prompt.opens_thought:
        yield "prompt.open_thought", 'attempts stand in no thought: with `backtracking` set it to ""'
    if evaluation and evaluation.direct:
        yield "evaluation.direct", "with `backtracking` there is no thought that could be skipped"
    if evaluation and "measures" in evaluation.model_fields_set and "budget_forcing" in evaluation.measures:
        yield "evaluation.measures", "budget_forcing extends thoughts, and with `backtracking` there are none"


def asks_to_stop(variant: Any) -> bool:
    """Whether a variant, if there is one of this name, tells half of each group to stop."""
    try:
        return isinstance(variant, str) and variant_named(variant).asks == "stop"
    except ValueError:
        return False


def cold_start_mistakes(
    path: str, model: Model, models: Mapping[str, Model | None], prompt: Mapping[str, Any]
) -> Mistakes:
    """Contradictions in the settings of a cold start."""
    if model.teacher is not None:
        yield from unknown(f"{path}.teacher", model.teacher, models)
    elif model.method == "cold_start" and (parent := models.get(str(model.parent))) and parent.method is None:
        shared = parsed(Prompt, prompt)
        if shared and overlaid(shared, parent.prompt).opens_thought:
            wrong = 'its prompt opens a thought, in which it would not answer; set its `prompt: {open_thought: ""}`'
            yield f"models.{model.parent}.prompt", wrong


def replicate_mistakes(name: str, model: Model, models: Mapping[str, Model | None]) -> Mistakes:
    """Contradictions in the settings of a replicate."""
    if model.replicate_of is None:
        return
    path = f"models.{name}.replicate_of"
    yield from unknown(path, model.replicate_of, models)
    if (original := models.get(model.replicate_of)) and original.replicate_of:
        yield path, f"{model.replicate_of!r} is a replicate itself; name the model that it repeats"
    if model.seed is None:
        yield f"models.{name}.seed", "a replicate needs a seed, other than that of the model that it repeats"


def group_mistakes(path: str, recipe: RL) -> Mistakes:
    """Sizes of RL batches that do not divide each other."""
    if recipe.batch_size % recipe.num_generations:
        yield f"{path}.batch_size", f"{recipe.batch_size} completions are not whole groups of {recipe.num_generations}"
    if recipe.batch_size % min(recipe.micro_batch_size, recipe.batch_size):
        yield f"{path}.micro_batch_size", f"{recipe.micro_batch_size} does not divide {recipe.batch_size}"


def merged_mistakes(path: str, recipe: RL) -> Mistakes:
    """What is wrong with a model's hyperparameters only once they are laid over those of `training.rl`."""
    try:
        RL.model_validate(recipe.model_dump())
    except ValidationError as error:
        for wrong in error.errors():
            where = ".".join([path, *map(str, wrong["loc"])])
            yield where, f"with those of training.rl: {wrong['msg'].removeprefix('Value error, ')}"


def remade_mistakes(problems: Mapping[str, Dataset | None]) -> Mistakes:
    """Problems that a toy base is not to have seen, where it is remade from other traces than the shipped one."""
    for name, dataset in problems.items():
        if dataset and dataset.toy and dataset.toy.unseen:
            why = "what a base saw is known of the shipped ones alone; with `toy: remade` leave it out, or `seed` at 0"
            yield f"problems.{name}.toy.unseen", why


def group_count_mistakes(name: str, dataset: str, count: int | None, recipe: RL) -> Mistakes:
    """A training by RL on fewer problems than a step takes; `count` is None where it is not known yet."""
    needed = recipe.batch_size // recipe.num_generations
    if count is not None and count < needed:
        why = f"a step takes {needed} problems (batch_size / num_generations), and {dataset} has {count}"
        yield f"models.{name}", why


def unknown(path: str, name: str, known: Collection[str]) -> Mistakes:
    """The mistake of an unknown name, with a suggestion."""
    if name not in known:
        yield path, f"there is no {name!r}{suggestion(name, known)}"


def file_mistakes(path: str, file: Path, check: Callable[[], object]) -> Mistakes:
    """What is wrong with an input file; it is read unless it is too large for that."""
    if not file.is_file():
        yield path, f"there is no file {file}" + ("" if file.is_absolute() else f" in {Path.cwd()}")
    elif file.stat().st_size <= READ_AT_ONCE:
        try:
            check()
        except (ValueError, OSError) as error:
            yield path, str(error)


def evaluation_mistakes(
    evaluation: Evaluation, problems: Mapping[str, Any], models: Mapping[str, Model | None]
) -> Mistakes:
    """Contradictions in the section `evaluation`."""
    for where, names, known in (
        ("problems", evaluation.problems, set(problems)),
        ("models", evaluation.models, set(models)),
    ):
        for name in names:
            yield from unknown(f"evaluation.{where}", name, sorted(known))
    evaluated = [models.get(name) for name in evaluation.models]
    if not all(model and model.rollouts for model in evaluated):
        if max(evaluation.k) > evaluation.samples:
            yield "evaluation.k", f"{max(evaluation.k)} is more than the {evaluation.samples} samples"
        if "regret" in evaluation.measures and max(evaluation.budgets) > evaluation.decoding.max_tokens:
            longest = evaluation.decoding.max_tokens
            yield "evaluation.budgets", f"{max(evaluation.budgets)} is beyond decoding.max_tokens, {longest}"
    if "episode_regret" in evaluation.measures and not {1, 2, 4, 8} <= set(evaluation.votes):
        yield "evaluation.votes", "regret by episodes needs 1, 2, 4 and 8 among them; or leave out that measure"
    for name in evaluation.models:
        own, asked = models.get(name), [measure for measure in evaluation.measures if measure in OF_MU]
        if own and own.rollouts and asked:
            wrong = f"{name!r} is a file of completions, whose model cannot be asked; leave out {', '.join(asked)}"
            yield "evaluation.measures", wrong
    if direct := evaluation.direct:
        yield from unknown("evaluation.direct.model", direct.model, sorted(models))
    yield from forcing_mistakes(evaluation)


def forcing_mistakes(evaluation: Evaluation) -> Mistakes:
    """Contradictions in the section `evaluation.budget_forcing`."""
    forcing, path = evaluation.budget_forcing, "evaluation.budget_forcing"
    for name in forcing.models or []:
        yield from unknown(f"{path}.models", name, evaluation.models)
    if "budget_forcing" not in evaluation.measures:
        return
    counts = forcing.answered()[1:]
    if len(forcing.budgets) != len(counts):
        yield f"{path}.budgets", f"{len(forcing.budgets)} budgets for {len(counts)} numbers of extensions, {counts}"
    if sorted(forcing.budgets) != forcing.budgets:
        yield f"{path}.budgets", f"more extensions go with a larger budget (got {forcing.budgets})"
    elif forcing.budgets and "regret" in evaluation.measures and forcing.budgets[0] <= min(evaluation.budgets):
        within = f"evaluation.budgets begins at {min(evaluation.budgets)}"
        yield f"{path}.budgets", f"no budget is left that is not extrapolated: got {forcing.budgets}, but {within}"
    if forcing.traces and evaluation.prover.traces and forcing.traces > evaluation.prover.traces:
        yield f"{path}.traces", f"{forcing.traces} is more than the {evaluation.prover.traces} of prover.traces"


def around(start: str, following: Callable[[str], Sequence[str]]) -> bool:
    """Whether following the links from a name leads back to it."""
    seen, waiting = set[str](), list(following(start))
    while waiting:
        name = waiting.pop()
        if name == start:
            return True
        if name not in seen:
            seen.add(name)
            waiting += following(name)
    return False
