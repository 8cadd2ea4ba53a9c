"""Cut every rollout into episodes (Section 5, Appendices A and D, Figure 21).

    python -m mrt.episodes.cut --rollouts rollouts.parquet --out episodes.parquet

The parameterization decides how a completion is cut (`mrt.episodes.parameterization`). Joining the episodes of a trace
restores its thought, or its whole completion if there is no thought.
"""

from pathlib import Path

import polars as pl
from pydantic import Field

from mrt.core.artifacts import EPISODES, ROLLOUTS
from mrt.core.cli import Stage, run
from mrt.episodes.parameterization import OpenEnded, Parameterization
from mrt.episodes.segmentation import splitter, ways_of
from mrt.episodes.thinking import of_cell


class CutRollouts(Stage):
    """Cut the thought of every rollout into episodes."""

    rollouts: Path = Field(description="Rollouts (Parquet).")
    out: Path = Field(description="Episodes (Parquet).")
    parameterization: Parameterization = Field(default_factory=OpenEnded, description="How completions are cut.")

    def plugins(self) -> tuple[str, ...]:
        return ways_of(self.parameterization)

    def cli_cmd(self) -> None:
        rows, split = [], splitter(self.parameterization)
        columns = [*ROLLOUTS.keys, "text", "inside", "thinking"]
        for problem_id, sample, text, inside, tags in ROLLOUTS.read(self.rollouts, columns).iter_rows():
            episodes, closed = self.parameterization.of(of_cell(tags)).cut(text, inside=inside, split=split)
            rows += [(problem_id, sample, index, episode, closed) for index, episode in enumerate(episodes or [""])]
        table = pl.DataFrame(rows, schema=EPISODES.columns, orient="row")
        EPISODES.write(table, self.out)
        traces = table.select("problem_id", "sample").n_unique()
        print(f"{table.height} episodes of {traces} thoughts, {table.height / max(traces, 1):.1f} a thought")


if __name__ == "__main__":
    run(CutRollouts)
