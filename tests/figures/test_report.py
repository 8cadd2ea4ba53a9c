"""The report: its first part, and all figures with their captions."""

import json
import re
import shutil
from functools import reduce
from pathlib import Path

import polars as pl
import pytest
import yaml
from conftest import ROOT
from measures import MODELS, of_models, table_of

from mrt.figures import findings, overview, pass1, runs
from mrt.figures.figure import figures
from mrt.figures.report import QUESTION, Report
from mrt.figures.style import ModelStyle
from mrt.figures.tables import Layout, write_layout

PNG = ROOT / "docs" / "images" / "laptop_regret.png"
LINEAGE = {
    "base": ModelStyle(label="Base"),
    "star_1": ModelStyle(label="STaR", method="star", ancestors=("base",)),
    "mrt_2": ModelStyle(label="MRT", method="mrt", ancestors=("star_1", "base")),
}


def test_models_are_compared_with_the_base_and_with_their_parents():
    problems = [f"p{i}" for i in range(40)]
    right = {"base": 10, "star_1": 20, "mrt_2": 22}  # of 40, the first ones
    rows = [(m, "toy", p, float(i < n), 50.0 + n, 4) for m, n in right.items() for i, p in enumerate(problems)]
    accuracy = table_of("model dataset problem_id accuracy tokens samples", rows)
    spent = [(m, "toy", m, "training", 1000 * n, 1e9 * n) for m, n in right.items() if m != "base"]
    cost = table_of("model dataset trained_model phase generated_tokens flops", spent)
    table = overview.summary({"accuracy": accuracy, "cost": cost}, LINEAGE)
    assert table.select("model", "base", "parent", "to_base", "to_parent", "tokens", "flops").rows() == [
        ("base", None, None, None, None, 60.0, None),
        ("star_1", "base", "base", 0.25, 0.25, 70.0, 2e10),
        ("mrt_2", "base", "star_1", pytest.approx(0.3), pytest.approx(0.05), 72.0, 2.2e10),
    ]
    made = overview.layout(table, LINEAGE)
    assert made.header[:5] == ["model", "accuracy", "to the base", "to the parent", "tokens"]
    base, star, mrt = made.cells
    assert base[2:4] == ["", ""] and star[2] == star[3] and star[2].startswith("+25.0* [")
    assert mrt[2].startswith("+30.0* [") and mrt[3].startswith("+5.0 [-")  # of 2 problems of 40: not significant
    assert mrt[-2:] == ["22,000", "2.2e+10"] and "over problems alone" in made.note


def measured(right, runs=1, flops=1e9):
    """Accuracy and cost of models that answer the first n of 40 problems right in each run."""
    names = {f"{name}_{run}" if run else name: name for name in right for run in range(runs)}
    rows = [
        (run, "toy", f"p{i}", float(i < right[name]), 50.0 + right[name], 4)
        for run, name in names.items()
        for i in range(40)
    ]
    trained = {run: right[name] for run, name in names.items() if name != "base"}
    spent = [(run, "toy", run, 1000 * n, flops * n) for run, n in trained.items()]
    first = {run: name for run, name in names.items() if run != name}
    return {
        "accuracy": table_of("model dataset problem_id accuracy tokens samples", rows, **first),
        "cost": table_of("model dataset trained_model generated_tokens flops", spent, **first),
    }


def test_a_baseline_has_the_same_base_and_trainings_that_need_not_be_measured():
    style = {"mrt": ("a",), "mrt_2": ("mrt_1", "a"), "star": ("b",), "star_2": ("star_1", "a"), "grpo": ("star_1", "b")}
    models = {"a": ModelStyle(label="A"), "b": ModelStyle(label="B")}
    models |= {m: ModelStyle(label=m, method=m.split("_")[0], ancestors=of) for m, of in style.items()}
    assert {name: findings.baseline_of(name, models) for name in style} == {
        "mrt": "a",  # STaR after one training is of another base
        "mrt_2": "star_2",
        "star": "b",
        "star_2": "a",  # star_1 was not measured
        "grpo": "b",
    }
    early = {"star_2_step5": ModelStyle(label="x", method="star", ancestors=("star_1", "a"), checkpoint_of="star_2")}
    assert findings.baseline_of("mrt_2", {**early, **models}) == "star_2"  # no unfinished training
    right = {"a": 10, "b": 30, "mrt": 20, "mrt_2": 24, "star": 32, "star_2": 22, "grpo": 34}
    tables = measured(right)
    compared = overview.summary(tables, models).filter(base="a")
    to_base = dict(compared.select("model", "to_base").iter_rows())
    assert to_base == pytest.approx({"mrt": 0.25, "mrt_2": 0.35, "star_2": 0.3})
    of_runs = runs.summary(tables, models).filter(value="accuracy")
    differences = dict(of_runs.select("model", "difference").iter_rows())
    assert differences["mrt_2"] == pytest.approx(0.05) and differences["star"] == pytest.approx(-0.05)
    assert "to star_2 or grpo, whichever has the same base" in runs.layout(of_runs, models).note


def test_findings_say_in_words_what_a_method_brings_against_its_baseline():
    models = {
        **{"base": ModelStyle(label="Base"), "star": ModelStyle(label="STaR", method="star", ancestors=("base",))},
        **{"grpo": ModelStyle(label="GRPO", method="grpo", ancestors=("base",))},
        **{name: ModelStyle(label=name, method=name, ancestors=("base",)) for name in ("mrt", "mrt_rl")},
        "mrt_2": ModelStyle(label="mrt_2", method="mrt", ancestors=("mrt", "base")),
    }
    baselines = {name: findings.baseline_of(name, models) for name in models}
    expected = {"star": "base", "grpo": "base", "mrt": "star", "mrt_rl": "grpo", "mrt_2": "mrt"}
    assert baselines == {"base": None} | expected
    right = {"base": 10, "star": 20, "grpo": 20, "mrt": 36, "mrt_rl": 21, "mrt_2": 20}
    table, labels = findings.summary(measured(right, runs=3), models), {name: s.label for name, s in models.items()}
    lines = dict(zip(table["model"], findings.readings(table, labels), strict=True))
    assert lines["mrt"].startswith("mrt is better than STaR: 90.0% right, +40.0 points [")
    assert lines["mrt"].endswith("A completion takes 1.23 times the tokens. Training took 1.80 times the FLOPs.")
    assert lines["mrt_rl"].startswith("mrt_rl is not significantly different from GRPO: 52.5% right, +2.5 points [-")
    assert lines["mrt_2"].startswith("mrt_2 is worse than mrt: ") and "FLOPs" not in lines["star"]
    one = findings.layout(findings.summary(measured(right), models), models)
    assert "There is one training run" in one.note and len(one.cells) == 5
    mrt = findings.layout(table, models).cells[2]
    assert (
        mrt[:3] == ["mrt", "better than", "STaR"]
        and mrt[3].startswith("+40.0 [")
        and mrt[4:] == ["1.23 times", "1.80 times"]
    )


def test_answers_that_cannot_be_read_are_warned_of():
    """An accuracy by a wrong prompt is low, and looks like any other."""
    models = {"base": ModelStyle(label="Base"), "star": ModelStyle(label="STaR", method="star", ancestors=("base",))}
    tables = measured({"base": 10, "star": 20})
    share = pl.when(model="base").then(0.8).otherwise(0.1).alias("unparsed")
    given = tables | {
        "accuracy": tables["accuracy"].with_columns(share, characters=pl.lit(300.0), difficulty=pl.lit(3.0))
    }
    for module in (pass1, overview):
        note = module.layout(module.summary(given, models), models).note
        assert (
            "warning: Base on toy: no answer can be read in 80% of the completions." in note and "STaR on" not in note
        )
    assert "warning" not in overview.layout(overview.summary(tables, models), models).note


def test_what_is_the_same_twice_or_not_there_is_no_column():
    """The parent where it is the base, cost where nothing was trained, tokens of imported completions without."""
    tables = {"accuracy": of_models("accuracy"), "cost": of_models("cost")}
    children = {m: s.model_copy(update={"ancestors": () if m == "base" else ("base",)}) for m, s in MODELS.items()}
    header = overview.layout(overview.summary(tables, children), children).header
    assert header == ["model", "accuracy", "to the base", "tokens", "training: tokens generated", "training: FLOPs"]
    given = {"accuracy": tables["accuracy"].with_columns(pl.lit(None, pl.Float64).alias("tokens"))}
    alone = {m: ModelStyle(label=s.label) for m, s in MODELS.items()}
    made = overview.layout(overview.summary(given | {"cost": pl.DataFrame()}, alone), alone)
    assert made.header == ["model", "accuracy", "tokens"] and {row[-1] for row in made.cells} == {""}


def figures_of(*names):
    from mrt.config.load import load
    from mrt.core.settings import laid_over
    from workflow.figures import Figures
    from workflow.paths import Paths

    config = load(reduce(laid_over, [yaml.safe_load((ROOT / name).read_text()) for name in names]))
    return Figures(config, Paths(config))


@pytest.mark.parametrize(("drawing", "vector"), [("{}", ".pdf"), ("{format: svg}", ".svg")])
def test_a_run_asks_for_each_format_of_a_figure(drawing, vector, tmp_path):
    """Snakemake compares no settings of a rule with an output that is missing and not requested."""
    (tmp_path / "drawing.yaml").write_text(f"figures: {drawing}")
    wanted = figures_of("config.yaml", tmp_path / "drawing.yaml").all()
    assert {Path(path).suffix for path in wanted if "/figures/" in path} == {".png", ".csv", vector}


@pytest.fixture
def made(tmp_path):
    """The report of the laptop's experiment, with one picture for all figures; the page, and what opens it."""
    settings = json.loads(figures_of("config.yaml").report())
    for shown in settings["shown"]:
        file = tmp_path / shown["file"]
        shown["file"] = str(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".html":
            write_layout(Layout(file.stem, ["model"], [[f"<{file.stem}>"]], set(), "Note."), file.with_suffix(""))
        else:
            shutil.copy(PNG, file)
    out, excerpt = (tmp_path / "results" / "laptop" / name for name in ("index.html", "excerpt.html"))
    Report(**settings, out=out, excerpt=excerpt).cli_cmd()
    return settings, *(re.sub("&#64;", "@", " ".join(path.read_text().split())) for path in (out, excerpt))


def test_the_report_opens_with_the_overview_and_three_figures_with_their_captions(made):
    settings, page, excerpt = made
    opening, *sections = page.split("<h2")[1:]
    assert QUESTION in opening and opening.index("&lt;findings&gt;") < opening.index("&lt;overview&gt;")
    assert re.findall(r'<img alt="(\w+)"', opening) == ["maj_tokens", "regret", "cost"]
    captions = re.findall(r"<figcaption> ?<p><strong>(.*?)</strong>", opening)
    entries = figures()
    assert captions == [entries[name].title for name in ("findings", "overview", "maj_tokens", "regret", "cost")]
    assert [re.search(">(.*?)</h2>", part)[1][0] for part in sections] == ["1", "2", "3", "4"]
    for shown in settings["shown"]:  # each once, with its caption beneath and its data
        name = shown["file"].rsplit("/", 1)[1].partition(".")[0]
        (figure,) = [part for part in page.split("<figure")[1:] if f"/{name}.csv" in part]
        assert entries[name].title in figure.split("<figcaption>")[1]
    assert excerpt.count("<figure") == 5 and "href" not in excerpt


def test_the_report_needs_no_network_and_runs_nothing(made):
    page = made[1]
    assert "default-src 'none'" in page and "<script" not in page
    assert not re.search(r"""(src|href)=["']?(https?:|//)|url\(|@import""", page)


def test_a_caption_is_part_of_the_page(monkeypatch):
    before = figures_of("config.yaml")
    entry = before.entries["regret"]
    after = figures_of("config.yaml")
    after.entries["regret"] = entry._replace(text="Less is *better*.")
    assert "Less is <em>better</em>." in after.report() and before.report() != after.report()
    assert before.settings("regret") == after.settings("regret")
