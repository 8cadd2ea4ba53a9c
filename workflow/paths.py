"""Where artifacts lie, and which of them a model's training is made from."""

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from mrt.analysis.measure import path_of
from mrt.config import lineage, measuring
from mrt.config.schema import Config
from mrt.core.artifacts import Artifact
from mrt.training.method import RLMethod, SFTMethod
from mrt.training.sets import tables_of
from mrt.training.stage import on_the_way

Wildcards = Any  # Snakemake's, which have no types
Input = Callable[[Wildcards], str | list[str]]


def any_of(names: Collection[str]) -> str:
    """A wildcard constraint that matches just these names."""
    return "|".join(map(re.escape, names)) or "(?!)"


class Paths:
    """Paths and path patterns of an experiment's artifacts (docs/artifacts.md)."""

    def __init__(self, experiment: Config) -> None:
        self.experiment = experiment
        self.results = str(experiment.results)
        self.shard_count = experiment.cluster.shards
        self.trained = lineage.trained(experiment)
        self.sampled = [name for name, model in experiment.models.items() if not model.rollouts]
        self.logged = [name for name, model in experiment.models.items() if model.training_log]

    def artifact(self, kind: str, suffix: str = "parquet", model: str = "{model}", dataset: str = "{dataset}") -> str:
        """An artifact of a model on a dataset; by default the pattern of all."""
        return f"{self.results}/{kind}/{model}/{dataset}.{suffix}"

    def table(self, of: Artifact | str, model: str = "{model}", dataset: str = "{dataset}") -> str:
        """The table of an artifact, or of a measure, of a model on a dataset; by default the pattern of all."""
        return f"{self.results}/{path_of(of).format(m=model, d=dataset)}"

    def problems(self, dataset: str = "{dataset}") -> str:
        return f"{self.results}/problems/{dataset}.parquet"

    def contamination(self, dataset: str = "{dataset}") -> str:
        return f"{self.results}/problems/{dataset}.contamination.parquet"

    def of_model(self, kind: str, suffix: str = "parquet", model: str = "{model}") -> str:
        """An artifact of a model alone: a training set, a log."""
        return f"{self.results}/{kind}/{model}.{suffix}"

    def cache(self, kind: str, model: str) -> str:
        """The folder of a model's completion caches of one stage; each dataset has its own below."""
        return f"{self.results}/.cache/{kind}/{model}"

    def request(self, kind: str = "{kind}") -> str:
        """The sampling request for a model on a dataset."""
        return f"{self.results}/.sampling/{kind}/{{model}}/{{dataset}}.json"

    def mark(self, kind: str) -> str:
        """The mark of a job that samples: of a model, a pool of datasets and a shard."""
        return f"{self.results}/.sampling/{kind}/{{model}}/{{pool}}.{{shard}}-of-{self.shard_count}"

    def log(self, rule: str, *wildcards: str) -> str:
        return str(Path("logs", self.experiment.results.name, rule, *[f"{{{w}}}" for w in wildcards])) + ".log"

    # ---- weights ----

    def checkpoint(self, name: str) -> str | None:
        """Folder of the weights of a model that this workflow makes; of others None."""
        model = self.experiment.models[name]
        if model.checkpoint_of:
            return f"{self.results}/models/{model.checkpoint_of}/{on_the_way(int(model.step or 0))}"
        if model.parent:
            return f"{self.results}/models/{name}"
        return f"{self.results}/models/toy_base" if model.toy == "remade" else None

    def weights_of(self, name: str) -> list[str]:
        """A model's weights as an input; given ones are none: their content is in params, not their date."""
        folder = self.checkpoint(lineage.training_of(self.experiment, name))
        return [folder] if folder else []

    def weights(self, w: Wildcards) -> list[str]:
        """The weights of a job's model."""
        return self.weights_of(w.model)

    def mu_weights(self, w: Wildcards) -> list[str]:
        """The weights of the meta-prover."""
        return self.weights_of(measuring.mu(self.experiment, w.model, w.dataset))

    # ---- inputs of a training ----

    def parent(self, w: Wildcards) -> str:
        """The model that a trained model, or a checkpoint on the way, is trained from."""
        return str(self.experiment.models[self.training_of(w)].parent)

    def training_of(self, w: Wildcards) -> str:
        """The model whose training makes a job's model."""
        return lineage.training_of(self.experiment, w.model)

    def parents_weights(self, w: Wildcards) -> list[str]:
        return self.weights_of(self.parent(w))

    def training_problems(self, w: Wildcards) -> str:
        return self.problems(str(self.experiment.models[w.model].problems))

    def uncontaminated(self, w: Wildcards) -> str:
        """The check that the model's training problems are none of the evaluation's."""
        return self.contamination(str(self.experiment.models[w.model].problems))

    def of_parent(self, kind: str, suffix: str = "parquet") -> Callable[[Wildcards], str]:
        """The artifact, on the model's training problems, of its parent or its teacher."""

        def path(w: Wildcards) -> str:
            problems = self.experiment.models[self.training_of(w)].problems
            return self.artifact(kind, suffix, lineage.teacher(self.experiment, w.model), str(problems))

        return path

    def earlier_sets(self, w: Wildcards) -> list[str]:
        """The training sets of earlier iterations that a model is trained on too, the first one first."""
        models, name, sets = self.experiment.models, w.model, list[str]()
        while models[name].accumulate:
            name = str(models[name].parent)
            sets.insert(0, self.of_model("sets", model=name))
        return sets

    def if_learnt(self, kind: str) -> Input:
        """The parent's artifact, of models whose method learns from it."""
        read = {name for name in self.trained if kind in lineage.sources(self.experiment, name)}
        return lambda w: self.of_parent(kind)(w) if self.training_of(w) in read else []

    def if_read(self, table: str, kind: str, suffix: str = "parquet") -> Input:
        """The parent's or teacher's artifact that is this table (mrt.training.sets), where the method reads it."""
        backtracking = self.experiment.backtracking is not None
        methods = {name: self.experiment.models[name].trained_by for name in self.by_sft()}
        reading = {
            name
            for name, method in methods.items()
            if isinstance(method, SFTMethod) and table in tables_of(method, backtracking=backtracking)
        }
        return lambda w: self.of_parent(kind, suffix)(w) if w.model in reading else []

    def reads_tokenizer(self, w: Wildcards) -> bool:
        """Whether a model's training set is made with the tokenizer of its parent, and with the problems."""
        return "tokenizer" in self.experiment.models[w.model].trained_by.reads

    def by_sft(self) -> set[str]:
        """Models that SFT trains."""
        return set(self.trained) - self.by_rl()

    def trained_ancestors(self, *, runs: bool = False) -> set[str]:
        """The trained models among those that are measured and all that these descend from; with `runs`, all runs."""
        experiment = self.experiment
        measured = measuring.measured_runs(experiment) if runs else experiment.evaluation.models
        return {a for m in measured for a in lineage.ancestry(experiment, m)} & set(self.trained)

    def by_rl(self) -> set[str]:
        """Models that RL trains."""
        return {name for name in self.trained if isinstance(self.experiment.models[name].trained_by, RLMethod)}

    def parents_cost(self, w: Wildcards) -> str | list[str]:
        """The cost of the parent's training, if it was trained here, up to the parent's step if it is on the way."""
        parent = self.parent(w)
        return self.of_model("costs", model=parent) if self.is_trained(parent) else []

    def is_trained(self, name: str) -> bool:
        """Whether a model is trained here, or is a checkpoint on the way."""
        model = self.experiment.models[name]
        return bool(model.parent or model.checkpoint_of)

    def spent(self, w: Wildcards) -> str | list[str]:
        """The cost of a model's data and ancestors, if a budget of FLOPs ends its training."""
        return self.of_model("costs", "before.parquet", w.model) if w.model in self.budgeted() else []

    def budgeted(self) -> set[str]:
        """Models whose training a budget of FLOPs ends."""
        return {name for name in self.trained if lineage.recipe(self.experiment, name).flops}

    # ---- checks and tables of the whole experiment ----

    def contamination_checks(self) -> list[str]:
        """For each training set that a measured model descends from."""
        used = {str(self.experiment.models[name].problems) for name in self.trained_ancestors()}
        return [self.contamination(d) for d in sorted(used)]

    def set_rules(self) -> list[str]:
        """Tables of the numbers of traces that each training set kept and dropped."""
        by_sft = self.trained_ancestors() - self.by_rl()
        return [self.of_model("sets", "rules.parquet", name) for name in sorted(by_sft)]
