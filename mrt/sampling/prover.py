"""The meta-prover mu: forced answers at every prefix of a thought (Equation 4, Figure 22).

    python -m mrt.sampling.prover --model results/laptop/models/base --rollouts rollouts.parquet --episodes episodes.parquet \
        --out prover.parquet --settings '{"answers": 20}'

Prefix j of a thought is its first j episodes. After an unfinished prefix mu writes "Time is up." and closes the
thought; the whole of a closed thought is closed by `</think>` alone. All prefixes of all traces go to one engine in one
submission, so that each distinct prefix is read once and every answer at it, and every longer prefix, builds on it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from mrt.core.artifacts import EPISODES, PROVER, ROLLOUTS, TRACE
from mrt.core.cli import Stage, run
from mrt.episodes.parameterization import OpenEnded, Parameterization
from mrt.sampling.cache import Keep, draw
from mrt.sampling.engine import Completion, Decoding, Engine, EngineSettings, Request, seed_of


class ProverSettings(BaseModel):
    """How the meta-prover is run; `answers` defaults to Section 8.1's, the rest to Appendix D's."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    answers: int = Field(
        20, ge=1, le=10_000, description="Forced answers a prefix (20 for training sets, 8 in the case study)."
    )
    every: int = Field(
        1, ge=1, description="Score every such prefix (5 for Omni-MATH, 3 for AIME), and the first and last."
    )
    traces: int | None = Field(None, ge=1, description="Traces a problem that are scored; all if not given.")
    decoding: Decoding = Field(default_factory=lambda: Decoding(max_tokens=4096), description="How answers are drawn.")


@dataclass(frozen=True)
class Prefix:
    """The first `j` episodes of a thought; `str` of it is the prompt that forces an answer there."""

    chat: str
    episodes: Sequence[str]
    closed: bool
    parameterization: Parameterization
    j: int

    def text(self) -> str:
        """z_0:j."""
        return "".join(self.episodes[: self.j])

    def __str__(self) -> str:
        whole = self.closed and self.j == len(self.episodes)
        return self.chat + (self.parameterization.finish if whole else self.parameterization.force)(self.text())


def prefixes(
    chat: str, episodes: Sequence[str], closed: bool, parameterization: Parameterization, every: int = 1
) -> list[Prefix]:
    """The prefixes of a thought that are scored, 0 and k included."""
    k = len(episodes)
    return [Prefix(chat, episodes, closed, parameterization, j) for j in sorted({*range(0, k, every), k})]


class Place(NamedTuple):
    """A prefix of a trace, and the request for all answers there."""

    problem_id: str
    sample: int
    prefix: Prefix
    request: Request


class Prove(Stage):
    """Force answers at every prefix of every thought, with vLLM."""

    model: str = Field(description="Checkpoint folder or hub id of mu; in the paper the model that thought.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    rollouts: Path = Field(description="Rollouts (Parquet).")
    episodes: Path = Field(description="Episodes of these rollouts (Parquet).")
    out: Path = Field(description="Forced answers (Parquet).")
    names: tuple[str, str] = Field(description="Names of the model and of the problem set; seeds derive from them.")
    seed: int = Field(0, ge=0, description="Seed of the experiment.")
    settings: ProverSettings = Field(default_factory=ProverSettings, description="How the meta-prover is run.")
    parameterization: Parameterization = Field(default_factory=OpenEnded, description="What forces an answer.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="How the engine is built.")
    keep: Keep = Field(default_factory=Keep, description="Where answers are kept, and which part is drawn.")

    def cli_cmd(self) -> None:
        thoughts, engine = self.thoughts(), Engine(self.model, self.engine, self.revision)
        places = list(self.places(thoughts))
        answers = draw(engine, [place.request for place in places], self.keep, track_versions=self.track_versions)
        if answers is not None:
            self.write(engine, places, answers)

    def thoughts(self) -> pl.DataFrame:
        """The traces to score, a row each: problem_id, sample, text (episodes), closed, prompt."""
        prompts = ROLLOUTS.read(self.rollouts, [*TRACE, "prompt"])
        thoughts = (
            EPISODES.read(self.episodes)
            .filter(pl.col("sample") < (self.settings.traces or 2**62))
            .sort(EPISODES.keys)
            .group_by(TRACE, maintain_order=True)
            .agg("text", pl.col("closed").first())
            .join(prompts, on=TRACE, how="left", validate="1:1", maintain_order="left")
        )
        if thoughts["prompt"].null_count():
            raise ValueError(f"{self.episodes}: has traces that {self.rollouts} lacks; delete both to remake them")
        return thoughts

    def places(self, thoughts: pl.DataFrame) -> Iterator[Place]:
        """The prefixes of these traces, in order."""
        decoding = self.settings.decoding
        decoding = decoding.model_copy(update={"stop": (*decoding.stop, *self.parameterization.answer_ends)})
        for problem_id, sample, episodes, closed, prompt in thoughts.iter_rows():
            for prefix in prefixes(prompt, episodes, closed, self.parameterization, self.settings.every):
                seed = seed_of(self.seed, *self.names, problem_id, sample, prefix.j, "prover")
                yield Place(problem_id, sample, prefix, Request(prefix, self.settings.answers, seed, decoding))

    def write(self, engine: Engine, places: Sequence[Place], answers: Sequence[Sequence[Completion]]) -> None:
        """Write the forced answers of each place."""
        prefix_tokens = engine.count(place.prefix.text() for place in places)
        prompt_tokens = engine.count(place.prefix for place in places)
        rows = [
            (at.problem_id, at.sample, at.prefix.j, index, c.text, c.tokens, n_prefix, n_prompt, c.finish)
            for at, n_prefix, n_prompt, drawn in zip(places, prefix_tokens, prompt_tokens, answers, strict=True)
            for index, c in enumerate(drawn)
        ]
        table = pl.DataFrame(rows, schema=PROVER.columns, orient="row").sort(PROVER.keys)
        PROVER.write(table, self.out)
        thoughts = len({(at.problem_id, at.sample) for at in places})
        print(f"{table.height} forced answers at {len(places)} prefixes of {thoughts} thoughts")


if __name__ == "__main__":
    run(Prove)
