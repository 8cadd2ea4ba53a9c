"""Training cost of a model and its whole lineage, in tokens and FLOPs (Section 9 leaves matching by FLOPs open).

    python -m mrt.training.cost --model star_1 --log star_1.log.parquet --rollouts rollouts.parquet --out star_1.parquet

    python -m mrt.training.cost --model star_1 --weights '["base", null]' --rollouts rollouts.parquet --out b.parquet

The second adds up the cost of data and ancestors before the training, for a budget of FLOPs (`mrt.training.budget`).
`mrt.training.flops` gives the FLOPs of a token. A prefix that many texts share is counted once, as with a prefix cache.
The cost of the model at the root of the lineage and the cost of evaluation are not counted.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import polars as pl
from pydantic import Field

from mrt.core.artifacts import COST, PROVER, ROLLOUTS, TRACE, TREE
from mrt.core.cli import Stage, run
from mrt.core.hub import folder_of
from mrt.core.storage import read_table
from mrt.training.flops import Sizes, pairs


class Sampled(NamedTuple):
    """The work of an engine."""

    generated: int  # tokens
    read: int  # tokens of distinct prefixes
    pairs: float  # of a token and one that it attends to
    scored: int = 0  # tokens that were read, and whose probability was computed

    def flops(self, sizes: Sizes) -> float:
        return float(sizes.sampling(self.generated + self.read, self.pairs, self.generated + self.scored))


def of_rollouts(table: pl.DataFrame) -> Sampled:
    """Work of rollouts; imported ones, whose tokens are not known, count nothing."""
    known = table.drop_nulls(["tokens", "prompt_tokens"])
    prompts = known.unique("problem_id")["prompt_tokens"]
    behind = pairs(known["prompt_tokens"], known["prompt_tokens"] + known["tokens"])
    return Sampled(int(known["tokens"].sum()), int(prompts.sum()), float(behind.sum() + pairs(0, prompts).sum()))


def of_tree(table: pl.DataFrame) -> Sampled:
    """Work of solution trees; the rollouts of a node count with their mean length."""
    expanded = table.filter(pl.col("drawn") > 0)
    prompts = expanded.filter(pl.col("node") == 0)["context_tokens"]
    behind = expanded["drawn"] * pairs(
        expanded["context_tokens"], expanded["context_tokens"] + expanded["tokens"] / expanded["drawn"]
    )
    return Sampled(int(expanded["tokens"].sum()), int(prompts.sum()), float(behind.sum() + pairs(0, prompts).sum()))


def of_prover(table: pl.DataFrame) -> Sampled:
    """Work of forced answers: chat prompts and traces are read once, the forcing text at each prefix.

    After an attempt mu repeats its answer: the prompt is then shorter than the prefix, and the rest is not read.

    Gold answers whose probability was read off are read too, each of its spellings with the opening; the engine then
    scores all that it reads.
    """
    at = table.unique([*TRACE, "prefix"]).with_columns(
        pl.min_horizontal(pl.col("problem_tokens") + pl.col("prefix_tokens"), "prompt_tokens").alias("end")
    )
    problems = at.unique("problem_id")["problem_tokens"]
    thoughts = at.group_by(TRACE).agg(pl.col("problem_tokens").first(), pl.col("end").max())
    parts = [
        (0, problems),
        (thoughts["problem_tokens"], thoughts["end"]),
        (at["end"], at["prompt_tokens"]),
    ]
    read = sum(int((end - start).sum()) for start, end in parts)
    attended = sum(float(pairs(start, end).sum()) for start, end in parts)
    behind = pairs(table["prompt_tokens"], table["prompt_tokens"] + table["tokens"])
    answers = table.filter(pl.col("finish_reason") == "scored")
    read += (golds := int(answers["tokens"].sum()))
    generated = int(table["tokens"].sum()) - golds
    return Sampled(generated, read, attended + float(behind.sum()), read if golds else 0)


def sizes_of(model: str, revision: str | None = None) -> Sizes:
    """Sizes of a checkpoint folder or a hub model, whose weights are not loaded."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return Sizes.of(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder_of(model, revision))))


class Cost(Stage):
    """Add up a model's training cost, on top of its parent's."""

    model: str = Field(description="Name of the model.")
    log: Path | None = Field(None, description="Its training log (Parquet).")
    step: int | None = Field(None, ge=1, description="The step that it is a checkpoint of; by default the last one.")
    weights: tuple[str, str | None] | None = Field(
        None, description="Before its training, instead of `log`: checkpoint or hub id of its parent, and revision."
    )
    rollouts: Path | None = Field(None, description="Rollouts that its training set or prompts were made from.")
    tree: Path | None = Field(None, description="Solution trees that its training set was made from.")
    prover: Path | None = Field(None, description="The meta-prover's answers, if its training set was made from them.")
    parent: Path | None = Field(None, description="Training cost of its parent, if that was trained here.")
    sampled_by: dict[str, tuple[str, str | None]] = Field(
        {}, description="Model and revision that a phase sampled from, if it is not of this lineage: teacher, mu."
    )
    out: Path = Field(description="Tokens and FLOPs by model of the lineage and phase (Parquet).")

    def cli_cmd(self) -> None:
        if (self.log is None) == (self.weights is None):
            raise ValueError("give --log, or before the training --weights")
        at = pl.col("step") == (self.step or pl.col("step").max())
        last = read_table(self.log).row(by_predicate=at, named=True) if self.log else {}
        answers = [*TRACE, "prefix", "tokens", "problem_tokens", "prefix_tokens", "prompt_tokens", "finish_reason"]
        nodes = ["node", "drawn", "tokens", "context_tokens"]
        others = {phase: sizes_of(*model) for phase, model in self.sampled_by.items()}
        sampled = {
            "rollouts": self.rollouts
            and of_rollouts(ROLLOUTS.read(self.rollouts, [*TRACE, "tokens", "prompt_tokens"])),
            "tree": self.tree and of_tree(TREE.read(self.tree, nodes)),
            "prover": self.prover and of_prover(PROVER.read(self.prover, answers)),
        }

        @cache
        def sizes() -> Sizes:
            return sizes_of(*self.weights) if self.weights else Sizes(*(last[name] for name in Sizes._fields))

        rows: list[tuple[str, str, int, int, int, float]] = [
            (self.model, phase, work.generated, work.read, 0, work.flops(others.get(phase) or sizes()))
            for phase, work in sampled.items()
            if work
        ]
        if last:
            generated, read = last.get("tokens_sampled", 0) + last.get("tokens_forced", 0), last.get("tokens_read", 0)
            rows.append((self.model, "training", generated, read, int(last["num_tokens"]), last["flops"]))
        table = pl.DataFrame(rows, schema=COST.columns, orient="row")
        if self.parent:
            table = pl.concat([COST.read(self.parent), table])
        COST.write(table, self.out)
        print(f"{table['generated_tokens'].sum():,} tokens generated, {table['flops'].sum():.3g} FLOPs")


if __name__ == "__main__":
    run(Cost)
