"""Show a table: its provenance, columns and first rows.

python -m mrt show results/laptop/rollouts/base/toy_test.parquet
"""

import json
from pathlib import Path

import polars as pl
from pydantic import Field
from pydantic_settings import CliPositionalArg

from mrt.core.cli import Stage, run
from mrt.core.storage import read_provenance, read_table


class Show(Stage):
    """Print what made a table, its columns and its first rows."""

    file: CliPositionalArg[Path] = Field(description="A Parquet table.")
    rows: int = Field(5, ge=0, description="How many rows.")

    def cli_cmd(self) -> None:
        table, made_by = read_table(self.file), read_provenance(self.file)
        print(f"{self.file}: {table.height} rows, {self.file.stat().st_size:,} bytes\n")
        print(json.dumps(made_by, indent=2) if made_by else "It does not say what made it.")
        with pl.Config(
            tbl_cols=-1, tbl_rows=-1, tbl_width_chars=120, fmt_str_lengths=60, tbl_hide_dataframe_shape=True
        ):
            print(table.head(self.rows))


if __name__ == "__main__":
    run(Show)
