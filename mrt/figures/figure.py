"""The description of a figure or table, and a list of all: see Interfaces in docs/architecture.md."""

import re
from collections.abc import Iterable
from inspect import cleandoc
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from mrt.core.plugins import load, modules_in
from mrt.core.scope import STAGE, module_of, statements_of

# Sections of the report.
RESULT, REGRET, CASE, TRAINING = (
    "1 Accuracy and token efficiency (Section 8.2, 8.3)",
    "2 Regret (Section 8.5.1, Appendices E, F)",
    "3 Episodes and progress (Sections 5, 6)",
    "4 Training (Section 8.5.2, Appendix A)",
)
NUMBER = re.compile(r"(fig|table)(\d+)")


class Figure(NamedTuple):
    """The description of a figure or table."""

    section: str  # of the report
    measures: tuple[str, ...]  # that it reads; without the first there is nothing to show
    paper: tuple[str, ...] = ()  # its places in the paper; numbers, such as fig9 and table1, are targets
    settings: tuple[str, ...] = ()  # paths of the configuration whose values it gets
    needs: str = ""  # a setting without which there is nothing to show; any of the measures is then enough
    first_run_only: bool = False  # it shows single traces
    opens: bool = False  # the report opens with it
    checkpoints: bool = False  # it shows those on the way of trainings too, and nothing without them
    skips_unmeasured: bool = False  # it reads only those of its measures that the experiment makes


class Entry(NamedTuple):
    """A figure or table, as the workflow and the reference list it."""

    figure: Figure
    stage: str  # its module, or a user's file
    title: str  # the first paragraph of the docstring
    text: str  # the rest of it
    is_table: bool

    @property
    def targets(self) -> list[str]:
        """Its numbers in the paper, as targets of Snakemake."""
        return [place for place in self.figure.paper if NUMBER.fullmatch(place)]

    @property
    def paper(self) -> str:
        """Its places in the paper, for people."""
        return ", ".join(NUMBER.sub(spelled, place) for place in self.figure.paper)

    @property
    def caption(self) -> str:
        """The caption for any experiment, in reStructuredText."""
        return self.caption_over("problems, and over training runs if there are several")

    def caption_over(self, over: str) -> str:
        """The caption for an experiment; `over` replaces |over|: problems, or training runs and problems."""
        text = f"**{self.title}**" + (f" ({self.paper})" if self.paper else "") + f". {self.text}".rstrip()
        return text.replace("|over|", over)


def spelled(number: re.Match[str]) -> str:
    """`Figure 9` of `fig9`."""
    return f"{'Figure' if number[1] == 'fig' else 'Table'} {number[2]}"


def entry_of(module: ModuleType, stage: str) -> Entry:
    """The entry of a figure's module. Raises ValueError if the module lacks something."""
    title, _, text = cleandoc(module.__doc__ or "").partition("\n\n")
    is_table = hasattr(module, "layout")
    parts = ("summary", "layout") if is_table else ("draw",)
    lacks = [f"{name}()" for name in parts if not callable(getattr(module, name, None))]
    lacks += [] if title else ["a docstring, which is its caption"]
    if not statements_of(module_of(stage)).get(STAGE):
        lacks.append('its command line at the end: if __name__ == "__main__": main(draw, __doc__)')
    figure = getattr(module, "FIGURE", None)
    if not isinstance(figure, Figure):
        lacks.insert(0, "FIGURE = Figure(section, measures, ...) of mrt.figures.figure")
    elif not figure.measures or any(isinstance(of, str) for of in (figure.measures, figure.paper, figure.settings)):
        lacks.insert(0, 'measures, paper and settings of FIGURE as tuples of texts, such as ("progress",)')
    if lacks or not isinstance(figure, Figure):
        raise ValueError(f"{module.__file__}: this figure lacks {'; '.join(lacks)}")
    return Entry(figure, stage, " ".join(title.split()).removesuffix("."), text, is_table)


def figures(files: Iterable[Path] = ()) -> dict[str, Entry]:
    """All figures and tables by name: those of this folder, by section, and those of a user's files.

    Raises ValueError, with file and line, if a module cannot be imported, lacks something or takes another's name.
    """
    entries: dict[str, Entry] = {}
    for module in modules_in("figures"):
        if "FIGURE" in vars(module):
            entries[module.__name__.rpartition(".")[2]] = entry_of(module, module.__name__)
    entries = dict(sorted(entries.items(), key=lambda item: item[1].figure.section))
    for file in files:
        if not file.stem.isidentifier() or file.suffix != ".py":
            raise ValueError(f"figures: {file}: a figure is a file NAME.py, and NAME letters, digits and underscores")
        if file.stem in entries:
            raise ValueError(f"figures: {file}: there is a figure {file.stem} already; give this file another name")
        entries[file.stem] = entry_of(load(file), str(file))
    target_names = {name: name for name in entries}
    for name, entry in entries.items():
        for target in entry.targets:
            if target in target_names:
                raise ValueError(f"{entry.stage}: the target {target} is of the figure {target_names[target]} already")
            target_names[target] = name
    return entries
