"""The stages that sample, and the shared parts of their rules.

Each (model, dataset) has a sampling request. One job of a model, pool (`mrt.config.pools`) and shard samples all
requests with one engine, into the completion caches. For each dataset a job without a GPU then makes the table.

The request alone decides which jobs run again. It has the settings, the code and the inputs of its table, so it runs
again when the table has to be made again. The marks of the sampling jobs are `ancient`: a newer one, left by another
dataset's request, makes no table again. They cannot decide by themselves: while a job that makes an `ancient` file is
to run, Snakemake does not look at the settings of the jobs that depend on it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from mrt.config.pools import EVALUATION, pool_of, pooled
from mrt.config.schema import Config
from workflow.options import Options
from workflow.paths import Paths, Wildcards, any_of


class Sampled(NamedTuple):
    """A kind of table that is sampled: the rules that sample and that gather it, the stage, and its further tables."""

    samples: str
    gathers: str
    stage: str
    more: Mapping[str, str] = MappingProxyType({})  # option of the stage: suffix of the file


SAMPLED = {
    # completions of every problem
    "rollouts": Sampled("sample_rollouts", "gather_rollouts", "sampling.rollouts"),
    # forced answers of the meta-prover at every prefix (Equation 4); mu is the model that thought, or another one
    "prover": Sampled("force_answers", "gather_answers", "sampling.prover"),
    # thoughts made to go on, and their answers after 0, 2, 4, 6, 8 extensions (Appendix F)
    "budget_forcing": Sampled(
        "force_budget", "gather_forced", "sampling.budget_forcing", {"out_thoughts": "thoughts.parquet"}
    ),
    # solution trees: beam search against the outcome (Appendix A.2)
    "trees": Sampled("search_tree", "gather_trees", "sampling.tree"),
    # attempt after attempt in one text, in a sliding window (Section 8.4)
    "linearized": Sampled("linearize", "gather_linearized", "sampling.linearized"),
}


class Sampling:
    """Inputs, outputs and options of the rules of each kind of sampled table."""

    def __init__(self, experiment: Config, paths: Paths, options: Options) -> None:
        self.experiment, self.paths, self.options = experiment, paths, options
        self.pools = any_of([EVALUATION, *experiment.problems])

    def inputs(self, kind: str, w: Wildcards) -> dict[str, Any]:
        """The inputs of a sampled table: the weights (`checkpoint`), and by option the tables that its stage reads."""
        paths, options = self.paths, self.options
        traces = {name: paths.artifact(name, model=w.model, dataset=w.dataset) for name in ("rollouts", "episodes")}
        if kind == "prover":
            return {"checkpoint": paths.mu_weights(w), **traces, "problems": options.prover_golds(w)}
        read = traces if kind == "budget_forcing" else {"problems": paths.problems(w.dataset)}
        return {"checkpoint": paths.weights(w), **read}

    def outputs(self, kind: str) -> dict[str, str]:
        """The patterns of the tables, by option."""
        more = {option: self.paths.artifact(kind, suffix) for option, suffix in SAMPLED[kind].more.items()}
        return {"out": self.paths.artifact(kind), **more}

    def files(self, kind: str, w: Wildcards) -> dict[str, str]:
        """The files that the stage reads and writes, by option."""
        read = {name: path for name, path in self.inputs(kind, w).items() if path and name != "checkpoint"}
        return read | {n: path.format(model=w.model, dataset=w.dataset) for n, path in self.outputs(kind).items()}

    def stage(self, kind: str, w: Wildcards) -> str:
        """The stage that makes a table."""
        return self.options.prover_stage(w) if kind == "prover" else SAMPLED[kind].stage

    def code(self, kind: str, w: Wildcards) -> str:
        """The fingerprint of that stage; of one that judges answers, with the task of the problem set."""
        stage, options = self.stage(kind, w), self.options
        judges = stage not in ("sampling.rollouts", "sampling.prover", "sampling.budget_forcing", "sampling.linearized")
        return options.judging(stage)(w) if judges else options.code(stage)

    def settings(self, kind: str, w: Wildcards) -> str:
        """The settings that decide a table."""
        options = self.options
        of = {"prover": options.prover, "budget_forcing": options.budget_forcing, "trees": options.tree}
        return (of | {"rollouts": options.rollouts, "linearized": options.linearized})[kind](w)

    def weights(self, kind: str, w: Wildcards) -> str | None:
        """The identity of given weights that are sampled from."""
        return self.options.identity(self.options.sampler(kind, w))

    def requests(self, kind: str, w: Wildcards) -> list[str]:
        """The requests of a pool."""
        datasets = pooled(self.experiment, w.model, w.pool)
        return [self.paths.request().format(kind=kind, model=w.model, dataset=dataset) for dataset in datasets]

    def marks(self, kind: str, w: Wildcards) -> list[str]:
        """The marks of the jobs that sample the completions of a table."""
        pool, shards = pool_of(self.experiment, w.model, w.dataset), range(self.paths.shard_count)
        return [self.paths.mark(kind).format(model=w.model, pool=pool, shard=shard) for shard in shards]
