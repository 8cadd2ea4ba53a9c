"""Tables in Markdown, for the terminal and for cards."""

from collections.abc import Iterable, Sequence
from typing import Any


def table_of(header: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    head = [*header]
    lines = [head, ["---"] * len(head), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
