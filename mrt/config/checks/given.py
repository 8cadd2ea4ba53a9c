"""The configuration as it was given, and what checks of it share."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError

from mrt.config.sections import Evaluation, Model, Training
from mrt.core.settings import suggestion
from mrt.grading.task import poses, task_of
from mrt.problems.build import build
from mrt.problems.settings import Dataset
from mrt.problems.sources import READ_AT_ONCE

Mistakes = Iterator[tuple[str, str]]
Parsed = TypeVar("Parsed", bound=BaseModel)


def parsed(kind: type[Parsed], raw: Any) -> Parsed | None:
    """The settings group, or None if it is invalid by itself."""
    try:
        return kind.model_validate(raw)
    except ValidationError:
        return None


def section_of(raw: dict[str, Any], name: str) -> dict[str, Any]:
    """A section of a configuration, by names as text; empty if it is none."""
    section = raw.get(name)
    return {str(key): value for key, value in section.items()} if isinstance(section, dict) else {}


@dataclass
class Given:
    """A configuration as it was given, its groups parsed one by one; groups invalid by themselves are absent."""

    raw: dict[str, Any]
    problems: dict[str, Dataset]
    models: dict[str, Model]
    evaluation: Evaluation | None
    training: Training | None

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Self:
        def each(kind: type[Parsed], name: str) -> dict[str, Parsed]:
            groups = {key: parsed(kind, group) for key, group in section_of(raw, name).items()}
            return {key: group for key, group in groups.items() if group is not None}

        evaluation = parsed(Evaluation, section_of(raw, "evaluation"))
        training = parsed(Training, section_of(raw, "training"))
        return cls(raw, each(Dataset, "problems"), each(Model, "models"), evaluation, training)

    def section(self, name: str) -> dict[str, Any]:
        """A section as it was given, by names as text; empty if it is none."""
        return section_of(self.raw, name)

    @property
    def evaluated(self) -> list[str]:
        """The evaluation sets."""
        return self.evaluation.problems if self.evaluation else []

    @cached_property
    def built(self) -> dict[str, dict[str, str] | Exception]:
        """The problems in local files by id, by dataset, or the error of a file; without large files."""
        built: dict[str, dict[str, str] | Exception] = {}
        for name, dataset in self.problems.items():
            if dataset.file and dataset.file.is_file() and dataset.file.stat().st_size <= READ_AT_ONCE:
                task = None
                with suppress(ValueError):  # `datasets.sources` reports an invalid task
                    task = task_of(dataset.task) if dataset.task else None
                try:
                    extra = task.columns if task else ()
                    table, _ = build(name, dataset, extra=extra, task=task if task and poses(dataset.task) else None)
                    built[name] = dict(table.select("id", "problem").iter_rows())
                except (ValueError, OSError) as error:
                    built[name] = error
        return built

    def problems_of(self, name: str) -> dict[str, str] | None:
        """A dataset's problems by id; None where they are not known yet."""
        problems = self.built.get(name)
        return problems if isinstance(problems, dict) else None


def unknown(path: str, name: str, known: Collection[str], of: str = "", defined: Collection[str] = ()) -> Mistakes:
    """The mistake of an unknown name, with a suggestion; of one that is `defined`, with the list `of` that lacks it."""
    if name not in known:
        where = f" in {of}, which has {', '.join(known)}" if name in defined else suggestion(name, known)
        yield path, f"there is no {name!r}{where}"


def file_mistakes(path: str, file: Path, check: Callable[[], object]) -> Mistakes:
    """Mistakes of an input file; it is read unless it is larger than `READ_AT_ONCE`."""
    if not file.is_file():
        yield path, f"there is no file {file}" + ("" if file.is_absolute() else f" in {Path.cwd()}")
    elif file.stat().st_size <= READ_AT_ONCE:
        try:
            check()
        except (ValueError, OSError) as error:
            yield path, str(error)


def in_a_circle(start: str, following: Callable[[str], Sequence[str]]) -> bool:
    """Whether following the links from a name leads back to it."""
    seen, waiting = set[str](), list(following(start))
    while waiting:
        name = waiting.pop()
        if name == start:
            return True
        if name not in seen:
            seen.add(name)
            waiting += following(name)
    return False
