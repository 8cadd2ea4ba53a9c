"""The interface of a task, which defines right answers. One file has all of it, in `mrt/tasks/` or a user's.

    class Near(Task):
        columns = ("tolerance",)

        def answer(self, part, problem): ...
        def right(self, answers, problems): ...

Other modules call `answers_in`, `scores` and `clusters`. These keep the laws of None, which is never right and equals
nothing, and refuse invalid results of a task.
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
from pydantic import PrivateAttr, ValidationError

from mrt.core.artifacts import PROBLEMS
from mrt.core.plugins import Kind
from mrt.core.settings import Settings
from mrt.core.storage import columns_of

Row = Mapping[str, Any]  # a problem: the columns of its table, and those of the source that its task reads
Choice = str | dict[str, Any]  # a task by its name, or its name and settings
DEFAULT = "math"


class Task(Settings):
    """Defines right answers. The fields of a task are its settings; answers and problems come in pairs, in order."""

    columns: ClassVar[Sequence[str]] = ()  # of the source, beside those of every problem set: all rows need them
    _workers: int | None = PrivateAttr(1)  # processes that judge; None: as many as available CPUs

    def posed(self, problem: Row) -> Row:
        """A problem as models get it, with its gold answer, and all that the task reads; made with the dataset."""
        return problem

    def content(self, problem: Row) -> str:
        """The text of a problem as its source has it, by which sets are compared: two problems differ if it does."""
        return str(problem["problem"])

    def answer(self, part: str, problem: Row) -> str | None:
        """The answer that an answer part gives; None without one. A task has this method or `answers`."""
        raise NotImplementedError(f"{type(self).__name__} has neither `answer` nor `answers`")

    def answers(self, parts: Sequence[str], problems: Sequence[Row]) -> Sequence[str | None]:
        """`answer` of many parts."""
        return [self.answer(part, problem) for part, problem in zip(parts, problems, strict=True)]

    def right(self, answers: Sequence[str], problems: Sequence[Row]) -> Sequence[float]:
        """The score of each answer: 1 if it is right, 0 if it is wrong, between them for partial credit."""
        raise NotImplementedError(f"{type(self).__name__} has no `right`")

    def same(self, pairs: Sequence[tuple[str, str]], problems: Sequence[Row]) -> Sequence[bool]:
        """Whether the two answers of each pair, to one problem, are the same."""
        return [one == other for one, other in pairs]

    def value(self, answer: str) -> Hashable:
        """A key that only answers that are the same share, to compare fewer; different fractions are not the same."""
        return answer

    def golds(self, problem: Row) -> Sequence[str]:
        """The texts of the gold answer, as written in a box; none: the task has no J by likelihood."""
        return []

    def unmet(self) -> str:
        """Why this machine cannot judge answers, and the remedy; empty if it can."""
        return ""

    def note(self) -> str:
        """A remark for the log about the answers judged so far."""
        return ""


TASKS = Kind("task", "tasks", (Task,))


def canonical(choice: Choice | None) -> Choice | None:
    """The one form of a choice: None for the default, a name without settings, or name and settings.

    Raises ValueError for a choice without a name, or one that is no task.
    """
    if isinstance(choice, dict):
        name, settings = choice.get("name"), {key: value for key, value in choice.items() if key != "name"}
        if not isinstance(name, str):
            raise ValueError("a task with settings has a name too: {name: math, ...}")
        TASKS.starts(name)
        return {"name": name, **settings} if settings else canonical(name)
    if choice is not None:
        TASKS.starts(choice)
    return None if choice == DEFAULT else choice


def name_of(choice: Choice | None) -> str:
    """The name of a chosen task."""
    return str(choice["name"]) if isinstance(choice, dict) else choice or DEFAULT


def reference(choice: Choice | None) -> str:
    """The definition of a chosen task, for fingerprints."""
    return TASKS.starts(name_of(choice))[0]


def task_of(choice: Choice | None = None, workers: int | None = 1) -> Task:
    """The chosen task with its settings; `workers` processes judge, None: as many as available CPUs.

    Raises ValueError if its file cannot be imported, which names file and line, or if its settings are wrong.
    """
    kind, settings = TASKS.find(name_of(choice)), dict(choice) if isinstance(choice, dict) else {}
    settings.pop("name", None)
    try:
        task: Task = kind(**settings)
    except ValidationError as error:
        raise ValueError(
            f"{name_of(choice)} has the settings {', '.join(kind.model_fields) or 'none'}; "
            + "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r})" for e in error.errors())
        ) from error
    if isinstance(task.columns, str):
        raise ValueError(f"{name_of(choice)}: columns is the text {task.columns!r}; write ({task.columns!r},)")
    task._workers = workers
    return task


def has_golds(choice: Choice | None) -> bool:
    """Whether a chosen task has texts of gold answers, so that J may be read off."""
    return TASKS.find(name_of(choice)).golds is not Task.golds


def poses(choice: Choice | None) -> bool:
    """Whether a chosen task changes how a problem is posed, so that it decides the dataset too."""
    return TASKS.find(name_of(choice)).posed is not Task.posed


def problem_rows(path: Path) -> dict[str, Row]:
    """The problems of a dataset (Parquet) by their ids, each with all its columns.

    Raises ValueError if a problem occurs twice or has no answer.
    """
    known = {*columns_of(path)} & {*PROBLEMS.columns, *PROBLEMS.optional}
    table = PROBLEMS.read(path, list(dict.fromkeys(["id", "answer", *sorted(known)])))
    for wrong, fault in (
        (table.filter(pl.col("id").is_duplicated()), "occurs twice"),
        (table.filter(pl.col("answer").is_null()), "has no answer"),
    ):
        if len(wrong):
            raise ValueError(f"{path}: problem {wrong['id'][0]!r} {fault}")
    return {row["id"]: row | json.loads(row.pop("extra", None) or "{}") for row in table.iter_rows(named=True)}


def golds_of(task: Task, problem: Row) -> list[str]:
    """The different texts of a problem's gold answer; raises ValueError if there are none."""
    if golds := list(dict.fromkeys(task.golds(problem))):
        return golds
    raise ValueError(
        f"problem {problem['id']!r}: {named(task)} has no text of its gold answer, so J cannot be read off"
    )


def answers_in(task: Task, parts: Sequence[str | None], problems: Sequence[Row]) -> list[str | None]:
    """The answer that each answer part gives; None without one, as where a thought never closes (part None)."""
    places = [i for i, part in enumerate(parts) if part is not None]
    answers = task.answers([parts[i] or "" for i in places], [problems[i] for i in places])
    return spread(task, "answer", answers, places, len(parts), None)


def scores(task: Task, answers: Sequence[str | None], problems: Sequence[Row]) -> list[float]:
    """The score of each answer, 0 to 1; 0 for None.

    Raises ValueError, which names task, answer and problem, for a score outside of 0 to 1.
    """
    places = [i for i, answer in enumerate(answers) if answer is not None]
    judged = task.right([answers[i] or "" for i in places], [problems[i] for i in places])
    values: list[float] = spread(task, "right", judged, places, len(answers), 0.0)
    for i, value in enumerate(values):
        if not (isinstance(value, int | float) and isfinite(value) and 0 <= value <= 1):
            where = f"of answer {answers[i]!r} to problem {problems[i].get('id')!r}"
            raise ValueError(f"{named(task)}: `right` gives {value!r} {where}; a score is 0 to 1")
    return list(map(float, values))


def clusters(task: Task, groups: Sequence[Sequence[str | None]], problems: Sequence[Row]) -> list[list[int]]:
    """The cluster of each answer of each group, of one problem: 0, 1, ... in order of first appearance; -1 for None."""

    def same(pairs: Sequence[tuple[str, str]], places: Sequence[int]) -> list[bool]:
        verdicts = task.same(pairs, [problems[g] for g in places])
        return list(map(bool, spread(task, "same", verdicts, range(len(pairs)), len(pairs), False)))

    return clustered(groups, same, task.value)


def spread(task: Task, method: str, values: Sequence[Any], places: Sequence[int], size: int, other: Any) -> list[Any]:
    """The results of a task's method for some places, in a list of all places; raises ValueError for another number."""
    if len(values) != len(places):
        raise ValueError(f"{named(task)}: `{method}` gives {len(values)} values for {len(places)} questions")
    of_all = [other] * size
    for place, value in zip(places, values, strict=True):
        of_all[place] = value
    return of_all


def named(task: Task) -> str:
    """A task, for messages."""
    return f"the task {type(task).__name__}"


def clustered(
    groups: Sequence[Sequence[str | None]],
    same: Callable[[Sequence[tuple[str, str]], Sequence[int]], Sequence[bool]],
    value: Callable[[str], Hashable],
) -> list[list[int]]:
    """`clusters`, where `same` compares pairs, given the group of each, and `value` is `Task.value`.

    An answer is in a cluster if it equals the cluster's first answer. In each round, the first answer of a group that
    is in no cluster yet represents a new one. The others left are compared with it, in all groups at once.
    """
    labels = [[-1] * len(group) for group in groups]
    left: list[dict[Hashable, list[int]]] = [{} for _ in groups]  # by value, the places in no cluster yet
    for places_of, group in zip(left, groups, strict=True):
        for i, answer in enumerate(group):
            if answer is not None:
                places_of.setdefault(value(answer), []).append(i)
    number = 0
    while any(left):
        rivals: list[tuple[int, Hashable]] = []
        for g, places_of in enumerate(left):
            if all(isinstance(key, Fraction) for key in places_of):  # numbers of different values: none are equal
                for k, places in enumerate(places_of.values()):
                    label(labels[g], places, number + k)
                places_of.clear()
            else:
                first, *others = places_of
                label(labels[g], places_of[first], number)
                rivals += [(g, key) for key in others if not isinstance(first, Fraction) or type(key) is str]
        pairs = [
            (groups[g][left[g][key][0]] or "", groups[g][next(iter(left[g].values()))[0]] or "") for g, key in rivals
        ]
        for (g, key), equal in zip(rivals, same(pairs, [g for g, _ in rivals]), strict=True):
            if equal:
                label(labels[g], left[g].pop(key), number)
        for places_of in left:
            places_of.pop(next(iter(places_of), None), None)
        number += 1
    return labels


def label(labels: list[int], places: list[int], number: int) -> None:
    """Put the answers at these places into a cluster."""
    for place in places:
        labels[place] = number
