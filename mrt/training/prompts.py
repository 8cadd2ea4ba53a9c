"""Prompts of RL: problems, or partial rollouts of them (Algorithm 2, line 7).

    python -m mrt.training.prompts --method mrt_rl --problems problems.parquet --rollouts rollouts.parquet \\
        --episodes episodes.parquet --out prompts.parquet

For MRT (RL) a prompt is a problem followed by z_0:j, the first j of the k episodes of the parent's first thought about
it; j is uniform from `least_prefix` to k - 1, among the prefixes that fit into `max_prompt_length`, and seeded by the
problem. The prompt ends inside the thought. For the other methods j is `least_prefix`: 0 for thoughts, 1 for
backtracking, where every prompt has the attempt z_0. All methods get the same problems in the same order; one whose
shortest prompt does not fit is left out.
"""

import random
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from mrt.core.artifacts import EPISODES, PROBLEMS, RL_PROMPTS, ROLLOUTS, TRACE
from mrt.core.cli import Stage, run
from mrt.core.hub import folder_of
from mrt.episodes.parameterization import OpenEnded, Parameterization
from mrt.sampling.engine import seed_of
from mrt.sampling.tokens import encode
from mrt.training.methods import RLMethod


class MakePrompts(Stage):
    """Make a prompt from every problem, with a prefix of a thought for MRT (RL)."""

    method: RLMethod = Field(description="mrt_rl: prompts with a prefix.")
    problems: Path = Field(description="Dataset (Parquet).")
    rollouts: Path = Field(description="The parent's rollouts (Parquet).")
    episodes: Path | None = Field(None, description="Their episodes (Parquet), for prefixes.")
    out: Path = Field(description="Prompts (Parquet).")
    seed: int = Field(0, ge=0, description="Seed of the experiment.")
    prefixes: float = Field(1.0, ge=0, le=1, description="Share of the problems that get a prefix; mrt_rl only.")
    least_prefix: int = Field(0, ge=0, description="Episodes that every prompt has; mrt_rl adds to them.")
    max_prompt_length: int | None = Field(None, ge=1, description="Longest prompt with its prefix, in tokens.")
    model: str | None = Field(None, description="Checkpoint whose tokenizer counts these tokens.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    parameterization: Parameterization = Field(default_factory=OpenEnded, description="What forces an answer.")

    def cli_cmd(self) -> None:
        gold = PROBLEMS.read(self.problems, ["id", "answer"]).rename({"id": "problem_id"})
        rollouts = ROLLOUTS.read(self.rollouts, [*TRACE, "prompt", "tokens"]).filter(pl.col("sample") == 0)
        thoughtless = rollouts.filter(pl.col("tokens") == 0).height  # a problem that fills the context
        if thoughtless:
            print(f"{thoughtless} problems are left out: they fill the context, and so have no thought")
        rollouts = rollouts.filter(pl.col("tokens").ne_missing(0))
        traces = rollouts.join(gold, on="problem_id", validate="1:1")
        if self.method == "mrt_rl" or self.least_prefix:
            if self.episodes is None:
                raise ValueError("prompts with a prefix need --episodes")
            episodes = EPISODES.read(self.episodes).sort(EPISODES.keys).group_by(TRACE, maintain_order=True).agg("text")
            traces = traces.join(episodes, on=TRACE, validate="1:1")
        rows, left_out = [], 0
        for row in traces.sort(TRACE).iter_rows(named=True):
            episodes_of = row.get("text") or []
            choose = random.Random(seed_of(self.seed, row["problem_id"], "prefix"))
            choices = self.choices(row["prompt"], episodes_of)
            if not choices:
                left_out += 1
                continue
            j = choices[0]
            if self.method == "mrt_rl" and choose.random() < self.prefixes:
                j = choose.choice(choices)
            prefix = "".join(episodes_of[:j])
            forced = row["prompt"] + self.parameterization.force(prefix)
            prompt, inside = row["prompt"] + prefix, self.parameterization.inside
            rows.append((row["problem_id"], 0, j, prefix, prompt, forced, row["answer"], inside))
        table = pl.DataFrame(rows, schema=RL_PROMPTS.columns, orient="row")
        RL_PROMPTS.write(table, self.out)
        print(f"{table.height} prompts, with {sum(table['prefix']) / max(table.height, 1):.1f} episodes in the mean")
        if left_out:
            print(f"{left_out} problems are left out: their shortest prompt has over {self.max_prompt_length} tokens")

    def choices(self, prompt: str, episodes: list[str]) -> list[int]:
        """The j that a prompt may have, the least first; none if even the shortest prompt is too long."""
        least = min(self.least_prefix, len(episodes))
        found = range(least, max(len(episodes), least + 1)) if self.method == "mrt_rl" else [least]
        if self.max_prompt_length is None:
            return list(found)
        sizes = map(len, encode(self.tokenizer, (prompt + "".join(episodes[:j]) for j in found)))
        return [j for j, size in zip(found, sizes, strict=True) if size <= self.max_prompt_length]

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer; ValueError if no model is given."""
        from transformers import AutoTokenizer

        if self.model is None:
            raise ValueError("--max_prompt_length counts tokens, and needs --model")
        return AutoTokenizer.from_pretrained(folder_of(self.model, self.revision))


if __name__ == "__main__":
    run(MakePrompts)
