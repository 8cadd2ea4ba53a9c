"""Problem sets: from the Hugging Face hub, a local file or the toy world, normalised to one table.

    python -m mrt.problems.build --name toy_test --set '{"toy": {"count": 200, "seed": 2}, "split": "test"}' \
        --disjoint results/problems/toy_train.parquet --out results/problems/toy_test.parquet

The gold answer is upstream's text without surrounding white space; whether an answer equals it is for grading to say.
Rules that drop problems are applied in the order of `build`, and what each dropped is printed. Two laws hold: a sample
depends on its seed and the problems' texts, not on the order of rows; and a larger sample contains every smaller one.
"""

import csv
import difflib
import hashlib
import io
import json
import math
import random
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mrt.core.artifacts import PROBLEMS
from mrt.core.cli import Stage, run
from mrt.core.storage import read_table
from mrt.toy.world import DIFFICULTIES, draw_problem

T = TypeVar("T")
Shingles = set[str]  # each its tokens with a space between
SHINGLE = 10  # tokens
OVERLAP = 0.4  # share of the shorter problem's shingles
TOY_REDRAWS = 2000  # this many draws in a row that give nothing new mean that the toy world is exhausted


class Toy(BaseModel):
    """Problems drawn from the toy world; a larger `count` only appends."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    count: int = Field(ge=1, le=1_000_000, description="How many problems, all different.")
    seed: int = Field(0, description="Seed of the drawing.")
    difficulties: list[int] = Field(
        list(DIFFICULTIES), min_length=1, description="Amounts of numbers a problem has (3 to 8), taken in turn."
    )

    @field_validator("difficulties")
    @classmethod
    def _possible(cls, values: list[int]) -> list[int]:
        # of 2 numbers, or of 9 and more, the world finds problems rarely or never
        if any(not 3 <= value <= 8 for value in values):
            raise ValueError("a toy problem has 3 to 8 numbers")
        return values


class Hub(BaseModel):
    """A dataset on the Hugging Face hub, at a pinned revision; its code is never run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    path: str = Field(min_length=1, description="Dataset on the hub, owner/name (or a local dataset folder).")
    revision: str = Field(min_length=1, description="Commit hash or tag; a branch such as `main` may change under you.")
    split: str = Field("train", min_length=1, description="Split of the dataset to read, in its own words.")
    name: str | None = Field(None, description="Configuration of the dataset; null for its default.")


class Columns(BaseModel):
    """Which column of the source holds what; null means the column of that very name, where there is one."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    problem: str | None = Field(None, description="Column of the problem's text (needed).")
    answer: str | None = Field(None, description="Column of the gold answer (needed unless `answer_from_solution`).")
    id: str | None = Field(None, description="Column of the id; without one, ids are `<set>-<row>`, rows from 0.")
    solution: str | None = Field(None, description="Column of the worked solution.")
    difficulty: str | None = Field(None, description="Column of the difficulty; of text, the first number counts.")
    source: str | None = Field(None, description="Column that says where a problem is from.")


class ProblemSet(BaseModel):
    """A problem set: exactly one of `toy`, `hub` and `file`, and what to keep of it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    toy: Toy | None = Field(None, description="Draw the problems from the toy world.")
    hub: Hub | None = Field(None, description="Read a Hugging Face dataset.")
    file: Path | None = Field(None, description="Read a local .jsonl, .parquet or .csv file.")
    split: Literal["train", "val", "test"] = Field("test", description="What the set is for.")
    columns: Columns = Field(default_factory=Columns, description="Which source column holds what.")
    answer_from_solution: bool = Field(
        False, description="The gold answer is the last balanced \\boxed{} of the solution; without one, drop the row."
    )
    answer_after: str | None = Field(
        None,
        min_length=1,
        description="With `answer_from_solution`: the gold answer is what follows the last of this text instead, as"
        ' "####" in GSM8K.',
    )
    keep: dict[str, tuple[float, float]] = Field(
        default_factory=dict,
        description="Inclusive range of a source column, or of a field of the schema; of text (`1983-I-1`), the first "
        "number counts. Rows without a value are dropped.",
    )
    difficulties: list[float] | None = Field(None, min_length=1, description="Keep exactly these difficulties.")
    drop: list[Literal["empty", "proof", "multiple_choice"]] = Field(
        default_factory=list,
        description="Drop problems that lack a text or an answer (otherwise an error), that ask for a proof, that "
        "offer options to choose from.",
    )
    disjoint_from: list[str] = Field(
        default_factory=list, description="Sets with which this one must share no problem (decontamination)."
    )
    count: int | None = Field(None, ge=1, description="Sample so many problems; null for all.")
    per_difficulty: int | None = Field(None, ge=1, description="Sample so many problems of each difficulty.")
    seed: int = Field(0, description="Seed of the sample.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = [name for name in ("toy", "hub", "file") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of toy, hub and file; got {' and '.join(given) or 'none'}")
        if self.toy:
            plain = ProblemSet.model_construct(toy=self.toy, split=self.split, disjoint_from=self.disjoint_from)
            odd = [name for name in type(self).model_fields if getattr(self, name) != getattr(plain, name)]
            if odd:
                raise ValueError(f"{', '.join(odd)}: not for the toy world, where `toy` says all of it")
        if self.answer_from_solution and self.columns.answer:
            raise ValueError("columns.answer and answer_from_solution exclude each other")
        if self.answer_after and not self.answer_from_solution:
            raise ValueError("answer_after goes with `answer_from_solution: true`")
        if self.count and self.per_difficulty:
            raise ValueError("count and per_difficulty exclude each other")
        for name, (low, high) in self.keep.items():
            if not low <= high:
                raise ValueError(f"keep.{name}: the range is empty, {low:g} > {high:g}")
        return self

    @property
    def origin(self) -> str:
        """Where the problems are from, for people and the column `source`."""
        if self.hub:
            return f"{self.hub.path}@{self.hub.revision}:{self.hub.split}"
        return str(self.file) if self.file else "toy"


@dataclass
class Tally:
    """What each rule kept and dropped, in the order applied."""

    rules: list[tuple[str, int, int]] = field(default_factory=list)

    def add(self, rule: str, kept: int, dropped: int) -> None:
        self.rules.append((rule, kept, dropped))

    def filter(self, rule: str, rows: Sequence[T], test: Callable[[T], bool]) -> list[T]:
        """The rows that pass `test`; counts the others under `rule`."""
        kept = [row for row in rows if test(row)]
        self.add(rule, len(kept), len(rows) - len(kept))
        return kept

    def table(self) -> pl.DataFrame:
        schema = {"rule": pl.String, "kept": pl.Int64, "dropped": pl.Int64}
        return pl.DataFrame(self.rules, schema=schema, orient="row")

    def __str__(self) -> str:
        width = max([len(rule) for rule, _, _ in self.rules], default=0)
        lines = [f"{rule:<{width}} {dropped:>9} {kept:>9}" for rule, kept, dropped in self.rules]
        return "\n".join([f"{'rule':<{width}} {'dropped':>9} {'kept':>9}", *lines])


@dataclass
class Row:
    """A problem on its way; `line` is where the source has it (1-based line of a text file, else row)."""

    line: int
    index: int
    id: str | None = None
    problem: str = ""
    answer: str = ""
    solution: str | None = None
    difficulty: float | None = None
    source: str | None = None


# ---- values ----------------------------------------------------------------------------------------------------------


def text(value: Any) -> str | None:
    """A value as text without surrounding white space; None if there is nothing; raises ValueError if it is no text.

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
    if any("\ud800" <= character <= "\udfff" for character in found):
        raise ValueError("holds half a character (a lone UTF-16 surrogate)")
    return found or None


def number(value: Any) -> float | None:
    """A value as a number, of text the first number in it (`Level 3`, `1983-I-1`); None if there is nothing."""
    found = text(value)
    if found is None:
        return None
    try:
        result = float(found)
    except ValueError:
        match = re.search(r"\d+(?:\.\d+)?", found)
        if not match:
            raise ValueError(f"has no number in it: {found[:60]!r}") from None
        return float(match.group())
    if not math.isfinite(result):
        raise ValueError(f"is {found}")
    return result


def last_boxed(solution: str) -> str | None:
    r"""What the last balanced, non-empty `\boxed{...}` of a solution holds; of nested ones, the inner."""
    for match in reversed(list(re.finditer(r"\\boxed\s*\{", solution))):
        depth, at = 1, match.end()
        while at < len(solution) and depth:
            if solution[at] == "\\":
                at += 1  # an escaped brace is text
            elif solution[at] in "{}":
                depth += 1 if solution[at] == "{" else -1
            at += 1
        content = solution[match.end() : at - 1].strip()
        if not depth and content:
            return content
    return None


# ---- sources ---------------------------------------------------------------------------------------------------------


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
            if header is None:
                header = record
                if content.startswith("{"):
                    raise ValueError(f"{path}, line 1: not a CSV header but JSON; name the file .jsonl")
                if len(set(header)) < len(header):
                    raise ValueError(f"{path}, line 1: a column occurs twice in {', '.join(header)}")
            elif record:
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
    """The same, one after the other where the format allows it."""
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
    """The dataset as `datasets` has it; whatever is wrong with it ends as ValueError."""
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


def source_columns(settings: ProblemSet, found: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
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


def read_source(settings: ProblemSet) -> tuple[list[tuple[int, dict[str, Any]]], dict[str, str], dict[str, str]]:
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


# ---- rules -----------------------------------------------------------------------------------------------------------

PROOF_PROBLEM = re.compile(r"\bprove\b|\bshow(?:\s*:|\s+that\b)|\bdemonstrate\s+that\b", re.IGNORECASE)
PROOF_ANSWER = re.compile(
    r"\b(?:dis)?pro(?:of|ofs|ved|ven)\b|\bq\.?\s?e\.?\s?d\b|\bsee (?:the )?(?:above|solution|explanation)\b"
    r"|^\s*\\(?:blacksquare|square)\s*$",
    re.IGNORECASE,
)
OPTION = "A", "B", "C"
OPTION_STYLES = (
    r"(?<![A-Za-z0-9_}}])\(\s*{0}\s*[).:]",  # (A)
    r"(?<![A-Za-z0-9_\\]){0}\s*[:：](?=\s)",  # A: 1, B: 2
    r"(?:^|\n|\s\s|[;|?:)])[\s*$-]*{0}\s*[:.)：．、]",  # A: at the start of a line, or set off by space or a mark
)
OPTION_PATTERNS = [re.compile(".*?".join(style.format(x) for x in OPTION), re.DOTALL) for style in OPTION_STYLES]
OPTION_ANSWER = re.compile(r"\W*(?:(?:the |final |correct |answer |is )*)\W*([A-E])\W*", re.IGNORECASE)


def without_markup(latex: str) -> str:
    r"""Text with LaTeX's fonts and spacing taken away: `\textbf{(A)}\ 5 \qquad` becomes `(A) 5`."""
    plain = re.sub(r"\\q?quad\b|\\\\|\\(?:newline|par|hfill|item)\b", "\n", latex)
    plain = re.sub(r"\\(?:text(?:bf|rm|it|sf|tt|normal)?|math(?:rm|bf|it|sf)|bf|rm|boxed)\b\s*", " ", plain)
    return re.sub(r"\\[ ,;:!~]|[{}~]", " ", plain)


def asks_proof(problem: str, answer: str) -> bool:
    """Whether a problem asks, be it in one of its parts, to prove or show something, or its answer says so."""
    return bool(PROOF_PROBLEM.search(problem) or PROOF_ANSWER.search(without_markup(answer)))


def offers_choice(problem: str, answer: str) -> bool:
    """Whether a problem lists options A, B, C, or its answer is the letter of one (A to E)."""
    letter = OPTION_ANSWER.fullmatch(without_markup(answer))
    if letter and letter.group(1).isupper():
        return True
    plain = without_markup(problem)
    return any(pattern.search(plain) for pattern in OPTION_PATTERNS)


def squeezed(problem: str) -> str:
    """A problem's text without white space: equal for exact duplicates."""
    return "".join(problem.split())


def plain_math(problem: str) -> str:
    """A problem's text in lower case, its LaTeX spelled one way, drawings and layout taken away."""
    plain = re.sub(r"\[asy\].*?\[/asy\]", " ", unicodedata.normalize("NFKC", problem), flags=re.DOTALL | re.IGNORECASE)
    plain = re.sub(r"\\[dt]frac\b", r"\\frac", plain)
    plain = re.sub(r"\\(?:left|right|displaystyle|limits|[bB]igg?[lr]?)(?![a-zA-Z])", " ", plain)
    plain = re.sub(r"\\(?:not\s*=|neq?(?![a-zA-Z]))", " != ", plain)
    plain = re.sub(r"\\([lg])(?:eqslant|eq|e)(?![a-zA-Z])", r" \\\1e ", plain)
    return re.sub(r"\\[()\[\]]|\$", " ", without_markup(plain)).lower()


class Sets:
    """Problems that another set must not share.

    A problem is shared if its text is equal up to case, white space, punctuation and LaTeX layout, or if it has at
    least 40% of the 10-token shingles of the shorter of the two in common with one of them (tokens are words, numbers
    and operators). A single common shingle, even of 13 tokens, would not do: it drops 217 of the 975 AIME problems of
    1983-2023 against five benchmarks, for phrases such as "where m and n are relatively prime positive integers".
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.equal: set[str] = set()
        self.own: list[Shingles] = []  # of each problem
        self.owners: dict[str, list[int]] = {}
        for owner, problem in enumerate(problems):
            self.equal.add(self.key(problem))
            self.own.append(self.shingles(problem))
            for shingle in self.own[-1]:
                self.owners.setdefault(shingle, []).append(owner)
        self.owners_rarely: dict[str, list[int]] = {}  # the same, of each problem's rare shingles
        for owner, shingles in enumerate(self.own):
            for shingle in self.rare(shingles):
                self.owners_rarely.setdefault(shingle, []).append(owner)

    @staticmethod
    def key(problem: str) -> str:
        return re.sub(r"\s+|[.,;:?!'\"]+(?!\d)", "", plain_math(problem))

    @staticmethod
    def shingles(problem: str) -> Shingles:
        tokens = re.findall(r"[^\W\d_]+|\d+|[-+*/=^<>!]", plain_math(problem))
        return {" ".join(tokens[at : at + SHINGLE]) for at in range(len(tokens) - SHINGLE + 1)}

    def has(self, problem: str) -> bool:
        """Whether the text is equal to one of the problems."""
        return self.key(problem) in self.equal

    def overlaps(self, problem: str) -> bool:
        """Whether the text has enough shingles in common with one of the problems.

        Two problems with enough in common share one of the rare shingles of the shorter. Others are not compared, lest
        a phrase that many problems have make everything be compared with everything.
        """
        mine = self.shingles(problem)
        alike = {owner for shingle in mine for owner in self.owners_rarely.get(shingle, ())}
        alike.update(owner for shingle in self.rare(mine) for owner in self.owners.get(shingle, ()))
        return any(self.enough(mine, self.own[owner]) for owner in alike)

    @staticmethod
    def enough(mine: Shingles, theirs: Shingles) -> bool:
        common = len(mine & theirs)
        return common > 0 and common >= OVERLAP * min(len(mine), len(theirs))

    def rare(self, shingles: Shingles) -> list[str]:
        """So many of a problem's shingles, the rarest, that the others are too few to be enough."""
        too_few = max(math.ceil(OVERLAP * len(shingles)), 1) - 1
        return sorted(shingles, key=lambda shingle: len(self.owners.get(shingle, ())))[: len(shingles) - too_few]


def rank(problem: str, seed: int) -> bytes:
    """A problem's place in the sample's order: of its text and the seed alone."""
    return hashlib.blake2b(f"{seed}\0{squeezed(problem)}".encode(), digest_size=16).digest()


def sample(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """The `count` rows (or all) that come first in the seed's order, in their own order."""
    chosen = {id(row) for row in sorted(rows, key=lambda row: rank(row.problem, seed))[:count]}
    return [row for row in rows if id(row) in chosen]


# ---- sets ------------------------------------------------------------------------------------------------------------


def answer_in(solution: str, mark: str | None) -> str | None:
    """The answer that a solution ends in: its last box, or what follows the last `mark`; None without one."""
    if mark is None:
        return last_boxed(solution)
    _, found, answer = solution.rpartition(mark)
    return answer.strip() or None if found else None


def parse(settings: ProblemSet, tally: Tally) -> list[Row]:
    """Read a hub dataset or a file, apply `keep`, and make rows of it; raises ValueError naming row and field."""
    raw, fields, keep = read_source(settings)
    noun = "line" if settings.file and settings.file.suffix.lower() != ".parquet" else "row"
    tally.add("read", len(raw), 0)

    def value(convert: Callable[[Any], Any], at: int, record: Mapping[str, Any], column: str, name: str) -> Any:
        try:
            return convert(record.get(column))
        except ValueError as error:
            raise ValueError(f"{settings.origin}, {noun} {at}: {name} (column {column!r}) {error}") from error

    indexed = list(enumerate(raw))
    for key, (low, high) in settings.keep.items():

        def inside(
            item: tuple[int, tuple[int, dict[str, Any]]], key: str = key, low: float = low, high: float = high
        ) -> bool:
            at, record = item[1]
            found = value(number, at, record, keep[key], f"keep.{key}")
            return found is not None and low <= found <= high

        indexed = tally.filter(f"keep {key} {low:g} to {high:g}", indexed, inside)

    rows, empty, unanswered = [], 0, 0
    for index, (at, record) in indexed:
        row = Row(line=at, index=index)
        for name, column in fields.items():
            found = value(number if name == "difficulty" else text, at, record, column, name)
            setattr(row, name, found or "" if name in ("problem", "answer") else found)
        if settings.answer_from_solution:
            found = answer_in(row.solution or "", settings.answer_after)
            if found is None:
                unanswered += 1
                continue
            row.answer = found
        if not (row.problem and row.answer):
            if "empty" not in settings.drop:
                name = "answer" if row.problem else "problem"
                known = f"column {fields[name]!r}" if name in fields else "from the solution"
                raise ValueError(
                    f"{settings.origin}, {noun} {at}: {name} ({known}) is empty or missing; mend it, or drop such rows "
                    "with `drop: [empty]`"
                )
            empty += 1
            continue
        if row.id is None and "id" in fields:
            raise ValueError(f"{settings.origin}, {noun} {at}: id (column {fields['id']!r}) is empty or missing")
        rows.append(row)
    if settings.answer_from_solution:
        what = f"nothing after {settings.answer_after}" if settings.answer_after else "no boxed answer"
        tally.add(what, len(rows) + empty, unanswered)
    if "empty" in settings.drop:
        tally.add("drop empty", len(rows), empty)
    return rows


def distinct(rows: Sequence[Row], settings: ProblemSet, name: str, tally: Tally) -> list[Row]:
    """The first of each problem; raises ValueError if two that differ have one id."""
    seen: set[str] = set()

    def new(row: Row) -> bool:
        key = squeezed(row.problem)
        return not (key in seen or seen.add(key))  # type: ignore[func-returns-value]

    rows = tally.filter("duplicate problem", rows, new)
    lines: dict[str, int] = {}
    for row in rows:
        row.id = row.id or f"{name}-{row.index}"
        if row.id in lines:
            raise ValueError(
                f"{settings.origin}, rows {lines[row.id]} and {row.line}: two different problems have the id {row.id!r}"
            )
        lines[row.id] = row.line
    return rows


def toy_key(problem: str) -> tuple[int, ...]:
    """Equal for toy problems that are the same: those with the same numbers, in whatever order, and target."""
    *numbers, target = [int(x) for x in re.findall(r"\d+", problem)] or [0]
    return (*sorted(numbers), target)


def draw_toy(toy: Toy, others: Iterable[str], tally: Tally) -> list[Row]:
    """Distinct toy problems."""
    foreign, mine = {toy_key(problem) for problem in others}, set[tuple[int, ...]]()
    rng = random.Random(toy.seed)
    rows: list[Row] = []
    again = taken = 0
    for index in range(toy.count):
        difficulty = toy.difficulties[index % len(toy.difficulties)]
        for _ in range(TOY_REDRAWS):
            drawn = draw_problem(rng, difficulty)
            found = toy_key(drawn.text)
            if found in foreign:
                taken += 1
            elif found in mine:
                again += 1
            else:
                break
        else:
            raise ValueError(
                f"the toy world has no further problem of {difficulty} numbers after {index} of {toy.count}; ask for "
                "fewer, or for other difficulties"
            )
        mine.add(found)
        rows.append(
            Row(index, index, f"toy-{toy.seed}-{index}", drawn.text, str(drawn.answer), None, difficulty, "toy")
        )
    drawn_count = len(rows) + taken + again
    tally.add("drawn", drawn_count, 0)
    tally.add("drawn before", drawn_count - again, again)
    tally.add("in disjoint sets", len(rows), taken)
    return rows


def build(name: str, settings: ProblemSet, others: Iterable[str] = ()) -> tuple[pl.DataFrame, Tally]:
    """The table of a problem set (architecture.md: `problems/{d}.parquet`), and what each rule dropped.

    `others` are the texts of the problems that the set must not share.
    """
    tally = Tally()
    if settings.toy:
        rows = draw_toy(settings.toy, others, tally)
    else:
        rows = parse(settings, tally)
        if settings.difficulties is not None:
            wanted = set(settings.difficulties)
            rows = tally.filter("difficulties", rows, lambda row: row.difficulty in wanted)
        if "proof" in settings.drop:
            rows = tally.filter("drop proof", rows, lambda row: not asks_proof(row.problem, row.answer))
        if "multiple_choice" in settings.drop:
            rows = tally.filter("drop multiple_choice", rows, lambda row: not offers_choice(row.problem, row.answer))
        rows = distinct(rows, settings, name, tally)
        others = list(others)
        if others:
            sets = Sets(others)
            rows = tally.filter("equal text in disjoint sets", rows, lambda row: not sets.has(row.problem))
            rows = tally.filter("shingle overlap with disjoint sets", rows, lambda row: not sets.overlaps(row.problem))
        rows = take(rows, settings, tally)
    if not rows:
        raise ValueError(f"{settings.origin}: 0 problems are left for set {name}\n{tally}")
    table = {
        "id": [row.id for row in rows],
        "problem": [row.problem for row in rows],
        "answer": [row.answer for row in rows],
        "solution": [row.solution for row in rows],
        "difficulty": [row.difficulty for row in rows],
        "source": [row.source or settings.origin for row in rows],
        "split": [settings.split] * len(rows),
    }
    return pl.DataFrame(table, schema=PROBLEMS.columns), tally


def take(rows: list[Row], settings: ProblemSet, tally: Tally) -> list[Row]:
    """The sample that the set asks for; raises ValueError if there are too few problems."""
    if settings.count is None and settings.per_difficulty is None:
        return rows
    if settings.count is not None:
        groups, wanted = {"": rows}, settings.count
    else:
        assert settings.per_difficulty is not None
        levels = settings.difficulties or sorted({row.difficulty for row in rows if row.difficulty is not None})
        wanted = settings.per_difficulty
        of_level: dict[float | None, list[Row]] = {level: [] for level in levels}
        for row in rows:
            of_level.get(row.difficulty, []).append(row)
        groups = {f" of difficulty {level:g}": of_level[level] for level in levels}
    for label, group in groups.items():
        if len(group) < wanted:
            raise ValueError(
                f"{settings.origin}: {wanted} problems{label} are asked for, {len(group)} are left\n{tally}"
            )
    chosen = {id(row) for group in groups.values() for row in sample(group, wanted, settings.seed)}
    return tally.filter("not sampled", rows, lambda row: id(row) in chosen)


class Problems(Stage):
    """Make a problem set."""

    name: str = Field(min_length=1, description="Name of the set; ids that are made begin with it.")
    set: ProblemSet = Field(description="Where the problems are from and which to keep, as JSON.")
    disjoint: list[Path] = Field(
        default_factory=list, description="Problem sets (Parquet) of `disjoint_from`, each named <set>.parquet."
    )
    out: Path = Field(description="The problem set (Parquet).")

    def cli_cmd(self) -> None:
        given = {path.stem: path for path in self.disjoint}
        if sorted(given) != sorted({*self.set.disjoint_from}):
            raise ValueError(
                f"set {self.name} is to be disjoint from {', '.join(self.set.disjoint_from) or 'nothing'}, "
                f"but --disjoint gives {', '.join(given) or 'nothing'}"
            )
        others = [text for path in given.values() for text in PROBLEMS.read(path, ["problem"])["problem"].to_list()]
        table, tally = build(self.name, self.set, others)
        PROBLEMS.write(table, self.out)
        print(f"{tally}\n{self.name}: {len(table)} problems in {self.out}")


if __name__ == "__main__":
    run(Problems)
