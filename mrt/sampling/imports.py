"""Imported rollouts: completions that somebody sampled elsewhere become a model's rollouts.

    python -m mrt.sampling.imports --file traces.jsonl --model QwQ-32B --problems problems.parquet \\
        --out rollouts.parquet

The file (JSONL, Parquet or CSV) has one row per completion, with `problem_id` and `text`, and optionally `model`,
`prompt`, `tokens` and `finish_reason`. Rows whose problem is not in the dataset are left out and counted; several rows
of one problem are its samples, in the order of the file.

`prompt` is the text before the completion; whether it leaves a `<think>` open decides what the grader takes for a
thought. Engines leave out the tag that a chat template opens. So if a completion closes a thought and none begins with
`<think>`, those without a prompt are taken to begin inside one.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from mrt.core.artifacts import PROBLEMS, ROLLOUTS
from mrt.core.cli import Stage, run
from mrt.episodes.parameterization import CLOSE, OPEN
from mrt.problems.sources import check_characters, read_file, text

USED = ("model", *ROLLOUTS.columns)


def completions_in(file: Path, model: str | None = None) -> list[dict[str, Any]]:
    """Rows of a file of completions; an empty cell of a CSV file is null, unless it is the text.

    Raises ValueError if a required column is missing, if a completion, of this model if one is named, is null, or if a
    value holds half a character.
    """
    rows = read_file(file)
    if file.suffix.lower() == ".csv":
        rows = [(line, {n: value if value or n == "text" else None for n, value in row.items()}) for line, row in rows]
    first = rows[0][1] if rows else {}
    missing = [name for name in ("problem_id", "text") if name not in first]
    if missing:
        raise ValueError(f"{file}: no column {', '.join(missing)}; found {', '.join(first) or 'no rows'}")
    for number, row in rows:
        if row.get("text") is None and model in (None, row.get("model")):
            raise ValueError(f"{file}, row {number}: text is null; leave the row out, or write an empty text")
        for name in USED:
            try:
                if name == "problem_id":
                    row[name] = text(row.get(name))  # as ids of problems are read
                check_characters(str(row.get(name)))
            except ValueError as error:
                raise ValueError(f"{file}, row {number}: {name} {error}") from error
        if row["problem_id"] is None:
            raise ValueError(f"{file}, row {number}: problem_id is empty or missing")
    return [row for _, row in rows]


def check_ids(file: Path, rows: Iterable[Mapping[str, Any]], ids: Collection[str], dataset: str) -> None:
    """Raise ValueError if no completion is of a problem with one of these ids."""
    found = {row["problem_id"]: None for row in rows}
    if not found.keys() & set(ids):
        theirs, ours = (", ".join(map(repr, [*names][:3])) for names in (found, ids))
        raise ValueError(
            f"{file}: no completion is of a problem of {dataset}: problem_id is {theirs or 'nowhere'} ..., ids of the"
            f" problems are {ours} ... (without a column `id`, <set>-<row>, rows from 0)"
        )


class Import(Stage):
    """Make rollouts from a file of completions."""

    file: Path = Field(description="Completions (JSONL, Parquet or CSV).")
    model: str | None = Field(None, description="Keep the rows whose `model` is this.")
    problems: Path = Field(description="Dataset (Parquet).")
    out: Path = Field(description="Rollouts (Parquet).")

    def cli_cmd(self) -> None:
        rows = completions_in(self.file, self.model)
        ids = PROBLEMS.read(self.problems, ["id"])["id"].to_list()
        try:
            kept, left_out = self.kept(rows, ids)
        except pl.exceptions.PolarsError as error:
            raise ValueError(f"{self.file}: a value is not of its column's type ({error})") from error
        ROLLOUTS.write(kept.sort(ROLLOUTS.keys), self.out)
        print(f"{kept.height} rollouts imported; {left_out} of problems outside {self.problems.stem} left out")
        if unsampled := len(ids) - kept["problem_id"].n_unique():
            print(
                f"{unsampled} problems of {self.problems.stem} have no completion: this model is measured without them"
            )

    def kept(self, rows: list[dict[str, Any]], ids: list[str]) -> tuple[pl.DataFrame, int]:
        """The rollouts among the rows, and how many others are of problems outside the dataset."""
        found = dict.fromkeys(name for row in rows for name in row)
        if self.model and "model" not in found:
            raise ValueError(f"{self.file}: no column model; found {', '.join(found)}")
        used = [{name: row[name] for name in USED if name in row} for row in rows]
        table = pl.DataFrame(used, infer_schema_length=None)
        if self.model:
            known = sorted(map(str, table["model"].drop_nulls().unique()))
            table = table.filter(pl.col("model") == self.model)
            if table.is_empty():
                raise ValueError(f"{self.file}: no row has model {self.model!r}; there are {', '.join(known)}")
        types = ROLLOUTS.columns
        absent = [pl.lit(None, kind).alias(name) for name, kind in types.items() if name not in table.columns]
        table = table.with_columns(absent).with_columns(pl.int_range(pl.len()).over("problem_id").alias("sample"))
        check_ids(self.file, table.select("problem_id").iter_rows(named=True), ids, self.problems.stem)
        kept = table.filter(pl.col("problem_id").is_in(ids)).select(pl.col(n).cast(t) for n, t in types.items())
        written = pl.col("text")
        opened = written.str.strip_chars_start().str.starts_with(OPEN).any()  # the completions have the tag themselves
        inside = ~opened & written.str.contains(CLOSE, literal=True).any() & ~written.str.contains(OPEN, literal=True)
        return kept.with_columns(
            pl.col("prompt").fill_null(pl.when(inside).then(pl.lit(f"{OPEN}\n")).otherwise(pl.lit(""))),
            pl.col("finish_reason").fill_null("unknown"),
        ), table.height - kept.height


if __name__ == "__main__":
    run(Import)
