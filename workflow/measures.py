"""The measures of an experiment: inputs, settings, code and memory of their rules."""

from collections.abc import Callable

from mrt.analysis.measure import MEASURES, measures, name_of
from mrt.config import measuring
from mrt.config.schema import Config
from mrt.core.artifacts import Artifact
from mrt.core.digest import options_of
from workflow.options import Options
from workflow.paths import Paths, Wildcards
from workflow.resources import NUMBERS, TEXT
from workflow.sampling import SAMPLED


class Measures:
    """Inputs and options of the rules of measures: those of the package, and those of a user's that are configured."""

    def __init__(self, experiment: Config, paths: Paths, options: Options) -> None:
        self.experiment, self.paths, self.options = experiment, paths, options
        self.known = measures(experiment.evaluation.measures)
        configured = [*self.known, *experiment.evaluation.measures]
        self.references = {name_of(reference): reference for reference in configured}

    def inputs(self, name: str, w: Wildcards) -> dict[str, str]:
        """The tables that a measure of a model on a dataset reads, by parameter."""
        reads = measuring.tables_of(self.experiment, self.known[name], w.model)
        return {table: self.paths.table(read.of, w.model, w.dataset) for table, read in reads.items()}

    def settings(self, name: str, w: Wildcards) -> str:
        """The measure and its settings."""
        options = measuring.settings_of(self.experiment, self.known[name], w.model)
        return options_of(measure=self.references[name], options=options or None)

    def code(self, name: str) -> str:
        """The fingerprint of the stage with this measure."""
        return self.options.code("analysis.evaluate", *MEASURES.starts(self.references[name]))

    def memory(self, name: str) -> Callable[[Wildcards, int], int]:
        """Memory in MB, more at each attempt, of a job that reads these columns of sampled tables."""
        sampled = [
            self.options.resources.reading(SAMPLED[kind].samples, TEXT if "text" in columns else NUMBERS)
            for of, columns in self.known[name].reads.values()
            if isinstance(of, Artifact) and (kind := of.path.split("/")[0]) in SAMPLED
        ]
        return lambda w, attempt: max((memory(w, attempt) for memory in sampled), default=2000 * attempt)

    def unread(self, read: set[str]) -> list[str]:
        """The tables of measures that are configured, but that no figure reads."""
        experiment = self.experiment
        return [
            self.paths.table(name, model, dataset)
            for name in map(name_of, experiment.evaluation.measures)
            if name in self.known and name not in read
            for model in measuring.measured_runs(experiment)
            if measuring.is_measurable(experiment, self.known, name, model)
            for dataset in measuring.measured_on(experiment, model)
        ]
