"""Cards for the Hugging Face hub: of a trained model, and of the data that it was trained on.

The text is Markdown, with metadata in YAML, from the configuration and from the tables of a finished experiment.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from mrt.config import lineage
from mrt.config.schema import Config
from mrt.core.artifacts import (
    COST,
    GRADES,
    PROBLEMS,
    PROGRESS,
    PROVER,
    RL_PROMPTS,
    ROLLOUTS,
    RULES,
    SET,
    TREE,
    Artifact,
)
from mrt.core.commit import commit_of, today
from mrt.core.digest import canonical, local_folder
from mrt.core.fingerprint import fingerprint
from mrt.core.markdown import table_of
from mrt.core.storage import columns_of, read_provenance, read_table
from mrt.training.method import RLMethod, SFTMethod
from mrt.training.rl.recipe import RL

PAPER = "https://arxiv.org/abs/2503.07572"
LEARNT = {  # tables that a training is made from, by the kinds of `lineage.sources`
    "rollouts": {"completions": ROLLOUTS, "grades": GRADES},
    "prover": {"answers": PROVER, "J": PROGRESS},
    "trees": {"trees": TREE},
}
SETTINGS = {  # recorded options that the card shows, by table; others are paths or affect no result
    "training": ("method", "recipe", "parameterization"),
    "set": ("method_settings", "parameterization", "seed"),
    "prompts": (*sorted(RL.of_prompts), "seed"),
    "completions": ("samples", "decoding", "seed"),
    "answers": ("prover", "seed"),
}
IN_WORDS = {"accuracy": "accuracy (pass@1), %", "tokens": "tokens of a completion"}
RUNS = "tables/runs.parquet"


class Blocks(yaml.SafeDumper):
    """YAML in which a text of several lines is a block, and a user's file has no folder."""


def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """A text in `Blocks`."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", folderless(text), style="|" if "\n" in text else None)


Blocks.add_representer(str, represent)


def folderless(name: str) -> str:
    """The name of a method, a task or the like; of `FOLDER/FILE.py:NAME` without the folder, which is private."""
    return Path(name).name if ".py:" in name else name


def by_rl(config: Config, name: str) -> bool:
    """Whether a model is trained by RL."""
    return isinstance(config.models[name].trained_by, RLMethod)


def method_of(config: Config, name: str) -> str:
    """The name of the method that a model is trained by."""
    return folderless(str(config.models[name].method))


def history_of(config: Config, name: str) -> Path:
    """The log of a model's training, which records its settings."""
    return config.results / "models" / f"{name}.history.parquet"


def data_of(config: Config, name: str) -> dict[str, tuple[Artifact, Path]]:
    """The tables that a model was trained on and made from, by their names in the dataset; those that exist."""
    kind = RL_PROMPTS if by_rl(config, name) else SET
    tables = {"prompts" if by_rl(config, name) else "set": (kind, kind.path.format(m=name))}
    earlier = name
    while config.models[earlier].accumulate:
        earlier = str(config.models[earlier].parent)
        tables[f"set_{earlier}"] = (SET, SET.path.format(m=earlier))
    place = {"m": lineage.teacher(config, name), "d": config.models[name].problems}
    for source in lineage.sources(config, name):
        tables |= {table: (of, of.path.format(**place)) for table, of in LEARNT[source].items()}
    files = {table: (of, config.results / path) for table, (of, path) in tables.items()}
    return {table: (of, file) for table, (of, file) in files.items() if file.is_file()}


def model_metadata(config: Config, name: str, dataset: str | None) -> dict[str, Any]:
    """Metadata of a model's card; `dataset` is the repository of its data, if published."""
    start = config.models[lineage.root(config, name)]
    trained = [config.models[each] for each in lineage.ancestry(config, name) if config.models[each].problems]
    sources = [config.problems[str(model.problems)].hub for model in trained]
    on_hub = [source.path for source in sources if source and not Path(source.path).exists()]
    return {
        "base_model": start.path if start.path and not local_folder(start.path).is_dir() else None,
        "datasets": [*dict.fromkeys([*on_hub, *([dataset] if dataset else [])])] or None,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["mrt", "trl", *(["reinforcement-learning"] if by_rl(config, name) else ["sft"])],
    }


def model_text(config: Config, name: str, dataset: str | None = None) -> str:
    """The text of a model's card."""
    title = config.models[name].label or name
    parts = {
        "Method": method(config, name),
        "Training data": training_data(config, name, dataset),
        "Cost of training": cost(config, name),
        "Results": results(config, name),
        "Provenance": provenance(config, name),
        "Limits": limits(config, name),
    }
    sections = [f"## {heading}\n\n{text}" for heading, text in parts.items()]
    return "\n\n".join([f"# {title}", *sections]) + "\n"


def method(config: Config, name: str) -> str:
    """How a model was trained: its lineage, its method, and the settings that the tables record."""
    steps = []
    for each in reversed(list(lineage.ancestry(config, name))):
        model = config.models[each]
        how = f"`{method_of(config, each)}` on `{model.problems}`" if model.parent else root_in_words(config, each)
        steps.append(f"`{each}` ({how})")
    trained_by, module = config.models[name].trained_by, f"mrt.methods.{config.models[name].method}"
    if isinstance(trained_by, SFTMethod):
        module = trained_by.examples.__module__
    text = (getattr(sys.modules.get(module), "__doc__", None) or "").strip().partition("\n\n")[0]
    values = {"prompt": canonical(lineage.prompt_of(config, name)), **recorded(config, name)}
    settings = yaml.dump(values, Dumper=Blocks, sort_keys=False, allow_unicode=True, width=100)
    return "\n\n".join(
        [
            f"This model was trained with [Meta Reinforcement Fine-Tuning]({PAPER})'s workflow `mrt`.",
            f"Method `{method_of(config, name)}`{': ' if text else '.'}{' '.join(text.split())}",
            f"Lineage: {' → '.join(steps)}.",
            "Settings: the prompt, and the recorded ones of the training and of its data.",
            f"```yaml\n{settings}```",
        ]
    )


def root_in_words(config: Config, name: str) -> str:
    """The given model at the start of a lineage; of a local folder only the last part of the path."""
    model = config.models[name]
    if model.path is None:
        return "the toy base of `mrt`"
    if local_folder(model.path).is_dir():
        return f"a local checkpoint, `{local_folder(model.path).resolve().name}`"
    return f"`{model.path}`{f', revision `{model.revision}`' if model.revision else ''}, of the hub"


def recorded(config: Config, name: str) -> dict[str, Any]:
    """The settings in the metadata of the training's log and of the tables that it was made from."""
    files = {"training": history_of(config, name)} | {t: file for t, (_, file) in data_of(config, name).items()}
    settings = {}
    for table, keys in SETTINGS.items():
        options = ((read_provenance(files[table]) or {}) if table in files else {}).get("options", {})
        if shown := {key: options[key] for key in keys if key in options}:
            settings[table] = shown
    return settings


def training_data(config: Config, name: str, dataset: str | None) -> str:
    """The problem set of a training, the number of rows of its tables, and the traces that each rule kept."""
    problems = str(config.models[name].problems)
    source = config.problems[problems]
    where = "problems of the toy world of `mrt`"
    if source.hub:
        where = f"`{source.hub.path}` of the hub, revision `{source.hub.revision}`, split `{source.hub.split}`"
    elif source.file:
        where = f"the file `{source.file.name}`"
    counts = [("problems", "problems and gold answers", rows_in(config.results / PROBLEMS.path.format(d=problems)))]
    counts += [(table, about(of), rows_in(file)) for table, (of, file) in data_of(config, name).items()]
    text = f"Problem set `{problems}`: {where}.\n\n{table_of(('table', 'content', 'rows'), counts)}"
    rules = config.results / RULES.path.format(m=name)
    if rules.is_file():
        kept = RULES.read(rules).iter_rows()
        text += f"\n\nTraces that each rule of the training set kept, in this order:\n\n{table_of(RULES.columns, kept)}"
    return text + (
        f"\n\nThe tables are published as [{dataset}](https://huggingface.co/datasets/{dataset})." * bool(dataset)
    )


def about(table: Artifact) -> str:
    """The content of a table; of its description the first sentence."""
    return table.about.partition(". ")[0]


def rows_in(file: Path) -> int | str:
    """The number of rows of a table, if it exists."""
    return int(pl.scan_parquet(file).select(pl.len()).collect().item()) if file.is_file() else "-"


def cost(config: Config, name: str) -> str:
    """Tokens and FLOPs of a model and its ancestors."""
    table = COST.read(config.results / COST.path.format(m=name))
    rows = [
        (*row[:2], *(f"{tokens:,}" for tokens in row[2:5]), f"{row[5]:.2e}")
        for row in table.select(*COST.columns).iter_rows()
    ]
    return (
        f"{table['flops'].sum():.3g} FLOPs in all, without the training of `{lineage.root(config, name)}` and without"
        f" evaluation.\n\n{table_of([column.replace('_', ' ') for column in COST.columns], rows)}"
    )


def original(config: Config, name: str) -> str:
    """The model whose name the tables of results have: of a replicate, the repeated model."""
    return config.models[name].replicate_of or name


def results_of(config: Config, name: str) -> pl.DataFrame:
    """The rows of a model in the table `runs`."""
    return read_table(config.results / RUNS).filter(pl.col("model") == original(config, name))


def results(config: Config, name: str) -> str:
    """Each measured value of a model with its 95 % interval, beside its parent's and the root's."""
    whole = read_table(config.results / RUNS)
    of_model = whole.filter(pl.col("model") == original(config, name))
    if of_model.is_empty():
        return "The experiment does not measure this model."
    names = list(lineage.ancestry(config, original(config, name)))
    names = [each for each in dict.fromkeys([names[0], names[1], names[-1]]) if each in set(whole["model"])]
    values = {(row["model"], row["dataset"], row["value"]): row for row in whole.iter_rows(named=True)}
    lines = [
        (
            *(row["dataset"], in_words(row["value"]), row["n"], row["samples_most"]),
            *(interval(values.get((each, row["dataset"], row["value"]))) for each in names),
        )
        for row in of_model.iter_rows(named=True)
    ]
    decoding = config.evaluation.decoding
    return (
        "Estimates with 95 % intervals, the model beside its ancestors. Completions were sampled with temperature"
        f" {decoding.temperature:g}, top-p {decoding.top_p:g} and at most {decoding.max_tokens} tokens. A problem has"
        " as many completions, or scored traces, as the column `samples` says.\n\n"
        + table_of(("problem set", "value", "problems", "samples", *(f"`{each}`" for each in names)), lines)
    )


def in_words(value: str) -> str:
    """The name of a measured value, as readers know it."""
    kind, _, budget = value.partition(" at ")
    return f"normalized regret at {budget} tokens (lower is better)" if kind == "regret" else IN_WORDS.get(value, value)


def interval(row: Mapping[str, Any] | None) -> str:
    """An estimate with its interval."""
    if row is None:
        return ""
    scale, digits = {"accuracy": (100, 1), "tokens": (1, 1)}.get(row["value"], (1, 3))
    middle, low, high = (f"{scale * row[end]:.{digits}f}" for end in ("estimate", "low", "high"))
    return f"{middle} [{low}, {high}]"


def provenance(config: Config, name: str) -> str:
    """Date, commit and versions; whether the training was by the code of this commit."""
    made = read_provenance(history_of(config, name)) or {}
    lines = [f"Published on {today()}, with {commit_of(Path(__file__).parent)}."]
    if made.get("stage"):
        versions, plugins = made["versions"], made.get("plugins", ())
        try:
            same = fingerprint(made["stage"], *plugins, with_versions=bool(versions)) == made["code"]
        except (ValueError, OSError):  # a user's file is elsewhere
            same = False
        lines += [
            f"Trained by the stage `{made['stage']}`. Fingerprint of its code and versions: `{made['code']}`,"
            f" {'the same as' if same else 'another one than'} that of the code at the publication.",
            f"Versions: {', '.join(versions.values()) or 'not tracked'}.",
        ]
    return "\n".join(f"- {line}" for line in lines)


def limits(config: Config, name: str) -> str:
    """The number of training runs, and the remarks of the experiment on this training."""
    table, seed = results_of(config, name), lineage.recipe(config, name).seed
    count = max(table["runs"], default=1)
    lines = [
        "One training run: another seed may give other results, which the intervals do not cover."
        if count == 1
        else f"The results are means over {count} training runs. These weights are from one of them, seed {seed}."
    ]
    remarks = table["remark"].drop_nulls().unique(maintain_order=True)
    lines += [f"Remark of the experiment: {remark}." for remark in remarks]
    lines.append("The intervals hold for these problem sets and these settings of sampling.")
    return "\n".join(f"- {line}" for line in lines)


def data_metadata(config: Config, name: str) -> dict[str, Any]:
    """Metadata of a dataset's card: each table is a configuration, which `datasets.load_dataset` takes by its name."""
    configs = [{"config_name": table, "data_files": f"{table}.parquet"} for table in data_of(config, name)]
    return {"configs": configs, "pretty_name": f"Training data of {config.models[name].label or name}", "tags": ["mrt"]}


def data_text(config: Config, name: str, repository: str) -> str:
    """The text of a dataset's card: each table with its columns."""
    teacher = lineage.teacher(config, name)
    parts = [
        f"# Training data of {config.models[name].label or name}",
        f"Data of [{repository}](https://huggingface.co/{repository}), trained by `{method_of(config, name)}` on"
        f" `{config.models[name].problems}`. Completions, answers and J are those of `{teacher}`. Rows of the same"
        " `problem_id` and `sample` belong together.",
    ]
    for table, (of, file) in data_of(config, name).items():
        columns = {**of.columns, **of.optional}
        lines = [(f"`{c}`", str(kind), of.notes.get(c, "")) for c, kind in columns.items() if c in columns_of(file)]
        content = f"{of.about[0].upper()}{about(of)[1:]}"
        parts.append(
            f"## {table}\n\n{content}; {rows_in(file)} rows.\n\n{table_of(('column', 'type', 'meaning'), lines)}"
        )
    return "\n\n".join(parts) + "\n"
