"""Show a table: its first rows, and what made it; or a model folder: its files, and the end of its log.

Of a table of completions, each row is shown with its problem and its verdict, as far as the results folder has them.

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

FIRST = ("problem", "text", "completion", "answer", "gold", "correct")  # what people look for
END = 400  # characters shown of each end of a text


class Show(Stage):
    """Print the first rows of a table, and what made it; of a model folder its files and its last steps."""

    file: CliPositionalArg[Path] = Field(description="A Parquet table, or the folder of a model.")
    rows: int = Field(5, ge=0, description="Number of rows.")

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
        """Print the first rows of a table, or its `last`, and what made it."""
        table, made_by = read_table(file), read_provenance(file)
        rows = with_verdicts(table.tail(self.rows) if last else table.head(self.rows), file)
        print(f"{file}: {table.height} rows, {file.stat().st_size:,} bytes\n")
        if {"text", "completion"} & {*rows.columns}:
            names = [*(name for name in FIRST if name in rows.columns), *(n for n in rows.columns if n not in FIRST)]
            for row in rows.iter_rows(named=True):
                print(*(f"{name}: {shortened(row[name])}" for name in names if row[name] is not None), sep="\n")
                print()
        else:
            with pl.Config(
                tbl_cols=-1, tbl_rows=-1, tbl_width_chars=120, fmt_str_lengths=60, tbl_hide_dataframe_shape=True
            ):
                print(rows)
        print(f"Made by: {json.dumps(made_by, indent=2)}" if made_by else "The table does not say what made it.")


def with_verdicts(rows: pl.DataFrame, file: Path) -> pl.DataFrame:
    """Rows of `RESULTS/KIND/MODEL/DATASET.parquet` with columns of the dataset and of their grades, if there are any.

    These are `problem` and `gold`, and `answer` and `correct`.
    """
    if len(file.parts) < 3 or not {"problem_id", "text"} <= {*rows.columns}:
        return rows
    results, kind, model = file.parents[2], file.parent.parent.name, file.parent.name
    problems, grades = results / "problems" / file.name, results / "grades" / model / f"{file.stem}.{kind}.parquet"
    if problems.is_file():
        golds = read_table(problems, ["id", "problem", "answer"]).rename({"id": "problem_id", "answer": "gold"})
        rows = rows.join(golds, on="problem_id", how="left", maintain_order="left")
    if grades.is_file():
        verdicts = read_table(grades).select(pl.exclude("parsed", "cluster"))
        keys = [name for name in ("problem_id", "sample", "prefix", "answer_index") if name in verdicts.columns]
        rows = rows.join(verdicts, on=keys, how="left", maintain_order="left")
    return rows


def shortened(value: object) -> str:
    """A value as text; of a long text both ends."""
    text = str(value)
    return (
        text
        if len(text) <= 2 * END + 20
        else f"{text[:END]} [... {len(text) - 2 * END:,} characters ...] {text[-END:]}"
    )


if __name__ == "__main__":
    run(Show)
