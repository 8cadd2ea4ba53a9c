"""Figures and tables of an experiment: which there are, what they are made from, and how the report lists them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args

from snakemake.io import multiext, report

from mrt.config.schema import Config
from mrt.config.sections import Measure
from workflow.paths import Paths

Tables = dict[str, dict[str, str]]  # {model: {dataset: path}}

RESULT, REGRET, CASE, TRAINING = (
    "1 Accuracy and token efficiency (Section 8.2, 8.3)",
    "2 Regret (Section 8.5.1, Appendices E, F)",
    "3 Episodes and progress (Sections 5, 6)",
    "4 Training (Section 8.5.2, Appendix A)",
)


class Figure(NamedTuple):
    """A figure or table."""

    section: str  # of the report
    measures: list[str]  # that it reads; without the first there is nothing to show
    numbers: list[str]  # in the paper
    place: str = ""  # in the paper, of one without a number
    table: bool = False
    first_run_only: bool = False  # it shows single traces
    skips_unmeasured: bool = False  # it reads only those of its measures that the experiment makes
    options: Callable[[Config], dict[str, Any]] = lambda experiment: {}  # what else it is told


FIGURES = {
    "pass1": Figure(RESULT, ["accuracy", "reading"], ["table1"], table=True),
    "token_efficiency": Figure(RESULT, ["maj", "linearized"], [], "Section 8.3", table=True),
    "maj_tokens": Figure(RESULT, ["maj", "linearized"], ["fig7", "fig8", "fig19"]),
    "pass_tokens": Figure(RESULT, ["maj", "linearized"], ["fig17", "fig18", "fig20"]),
    "regret": Figure(REGRET, ["regret"], ["fig9", "fig12"]),
    "episode_regret": Figure(REGRET, ["episode_regret"], ["fig26"]),
    "budget_forcing": Figure(REGRET, ["budget_forcing"], ["fig29"]),
    "scaling": Figure(
        CASE,
        ["prefixes", "direct"],
        ["fig3", "fig24", "fig25", "fig27", "fig28"],
        options=lambda e: {"episode_groups": e.evaluation.episode_groups} if e.evaluation.episode_groups else {},
    ),
    "episode_counts": Figure(CASE, ["episodes"], ["fig23"]),
    "progress": Figure(CASE, ["progress"], ["fig16"]),
    "backtrack": Figure(CASE, ["traces", "progress"], ["fig13"], first_run_only=True),
    "length": Figure(TRAINING, ["rl_log"], ["fig10"]),
    "reward": Figure(TRAINING, ["rl_log"], ["fig11"]),
    "constructions": Figure(TRAINING, ["constructions", "trees"], ["fig14"]),
    "loss": Figure(TRAINING, ["sft_log"], ["fig15"]),
    "cost": Figure(TRAINING, ["cost", "accuracy", "regret"], [], "Section 9", skips_unmeasured=True),
    "runs": Figure(TRAINING, ["cost", "accuracy", "regret"], [], "Section 9", table=True, skips_unmeasured=True),
    "claims": Figure(
        RESULT,
        [
            "maj",
            "accuracy",
            "linearized",
            "regret",
            "episode_regret",
            "budget_forcing",
            "progress",
            "episodes",
            "prefixes",
            "direct",
            "sft_log",
            "rl_log",
        ],
        [],
        "the paper's claims",
        table=True,
        skips_unmeasured=True,
        options=lambda e: {"claims": [claim.model_dump() for claim in e.claims]},
    ),
}
LACKING = {  # measures that not every experiment has, and what it takes
    "sft_log": "a model with a parent",
    "rl_log": "a model that RL trained, or one with a training_log",
    "cost": "a model with a parent",
    "constructions": "a model of method warmstart, rise or rejection",
    "traces": "backtracking",
    "claims": "claims in the configuration",
}


class Figures:
    """The figures and tables of an experiment."""

    def __init__(self, experiment: Config, paths: Paths) -> None:
        self.experiment, self.paths = experiment, paths

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
            return {m: {"training": paths.of_model("costs", model=m)} for m in models if m in paths.trained}
        if measure in ("constructions", "trees"):
            return self.of_first_tree()[measure]
        fewer = {
            "direct": [evaluation.direct.model] if evaluation.direct else [],
            "linearized": models if evaluation.linearized else [],
            "budget_forcing": [name for name in models if name in experiment.extended],
            "traces": models if experiment.backtracking else [],
            "reading": [name for name in models if experiment.models[name].rollouts],
        }
        return {
            m: {d: self.measure(measure, m, d) for d in experiment.measured_on(m)} for m in fewer.get(measure, models)
        }

    def of_first_tree(self) -> dict[str, Tables]:
        """Warmstart sets, and the solution trees that they are made from; of the first model that was searched."""
        models, ancestors = self.experiment.models, self.paths.trained_ancestors()
        names = [m for m in models if m in ancestors and models[m].trained_by.only == "backtracking"]
        of = {m: (str(self.experiment.learns_from(m)), str(models[m].problems)) for m in names}
        first = next(iter(of.values()), None)
        if first is None:
            return {"constructions": {}, "trees": {}}
        searched, problems = first
        sets = {m: {problems: self.paths.of_model("sets", model=m)} for m in names if of[m] == first}
        trees = self.paths.artifact("trees", model=searched, dataset=problems)
        return {"constructions": sets, "trees": {searched: {problems: trees}}}

    def tables(self, name: str) -> dict[str, Tables]:
        """All tables that a figure or table is made from, by measure."""
        models = self.experiment.evaluation.models if FIGURES[name].first_run_only else self.experiment.measured
        measures = FIGURES[name].measures
        if FIGURES[name].skips_unmeasured:
            asked = {*self.experiment.evaluation.measures, "cost"}
            measures = [m for m in measures if m in asked or m not in get_args(Measure)]
        return {measure: self.measured(measure, models) for measure in measures}

    def files(self, name: str) -> list[str]:
        """The files of these tables; if the experiment can have none, what it lacks, which Snakemake reports."""
        tables, needed = self.tables(name), FIGURES[name].measures[0]
        there: Any = tables.get(needed)
        if name == "claims":
            needed, there = "claims", self.experiment.claims
        found = [path for of in tables.values() for sets in of.values() for path in sets.values()]
        return found if found and there else [LACKING.get(needed, "models to measure")]

    def settings(self, name: str) -> str:
        """All that a figure or table is told, as JSON; the order of the models is theirs in the legend."""
        told = {"tables": self.tables(name), "models": self.models(name)}
        options = FIGURES[name].options(self.experiment)
        return json.dumps(told | ({"options": options} if options else {}))

    def models(self, name: str) -> dict[str, Any]:
        """How the models of a figure appear, the measured ones first."""
        there = {m for of in self.tables(name).values() for m in of}
        measured = self.experiment.measured
        order = [*measured, *(m for m in self.experiment.models if m not in measured)]
        return {m: self.experiment.style(m) for m in order if m in there}

    def wanted(self, name: str) -> bool:
        """Whether the experiment measures what a figure or table shows, and has something to show."""
        evaluation, measures = self.experiment.evaluation, FIGURES[name].measures
        if name == "claims":
            return bool(self.experiment.claims) and not set(measures).isdisjoint(evaluation.measures)
        first = measures[0]
        return first in evaluation.measures and bool(self.measured(first, evaluation.models))

    def labels(self, name: str, form: str) -> dict[str, str]:
        """How the report lists a figure, a table, or the data behind it."""
        numbers = FIGURES[name].numbers
        number = ", ".join(n.replace("fig", "Figure ").replace("table", "Table ") for n in numbers)
        return {"what": name.replace("_", " "), "paper": number or FIGURES[name].place, "form": form}

    def stem(self, name: str) -> str:
        """Path of a figure's or table's files, without what tells their formats apart."""
        return f"{self.paths.results}/{'tables' if FIGURES[name].table else 'figures'}/{name}"

    def drawn(self, name: str) -> dict[str, Any]:
        """All files of a figure or table; the report has the one to look at and the data behind it as CSV."""
        stem = self.stem(name)

        def listed(suffix: str, form: str) -> Any:
            options = {"category": FIGURES[name].section, "labels": self.labels(name, form)}
            return report(f"{stem}.{suffix}", caption=f"../report/{name}.rst", **options)

        if FIGURES[name].table:
            seen = {"markdown": f"{stem}.md", "page": listed("html", "table"), "latex": f"{stem}.tex"}
        else:
            seen = {"pdf": f"{stem}.pdf", "png": listed("png", "figure")}
        return {**seen, "data": f"{stem}.parquet", "csv": listed("csv", "values (CSV)")}

    def outputs(self, name: str) -> Any:
        """What a figure or table is to be looked at, and the data behind it."""
        return multiext(self.stem(name), ".md" if FIGURES[name].table else ".png", ".csv")

    def all(self) -> list[str]:
        """All figures and tables of the experiment."""
        return [path for name in FIGURES if self.wanted(name) for path in self.outputs(name)]

    def provenance(self) -> dict[str, str]:
        """What the page of provenance lists: {name: path}."""
        paths, experiment = self.paths, self.experiment
        sets = [(m, d) for m in experiment.evaluation.models for d in experiment.measured_on(m)]
        trained = [m for m in experiment.models if m in paths.trained_ancestors()]
        drawn = dict.fromkeys(Path(path).with_suffix(".parquet") for path in self.all())
        return {
            **{f"problems {d}": paths.problems(d) for d in experiment.used_problems},
            **{f"rollouts {m}/{d}": paths.artifact("rollouts", model=m, dataset=d) for m, d in sets},
            **{f"set {m}": paths.of_model("sets", model=m) for m in trained if m not in paths.by_rl()},
            **{f"model {m}": paths.of_model("models", "log.parquet", m) for m in trained},
            **{f"{path.parent.name} {path.stem}": str(path) for path in drawn},
        }
