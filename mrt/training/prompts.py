"""Prompts of RL: problems, or partial rollouts of them (Algorithm 2, line 7).

    python -m mrt.training.prompts --method mrt_rl --problems problems.parquet --rollouts rollouts.parquet \\
        --episodes episodes.parquet --out prompts.parquet

For MRT (RL) a prompt is a problem followed by z_0:j, the first j of the k episodes of the parent's first thought about
it; j is uniform from 0 to k - 1, seeded by the problem. The prompt ends inside the thought. For the other methods j is
0. All methods get the same problems in the same order.
"""

import random
from pathlib import Path

import polars as pl
from pydantic import Field

from mrt.core.artifacts import EPISODES, PROBLEMS, RL_PROMPTS, ROLLOUTS, TRACE
from mrt.core.cli import Stage, run
from mrt.episodes.parameterization import OpenEnded, Parameterization
from mrt.sampling.engine import seed_of
from mrt.training.methods import RLMethod


class MakePrompts(Stage):
    """Make a prompt from every problem, with a prefix of a thought for MRT (RL)."""

    method: RLMethod = Field(description="mrt_rl: prompts with a prefix.")
    problems: Path = Field(description="Dataset (Parquet).")
    rollouts: Path = Field(description="The parent's rollouts (Parquet).")
    episodes: Path | None = Field(None, description="Their episodes (Parquet); mrt_rl only.")
    out: Path = Field(description="Prompts (Parquet).")
    seed: int = Field(0, ge=0, description="Seed of the experiment.")
    prefixes: float = Field(1.0, ge=0, le=1, description="Share of the problems that get a prefix; mrt_rl only.")
    parameterization: Parameterization = Field(default_factory=OpenEnded, description="What forces an answer.")

    def cli_cmd(self) -> None:
        gold = PROBLEMS.read(self.problems, ["id", "answer"]).rename({"id": "problem_id"})
        rollouts = ROLLOUTS.read(self.rollouts, [*TRACE, "prompt"]).filter(pl.col("sample") == 0)
        traces = rollouts.join(gold, on="problem_id", validate="1:1")
        if self.method == "mrt_rl":
            if self.episodes is None:
                raise ValueError("--method mrt_rl needs --episodes")
            episodes = EPISODES.read(self.episodes).sort(EPISODES.keys).group_by(TRACE, maintain_order=True).agg("text")
            traces = traces.join(episodes, on=TRACE, validate="1:1")
        rows = []
        for row in traces.sort(TRACE).iter_rows(named=True):
            episodes_of = row.get("text") or []
            choose = random.Random(seed_of(self.seed, row["problem_id"], "prefix"))
            j = choose.randrange(max(len(episodes_of), 1)) if choose.random() < self.prefixes else 0
            prefix = "".join(episodes_of[:j])
            forced = row["prompt"] + self.parameterization.force(prefix)
            prompt, inside = row["prompt"] + prefix, self.parameterization.inside
            rows.append((row["problem_id"], 0, j, prefix, prompt, forced, row["answer"], inside))
        table = pl.DataFrame(rows, schema=RL_PROMPTS.columns, orient="row")
        RL_PROMPTS.write(table, self.out)
        print(f"{table.height} prompts, with {sum(table['prefix']) / max(table.height, 1):.1f} episodes in the mean")


if __name__ == "__main__":
    run(MakePrompts)
