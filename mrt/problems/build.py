"""Datasets: from the Hugging Face hub, a local file or the toy world, normalised to one table.

    python -m mrt.problems.build --name toy_test --disjoint toy_train.parquet --out toy_test.parquet \\
        --set '{"toy": {"count": 200, "seed": 2}, "split": "test", "disjoint_from": ["toy_train"]}'

The gold answer is the source's text without surrounding white space; grading decides whether an answer equals it. Rules
that drop problems are applied in the order of `build`, and the numbers that each dropped are printed. Two invariants
hold: a sample
depends on its seed and the problems' texts, not on the order of rows; and a larger sample contains every smaller one.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from pydantic import Field

from mrt.core.artifacts import PROBLEMS
from mrt.core.cli import Stage, run
from mrt.grading.answers import boxed
from mrt.grading.task import Choice, Task, reference, task_of
from mrt.problems.decontamination import COMPARED, Sets, contents, squeezed, toy_key
from mrt.problems.filters import (
    MAYBE_NO_ANSWER,
    asks_proof,
    has_no_answer,
    is_kind,
    offers_choice,
    squeezed_word,
)
from mrt.problems.settings import Dataset, Toy
from mrt.problems.sources import number, read_source, statement, text
from mrt.toy.seen import code, seen
from mrt.toy.world import draw_problem

T = TypeVar("T")
TOY_REDRAWS = 2000  # after this many draws in a row without a new problem, the toy world is exhausted


@dataclass
class Tally:
    """Numbers of problems that each rule kept and dropped, in the order applied; notes on doubtful values."""

    rules: list[tuple[str, int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

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
        return "\n".join([f"{'rule':<{width}} {'dropped':>9} {'kept':>9}", *lines, *self.notes])


@dataclass
class Row:
    """A problem in processing; `line` is its place in the source (1-based line of a text file, else row)."""

    line: int
    index: int
    id: str | None = None
    problem: str = ""
    answer: str = ""
    solution: str | None = None
    difficulty: float | None = None
    source: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)  # as the source has it
    extra: str | None = None  # JSON of the columns that the task reads
    described: str | None = None  # by its task, if that poses it otherwise than the source

    @property
    def content(self) -> str:
        """The text by which problems are compared (`Task.content`)."""
        return self.problem if self.described is None else self.described

    def for_task(self) -> dict[str, Any]:
        """The problem as its task gets it."""
        return {"id": self.id, "problem": self.problem, "answer": self.answer, **json.loads(self.extra or "{}")}


def rank(problem: str, seed: int) -> bytes:
    """A problem's sort key for sampling; depends on its text and the seed alone."""
    return hashlib.blake2b(f"{seed}\0{squeezed(problem)}".encode(), digest_size=16).digest()


def sample(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """The `count` rows (or all) that come first by `rank`, in their original order."""
    chosen = {id(row) for row in sorted(rows, key=lambda row: rank(row.content, seed))[:count]}
    return [row for row in rows if id(row) in chosen]


def answer_in(solution: str, mark: str | None) -> str | None:
    """The final answer of a solution: its last box, or the line after the last `mark`; None without one."""
    if mark is None:
        return boxed(solution)
    _, marker, answer = solution.rpartition(mark)
    lines = answer.strip() if r"\begin" in answer else answer.strip().partition("\n")[0].rstrip()
    return lines or None if marker else None


def extra_of(record: Mapping[str, Any], columns: Sequence[str]) -> str:
    """JSON of further columns; raises ValueError, which names the column, for a value that is missing or no JSON."""
    for name in columns:
        if record.get(name) is None:
            raise ValueError(f"column {name!r}, which the task reads, is empty or missing")
        try:
            json.dumps(record[name], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"column {name!r}, which the task reads, cannot stand in JSON ({error})") from error
    return json.dumps({name: record[name] for name in columns}, sort_keys=True)


def place(settings: Dataset, at: int) -> str:
    """A row of the source, as messages name it: `line 3` of a text file, else `row 3`."""
    is_text = settings.file and settings.file.suffix.lower() != ".parquet"
    return f"{'line' if is_text else 'row'} {at}"


def value(
    settings: Dataset, convert: Callable[[Any], Any], at: int, record: Mapping[str, Any], column: str, name: str
) -> Any:
    """A converted cell; raises ValueError, which names row, field and column, if it cannot be converted."""
    try:
        return convert(record.get(column))
    except ValueError as error:
        raise ValueError(f"{settings.origin}, {place(settings, at)}: {name} (column {column!r}) {error}") from error


def read_row(settings: Dataset, fields: Mapping[str, str], index: int, at: int, record: Mapping[str, Any]) -> Row:
    """A row with the fields of the source; raises ValueError if one cannot be read, or an answer is a solution."""
    # Words for a difficulty are taken for none, unless the settings require numbers.
    needed = bool(settings.columns.difficulty or settings.difficulties or settings.per_difficulty)
    readers: dict[str, Callable[[Any], Any]]
    readers = {"difficulty": partial(number, needed=needed), "problem": statement}
    row = Row(line=at, index=index, raw=record)
    for name, column in fields.items():
        parsed = value(settings, readers.get(name, text), at, record, column, name)
        setattr(row, name, parsed or "" if name in ("problem", "answer") else parsed)
    if not settings.answer_from_solution and "####" in row.answer:
        raise ValueError(
            f"{settings.origin}, {place(settings, at)}: answer (column {fields['answer']!r}) is a solution with #### "
            f'before the answer; set `answer_from_solution: true`, `answer_after: "####"` and `columns: {{solution:'
            f" {fields['answer']}}}`"
        )
    return row


def is_empty(settings: Dataset, fields: Mapping[str, str], row: Row) -> bool:
    """Whether a row lacks its problem or answer; raises ValueError if it does, and such rows are not dropped."""
    absent = has_no_answer(row.problem, row.answer, row.raw, settings.no_answer)
    proof = asks_proof("", row.answer)
    if row.problem and row.answer and (not absent or (proof and "proof" in settings.drop)):
        return False
    if "empty" not in settings.drop:
        name = "problem" if not row.problem else "answer"
        known = f"column {fields[name]!r}" if name in fields else "from the solution"
        what, rule = "is empty or missing; mend it", "proof" if proof else "empty"
        if row.problem and row.answer:
            what = f"is {row.answer!r}, which stands for none; if it is one, set `no_answer: []`"
        raise ValueError(
            f"{settings.origin}, {place(settings, row.line)}: {name} ({known}) {what}, or drop such rows"
            f" with `drop: [{rule}]`"
        )
    return True


def parse(settings: Dataset, tally: Tally, extra: Sequence[str] = ()) -> list[Row]:
    """Read a hub dataset or a file, apply `keep`, and make rows of it; raises ValueError naming row and field."""
    raw, fields, keep = read_source(settings, extra)
    tally.add("read", len(raw), 0)
    indexed = list(enumerate(raw))
    for key, (low, high) in settings.keep.items():

        def inside(
            item: tuple[int, tuple[int, dict[str, Any]]], key: str = key, low: float = low, high: float = high
        ) -> bool:
            level = value(settings, partial(number, needed=False), *item[1], keep[key], f"keep.{key}")
            return level is not None and low <= level <= high

        indexed = tally.filter(f"keep {key} {low:g} to {high:g}", indexed, inside)

    rows, empty, unanswered = list[Row](), 0, 0
    for index, (at, record) in indexed:
        row = read_row(settings, fields, index, at, record)
        if settings.answer_from_solution:
            answer = answer_in(row.solution or "", settings.answer_after)
            if answer is None:
                unanswered += 1
                continue
            row.answer = answer
        if is_empty(settings, fields, row):
            empty += 1
            continue
        if row.id is None and "id" in fields:
            raise ValueError(
                f"{settings.origin}, {place(settings, at)}: id (column {fields['id']!r}) is empty or missing"
            )
        if extra:
            try:
                row.extra = extra_of(record, extra)
            except ValueError as error:
                raise ValueError(f"{settings.origin}, {place(settings, at)}: {error}") from error
        rows.append(row)
    if settings.answer_from_solution:
        what = f"nothing after {settings.answer_after}" if settings.answer_after else "no boxed answer"
        tally.add(what, len(rows) + empty, unanswered)
    if "empty" in settings.drop:
        tally.add("drop empty", len(rows), empty)
    doubtful = [row for row in rows if settings.no_answer is None and squeezed_word(row.answer) in MAYBE_NO_ANSWER]
    if doubtful:
        first = f"{place(settings, doubtful[0].line)}: {doubtful[0].answer!r}"
        tally.notes.append(
            f"{len(doubtful)} answers may stand for none ({first}) and count as answers; `no_answer` changes that"
        )
    return rows


def distinct(rows: Sequence[Row], settings: Dataset, name: str, tally: Tally) -> list[Row]:
    """The first row of each distinct problem; raises ValueError if two different problems share an id.

    Duplicates whose answer is written otherwise are counted apart: one of the two may be wrong.
    """
    seen: dict[str, Row] = {}
    pairs = [(row, seen.setdefault(squeezed(row.content), row)) for row in rows]  # and the first row of its problem

    def is_first(pair: tuple[Row, Row]) -> bool:
        return pair[0] is pair[1]

    def contradicts(pair: tuple[Row, Row]) -> bool:
        return squeezed(pair[0].answer) != squeezed(pair[1].answer)

    pairs = tally.filter("duplicate problem", pairs, lambda pair: is_first(pair) or contradicts(pair))
    rows = [row for row, _ in tally.filter("duplicate problem, other answer", pairs, is_first)]
    lines: dict[str, int] = {}
    for row in rows:
        row.id = row.id or f"{name}-{row.index}"
        if row.id in lines:
            raise ValueError(
                f"{settings.origin}, rows {lines[row.id]} and {row.line}: two different problems have the id {row.id!r}"
            )
        lines[row.id] = row.line
    return rows


def draw_toy(toy: Toy, others: Iterable[str], tally: Tally) -> list[Row]:
    """Distinct toy problems."""
    foreign, mine = {toy_key(problem) for problem in others}, set[tuple[int, ...]]()
    rng = random.Random(toy.seed)
    rows: list[Row] = []
    again = taken = trained_on = 0
    for index in range(toy.count):
        difficulty = toy.difficulties[index % len(toy.difficulties)]
        for _ in range(TOY_REDRAWS):
            toy_problem = draw_problem(rng, difficulty)
            key = toy_key(toy_problem.text)
            if toy.unseen and code(toy_problem.numbers, toy_problem.target) in seen():
                trained_on += 1
            elif key in foreign:
                taken += 1
            elif key in mine:
                again += 1
            else:
                break
        else:
            which = " that no toy base was trained on" if toy.unseen else ""
            raise ValueError(
                f"the toy world has no further problem of {difficulty} numbers{which} after {index} of {toy.count}; ask"
                " for fewer, or for other difficulties"
            )
        mine.add(key)
        rows.append(
            Row(
                index,
                index,
                f"toy-{toy.seed}-{index}",
                toy_problem.text,
                str(toy_problem.answer),
                None,
                difficulty,
                "toy",
            )
        )
    unseen_count = len(rows) + taken + again
    tally.add("drawn", unseen_count + trained_on, 0)
    if toy.unseen:
        tally.add("a toy base was trained on it", unseen_count, trained_on)
    tally.add("drawn before", unseen_count - again, again)
    tally.add("in disjoint sets", len(rows), taken)
    return rows


def build(
    name: str, settings: Dataset, others: Iterable[str] = (), extra: Sequence[str] = (), task: Task | None = None
) -> tuple[pl.DataFrame, Tally]:
    """The table of a dataset (docs/artifacts.md: `problems/{d}.parquet`), and a tally of the dropped problems.

    `others` are the texts of the problems that must not occur in the set, `extra` the further columns of the source
    that its task reads. `task` is given if it changes how a problem is posed.

    Raises ValueError if the source lacks such a column, if a row has no value there, or if the task cannot pose it.
    """
    tally = Tally()
    if settings.toy:
        if extra:
            raise ValueError(f"its task reads {', '.join(extra)}, which problems of the toy world do not have")
        rows = draw_toy(settings.toy, others, tally)
    else:
        rows = parse(settings, tally, extra)
        if settings.difficulties is not None:
            wanted = set(settings.difficulties)
            rows = tally.filter("difficulties", rows, lambda row: row.difficulty in wanted)
        if "proof" in settings.drop:
            rows = tally.filter(
                "drop proof", rows, lambda row: not (is_kind(row.raw, "proof") or asks_proof(row.problem, row.answer))
            )
        if "multiple_choice" in settings.drop:
            rows = tally.filter(
                "drop multiple_choice",
                rows,
                lambda row: not (is_kind(row.raw, "MCQ") or offers_choice(row.problem, row.answer)),
            )
        if task:
            for row in rows:
                with suppress(ValueError):  # a row that is taken is an error when the task poses it
                    row.described = task.content(row.for_task())
        rows = distinct(rows, settings, name, tally)
        others = list(others)
        if others:
            sets = Sets(others)
            rows = tally.filter("equal text in disjoint sets", rows, lambda row: not sets.has(row.content))
            rows = tally.filter("shingle overlap with disjoint sets", rows, lambda row: not sets.overlaps(row.content))
        rows = take(rows, settings, tally)
        if task:
            for row in rows:
                pose(row, task, settings)
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
    further = {"extra": pl.Series([row.extra for row in rows], dtype=pl.String)} if extra or task else {}
    return pl.DataFrame(table, schema=PROBLEMS.columns).with_columns(**further), tally


def pose(row: Row, task: Task, settings: Dataset) -> None:
    """Have the task pose a problem; raises ValueError, which names the row, if it cannot."""
    try:
        posed = {**task.posed(row.for_task()), COMPARED: row.content}
    except ValueError as error:
        raise ValueError(f"{settings.origin}, {place(settings, row.line)}: {error}") from error
    row.problem, row.answer = posed.pop("problem"), posed.pop("answer")
    row.extra = json.dumps({name: value for name, value in posed.items() if name != "id"}, sort_keys=True)


def take(rows: list[Row], settings: Dataset, tally: Tally) -> list[Row]:
    """The sample that the settings request; raises ValueError if there are too few problems."""
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
    """Make a dataset."""

    name: str = Field(min_length=1, description="Name of the set; generated ids begin with it.")
    set: Dataset = Field(description="Source and filters of the problems, as JSON.")
    disjoint: list[Path] = Field(
        default_factory=list, description="Datasets (Parquet) of `disjoint_from`, each named <set>.parquet."
    )
    extra: list[str] = Field([], description="Further columns of the source, which the task reads.")
    task: Choice | None = Field(None, description="The task, if it changes the text of a problem.")
    out: Path = Field(description="The dataset (Parquet).")

    def plugins(self) -> tuple[str, ...]:
        return (reference(self.task),) if self.task else ()

    def cli_cmd(self) -> None:
        given = {path.stem: path for path in self.disjoint}
        if sorted(given) != sorted({*self.set.disjoint_from}):
            raise ValueError(
                f"set {self.name} is to be disjoint from {', '.join(self.set.disjoint_from) or 'nothing'}, "
                f"but --disjoint gives {', '.join(given) or 'nothing'}"
            )
        others = [text for path in given.values() for text in contents(path)["content"]]
        table, tally = build(self.name, self.set, others, self.extra, task_of(self.task) if self.task else None)
        PROBLEMS.write(table, self.out)
        print(f"{tally}\n{self.name}: {len(table)} problems in {self.out}")
        if self.set.toy and self.set.split != "train":
            known = sum(code(numbers, target) in seen() for *numbers, target in map(toy_key, table["problem"]))
            print(
                f"{known} of them are among those that a shipped toy base was trained on; `unseen: true` draws others"
            )


if __name__ == "__main__":
    run(Problems)
