"""Read source datasets: rows from the hub or from JSONL, Parquet or CSV files, and their values as text."""

import csv
import difflib
import io
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from mrt.core.settings import unrepeated
from mrt.core.storage import read_table
from mrt.problems.harnesses import flattened
from mrt.problems.settings import Dataset, Hub

KINDS = ("question_type", "problem_is_valid", "solution_is_valid")
"""Columns in which NuminaMath-1.5 says what a problem is, and whether it and its solution are whole."""
READ_AT_ONCE = 50_000_000  # bytes: a larger file is not read before the first job
BYTE_ORDER_MARK = "\ufeff"
NO_TEXT = {  # how files begin that are no text in UTF-8
    b"\xff\xfe": "UTF-16 or UTF-32, not UTF-8; save it as UTF-8",
    b"\xfe\xff": "UTF-16, not UTF-8; save it as UTF-8",
    b"\x1f\x8b": "compressed with gzip; unpack it",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it",
    b"PK\x03\x04": "a zip archive or a spreadsheet; unpack it, or save it as CSV",
    b"PAR1": "Parquet; name it .parquet",
}


def text(value: Any) -> str | None:
    """A value as text without surrounding white space; None if it is empty; raises ValueError if it cannot be text.

    Whole floats lose their `.0`; lists (OlympiadBench's answers) are joined by commas, but not lists of lists.
    """
    if value is None:
        return None
    if isinstance(value, list | tuple):
        if any(isinstance(item, list | tuple) for item in value):
            raise ValueError(f"is a list of lists, which commas would make one list: {value!r}")
        return ", ".join(item for item in map(text, value) if item) or None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"is neither text nor a number: {value!r}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"is {str(value).replace('nan', 'NaN')}")
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    stripped = re.sub(r"^[\s\ufeff\u200b]+|[\s\ufeff\u200b]+$", "", str(value))  # invisible marks as well
    if stripped.lower() == "nan":
        raise ValueError("is NaN")
    check_characters(stripped)
    return stripped or None


def statement(value: Any) -> str | None:
    """A problem as text; raises ValueError if it is none, as a number, a list of messages or a chat are."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"is not text but a {type(value).__name__}: {str(value)[:60]}")
    return text(value)


def check_characters(value: str) -> None:
    """Raise ValueError for text that cannot be written, since it was cut within a character."""
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("holds half a character (a lone UTF-16 surrogate)")


def number(value: Any, *, needed: bool = True) -> float | None:
    """A value as a number, in text the first number (`Level 3`, `1983-I-1`); None if it is empty.

    Raises ValueError if it is not finite, and, unless `needed` is False, if there is none (`Level ?`).
    """
    cell = text(value)
    if cell is None:
        return None
    try:
        result = float(cell)
    except ValueError:
        match = re.search(r"\d+(?:\.\d+)?", cell)
        if not match and not needed:
            return None
        if not match:
            raise ValueError(f"has no number in it: {cell[:60]!r}; `keep` drops such rows") from None
        return float(match.group())
    if not math.isfinite(result):
        raise ValueError(f"is {cell}")
    return result


def content_of(path: Path) -> str:
    """A text file in UTF-8, without its byte order mark; raises ValueError, naming the line, for another file."""
    data = path.read_bytes()
    for beginning, what in NO_TEXT.items():
        if data.startswith(beginning):
            raise ValueError(f"{path}: the file is {what}")

    def place(at: int) -> str:
        line = data.count(b"\n", 0, at) + 1
        return f"{path}, line {line}"

    if (at := data.find(b"\0")) >= 0:
        raise ValueError(f"{place(at)}: a byte 0: the file is UTF-16, not UTF-8, or damaged; save it as UTF-8")
    try:
        return data.decode("utf-8").lstrip(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            raise ValueError(f"{place(error.start)}: the file ends within a character: it was cut") from error
        column = error.start - data.rfind(b"\n", 0, error.start)
        byte = f"byte 0x{data[error.start]:02x} at column {column}"
        near = data[max(error.start - 12, 0) : error.start + 12].decode("latin-1")
        raise ValueError(f"{place(error.start)}: not UTF-8 ({byte}; in Latin-1 {near!r}); save it as UTF-8") from error


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines and objects of a JSON Lines file; raises ValueError naming the line.

    Of files that were joined, each may begin with a byte order mark.
    """
    lines = re.split(r"\r?\n|\r", content_of(path))
    for line, raw in enumerate(lines, start=1):
        where = f"{path}, line {line}"
        content = raw.strip().strip(BYTE_ORDER_MARK).strip()
        if not content:
            continue
        try:
            value = json.loads(content, object_pairs_hook=unrepeated)
        except (json.JSONDecodeError, RecursionError) as error:
            hint = "" if content[0] == "{" else "; a .jsonl file has one JSON object a line"
            if str(error).startswith("Extra data"):
                hint = "; a line has one JSON object: were files joined without a line end between them?"
            elif content[0] == "{" and line == len(lines):
                hint = "; the file ends within this line: it was cut"
            elif content[0] not in "{[" and "," in content:
                hint += ", this looks like CSV"
            raise ValueError(f"{where}: not JSON ({error}){hint}: {content[:60]!r}") from error
        except ValueError as error:  # a repeated key, a number of thousands of digits
            raise ValueError(f"{where}: {error}: {content[:60]!r}") from error
        if not isinstance(value, dict):
            raise ValueError(f"{where}: not a JSON object but a {type(value).__name__}: {content[:60]!r}")
        yield line, value


def prefix_accuracy(file: Path) -> dict[tuple[str, str], list[list[tuple[str, float]]]]:
    """Curves that were measured elsewhere, by problem and model: the pieces of a thought, each with its accuracy.

    The accuracy is the share of right answers among completions that were continued from the text before the piece.
    `file` has a JSON line a trace: problem_id, model, chunks [{text, accuracy}]. Raises ValueError for another one, or
    if an accuracy is no share.
    """
    curves: dict[tuple[str, str], list[list[tuple[str, float]]]] = {}
    for number, row in read_jsonl(file):
        try:
            chunks = [(chunk["text"], float(chunk["accuracy"])) for chunk in row["chunks"]]
            if any(
                not isinstance(chunk["text"], str) or isinstance(chunk["accuracy"], bool) for chunk in row["chunks"]
            ):
                raise TypeError("a text that is none, or true or false for an accuracy")
            curves.setdefault((row["problem_id"], row["model"]), []).append(chunks)
        except (ValueError, KeyError, TypeError) as error:
            wanted = "problem_id, model and chunks of text and accuracy"
            raise ValueError(f"{file}, line {number}: not a JSON object with {wanted} ({error!r})") from error
        for _, accuracy in chunks:
            if not 0 <= accuracy <= 1:  # nor NaN, which a page cannot hold
                raise ValueError(f"{file}, line {number}: accuracy {accuracy} is not in [0, 1]")
    return curves


def read_csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines and records of a CSV file with a header, all values text; raises ValueError naming the line."""
    content = content_of(path)
    csv.field_size_limit(sys.maxsize)  # a solution may exceed the default of 128 KiB
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for record in reader:
            if not record:  # an empty line
                pass
            elif header is None:
                header = record
                if content.startswith("{"):
                    raise ValueError(f"{path}, line 1: not a CSV header but JSON; name the file .jsonl")
                if len(header) == 1 and (other := next((mark for mark in ";\t|" if mark in header[0]), None)):
                    raise ValueError(f"{path}, line {line}: columns are separated by commas; this header has {other!r}")
                if len(set(header)) < len(header):
                    raise ValueError(f"{path}, line 1: a column occurs twice in {', '.join(header)}")
            elif record[0].startswith(BYTE_ORDER_MARK) or (len(header) > 1 and sorted(record) == sorted(header)):
                raise ValueError(
                    f"{path}, line {line}: a header again: were files joined? If the columns are the same, remove it"
                )
            else:
                if len(record) != len(header):
                    raise ValueError(f"{path}, line {line}: {len(record)} values for {len(header)} columns")
                yield line, dict(zip(header, record, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        open_quote = ": a quotation mark is never closed" if str(error) == "unexpected end of data" else ""
        raise ValueError(f"{path}, line {line}: not CSV ({error}{open_quote})") from error


def read_file(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Rows of a local file, each with its line (Parquet: row), from 1; the suffix says the format."""
    return list(read_rows(path))


def read_rows(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    """Rows of a local file, each with its line (Parquet: row), read lazily where the format allows it."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: {'a folder; name a file in it' if path.is_dir() else 'no such file'}")
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            return read_jsonl(path)
        case ".csv":
            return read_csv(path)
        case ".parquet":
            table = read_table(path, advice="Is it whole?")
            single = pl.col(pl.Float32).cast(pl.String).cast(pl.Float64)  # 0.1, not 0.10000000149
            return enumerate(table.with_columns(single).to_dicts(), start=1)
    raise ValueError(f"{path}: rows are read from .jsonl, .parquet or .csv, not {path.suffix or 'without suffix'}")


def read_hub(hub: Hub) -> Any:
    """The dataset as loaded by `datasets`; raises ValueError whatever goes wrong."""
    from datasets import load_dataset
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # without a network `datasets` would take whatever revision it prepared last
        folder = hub.path
        if not Path(folder).is_dir():
            request: dict[str, Any] = {"repo_id": hub.path, "repo_type": "dataset", "revision": hub.revision}
            try:
                folder = snapshot_download(**request)
            except Exception:  # without a network: of an older huggingface_hub's cache it would list the files first
                with suppress(LocalEntryNotFoundError):
                    folder = snapshot_download(**request, local_files_only=True)
                if folder == hub.path:
                    raise
        return load_dataset(folder, hub.name, split=hub.split)
    except Exception as error:  # of many kinds: no such dataset, split, configuration; no network; gated
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"hub dataset {hub.path} at {hub.revision}, split {hub.split}: {first[0]}") from error


def source_columns(
    settings: Dataset, available: Sequence[str], extra: Sequence[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Source columns of the schema's fields, and of the keys of `keep`; raises ValueError if one is missing.

    So it does if one of the `extra` columns is.
    """

    def checked(column: str, purpose: str) -> str:
        if column in available:
            return column
        close = {name.lower(): name for name in available}
        near = difflib.get_close_matches(column.lower(), close, n=1, cutoff=0.5)
        guess = f"; did you mean {close[near[0]]!r}?" if near else ""
        raise ValueError(
            f"{settings.origin}: no column {column!r} ({purpose}); found {', '.join(available) or 'none'}{guess}"
        )

    for column in extra:
        checked(column, "which the task reads")
    needed = {"problem", "solution" if settings.answer_from_solution else "answer"}
    fields: dict[str, str] = {}
    for name, column in settings.columns:
        if name == "answer" and settings.answer_from_solution:
            continue
        if column is not None or name in needed:
            fields[name] = checked(column or name, f"columns.{name}")
        elif name in available:
            fields[name] = name
    keep = {
        key: fields[key] if key not in available and key in fields else checked(key, "keep") for key in settings.keep
    }
    return fields, keep


def read_source(
    settings: Dataset, extra: Sequence[str] = ()
) -> tuple[list[tuple[int, dict[str, Any]]], dict[str, str], dict[str, str]]:
    """Raw rows with their lines, and the columns that `source_columns` finds; of the hub no others, but `KINDS`."""
    if settings.hub:
        dataset = read_hub(settings.hub)
        fields, keep = source_columns(settings, dataset.column_names, extra)
        used = dataset.select_columns(
            sorted({*fields.values(), *keep.values(), *extra, *KINDS} & {*dataset.column_names})
        )
        return list(enumerate(used, start=1)), fields, keep
    assert settings.file is not None
    rows = flattened(settings.file, read_file(settings.file))
    if not rows:
        raise ValueError(f"{settings.file}: 0 problems in it")
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    return rows, *source_columns(settings, names, extra)
