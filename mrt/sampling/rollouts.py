"""Rollouts: n sampled completions of every problem.

    python -m mrt.sampling.rollouts --model results/laptop/models/base --out rollouts.parquet \\
        --problems results/laptop/problems/toy_test.parquet --samples 8 --names base --names toy_test \\
        --decoding '{"temperature": 0.7, "max_tokens": 8192}'

A reasoning model's prompt ends inside the thought (`<think>`), so its completion begins with thinking. The seed of
sample i of a problem is a hash of (seed, model, dataset, problem id) plus i, so asking for more samples keeps the
existing ones.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from mrt.core.artifacts import PROBLEMS, ROLLOUTS
from mrt.core.cli import run
from mrt.core.settings import Settings
from mrt.episodes.parameterization import OPEN, Backtracking
from mrt.sampling.engine import Completion, Decoding, Request
from mrt.sampling.stage import SamplingStage


class Prompt(Settings):
    """How a problem becomes a prompt."""

    instruction: str = Field(
        "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
        pattern=r"\{problem\}",
        description="The user's message; `{problem}` stands for the problem.",
    )
    open_thought: str = Field(
        "<think>\n",
        description="Added after the chat prompt if the chat template does not open the thought itself. Empty for a"
        " model that does not think.",
    )
    date: datetime.date = Field(
        datetime.date(2024, 7, 26),
        description="Today's date for chat templates that state it (Llama 3): fixed, so that completions stay cached.",
    )

    def render(self, tokenizer: Any, problem: str) -> str:
        """The chat prompt as text; it ends inside a thought unless `open_thought` is empty."""
        message = self.instruction.replace("{problem}", problem)
        prompt: str = tokenizer.apply_chat_template(
            [{"role": "user", "content": message}],
            tokenize=False,
            add_generation_prompt=True,
            date_string=f"{self.date:%d %b %Y}",
            strftime_now=self.date.strftime,
        )
        if self.open_thought.strip() in prompt[-20:]:
            return prompt
        if prompt.rstrip().endswith(OPEN):  # an opening that goes on behind it, as that of the direct baseline
            return prompt + self.open_thought.removeprefix(OPEN).lstrip("\n")
        return prompt + self.open_thought


class Sample(SamplingStage):
    """Sample completions of every problem with vLLM."""

    problems: Path = Field(description="Dataset (Parquet).")
    out: Path = Field(description="Rollouts (Parquet).")
    samples: int = Field(1, ge=1, description="Completions per problem.")
    prompt: Prompt = Field(default_factory=Prompt, description="How a problem becomes a prompt.")
    decoding: Decoding = Field(default_factory=Decoding, description="How completions are drawn.")
    episodes: int | None = Field(None, ge=1, description="Backtracking search: cut completions after so many episodes.")
    parameterization: Backtracking = Field(default_factory=Backtracking, description="How they are cut.")

    def cli_cmd(self) -> None:
        problems = PROBLEMS.read(self.problems, ["id", "problem"])
        prompts = [self.prompt.render(self.sampler.tokenizer, text) for text in problems["problem"]]
        requests = [
            Request(prompt, self.samples, self.seed_of(problem_id), self.decoding)
            for problem_id, prompt in zip(problems["id"], prompts, strict=True)
        ]
        completions = self.draw(requests)
        if completions is None:
            return
        if self.episodes:
            completions = self.cut(completions, self.episodes)
        sizes = self.sampler.count(prompts)
        rows = [
            (problem_id, index, prompt, c.text, c.tokens, size, c.finish_reason, c.mean_logprob)
            for problem_id, prompt, size, drawn in zip(problems["id"], prompts, sizes, completions, strict=True)
            for index, c in enumerate(drawn)
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
        for drawn in completions:
            texts = ["".join(self.parameterization.cut(c.text).episodes[:most]) for c in drawn]
            shorter = [
                c if text == c.text else Completion(text, size, "stop", None)
                for c, text, size in zip(drawn, texts, self.sampler.count(texts), strict=True)
            ]
            cut.append(shorter)
        return cut


if __name__ == "__main__":
    run(Sample)
