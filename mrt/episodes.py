"""Cutting a thought into episodes (Section 5, Appendix D, Figure 21).

    python -m mrt.episodes --rollouts rollouts.parquet --out episodes.parquet

A thought is what stands between `<think>` and `</think>`. Its steps are separated by blank lines; a step that begins
with a marker ("Wait", "Alternatively", ...) opens a new episode if the current one has at least three steps. Cutting is
lossless: the separators stay with the episode that they end, and joining the episodes gives the thought back.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from mrt.artifacts import EPISODES, ROLLOUTS
from mrt.cli import Stage, run

MARKERS = (
    "Wait",
    "But wait",
    "Alternatively",
    "Is there another way to think about this?",
    "But let me double-check",
    "But hold on",
)
STEP_END = "\n\n"
OPEN, CLOSE = "<think>", "</think>"


class Parts(NamedTuple):
    """A completion taken apart: its thought, whether `</think>` closed it, and the answer part after it."""

    thought: str
    closed: bool
    answer: str


def take_apart(completion: str) -> Parts:
    """Thought and answer part of a completion, which begins inside the thought or with `<think>`."""
    body = completion.removeprefix(OPEN) if completion.startswith(OPEN) else completion
    thought, close, answer = body.partition(CLOSE)
    return Parts(thought, bool(close), answer)


def split_episodes(
    thought: str, *, min_steps: int = 3, max_episodes: int | None = None, markers: Sequence[str] = MARKERS
) -> list[str]:
    """Episodes of a thought, in order; `"".join(...)` of them is the thought. No thought, no episodes.

    `min_steps` is how many steps an episode needs before a marker may end it, `max_episodes` how many cuts are made at
    most (what follows the last cut is one episode). Raises ValueError if either is out of range.
    """
    if min_steps < 1 or (max_episodes is not None and max_episodes < 0):
        raise ValueError(f"min_steps must be at least 1 and max_episodes at least 0; got {min_steps}, {max_episodes}")
    if not thought:
        return []
    cuts, start, steps, position = [0], tuple(markers), 0, 0
    for step in thought.split(STEP_END):
        if steps >= min_steps and step.startswith(start) and (max_episodes is None or len(cuts) <= max_episodes):
            cuts.append(position)
            steps = 0
        steps += 1
        position += len(step) + len(STEP_END)
    return [thought[a:b] for a, b in zip(cuts, [*cuts[1:], len(thought)], strict=True)]


class Segmentation(BaseModel):
    """How thoughts are cut (Appendix D)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    min_steps: int = Field(3, ge=1, description="Steps an episode has at least (Appendix D).")
    max_episodes: int | None = Field(None, ge=0, description="Cuts made at most; what follows the last is one episode.")
    markers: tuple[str, ...] = Field(MARKERS, description="A step that begins with one of these opens an episode.")


class Cut(Stage):
    """Cut the thought of every rollout into episodes."""

    rollouts: Path = Field(description="Rollouts (Parquet).")
    out: Path = Field(description="Episodes (Parquet).")
    segmentation: Segmentation = Field(default_factory=Segmentation, description="How thoughts are cut.")

    def cli_cmd(self) -> None:
        rows = []
        for problem_id, sample, text in ROLLOUTS.read(self.rollouts, ["problem_id", "sample", "text"]).iter_rows():
            parts = take_apart(text)
            episodes = split_episodes(parts.thought, **self.segmentation.model_dump()) or [""]
            rows += [(problem_id, sample, index, episode, parts.closed) for index, episode in enumerate(episodes)]
        table = pl.DataFrame(rows, schema=EPISODES.columns, orient="row")
        EPISODES.write(table, self.out)
        traces = table.select("problem_id", "sample").n_unique()
        print(f"{table.height} episodes of {traces} thoughts, {table.height / max(traces, 1):.1f} a thought")


if __name__ == "__main__":
    run(Cut)
