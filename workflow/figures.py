"""Figures and tables of an experiment: their input files, and how the report lists them.

The file of each describes it (`mrt.figures.figure`).
"""

import json
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from shlex import join
from typing import Any

from pydantic import TypeAdapter
from snakemake.io import multiext, report

from mrt.analysis.measure import FURTHER, OTHERS, measures, name_of
from mrt.config import lineage, measuring
from mrt.config.schema import Config
from mrt.core.cli import command_of
from mrt.core.digest import turns_off
from mrt.figures.figure import figures
from mrt.figures.style import over
from workflow.paths import Paths

Tables = dict[str, dict[str, str]]  # {model: {dataset: path}}

LACKING = {  # measures that not every experiment has, and their requirements
    "sft_log": "a model with a parent",
    "rl_log": "a model that RL trained, or one with a training_log",
    "cost": "a model with a parent",
    "constructions": "a model of method warmstart, rise or rejection",
    "traces": "backtracking",
}


def styles(experiment: Config, shown: Collection[str]) -> dict[str, Any]:
    """How these models appear in figures and in the page of traces, the measured ones first."""
    order = dict.fromkeys([*measuring.measured_runs(experiment), *experiment.models])
    return {m: measuring.style(experiment, m) for m in order if m in shown}


def html(text: str) -> str:
    """A caption, in reStructuredText, as HTML."""
    from docutils.core import publish_parts  # only now: its import takes time

    options = {"raw_enabled": False, "file_insertion_enabled": False, "report_level": 5}
    return publish_parts(text, writer="html5", settings_overrides=options)["body"]


class Figures:
    """The figures and tables of an experiment. Raises ValueError if a figure's file is wrong."""

    def __init__(self, experiment: Config, paths: Paths) -> None:
        self.experiment, self.paths = experiment, paths
        self.known = measures(experiment.evaluation.measures)
        self.configured = {*map(name_of, experiment.evaluation.measures)}
        self.user_files = [str(file) for file in experiment.figures.files]
        self.entries = figures(experiment.figures.files)
        for entry in self.entries.values():
            if unknown := set(entry.figure.measures) - {*self.known, *OTHERS, *FURTHER}:
                known = ", ".join((*self.known, *OTHERS, *FURTHER))
                raise ValueError(f"{entry.stage}: there is no measure {', '.join(sorted(unknown))}; there are {known}")
            for path in filter(None, (*entry.figure.settings, entry.figure.needs)):
                try:
                    self.setting(path)
                except AttributeError:
                    raise ValueError(f"{entry.stage}: the configuration has no setting {path}") from None

    def setting(self, path: str) -> Any:
        """The value at a path of the configuration, as JSON has it. Raises AttributeError if there is none."""
        value: Any = self.experiment
        for part in path.split("."):
            value = value[part] if isinstance(value, dict) and part in value else getattr(value, part)
        return TypeAdapter(Any).dump_python(value, mode="json")

    def measure(self, measure: str, model: str, dataset: str) -> str:
        """The table of a measure of a model on a dataset."""
        kind, suffix = {
            "progress": ("progress", "parquet"),
            "traces": ("episodes", "parquet"),
            "direct": ("metrics", "maj.parquet"),
            "reading": ("rollouts", "reading.parquet"),
        }.get(measure, ("metrics", f"{measure}.parquet"))
        return self.paths.artifact(kind, suffix, model, dataset)

    def measured(self, measure: str, models: list[str]) -> Tables:
        """The measure's tables of the models."""
        experiment, paths, evaluation = self.experiment, self.paths, self.experiment.evaluation
        ancestors, by_rl = paths.trained_ancestors(runs=True), paths.by_rl()
        if measure == "sft_log":
            names = [name for name in experiment.models if name in ancestors - by_rl]
            return {m: {str(experiment.models[m].problems): paths.of_model("models", "log.parquet", m)} for m in names}
        if measure == "rl_log":
            names = [name for name in experiment.models if name in paths.logged or name in ancestors & by_rl]
            return {m: {"training": paths.of_model("models", "log.parquet", m)} for m in names}
        if measure == "cost":
            return {m: {"training": paths.of_model("costs", model=m)} for m in models if paths.is_trained(m)}
        if measure in ("constructions", "trees"):
            return self.of_first_tree()[measure]
        fewer = {
            "direct": [evaluation.direct.model] if evaluation.direct else [],
            "traces": models if experiment.backtracking else [],
            "reading": [name for name in models if experiment.models[name].rollouts],
        }
        return {
            m: {d: self.measure(measure, m, d) for d in measuring.measured_on(experiment, m)}
            for m in fewer.get(measure, models)
            if measure not in self.known or measuring.is_measurable(experiment, self.known, measure, m)
        }

    def of_first_tree(self) -> dict[str, Tables]:
        """Warmstart sets, and the solution trees that they are made from; of the first model that was searched."""
        models, ancestors = self.experiment.models, self.paths.trained_ancestors()
        names = [m for m in models if m in ancestors and models[m].trained_by.only == "backtracking"]
        of = {m: (lineage.teacher(self.experiment, m), str(models[m].problems)) for m in names}
        first = next(iter(of.values()), None)
        if first is None:
            return {"constructions": {}, "trees": {}}
        searched, problems = first
        sets = {m: {problems: self.paths.of_model("sets", model=m)} for m in names if of[m] == first}
        trees = self.paths.artifact("trees", model=searched, dataset=problems)
        return {"constructions": sets, "trees": {searched: {problems: trees}}}

    def tables(self, name: str) -> dict[str, Tables]:
        """All tables that a figure or table is made from, by measure."""
        figure = self.entries[name].figure
        models = (
            self.experiment.evaluation.models if figure.first_run_only else measuring.measured_runs(self.experiment)
        )
        made = {*self.configured, "cost", *FURTHER}
        read = [m for m in figure.measures if m in made or not figure.skips_unmeasured]
        models = [*models, *(measuring.measured_checkpoints(self.experiment) if figure.checkpoints else [])]
        return {measure: self.measured(measure, models) for measure in read}

    def files(self, name: str) -> list[str]:
        """The files of these tables; if the experiment can have none, the missing setting, which Snakemake reports."""
        tables, figure = self.tables(name), self.entries[name].figure
        if figure.needs and not self.setting(figure.needs):
            return [f"{figure.needs} in the configuration"]
        if figure.checkpoints and not self.has_checkpoints:
            return ["evaluate_steps in the recipe of a measured model"]
        files = [path for of in tables.values() for sets in of.values() for path in sets.values()]
        is_possible = files and (figure.needs or tables.get(figure.measures[0]))
        return files if is_possible else [LACKING.get(figure.measures[0], "models to measure")]

    @cached_property
    def has_checkpoints(self) -> bool:
        """Whether a measured model keeps checkpoints on the way of its training."""
        return bool(lineage.checkpoints(self.experiment, measuring.measured_runs(self.experiment)))

    def caption(self, name: str) -> str:
        """The caption of a figure or table in the report."""
        models = self.experiment.models
        trained = [model for model in self.experiment.evaluation.models if models[model].parent]
        runs = max((len(lineage.runs(self.experiment, model)) for model in trained), default=0)
        return self.entries[name].caption_over(over(runs))

    def settings(self, name: str) -> str:
        """All that a figure or table gets, as JSON; the order of the models is theirs in the legend."""
        values = {path.split(".")[-1]: self.setting(path) for path in self.entries[name].figure.settings}
        options = {option: value for option, value in values.items() if not turns_off(value)}
        settings = {"tables": self.tables(name), "models": self.models(name)}
        drawing = {} if self.entries[name].is_table else self.experiment.figures.drawing()
        more = {"options": options, "drawing": drawing}
        return json.dumps(settings | {group: values for group, values in more.items() if values})

    def models(self, name: str) -> dict[str, Any]:
        """How the models of a figure or table appear, the measured ones first; tables show no looks."""
        unused = ("colour", "marker", "line") if self.entries[name].is_table else ()
        shown = {m for of in self.tables(name).values() for m in of}
        return {
            m: {part: value for part, value in style.items() if part not in unused}
            for m, style in self.styles.items()
            if m in shown
        }

    @cached_property
    def styles(self) -> dict[str, Any]:
        """The styles of all models."""
        return styles(self.experiment, self.experiment.models)

    def wanted(self, name: str) -> bool:
        """Whether the experiment has the measures of a figure or table, and something to show; a user's always."""
        evaluation, entry = self.experiment.evaluation, self.entries[name]
        if entry.stage in self.user_files:
            return True
        if entry.figure.needs:
            return bool(self.setting(entry.figure.needs)) and not self.configured.isdisjoint(entry.figure.measures)
        if entry.figure.checkpoints and not self.has_checkpoints:
            return False
        first = entry.figure.measures[0]
        return first in self.configured and bool(self.measured(first, evaluation.models))

    def stage(self, name: str) -> str:
        """A figure's stage, as `Options.code` names it."""
        return self.entries[name].stage.removeprefix("mrt.")

    def command(self, name: str) -> str:
        """The command that makes a figure or table."""
        return join(command_of(self.entries[name].stage))

    def stem(self, name: str) -> str:
        """Path of a figure's or table's files, without what tells their formats apart."""
        return f"{self.paths.results}/{'tables' if self.entries[name].is_table else 'figures'}/{name}"

    def written(self, name: str) -> dict[str, Any]:
        """All files of a figure or table; the report has the one to look at and its data as CSV."""
        stem, entry = self.stem(name), self.entries[name]

        def listed(suffix: str, form: str) -> Any:
            labels = {"what": name.replace("_", " "), "paper": entry.paper, "form": form}
            options = {"category": entry.figure.section, "labels": labels}
            return report(f"{stem}.{suffix}", caption="../report/figure.rst", **options)

        if entry.is_table:
            files = {"markdown": f"{stem}.md", "page": listed("html", "table"), "latex": f"{stem}.tex"}
        else:
            files = {self.vector: f"{stem}.{self.vector}", "png": listed("png", "figure")}
        return {**files, "data": f"{stem}.parquet", "csv": listed("csv", "values (CSV)")}

    def outputs(self, name: str) -> Any:
        """The pictures or the text of a figure or table, and its data.

        Snakemake compares no settings of a rule with an output that is missing and that no target needs.
        """
        shown = (".md",) if self.entries[name].is_table else (".png", f".{self.vector}")
        return multiext(self.stem(name), *shown, ".csv")

    @property
    def vector(self) -> str:
        """The format of figures beside PNG."""
        return self.experiment.figures.format or "pdf"

    def all(self) -> list[str]:
        """All figures and tables of the experiment."""
        return [path for name in self.entries if self.wanted(name) for path in self.outputs(name)]

    def shown(self) -> dict[str, str]:
        """The figures and tables of the experiment as one looks at them: {name: path}."""
        pages = {name: "html" if entry.is_table else "png" for name, entry in self.entries.items()}
        return {name: f"{self.stem(name)}.{suffix}" for name, suffix in pages.items() if self.wanted(name)}

    def report(self) -> str:
        """Settings of the report, as JSON: figures and tables with their captions."""
        shown = [
            {
                "section": entry.figure.section,
                "caption": html(self.caption(name)),
                "opens": entry.figure.opens,
                "file": path,
            }
            for name, path in self.shown().items()
            if (entry := self.entries[name])
        ]
        shown.sort(key=lambda each: (each["section"], not str(each["file"]).endswith(".html")))
        pages = {"traces": "traces.html", "provenance and configuration": "tables/provenance.html"}
        return json.dumps({"title": self.experiment.results.name, "shown": shown, "pages": pages})

    def read(self) -> set[str]:
        """The measures that figures or tables of the experiment read."""
        return {measure for entry in self.entries.values() for measure in entry.figure.measures}

    def provenance(self) -> dict[str, str]:
        """The tables that the page of provenance lists: {name: path}."""
        paths, experiment = self.paths, self.experiment
        sets = [(m, d) for m in experiment.evaluation.models for d in measuring.measured_on(experiment, m)]
        trained = [m for m in experiment.models if m in paths.trained_ancestors()]
        tables = sorted({Path(path).with_suffix(".parquet") for path in self.all()})  # whatever their sections are
        return {
            **{f"problems {d}": paths.problems(d) for d in measuring.used_problems(experiment)},
            **{f"rollouts {m}/{d}": paths.artifact("rollouts", model=m, dataset=d) for m, d in sets},
            **{f"set {m}": paths.of_model("sets", model=m) for m in trained if m not in paths.by_rl()},
            **{f"model {m}": paths.of_model("models", "history.parquet", m) for m in trained},
            **{f"{path.parent.name} {path.stem}": str(path) for path in tables},
        }
