"""Artifacts on disk: Parquet tables and checkpoint folders, written under a temporary name, checked, and then renamed.

A table records its provenance in its metadata (`python -m mrt show FILE` prints it): the stage, its options, the
fingerprint of its code and the versions of the libraries that affect its result. It records neither dates nor the
machine, so that equal runs write equal files.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from mrt.core.lock import refuse_if_superseded

provenance: dict[str, Any] = {}  # metadata that the running stage writes into its tables; set by `mrt.core.cli`
REMAKE = "Delete it and run snakemake again to remake it."
KEPT_BY_CONTENT = {".cache", ".state"}  # folders that jobs of an earlier run may add to


def temporary_name(path: Path) -> Path:
    """A sibling of `path` that no other process uses."""
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.part")


def put(part: Path, path: Path) -> None:
    """Rename a written file or folder to its final path. Raises Superseded if a later run has started."""
    if not KEPT_BY_CONTENT.intersection(path.parts):
        refuse_if_superseded()
    if part.is_dir() and path.exists():
        shutil.rmtree(path)
    os.replace(part, path)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary file to write; when the block ends without an error, it is flushed to disk and renamed to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary_name(path)
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        put(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_table(table: pl.DataFrame, path: Path, keys: Sequence[str] = ()) -> None:
    """Write a Parquet table so that `path` holds either all of it or its former content.

    Raises ValueError if a combination of `keys` is null or repeats, OSError if the file was not written completely.
    """
    if keys:
        lacking = table.filter(pl.any_horizontal(pl.col(keys).is_null()) | table.select(keys).is_duplicated())
        if lacking.height:
            raise ValueError(f"{path}: {lacking.height} rows with a key that is null or repeats: {lacking.row(0)}")
    with atomic_file(path) as part:
        try:
            table.write_parquet(part, metadata={"mrt": json.dumps(provenance, sort_keys=True)})
            written = pl.read_parquet_schema(part), pl.scan_parquet(part).select(pl.len()).collect().item()
        except pl.exceptions.PolarsError as error:
            raise OSError(f"{path}: could not be written ({error})") from error
        if written != (table.schema, table.height):
            raise OSError(f"{path}: what was written is not what should have been; is the disk full?")


def write_text(text: str, path: Path) -> None:
    """Write a text file so that `path` holds either all of it or its former content."""
    with atomic_file(path) as part:
        part.write_text(text, encoding="utf-8")


def columns_of(path: Path, advice: str = REMAKE) -> dict[str, Any]:
    """Columns of a Parquet table with their types; raises ValueError, naming the file, if it is not one."""
    try:
        return dict(pl.read_parquet_schema(path))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such file") from error
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error}). {advice}") from error


def read_table(
    path: Path, columns: Iterable[str] | Mapping[str, Any] | None = None, advice: str = REMAKE
) -> pl.DataFrame:
    """Read a Parquet table; if `columns` is a mapping, they must have the types that it gives.

    Raises ValueError, naming the file, if it is unreadable, lacks a column or a column has another type; the message
    ends with `advice`, by default how to remake the file.
    """
    wanted, types = list(columns) if columns is not None else None, columns_of(path, advice)
    missing = [name for name in wanted or [] if name not in types]
    if missing:
        raise ValueError(f"{path}: no column {', '.join(missing)}; found {', '.join(types)}. {advice}")
    for name, kind in columns.items() if isinstance(columns, Mapping) else ():
        if types[name] != kind:
            raise ValueError(f"{path}: column {name} is {types[name]}, not {kind}. {advice}")
    try:
        return pl.read_parquet(path, columns=wanted)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error}). {advice}") from error


def read_provenance(path: Path) -> dict[str, Any] | None:
    """Provenance of a table, from its metadata; None if it has none."""
    try:
        entry = pl.read_parquet_metadata(path).get("mrt")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error})") from error
    return json.loads(entry) if entry else None


def link_folder(source: Path, path: Path) -> None:
    """Make `path` a folder of hard links to the files in `source`, which take no space; across file systems, copies."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)

    with atomic_folder(path) as part:
        shutil.copytree(source, part, copy_function=link, dirs_exist_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill; when the block ends without an error, it is renamed to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary_name(path)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        put(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
