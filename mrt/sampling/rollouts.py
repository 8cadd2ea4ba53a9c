"""Rollouts: n sampled completions of every problem.

    python -m mrt.sampling.rollouts --model results/laptop/models/base --problems results/laptop/problems/toy_test.parquet \
        --out rollouts.parquet --samples 8 --decoding '{"temperature": 0.7, "max_tokens": 8192}'

Every prompt ends inside the thought (`<think>`), so a completion begins with thinking. Sample i of a problem is drawn
with a seed made from (seed, model, problem set, problem id) plus i: asking for more samples adds to the same ones.
"""

from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from mrt.core.artifacts import PROBLEMS, ROLLOUTS
from mrt.core.cli import Stage, run
from mrt.sampling.cache import Keep, draw
from mrt.sampling.engine import Decoding, Engine, EngineSettings, Request, seed_of


class Prompt(BaseModel):
    """How a problem becomes a prompt."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    instruction: str = Field(
        "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
        description="The user's message; `{problem}` stands for the problem.",
    )
    open_thought: str = Field(
        "<think>\n", description="Put after the chat prompt where the chat template does not open the thought itself."
    )

    def render(self, tokenizer: Any, problem: str) -> str:
        """The chat prompt as text, ending inside the thought."""
        message = self.instruction.replace("{problem}", problem)
        prompt: str = tokenizer.apply_chat_template(
            [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
        )
        return prompt if self.open_thought.strip() in prompt[len(prompt) - 20 :] else prompt + self.open_thought


class Sample(Stage):
    """Sample completions of every problem with vLLM."""

    model: str = Field(description="Checkpoint folder or hub id.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    problems: Path = Field(description="Problem set (Parquet).")
    out: Path = Field(description="Rollouts (Parquet).")
    names: tuple[str, str] = Field(description="Names of the model and of the problem set; seeds derive from them.")
    samples: int = Field(1, ge=1, description="Completions a problem.")
    seed: int = Field(0, ge=0, description="Seed of the experiment.")
    prompt: Prompt = Field(default_factory=Prompt, description="How a problem becomes a prompt.")
    decoding: Decoding = Field(default_factory=Decoding, description="How completions are drawn.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="How the engine is built.")
    keep: Keep = Field(default_factory=Keep, description="Where completions are kept, and which part is drawn.")

    def cli_cmd(self) -> None:
        problems = PROBLEMS.read(self.problems, ["id", "problem"])
        engine = Engine(self.model, self.engine, self.revision)
        prompts = [self.prompt.render(engine.tokenizer, text) for text in problems["problem"]]
        requests = [
            Request(prompt, self.samples, seed_of(self.seed, *self.names, problem_id), self.decoding)
            for problem_id, prompt in zip(problems["id"], prompts, strict=True)
        ]
        completions = draw(engine, requests, self.keep, track_versions=self.track_versions)
        if completions is None:
            return
        rows = [
            (problem_id, index, prompt, c.text, c.tokens, c.finish, c.mean_logprob)
            for problem_id, prompt, drawn in zip(problems["id"], prompts, completions, strict=True)
            for index, c in enumerate(drawn)
        ]
        table = pl.DataFrame(rows, schema=ROLLOUTS.columns, orient="row").sort(ROLLOUTS.keys)
        ROLLOUTS.write(table, self.out)
        cut = table.filter(pl.col("finish") == "length").height
        print(f"{table.height} rollouts of {problems.height} problems, {table['tokens'].sum():,} tokens, {cut} cut off")


if __name__ == "__main__":
    run(Sample)
