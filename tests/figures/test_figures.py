"""Every figure and table from a small measure of two models: files, data, and values."""

import json
import os
import subprocess
import sys
from contextvars import copy_context
from functools import reduce
from importlib import import_module
from itertools import pairwise
from random import Random

import numpy as np
import polars as pl
import pytest
import yaml
from conftest import ROOT
from matplotlib.text import Text
from measures import MADE_UP, MODELS, PROBLEMS, arguments, measure, of_models, partial, styles, table_of

from mrt.analysis.claims import BACKTRACK
from mrt.config import measuring
from mrt.core.artifacts import SET
from mrt.episodes.parameterization import Backtracking
from mrt.figures import (
    backtrack,
    budget_forcing,
    claims,
    constructions,
    cost,
    early_exit,
    episode_counts,
    episode_regret,
    maj_tokens,
    over_training,
    pass1,
    progress,
    regret,
    reward,
    runs,
    scaling,
    token_efficiency,
)
from mrt.figures.figure import figures
from mrt.figures.stage import of_runs
from mrt.figures.style import Appearance, ModelStyle, save, spaced_ticks, with_intervals
from mrt.figures.tables import Layout, latex, markdown, page
from mrt.methods.warmstart import CONSTRUCTIONS, Paths, examples
from mrt.sampling.tree import Tree

FIGURES = {  # all but those whose measures hold texts
    name: [measure for measure in entry.figure.measures if measure != "linearized"]
    for name, entry in figures().items()
    if not entry.is_table and not entry.figure.checkpoints and MADE_UP.issuperset(entry.figure.measures)
}
DESCENDED = {**MODELS, "star_1": MODELS["star_1"].model_copy(update={"ancestors": ("base",)})}


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """The data that a figure's command line draws of models, with options."""

    def run(figure, measures, models=MODELS, out="out", options=None):
        module = import_module(f"mrt.figures.{figure}")
        more = ["--options", json.dumps(options)] if options else []
        monkeypatch.setattr(sys, "argv", [*arguments(figure, tmp_path, measures, models), str(tmp_path / out), *more])
        module.main(module.draw, module.__doc__)
        return pl.read_parquet(tmp_path / f"{out}.parquet")

    return run


@pytest.fixture
def drawn(tmp_path):
    """The figure that a module draws of tables, which can be saved, and its data."""

    def draw(module, tables, models=MODELS, *options):
        figure, table = module.draw(tables, models, *options)
        save(figure, tmp_path / "out")
        return figure, table

    return draw


def texts_of(figure):
    """All texts of legends, titles and axes, each in one line."""
    texts = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    texts += [axis.get_title(loc="left") for axis in figure.axes]
    return [" ".join(text.split()) for text in [*texts, *(of.get_text() for axis in figure.axes for of in axis.texts)]]


# ---- all figures


@pytest.mark.parametrize("figure", FIGURES)
def test_each_figure_is_drawn_and_equal_data_gives_equal_files(figure, tmp_path, shown):
    data = shown(figure, FIGURES[figure], out="one")
    shown(figure, FIGURES[figure], out="two")
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")
    assert len((tmp_path / "one.png").read_bytes()) > 10_000
    for suffix in ("png", "pdf", "parquet", "csv"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()
    assert set(data["model"]) == set(MODELS)
    assert pl.read_csv(tmp_path / "one.csv").height == data.height


MATPLOTLIBRC = """text.usetex: True
font.size: 21
axes.formatter.use_locale: True
figure.autolayout: True
figure.dpi: 37
path.simplify: False
pdf.compression: 0
savefig.bbox: tight
timezone: Asia/Tokyo
no.such.key: 1
"""


def test_a_figure_has_the_width_and_the_format_that_are_given(tmp_path, monkeypatch):
    for out in ("one", "two"):
        arguments_of = [*arguments("regret", tmp_path, ["regret"]), str(tmp_path / out)]
        drawing = json.dumps({"width": 5, "font_size": 6, "format": "svg"})
        monkeypatch.setattr(sys, "argv", [*arguments_of, "--drawing", drawing])
        copy_context().run(regret.main, regret.draw, regret.__doc__)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert 'width="360pt"' in (tmp_path / "one.svg").read_text() and not (tmp_path / "one.pdf").exists()
    assert int.from_bytes((tmp_path / "one.png").read_bytes()[16:20]) == 1000


@pytest.mark.slow
def test_figures_are_the_same_bytes_whatever_matplotlib_is_told_elsewhere(tmp_path):
    """By a file in the working folder, in the user's folder, by the environment; also where it cannot be read."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("MPL", "MATPLOTLIB"))}
    figure, *options = arguments("cost", tmp_path, FIGURES["cost"])
    (tmp_path / "bad").write_bytes("# naïve".encode("latin-1"))
    user, bad = str(tmp_path / "user"), str(tmp_path / "bad")
    environments = {
        "usual": {},
        "working": {"MATPLOTLIBRC": f"{user}/matplotlibrc", "LC_ALL": "de_DE.UTF-8"},
        "user": {"MPLCONFIGDIR": user, "MPLBACKEND": "nonsense", "MATPLOTLIBRC": bad},
    }
    for folder in environments:
        (tmp_path / folder).mkdir()
        if folder != "usual":
            (tmp_path / folder / "matplotlibrc").write_text(MATPLOTLIBRC)
    for folder, more in environments.items():
        command = [sys.executable, "-m", f"mrt.figures.{figure}", *options, str(tmp_path / folder / "out")]
        environment = usual | {"PYTHONPATH": str(ROOT)} | more
        done = subprocess.run(command, cwd=tmp_path / folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for out in ("out.png", "out.pdf", "out.csv"):
            assert (tmp_path / folder / out).read_bytes() == (tmp_path / "usual" / out).read_bytes()


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_shows_a_model_once_whatever_its_number_of_runs(figure, shown):
    again = {f"star_1_seed{i}": MODELS["star_1"].model_copy(update={"replicate_of": "star_1"}) for i in (1, 2)}
    data = shown(figure, FIGURES[figure], MODELS | again)
    if "runs" not in data.columns:  # it shows single traces, or a distribution
        return
    counts = data.drop_nulls("runs").group_by("model").agg(pl.col("runs").max())
    assert set(data["model"]) == set(MODELS) and dict(counts.rows()) == {"base": 1, "star_1": 3, "mrt_2": 1}


@pytest.mark.parametrize(
    "figure", ["maj_tokens", "pass_tokens", "early_exit", "regret", "episode_regret", "budget_forcing", "cost"]
)
def test_a_figure_says_beside_a_name_what_it_stands_on(figure):
    measures = [name for name in FIGURES[figure] if name != "linearized"]
    tables = {name: of_models(name) if name == "cost" else partial(name) for name in measures}
    picture, table = import_module(f"mrt.figures.{figure}").draw(tables, MODELS)
    (label,) = [text for text in texts_of(picture) if text.startswith("MRT (STaR)")]
    assert "n = 2 of 12, 2 samples" in label
    assert any(text.startswith("STaR") and "n =" not in text for text in texts_of(picture))
    row = table.filter(model="mrt_2").row(0, named=True)
    assert (row["n"], row["of"], row["samples_most"]) == (2, 12, 2)
    assert any("n = 12 problems" in text for text in texts_of(picture))


@pytest.mark.parametrize(("module", "name"), [(episode_counts, "episodes"), (progress, "progress")])
def test_episodes_and_progress_say_what_they_stand_on(module, name):
    texts = texts_of(module.draw({name: partial(name).drop("samples")}, MODELS)[0])
    (label,) = [text for text in texts if "of 12" in text]
    assert label.startswith("MRT (STaR) (n = 2 of 12) mean ")


def test_intervals_are_over_problems_not_over_traces():
    data = pl.DataFrame({"model": "m", "problem_id": ["p", "p", "p", "q"], "J": [1.0, 1.0, 1.0, 0.0]})
    row = with_intervals(data, ["model"], ["J"]).row(0, named=True)
    assert row["J"] == 0.5 and row["n"] == 2 and (row["samples_least"], row["samples_most"]) == (1, 3)
    assert row["J_low"] == 0 and row["J_high"] == 1  # a share's interval does not leave it


def test_unknown_lengths_stay_unknown():
    data = pl.DataFrame({"model": "m", "problem_id": ["p", "q"], "tokens": pl.Series([None, None], dtype=pl.Float64)})
    assert with_intervals(data, ["model"], ["tokens"]).row(0, named=True)["tokens"] is None


def test_ticks_stand_apart_from_the_last_one_shown():
    """Not from the one before: of many that are close together, more than the first are shown."""
    assert spaced_ticks([*range(1000, 15000, 1000)], 1120) == [*range(1000, 15000, 2000)]


def test_a_method_has_one_colour_in_shades_and_models_without_a_parent_differ():
    second = ModelStyle(label="x", method="star", iteration=2, colour="#009E73")
    look = Appearance({**MODELS, "star_2": second, "other": ModelStyle(label="y")})
    assert look.line("star_1") == {**look.line("star_2"), "color": "#009E73", "label": "STaR"}
    assert look.colour("star_2") == "#005F45"  # a darker shade
    assert look.colour("base") != look.colour("other")
    names = ("one", "two", "three")
    alike = {name: ModelStyle(label=name, method="mrt_rl", iteration=1, colour="#E69F00") for name in names}
    lines = [Appearance(alike).line(name) for name in alike]
    assert [len({line[part] for line in lines}) for part in ("color", "linestyle", "marker")] == [1, 3, 3]


# ---- figures of an experiment


def figures_of(*configs):
    """The figures and tables of an experiment, whose configs are laid over each other."""
    from mrt.config.load import load
    from mrt.core.settings import laid_over
    from workflow.figures import Figures
    from workflow.paths import Paths

    config = load(reduce(laid_over, configs))
    return Figures(config, Paths(config))


def read(*names):
    return [yaml.safe_load((ROOT / name).read_text()) for name in names]


TINY = "tests/tiny.yaml"


def test_the_groups_of_the_config_reach_figure_3():
    settings = json.loads(figures_of(*read("config/paper_case_study.yaml")).settings("scaling"))
    assert settings["options"] == {"episode_groups": [[6, 10], [26, 30], [41, 45]]}


def test_the_caption_of_figure_3_says_that_two_votes_are_worth_one():
    caption = " ".join(figures()["scaling"].caption.split())
    assert "maj@2 equals maj@1 in expectation" in caption and "`evaluation.weighted_votes`" in caption


def test_logs_of_all_training_runs_reach_the_figures():
    made = figures_of(*read(TINY), {"training": {"runs": 2}})
    assert {"mrt_1", "mrt_1_seed1"} <= made.tables("loss")["sft_log"].keys()
    assert {"mrt_rl", "mrt_rl_seed1"} <= made.tables("reward")["rl_log"].keys()


def test_what_is_not_measured_is_not_asked_for_beside_the_cost():
    """Regret needs the meta-prover at every prefix: an experiment that leaves it out does not pay for it."""
    made = figures_of(*read(TINY), {"evaluation": {"measures": ["accuracy", "cost"]}})
    assert {*made.tables("runs")} == {"accuracy", "cost"}
    tables = {name: of_models(name) for name in ("accuracy", "cost")}
    assert set(runs.summary(tables, MODELS)["value"]) == {"accuracy", "tokens"}


def test_the_direct_baseline_reaches_the_claims():
    made = figures_of(*read("config.yaml", "experiments/star/config.yaml"))
    path = f"{made.experiment.results}/metrics/direct/toy_test.maj.parquet"
    assert made.tables("claims")["direct"] == {"direct": {"toy_test": path}}


def claim(value, model="a", than="b", expect="more", **more):
    """A row of the claims of an experiment."""
    row = {"section": "8", "says": "x", "value": value, "model": model, "than": than, "expect": expect}
    return row | {"redraw": "table1"} | more


def test_claims_need_none_of_their_measures_in_particular():
    """The table is made from those that the experiment measures."""
    changed = {"claims": [claim("accuracy", "mrt_1", "base")], "evaluation": {"measures": ["accuracy", "maj"]}}
    assert figures_of(*read(TINY), changed).wanted("claims")


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("backtrack", "backtracking"),
        ("claims", "claims in the configuration"),
        ("cost", "a model with a parent"),
        ("constructions", "a model of method warmstart, rise or rejection"),
        ("reward", "a model that RL trained, or one with a training_log"),
    ],
)
def test_a_figure_that_an_experiment_cannot_have_says_what_it_lacks(name, lacks):
    """Not at the end, with a traceback, but where the target is requested."""
    (alone,) = read(TINY)
    alone["models"] = {"base": alone["models"]["base"]}
    alone["evaluation"] |= {"models": ["base"], "measures": ["accuracy", "progress"], "direct": None}
    alone["evaluation"]["budget_forcing"]["models"] = ["base"]
    made = figures_of(alone)
    assert made.files(name) == [lacks] and made.files("pass1") != ["models to measure"]
    trained = figures_of(*read(TINY))
    assert trained.files("cost")[0].endswith(".parquet") and trained.files("reward")[0].endswith(".parquet")


def test_the_tree_drawn_is_the_one_that_sets_are_made_from():
    from workflow.traces import TracesPage

    large = {"models": {"large": {"label": "Large", "toy": "shipped"}}}
    taught = {"models": {name: {"teacher": "large"} for name in ("warmstart", "rise", "rejection")}}
    made = figures_of(*read("config/backtracking.yaml"), large, taught)
    assert {*made.of_first_tree()["trees"]} == {"large"}
    assert not any("trees/base/" in path for path in TracesPage(made.experiment, made.paths).tables())


def test_a_model_behind_the_others_changes_no_look():
    (config,) = read("config.yaml")
    before = figures_of(config).models("maj_tokens")
    mrt = config["models"]["mrt_1"]
    more = {"star_3": config["models"]["star_2"] | {"label": "c", "parent": "star_2"}}
    more |= {"mrt_05": mrt | {"label": "a"}, "given": {"toy": "shipped", "label": "b"}}
    changed = {"models": more, "evaluation": {"models": [*more, *config["evaluation"]["models"]]}}
    after = figures_of(config, changed).models("maj_tokens")
    assert {name: after[name] for name in before} == before
    look = {name: tuple(after[name][part] for part in ("colour", "marker", "line")) for name in after}
    assert look["mrt_1"][0] == look["mrt_05"][0] == "#D55E00" and look["star_3"][1:] == look["star_1"][1:]
    assert look["mrt_05"][1:] != look["mrt_1"][1:] and len(set(look.values())) == len(look)


def test_further_runs_change_no_look_and_differ_by_their_lines():
    alone, several = (figures_of(*read("config.yaml"), {"training": {"runs": runs}}) for runs in (1, 3))
    shown = several.models("maj_tokens")
    assert {name: shown[name] for name in alone.models("maj_tokens")} == alone.models("maj_tokens")
    runs = [shown[name] for name in ("mrt_2", "mrt_2_seed1", "mrt_2_seed2")]
    assert len({(run["colour"], run["marker"]) for run in runs}) == 1 and len({run["line"] for run in runs}) == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"figures": {"width": 3.3, "font_size": 7, "format": "svg"}},
        {"models": {"mrt_1": {"style": {"colour": "#123456", "line": "dotted"}}}},
    ],
)
def test_how_figures_look_redraws_figures_alone(changed):
    before, after = (figures_of(*read("config.yaml"), more) for more in ({}, changed))
    for name, entry in before.entries.items():
        if before.wanted(name):
            shown = "figures" in changed or "mrt_1" in before.models(name)
            assert (before.settings(name) != after.settings(name)) == (shown and not entry.is_table), name
    if "models" in changed:
        style = after.models("maj_tokens")["mrt_1"]
        assert (style["colour"], style["marker"], style["line"]) == ("#123456", "D", "dotted")
    else:
        assert after.outputs("regret") and after.written("regret")["svg"].endswith("/figures/regret.svg")


def test_the_caption_of_one_run_says_so():
    """And a table of given models alone speaks of no training."""
    for number, text in ((1, "of this one run of each training"), (2, "training runs and problems")):
        made = figures_of(*read(TINY), {"training": {"runs": number}})
        for name in ("pass1", "regret", "token_efficiency", "runs", "cost", "progress"):
            assert text in " ".join(made.caption(name).split()) and "|over|" not in made.caption(name)
    (alone,) = read(TINY)
    alone["models"] = {"base": alone["models"]["base"]}
    alone["evaluation"] |= {"models": ["base"], "measures": ["accuracy"]}
    del alone["evaluation"]["budget_forcing"], alone["evaluation"]["direct"]
    assert "Intervals are over problems." in figures_of(alone).caption("pass1").replace("\n", " ")


@pytest.mark.parametrize(
    "names", ["config/paper.yaml", "config/backtracking_paper.yaml", "config.yaml experiments/star/config.yaml"]
)
def test_no_two_models_look_alike(names):
    made = figures_of(*read(*names.split()))
    look = Appearance({m: ModelStyle(**measuring.style(made.experiment, m)) for m in made.experiment.evaluation.models})
    lines = [(line["color"], line["linestyle"], line["marker"]) for line in map(look.line, look.models)]
    assert len(set(lines)) == len(lines)


# ---- scaling, J and regret by prefix

PREFIXES = "model dataset problem_id sample episodes prefix p maj tokens"


def test_traces_are_grouped_as_the_experiment_says(shown):
    table = shown("scaling", ["prefixes"], options={"episode_groups": [[2, 2], [4, 5], [40, 50]]})
    assert set(table["group"]) == {"2 episodes", "4 to 5 episodes"}  # none has 40
    longest = table.group_by("group").agg(pl.col("prefix").max()).sort("group")["prefix"].to_list()
    assert longest == [2, 5]


def test_episodes_stand_above_the_tokens_of_a_scaling_curve():
    """Points are named where names fit: at their tokens, with their number of episodes."""
    scored = [*range(0, 43, 5), 43]  # every fifth prefix, and the whole thought
    rows = [("m", "s", "p", 0, 43, j, p, j / 50, 100.0 * j + 8 * p) for j in scored for p in (1, 4)]
    figure, table = scaling.draw({"prefixes": table_of(PREFIXES, rows)}, styles(m="base"), [[41, 45]])
    (axis,) = [axis for axis in figure.axes if axis.get_visible()]
    (above,) = axis.child_axes
    labels = [label.get_text() for label in above.get_xticklabels()]
    assert labels == [str(j) for j in scored]
    assert above.get_xticks().tolist() == [100 * j + 8 for j in scored]
    one = table.filter(p=1).sort("point")
    assert one["prefix"].to_list() == scored and one["tokens"].to_list() == [100 * j + 8 for j in scored]
    assert one["tokens"].to_list() in [line.get_xdata().tolist() for line in axis.get_lines()]


def test_where_numbers_of_episodes_would_touch_each_second_one_stands_there():
    rows = [("m", "s", p, 0, 40, j, 1, 0.5, 100.0 * j) for p in ("a", "b") for j in range(41)]
    figure, _ = scaling.draw({"prefixes": table_of(PREFIXES, rows)}, styles(m="base"), [[40, 40]])
    (above,) = figure.axes[0].child_axes
    assert [label.get_text() for label in above.get_xticklabels()] == [str(j) for j in range(0, 41, 2)]


def test_where_every_second_prefix_is_scored_all_traces_are_behind_all_points():
    """A trace's last prefix is always scored: alone at its number, it would be a separate point."""
    prefixes = {"a": [0, 2, 3], "b": [0, 2, 4], "c": [0, 2, 4, 5]}
    rows = [
        ("m", "s", name, 0, js[-1], j, p, j / 5, 10.0 * j) for name, js in prefixes.items() for j in js for p in (1, 2)
    ]
    data = table_of(PREFIXES, rows)
    assert progress.spacing(data) == 2
    curve = progress.at_every_nth(data.filter(p=1).rename({"maj": "J"}), progress.spacing(data))
    assert curve.group_by("prefix", maintain_order=True).len().rows() == [(0, 3), (2, 3), (4, 3)]  # of 3 and 5 no J
    _, table = scaling.draw({"prefixes": data}, styles(m="base"), [[3, 5]])
    points = table.filter(p=1).sort("point").select("point", "prefix", "n", "tokens").rows()
    assert points == [(0, 0, 3, 0.0), (1, 2, 3, 20.0), (2, 4, 3, pytest.approx(110 / 3)), (3, 5, 3, 40.0)]


def test_a_trace_that_has_ended_keeps_its_last_J():
    lengths = {"a": 1, "b": 3, "c": 2}
    rows = [("m", "s", name, 0, j, j / 4) for name, k in lengths.items() for j in range(k + 1)]
    table = progress.at_every_nth(table_of("model dataset problem_id sample prefix J", rows), 1)
    assert table.height == 3 * 3  # up to prefix 2, the 95th percentile, rounded down
    last = table.filter(prefix=2).select("problem_id", "J")
    assert dict(last.iter_rows()) == {"a": 0.25, "b": 0.5, "c": 0.5}


def test_a_model_without_backtracks_keeps_its_curve_of_J():
    rows = of_models("progress", "base", "star_1")
    short = rows.filter((pl.col("model") == "base") | (pl.col("prefix") < 2))
    looks = {name: ModelStyle(label=name, parameterization="backtracking") for name in ("base", "star_1")}
    figure, table = progress.draw({"progress": short}, looks)
    assert set(table.drop_nulls("J")["model"]) == {"base", "star_1"}
    assert len(figure.axes[0].get_lines()) == 2


def test_of_backtracking_models_the_histogram_has_the_backtracking_episode_alone():
    backtracks = pl.when(prefix=BACKTRACK).then(0.9).otherwise(0.0).alias("progress")
    data = of_models("progress", "base").with_columns(backtracks)
    _, table = progress.draw({"progress": data}, {"base": ModelStyle(label="M", parameterization="backtracking")})
    (bar,) = table.filter(pl.col("share") > 0).iter_rows(named=True)
    assert bar["share"] == 1 and bar["from"] < 0.9 < bar["to"]


@pytest.mark.parametrize(("module", "measured"), [(episode_counts, "episodes"), (progress, "progress")])
def test_distributions_are_small_multiples_on_one_axis(module, measured):
    figure, _ = module.draw({measured: of_models(measured)}, MODELS)
    axes = [axis for axis in figure.axes if axis.get_visible()][-len(MODELS) :]
    assert len({(axis.get_xlim(), axis.get_ylim(), axis.get_yscale()) for axis in axes}) == 1
    titles = [axis.get_title(loc="left").splitlines()[0] for axis in axes]
    assert titles == [style.label for style in MODELS.values()]


@pytest.mark.parametrize(("counts", "ticks"), [([1, 1], ["1"]), ([2, 3, 5], ["2", "3", "4", "5"]), ([1, 38], None)])
def test_ticks_stand_where_bins_are(counts, ticks):
    rows = [("m", "d", f"p{i}", 0, count, True) for i, count in enumerate(counts)]
    table = table_of("model dataset problem_id sample episodes closed", rows)
    figure, _ = episode_counts.draw({"episodes": table}, styles(m="base"))
    names = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    places = figure.axes[0].get_xticks().tolist()
    assert names == ticks if ticks else names[0] == "1–2" and places[0] == 1.5
    low, high = figure.axes[0].get_xlim()
    assert (low, places[0]) == (min(counts) - 0.5, (low + low + (2 if ticks is None else 1)) / 2) and places[-1] < high


def test_names_at_line_ends_do_not_overlap_and_are_led_to_the_ends():
    tables = {"regret": of_models("regret").with_columns(regret=pl.lit(0.5))}
    figure, _ = regret.draw(tables, MODELS)
    figure.canvas.draw()
    names = [text for text in figure.axes[0].texts if text.get_text()]
    boxes = sorted((box.y0, box.y1) for text in names for box in [Text.get_window_extent(text)])
    assert len(boxes) == len(MODELS) and all(low >= top - 1 for (_, top), (low, _) in pairwise(boxes))
    assert all(text.xy == (256, 0.5) and text.arrow_patch for text in names)  # beyond the thoughts' own budgets


def test_a_model_that_is_not_extended_has_its_name_at_its_own_end():
    rows = of_models("regret").filter((pl.col("model") != "star_1") | (pl.col("extensions") == 0))
    figure, _ = regret.draw({"regret": rows}, MODELS)
    ends = {" ".join(text.get_text().split()): text.xy[0] for text in figure.axes[0].texts}
    assert ends == {"Base": 256, "STaR": 128, "MRT (STaR)": 256}
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["64", "128", "192\n(1)", "256\n(2)"]


def test_a_model_of_short_thoughts_may_have_no_regret_by_episodes():
    _, table = episode_regret.draw({"episode_regret": of_models("episode_regret", "base")}, MODELS)
    assert table["model"].unique().to_list() == ["base"]


def test_thoughts_that_are_all_too_short_give_an_empty_figure(drawn):
    rows = of_models("episode_regret", "base").with_columns(reached=pl.lit(0.0))
    figure, table = drawn(episode_regret, {"episode_regret": rows})
    assert table.is_empty() and [text.get_text() for text in figure.texts] == ["nothing to draw"]
    assert not any(axis.get_visible() for axis in figure.axes)


# ---- tokens, cost, training


def test_a_model_without_token_counts_has_no_curve_and_spoils_none(drawn):
    """Imported completions need none."""
    unknown = pl.lit(None, pl.Float64)
    maj, accuracy = (of_models(name, "base", "star_1") for name in ("maj", "accuracy"))

    def without_tokens(**rows):
        return maj.with_columns(pl.when(**rows).then(unknown).otherwise("tokens").alias("tokens"))

    none = maj.with_columns(unknown.alias("tokens"))
    _, table = drawn(maj_tokens, {"maj": none})
    assert table["tokens"].null_count() == table.height
    layout = token_efficiency.layout(token_efficiency.summary({"maj": none}, MODELS), MODELS)
    assert not layout.cells and layout.note.startswith("No two models have known token counts")
    figure, _ = maj_tokens.draw({"maj": without_tokens(model="base")}, MODELS)
    (axis,) = [each for each in figure.axes if each.get_visible()]
    assert axis.texts[0].get_text().endswith(f"not known:\n{MODELS['base'].label}")
    drawn_labels = {line.get_label() for line in axis.get_lines()}
    assert MODELS["star_1"].label in drawn_labels and MODELS["base"].label not in drawn_labels
    efficiency = [claim(v, "star_1", "base") for v in ("token efficiency", "linearized token efficiency")]
    for table in (none, without_tokens(model="base"), maj.clear(), pl.DataFrame()):
        assert claims.summary({"maj": table, "accuracy": accuracy}, MODELS, efficiency).is_empty()
    for more in ({"accuracy": accuracy}, {}):  # an experiment need not measure that
        (n,) = claims.summary({"maj": without_tokens(problem_id="p1"), **more}, MODELS, efficiency)["problems"]
        assert n == len(PROBLEMS) - 1


def test_costs_of_models_that_are_always_right_are_drawn(drawn):
    """Their intervals have an end on the wrong side, by rounding."""
    problems = pl.DataFrame({"problem_id": [f"p{i}" for i in range(150)]})
    right = of_models("accuracy", "star_1").drop("problem_id").head(1).join(problems, how="cross")
    tables = {"accuracy": right.with_columns(accuracy=pl.lit(1.0)), "cost": of_models("cost", "star_1")}
    assert drawn(cost, tables)[1]["estimate"].to_list() == pytest.approx([1.0])


def test_costs_are_drawn_where_accuracy_is_not_measured(drawn):
    _, table = drawn(cost, {name: of_models(name, "base", "star_1") for name in ("regret", "cost")})
    assert set(table["value"]) and all(value.startswith("regret at ") for value in table["value"])


def test_budget_forcing_is_drawn_by_extensions_and_by_tokens():
    """Figure 29; the tokens are those of the thought and of its answer."""
    figure, table = budget_forcing.draw({"budget_forcing": of_models("budget_forcing")}, MODELS)
    extensions, tokens = figure.axes
    for axis, x in ((extensions, [0, 2, 4, 6, 8]), (tokens, [20, 38, 56, 74, 92])):
        for line, model in zip(axis.get_lines(), MODELS, strict=True):
            assert line.get_xdata().tolist() == x
            assert line.get_ydata().tolist() == table.filter(model=model).sort("extensions")["accuracy"].to_list()
    assert tokens.get_xlabel() == "tokens of the thought and its answer"


def test_early_exit_is_drawn_with_answers_free_and_paid_for():
    """A line over tau, and a mark for the oracle and for whole thoughts, each at its tokens."""
    rows = of_models("early_exit")
    figure, table = early_exit.draw({"early_exit": rows}, MODELS)
    for axis, x in zip(figure.axes, ("tokens", "paid_tokens"), strict=True):
        for model in MODELS:
            label, of = MODELS[model].label, table.filter(model=model)
            (line,) = [line for line in axis.get_lines() if line.get_label() == label]
            agreeing = of.drop_nulls("tau").sort("tau")
            assert line.get_xdata().tolist() == agreeing[x].to_list()
            assert line.get_ydata().tolist() == agreeing["accuracy"].to_list()
        marks = [(bar.lines[0].get_fillstyle(), *bar.lines[0].get_xydata()[0]) for bar in axis.containers]
        fills = {"whole": "full", "oracle": "none"}
        shown = table.filter(pl.col("tau").is_null())
        assert sorted(marks) == sorted((fills[row["rule"]], row[x], row["accuracy"]) for row in shown.to_dicts())
    assert {"whole thought", "oracle"} <= set(texts_of(figure))
    assert [axis.get_xlabel().split()[-3:] for axis in figure.axes] == [
        ["and", "one", "answer"],
        ["answers", "of", "mu"],
    ]


def test_linearized_search_is_drawn_beside_parallel_sampling(shown):
    assert set(shown("maj_tokens", ["maj", "linearized"])["mode"]) == {"parallel", "linearized"}


@pytest.mark.parametrize("least", [60, 50])
def test_a_curriculums_steps_are_counted_on(least):
    """Also after the shortest run, where a line ends and the next goes on, and over a model without a log."""
    looks = {"short": ModelStyle(label="8K"), "long": ModelStyle(label="16K", ancestors=("between", "short"))}
    log = measure("rl_log", "short")
    logs = [of_runs(log.select(pl.lit(model).alias("model"), pl.all()), {}) for model in looks]
    again = [one.with_columns(pl.format("{}_seed1", "model").alias("run")).filter(pl.col("step") <= 50) for one in logs]
    _, table = reward.draw({"rl_log": pl.concat(logs if least == 60 else [*logs, *again])}, looks)
    assert table.filter(model="short")["step"].to_list() == list(range(1, least + 1))
    assert table.filter(model="long")["step"].to_list() == list(range(least + 1, 2 * least + 1))
    assert table["runs"].unique().item() == (1 if least == 60 else 2)


# ---- the table of accuracies


def laid_out(rows, models=MODELS, **more):
    """Numbers and text of the table."""
    table = pass1.summary({"accuracy": rows, **more}, models)
    return table, pass1.layout(table, models)


def test_a_line_over_training_goes_from_the_parent_through_its_checkpoints_to_the_model(drawn):
    way = {n: ModelStyle(label=f"step {n}", method="star", checkpoint_of="star_1", step=n) for n in (20, 40)}
    models = DESCENDED | {f"star_1_step{n}": style for n, style in way.items()}
    tables = {name: of_models(name, *models) for name in ("accuracy", "regret")}
    tables |= {"sft_log": of_models("sft_log", "star_1"), "rl_log": pl.DataFrame()}
    figure, data = drawn(over_training, tables, models)
    assert [axis.get_ylabel() for axis in figure.axes] == ["pass@1", "normalized regret"]
    for measured, column in (("accuracy", "accuracy"), ("regret", "regret")):
        line = data.filter(measure=measured)
        assert line["step"].to_list() == [0, 20, 40, 60] and set(line["trained"]) == {"star_1"}
        assert line["model"].to_list() == ["base", "star_1_step20", "star_1_step40", "star_1"]
        rows = tables[measured].filter(pl.col("budget") == 128) if column == "regret" else tables[measured]
        means = dict(rows.group_by("model").agg(pl.col(column).mean()).iter_rows())
        assert line["value"].to_list() == pytest.approx([means[model] for model in line["model"]])
        assert (line["low"] <= line["value"]).all() and (line["value"] <= line["high"]).all()
    without, data = drawn(over_training, tables | {"regret": pl.DataFrame()}, models)
    assert len(without.axes) == 1 and set(data["measure"]) == {"accuracy"}


def test_checkpoints_are_in_no_figure_but_that_over_training():
    first, *more = read(TINY)
    first["models"]["mrt_1"]["recipe"] = {"evaluate_steps": [1]}
    made = figures_of(first, *more)
    names = {name for name in made.entries if any("mrt_1_step1" in of for of in made.tables(name).values())}
    assert names == {"over_training"} and made.wanted("over_training")
    assert "results/tiny/metrics/mrt_1_step1/toy_test.regret.parquet" in made.files("over_training")
    plain = figures_of(*read(TINY))
    assert not plain.wanted("over_training")
    assert plain.files("over_training") == ["evaluate_steps in the recipe of a measured model"]
    assert all(plain.settings(name) == made.settings(name) for name in made.entries if name != "over_training")


def test_each_dataset_is_split_by_its_own_difficulties():
    rows = of_models("accuracy", "base")
    many = rows.with_columns(dataset=pl.lit("many"), difficulty=pl.int_range(pl.len()).cast(pl.Float64))
    one = rows.with_columns(dataset=pl.lit("one"), difficulty=pl.lit(1.0))
    table, _ = laid_out(pl.concat([rows, many, one]))
    split = table.filter(pl.col("difficulty") != "all").group_by("dataset").len()
    assert split.rows() == [(rows["dataset"][0], 3)]


def test_difficulties_are_sorted_by_number():
    _, parts = laid_out(of_models("accuracy", "base").with_columns(pl.Series("difficulty", [2.0, 10.0, 9.0] * 4)))
    difficulties = [name.split(", ")[1].split(" ")[0] for name in parts.header if ", " in name]
    assert difficulties == ["2", "9", "10"]


def test_the_table_marks_the_best_and_gives_intervals():
    table, parts = laid_out(of_models("accuracy"))
    assert set(table["difficulty"]) == {"all", "3", "4", "5"}
    best = table.filter(difficulty="all").sort("accuracy")[-1]
    row = next(line for line in markdown(parts).splitlines() if line.startswith(f"| {MODELS[best['model'][0]].label} "))
    assert f"**{100 * best['accuracy'][0]:.1f} [" in row
    assert latex(parts).count("\\\\") == 4 and "toy\\_test" in latex(parts)
    assert page(parts).count("<tr>") == 4


def test_the_table_says_how_imported_rows_were_read():
    what = {"begin outside a thought: an answer": 40, "are cut off": 2}
    reading = table_of("model dataset what rows", [("base", "toy_test", name, n) for name, n in what.items()])
    note = laid_out(of_models("accuracy"), reading=reading.drop("run"))[1].note
    said = "on toy_test, imported: 40 begin outside a thought: an answer; 2 are cut off."
    assert note.endswith(f" {MODELS['base'].label} {said}") and note.count("imported") == 1


def test_what_is_special_in_markdown_and_latex_is_quoted():
    table = Layout("t", ["R1 #2"], [["a|b 5* _%&#${}^~\\ ≥"]], [(0, 0)], "")
    assert r"| **a\|b 5\* _%&#${}^~\ ≥** |" in markdown(table)
    quoted = r"a|b 5* \_\%\&\#\$\{\}\textasciicircum{}\textasciitilde{}\textbackslash{} $\geq$"
    assert r"R1 \#2 \\" in latex(table) and rf"\textbf{{{quoted}}} \\" in latex(table)


def test_the_table_gives_the_difference_to_the_parent_and_the_average_over_sets():
    models = {name: DESCENDED[name] for name in ("base", "star_1")}
    first = of_models("accuracy", *models)
    second = of_models("accuracy", "base").with_columns(dataset=pl.lit("other"), difficulty=None)
    worse = second.with_columns(pl.col("accuracy") * 0.5, model=pl.lit("star_1"), run=pl.lit("star_1"))
    table, parts = laid_out(pl.concat([first, second, worse], how="diagonal_relaxed"), models)
    row = table.filter(dataset="other", model="star_1", difficulty="all").row(0, named=True)
    assert row["difference"] == pytest.approx(-row["accuracy"]) and row["difference_high"] < 0
    means = table.filter(pl.col("difficulty") == "all", pl.col("dataset") != "average")
    average = table.filter(dataset="average", model="star_1").row(0, named=True)
    assert average["accuracy"] == pytest.approx(means.filter(model="star_1")["accuracy"].mean())
    assert average["accuracy_low"] < average["accuracy"] < average["accuracy_high"]
    assert any(name.startswith("average") for name in parts.header)
    other = [name.split(" (")[0] for name in parts.header].index("other")
    assert f"({-100 * row['accuracy']:+.1f}*)" in parts.cells[1][other]


def accuracies_of(rows):
    """The measure `accuracy` from (model, run, dataset, problem, accuracy)."""
    table = pl.DataFrame(rows, schema=["model", "run", "dataset", "problem_id", "accuracy"], orient="row")
    rest = {"tokens": 9.0, "characters": 9.0, "difficulty": None, "samples": 4}
    return table.with_columns(pl.lit(value).alias(name) for name, value in rest.items())


def test_a_difference_is_of_the_same_problems_where_runs_lack_some():
    rows = [
        (model, f"{model}{run}", "d", problem, accuracy)
        for model, lacking in (("base", "p1"), ("star_1", "p2"))
        for run in (1, 2)
        for problem, accuracy in (("p1", 1.0), ("p2", 0.0), ("p3", 0.5))
        if run == 1 or problem != lacking
    ]
    row = laid_out(accuracies_of(rows), DESCENDED)[0].filter(model="star_1").row(0, named=True)
    assert (row["difference"], row["difference_n"]) == (0.0, 1)


@pytest.mark.parametrize(("problems", "high", "star"), [(4, 49.0, False), (250, 1.5, True)])
def test_of_few_problems_that_came_out_alike_little_is_known(problems, high, star):
    """Every interval has a width, and a star needs one that excludes 0 with the uncertainty of both models."""
    rows = [
        (m, m, "d", f"p{i}", x + x * (i % 2)) for m, x in (("base", 0.25), ("star_1", 0.0)) for i in range(problems)
    ]
    table, parts = laid_out(accuracies_of(rows), {name: DESCENDED[name] for name in ("base", "star_1")})
    row = table.filter(model="star_1").row(0, named=True)
    assert row["accuracy"] == row["accuracy_low"] == 0 and 100 * row["accuracy_high"] == pytest.approx(high, abs=0.05)
    assert (row["difference_high"] < 0) == star and ("*" in parts.cells[1][1]) == star


def test_an_average_is_of_the_runs_that_all_datasets_have():
    rows = [("star_1", f"r{run}", "d", f"p{i}", 0.5) for run in (1, 2) for i in range(3)]
    rows += [("star_1", "r1", "e", f"q{i}", 0.7) for i in range(3)]
    row = laid_out(accuracies_of(rows))[0].filter(dataset="average").row(0, named=True)
    assert (row["accuracy"], row["runs"]) == (pytest.approx(0.6), 1)


def test_a_model_measured_on_fewer_problems_says_so_and_is_not_bold():
    rows = partial().with_columns(pl.when(model="mrt_2").then(1.0).otherwise("accuracy").alias("accuracy"))
    table, parts = laid_out(rows, {**MODELS, "mrt_2": MODELS["mrt_2"].model_copy(update={"ancestors": ("base",)})})
    row = table.filter(model="mrt_2", difficulty="all").row(0, named=True)
    assert (row["n"], row["of"], row["samples_least"], row["samples_most"], row["difference_n"]) == (2, 12, 2, 2, 2)
    column = parts.header.index("toy_test (n = 12)")
    assert parts.cells[2][column].startswith("100.0 [") and parts.cells[2][column].endswith(", n = 2 of 12, 2 samples")
    assert parts.cells[2][-1] == "90, n = 2 of 12, 2 samples"  # tokens
    assert [of for of in parts.bold if of[1] == column] == [(int(table[1, "accuracy"] > table[0, "accuracy"]), column)]
    assert "8 samples a problem" in parts.note and ", n" not in parts.cells[0][column]


def test_a_best_of_one_is_not_bold():
    few = partial().filter(model="mrt_2").drop("samples")
    assert not laid_out(pl.concat([of_models("accuracy", "base"), few]))[1].bold


def test_models_on_different_problems_are_told_apart_though_they_are_as_many():
    first = of_models("accuracy", "base").filter(pl.col("problem_id").is_in(PROBLEMS[:8]))
    other = of_models("accuracy", "star_1").filter(pl.col("problem_id").is_in(PROBLEMS[4:]))
    _, parts = laid_out(pl.concat([first, other]))
    column = parts.header.index("toy_test (n = 12)")
    assert all(parts.cells[i][column].endswith(", n = 8 of 12") for i in (0, 1)) and not parts.bold


def test_lengths_that_some_problems_lack_say_so():
    """Imported completions may have token counts in part."""
    some = pl.when(model="base", problem_id="p0").then(None).otherwise("tokens").alias("tokens")
    _, parts = laid_out(of_models("accuracy", "base", "star_1").with_columns(some))
    assert [cells[-1] for cells in parts.cells] == ["90, n = 11 of 12", "90", ""]


def test_rows_of_one_difficulty_have_their_own_difference():
    rows, gain = of_models("accuracy", "base"), pl.col("accuracy") + pl.col("difficulty") / 10
    better = rows.with_columns(accuracy=gain, model=pl.lit("star_1"), run=pl.lit("star_1"))
    table = laid_out(pl.concat([rows, better]), DESCENDED)[0].filter(model="star_1")
    differences = dict(table.select("difficulty", "difference").iter_rows())
    assert differences == pytest.approx({"all": 0.4, "3": 0.3, "4": 0.4, "5": 0.5})
    assert set(table["difference_n"]) == {12, 4}


def test_a_training_with_fewer_runs_says_so_and_is_compared_over_problems():
    models = {**DESCENDED, "mrt_2": MODELS["mrt_2"].model_copy(update={"ancestors": ("star_1", "base")})}
    rows = of_models("accuracy")
    again = rows.filter(model="star_1").with_columns(pl.lit("again").alias("run"), pl.col("accuracy") * 0.9)
    table, parts = laid_out(pl.concat([rows, again]), models)
    over = dict(table.filter(difficulty="all").select("model", "difference_over").iter_rows())
    assert over == {"base": None, "star_1": "runs and problems", "mrt_2": "problems"}
    parts = pass1.layout(table.filter(difficulty="all"), models)
    assert parts.cells[2][1].endswith(", 1 run") and "run" not in parts.cells[0][1] + parts.cells[1][1]
    assert "†: over problems alone" in parts.note


# ---- the tables of token efficiency and of runs


def test_token_efficiency_compares_models_on_the_problems_of_both():
    data = of_models("maj", "base").with_columns(pl.col("maj") + 0.01 * pl.col("k"))
    half = data.with_columns(pl.lit("star_1").alias("model"), pl.col("tokens") / 2)
    fewer = data.filter(pl.col("problem_id") != "p0").with_columns(pl.lit("mrt_2").alias("model"), pl.col("tokens") / 3)
    in_a_row = pl.concat([data, half.with_columns(pl.col("tokens") / 2)])
    table = token_efficiency.summary({"maj": pl.concat([data, half, fewer]), "linearized": in_a_row}, MODELS)
    assert table.filter(mode="parallel").height == 6
    for mode, ratio in (("parallel", 2), ("linearized", 4)):
        row = table.filter(model="star_1", reference="base", mode=mode).row(0, named=True)
        assert [row["ratio"], row["ratio_low"], row["ratio_high"]] == pytest.approx([ratio] * 3)
        assert (row["n"], row["of"], row["over"]) == (12, 12, "problems")
    part = table.filter(model="mrt_2", reference="base").row(0, named=True)
    assert (part["n"], part["of"], part["ratio"]) == (11, 12, pytest.approx(3))
    parts = token_efficiency.layout(table, MODELS)
    assert parts.header[:2] == ["model", "toy_test (n = 12): than Base"]
    assert parts.cells[1][:2] == ["STaR", "2.00 [2.00, 2.00]"] and (1, 1) in parts.bold
    assert parts.cells[2][1] == "3.00 [3.00, 3.00], n = 11 of 12" and (2, 1) not in parts.bold
    assert parts.cells[4][:2] == ["STaR, linearized", "4.00 [4.00, 4.00]"] and (4, 1) in parts.bold
    assert "of this one run of each training" in parts.note
    parts = token_efficiency.layout(table.with_columns(bound=pl.lit("at most")), MODELS)
    assert parts.cells[1][1] == "≤ 2.00 [2.00, 2.00]" and not parts.bold


def test_runs_are_compared_over_seeds_and_problems():
    looks = styles(base="base", grpo="grpo", mrt_rl="mrt_rl")
    looks |= {m: looks[m].model_copy(update={"ancestors": ("base",)}) for m in ("grpo", "mrt_rl")}
    values = {"base": (0.25, 90.0), "grpo": (0.5, 80.0), "mrt_rl": (0.5, 60.0), "again": (0.75, 40.0)}
    rows = [(m, "toy_test", p, right, n) for m, (right, n) in values.items() for p in PROBLEMS]
    flops = [("grpo", 10, 1.0), ("mrt_rl", 20, 2.0), ("again", 40, 4.0)]
    tables = {
        "accuracy": table_of("model dataset problem_id accuracy tokens", rows, again="mrt_rl"),
        "regret": pl.DataFrame(),
        "cost": table_of("model generated_tokens flops", flops, again="mrt_rl"),
    }
    table = runs.summary(tables, looks)
    row = table.filter(model="mrt_rl", value="accuracy").row(0, named=True)
    assert [row[c] for c in ("runs", "estimate", "low", "high")] == pytest.approx([2, 0.625, 0, 1])  # t of one df: all
    assert [row[c] for c in ("difference", "generated_tokens", "flops")] == pytest.approx([0.125, 30, 3])
    assert table.filter(model="again").is_empty() and table.filter(model="base")["flops"].to_list() == [0, 0]
    assert "the difference to GRPO, with" in runs.layout(table, looks).note
    without = styles(base="base", mrt_rl="mrt_rl")
    assert "difference" not in runs.layout(table.filter(pl.col("model") != "grpo"), without).note
    parts = runs.layout(table, looks)
    low, high = (f"{50 + sign * 12.7062 * 10:.1f}" for sign in (-1, 1))  # of two runs, 40 and 60: t of one df
    assert parts.cells[2][-1] == f"50.0 [{low}, {high}] (-30.0*†)" and parts.cells[1][-1] == "80.0 [80.0, 80.0]"
    assert parts.header[-1] == "toy_test: tokens (n = 12)" and "†: over problems alone" in parts.note


# ---- backtracking search


def solution_tree():
    """A tree of one problem: three solutions that begin with a, of which one is right, and one that begins with b."""
    tree = Tree(Backtracking())
    for steps, right in (("a c", False), ("a d", True), ("a e", False), ("b f", False)):
        text = "".join(f"Step {i}: {step}\n\n" for i, step in enumerate(steps.split(), start=1))
        tree.add(0, f"{text}Answer: {steps}", right)
    return tree


def test_the_constructions_of_a_tree_are_drawn_as_paths(drawn):
    tree = solution_tree()
    nodes, sets = tree.table("p"), []
    for method in CONSTRUCTIONS:
        made = examples(Paths(nodes), method, tree.words, Random(0))
        rows = [("p", e.leaf, e.kept, e.attempt, e.completion, 1.0) for e in made]
        table = pl.DataFrame(rows, schema=SET.columns, orient="row")
        sets.append(table.select(pl.lit(method).alias("model"), pl.all()))
    looks = styles(**{method: method for method in ("base", *CONSTRUCTIONS)})
    tables = {"constructions": pl.concat(sets), "trees": nodes.select(pl.lit("base").alias("model"), pl.all())}
    _, data = drawn(constructions, tables, looks)
    texts = {
        model: {path: "".join(rows.sort("place")["text"]) for (path,), rows in of.group_by("path")}
        for (model,), of in data.group_by("model")
    }
    right = "Step 1: a\n\nStep 2: d\n\nAnswer: a d"
    assert {paths["revision"] for paths in texts.values()} == {right} and set(texts) == set(CONSTRUCTIONS)
    assert "attempt" not in texts["rejection"] and texts["warmstart"]["attempt"].startswith("Step 1: a")
    elsewhere = sets[0].with_columns(problem_id=pl.lit("q"))
    assert drawn(constructions, tables | {"constructions": elsewhere}, looks)[1].is_empty()


def test_a_backtrack_that_helps_and_one_that_does_not_are_drawn(drawn):
    texts = ("Step 1: $\\boxed{a}$\n\nAnswer: 3", "\n\nWait, this seems off.\n\nStep 1:", " b\n\nAnswer: 4")
    gains = {"mrt": [0.2, 0.9, 0.5], "base": [0.0, 0.1, 0.2]}  # of the backtracks of three traces
    places = [(m, "test", "p", i, gain) for m, of in gains.items() for i, gain in enumerate(of)]
    rows = [(*at, n, text) for *at, _ in places for n, text in enumerate(texts)]
    traces = table_of("model dataset problem_id sample episode text", rows).drop("run")
    curve = ((1, lambda g: (0.0, 0.0)), (2, lambda g: (g, g)), (3, lambda g: (1.0, 1 - g)))
    rows = [(*at, j, 3, *values(gain)) for *at, gain in places for j, values in curve]
    J = table_of("model dataset problem_id sample prefix episodes J progress", rows).drop("run")
    looks = styles(base="base", mrt="mrt")
    _, data = drawn(backtrack, {"traces": traces, "progress": J}, looks)
    assert data["model"].unique().to_list() == ["mrt"] and data["sample"].to_list() == [1, 1, 1, 0, 0, 0]
    never = J.with_columns(episodes=pl.lit(1, pl.Int64))
    assert drawn(backtrack, {"traces": traces, "progress": never}, looks)[1].is_empty()


# ---- claims

ACCURACY = "model dataset problem_id accuracy"
KEYS = [f"p{i}" for i in range(20)]


def test_gains_are_a_ratio_only_where_the_other_model_gains():
    """Of two models that lose, the one that loses twice as much has not gained twice as much."""
    noise = np.random.default_rng(0).random((3, 40)) / 100

    def verdict(a, b):
        shifts = enumerate({"base": 0, "a": a, "b": b}.items())
        rows = [(m, "d", f"p{j}", 0.5 + shift + noise[i, j], 9.0) for i, (m, shift) in shifts for j in range(40)]
        tables = {"accuracy": table_of(f"{ACCURACY} tokens", rows)}
        looks = styles(base="base", a="base", b="base")
        return claims.summary(tables, looks, [claim("accuracy", gains_over="base")]).select("verdict", "ratio").row(0)

    assert verdict(0.2, 0.1) == ("supported", True)
    assert verdict(-0.2, -0.1) == ("contradicted", False)
    assert verdict(0.1, -0.1) == ("supported", False)


@pytest.mark.filterwarnings("error")
def test_one_problem_decides_nothing():
    accuracy = of_models("accuracy", "base", "star_1").filter(problem_id="p1")
    table = claims.summary({"accuracy": accuracy}, MODELS, [claim("accuracy", "star_1", "base")])
    (row,) = table.iter_rows(named=True)
    assert row["verdict"] == "not tested" and row["low"] == row["high"] != 0 and row["p"] is None


def test_claims_are_decided_over_runs():
    shifts = {"a": 0.3, "a1": 0.32, "a2": 0.31, "a3": 0.29, "b": 0.1}
    first, looks, rng = dict.fromkeys(("a1", "a2", "a3"), "a"), styles(a="mrt", b="base"), np.random.default_rng(0)
    accuracy = [(m, "d", p, min(1, x + rng.random() / 10), 50.0) for m, x in shifts.items() for p in KEYS]
    maj = [(m, "d", p, k, x + k / 20, 50.0 * k, 0.0) for m, x in shifts.items() for p in KEYS for k in (1, 2, 4)]
    tables = {
        "accuracy": table_of(f"{ACCURACY} tokens", accuracy, **first),
        "maj": table_of("model dataset problem_id k maj tokens pass", maj, **first),
    }
    values = {"accuracy": "more", "tokens": "less", "token efficiency": "more", "regret at 9": "less"}
    rows = [claim(value, expect=expect) for value, expect in (values | {"maj at equal tokens": "more"}).items()]
    table = claims.summary(tables, looks, rows)  # regret is not measured
    assert table["verdict"].to_list() == ["supported", "not significant", "supported", "supported"]
    assert table["runs"].to_list() == [4] * 4 and table["than_runs"].to_list() == [1] * 4
    assert table["problems"].to_list() == table["of"].to_list() == [20] * 4
    assert table["bound"].to_list() == [None, None, "at least", None]
    assert set(table["family"]) == {"base against mrt"} and set(table["over"]) == {"runs and problems"}
    cells = claims.layout(table, looks).cells
    assert cells[0][2].startswith("accuracy, A against B: +18.8 [") and cells[2][2].endswith("x")
    assert cells[2][2].startswith("token efficiency, A against B: ≥ ")
    assert cells[3][2].startswith("maj at equal tokens, A against B: +20.5 [")
    apart = {**tables, "maj": tables["maj"].with_columns(pl.col("tokens") * pl.when(model="b").then(100).otherwise(1))}
    none = claims.summary(apart, looks, [rows[-1], rows[0]])
    assert none["verdict"].to_list() == ["not tested", "supported"] and none["p"].to_list()[0] is None
    assert claims.layout(none, looks).cells[0][2] == "maj at equal tokens, A against B: the curves share no tokens"
    assert cells[1][3:6] == ["4 against 1", "20", "not significant (p = 1.000), not by more runs"]
    many = pl.lit(504, pl.Int64).alias("needed")
    text = claims.layout(table[1:2].with_columns(many), looks).cells[0][5]
    assert text == "not significant (p = 1.000), would need over 100 runs"
    alike = claims.summary(tables, looks, [claim("accuracy", expect=e, margin=0.3) for e in ("same", "not more")])
    verdicts = [row[5] for row in claims.layout(alike, looks).cells]
    assert all(word.startswith("supported (p ") and word.endswith(" (alike within 30)") for word in verdicts)


def test_comparisons_on_several_sets_name_theirs():
    shares = {("a", "d"): 0.3, ("b", "d"): 0.5, ("a", "e"): 0.7, ("b", "e"): 0.5}
    rows = [(m, d, p, x, 50.0) for (m, d), x in shares.items() for p in KEYS]
    accuracy, looks = table_of(f"{ACCURACY} tokens", rows), styles(a="base", b="base")
    table = claims.summary({"accuracy": accuracy}, looks, [claim("accuracy")])
    assert table.select("dataset", "estimate").rows() == [("d", pytest.approx(-0.2)), ("e", pytest.approx(0.2))]
    on_d, on_e = (row[2] for row in claims.layout(table, looks).cells)
    assert on_d.startswith("accuracy on d, A against B: -20") and on_e.startswith("accuracy on e, A against B: +20")
    assert " on d" not in claims.layout(table[:1], looks).cells[0][2]


def test_a_single_training_run_decides_nothing():
    """The interval is over problems; how much another run would differ is not known. A model that is given is known."""
    rng = np.random.default_rng(0)
    rows = [(m, "d", p, x + rng.random() / 10, 9.0) for m, x in (("a", 0.5), ("b", 0.1)) for p in KEYS]
    tables, trained = {"accuracy": table_of(f"{ACCURACY} tokens", rows)}, styles(a="mrt", b="base")
    (row,) = claims.summary(tables, styles(a="base", b="base"), [claim("accuracy")]).iter_rows(named=True)
    assert (row["verdict"], row["over"]) == ("supported", "runs and problems")
    table = claims.summary(tables, trained, [claim("accuracy")])
    (row,) = table.iter_rows(named=True)
    assert (row["verdict"], row["over"], row["p"]) == ("not tested", "problems", None) and row["low"] > 0
    parts = claims.layout(table, trained)
    assert parts.cells[0][2].endswith("]†") and "†: over problems alone" in parts.note


def test_verdicts_are_corrected_for_the_number_of_claims_about_two_methods():
    """Alone the difference is significant; as one of thirty about the same methods it is not."""
    rng = np.random.default_rng(3)
    rows = [
        (m, f"{m}{run}", "d", f"p{i}", 0.4 + x + of_run + rng.normal(0, 0.1))
        for m, x in {"b": 0.0, "a": 0.05, "c": 0.05}.items()
        for run, of_run in enumerate((-0.02, -0.01, 0.0, 0.01, 0.02))
        for i in range(30)
    ]
    tables, looks = {"accuracy": accuracies_of(rows)}, styles(a="mrt", b="star", c="grpo")
    one, many = [claim("accuracy")], [claim("tokens")] * 29
    alone = claims.summary(tables, looks, one)
    assert alone["verdict"].to_list() == ["supported"] and 0.05 / 30 < alone["p"].item() < 0.05
    table = claims.summary(tables, looks, one + many)
    assert table["p"][0] == alone["p"].item() and table["p_corrected"][0] == pytest.approx(30 * table["p"][0])
    assert set(table["verdict"]) == {"not significant"}
    table = claims.summary(tables, looks, one + [row | {"model": "c"} for row in many])  # of other methods
    families = table["family"].unique().sort().to_list()
    assert table["verdict"][0] == "supported" and families == ["grpo against star", "mrt against star"]
    note = claims.layout(table, looks).note
    assert "here 30 in 2 families" in note and "at most 0.1 of 2 families" in note and "at most 10% of cases" in note


def test_a_model_is_compared_with_zero_across_modes_and_by_its_log():
    rng = np.random.default_rng(0)
    J = [("a", "d", p, 0, 2, 0.2 + rng.random() / 10) for p in KEYS]
    curve = [("a", "d", p, k, 0.5 + k / 20 + rng.random() / 100, 40.0 * k, 0.0) for p in KEYS for k in (1, 2, 4)]
    maj = table_of("model dataset problem_id k maj tokens pass", curve)
    losses = {"a": 0.1, "a1": 0.12, "a2": 0.11, "b": 0.3, "b1": 0.31, "b2": 0.32}
    log = [(m, "train", step, x + i / 100) for m, x in losses.items() for i, step in enumerate((1, 2))]
    tables = {
        "progress": table_of("model dataset problem_id sample prefix progress", J),
        "maj": maj,
        "linearized": maj.with_columns(pl.col("tokens") / 2),
        "accuracy": maj.filter(k=1).rename({"maj": "accuracy"}),
        "sft_log": table_of("model dataset step loss", log, a1="a", a2="a", b1="b", b2="b"),
    }
    looks = styles(a="base", b="base")
    progress_of_it = claim("progress of the backtrack")
    del progress_of_it["than"]
    rows = [
        progress_of_it,
        claim("linearized token efficiency", than="a", than_value="token efficiency"),
        claim("training loss", expect="less"),
    ]
    table = claims.summary(tables, looks, rows)
    assert table["verdict"].to_list() == ["supported"] * 3
    assert table["estimate"].to_list() == pytest.approx([0.25, 2.0, -0.2], abs=0.02)
    cells = claims.layout(table, {}).cells
    efficiency = "linearized token efficiency against token efficiency, A"
    titles = ["progress of the backtrack, A", efficiency, "training loss, A against B"]
    assert [row[2].split(": ")[0] for row in cells] == titles and [row[3] for row in cells] == ["1", "1", "3"]
    few = {"sft_log": tables["sft_log"].filter(~pl.col("run").is_in(["b1", "b2"]))}  # how b's runs differ is not known
    assert claims.summary(few, looks, rows[2:])["verdict"].to_list() == ["not tested"]


VOTES = f"{PREFIXES} answers answer_tokens affordable affordable_maj"


def votes_halfway(**more):
    return claim("votes halfway", "m", "m", section="5", redraw="fig3", than_value="answer at the end", **more)


def test_section_5_is_decided_within_one_model():
    """The end of a thought is worth .5 with one answer, half of it with votes more, in long thoughts alone."""
    traces = ((6, 6, 0.5, (None, None)), (6, 3, 0.1, (4, 0.8)), (2, 2, 0.5, (None, None)), (2, 1, 0.2, (2, 0.2)))
    rows = [
        ("m", "d", p, s // 2, k, j, 1, maj, 10.0 * (j + 1), 8, 10.0, *bought)
        for p in KEYS
        for s, (k, j, maj, bought) in enumerate(traces)
    ]
    table, looks = table_of(VOTES, rows), styles(m="base")
    of_groups = [votes_halfway(episodes=group) for group in ([2, 5], [6, 9])]
    decided = claims.summary({"prefixes": table, "maj": pl.DataFrame()}, looks, of_groups)
    assert decided["verdict"].to_list() == ["contradicted", "supported"]
    assert decided.select("spent", "used", "affordable").rows() == [(1.0, 2, 2), (1.0, 4, 4)]
    text = "votes halfway against answer at the end, M: +30.0 [+30.0, +30.0]"
    assert claims.layout(decided, {}).cells[1][2] == text
    short = table.with_columns(answers=pl.lit(3, pl.Int64))  # sampled: too few to cost as much as the thought
    decided = claims.summary({"prefixes": short}, looks, of_groups)
    assert decided["verdict"].to_list() == ["contradicted", "not tested"]
    assert decided["spent"].to_list() == [1, 0.75]
    text = "not tested, 3 answers sampled, where tokens buy up to 4: 75% of them spent, not at equal tokens"
    assert claims.layout(decided, {}).cells[1][5] == text


def test_the_runs_that_would_decide_within_one_model_are_those_of_the_difference():
    """Runs differ much more than the end of their thoughts and the votes halfway do in each."""
    rng = np.random.default_rng(0)
    rows = [
        (run, "d", p, 0, 6, j, 1, x, 10.0 * (j + 1), 8, 10.0, *((None, None) if j == 6 else (4, x)))
        for run, of_run, gain in (("m", -0.2, 0.06), ("m1", 0.0, -0.01), ("m2", 0.2, 0.01))
        for p in KEYS
        for j, shift in ((6, 0), (3, gain))
        for x in (0.5 + shift + of_run + rng.normal(0, 0.05),)
    ]
    tables = {"prefixes": table_of(VOTES, rows, m1="m", m2="m")}
    (row,) = claims.summary(tables, styles(m="base"), [votes_halfway()]).iter_rows(named=True)
    assert row["verdict"] == "not significant" and row["runs"] == 3
    assert row["needed"] is not None and row["needed"] < 30
