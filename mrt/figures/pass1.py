"""pass@1 of every model on every problem set (Table 1): Markdown, LaTeX, HTML and Parquet.

    python -m mrt.figures.pass1 --tables '{"base": {"toy_test": "accuracy.parquet"}}' \
        --models '{"base": {"label": "Base"}}' --out pass1

Rows are models, columns problem sets, by difficulty where a set has few, and the mean length; each cell is a
mean with its 95 % interval (bootstrap over problems), the best of a column in bold.
"""

from html import escape
from pathlib import Path

import polars as pl

from mrt.cli import run
from mrt.figures.common import FigureStage, ModelStyle, gather, with_intervals
from mrt.storage import write_table, write_text

MOST_DIFFICULTIES = 10
NOTE = "pass@1 in percent, 95 % interval over problems; the best of a column in bold."


def summary(data: pl.DataFrame) -> pl.DataFrame:
    """Accuracy and length with intervals by problem set and model, over all problems and by difficulty."""
    columns = ["accuracy", "tokens", "characters"]
    parts = [with_intervals(data, ["problem_set", "model"], columns).with_columns(pl.lit("all").alias("difficulty"))]
    graded = data.filter(pl.col("difficulty").is_not_null())
    if 1 < graded["difficulty"].n_unique() <= MOST_DIFFICULTIES:
        levels = with_intervals(graded, ["problem_set", "model", "difficulty"], columns)
        parts.append(levels.with_columns(pl.col("difficulty").map_elements(lambda d: f"{d:g}", pl.String)))
    return pl.concat(parts, how="diagonal")


def layout(
    table: pl.DataFrame, models: dict[str, ModelStyle]
) -> tuple[list[str], list[list[str]], set[tuple[int, int]]]:
    """Header, cells and the (row, column) of bold cells."""
    groups = table.select("problem_set", "difficulty").unique(maintain_order=True).sort("problem_set", "difficulty")
    header, cells = ["model"], [[style.label] for style in models.values()]
    bold: set[tuple[int, int]] = set()
    known = table.group_by("problem_set", maintain_order=True).agg(pl.col("tokens").count() > 0)
    columns = [(s, d, "accuracy") for s, d in groups.iter_rows()] + [
        (s, "all", "tokens" if counted else "characters")  # imported completions come without token counts
        for s, counted in known.iter_rows()
    ]
    for problem_set, difficulty, column in columns:
        here = table.filter((pl.col("problem_set") == problem_set) & (pl.col("difficulty") == difficulty))
        values = {row["model"]: row for row in here.iter_rows(named=True)}
        if all(values.get(m, {}).get(column) is None for m in models):
            continue
        n = max(row["n"] for row in values.values())
        name = problem_set if difficulty == "all" else f"{problem_set}, {difficulty}"
        header.append(f"{name} (n = {n})" if column == "accuracy" else f"{name} {column}")
        best = max((row[column] for row in values.values() if row[column] is not None), default=None)
        for index, model in enumerate(models):
            row = values.get(model)
            if row is None or row[column] is None:
                cells[index].append("")
            elif column != "accuracy":
                cells[index].append(f"{row[column]:,.0f}")
            else:
                low, high = 100 * row["accuracy_low"], 100 * row["accuracy_high"]
                cells[index].append(f"{100 * row['accuracy']:.1f} [{low:.1f}, {high:.1f}]")
                if row[column] == best:
                    bold.add((index, len(header) - 1))
    return header, cells, bold


def markdown(header: list[str], cells: list[list[str]], bold: set[tuple[int, int]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for i, row in enumerate(cells):
        lines.append("| " + " | ".join(f"**{c}**" if (i, j) in bold else c for j, c in enumerate(row)) + " |")
    return "\n".join([*lines, "", NOTE]) + "\n"


def latex(header: list[str], cells: list[list[str]], bold: set[tuple[int, int]]) -> str:
    def quoted(text: str) -> str:
        return text.replace("_", "\\_").replace("%", "\\%")

    lines = [
        "\\begin{tabular}{l" + "r" * (len(header) - 1) + "}",
        "\\toprule",
        " & ".join(map(quoted, header)) + " \\\\",
        "\\midrule",
    ]
    for i, row in enumerate(cells):
        shown = [f"\\textbf{{{quoted(c)}}}" if (i, j) in bold else quoted(c) for j, c in enumerate(row)]
        lines.append(" & ".join(shown) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def page(header: list[str], cells: list[list[str]], bold: set[tuple[int, int]]) -> str:
    """The table as a web page of its own, for the report."""

    def row(tag: str, values: list[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{value}</{tag}>" for value in values) + "</tr>"

    rows = [
        row("td", [f"<b>{escape(c)}</b>" if (i, j) in bold else escape(c) for j, c in enumerate(line)])
        for i, line in enumerate(cells)
    ]
    style = "body {font: 14px sans-serif} td, th {padding: 4px 10px; text-align: right} th {border-bottom: 1px solid}"
    return (
        f'<!doctype html><meta charset="utf-8"><title>pass@1</title><style>{style}</style><table>'
        + "\n".join([row("th", list(map(escape, header))), *rows])
        + f"</table><p>{NOTE}</p>\n"
    )


class Pass1(FigureStage):
    """Write the pass@1 table."""

    def cli_cmd(self) -> None:
        table = summary(gather(self.tables))
        parts = layout(table, self.models)
        write_text(markdown(*parts), self.sibling("md"))
        write_text(latex(*parts), self.sibling("tex"))
        write_text(page(*parts), self.sibling("html"))
        write_table(table, self.sibling("parquet"))

    def sibling(self, suffix: str) -> Path:
        return self.out.with_name(f"{self.out.name}.{suffix}")


if __name__ == "__main__":
    run(Pass1)
