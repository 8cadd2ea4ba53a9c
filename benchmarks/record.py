"""Shared by the benchmarks: the record of measurements, goals, and reports.

A benchmark is a module with

    TITLE                           its heading on the page
    measure(record, quick)          measure and `record.add(...)`; `quick` is for tests: the smallest sizes, one repeat
    report(table) -> Report         text and goals, from the record's table alone

The contenders of one comparison run in turn, several times, in one process or in fresh ones, so that the machine's
noise affects all alike; medians and ratios are reported. A record has the columns **case** str, **size** f64 (what is
varied, else 0), **quantity** str (with its unit, as in `seconds`), value f64, and one row per repeat.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

ROOT = Path(__file__).parents[1]
TOY_BASE = ROOT / "mrt" / "toy" / "weights"
TRACES = ROOT.parent / "shared" / "data" / "traces"  # real reasoning traces; benchmarks also run without them
ANSWERS = 20  # forced answers at a prefix
SCHEMA = {"case": pl.String, "size": pl.Float64, "quantity": pl.String, "value": pl.Float64}


class Record:
    """Measurements, one row each."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, str, float]] = []

    def add(self, case: str, quantity: str, value: float, size: float = 0) -> None:
        self.rows.append((case, float(size), quantity, float(value)))
        print(f"  {case}{f' at {size:g}' if size else ''}: {value:,.4g} {quantity}", flush=True)

    def table(self) -> pl.DataFrame:
        return pl.DataFrame(self.rows, schema=SCHEMA, orient="row")


@dataclass(frozen=True)
class Goal:
    """A goal: `value` at least `bound`, or `at_most`; `why` explains a missed one."""

    what: str
    value: float
    bound: float
    at_most: bool = False
    why: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def row(self) -> tuple[str, ...]:
        bound = f"{'at most' if self.at_most else 'at least'} {self.bound:g}"
        by = abs(self.value - self.bound) / abs(self.bound)
        missed = f"missed by {f'{by:.0%}' if by >= 0.01 else 'less than 1%'}. {self.why}".strip()
        return self.what, bound, figures(self.value), "met" if self.met else missed


@dataclass
class Report:
    """A part of the page: paragraphs and tables in Markdown, and goals."""

    text: list[str] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)


def middle(table: pl.DataFrame, case: str, quantity: str, size: float | None = None) -> float:
    """The median of the repeats. Raises KeyError if there are none."""
    found = table.filter(pl.col("case") == case, pl.col("quantity") == quantity)
    found = found if size is None else found.filter(pl.col("size") == size)
    if not found.height:
        raise KeyError(f"nothing recorded of {case!r}, {quantity!r}")
    return median(found["value"].to_list())


def has(table: pl.DataFrame, case: str, quantity: str | None = None) -> bool:
    """Whether a case, or a quantity of it, was measured."""
    found = table.filter(pl.col("case") == case)
    return bool(found.height if quantity is None else found.filter(pl.col("quantity") == quantity).height)


def figures(value: float) -> str:
    """A number with three significant figures."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(figures(c) if isinstance(c, float) else str(c) for c in r) + " |" for r in lines)


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Seconds of a call, and its result."""
    since = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - since, result
