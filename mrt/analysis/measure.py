"""Measures of one model on one dataset: pure functions of tables and settings. See Interfaces in docs/architecture.md.

A measure is a function in `mrt/analysis/measures/*.py`, or in a file of a user's (`my_measure.py:words`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from pydantic import validate_call

from mrt.core.artifacts import Artifact
from mrt.core.plugins import Kind, is_in_user_file, located
from mrt.core.settings import suggestion
from mrt.core.storage import read_table

# Tables of other stages, which figures read and a configuration lists like measures.
OTHERS = ("progress", "traces", "constructions", "sft_log", "rl_log", "cost")
MU = ("prover", "progress")  # folders of what the meta-prover says


class Read(NamedTuple):
    """A table that a measure reads: an artifact, or another measure by its name, and the columns of it."""

    of: Artifact | str
    columns: Sequence[str]


@dataclass(frozen=True)
class Measure:
    """A pure function of tables and settings, the tables that it reads, and the one that it gives."""

    function: Callable[..., pl.DataFrame]
    reads: Mapping[str, Read]  # by parameter
    writes: Artifact

    def __call__(self, *tables: pl.DataFrame | None, **settings: Any) -> pl.DataFrame:
        return self.function(*tables, **settings)

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    @property
    def parts(self) -> tuple[Any, ...]:
        """The definitions that decide its values."""
        return (self.function,)

    @property
    def settings(self) -> list[str]:
        """The parameters that are no tables: settings of the configuration (`mrt.config.measuring.SETTINGS`)."""
        return [name for name in signature(self.function).parameters if name not in self.reads]

    @property
    def needed(self) -> list[str]:
        """The tables without which there is nothing to measure: those whose parameter has no default."""
        parameters = signature(self.function).parameters
        return [name for name in self.reads if parameters[name].default is Parameter.empty]

    def measured(self, files: Mapping[str, Path], options: Mapping[str, Any]) -> pl.DataFrame:
        """The measure of these tables (Parquet) with these settings.

        Raises ValueError for a table that is missing or unknown, for settings of the wrong kind, and with file and line
        for any error in a user's file.
        """
        if wrong := {*self.needed} - {*files} or {*files} - {*self.reads}:
            raise ValueError(f"{self.name} reads the tables {', '.join(self.reads)}; see to {', '.join(sorted(wrong))}")
        tables = {}
        for name, path in files.items():
            of, columns = self.reads[name]  # texts, which are most of a table, mostly stay on disk
            table = of if isinstance(of, Artifact) else getattr(MEASURES.all().get(of), "writes", None)
            tables[name] = table.read(path, columns) if table else read_table(path, columns)
        function = validate_call(config={"arbitrary_types_allowed": True})(self.function)
        with located(self.function):
            result = function(**tables, **options)
        if not isinstance(result, pl.DataFrame):
            raise ValueError(f"{self.name} gives a {type(result).__name__}; it has to be a polars DataFrame")
        return result


MEASURES = Kind("measure", "analysis/measures", (Measure,))


def measure(
    columns: Mapping[str, Any], keys: Sequence[str], notes: Mapping[str, str] | None = None, **reads: Read
) -> Callable[[Callable[..., pl.DataFrame]], Measure]:
    """Decorate a function of tables and settings.

    Args:
        columns: those of the table that it gives, with their types.
        keys: the columns that tell rows apart.
        notes: explanations of columns, for docs/artifacts.md.
        reads: for each parameter that is a table, its artifact, or the name of another measure, and the columns that it
            gets. A table that not all models have has a default (`mrt.config.measuring.OPTIONAL`).

    Raises ValueError if a table is no parameter, not of a model on a dataset, or lacks a column.
    """

    def decorated(function: Callable[..., pl.DataFrame]) -> Measure:
        for parameter, (of, wanted) in reads.items():
            if parameter not in signature(function).parameters:
                raise ValueError(f"{function.__name__} has no parameter {parameter}, the name of a table that it reads")
            if isinstance(of, Artifact):
                refuse_lacking(function.__name__, of, wanted)
        if lacking := [key for key in keys if key not in columns]:
            raise ValueError(f"{function.__name__}: the key {lacking[0]} is none of the columns {', '.join(columns)}")
        path = f"metrics/{{m}}/{{d}}.{function.__name__}.parquet"
        about = " ".join(cleandoc(function.__doc__ or "").partition("\n\n")[0].split()).removesuffix(".")
        return Measure(function, reads, Artifact(columns, keys, path, about, notes or {}))

    return decorated


def refuse_lacking(name: str, table: Artifact, columns: Iterable[str]) -> None:
    """Raise ValueError if a measure cannot read these columns of a table."""
    if "{d}" not in table.path:
        raise ValueError(f"{name}: {table.path} is no table of a model on a dataset")
    if unknown := [column for column in columns if column not in {**table.columns, **table.optional}]:
        raise ValueError(f"{name}: {table.path} has no column {unknown[0]}, but {', '.join(table.columns)}")


def name_of(reference: str) -> str:
    """The name of a measure's table: `words` of `my_measure.py:words`."""
    return reference.rpartition(":")[2]


def measures(references: Iterable[str] = ()) -> dict[str, Measure]:
    """The measures of this package by name, and those of a user's files that are referred to.

    Raises ValueError, with file and line of a user's file, if there is no such measure, if its name is taken, or if it
    reads what there is not.
    """
    known: dict[str, Measure] = MEASURES.all()
    for reference in dict.fromkeys(references):
        if is_in_user_file(reference):
            added: Measure = MEASURES.find(reference)
            if added.name != name_of(reference):
                raise ValueError(f"{reference}: this function has the name {added.name}; refer to it by that")
            if added.name in (*known, *OTHERS, "direct", "reading", "trees"):
                raise ValueError(f"{reference}: there is a measure {added.name} already; give yours another name")
            known[added.name] = added
        elif reference not in (*known, *OTHERS):
            near = suggestion(reference, [*known, *OTHERS])
            raise ValueError(f"there is no measure {reference!r}{near} (or FILE.py:NAME, of a file of yours)")
    for name, each in known.items():
        for of, columns in each.reads.values():
            if isinstance(of, str):
                if of not in known:
                    raise ValueError(f"{name} reads the measure {of}, and there is none; there are {', '.join(known)}")
                refuse_lacking(name, known[of].writes, columns)
    return known


def listed() -> list[str]:
    """All that a configuration may list: the measures of this package, and tables of other stages."""
    return [*measures(), *OTHERS]


def those(references: Iterable[str], hold: Callable[[Measure], bool]) -> list[str]:
    """The measures of which something holds, or of one whose table they need."""
    references = list(references)
    known = measures(references)

    def holds(name: str) -> bool:
        of = [known[name].reads[table].of for table in known[name].needed]
        return hold(known[name]) or any(holds(source) for source in of if isinstance(source, str))

    return [reference for reference in references if name_of(reference) in known and holds(name_of(reference))]


def needing(references: Iterable[str], *folders: str) -> list[str]:
    """The measures, and tables of other stages, that need an artifact in one of these folders of the results."""
    references = list(references)

    def reads(measure: Measure) -> bool:
        tables = [measure.reads[name].of for name in measure.needed]
        return any(isinstance(of, Artifact) and of.path.split("/")[0] in folders for of in tables)

    names = {*those(references, reads), *folders}
    return [reference for reference in references if reference in names]
