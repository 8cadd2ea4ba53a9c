"""What training a model took: tokens and FLOPs, of its whole lineage (Section 9: the FLOPs-matched comparison is open).

    python -m mrt.training.cost --model star_1 --log star_1.log.parquet --rollouts rollouts.parquet --out star_1.parquet

A model of N parameters takes 2N FLOPs for a token that it prefills or generates, and 6N for one that it is trained on;
the attention over earlier tokens, a few percent of that, is left out. A prefix that many answers share is counted once,
as with a prefix cache. The prompts of rollouts, short beside them, are left out. What made the model at the root of the
lineage is not counted either, nor is measuring.
"""

from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from mrt.core.artifacts import COST, PROVER, ROLLOUTS, TRACE, TREE
from mrt.core.cli import Stage, run
from mrt.core.storage import read_table


def flops(parameters: int, processed: Any = 0, trained: Any = 0) -> Any:
    """FLOPs of a model of so many parameters, for tokens prefilled or generated, and tokens trained on."""
    return 2.0 * parameters * processed + 6.0 * parameters * trained


def of_prover(table: pl.DataFrame) -> tuple[int, int]:
    """(generated, prefill) tokens of forced answers: a trace is prefilled once, and what forces each answer."""
    at_prefix = table.unique([*TRACE, "prefix"])
    thoughts = at_prefix.group_by(TRACE).agg(pl.col("prefix_tokens").max())["prefix_tokens"]
    forcing = at_prefix["prompt_tokens"] - at_prefix["prefix_tokens"]
    return int(table["tokens"].sum()), int(thoughts.sum()) + int(forcing.sum())


class Cost(Stage):
    """Add up what a model's training took, after its parent's."""

    model: str = Field(description="Name of the model.")
    log: Path = Field(description="Its training log (Parquet).")
    rollouts: Path | None = Field(None, description="Rollouts that its set or its prompts were made of.")
    tree: Path | None = Field(None, description="Solution trees that its set was made of.")
    prover: Path | None = Field(None, description="The meta-prover's answers, of a set that rests on them.")
    parent: Path | None = Field(None, description="What its parent's training took, if that was trained here.")
    out: Path = Field(description="Tokens and FLOPs by model of the lineage and phase (Parquet).")

    def cli_cmd(self) -> None:
        last = read_table(self.log).sort("step").row(-1, named=True)
        n = last["parameters"]
        rows: list[tuple[str, str, int, int, int, float]] = []
        if self.rollouts:
            drawn = int(ROLLOUTS.read(self.rollouts, ["tokens"])["tokens"].sum())
            rows.append((self.model, "rollouts", drawn, 0, 0, flops(n, drawn)))
        if self.tree:
            drawn = int(TREE.read(self.tree, ["tokens"])["tokens"].sum())
            rows.append((self.model, "tree", drawn, 0, 0, flops(n, drawn)))
        if self.prover:
            columns = [*TRACE, "prefix", "tokens", "prefix_tokens", "prompt_tokens"]
            drawn, read = of_prover(PROVER.read(self.prover, columns))
            rows.append((self.model, "prover", drawn, read, 0, flops(n, drawn + read)))
        sampled, forced = last.get("tokens_sampled", 0), last.get("tokens_forced", 0)
        trained = int(last["num_tokens"])
        rows.append((self.model, "training", sampled + forced, last.get("tokens_read", 0), trained, last["flops"]))
        table = pl.DataFrame(rows, schema=COST.columns, orient="row")
        if self.parent:
            table = pl.concat([COST.read(self.parent), table])
        COST.write(table, self.out)
        print(f"{table['generated_tokens'].sum():,} tokens generated, {table['flops'].sum():.3g} FLOPs")


if __name__ == "__main__":
    run(Cost)
