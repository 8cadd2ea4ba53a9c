"""Logs of RL training: their columns, and logs of models that somebody trained elsewhere (Figures 10 and 11).

    python -m mrt.train.log --file deepscaler.csv --out results/mine/models/deepscaler.log.parquet

The paper draws Figure 11 from DeepScaleR's own log in this way.
"""

from pathlib import Path

import polars as pl
from pydantic import Field

from mrt.cli import Stage, run
from mrt.problems import read_file, read_rows
from mrt.storage import write_table

RL_LOG = {"step": pl.Int64, "reward": pl.Float64, "completion_tokens": pl.Float64}
"""What the log of every RL training has: the step, the mean reward, the mean tokens of a completion."""


def check_log(file: Path) -> None:
    """Raise ValueError if the first row of a log has not the columns that are needed."""
    _, first = next(iter(read_rows(file)), (0, {}))
    missing = [name for name in RL_LOG if name not in first]
    if missing:
        raise ValueError(f"{file}: no column {', '.join(missing)}; found {', '.join(first) or 'no rows'}")


class ImportLog(Stage):
    """Make a training log from a file."""

    file: Path = Field(
        description="Log (CSV, JSONL or Parquet): a row a step, columns step, reward, completion_tokens."
    )
    out: Path = Field(description="Training log (Parquet).")

    def cli_cmd(self) -> None:
        check_log(self.file)
        table = pl.DataFrame([row for _, row in read_file(self.file)], infer_schema_length=None)
        try:
            log = table.select(pl.col(name).cast(kind) for name, kind in RL_LOG.items()).sort("step")
        except pl.exceptions.PolarsError as error:
            raise ValueError(f"{self.file}: a value is not a number ({error})") from error
        write_table(log, self.out, ["step"])
        print(f"{log.height} steps")


if __name__ == "__main__":
    run(ImportLog)
