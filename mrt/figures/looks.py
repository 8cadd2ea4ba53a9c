"""The look of models and figures: settings, and defaults by a model's place in the file.

A model's colour is its method's, in a darker shade for each iteration. Each method has a marker. A further model of the
same method and iteration has another marker and another line. A model that is added at the end of the file changes no
other's look.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import chain, cycle
from typing import Literal

from pydantic import Field

from mrt.core.settings import Settings

BASE_COLOUR = "#000000"
SPARE_COLOURS = ("#6699CC", "#AA4499", "#44AA99", "#661100", "#CC6677", "#DDCC77", "#117733", "#88CCEE")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
LINES = ("solid", "dashdot", "dotted", "dashed")
SHADES = (1.0, 0.6, 0.35)  # of a colour, by iteration
DARK = 64  # of 255; a darker colour gets lighter by iteration


class Style(Settings):
    """The look of a model in figures. Each field has a default by method, iteration and place in the file."""

    colour: str | None = Field(None, pattern=r"^#[0-9a-fA-F]{6}$", description="Red, green and blue, such as #0072B2.")
    marker: Literal["o", "s", "^", "D", "v", "P", "X", "p"] | None = Field(
        None,
        description="Marker of its points: circle, square, triangle, diamond, triangle down, plus, cross, pentagon.",
    )
    line: Literal["solid", "dashdot", "dotted", "dashed"] | None = Field(None, description="Style of its lines.")


class Drawing(Settings):
    """The look of all figures."""

    width: float | None = Field(
        None,
        ge=2,
        le=20,
        description="Inches. By default one panel has 3.4, a column of a paper; several have up to 6.8.",
    )
    font_size: float | None = Field(None, ge=4, le=24, description="Points; by default 8.")
    format: Literal["pdf", "svg"] | None = Field(None, description="Vector format beside PNG; by default `pdf`.")


def looks(kinds: Mapping[str, tuple[str | None, int]]) -> dict[str, Style]:
    """The look of each model.

    Args:
        kinds: of each model, in order: the colour of its method (None: it is not trained), and how often that method
            ran in a row.
    """
    of_model: dict[str, Style] = {}
    alike: Counter[str] = Counter()
    markers: dict[tuple[str, int], str] = {}
    given = chain([BASE_COLOUR], cycle(SPARE_COLOURS))  # not all models without a parent can be black
    for name, (of_method, iteration) in kinds.items():
        plain = of_method or next(given)
        colour = shade(plain, iteration)
        place = alike[colour]
        alike[colour] += 1
        marker = markers.setdefault((plain, place), MARKERS[len(markers) % len(MARKERS)])
        of_model[name] = Style.model_validate({"colour": colour, "marker": marker, "line": LINES[place % len(LINES)]})
    return of_model


def shade(colour: str, iteration: int) -> str:
    """A colour's shade for an iteration: the first has the colour itself, the third and later ones the same."""
    part = SHADES[min(max(iteration, 1), len(SHADES)) - 1]
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    towards = 255 if 0.3 * red + 0.59 * green + 0.11 * blue < DARK else 0
    return "#" + "".join(f"{round(towards + part * (value - towards)):02X}" for value in (red, green, blue))
