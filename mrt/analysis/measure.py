"""Measures of one model on one dataset: pure functions of tables and settings. See Interfaces in docs/architecture.md.

A measure is a function in `mrt/analysis/measures/*.py`, or in a file of a user's (`my_measure.py:words`).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from pydantic import validate_call

from mrt.core.artifacts import Artifact
from mrt.core.plugins import Function, Kind, is_in_user_file, located
from mrt.core.settings import suggestion
from mrt.core.storage import read_table

# Tables of other stages, which figures read and a configuration lists like measures.
OTHERS = ("progress", "traces", "constructions", "sft_log", "rl_log", "cost")
FURTHER = ("direct", "reading", "trees")  # those that no setting lists


class Read(NamedTuple):
    """A table that a measure reads: an artifact, or another measure by its name, and the columns of it."""

    of: Artifact | str
    columns: Sequence[str]


@dataclass(frozen=True)
class Measure(Function):
    """A pure function of tables and settings, the tables that it reads, and the columns that it gives."""

    columns: Sequence[str]
    keys: Sequence[str]  # the columns that identify a row
    reads: Mapping[str, Read]  # by parameter

    @property
    def settings(self) -> list[str]:
        """The parameters that are no tables: settings of the configuration (`mrt.config.measuring.SETTINGS`)."""
        return [name for name in signature(self.function).parameters if name not in self.reads]

    @property
    def needed(self) -> dict[str, Read]:
        """The tables without which there is nothing to measure: those whose parameter has no default."""
        parameters = signature(self.function).parameters
        return {name: read for name, read in self.reads.items() if parameters[name].default is Parameter.empty}

    def measured(self, files: Mapping[str, Path], options: Mapping[str, Any]) -> pl.DataFrame:
        """The measure of these tables (Parquet) with these settings.

        Raises ValueError for a table that is missing or unknown, for settings of the wrong kind, and for a result with
        other columns. Any error in a user's file becomes a ValueError with file and line.
        """
        if wrong := {*self.needed} - {*files} or {*files} - {*self.reads}:
            raise ValueError(
                f"{self.name} reads {', '.join(self.reads)}; missing or unknown: {', '.join(sorted(wrong))}"
            )
        tables = {}
        for name, path in files.items():
            of, columns = self.reads[name]  # texts, which are most of a table, mostly stay on disk
            tables[name] = of.read(path, columns) if isinstance(of, Artifact) else read_table(path, columns)
        function = validate_call(config={"arbitrary_types_allowed": True})(self.function)
        with located(self.function):
            result = function(**tables, **options)
        given = result.columns if isinstance(result, pl.DataFrame) else [f"of a {type(result).__name__}"]
        if sorted(given) != sorted(self.columns):
            raise ValueError(f"{self.name} gives the columns {', '.join(given)}; it declares {', '.join(self.columns)}")
        return result


MEASURES = Kind("measure", "analysis/measures", (Measure,))


def measure(
    columns: Sequence[str], keys: Sequence[str], **reads: Read
) -> Callable[[Callable[..., pl.DataFrame]], Measure]:
    """Decorate a function of tables and settings.

    Args:
        columns: those of the table that it gives.
        keys: the columns that identify a row.
        reads: for each parameter that is a table, its artifact, or the name of another measure, and the columns that it
            gets. A table that not all models have has a default (`mrt.config.measuring.OPTIONAL`).

    Raises ValueError if a table is no parameter, not of a model on a dataset, or lacks a column.
    """

    def decorated(function: Callable[..., pl.DataFrame]) -> Measure:
        name = function.__name__
        for parameter, (of, wanted) in reads.items():
            if parameter not in signature(function).parameters:
                raise ValueError(f"{name} has no parameter {parameter}, the name of a table that it reads")
            if isinstance(of, Artifact):
                if "{d}" not in of.path:
                    raise ValueError(f"{name}: {of.path} is no table of a model on a dataset")
                refuse_lacking(name, of.path, wanted, [*of.columns, *of.optional])
        refuse_lacking(name, "its own table", keys, columns)
        return Measure(function, columns, keys, reads)

    return decorated


def refuse_lacking(name: str, table: str, wanted: Iterable[str], columns: Sequence[str]) -> None:
    """Raise ValueError if a table has not all columns that a measure wants."""
    if lacking := [column for column in wanted if column not in columns]:
        raise ValueError(f"{name}: {table} has no column {lacking[0]}, but {', '.join(columns)}")


def path_of(table: Artifact | str) -> str:
    """The path of a table that a measure reads, as artifacts have it."""
    return table.path if isinstance(table, Artifact) else f"metrics/{{m}}/{{d}}.{table}.parquet"


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
            if added.name in (*known, *OTHERS, *FURTHER):
                raise ValueError(f"{reference}: there is a measure {added.name} already; give yours another name")
            known[added.name] = added
        elif reference not in (*known, *OTHERS):
            near = suggestion(reference, [*known, *OTHERS])
            raise ValueError(f"there is no measure {reference!r}{near} (or FILE.py:NAME, of a file of yours)")
    others = {name: {r.of: r for r in each.reads.values() if isinstance(r.of, str)} for name, each in known.items()}
    for name, reads in others.items():
        for of, read in reads.items():
            if of not in known:
                raise ValueError(f"{name} reads the measure {of}, and there is none; there are {', '.join(known)}")
            refuse_lacking(name, f"the measure {of}", read.columns, known[of].columns)
    try:
        TopologicalSorter(others).prepare()
    except CycleError as error:
        raise ValueError(f"measures that read each other: {', '.join(error.args[1])}") from error
    return known


def listed() -> list[str]:
    """All that a configuration may list: the measures of this package, and tables of other stages."""
    return [*measures(), *OTHERS]


def needs(known: Mapping[str, Measure], name: str, *kinds: str) -> bool:
    """Whether a measure needs a kind of table (`prover`, ...) or its grades, by itself or by measures that it reads."""
    if name not in known:
        return name in kinds  # of `progress`, which a configuration lists too
    tables = [read.of for read in known[name].needed.values()]
    return any(
        needs(known, of, *kinds) if isinstance(of, str) else bool({*re.split("[/.]", of.path)} & {*kinds})
        for of in tables
    )


def needing(references: Sequence[str], *kinds: str) -> list[str]:
    """The measures that need one of these kinds of tables."""
    known = measures(references)
    return [reference for reference in references if needs(known, name_of(reference), *kinds)]
