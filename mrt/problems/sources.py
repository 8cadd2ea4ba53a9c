"""Read source datasets: rows from the hub or from JSONL, Parquet or CSV files, and their values as text."""

import csv
import difflib
import io
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mrt.core.storage import read_table
from mrt.problems.settings import Dataset, Hub


def text(value: Any) -> str | None:
    """A value as text without surrounding white space; None if it is empty; raises ValueError if it cannot be text.

    Whole floats lose their `.0`; lists (OlympiadBench's answers) are joined by commas.
    """
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return ", ".join(item for item in map(text, value) if item) or None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"is neither text nor a number: {value!r}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"is {str(value).replace('nan', 'NaN')}")
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    found = str(value).strip()
    if found.lower() == "nan":
        raise ValueError("is NaN")
    check_characters(found)
    return found or None


def check_characters(value: str) -> None:
    """Raise ValueError for text that cannot be written, since it was cut within a character."""
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("holds half a character (a lone UTF-16 surrogate)")


def number(value: Any, *, needed: bool = True) -> float | None:
    """A value as a number, in text the first number (`Level 3`, `1983-I-1`); None if it is empty.

    Raises ValueError if it is not finite, and, unless `needed` is False, if there is none (`Level ?`).
    """
    found = text(value)
    if found is None:
        return None
    try:
        result = float(found)
    except ValueError:
        match = re.search(r"\d+(?:\.\d+)?", found)
        if not match and not needed:
            return None
        if not match:
            raise ValueError(f"has no number in it: {found[:60]!r}; `keep` drops such rows") from None
        return float(match.group())
    if not math.isfinite(result):
        raise ValueError(f"is {found}")
    return result


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines and objects of a JSON Lines file; raises ValueError naming the line."""
    for line, raw in enumerate(path.read_bytes().split(b"\n"), start=1):
        where = f"{path}, line {line}"
        try:
            content = raw.decode("utf-8-sig" if line == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            byte = f"byte 0x{raw[error.start]:02x} at column {error.start + 1}"
            raise ValueError(f"{where}: not UTF-8 ({byte})") from error
        if not content:
            continue
        try:
            value = json.loads(content)
        except (json.JSONDecodeError, RecursionError) as error:
            hint = "; a .jsonl file has one JSON object a line" + (", this looks like CSV" if "," in content else "")
            hint = hint if content[0] not in "{[" else ""
            raise ValueError(f"{where}: not JSON ({error}){hint}: {content[:60]!r}") from error
        if not isinstance(value, dict):
            raise ValueError(f"{where}: not a JSON object but a {type(value).__name__}: {content[:60]!r}")
        yield line, value


def prefix_accuracy(file: Path) -> dict[tuple[str, str], list[list[tuple[str, float]]]]:
    """Curves that somebody else measured, by problem and model: the pieces of a thought, each with the share of right
    answers among completions that were continued from the text before it.

    `file` has a JSON line a trace: problem_id, model, chunks [{text, accuracy}]. Raises ValueError for another one, or
    if an accuracy is no share.
    """
    found: dict[tuple[str, str], list[list[tuple[str, float]]]] = {}
    for number, row in read_jsonl(file):
        try:
            chunks = [(chunk["text"], float(chunk["accuracy"])) for chunk in row["chunks"]]
            found.setdefault((row["problem_id"], row["model"]), []).append(chunks)
        except (ValueError, KeyError, TypeError) as error:
            wanted = "problem_id, model and chunks of text and accuracy"
            raise ValueError(f"{file}, line {number}: not a JSON object with {wanted} ({error!r})") from error
        for _, accuracy in chunks:
            if not 0 <= accuracy <= 1:  # nor NaN, which a page cannot hold
                raise ValueError(f"{file}, line {number}: accuracy {accuracy} is not in [0, 1]")
    return found


def read_csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines and records of a CSV file with a header, all values text; raises ValueError naming the line."""
    data = path.read_bytes()
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x})") from error
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
            else:
                if len(record) != len(header):
                    raise ValueError(f"{path}, line {line}: {len(record)} values for {len(header)} columns")
                yield line, dict(zip(header, record, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}: not CSV ({error})") from error


def read_file(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Rows of a local file, each with its line (Parquet: row), from 1; the suffix says the format."""
    return list(read_rows(path))


def read_rows(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    """Rows of a local file, each with its line (Parquet: row), read lazily where the format allows it."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            return read_jsonl(path)
        case ".csv":
            return read_csv(path)
        case ".parquet":
            return enumerate(read_table(path, advice="Is it whole?").to_dicts(), start=1)
    raise ValueError(f"{path}: problems are read from .jsonl, .parquet or .csv, not {path.suffix or 'without suffix'}")


def read_hub(hub: Hub) -> Any:
    """The dataset as loaded by `datasets`; raises ValueError whatever goes wrong."""
    from datasets import load_dataset
    from huggingface_hub import snapshot_download

    try:
        # without a network `datasets` would take whatever revision it prepared last
        path, known = hub.path, Path(hub.path).is_dir()
        folder = path if known else snapshot_download(path, repo_type="dataset", revision=hub.revision)
        return load_dataset(folder, hub.name, split=hub.split)
    except Exception as error:  # of many kinds: no such dataset, split, configuration; no network; gated
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"hub dataset {hub.path} at {hub.revision}, split {hub.split}: {first[0]}") from error


def source_columns(settings: Dataset, found: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Source columns of the schema's fields, and of the keys of `keep`; raises ValueError if one is missing."""

    def checked(column: str, purpose: str) -> str:
        if column in found:
            return column
        close = {name.lower(): name for name in found}
        near = difflib.get_close_matches(column.lower(), close, n=1, cutoff=0.5)
        guess = f"; did you mean {close[near[0]]!r}?" if near else ""
        raise ValueError(
            f"{settings.origin}: no column {column!r} ({purpose}); found {', '.join(found) or 'none'}{guess}"
        )

    needed = {"problem", "solution" if settings.answer_from_solution else "answer"}
    fields: dict[str, str] = {}
    for name, column in settings.columns:
        if name == "answer" and settings.answer_from_solution:
            continue
        if column is not None or name in needed:
            fields[name] = checked(column or name, f"columns.{name}")
        elif name in found:
            fields[name] = name
    keep = {key: fields[key] if key not in found and key in fields else checked(key, "keep") for key in settings.keep}
    return fields, keep


def read_source(settings: Dataset) -> tuple[list[tuple[int, dict[str, Any]]], dict[str, str], dict[str, str]]:
    """Raw rows with their lines, and the columns that `source_columns` finds."""
    if settings.hub:
        dataset = read_hub(settings.hub)
        fields, keep = source_columns(settings, dataset.column_names)
        used = dataset.select_columns(sorted({*fields.values(), *keep.values()}))
        return list(enumerate(used, start=1)), fields, keep
    assert settings.file is not None
    rows = read_file(settings.file)
    if not rows:
        raise ValueError(f"{settings.file}: 0 problems in it")
    found = list(dict.fromkeys(name for _, row in rows for name in row))
    return rows, *source_columns(settings, found)
