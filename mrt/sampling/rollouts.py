"""Rollouts: n sampled completions of every problem.

    python -m mrt.sampling.rollouts --model results/laptop/models/base --out rollouts.parquet \\
        --problems results/laptop/problems/toy_test.parquet --samples 8 --names base --names toy_test \\
        --decoding '{"temperature": 0.7, "max_tokens": 8192}'

A reasoning model's prompt ends inside a thought, so its completion begins with thinking (`inside`). The seed of
sample i of a problem is a hash of (seed, model, dataset, problem id) plus i, so asking for more samples keeps the
existing ones.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
from pydantic import Field

from mrt.core.artifacts import PROBLEMS, ROLLOUTS
from mrt.core.cli import run
from mrt.core.hub import unnamed_end
from mrt.episodes.parameterization import Backtracking
from mrt.sampling.engine import Completion, Decoding, Request
from mrt.sampling.prompt import Prompt
from mrt.sampling.stage import SamplingStage


class Sample(SamplingStage):
    """Sample completions of every problem with vLLM."""

    problems: Path = Field(description="Dataset (Parquet).")
    out: Path = Field(description="Rollouts (Parquet).")
    samples: int = Field(1, ge=1, description="Completions per problem.")
    prompt: Prompt = Field(default_factory=Prompt, description="How a problem becomes a prompt.")
    decoding: Decoding = Field(default_factory=Decoding, description="How completions are sampled.")
    episodes: int | None = Field(
        None, ge=1, description="Backtracking search: cut completions after this number of episodes."
    )
    parameterization: Backtracking = Field(default_factory=Backtracking, description="How they are cut.")

    def cli_cmd(self) -> None:
        problems = PROBLEMS.read(self.problems, ["id", "problem"])
        thinking = self.sampler.thinking = self.prompt.thinking_of(self.sampler.tokenizer)
        chats = [self.prompt.chat(self.sampler.tokenizer, text) for text in problems["problem"]]
        requests = [
            Request(chat.text, self.samples, self.seed_of(problem_id), self.decoding)
            for problem_id, chat in zip(problems["id"], chats, strict=True)
        ]
        if end := unnamed_end(self.sampler.tokenizer):
            print(
                f"warning: {self.model}: its chat template ends answers with {end}, at which it does not stop, so that"
                " they run on; add it to eos_token_id in generation_config.json (docs/your_own.md, Models)"
            )
        completions = self.draw(requests)
        if completions is None:
            return
        if self.episodes:
            completions = self.cut(completions, self.episodes)
        sizes = self.sampler.count(chat.text for chat in chats)
        tags = thinking.cell() if thinking else None
        rows = [
            (problem_id, index, chat.text, c.text, c.tokens, size, c.finish_reason, c.mean_logprob, chat.inside, tags)
            for problem_id, chat, size, samples in zip(problems["id"], chats, sizes, completions, strict=True)
            for index, c in enumerate(samples)
        ]
        table = pl.DataFrame(rows, schema=ROLLOUTS.columns, orient="row").sort(ROLLOUTS.keys)
        ROLLOUTS.write(table, self.out)
        truncated = table.filter(pl.col("finish_reason") == "length").height
        print(
            f"{table.height} rollouts of {problems.height} problems, {table['tokens'].sum():,} tokens,"
            f" {truncated} truncated"
        )

    def cut(self, completions: Sequence[Sequence[Completion]], most: int) -> list[list[Completion]]:
        """The completions as they are if sampling stops after `most` episodes; longer ones lose the rest."""
        cut: list[list[Completion]] = []
        for samples in completions:
            texts = ["".join(self.parameterization.cut(c.text).episodes[:most]) for c in samples]
            shorter = [
                c if text == c.text else Completion(text, size, "stop", None)
                for c, text, size in zip(samples, texts, self.sampler.count(texts), strict=True)
            ]
            cut.append(shorter)
        return cut


if __name__ == "__main__":
    run(Sample)
