"""A figure of a user's and a new one of the package: planned, plotted, in the report, and no other made again."""

import json

import polars as pl
import pytest
import yaml
from conftest import checkout, planned, planned_jobs, snakemake

FIGURE = '''"""Longest thoughts.

{caption}
"""

import polars as pl
from helper import LEAST

from mrt.figures.figure import CASE, Figure
from mrt.figures.stage import main
from mrt.figures.style import panels

FIGURE = Figure(CASE, ("episodes",), paper=("fig99",), settings=("evaluation.samples",))


def draw(tables, models, samples):
    figure, (axis,) = panels(1)
    table = tables["episodes"].filter(pl.col("episodes") >= LEAST).with_columns(samples=pl.lit(samples))
    axis.hist(table["episodes"])
    return figure, table


if __name__ == "__main__":
    main(draw, __doc__)
'''


@pytest.fixture
def project(tmp_path):
    """An experiment on completions of a file, and its configuration."""
    folder = checkout(tmp_path)
    problems = [{"problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(4)]
    thoughts = [f"<think>\n{i} twice.\n\nWait, {i}.\n</think>\n\nIt is \\boxed{{{2 * i}}}." for i in range(4)]
    traces = [{"problem_id": f"test-{i}", "text": text} for i, text in enumerate(thoughts)]
    for name, rows in (("problems", problems), ("traces", traces)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "results": "results/mine",
        "problems": {"test": {"file": "problems.jsonl", "split": "test"}},
        "models": {"them": {"label": "They", "rollouts": {"file": "traces.jsonl"}}},
        "evaluation": {"problems": ["test"], "models": ["them"], "measures": ["accuracy", "episodes"]},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder, config


@pytest.mark.slow
def test_a_figure_of_a_users_and_a_new_one_of_the_package_make_nothing_else_again(project):
    folder, config = project
    snakemake(folder, "--cores", "2")
    assert planned(folder) == {}
    (folder / "mine").mkdir()
    (folder / "mine" / "longest.py").write_text(FIGURE.format(caption="As *they* think."))
    (folder / "mine" / "helper.py").write_text("LEAST = 1\n")
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"figures": {"files": ["mine/longest.py"]}}))
    (folder / "mrt" / "figures" / "shortest.py").write_text(
        FIGURE.format(caption="As we do.")
        .replace("fig99", "fig98")
        .replace("from helper import LEAST\n", "LEAST = 2\n")
    )
    new = {"longest", "shortest"}
    assert planned_jobs(folder).keys() == {*new, "index", "provenance"}  # which show them, and list them
    assert planned_jobs(folder, "longest").keys() == {"longest"}
    assert planned_jobs(folder, "fig99").keys() == {"longest", "fig99"}

    snakemake(folder, "--cores", "2")
    assert planned(folder) == {}
    figures = folder / "results" / "mine" / "figures"
    assert len((figures / "longest.png").read_bytes()) > 5000 and (figures / "longest.pdf").exists()
    assert pl.read_parquet(figures / "longest.parquet")["samples"].to_list() == [20] * 4
    assert "figures longest" in (folder / "results" / "mine" / "tables" / "provenance.md").read_text()
    page = (folder / "results" / "mine" / "index.html").read_text()
    assert "<strong>Longest thoughts</strong> (Figure 99). As <em>they</em> think." in page
    assert page.index("<table>") < page.index("longest.csv") and 'href="traces.html"' in page
    snakemake(folder, "--report", "report.html")
    report = (folder / "report.html").read_text()
    assert "<strong>Longest thoughts</strong> (Figure 99). As <em>they</em> think." in report.replace("\\u003c", "<")

    elsewhere = FIGURE.replace("Figure(CASE", "Figure('0 First'").replace("fig99", "fig97")
    (folder / "mine" / "longest.py").write_text(elsewhere.format(caption="As they all think."))
    assert planned_jobs(folder).keys() == {"index"}  # the report, which has the caption
    (folder / "mine" / "helper.py").write_text("LEAST = 2\n")
    assert planned_jobs(folder).keys() == {"longest", "index", "provenance"}
    (folder / "mine" / "helper.py").write_text("LEAST = 1 / 0\n")
    done = snakemake(folder, "-n", check=False)
    assert done.returncode and "helper.py, line 1: ZeroDivisionError" in done.stdout + done.stderr


def test_what_the_configuration_lacks_is_named_before_any_job(project):
    folder, config = project
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"figures": {"files": ["longest.py"]}}))
    (folder / "helper.py").write_text("LEAST = 1\n")
    wrong = {
        '"episodes",': ('"episode",', "longest.py: there is no measure episode; there are accuracy, budget_forcing"),
        "evaluation.samples": ("evaluation.sample", "longest.py: the configuration has no setting evaluation.sample"),
    }
    for old, (new, message) in wrong.items():
        (folder / "longest.py").write_text(FIGURE.replace(old, new, 1))
        done = snakemake(folder, "-n", check=False)
        assert done.returncode and message in done.stdout + done.stderr
