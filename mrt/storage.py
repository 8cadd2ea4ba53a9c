"""Artifacts on disk: Parquet tables and checkpoint folders, written under a temporary name and renamed when whole."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl


def temporary_name(path: Path) -> Path:
    """A sibling of `path` that no other process uses."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a Parquet table so that `path` holds either all of it or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary_name(path)
    try:
        table.write_parquet(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_text(text: str, path: Path) -> None:
    """Write a text file so that `path` holds either all of it or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary_name(path)
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_table(path: Path, columns: Iterable[str] | None = None) -> pl.DataFrame:
    """Read a Parquet table; raises ValueError, naming the file, if it is unreadable or lacks a column."""
    wanted = list(columns) if columns is not None else None
    try:
        found = pl.read_parquet_schema(path)
        missing = [name for name in wanted or [] if name not in found]
        if missing:
            raise ValueError(
                f"{path}: no column {', '.join(missing)}; found {', '.join(found)}. Delete it to remake it."
            )
        return pl.read_parquet(path, columns=wanted)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such file") from error
    except (pl.exceptions.ComputeError, pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error}). Delete it to remake it.") from error


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; it takes the name `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary_name(path)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        if path.exists():
            shutil.rmtree(path)
        os.replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
