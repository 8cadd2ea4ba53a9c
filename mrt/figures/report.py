"""The report: one page with all figures and tables, and their captions beneath.

It opens on what says whether a method is better, by how much and at what cost (`opens` in `FIGURE`); then come all
figures and tables by section. The page is one file of HTML without scripts that needs neither server nor network, for a
light and a dark screen. `snakemake` makes it of a finished experiment: `results/NAME/index.html`.
"""

from base64 import b64encode
from collections.abc import Iterable
from html import escape
from itertools import groupby
from pathlib import Path

from pydantic import BaseModel, Field

from mrt.core.cli import Stage, run
from mrt.core.storage import write_text
from mrt.figures.tables import body_of

QUESTION = "Is it better, by how much, at what cost?"
STYLE = Path(__file__).with_suffix(".css")
SCALE = 0.55  # pixels on screen for one of a figure, of 200 an inch: equal text in figures of any width
PAGE = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; style-src'
    " 'unsafe-inline'\">\n<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    "{body}\n</body>\n</html>\n"
)


class Shown(BaseModel):
    """A figure or table on the page."""

    section: str
    caption: str = Field(description="As HTML.")
    opens: bool = Field(description="Whether the page opens with it.")
    file: Path = Field(description="The figure as PNG, or the table as HTML.")

    def markup(self, links: str) -> str:
        """The figure with its caption beneath, and `links` to its files."""
        name = self.file.stem
        if is_table := self.file.suffix == ".html":
            shown = body_of(self.file.read_text(encoding="utf-8"))
        else:
            data = self.file.read_bytes()
            width = round(SCALE * int.from_bytes(data[16:20]))  # the first field of a PNG's header
            shown = f'<img alt="{escape(name)}" width="{width}" src="data:image/png;base64,{b64encode(data).decode()}">'
        kind = ' class="table"' if is_table else ""
        return f"<figure{kind}>\n{shown}\n<figcaption>{self.caption}{links}</figcaption>\n</figure>"


class Report(Stage):
    """Make the report."""

    title: str = Field(description="The experiment.")
    shown: list[Shown] = Field(
        description="Figures and tables, by section: [{section, caption, opens, file}], as JSON."
    )
    pages: dict[str, str] = Field({}, description="Other pages to link to, by name, relative to this one; JSON.")
    out: Path = Field(description="The page (HTML), in the results folder.")
    excerpt: Path | None = Field(None, description="The first part of the page alone, for Snakemake's report.")

    def cli_cmd(self) -> None:
        first = [shown for shown in self.shown if shown.opens]
        parts = [self.navigation(), self.section(QUESTION, first)]
        for name, of in groupby(self.shown, lambda shown: shown.section):
            parts.append(self.section(name, [shown for shown in of if not shown.opens]))
        bodies = {self.out: "\n".join(parts)}
        if self.excerpt:
            bodies[self.excerpt] = self.section(QUESTION, first, linked=False)
        for path, body in bodies.items():
            style = STYLE.read_text(encoding="utf-8")
            write_text(PAGE.format(title=escape(self.title), style=style, body=body), path)
            print(f"{path}: {body.count('<figure')} figures and tables, {path.stat().st_size / 1e6:.1f} MB")

    def navigation(self) -> str:
        """Links to the other pages and to the sections."""
        names = dict.fromkeys(shown.section for shown in self.shown if not shown.opens)
        links = [*self.pages.items(), *((name, f"#{anchor(name)}") for name in names)]
        return "<nav>" + " · ".join(f'<a href="{escape(to)}">{escape(name)}</a>' for name, to in links) + "</nav>"

    def section(self, name: str, shown: Iterable[Shown], *, linked: bool = True) -> str:
        """A heading with its figures, perhaps with links to their files; nothing without figures."""
        figures = [each.markup(self.links(each) if linked else "") for each in shown]
        heading = f'<h2 id="{anchor(name)}">{escape(name)}</h2>'
        return "\n".join([heading, "<section>", *figures, "</section>"]) if figures else ""

    def links(self, shown: Shown) -> str:
        """Links to the files of a figure or table."""
        stem = shown.file.relative_to(self.out.parent).with_suffix("")
        vector = "svg" if shown.file.with_suffix(".svg").is_file() else "pdf"
        suffixes = ("csv", "md", "tex") if shown.file.suffix == ".html" else ("csv", vector)
        return '<p class="links">' + " · ".join(f'<a href="{stem}.{s}">{stem.name}.{s}</a>' for s in suffixes) + "</p>"


def anchor(name: str) -> str:
    """The name of a section in addresses."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


if __name__ == "__main__":
    run(Report)
