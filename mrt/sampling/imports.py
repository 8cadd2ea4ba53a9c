"""Imported rollouts: completions that somebody sampled elsewhere become a model's rollouts.

    python -m mrt.sampling.imports --file traces.jsonl --model QwQ-32B --problems problems.parquet \
        --out rollouts.parquet

The file (JSONL, Parquet or CSV) has one row per completion, with `problem_id` and `text`, and optionally `model`,
`prompt`, `tokens` and `finish_reason`. Rows whose problem is not in the dataset are left out and counted; several rows
of one problem are its samples, in the order of the file.
"""

from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from mrt.core.artifacts import PROBLEMS, ROLLOUTS
from mrt.core.cli import Stage, run
from mrt.problems.sources import read_file


def completions_in(file: Path, model: str | None = None) -> list[dict[str, Any]]:
    """Rows of a file of completions.

    Raises ValueError if a required column is missing, or if a completion, of this model if one is named, is null.
    """
    rows = read_file(file)
    first = rows[0][1] if rows else {}
    missing = [name for name in ("problem_id", "text") if name not in first]
    if missing:
        raise ValueError(f"{file}: no column {', '.join(missing)}; found {', '.join(first) or 'no rows'}")
    for number, row in rows:
        if row.get("text") is None and model in (None, row.get("model")):
            raise ValueError(f"{file}, row {number}: text is null; leave the row out, or write an empty text")
    return [row for _, row in rows]


class Import(Stage):
    """Make rollouts from a file of completions."""

    file: Path = Field(description="Completions (JSONL, Parquet or CSV).")
    model: str | None = Field(None, description="Keep the rows whose `model` is this.")
    problems: Path = Field(description="Dataset (Parquet).")
    out: Path = Field(description="Rollouts (Parquet).")

    def cli_cmd(self) -> None:
        table = pl.DataFrame(completions_in(self.file, self.model), infer_schema_length=None)
        if self.model and "model" not in table.columns:
            raise ValueError(f"{self.file}: no column model; found {', '.join(table.columns)}")
        table = table.with_columns(pl.col("problem_id").cast(pl.String))  # JSON may have numbers
        if self.model:
            known = sorted(map(str, table["model"].drop_nulls().unique()))
            table = table.filter(pl.col("model") == self.model)
            if table.is_empty():
                raise ValueError(f"{self.file}: no row has model {self.model!r}; there are {', '.join(known)}")
        types = ROLLOUTS.columns
        absent = [pl.lit(None, kind).alias(name) for name, kind in types.items() if name not in table.columns]
        table = table.with_columns(absent).with_columns(
            pl.col("prompt").fill_null(""),
            pl.col("finish_reason").fill_null("unknown"),
            pl.int_range(pl.len()).over("problem_id").alias("sample"),
        )
        known_ids = PROBLEMS.read(self.problems, ["id"])["id"].implode()
        kept = table.filter(pl.col("problem_id").is_in(known_ids)).select(pl.col(n).cast(t) for n, t in types.items())
        ROLLOUTS.write(kept.sort(ROLLOUTS.keys), self.out)
        print(
            f"{kept.height} rollouts imported; {table.height - kept.height} of problems outside {self.problems.stem}"
            " left out"
        )


if __name__ == "__main__":
    run(Import)
