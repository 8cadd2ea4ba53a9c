"""The meta-prover mu: forced answers at every prefix of a thought (Equation 4, Figure 22).

    python -m mrt.sampling.prover --model results/laptop/models/base --rollouts rollouts.parquet \\
        --episodes episodes.parquet --out prover.parquet --names base --names toy_test --prover '{"answers": 20}'

Prefix j of a thought is its first j episodes. After an unfinished prefix mu writes "Time is up." and closes the
thought; a complete thought that the model closed itself gets its closing tag alone. All prefixes of all traces go to
one engine in one submission. So each distinct prefix is prefilled once, and its answers and all longer prefixes reuse
it from the prefix cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl
from pydantic import Field

from mrt.core.artifacts import PROVER, TRACE
from mrt.core.cli import run
from mrt.core.settings import Settings
from mrt.episodes.parameterization import OpenEnded, Parameterization
from mrt.episodes.thinking import of_cell
from mrt.sampling.engine import Completion, Decoding, Request
from mrt.sampling.stage import TraceStage


class ProverSettings(Settings):
    """How the meta-prover is run; `answers` defaults to Section 8.1's, the rest to Appendix D's."""

    answers: int = Field(
        20, ge=1, le=10_000, description="Forced answers per prefix (20 for training sets, 8 in the case study)."
    )
    estimate: Literal["answers", "likelihood"] = Field(
        "answers",
        description="J from sampled answers, as in the paper, or the probability of the gold answer"
        " (mrt.sampling.likelihood). The latter is cheaper and has no noise, but its mu answers"
        " without an explanation, at temperature 1.",
    )
    opening: str = Field(
        "Final Answer:** \\boxed{",
        pattern=r"\\boxed\{$",
        description="likelihood: the text of mu's answer after `template.header`, up to the gold answer; ends in"
        " `\\boxed{`.",
    )
    every: int = Field(
        1, ge=1, description="Score every n-th prefix (5 for Omni-MATH, 3 for AIME), and the first and last."
    )
    traces: int | None = Field(None, ge=1, description="Traces scored per problem; by default all.")
    decoding: Decoding = Field(Decoding(max_tokens=4096), description="How answers are sampled.")


@dataclass(frozen=True)
class Prefix:
    """The first `j` episodes of a thought; `str` of it is the prompt that forces an answer there."""

    chat: str
    episodes: Sequence[str]
    closed: bool
    parameterization: Parameterization
    j: int
    inside: bool = True  # the chat prompt leaves a thought open

    def text(self) -> str:
        """The text of the prefix, z_0:j."""
        return "".join(self.episodes[: self.j])

    @property
    def whole(self) -> bool:
        """Whether it is a complete thought that the model closed itself."""
        return self.closed and self.j == len(self.episodes)

    def __str__(self) -> str:
        text, words = self.text(), self.parameterization
        return self.chat + (words.finish(text) if self.whole else words.force(text, inside=self.inside))


def prefixes(
    chat: str,
    episodes: Sequence[str],
    closed: bool,
    parameterization: Parameterization,
    every: int = 1,
    *,
    inside: bool = True,
) -> list[Prefix]:
    """The prefixes of a thought that are scored, 0 and k included."""
    k = len(episodes)
    return [Prefix(chat, episodes, closed, parameterization, j, inside) for j in sorted({*range(0, k, every), k})]


class Place(NamedTuple):
    """A prefix of a trace, and the request for all answers there."""

    problem_id: str
    sample: int
    trace: int  # its trace's number in the job, which decides the shard
    prefix: Prefix
    request: Request


class Prove(TraceStage):
    """Force answers at every prefix of every thought, with vLLM."""

    out: Path = Field(description="Forced answers (Parquet).")
    prover: ProverSettings = Field(default_factory=ProverSettings, description="How the meta-prover is run.")
    parameterization: Parameterization = Field(default_factory=OpenEnded, description="How an answer is forced.")
    learnt_from: bool = Field(
        False, description="The answers are for a training set, so it is an error if no thought is closed."
    )

    def traces(self, most: int | None) -> pl.DataFrame:
        """Those of `TraceStage`. Raises ValueError if a model is to learn from them and none is closed."""
        traces = super().traces(most)
        if self.learnt_from and traces.height and not traces["closed"].any():
            cut = traces.filter(pl.col("finish_reason") == "length").height
            raise ValueError(
                f"{self.rollouts}: none of the {traces.height} thoughts is closed ({cut} were cut off at max_tokens):"
                f" mu would be asked where {self.names[0]} never ends. Look at them with `mrt traces`; then raise"
                " training.decoding.max_tokens, or teach the model to close its thoughts first: a cold start on more"
                " examples, or for more steps"
            )
        return traces

    def cli_cmd(self) -> None:
        traces, cache = self.shard_of_traces(self.prover.traces)
        places = list(self.places(traces))
        requests = [place.request for place in places]
        answers = self.draw(requests, cache=cache, shard_of=lambda request: places[request].trace)
        if not self.cache.shard:
            self.write(places, answers or [])

    def places(self, traces: pl.DataFrame) -> Iterator[Place]:
        """The prefixes of these traces, in order."""
        decoding = self.prover.decoding.stopped_by(*self.parameterization.answer_ends)
        rows = traces.select(*TRACE, "text", "closed", "prompt", "inside", "thinking").iter_rows()
        for trace, (problem_id, sample, episodes, closed, prompt, inside, tags) in enumerate(rows):
            words = self.parameterization.of(of_cell(tags))
            for prefix in prefixes(prompt, episodes, closed, words, self.prover.every, inside=inside):
                seed = self.seed_of(problem_id, sample, prefix.j, "prover")
                yield Place(problem_id, sample, trace, prefix, Request(prefix, self.prover.answers, seed, decoding))

    def write(
        self,
        places: Sequence[Place],
        answers: Sequence[Sequence[Completion]],
        allocated: Sequence[Sequence[Sequence[str]]] | None = None,
    ) -> None:
        """Write the forced answers of each place, with the filters that each answer is `allocated` to, if given."""
        problem_tokens = self.sampler.count(place.prefix.chat for place in places)
        prefix_tokens = self.sampler.count(place.prefix.text() for place in places)
        prompt_tokens = self.sampler.count(place.prefix for place in places)
        sizes = zip(problem_tokens, prefix_tokens, prompt_tokens, strict=True)
        rows = [
            (at.problem_id, at.sample, at.prefix.j, index, c.text, c.tokens, *size, c.finish_reason, c.mean_logprob)
            for at, size, completions in zip(places, sizes, answers, strict=True)
            for index, c in enumerate(completions)
        ]
        table = pl.DataFrame(rows, schema=PROVER.columns, orient="row")
        if allocated is not None:
            filters = [names for place in allocated for names in place]
            table = table.with_columns(pl.Series("allocated", filters, PROVER.optional["allocated"]))
        table = table.sort(PROVER.keys)
        PROVER.write(table, self.out)
        thoughts = len({(at.problem_id, at.sample) for at in places})
        print(f"{table.height} forced answers at {len(places)} prefixes of {thoughts} thoughts")


if __name__ == "__main__":
    run(Prove)
