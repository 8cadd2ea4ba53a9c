"""Read a `config.yaml`: parse it, check it, and explain its mistakes."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from mrt.analysis.claims import claims_in
from mrt.config.checks import mistakes_of, raw_mistakes
from mrt.config.schema import Config
from mrt.core.settings import laid_over, suggestion
from mrt.training.method import RLMethod, method_named

MOVED = {
    "grading": "its settings are those of the task math, of each problem set: `problems: {NAME: {task: {name: math,"
    " by: math_verify}}}`",
}


def check_yaml(file: Path | str) -> None:
    """Raise ValueError, with file and line, if a file is missing or not a YAML mapping."""
    if not Path(file).is_file():
        raise ValueError(f"there is no configuration file {file} in {Path.cwd()}; name one with --configfile")
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{file}{line}: not YAML ({getattr(error, 'problem', None) or error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: the names of the sections (results, problems, models, ...) belong at its top level")


def read_files(files: Sequence[Path]) -> Config:
    """The configuration of files, each laid over those before it; without models in them, over config.yaml.

    So Snakemake and the Snakefile read `--configfile`. Raises ValueError as `load` does.
    """
    given: dict[str, Any] = {}
    for file in files:
        check_yaml(file)
        given = laid_over(given, yaml.safe_load(file.read_text(encoding="utf-8")))
    if "models" in given:
        return load(given, files)
    check_yaml(default := Path("config.yaml"))
    return load(laid_over(yaml.safe_load(default.read_text(encoding="utf-8")), given), [*files, default])


def with_runs(config: dict[str, Any]) -> dict[str, Any]:
    """The config, with the replicates for `training.runs`, and copies of the bases that they descend from."""
    models, training = config.get("models"), config.get("training")
    runs = training.get("runs", 1) if isinstance(training, dict) else 1
    if not isinstance(models, dict) or not isinstance(runs, int):
        return config
    known = {name: spec for name, spec in models.items() if isinstance(spec, dict) and not spec.get("replicate_of")}
    trained = {name: spec for name, spec in known.items() if spec.get("parent")}
    roles = {
        name: {role: spec[role] for role in ("parent", "teacher") if isinstance(spec.get(role), str)}
        for name, spec in trained.items()
    }
    parents = {model for of in roles.values() for model in of.values()}
    checkpoints = {name: of for name, spec in known.items() if isinstance(of := spec.get("checkpoint_of"), str)}
    on_the_way = {name: of for name, of in checkpoints.items() if of in trained}
    kept = {
        f"{name}_step{step}": (name, step) for name, spec in trained.items() for step in evaluate_steps(config, spec)
    }
    copied = trained.keys() | parents | on_the_way.keys()
    added: dict[str, Any] = {}
    for seed in range(1, runs):
        copy_of = {name: f"{name}_seed{seed}" for name in known if name in copied}
        run_of = {step: f"{copy_of[name]}_step{number}" for step, (name, number) in kept.items()} | copy_of
        for name, copy in copy_of.items():
            spec = known[name]
            if name in trained:
                of_seed = {role: run_of[model] for role, model in roles[name].items() if model in run_of}
                added[copy] = {"replicate_of": name, "seed": seed, **of_seed}
            elif name in on_the_way:
                added[copy] = {"replicate_of": name, "seed": seed, "checkpoint_of": copy_of[on_the_way[name]]}
            else:
                again = {key: value for key, value in spec.items() if key != "training_log"}  # one log, of one training
                added[copy] = {**again, "label": f"{spec.get('label') or name}, seed {seed}"}
    return {**config, "models": {**added, **models}} if added else config


def taken_names(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Models whose names `training.runs` gives to the runs of others."""
    models = config.get("models")
    given = models if isinstance(models, dict) else {}
    for name in with_runs(config).get("models") or ():
        original, _, seed = str(name).rpartition("_seed")
        other = given.get(name)
        if isinstance(other, dict) and original in given and seed.isdecimal() and other.get("replicate_of") != original:
            yield f"models.{name}", f"`training.runs` calls a run of {original} so; give this model another name"
    for name in map(str, given):
        original, _, step = name.rpartition("_step")
        spec = given.get(original)
        if isinstance(spec, dict) and step.isdecimal() and int(step) in evaluate_steps(config, spec):
            yield (
                f"models.{name}",
                f"`evaluate_steps` calls a checkpoint of {original} so; give this model another name",
            )


def home_folders(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Paths that begin with `~`, which a shell would have expanded."""
    if isinstance(config, dict | list):
        for name, value in config.items() if isinstance(config, dict) else enumerate(config):
            yield from home_folders(value, (*path, str(name)))
    elif isinstance(config, str) and config.startswith("~/"):
        yield ".".join(path), f"`~` means nothing here; write {str(Path(config).expanduser())!r}"


def with_replicates(config: dict[str, Any]) -> dict[str, Any]:
    """The config, with each replicate completed by the settings of the model that it repeats."""
    models = config.get("models")
    if not isinstance(models, dict):
        return config
    full = dict(models)
    for name, spec in models.items():
        original = models.get(str(spec.get("replicate_of"))) if isinstance(spec, dict) else None
        if isinstance(original, dict):
            label = f"{original.get('label') or spec['replicate_of']}, seed {spec.get('seed')}"
            full[name] = {**original, "label": label, **spec}
    return {**config, "models": full}


def with_checkpoints(config: dict[str, Any]) -> dict[str, Any]:
    """The config, with a model for each checkpoint on the way that a training is to keep (`evaluate_steps`)."""
    models = config.get("models")
    if not isinstance(models, dict):
        return config
    added = {
        f"{name}_step{step}": of_step(name, spec, step)
        for name, spec in models.items()
        if isinstance(spec, dict)
        for step in evaluate_steps(config, spec)
    }
    return {**config, "models": {**added, **models}} if added else config


def of_step(name: str, spec: Mapping[str, Any], step: int) -> dict[str, Any]:
    """The settings of a checkpoint on the way; one of a replicate is a replicate of the original's."""
    model = {"checkpoint_of": name, "step": step, "label": f"{spec.get('label') or name}, step {step}"}
    if spec.get("replicate_of"):
        model |= {"replicate_of": f"{spec['replicate_of']}_step{step}", "seed": spec.get("seed")}
    return model | ({"evaluate_on": spec["evaluate_on"]} if "evaluate_on" in spec else {})


def evaluate_steps(config: Mapping[str, Any], spec: Mapping[str, Any]) -> list[int]:
    """The steps whose checkpoints a model's training keeps: those of its recipe, else of the shared one."""
    with suppress(ValueError):  # `Model` reports an invalid method
        by_rl = isinstance(method_named(str(spec.get("method"))), RLMethod) if spec.get("parent") else None
        for group in (spec, config.get("training")) if by_rl is not None else ():
            recipe = group.get("rl" if by_rl else "recipe") if isinstance(group, dict) else None
            if isinstance(recipe, dict) and "evaluate_steps" in recipe:
                steps = recipe["evaluate_steps"]
                return [step for step in steps if type(step) is int] if isinstance(steps, list) else []
    return []


class ClaimsTable(NamedTuple):
    """The claims of the table that a config names instead of a list."""

    file: str
    lines: list[int]  # of the file, of each claim
    claims: list[dict[str, Any]]
    mistakes: list[str]

    @classmethod
    def of(cls, given: Any) -> Self | None:
        """The table at a path, relative to the working folder; None if `claims` are given otherwise."""
        if not isinstance(given, str):
            return None
        try:
            rows = claims_in(Path(given))
        except FileNotFoundError:
            return cls(given, [], [], [f"claims: there is no file {given} in {Path.cwd()}"])
        except (OSError, csv.Error, ValueError) as error:
            return cls(given, [], [], [f"claims: {error if given in str(error) else f'{given}: {error}'}"])
        return cls(given, list(rows), list(rows.values()), [])

    def named(self, mistake: str) -> str:
        """A mistake with the file and line of a claim in place of its number."""
        number = re.match(r"claims\.(\d+)[.:]", mistake)
        line = self.lines[int(number[1])] if number else 0
        return f"{self.file}, line {line}, {mistake[number.end() :].strip()}" if number else mistake


def load(config: dict[str, Any], files: Iterable[Path | str] = ()) -> Config:
    """The typed config; raises one ValueError that lists all mistakes, each with its path and value.

    `files` are the YAML files that it was read from, to find repeated keys: YAML silently keeps one of them.
    """
    mistakes = [
        f"{path}: stands twice in {file}"
        for file in files
        for path in repeated(yaml.compose(Path(file).read_text(encoding="utf-8")))
    ]
    given = config
    loaded, table = None, ClaimsTable.of(config.get("claims"))
    config = with_checkpoints(with_replicates(with_runs(config)))
    if table:
        mistakes, config = [*mistakes, *table.mistakes], {**config, "claims": table.claims}
    try:
        loaded = Config.model_validate(config)
    except ValidationError as error:
        mistakes += [explain(mistake) for mistake in error.errors()]
    checks = [taken_names(given), home_folders(config), switches_for_numbers(config), raw_mistakes(config)]
    mistakes += [f"{path}: {what}" for check in checks for path, what in check]
    if loaded and not mistakes:
        mistakes += [f"{path}: {what}" for path, what in mistakes_of(loaded)]
    if mistakes or loaded is None:
        named = [table.named(mistake) for mistake in mistakes] if table else mistakes
        lines = [f"  {mistake}" for mistake in dict.fromkeys(named)]
        raise ValueError(
            "\n".join([f"the configuration is not right ({len(lines)} mistake{'s' * (len(lines) > 1)}):", *lines])
        )
    return loaded


def repeated(node: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Paths of the keys that a YAML document repeats within a group."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from repeated(item, path)
    elif isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value]
        for key, value in node.value:
            if key.value != "<<":
                if names.count(key.value) > 1:
                    yield ".".join([*path, key.value])
                yield from repeated(value, (*path, key.value))


def explain(mistake: Any) -> str:
    """One line for a mistake that pydantic found: its path, the reason, the value, and a remedy."""
    path = ".".join(map(str, mistake["loc"]))
    if mistake["type"] == "extra_forbidden":
        if path in MOVED:
            return f"{path}: {MOVED[path]}"
        known = list(settings_at(mistake["loc"][:-1]))
        return f"{path}: there is no such setting{suggestion(str(mistake['loc'][-1]), known)}"
    value = "" if isinstance(mistake["input"], dict) else f" (got {shortened(mistake['input'])})"
    return f"{path}: {mistake['msg'].removeprefix('Value error, ')}{value}"


def shortened(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 80 else f"{written[:77]}..."


def settings_at(path: Sequence[str | int]) -> dict[str, Any]:
    """The settings (name: type) of the group at a path of the config."""
    group: Any = Config
    for part in path:
        kinds = [group] if not get_args(group) else list(get_args(group))
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if get_origin(group) is list:
            group = get_args(group)[0]
        elif get_origin(group) is dict:
            group = get_args(group)[1]
        elif models and str(part) in models[0].model_fields:
            group = models[0].model_fields[str(part)].annotation
        else:
            return {}
    models = [g for g in (group, *get_args(group)) if isinstance(g, type) and issubclass(g, BaseModel)]
    return {name: field.annotation for name, field in models[0].model_fields.items()} if models else {}


def switches_for_numbers(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """(path, message) of each boolean (`true`, `yes`) in place of a number: it would pass as 1 or 0."""
    for name, value in config.items() if isinstance(config, dict) else ():
        here = (*path, str(name))
        if isinstance(value, bool):
            kind = settings_at(path).get(str(name))
            if kind in (int, float) or {int, float} & set(get_args(kind)):
                yield ".".join(here), f"a number is wanted (got {value}; YAML reads yes, no, on, off as true or false)"
        else:
            yield from switches_for_numbers(value, here)
