"""A figure is one file: its caption, its errors, and the one that the documentation shows."""

import re
from html import unescape

import polars as pl
import pytest
from conftest import ROOT, python
from docutils.core import publish_parts
from measures import MODELS, arguments

from mrt.figures.figure import figures

EXAMPLE = re.search(
    r"## A figure or a table.*?```python\n(.*?)```", (ROOT / "docs" / "extend.md").read_text(), re.DOTALL
)[1]


def test_the_example_of_the_page_is_drawn(tmp_path):
    (tmp_path / "j_at_cut.py").write_text(EXAMPLE)
    (entry,) = [entry for name, entry in figures([tmp_path / "j_at_cut.py"]).items() if name == "j_at_cut"]
    assert entry.caption.startswith("**J at the cut** (Section 6.1). Histogram of J")
    options = arguments("j_at_cut", tmp_path, entry.figure.measures)[1:]
    python("-m", "mrt.core.user_file", tmp_path / "j_at_cut.py", *options, tmp_path / "out")
    assert len((tmp_path / "out.png").read_bytes()) > 10_000
    cuts = pl.read_parquet(tmp_path / "out.parquet")
    assert set(cuts["model"]) == set(MODELS) and cuts.height == 12 * len(MODELS)
    for model in MODELS:
        rows = pl.read_parquet(tmp_path / f"progress.{model}.parquet").filter(pl.col("prefix") > 0)
        highest = rows.group_by("problem_id").agg(pl.col("J").max(), pl.col("prefix").sort_by("J").last())
        assert (
            cuts.filter(model=model)
            .select("problem_id", "J", "prefix")
            .sort("problem_id")
            .equals(highest.sort("problem_id"))
        )


@pytest.mark.parametrize("name", figures())
def test_each_caption_is_valid_and_has_no_more_than_a_title_in_bold(name):
    entry = figures()[name]
    html = publish_parts(entry.caption, writer="html", settings_overrides={"halt_level": 2})["body"]
    assert re.findall("<strong>(.*?)</strong>", unescape(html), re.DOTALL) == [entry.title]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('("progress",)', '"progress"', "lacks measures, paper and settings of FIGURE as tuples of texts"),
        ("FIGURE =", "FIGURES =", r"lacks FIGURE = Figure\(section, measures, ...\) of mrt.figures.figure"),
        ("def draw(", "def plot(", r"lacks draw\(\)"),
        ("def draw(", "def layout(", r"lacks summary\(\)"),
        ('__name__ == "__main__"', "False", "lacks its command line at the end: if __name__"),
        ('"Section 6.1"', '"fig9"', "j_at_cut.py: the target fig9 is of the figure regret already"),
        ('"Section 6.1"', "Section", r"j_at_cut.py, line \d+: NameError: name 'Section' is not defined"),
        (EXAMPLE[: EXAMPLE.index("import")], "", "lacks a docstring, which is its caption"),
    ],
)
def test_a_file_that_is_no_figure_says_what_it_lacks(old, new, message, tmp_path):
    assert EXAMPLE.count(old) == 1
    (tmp_path / "j_at_cut.py").write_text(EXAMPLE.replace(old, new))
    with pytest.raises(ValueError, match=message):
        figures([tmp_path / "j_at_cut.py"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("regret.py", "there is a figure regret already"),
        ("j at cut.py", "a figure is a file NAME.py"),
        ("absent.py", "no such file"),
    ],
)
def test_a_file_whose_name_cannot_be_a_figure_is_refused(name, message, tmp_path):
    if name != "absent.py":
        (tmp_path / name).write_text(EXAMPLE)
    with pytest.raises(ValueError, match=message):
        figures([tmp_path / name])
