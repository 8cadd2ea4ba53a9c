"""The shared parts of the sampling stages: a model, an engine, a completion cache, and seeds."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import polars as pl
from pydantic import Field

from mrt.core.artifacts import EPISODES, ROLLOUTS, TRACE
from mrt.core.cli import Stage
from mrt.episodes.thinking import of_cell
from mrt.sampling.cache import CacheSettings, Then, draw
from mrt.sampling.engine import Completion, Engine, EngineSettings, Request, seed_of


class SamplingStage(Stage):
    """A stage that samples from a model with vLLM."""

    model: str = Field(description="Checkpoint folder or hub id of the model that is sampled.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    names: tuple[str, str] = Field(description="Names of the model and of the dataset; seeds derive from them.")
    seed: int = Field(0, ge=0, description="Seed of the experiment.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="How the engine is built.")
    cache: CacheSettings = Field(default_factory=CacheSettings, description="Where completions are cached; shards.")

    @cached_property
    def sampler(self) -> Engine:
        """The engine; vLLM starts with the first request."""
        return Engine(self.model, self.engine, self.revision)

    def lock(self) -> Path | None:
        """That of the completion cache, or of this shard of it."""
        shard = f".{self.cache.shard.replace('/', '-of-')}" if self.cache.shard else ""
        return self.cache.folder and self.cache.folder.with_name(f"{self.cache.folder.name}{shard}.lock")

    def seed_of(self, *parts: object) -> int:
        """The seed of the request named by `parts`, for this model, dataset and experiment."""
        return seed_of(self.seed, *self.names, *parts)

    def draw(
        self,
        requests: Sequence[Request],
        then: Then | None = None,
        *,
        cache: CacheSettings | None = None,
        shard_of: Callable[[int], int] = int,
    ) -> list[list[Completion]] | None:
        """`mrt.sampling.cache.draw` with the stage's engine and cache."""
        settings = cache or self.cache
        return draw(self.sampler, requests, settings, then, track_versions=self.track_versions, shard_of=shard_of)

    def rows_of_shard(self, table: pl.DataFrame) -> tuple[pl.DataFrame, CacheSettings]:
        """The rows of this shard, of which each is sampled whole, and the cache without the shard."""
        if not self.cache.shard:
            return table, self.cache
        index, count = map(int, self.cache.shard.split("/"))
        return table.gather_every(count, index), self.cache.model_copy(update={"shard": None})


class TraceStage(SamplingStage):
    """A sampling stage that continues the traces of rollouts."""

    rollouts: Path = Field(description="Rollouts (Parquet).")
    episodes: Path = Field(description="Episodes of these rollouts (Parquet).")

    def shard_of_traces(self, most: int | None) -> tuple[pl.DataFrame, CacheSettings]:
        """The traces of this shard, whole, so that the engine reads each once; and the cache without the shard."""
        return self.rows_of_shard(self.traces(most))

    def traces(self, most: int | None) -> pl.DataFrame:
        """The first `most` traces of each problem, one row each.

        Columns: problem_id, sample, text (episodes), closed, prompt, finish_reason, inside, thinking. The sampler keeps
        the tags of these thoughts. Raises ValueError if the rollouts lack one of the traces.
        """
        rollouts = ROLLOUTS.read(self.rollouts, [*TRACE, "prompt", "finish_reason", "inside", "thinking"])
        self.sampler.thinking = of_cell(next(iter(rollouts["thinking"].drop_nulls()), None))
        traces = (
            EPISODES.read(self.episodes)
            .filter(pl.col("sample") < (most or 2**62))
            .sort(EPISODES.keys)
            .group_by(TRACE, maintain_order=True)
            .agg("text", pl.col("closed").first())
            .join(rollouts, on=TRACE, how="left", validate="1:1", maintain_order="left")
        )
        if traces["prompt"].null_count():
            raise ValueError(f"{self.episodes}: has traces that {self.rollouts} lacks; delete both to remake them")
        return traces
