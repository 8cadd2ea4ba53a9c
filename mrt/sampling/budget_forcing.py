"""Budget forcing: extend thoughts again and again, and draw the answers that they then lead to (Appendix F).

    python -m mrt.sampling.budget_forcing --model results/laptop/models/star_1 --rollouts rollouts.parquet \\
        --episodes episodes.parquet --out answers.parquet --out_thoughts thoughts.parquet --names star_1 \\
        --names toy_test --forcing '{"most": 8}'

When the model closes its thought, the closing tag is suppressed. A marker ("Wait", "Alternatively", ... in turn) opens
a new step, and the model continues until it closes the thought again or reaches its token limit. This happens up to 8
times. After 0, 2, 4, 6 and 8 extensions the thought is closed and answered. A truncated extension loses its last,
unfinished step.

All traces are in the engine at once. When an extension finishes, the trace's next extension and its answers are queued
with priority over waiting requests, so that they find the whole thought in the prefix cache.

The answers are a table like the meta-prover's, in which `prefix` counts the extensions, so grading and
`mrt.analysis.progress` read it unchanged.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl
from pydantic import Field

from mrt.core.artifacts import EXTENSIONS, PROVER, TRACE
from mrt.core.cli import run
from mrt.core.settings import Settings
from mrt.episodes.parameterization import BLANK_LINES, STEP_END, Template
from mrt.episodes.thinking import THINK, Thinking, of_cell
from mrt.sampling.engine import Completion, Decoding, Request
from mrt.sampling.stage import TraceStage


class BudgetForcing(Settings):
    """How thoughts are extended; the defaults are Appendix F's."""

    most: int = Field(8, ge=1, le=1000, description="Number of extensions of a thought.")
    every: int = Field(2, ge=1, description="Sample answers after every n-th extension, from 0 on.")
    markers: tuple[str, ...] = Field(
        ("Wait", "Alternatively", "But hold on", "But wait"),
        min_length=1,
        description="Openings of the extensions, used in turn.",
    )
    traces: int | None = Field(None, ge=1, description="Traces extended per problem; by default all.")
    extension: Decoding = Field(Decoding(max_tokens=2048), description="How extensions are sampled.")
    answers: int = Field(8, ge=1, le=10_000, description="Answers sampled each time the thought is closed.")
    decoding: Decoding = Field(Decoding(max_tokens=4096), description="How answers are sampled.")

    def answered(self) -> list[int]:
        """Numbers of extensions after which the thought is answered."""
        return list(range(0, self.most + 1, self.every))


def without_unfinished_step(text: str) -> str:
    """A truncated text without its last, unfinished step; steps are separated by blank lines."""
    return text[: max((blank.end() for blank in BLANK_LINES.finditer(text)), default=0)]


def reopened(thought: str, marker: str) -> str:
    """An unclosed thought, followed by the marker as the beginning of a new step."""
    body = thought.rstrip("\n")
    return body + STEP_END + marker if body else marker


def extended(thought: str, marker: str, continuation: str, *, cut: bool) -> str:
    """The thought after an extension; a truncated one (`cut`) loses its last, unfinished step."""
    opening = reopened(thought, marker)
    added = opening[len(thought.rstrip("\n")) :] + continuation
    return thought.rstrip("\n") + (without_unfinished_step(added) if cut else added)


def unclosed(continuation: str, thinking: Thinking) -> str:
    """The part of a continuation that belongs to its thought: the text before a tag that closes it.

    gpt-oss has more headers that do than the one that is a stop string.
    """
    return re.split(thinking.patterns[1], continuation, maxsplit=1)[0]


def closed(thought: str, template: Template, thinking: Thinking = THINK) -> str:
    """Text after the chat prompt that makes the model answer: the thought, closed without "Time is up."."""
    body = thought.rstrip("\n")
    return template.finish(body + "\n" if body else thought, thinking)


class Force(TraceStage):
    """Extend every thought by force and draw the answers that it leads to, with vLLM."""

    out: Path = Field(description="Answers (Parquet), as the meta-prover's; `prefix` counts extensions.")
    out_thoughts: Path = Field(description="Text that each extension added to its thought (Parquet).")
    forcing: BudgetForcing = Field(default_factory=BudgetForcing, description="How thoughts are extended.")
    template: Template = Field(default_factory=Template, description="Text that closes the thought.")

    def cli_cmd(self) -> None:
        settings = self.forcing
        traces, cache = self.shard_of_traces(settings.traces)
        traces = traces.with_columns(pl.col("text").list.join(""))
        keys = traces.select(TRACE).rows()
        thinking = [of_cell(tags) or THINK for tags in traces["thinking"]]
        starts = zip(traces["prompt"], traces["inside"] | (traces["text"] != ""), thinking, strict=True)
        prompts = [prompt if inside else prompt + tags.open for prompt, inside, tags in starts]
        going_on = [settings.extension.stopped_by(tags.closing) for tags in thinking]
        cut = (traces["finish_reason"] == "length") & ~traces["closed"]
        thoughts = {
            (i, 0): without_unfinished_step(thought) if unfinished else thought
            for i, (thought, unfinished) in enumerate(zip(traces["text"], cut, strict=True))
        }
        requested: list[tuple[str, int, int]] = []  # of each request: kind, trace, extensions

        def ask(i: int, count: int) -> Iterator[Request]:
            """Requests for the answers after `count` extensions of trace i, and for its next extension."""
            thought, seeded = thoughts[i, count], (*keys[i], count)
            if count in settings.answered():
                requested.append(("answers", i, count))
                text = prompts[i] + closed(thought, self.template, thinking[i])
                yield Request(text, settings.answers, self.seed_of(*seeded, "forced"), settings.decoding, -count)
            if count < settings.most:
                requested.append(("extension", i, count + 1))
                text = prompts[i] + reopened(thought, settings.markers[count % len(settings.markers)])
                yield Request(text, 1, self.seed_of(*seeded, "extension"), going_on[i], -count)

        def then(number: int, completions: list[Completion]) -> Iterator[Request]:
            what, i, count = requested[number]
            if what == "extension":
                marker = settings.markers[(count - 1) % len(settings.markers)]
                cut = completions[0].finish_reason == "length"
                written = unclosed(completions[0].text, thinking[i])
                thoughts[i, count] = extended(thoughts[i, count - 1], marker, written, cut=cut)
                yield from ask(i, count)

        first = [request for i in range(len(keys)) for request in ask(i, 0)]
        completions_of = self.draw(first, then, cache=cache, shard_of=lambda request: requested[request][1])
        if self.cache.shard:
            return
        in_order = sorted(thoughts)  # each thought extends the one before
        thought_tokens = dict(zip(in_order, self.sampler.count(thoughts[key] for key in in_order), strict=True))
        problem_tokens = self.sampler.count(prompts)
        openings = (prompts[i] + closed(thoughts[i, count], self.template, thinking[i]) for i, count in in_order)
        opening_tokens = dict(zip(in_order, self.sampler.count(openings), strict=True))
        answers, extensions = [], []
        for (what, i, count), completions in zip(requested, completions_of or [], strict=True):
            if what == "extension":
                added = thoughts[i, count][len(thoughts[i, count - 1].rstrip("\n")) :]
                extensions.append((*keys[i], count, added, completions[0].tokens, completions[0].finish_reason))
            else:
                sizes = (problem_tokens[i], thought_tokens[i, count], opening_tokens[i, count])
                answers += [
                    (*keys[i], count, index, c.text, c.tokens, *sizes, c.finish_reason, c.mean_logprob)
                    for index, c in enumerate(completions)
                ]
        for rows, kind, path in ((extensions, EXTENSIONS, self.out_thoughts), (answers, PROVER, self.out)):
            kind.write(pl.DataFrame(rows, schema=kind.columns, orient="row").sort(kind.keys), path)
        tokens = sum(row[-2] for row in extensions)
        print(f"{len(keys)} thoughts extended {settings.most} times, by {tokens:,} tokens; {len(answers)} answers")


if __name__ == "__main__":
    run(Force)
