"""Show a table: its provenance, columns and first rows; or a model folder: its files, and the end of its log.

python -m mrt show results/laptop/rollouts/base/toy_test.parquet
python -m mrt show results/laptop/models/mrt_1
"""

import json
from pathlib import Path

import polars as pl
from pydantic import Field
from pydantic_settings import CliPositionalArg

from mrt.core.cli import Stage, run
from mrt.core.storage import read_provenance, read_table


class Show(Stage):
    """Print what made a table, its columns and its first rows; of a model folder its files and its last steps."""

    file: CliPositionalArg[Path] = Field(description="A Parquet table, or the folder of a model.")
    rows: int = Field(5, ge=0, description="How many rows.")

    def cli_cmd(self) -> None:
        if not self.file.is_dir():
            self.show(self.file)
        elif not (self.file / "config.json").is_file():
            raise ValueError(f"{self.file} is a folder, of no model: name a table (.parquet) or a model's folder")
        else:
            files = sorted(file for file in self.file.rglob("*") if file.is_file())
            print(f"{self.file}: a model of {sum(file.stat().st_size for file in files):,} bytes")
            print(*(f"    {file.relative_to(self.file)}: {file.stat().st_size:,} bytes" for file in files), sep="\n")
            config = json.loads((self.file / "config.json").read_text(encoding="utf-8"))
            print(", ".join(f"{name}: {value}" for name, value in config.items() if isinstance(value, str | int)))
            log = self.file.with_name(f"{self.file.name}.log.parquet")
            history = self.file.with_name(f"{self.file.name}.history.parquet")
            if trained := [file for file in (log, history) if file.is_file()]:
                print("\nIts training, the last steps:\n")
                self.show(trained[0], last=True)

    def show(self, file: Path, *, last: bool = False) -> None:
        """Print what made a table, and its first rows, or its `last`."""
        table, made_by = read_table(file), read_provenance(file)
        print(f"{file}: {table.height} rows, {file.stat().st_size:,} bytes\n")
        print(json.dumps(made_by, indent=2) if made_by else "It does not say what made it.")
        with pl.Config(
            tbl_cols=-1, tbl_rows=-1, tbl_width_chars=120, fmt_str_lengths=60, tbl_hide_dataframe_shape=True
        ):
            print(table.tail(self.rows) if last else table.head(self.rows))


if __name__ == "__main__":
    run(Show)
