"""Linearized evaluation: attempt after attempt in one long text, through a sliding window (Section 8.4, Appendix A).

    python -m mrt.sampling.linearized --model results/models/mrt_1 --problems problems.parquet \\
        --out answers.parquet --names mrt_1 --names test --linearized '{"attempts": 32, "window": 2048}'

The model attempts the problem. Then, again and again, the backtrack marker is appended to its text and it continues to
the next answer. It sees the question and at most the last `window` tokens of its text, starting at the beginning of a
step. So the text may grow far beyond the context length of training.

The answers are a table like the meta-prover's, in which `prefix` counts the attempts from 1. `text` is the text of the
attempt, and `tokens` its number of generated tokens. `prefix_tokens` is the number of tokens before it, all markers
included, and `prompt_tokens` the number that the model saw. All texts advance together, attempt by attempt.
"""

from pathlib import Path

import polars as pl
from pydantic import Field

from mrt.core.artifacts import PROBLEMS, PROVER
from mrt.core.cli import run
from mrt.core.settings import Settings
from mrt.episodes.parameterization import STEP_END, Backtracking
from mrt.sampling.engine import Decoding, Engine, Request
from mrt.sampling.prompt import Prompt
from mrt.sampling.stage import SamplingStage


class Linearized(Settings):
    """How attempts are strung together."""

    attempts: int = Field(10, ge=1, le=100_000, description="Attempts in a row (Figure 8: K from 1 to 10).")
    window: int = Field(2048, ge=16, description="Last tokens of its text that the model sees (Section 8.4).")
    samples: int = Field(1, ge=1, le=10_000, description="Texts per problem.")
    decoding: Decoding = Field(
        Decoding(max_tokens=1024), description="How an attempt is sampled (Table 5: 1024 tokens)."
    )


def window(text: str, tokens: int, engine: Engine) -> str:
    """The longest end of a text that has at most `tokens` tokens and begins with a step; the whole if it fits.

    Found by bisection: a longer end never has fewer tokens.
    """
    steps = text.split(STEP_END)
    dropped, most = 0, len(steps)  # with all steps dropped it fits
    fits = len(engine.encode([text])[0]) <= tokens
    while not fits and most - dropped > 1:
        middle = (dropped + most) // 2
        if len(engine.encode([STEP_END.join(steps[middle:])])[0]) <= tokens:
            most = middle
        else:
            dropped = middle
    return text if fits else STEP_END.join(steps[most:])


class Linearize(SamplingStage):
    """Have a model attempt every problem again and again in one text, with vLLM."""

    problems: Path = Field(description="Dataset (Parquet).")
    out: Path = Field(description="Answers (Parquet), as the meta-prover's; `prefix` counts attempts.")
    linearized: Linearized = Field(default_factory=Linearized, description="How attempts follow each other.")
    parameterization: Backtracking = Field(default_factory=Backtracking, description="How a backtrack is written.")
    prompt: Prompt = Field(default_factory=Prompt, description="How a problem becomes a prompt.")

    def cli_cmd(self) -> None:
        settings, words, engine = self.linearized, self.parameterization, self.sampler
        problems, cache = self.rows_of_shard(PROBLEMS.read(self.problems, ["id", "problem"]))
        chats = [self.prompt.render(engine.tokenizer, text) for text in problems["problem"]]
        problem_tokens = engine.count(chats)
        traces = [(i, sample) for i in range(len(chats)) for sample in range(settings.samples)]
        decoding = settings.decoding.stopped_by(*words.answer_ends)
        back = STEP_END + words.marker + STEP_END
        written = [""] * len(traces)  # each trace's text so far, within the window
        spent = [0] * len(traces)
        rows: list[tuple[object, ...]] = []
        longest = 0
        # All texts in lockstep: if each continued as soon as it can, engine steps would prefill few new prompts each.
        for attempt in range(1, settings.attempts + 1):
            # Text that has left the window never returns.
            written = [window(text, settings.window, engine) for text in written]
            prompts = [chats[i] + end for (i, _), end in zip(traces, written, strict=True)]
            names = [(problems["id"][i], sample, attempt) for i, sample in traces]
            seeds = [self.seed_of(*name, "linearized") for name in names]
            requests = [Request(p, 1, seed, decoding) for p, seed in zip(prompts, seeds, strict=True)]
            sampled = self.draw(requests, cache=cache, shard_of=lambda request: traces[request][0]) or []
            seen = engine.count(prompts)
            longest = max([longest, *seen])
            added = [c.text.rstrip("\n") + back for (c,) in sampled]  # c.tokens may count a marker, which c.text lacks
            lengths = engine.count(added)
            for trace, (c,) in enumerate(sampled):
                sizes = (problem_tokens[traces[trace][0]], spent[trace], seen[trace])
                rows.append((*names[trace], 0, c.text, c.tokens, *sizes, c.finish_reason, c.mean_logprob))
                written[trace] += added[trace]
                spent[trace] += lengths[trace]
        if self.cache.shard:
            return
        table = pl.DataFrame(rows, schema=PROVER.columns, orient="row").sort(PROVER.keys)
        PROVER.write(table, self.out)
        print(f"{table.height} attempts, {table['tokens'].sum():,} tokens drawn, {longest} seen at once at most")


if __name__ == "__main__":
    run(Linearize)
