"""Training cost of a model and its whole lineage, in tokens and FLOPs (Section 9 leaves matching by FLOPs open).

    python -m mrt.training.cost --model star_1 --log star_1.log.parquet --rollouts rollouts.parquet --out star_1.parquet

A model of N parameters takes 2N FLOPs for each token prefilled or generated, and 6N for each token trained on.
Attention over earlier tokens, a few percent of that, is left out. A prefix that many answers share is counted once, as
with a prefix cache. The prompts of rollouts are comparatively short and left out. The cost of the model at the root of
the lineage and the cost of evaluation are not counted either.
"""

from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from mrt.core.artifacts import COST, PROVER, ROLLOUTS, TRACE, TREE
from mrt.core.cli import Stage, run
from mrt.core.storage import read_table


def flops(parameters: int, processed: Any = 0, trained: Any = 0) -> Any:
    """FLOPs of a model with this many parameters, for tokens prefilled or generated and for tokens trained on."""
    return 2.0 * parameters * processed + 6.0 * parameters * trained


def of_prover(table: pl.DataFrame) -> tuple[int, int]:
    """(generated, prefill) tokens of forced answers: each trace is prefilled once, the forcing text at each prefix."""
    at_prefix = table.unique([*TRACE, "prefix"])
    thoughts = at_prefix.group_by(TRACE).agg(pl.col("prefix_tokens").max())["prefix_tokens"]
    forcing = at_prefix["prompt_tokens"] - at_prefix["prefix_tokens"]
    return int(table["tokens"].sum()), int(thoughts.sum()) + int(forcing.sum())


class Cost(Stage):
    """Add up a model's training cost, on top of its parent's."""

    model: str = Field(description="Name of the model.")
    log: Path = Field(description="Its training log (Parquet).")
    rollouts: Path | None = Field(None, description="Rollouts that its training set or prompts were made from.")
    tree: Path | None = Field(None, description="Solution trees that its training set was made from.")
    prover: Path | None = Field(None, description="The meta-prover's answers, if its training set was made from them.")
    parent: Path | None = Field(None, description="Training cost of its parent, if that was trained here.")
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
