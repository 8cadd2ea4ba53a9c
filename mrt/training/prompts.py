"""Prompts of RL: problems, or partial rollouts of them (Algorithm 2, line 7).

    python -m mrt.training.prompts --model results/laptop/models/base --problems problems.parquet \\
        --prefixes 1 --forced true --episodes episodes.parquet --out prompts.parquet

With `prefixes`, for MRT (RL), a prompt is a problem followed by z_0:j, the first j of the k episodes of the parent's
first thought about it. The number j is uniform from `least_prefix` to k - 1, among the prefixes that fit into
`max_prompt_length`, and seeded by the problem. Such a prompt ends inside the thought. For the other methods j is
`least_prefix`: 0 for thoughts, 1 for backtracking, where every prompt has the attempt z_0. Where all j are 0 the
parent's thoughts are not needed. All methods get the same problems in the same order; one whose shortest prompt does
not fit is left out.
"""

import json
import random
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from mrt.core.artifacts import EPISODES, GRADES, RL_PROMPTS
from mrt.core.cli import Stage, run
from mrt.core.hub import folder_of, tokenizer_of
from mrt.episodes.parameterization import OpenEnded, Parameterization
from mrt.episodes.thinking import Thinking, take_apart
from mrt.grading.task import problem_rows
from mrt.sampling.engine import seed_of
from mrt.sampling.prompt import Chat, Prompt
from mrt.sampling.tokens import encode


def continued(chat: Chat, prefix: str, words: Parameterization, thinking: Thinking | None) -> dict[str, Any]:
    """The columns that the trainer of RL reads of a prompt, but for its gold answer.

    Args:
        chat: the rendered prompt, and whether it leaves a thought open.
        prefix: the beginning of a completion, from which the model continues; empty for none.
        words: how an answer is forced at the prompt.
        thinking: the tags of a thought; None: the model writes none.
    """
    return {
        "prefix_text": prefix,
        "prompt": chat.text + prefix,
        "forced": chat.text + words.force(prefix, inside=chat.inside),
        "inside": take_apart(prefix, inside=chat.inside, thinking=thinking).answer is None,
        "thinking": thinking.cell() if thinking else None,
    }


class MakePrompts(Stage):
    """Make a prompt from every problem, with a prefix of a thought for MRT (RL)."""

    model: str = Field(description="Checkpoint folder or hub id of the parent, for its chat template and tokens.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    problems: Path = Field(description="Dataset (Parquet).")
    episodes: Path | None = Field(None, description="Episodes of the parent's rollouts (Parquet), for prefixes.")
    grades: Path | None = Field(None, description="Grades of the parent's rollouts (Parquet), for `pass_rate`.")
    out: Path = Field(description="Prompts (Parquet).")
    prompt: Prompt = Field(default_factory=Prompt, description="How a problem becomes a prompt.")
    seed: int = Field(0, ge=0, description="Seed of the experiment.")
    prefixes: float = Field(0.0, ge=0, le=1, description="Share of the problems that get a prefix, as for mrt_rl.")
    forced: bool = Field(
        False, description="Also write the text that forces an answer at each prompt, for methods that query mu."
    )
    least_prefix: int = Field(0, ge=0, description="Episodes that every prompt has; a prefix adds to them.")
    max_prompt_length: int | None = Field(None, ge=1, description="Longest prompt with its prefix, in tokens.")
    max_model_len: int | None = Field(
        None, ge=16, description="Longest prompt plus completion, in tokens; by default the model's context."
    )
    parameterization: Parameterization = Field(default_factory=OpenEnded, description="Text that forces an answer.")
    pass_rate: tuple[float, float] | None = Field(None, description="Pass rates of the problems that get a prompt.")
    rows: bool = Field(False, description="Also write each problem's row, which tasks other than math read.")

    def cli_cmd(self) -> None:
        thoughts, rows, left_out = self.thoughts(), list[tuple[Any, ...]](), 0
        thinking = self.prompt.thinking_of(self.tokenizer)
        words = self.parameterization.of(thinking)
        problems = self.passed(problem_rows(self.problems))
        for problem_id, problem in sorted(problems.items(), key=lambda item: item[0]):
            chat, begins_inside = self.prompt.chat(self.tokenizer, problem["problem"])
            episodes = thoughts.get(problem_id, [])
            choose = random.Random(seed_of(self.seed, problem_id, "prefix"))
            choices = self.choices(chat, episodes)
            if not choices:
                left_out += 1
                continue
            j = choices[0]
            if self.prefixes and choose.random() < self.prefixes:
                j = choose.choice(choices)
            row = continued(Chat(chat, begins_inside), "".join(episodes[:j]), words, thinking)
            texts = (row["prefix_text"], row["prompt"], row["forced"] if self.forced else "")
            rows.append((problem_id, 0, j, *texts, problem["answer"], row["inside"], row["thinking"]))
        table = pl.DataFrame(rows, schema=RL_PROMPTS.columns, orient="row")
        if self.rows:
            whole = [json.dumps(problems[name], sort_keys=True) for name in table["problem_id"]]
            table = table.with_columns(row=pl.Series(whole, dtype=pl.String))
        if table.is_empty():
            raise ValueError(
                f"{self.problems}: no prompt is left; the shortest one of each of the {left_out} problems has over"
                f" {self.longest} tokens; raise rl.max_prompt_length or engine.max_model_len"
            )
        RL_PROMPTS.write(table, self.out)
        print(f"{table.height} prompts, with {sum(table['prefix']) / max(table.height, 1):.1f} episodes in the mean")
        if left_out:
            print(f"{left_out} problems are left out: their shortest prompt has over {self.longest} tokens")

    def passed(self, problems: dict[str, Any]) -> dict[str, Any]:
        """The problems of which the parent's share of right completions is within `pass_rate`; all, without it.

        Raises ValueError if none is, or if a problem has no grades.
        """
        if self.pass_rate is None:
            return problems
        if self.grades is None:
            raise ValueError("pass_rate needs --grades")
        low, high = self.pass_rate
        rates = dict(GRADES.read(self.grades).group_by("problem_id").agg(pl.col("correct").mean()).iter_rows())
        if ungraded := problems.keys() - rates.keys():
            raise ValueError(f"{self.grades}: no grades of {len(ungraded)} problems, such as {min(ungraded)!r}")
        passed = {name: problem for name, problem in problems.items() if low <= rates[name] <= high}
        if not passed:
            raise ValueError(
                f"rl.pass_rate: no problem of {self.problems} has a pass rate from {low:g} to {high:g}; the rates are"
                f" {', '.join(f'{rate:.3g}' for rate in sorted(set(rates.values())))}"
            )
        print(f"{len(passed)} of {len(problems)} problems have a pass rate from {low:g} to {high:g}")
        return passed

    def thoughts(self) -> dict[str, list[str]]:
        """The episodes of the parent's first thought about each problem; empty if no prompt has a prefix."""
        if not self.least_prefix and not self.prefixes:
            return {}
        if self.episodes is None:
            raise ValueError("prompts with a prefix need --episodes")
        first = EPISODES.read(self.episodes).filter(pl.col("sample") == 0).sort(EPISODES.keys)
        return dict(first.group_by("problem_id", maintain_order=True).agg("text").iter_rows())

    def choices(self, prompt: str, episodes: list[str]) -> list[int]:
        """The j that a prompt may have, the least first; none if even the shortest prompt is too long."""
        least = min(self.least_prefix, len(episodes))
        prefixes = range(least, max(len(episodes), least + 1)) if self.prefixes else [least]
        sizes = map(len, encode(self.tokenizer, (prompt + "".join(episodes[:j]) for j in prefixes)))
        return [j for j, size in zip(prefixes, sizes, strict=True) if size <= self.longest]

    @cached_property
    def longest(self) -> int:
        """Maximum tokens of a prompt: one less than the context, and not above `max_prompt_length`."""
        from transformers import AutoConfig

        context = self.max_model_len
        if context is None:
            context = AutoConfig.from_pretrained(self.folder).get_text_config().max_position_embeddings
        return min(context - 1, self.max_prompt_length or context)

    @cached_property
    def tokenizer(self) -> Any:
        """The parent's tokenizer."""
        return tokenizer_of(self.folder)

    @cached_property
    def folder(self) -> Path:
        """The folder of the parent's files."""
        return folder_of(self.model, self.revision)


if __name__ == "__main__":
    run(MakePrompts)
