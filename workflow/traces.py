"""The page of traces of an experiment: its tables and its settings."""

import json

from mrt.config import lineage, measuring
from mrt.config.schema import Config
from mrt.core.digest import canonical, digest_of_files, turns_off
from mrt.core.storage import write_text
from mrt.traces.page import RECORD, assets
from mrt.training.method import SFTMethod
from workflow.figures import styles
from workflow.options import content_of
from workflow.paths import Paths

SAMPLED = [("rollouts", "parquet"), ("grades", "rollouts.parquet")]
CUT = [("episodes", "parquet")]
SCORED = [("prover", "parquet"), ("grades", "prover.parquet"), ("progress", "parquet")]
LINEARIZED = [("linearized", "parquet"), ("grades", "linearized.parquet")]


class TracesPage:
    """Inputs and options of `mrt.traces.page`: first runs of the measured models on the evaluation sets, and the traces
    of training sets that SFT learns from.
    """

    def __init__(self, experiment: Config, paths: Paths) -> None:
        self.experiment, self.paths = experiment, paths

    def sets(self) -> dict[str, tuple[str, str]]:
        """Training sets made of traces: {trained model: (the model that it learns from, dataset)}."""
        trained, models = self.paths.trained_ancestors(), self.experiment.models
        names = [m for m in models if m in trained and self.learns(m, "of_own_traces")]
        return {m: (lineage.teacher(self.experiment, m), str(models[m].problems)) for m in names}

    def learns(self, name: str, what: str) -> bool:
        """Whether a first run learns from traces of its parent (`of_own_traces`), or from trees (`of_trees`)."""
        model = self.experiment.models[name]
        of_sft = isinstance(model.trained_by, SFTMethod) and bool(getattr(model.trained_by, what))
        return of_sft and not model.replicate_of

    def kinds(self) -> dict[tuple[str, str], list[tuple[str, str]]]:
        """The kinds of tables, with their suffixes, of each (model, dataset) that is shown; evaluation sets first."""
        evaluation, models, measures = (
            self.experiment.evaluation,
            self.experiment.models,
            self.experiment.evaluation.measures,
        )
        kinds_of: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for of in ((m, d) for m in evaluation.models for d in measuring.measured_on(self.experiment, m)):
            scored = measuring.asks_mu(self.experiment)
            kinds_of[of] = [*SAMPLED, *(CUT if scored or "episodes" in measures else []), *(SCORED if scored else [])]
            kinds_of[of] += LINEARIZED if evaluation.linearized and "linearized" in measures else []
        for name, of in self.sets().items():
            kinds = [*SAMPLED, *CUT, *SCORED] if "prover" in models[name].trained_by.reads else SAMPLED
            kinds_of[of] = list(dict.fromkeys([*kinds_of.get(of, []), *kinds]))
        for name in self.paths.trained_ancestors():
            if self.learns(name, "of_trees"):
                of = lineage.teacher(self.experiment, name), str(models[name].problems)
                kinds_of[of] = list(dict.fromkeys([*kinds_of.get(of, []), ("trees", "parquet")]))
        return kinds_of

    def tables(self) -> list[str]:
        """The tables that the page is made from."""
        problems = dict.fromkeys(self.paths.problems(dataset) for _, dataset in self.kinds())
        sets = [self.paths.of_model("sets", model=name) for name in self.sets()]
        return [*problems, *sets, *(self.paths.artifact(*k, *of) for of, kinds in self.kinds().items() for k in kinds)]

    def settings(self) -> str:
        """The page's content and looks, as JSON; models and datasets in their order."""
        markers = self.experiment.segmentation.markers
        datasets: dict[str, list[str]] = {}
        for model, dataset in self.kinds():
            datasets.setdefault(model, []).append(dataset)
        models = styles(self.experiment, datasets)
        imported = {m: its.rollouts.model for m, its in self.experiment.models.items() if its.rollouts}
        options = {
            "models": models,
            "datasets": {m: datasets[m] for m in models},
            "sets": self.sets(),
            "markers": [self.experiment.backtracking.marker] if self.experiment.backtracking else markers,
            "backtracking": self.experiment.backtracking,
            **self.experiment.traces.model_dump(),
            "named": {m: name for m, name in imported.items() if name} if self.content() else None,
        }
        return json.dumps({name: canonical(value) for name, value in options.items() if not turns_off(value)})

    def record(self) -> None:
        """Leave these settings in the results: `mrt traces FOLDER` shows a run that goes on as this page will."""
        write_text(self.settings(), self.experiment.results / RECORD)

    def content(self) -> str | None:
        """Content of the file of curves, if there is one."""
        return content_of(self.experiment.traces.prefix_accuracy)

    @staticmethod
    def assets() -> str:
        """Content of the page's markup, style and scripts."""
        return digest_of_files(assets())
