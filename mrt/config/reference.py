"""The configuration reference, generated from the typed config: a JSON schema for editors, and a page for people.

python -m mrt.config.reference --out docs
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from mrt.analysis.measure import measures, path_of
from mrt.config.schema import Config
from mrt.core.artifacts import OTHERS, TABLES
from mrt.core.cli import Stage, run
from mrt.core.storage import write_text
from mrt.figures.figure import figures
from mrt.grading.task import TASKS, task_of
from mrt.training.method import variants

BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minItems": "at least {} items",
    "minLength": "not empty",
}
INTRODUCTION = """# Configuration reference

Generated from `mrt/config/schema.py` by `python -m mrt.config.reference --out docs`; do not edit. `config.schema.json`
beside it is the same for editors (put `# yaml-language-server: $schema=docs/config.schema.json` on top of a config).

A config is checked before any job starts, and all mistakes are shown at once. Unknown settings are mistakes, and so
are settings that contradict each other.

If a config sets a part of a group, the other settings of the group keep their defaults. These are in the table of the
group, unless the setting that holds the group has another default.
"""


def kind_of(field: dict[str, Any]) -> str:
    """A field's type in a few words, with links to groups."""
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "allOf" in field:
        return kind_of(field["allOf"][0])
    if "anyOf" in field:
        return " or ".join(kind_of(option) for option in field["anyOf"] if option.get("type") != "null")
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if field.get("type") == "array":
        items = field.get("items") or {}
        if "prefixItems" in field:
            return "[" + ", ".join(kind_of(item) for item in field["prefixItems"]) + "]"
        return f"list of {kind_of(items)}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"name: {kind_of(field['additionalProperties'])}"
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
    return words.get(str(field.get("type")), "settings")


def bounds_of(field: dict[str, Any]) -> str:
    options = [field, *field.get("anyOf", [])]
    bounds = [text.format(option[key]) for option in options for key, text in BOUNDS.items() if key in option]
    return f" ({', '.join(dict.fromkeys(bounds))})" if bounds else ""


def meaning_of(field: dict[str, Any], groups: dict[str, Any]) -> str:
    """A field's description; where pydantic omits it, that of the field's group."""
    described = field.get("description") or groups.get(field.get("$ref", "").rsplit("/", 1)[-1], {}).get("description")
    return described or ""


def default_of(field: dict[str, Any], groups: dict[str, Any]) -> str:
    """A field's default as written in a config; of a group, the settings that differ from the group's defaults."""
    default = field.get("default")
    if isinstance(default, dict):
        properties = groups.get(field.get("$ref", "").rsplit("/", 1)[-1], {}).get("properties", {})
        differs = {name: value for name, value in default.items() if value != properties.get(name, {}).get("default")}
        return (
            f"`{{{', '.join(f'{name}: {json.dumps(value)}' for name, value in differs.items())}}}`" if differs else ""
        )
    if "default" not in field:
        return ""
    return "none" if default is None else f"`{json.dumps(default, ensure_ascii=False)}`"


def rows_of(group: dict[str, Any], groups: dict[str, Any]) -> Iterator[str]:
    required = group.get("required", [])
    for name, field in group["properties"].items():
        default = "**needed**" if name in required else default_of(field, groups)
        cells = [f"`{name}`", kind_of(field) + bounds_of(field), default, meaning_of(field, groups)]
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def page() -> str:
    """The reference in Markdown: one table per group of settings, and per task."""
    schema = Config.model_json_schema()
    lines = [INTRODUCTION]
    tasks = {f"Task {name}": task_of(name).model_json_schema() for name in TASKS.all()}
    for name, group in [("Config", schema), *schema["$defs"].items(), *tasks.items()]:
        if "properties" not in group:
            continue
        lines += [f"## {name}", "", group.get("description", ""), "", "| setting | value | default | meaning |"]
        lines += ["|---|---|---|---|", *rows_of(group, {**schema["$defs"], **group.get("$defs", {})}), ""]
        if columns := task_of(name.removeprefix("Task ")).columns if name in tasks else ():
            lines += [
                f"Columns of the source that it reads by default: {', '.join(f'`{each}`' for each in columns)}.",
                "",
            ]
    lines += ["## Variants of RL", "", "| variant | needs | parameters | meaning |", "|---|---|---|---|"]
    for name, variant in variants().items():
        parameters = ", ".join(f"`{each}`" for each in variant.parameters) or "none"
        about = " ".join((variant.function.__doc__ or "").partition("\n\n")[0].split())
        lines.append(f"| `{name}` | {variant.asks} | {parameters} | {about} |")
    return "\n".join([*lines, ""])


ARTIFACTS = """# Artifacts

Generated from `mrt/core/artifacts.py` and `mrt/analysis/measures/` by `python -m mrt.config.reference --out docs`; do
not edit.

All files are in the folder of the experiment (setting `results`). `m` is a model, `d` a dataset. Columns that identify
a row are **bold**. In `rollouts/`, `m` is the model that sampled, or a file of completions sampled elsewhere.
`mrt show FILE` prints the first rows of a table, with problems and verdicts, and the stage, code and settings that made
it.

| file | content | columns |
|---|---|---|
"""
TYPES = {
    pl.String: "text",
    pl.Int64: "integer",
    pl.Float64: "number",
    pl.Boolean: "true or false",
    pl.List(pl.String): "texts",
}


def artifacts() -> str:
    """The page of artifacts in Markdown."""
    rows = []
    for table in TABLES:
        columns = []
        for name, kind in {**table.columns, **table.optional}.items():
            notes = "; ".join(filter(None, (TYPES[kind], table.notes.get(name, ""))))
            columns.append(f"**{name}** ({notes})" if name in table.keys else f"{name} ({notes})")
        rows.append(f"| `{table.path}` | {table.about} | {', '.join(columns)} |")
    for name, each in measures().items():
        columns = [f"**{column}**" if column in each.keys else column for column in each.columns]
        rows.append(f"| `{path_of(name)}` | {' '.join((each.function.__doc__ or '').split())} | {', '.join(columns)} |")
    rows += [f"| `{path}` | {about} | |" for path, about in OTHERS.items()]
    return ARTIFACTS + "\n".join(rows) + "\n"


FIGURES = """# Figures and tables

Generated from the modules of `mrt/figures/` by `python -m mrt.config.reference --out docs`; do not edit.

Each figure and table is a target under its name and under its numbers in the paper: `snakemake --cores 2 regret`, or
`fig9`, makes that figure and the tables that it needs. The [gallery](gallery.md) has pictures. `figures.files` in a
configuration adds figures of yours, each [one file](architecture.md#figure-a-figure-or-a-table-is-one-file).
"""


def figures_page() -> str:
    """The page of figures in Markdown: a table for each section of the report, and all captions."""
    entries = figures()
    lines = [FIGURES]
    for section in dict.fromkeys(entry.figure.section for entry in entries.values()):
        lines += [f"## {section}", "", "| target | paper | content | measures |", "|---|---|---|---|"]
        for name, entry in entries.items():
            if entry.figure.section == section:
                cells = [listed((name, *entry.targets)), entry.paper, entry.title, listed(entry.figure.measures)]
                lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["## Captions", ""]
    return (
        "\n".join([*lines, *(f"- `{name}`: {' '.join(entry.caption.split())}" for name, entry in entries.items())])
        + "\n"
    )


def listed(names: Iterable[str]) -> str:
    """Names as code, with commas."""
    return ", ".join(f"`{name}`" for name in names)


class Reference(Stage):
    """Write `config.schema.json`, `configuration.md`, `artifacts.md` and `figures.md`."""

    out: Path = Field(description="Folder of these files.")

    def cli_cmd(self) -> None:
        write_text(json.dumps(Config.model_json_schema(), indent=2) + "\n", self.out / "config.schema.json")
        write_text(page(), self.out / "configuration.md")
        write_text(artifacts(), self.out / "artifacts.md")
        write_text(figures_page(), self.out / "figures.md")


if __name__ == "__main__":
    run(Reference)
