"""Tables as people read them: Markdown, LaTeX, and a page of HTML for the report."""

from collections.abc import Collection, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from mrt.core.storage import write_text


class Layout(NamedTuple):
    """A table as text: header, rows of cells, the (row, column) of bold cells, and the note below it."""

    title: str
    header: Sequence[str]
    cells: Sequence[Sequence[str]]
    bold: Collection[tuple[int, int]]
    note: str


def markdown(table: Layout) -> str:
    lines = ["| " + " | ".join(table.header) + " |", "|" + "---|" * len(table.header)]
    for i, row in enumerate(table.cells):
        # else the star of a clear difference would end bold type, and a bar in a label the cell
        shown = [cell.replace("*", r"\*").replace("|", r"\|") for cell in row]
        lines.append("| " + " | ".join(f"**{c}**" if (i, j) in table.bold else c for j, c in enumerate(shown)) + " |")
    return "\n".join([*lines, "", table.note]) + "\n"


LATEX = str.maketrans(
    {
        **{plain: f"\\{plain}" for plain in "_%&#${}"},
        **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"},
        **{"≥": r"$\geq$", "≤": r"$\leq$", "†": r"\dag{}"},
    }
)


def latex(table: Layout) -> str:
    def quoted(text: str) -> str:
        return text.translate(LATEX)

    lines = [
        "\\begin{tabular}{l" + "r" * (len(table.header) - 1) + "}",
        "\\toprule",
        " & ".join(map(quoted, table.header)) + " \\\\",
        "\\midrule",
    ]
    for i, row in enumerate(table.cells):
        shown = [f"\\textbf{{{quoted(c)}}}" if (i, j) in table.bold else quoted(c) for j, c in enumerate(row)]
        lines.append(" & ".join(shown) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def page(table: Layout) -> str:
    """The table as a separate web page: the report shows it in a frame."""

    def row(tag: str, values: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{value}</{tag}>" for value in values) + "</tr>"

    rows = [
        row("td", [f"<b>{escape(c)}</b>" if (i, j) in table.bold else escape(c) for j, c in enumerate(line)])
        for i, line in enumerate(table.cells)
    ]
    style = (
        "body {font: 13px sans-serif} td, th {padding: 4px 8px; text-align: right; vertical-align: top}"
        " th {border-bottom: 1px solid} td:first-child, th:first-child {text-align: left}"
    )
    return (
        f'<!doctype html><meta charset="utf-8"><title>{escape(table.title)}</title><style>{style}</style><table>'
        + "\n".join([row("th", list(map(escape, table.header))), *rows])
        + f"</table><p>{escape(table.note)}</p>\n"
    )


def body_of(page: str) -> str:
    """The table and its note, of such a page."""
    return page.partition("</style>")[2].strip()


def write_layout(table: Layout, out: Path) -> None:
    """Write `<out>.md`, `<out>.tex` and `<out>.html`."""
    for suffix, write in (("md", markdown), ("tex", latex), ("html", page)):
        write_text(write(table), out.with_name(f"{out.name}.{suffix}"))
