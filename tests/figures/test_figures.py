"""Every figure and table is drawn from a small measure of two models: files, data, and what the numbers say."""

import json
import os
import subprocess
import sys
from functools import reduce
from importlib import import_module

import numpy as np
import polars as pl
import pytest
import yaml
from conftest import ROOT

from mrt.figures.figure import figures
from mrt.figures.stage import of_runs
from mrt.figures.style import Appearance, ModelStyle, spaced_ticks, with_intervals

MODELS = {
    "base": ModelStyle(label="Base"),
    "star_1": ModelStyle(label="STaR", method="star", iteration=1, colour="#009E73"),
    "mrt_2": ModelStyle(label="MRT (STaR)", method="mrt", iteration=2, colour="#D55E00"),
}
PROBLEMS = [f"p{i}" for i in range(12)]
TRACE = {"sample": 0}
OF_PROBLEM = {  # rows of a problem in a made-up measure: of its index, six random numbers and the model's name
    "accuracy": lambda i, x, m: [{"difficulty": 3.0 + i % 3, "accuracy": x[0], "tokens": 90.0, "characters": 300.0}],
    "maj": lambda i, x, m: [{"k": k, "maj": x[0], "pass": 1.0, "tokens": 80.0 * k} for k in (1, 2, 4)],
    "direct": lambda i, x, m: [{"k": k, "maj": x[0], "pass": x[1], "tokens": 9.0 * k} for k in (1, 2, 4)],
    "regret": lambda i, x, m: [
        {"extensions": max(0, b // 64 - 2), "budget": b, "regret": x[0]} for b in (64, 128, 192, 256)
    ],
    "episode_regret": lambda i, x, m: [
        {"episodes": b, "regret": x[b], "hopeless": 0.25, "reached": 1 - b / 8} for b in range(1, 3 + len(m) % 3)
    ],
    "budget_forcing": lambda i, x, m: [
        TRACE | {"extensions": e, "accuracy": x[e // 2], "thought_tokens": 9 * e, "tokens": 9.0 * e + 20}
        for e in (0, 2, 4, 6, 8)
    ],
    "episodes": lambda i, x, m: [TRACE | {"episodes": 2 + i % 4, "closed": True}],
    "prefixes": lambda i, x, m: [
        TRACE | {"episodes": 2 + i % 4, "prefix": j, "p": p, "maj": x[j], "tokens": 60.0 + 15 * j + 8 * p}
        for j in range(3 + i % 4)
        for p in (1, 2, 4, 8)
    ],
    "progress": lambda i, x, m: [
        TRACE | {"episodes": 2 + i % 4, "prefix": j, "J": x[j], "progress": x[j] - x[j - 1] if j else None}
        for j in range(3 + i % 4)
    ],
}


def measure(name, model):
    """A made-up table of a measure of a model."""
    if name.endswith("_log"):
        steps, noise = np.arange(1, 61), np.random.default_rng(len(model)).random(60)
        return pl.DataFrame(
            {"step": steps, "loss": 1 / steps + noise, "reward": noise, "completion_tokens": 90.0 + steps}
        )
    if name == "cost":
        tokens = {"generated_tokens": 1000 * len(model), "prefill_tokens": 5, "trained_tokens": 7}
        return pl.DataFrame([{"trained_model": model, "phase": "training", **tokens, "flops": 1e12}])
    name = "maj" if name == "linearized" else name
    rng = np.random.default_rng([len(name), len(model)])
    values = [rng.random(6) for _ in PROBLEMS]
    rows = [OF_PROBLEM[name](i, values[i], model) for i in range(len(PROBLEMS))]
    return pl.DataFrame([{"problem_id": PROBLEMS[i], **row} for i, of in enumerate(rows) for row in of])


MADE_UP = {*OF_PROBLEM, "linearized", "sft_log", "rl_log", "cost"}
FIGURES = {  # all but those whose measures hold texts
    name: [measure for measure in entry.figure.measures if measure != "linearized"]
    for name, entry in figures().items()
    if not entry.is_table and MADE_UP.issuperset(entry.figure.measures)
}


def arguments(figure, folder, measures, models=MODELS):
    """Command line of a figure of all models' tables, which are written to a folder."""
    tables = {}
    for name in measures:
        for model in ["direct"] if name == "direct" else models:
            path = folder / f"{name}.{model}.parquet"
            measure(name, model).write_parquet(path)
            tables.setdefault(name, {})[model] = {"toy_test": str(path)}
    styles = json.dumps({m: s.model_dump() for m, s in models.items()})
    return [figure, "--tables", json.dumps(tables), "--models", styles, "--out"]


@pytest.mark.parametrize("figure", FIGURES)
def test_each_figure_is_drawn_and_equal_data_gives_equal_files(figure, tmp_path, monkeypatch):
    module = import_module(f"mrt.figures.{figure}")
    command = arguments(figure, tmp_path, FIGURES[figure])
    for out in ("one", "two"):
        monkeypatch.setattr(sys, "argv", [*command, str(tmp_path / out)])
        module.main(module.draw, module.__doc__)
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")
    assert len((tmp_path / "one.png").read_bytes()) > 10_000
    for suffix in ("png", "pdf", "parquet", "csv"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()
    drawn = pl.read_parquet(tmp_path / "one.parquet")
    assert set(drawn["model"]) == set(MODELS)
    assert pl.read_csv(tmp_path / "one.csv").height == drawn.height


MATPLOTLIBRC = """text.usetex: True
font.size: 21
font.family: serif
axes.facecolor: yellow
axes.formatter.use_locale: True
figure.autolayout: True
figure.dpi: 37
figure.max_open_warning: 0
lines.antialiased: False
path.simplify: False
pdf.compression: 0
savefig.bbox: tight
savefig.transparent: True
timezone: Asia/Tokyo
no.such.key: 1
"""


def test_figures_are_the_same_bytes_whatever_matplotlib_is_told_elsewhere(tmp_path):
    """By a file in the working folder, in the user's folder, by the environment; also where it cannot be read."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("MPL", "MATPLOTLIB"))}
    figure, *options = arguments("cost", tmp_path, FIGURES["cost"])
    for folder in ("usual", "working", "user"):
        (tmp_path / folder).mkdir()
    for folder in ("working", "user"):
        (tmp_path / folder / "matplotlibrc").write_text(MATPLOTLIBRC)
    (tmp_path / "bad").write_bytes("# naïve".encode("latin-1"))
    environments = {
        "usual": {},
        "working": {"MATPLOTLIBRC": str(tmp_path / "user" / "matplotlibrc"), "LC_ALL": "de_DE.UTF-8"},
        "user": {
            "MPLCONFIGDIR": str(tmp_path / "user"),
            "MPLBACKEND": "nonsense",
            "MATPLOTLIBRC": str(tmp_path / "bad"),
        },
    }
    for folder, told in environments.items():
        command = [sys.executable, "-m", f"mrt.figures.{figure}", *options, str(tmp_path / folder / "out")]
        environment = usual | {"PYTHONPATH": str(ROOT)} | told
        done = subprocess.run(command, cwd=tmp_path / folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for suffix in ("png", "pdf", "csv"):
            out = f"out.{suffix}"
            assert (tmp_path / folder / out).read_bytes() == (tmp_path / "usual" / out).read_bytes()


@pytest.mark.parametrize("figure", [name for name in FIGURES if name != "episode_counts"])
def test_a_figure_shows_a_model_once_whatever_its_number_of_runs(figure, tmp_path, monkeypatch):
    runs = {f"star_1_seed{i}": MODELS["star_1"].model_copy(update={"replicate_of": "star_1"}) for i in (1, 2)}
    module = import_module(f"mrt.figures.{figure}")
    monkeypatch.setattr(
        sys, "argv", [*arguments(figure, tmp_path, FIGURES[figure], MODELS | runs), str(tmp_path / "out")]
    )
    module.main(module.draw, module.__doc__)
    drawn = pl.read_parquet(tmp_path / "out.parquet")
    assert set(drawn["model"]) == set(MODELS)
    assert set(drawn.filter(pl.col("runs").is_not_null()).group_by("model").agg(pl.col("runs").max()).rows()) == {
        ("base", 1),
        ("star_1", 3),
        ("mrt_2", 1),
    }


def test_traces_are_grouped_as_the_experiment_says(tmp_path, monkeypatch):
    from mrt.figures import scaling

    command = arguments("scaling", tmp_path, ["prefixes"])
    settings = ["--options", json.dumps({"episode_groups": [[2, 2], [4, 5], [40, 50]]})]
    monkeypatch.setattr(sys, "argv", [*command, str(tmp_path / "out"), *settings])
    scaling.main(scaling.draw, scaling.__doc__)
    table = pl.read_parquet(tmp_path / "out.parquet")
    assert set(table["group"]) == {"2 episodes", "4 to 5 episodes"}  # none has 40
    longest = table.group_by("group").agg(pl.col("prefix").max()).sort("group")["prefix"].to_list()
    assert longest == [2, 5]


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


def test_the_groups_of_the_config_reach_figure_3():
    settings = json.loads(figures_of(*read("config/paper_case_study.yaml")).settings("scaling"))
    assert settings["options"] == {"episode_groups": [[6, 10], [26, 30], [41, 45]]}


def test_episodes_stand_above_the_tokens_of_a_scaling_curve():
    """Points are named where there is room: at their tokens, with their number of episodes."""
    from mrt.figures import scaling

    scored = [*range(0, 43, 5), 43]  # every fifth prefix, and the whole thought
    rows = [("m", "s", "p", 0, 43, j, p, j / 50, 100.0 * j + 8 * p) for j in scored for p in (1, 4)]
    schema = ["model", "dataset", "problem_id", "sample", "episodes", "prefix", "p", "maj", "tokens"]
    data = of_runs(pl.DataFrame(rows, schema=schema, orient="row"), {})
    figure, table = scaling.draw({"prefixes": data}, {"m": ModelStyle(label="M")}, [[41, 45]])
    (axis,) = [axis for axis in figure.axes if axis.get_visible()]
    (above,) = axis.child_axes
    assert [label.get_text() for label in above.get_xticklabels()] == [
        str(j) for j in range(0, 43, 5)
    ]  # 43 stands too close to 40
    assert above.get_xticks().tolist() == [100 * j + 8 for j in range(0, 43, 5)]
    one = table.filter(p=1).sort("point")
    assert one["prefix"].to_list() == scored and one["tokens"].to_list() == [100 * j + 8 for j in scored]
    assert one["tokens"].to_list() in [line.get_xdata().tolist() for line in axis.get_lines()]


def test_the_caption_of_figure_3_says_that_two_votes_are_worth_one():
    caption = " ".join(figures()["scaling"].caption.split())
    assert "maj@2 equals maj@1 in expectation" in caption and "`evaluation.weighted_votes`" in caption


def test_logs_of_all_training_runs_reach_the_figures():
    figures = figures_of(*read("tests/tiny.yaml"), {"training": {"runs": 2}})
    assert {"mrt_1", "mrt_1_seed1"} <= figures.tables("loss")["sft_log"].keys()
    assert {"mrt_rl", "mrt_rl_seed1"} <= figures.tables("reward")["rl_log"].keys()


def test_what_is_not_measured_is_not_asked_for_beside_the_cost():
    """Regret needs the meta-prover at every prefix: an experiment that leaves it out does not pay for it."""
    from mrt.figures.runs import summary

    figures = figures_of(*read("tests/tiny.yaml"), {"evaluation": {"measures": ["accuracy", "cost"]}})
    assert {*figures.tables("runs")} == {"accuracy", "cost"}
    models = list(MODELS)
    tables = {"accuracy": of_models("accuracy", *models), "cost": of_models("cost", *models)}
    assert set(summary(tables, MODELS)["value"]) == {"accuracy", "tokens"}


def test_the_direct_baseline_reaches_the_claims():
    figures = figures_of(*read("config.yaml", "experiments/star/config.yaml"))
    assert figures.tables("claims")["direct"] == {
        "direct": {"toy_test": f"{figures.experiment.results}/metrics/direct/toy_test.maj.parquet"}
    }


def test_claims_need_none_of_their_measures_in_particular():
    """The table is made from those that the experiment measures."""
    claim = {"section": "8", "says": "x", "value": "accuracy", "model": "mrt_1", "than": "base", "expect": "more"}
    changed = {"claims": [claim | {"redraw": "table1"}], "evaluation": {"measures": ["accuracy", "maj"]}}
    assert figures_of(*read("tests/tiny.yaml"), changed).wanted("claims")


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
    """Not at the end, with a traceback, but where the target is asked for."""
    alone = read("tests/tiny.yaml")[0]
    alone["models"] = {"base": alone["models"]["base"]}
    alone["evaluation"] |= {"models": ["base"], "measures": ["accuracy", "progress"], "direct": None}
    alone["evaluation"]["budget_forcing"]["models"] = ["base"]
    figures = figures_of(alone)
    assert figures.files(name) == [lacks] and figures.files("pass1") != ["models to measure"]
    trained = figures_of(*read("tests/tiny.yaml"))
    assert trained.files("cost")[0].endswith(".parquet") and trained.files("reward")[0].endswith(".parquet")


def test_the_tree_drawn_is_the_one_that_sets_are_made_from():
    large = {"models": {"large": {"label": "Large", "toy": "shipped"}}}
    taught = {"models": {name: {"teacher": "large"} for name in ("warmstart", "rise", "rejection")}}
    from workflow.traces import TracesPage

    figures = figures_of(*read("config/backtracking.yaml"), large, taught)
    assert {*figures.of_first_tree()["trees"]} == {"large"}
    assert not any("trees/base/" in path for path in TracesPage(figures.experiment, figures.paths).tables())


@pytest.mark.parametrize(
    "names", ["config/paper.yaml", "config/backtracking_paper.yaml", "config.yaml experiments/star/config.yaml"]
)
def test_no_two_models_look_alike(names):
    figures = figures_of(*read(*names.split()))
    look = Appearance({m: ModelStyle(**figures.experiment.style(m)) for m in figures.experiment.evaluation.models})
    lines = [(line["color"], line["linestyle"], line["marker"]) for line in map(look.line, look.models)]
    assert len(set(lines)) == len(lines)


def test_a_model_without_token_counts_has_no_curve_and_spoils_none(tmp_path):
    """Imported completions need none."""
    from mrt.figures import claims, maj_tokens
    from mrt.figures.style import save

    unknown = pl.col("tokens").replace_strict({}, default=None, return_dtype=pl.Float64)
    maj = of_models("maj", "base", "star_1")
    accuracy = of_models("accuracy", "base", "star_1")
    figure, table = maj_tokens.draw({"maj": maj.with_columns(unknown)}, MODELS)
    save(figure, tmp_path / "out")
    assert table["tokens"].null_count() == table.height
    asked = {"section": "8", "says": "x", "model": "star_1", "than": "base", "expect": "more", "redraw": "table1"}
    efficiency = [asked | {"value": value} for value in ("token efficiency", "linearized token efficiency")]
    some = maj.with_columns(pl.when(model="base").then(unknown).otherwise("tokens").alias("tokens"))
    for table in (maj.with_columns(unknown), some, maj.clear(), pl.DataFrame()):
        assert claims.summary({"maj": table, "accuracy": accuracy}, MODELS, efficiency).is_empty()
    part = maj.with_columns(pl.when(pl.col("problem_id") == "p1").then(unknown).otherwise("tokens").alias("tokens"))
    for more in ({"accuracy": accuracy}, {}):  # an experiment need not measure that
        (n,) = claims.summary({"maj": part, **more}, MODELS, efficiency)["problems"]
        assert n == len(PROBLEMS) - 1


def test_gains_are_a_ratio_only_where_the_other_model_gains():
    """Of two models that lose, the one that loses twice as much has not gained twice as much."""
    from mrt.figures import claims

    keys = [f"p{i}" for i in range(40)]
    asked = {"section": "8", "says": "x", "value": "accuracy", "model": "a", "than": "b", "gains_over": "base"}
    asked |= {"expect": "more", "redraw": "table1"}
    styles = {name: ModelStyle(label=name) for name in ("base", "a", "b")}

    def found(a, b):
        noise = np.random.default_rng(0).random((3, 40)) / 100
        rows = [
            ("m", name, "d", key, 0.5 + shift + noise[i, j], 9.0)
            for i, (name, shift) in enumerate({"base": 0, "a": a, "b": b}.items())
            for j, key in enumerate(keys)
        ]
        table = pl.DataFrame(rows, schema=["_", "model", "dataset", "problem_id", "accuracy", "tokens"], orient="row")
        return claims.summary({"accuracy": of_runs(table.drop("_"), {})}, styles, [asked])

    assert found(0.2, 0.1).select("verdict", "ratio").row(0) == ("supported", True)
    assert found(-0.2, -0.1).select("verdict", "ratio").row(0) == ("contradicted", False)
    assert found(0.1, -0.1).select("verdict", "ratio").row(0) == ("supported", False)


@pytest.mark.filterwarnings("error")
def test_one_problem_decides_nothing():
    from mrt.figures import claims

    accuracy = of_models("accuracy", "base", "star_1").filter(pl.col("problem_id") == "p1")
    asked = {"section": "8", "says": "x", "value": "accuracy", "model": "star_1", "than": "base", "redraw": "table1"}
    (row,) = claims.summary({"accuracy": accuracy}, MODELS, [asked | {"expect": "more"}]).iter_rows(named=True)
    assert row["verdict"] == "not significant" and row["low"] == row["high"] != 0 and row["p"] is None


def test_costs_of_models_that_are_always_right_are_drawn(tmp_path):
    """Their intervals have an end on the wrong side, by rounding."""
    from mrt.figures import cost
    from mrt.figures.style import save

    problems = pl.DataFrame({"problem_id": [f"p{i}" for i in range(150)]})
    right = of_models("accuracy", "star_1").drop("problem_id").head(1).join(problems, how="cross")
    tables = {"accuracy": right.with_columns(accuracy=pl.lit(1.0)), "cost": of_models("cost", "star_1")}
    figure, table = cost.draw(tables, MODELS)
    save(figure, tmp_path / "out")
    assert table["estimate"].to_list() == pytest.approx([1.0])


def test_costs_are_drawn_where_accuracy_is_not_measured(tmp_path):
    from mrt.figures import cost
    from mrt.figures.style import save

    models = ("base", "star_1")
    figure, table = cost.draw({name: of_models(name, *models) for name in ("regret", "cost")}, MODELS)
    save(figure, tmp_path / "out")
    assert set(table["value"]) and all(value.startswith("regret at ") for value in table["value"])


def test_a_model_of_short_thoughts_may_have_no_regret_by_episodes():
    from mrt.figures import episode_regret

    _, table = episode_regret.draw({"episode_regret": of_models("episode_regret", "base")}, MODELS)
    assert table["model"].unique().to_list() == ["base"]


def test_thoughts_that_are_all_too_short_give_an_empty_figure(tmp_path):
    from mrt.figures import episode_regret
    from mrt.figures.style import save

    rows = of_models("episode_regret", "base").with_columns(reached=pl.lit(0.0))
    figure, table = episode_regret.draw({"episode_regret": rows}, MODELS)
    save(figure, tmp_path / "out")
    assert table.is_empty() and [text.get_text() for text in figure.texts] == ["nothing to draw"]
    assert not any(axis.get_visible() for axis in figure.axes)


def test_ticks_stand_apart_from_the_last_one_shown():
    """Not from the one before: of many that are close together, more than the first are shown."""
    assert spaced_ticks([*range(1000, 15000, 1000)], 1120) == [*range(1000, 15000, 2000)]


def test_each_dataset_is_split_by_its_own_difficulties():
    from mrt.figures.pass1 import summary

    rows = of_models("accuracy", "base")
    many = rows.with_columns(dataset=pl.lit("many"), difficulty=pl.int_range(pl.len()).cast(pl.Float64))
    one = rows.with_columns(dataset=pl.lit("one"), difficulty=pl.lit(1.0))
    table = summary({"accuracy": pl.concat([rows, many, one])}, MODELS)
    split = table.filter(pl.col("difficulty") != "all").group_by("dataset").len()
    assert split.rows() == [(rows["dataset"][0], 3)]


def test_difficulties_are_sorted_by_number():
    from mrt.figures.pass1 import layout, summary

    rows = of_models("accuracy", "base").with_columns(pl.Series("difficulty", [2.0, 10.0, 9.0] * 4))
    header = layout(summary({"accuracy": rows}, MODELS), MODELS).header
    found = [name.split(", ")[1].split(" ")[0] for name in header if ", " in name]
    assert found == ["2", "9", "10"]


def test_a_model_without_backtracks_keeps_its_curve_of_J():
    from mrt.figures import progress

    rows = of_models("progress", "base", "star_1")
    short = rows.filter((pl.col("model") == "base") | (pl.col("prefix") < 2))
    styles = {name: ModelStyle(label=name, parameterization="backtracking") for name in ("base", "star_1")}
    figure, table = progress.draw({"progress": short}, styles)
    assert set(table.drop_nulls("J")["model"]) == {"base", "star_1"}
    assert len(figure.axes[1].get_lines()) == 2


def test_budget_forcing_is_drawn_by_extensions_and_by_tokens():
    """Figure 29; the tokens are those of the thought and of its answer."""
    from mrt.figures import budget_forcing

    figure, table = budget_forcing.draw({"budget_forcing": of_models("budget_forcing")}, MODELS)
    extensions, tokens = figure.axes
    for axis, x in ((extensions, [0, 2, 4, 6, 8]), (tokens, [20, 38, 56, 74, 92])):
        for line, model in zip(axis.get_lines(), MODELS, strict=True):
            assert line.get_xdata().tolist() == x
            assert line.get_ydata().tolist() == table.filter(model=model).sort("extensions")["accuracy"].to_list()
    assert tokens.get_xlabel() == "tokens of the thought and its answer"


def test_linearized_search_is_drawn_beside_parallel_sampling(tmp_path, monkeypatch):
    from mrt.figures import maj_tokens

    monkeypatch.setattr(sys, "argv", [*arguments("maj_tokens", tmp_path, ["maj", "linearized"]), str(tmp_path / "out")])
    maj_tokens.main(maj_tokens.draw, maj_tokens.__doc__)
    assert set(pl.read_parquet(tmp_path / "out.parquet")["mode"]) == {"parallel", "linearized"}


def test_of_backtracking_models_the_histogram_has_the_backtracking_episode_alone():
    from mrt.analysis.claims import BACKTRACK
    from mrt.figures.progress import draw

    data = measure("progress", "base").select(pl.lit("m").alias("model"), pl.lit("s").alias("dataset"), pl.all())
    data = data.with_columns(pl.when(pl.col("prefix") == BACKTRACK).then(0.9).otherwise(0.0).alias("progress"))
    _, table = draw({"progress": of_runs(data, {})}, {"m": ModelStyle(label="M", parameterization="backtracking")})
    (bar,) = table.filter(pl.col("share") > 0).iter_rows(named=True)
    assert bar["share"] == 1 and bar["from"] < 0.9 < bar["to"]


def test_intervals_are_over_problems_not_over_traces():
    data = pl.DataFrame({"model": "m", "problem_id": ["p", "p", "p", "q"], "J": [1.0, 1.0, 1.0, 0.0]})
    row = with_intervals(data, ["model"], ["J"]).row(0, named=True)
    assert row["J"] == 0.5 and row["n"] == 2 and (row["samples_least"], row["samples_most"]) == (1, 3)
    assert row["J_low"] == 0 and row["J_high"] == 1  # a share's interval does not leave it


def test_unknown_lengths_stay_unknown():
    data = pl.DataFrame(
        {"model": "m", "problem_id": ["p", "q"], "tokens": [None, None]}, schema_overrides={"tokens": pl.Float64}
    )
    assert with_intervals(data, ["model"], ["tokens"]).row(0, named=True)["tokens"] is None


def test_a_method_has_one_colour_and_models_without_a_parent_differ():
    look = Appearance(
        {
            **MODELS,
            "star_2": ModelStyle(label="x", method="star", iteration=2, colour="#009E73"),
            "other": ModelStyle(label="y"),
        }
    )
    assert look.colour("star_1") == look.colour("star_2")
    assert look.line("star_1")["linestyle"] != look.line("star_2")["linestyle"]
    assert look.colour("base") != look.colour("other")
    alike = {
        name: ModelStyle(label=name, method="mrt_rl", iteration=1, colour="#E69F00") for name in ("one", "two", "three")
    }
    lines = [Appearance(alike).line(name) for name in alike]
    assert len({line["color"] for line in lines}) == 1
    assert len({line["linestyle"] for line in lines}) == len({line["marker"] for line in lines}) == 3


def of_models(name, *models):
    tables = [
        measure(name, model).select(pl.lit(model).alias("model"), pl.lit("toy_test").alias("dataset"), pl.all())
        for model in models or MODELS
    ]
    return of_runs(pl.concat(tables), {})


def test_the_table_marks_the_best_and_gives_intervals():
    from mrt.figures.pass1 import layout, summary
    from mrt.figures.tables import latex, markdown, page

    table = summary({"accuracy": of_models("accuracy")}, MODELS)
    assert set(table["difficulty"]) == {"all", "3", "4", "5"}
    parts = layout(table, MODELS)
    text = markdown(parts)
    best = table.filter(pl.col("difficulty") == "all").sort("accuracy")[-1]
    row = next(line for line in text.splitlines() if line.startswith(f"| {MODELS[best['model'][0]].label} "))
    assert f"**{100 * best['accuracy'][0]:.1f} [" in row
    assert latex(parts).count("\\\\") == 4 and "toy\\_test" in latex(parts)
    assert page(parts).count("<tr>") == 4


def test_the_table_says_how_imported_rows_were_read():
    from mrt.figures.pass1 import layout, summary

    first = next(iter(MODELS))
    rows = [
        (first, "toy_test", what, n) for what, n in (("begin outside a thought: an answer", 40), ("are cut off", 2))
    ]
    reading = pl.DataFrame(rows, schema=["model", "dataset", "what", "rows"], orient="row")
    note = layout(summary({"accuracy": of_models("accuracy"), "reading": reading}, MODELS), MODELS).note
    said = "on toy_test, imported: 40 begin outside a thought: an answer; 2 are cut off."
    assert note.endswith(f" {MODELS[first].label} {said}") and note.count("imported") == 1


def test_what_is_special_in_markdown_and_latex_is_quoted():
    from mrt.figures.tables import Layout, latex, markdown

    table = Layout("t", ["R1 #2"], [["a|b 5* _%&#${}^~\\ ≥"]], [(0, 0)], "")
    assert r"| **a\|b 5\* _%&#${}^~\ ≥** |" in markdown(table)
    quoted = r"a|b 5* \_\%\&\#\$\{\}\textasciicircum{}\textasciitilde{}\textbackslash{} $\geq$"
    assert r"R1 \#2 \\" in latex(table) and rf"\textbf{{{quoted}}} \\" in latex(table)


def test_the_table_gives_the_difference_to_the_parent_and_the_average_over_sets():
    from mrt.figures.pass1 import layout, summary

    models = {"base": MODELS["base"], "star_1": MODELS["star_1"].model_copy(update={"parent": "base"})}
    first = of_models("accuracy", *models)
    better = pl.when(pl.col("model") == "star_1").then(pl.col("accuracy") * 0.5).otherwise(pl.col("accuracy"))
    second = of_models("accuracy", "base").with_columns(dataset=pl.lit("other"), difficulty=None)
    second = pl.concat([second, second.with_columns(model=pl.lit("star_1"), run=pl.lit("star_1"))])
    second = second.with_columns(accuracy=better)
    table = summary({"accuracy": pl.concat([first, second], how="diagonal_relaxed")}, models)
    row = table.filter(dataset="other", model="star_1", difficulty="all").row(0, named=True)
    assert row["difference"] == pytest.approx(-row["accuracy"]) and row["difference_high"] < 0
    means = table.filter(pl.col("difficulty") == "all", pl.col("dataset") != "average")
    average = table.filter(dataset="average", model="star_1").row(0, named=True)
    assert average["accuracy"] == pytest.approx(means.filter(model="star_1")["accuracy"].mean())
    assert average["accuracy_low"] < average["accuracy"] < average["accuracy_high"]
    parts = layout(table, models)
    assert any(name.startswith("average") for name in parts.header)
    assert (
        f"({-100 * row['accuracy']:+.1f}*)" in parts.cells[1][[h.split(" (")[0] for h in parts.header].index("other")]
    )


def accuracies_of(rows):
    """The measure `accuracy` from (model, run, dataset, problem, accuracy)."""
    table = pl.DataFrame(rows, schema=["model", "run", "dataset", "problem_id", "accuracy"], orient="row")
    rest = {"tokens": 9.0, "characters": 9.0, "difficulty": None, "samples": 4}
    return table.with_columns(pl.lit(value).alias(name) for name, value in rest.items())


def test_a_difference_is_of_the_same_problems_where_runs_lack_some():
    from mrt.figures.pass1 import summary

    rows = [
        (model, f"{model}{run}", "d", problem, accuracy)
        for model, lacking in (("base", "p1"), ("star_1", "p2"))
        for run in (1, 2)
        for problem, accuracy in (("p1", 1.0), ("p2", 0.0), ("p3", 0.5))
        if run == 1 or problem != lacking
    ]
    models = {**MODELS, "star_1": MODELS["star_1"].model_copy(update={"parent": "base"})}
    row = summary({"accuracy": accuracies_of(rows)}, models).filter(model="star_1").row(0, named=True)
    assert (row["difference"], row["difference_n"]) == (0.0, 1)


@pytest.mark.parametrize("last", [1.0, 0.0])
def test_an_interval_without_width_is_explained(last):
    from mrt.figures.pass1 import FLAT, layout, summary

    rows = [("base", "base", "d", "p1", 1.0), ("base", "base", "d", "p2", last)]
    assert layout(summary({"accuracy": accuracies_of(rows)}, MODELS), MODELS).note.endswith(FLAT) == (last == 1.0)


def test_an_average_is_of_the_runs_that_all_datasets_have():
    from mrt.figures.pass1 import summary

    rows = [("star_1", f"r{run}", "d", f"p{i}", 0.5) for run in (1, 2) for i in range(3)]
    rows += [("star_1", "r1", "e", f"q{i}", 0.7) for i in range(3)]
    row = summary({"accuracy": accuracies_of(rows)}, MODELS).filter(dataset="average").row(0, named=True)
    assert (row["accuracy"], row["runs"]) == (pytest.approx(0.6), 1)


def test_token_efficiency_compares_models_on_the_problems_of_both():
    from mrt.figures.token_efficiency import layout, summary

    data = of_models("maj", "base").with_columns(pl.col("maj") + 0.01 * pl.col("k"))
    half = data.with_columns(pl.lit("star_1").alias("model"), pl.col("tokens") / 2)
    fewer = data.filter(pl.col("problem_id") != "p0").with_columns(pl.lit("mrt_2").alias("model"), pl.col("tokens") / 3)
    in_a_row = pl.concat([data, half.with_columns(pl.col("tokens") / 2)])
    table = summary({"maj": pl.concat([data, half, fewer]), "linearized": in_a_row}, MODELS)
    assert table.filter(mode="parallel").height == 6
    for mode, ratio in (("parallel", 2), ("linearized", 4)):
        row = table.filter(model="star_1", reference="base", mode=mode).row(0, named=True)
        assert [row["ratio"], row["ratio_low"], row["ratio_high"]] == pytest.approx([ratio] * 3)
        assert (row["n"], row["of"], row["over"]) == (12, 12, "problems")
    part = table.filter(model="mrt_2", reference="base").row(0, named=True)
    assert (part["n"], part["of"], part["ratio"]) == (11, 12, pytest.approx(3))
    parts = layout(table, MODELS)
    assert parts.header[:2] == ["model", "toy_test (n = 12): than Base"]
    assert parts.cells[1][:2] == ["STaR", "2.00 [2.00, 2.00]"] and (1, 1) in parts.bold
    assert parts.cells[2][1] == "3.00 [3.00, 3.00], n = 11 of 12" and (2, 1) not in parts.bold
    assert parts.cells[4][:2] == ["STaR, linearized", "4.00 [4.00, 4.00]"] and (4, 1) in parts.bold
    assert "of this one run of each training" in parts.note
    parts = layout(table.with_columns(bound=pl.lit("at most")), MODELS)
    assert parts.cells[1][1] == "≤ 2.00 [2.00, 2.00]" and not parts.bold


def partial(name="accuracy"):
    """Measures of three models, the last of which lacks ten of twelve problems, and is better there."""
    whole = of_models(name, "base", "star_1").with_columns(samples=pl.lit(8, pl.Int64))
    part = of_models(name, "mrt_2").filter(pl.col("problem_id").is_in(["p0", "p1"]))
    return pl.concat([whole, part.with_columns(samples=pl.lit(2, pl.Int64))])


def test_a_model_measured_on_fewer_problems_says_so_and_is_not_bold():
    from mrt.figures.pass1 import layout, summary

    rows = partial().with_columns(pl.when(model="mrt_2").then(1.0).otherwise("accuracy").alias("accuracy"))
    models = {**MODELS, "mrt_2": MODELS["mrt_2"].model_copy(update={"parent": "base"})}
    table = summary({"accuracy": rows}, models)
    row = table.filter(model="mrt_2", difficulty="all").row(0, named=True)
    assert (row["n"], row["of"], row["samples_least"], row["samples_most"], row["difference_n"]) == (2, 12, 2, 2, 2)
    parts = layout(table, models)
    column = parts.header.index("toy_test (n = 12)")
    assert parts.cells[2][column].startswith("100.0 [") and parts.cells[2][column].endswith(", n = 2 of 12, 2 samples")
    assert parts.cells[2][-1] == "90, n = 2 of 12, 2 samples"  # tokens
    assert [of for of in parts.bold if of[1] == column] == [(int(table[1, "accuracy"] > table[0, "accuracy"]), column)]
    assert "8 samples a problem" in parts.note and ", n" not in parts.cells[0][column]


def test_a_best_of_one_is_not_bold():
    from mrt.figures.pass1 import layout, summary

    rows = pl.concat([of_models("accuracy", "base"), partial().filter(pl.col("model") == "mrt_2").drop("samples")])
    parts = layout(summary({"accuracy": rows}, MODELS), MODELS)
    assert not parts.bold


def test_models_on_different_problems_are_told_apart_though_they_are_as_many():
    from mrt.figures.pass1 import layout, summary

    first = of_models("accuracy", "base").filter(pl.col("problem_id").is_in(PROBLEMS[:8]))
    other = of_models("accuracy", "star_1").filter(pl.col("problem_id").is_in(PROBLEMS[4:]))
    parts = layout(summary({"accuracy": pl.concat([first, other])}, MODELS), MODELS)
    column = parts.header.index("toy_test (n = 12)")
    assert all(parts.cells[i][column].endswith(", n = 8 of 12") for i in (0, 1)) and not parts.bold


def test_lengths_that_some_problems_lack_say_so():
    """Imported completions may have token counts in part."""
    from mrt.figures.pass1 import layout, summary

    rows = of_models("accuracy", "base", "star_1")
    some = pl.when(pl.col("model") == "base", pl.col("problem_id") == "p0").then(None).otherwise("tokens")
    table = summary({"accuracy": rows.with_columns(some.alias("tokens"))}, MODELS)
    assert [cells[-1] for cells in layout(table, MODELS).cells] == ["90, n = 11 of 12", "90", ""]


def test_rows_of_one_difficulty_have_their_own_difference():
    from mrt.figures.pass1 import summary

    models = {"base": MODELS["base"], "star_1": MODELS["star_1"].model_copy(update={"parent": "base"})}
    rows = of_models("accuracy", "base")
    gain = pl.col("accuracy") + pl.col("difficulty") / 10
    better = rows.with_columns(accuracy=gain, model=pl.lit("star_1"), run=pl.lit("star_1"))
    table = summary({"accuracy": pl.concat([rows, better])}, models).filter(model="star_1")
    found = dict(table.select("difficulty", "difference").iter_rows())
    assert found == pytest.approx({"all": 0.4, "3": 0.3, "4": 0.4, "5": 0.5})
    assert set(table["difference_n"]) == {12, 4}


@pytest.mark.parametrize("figure", ["maj_tokens", "pass_tokens", "regret", "episode_regret", "budget_forcing", "cost"])
def test_a_figure_says_beside_a_name_what_it_stands_on(figure):
    module = import_module(f"mrt.figures.{figure}")
    tables = {name: partial(name) for name in FIGURES[figure] if name not in ("cost", "linearized")}
    tables |= {"cost": of_models("cost")} if "cost" in FIGURES[figure] else {}
    drawn, table = module.draw(tables, MODELS)
    texts = [text.get_text() for legend in drawn.legends for text in legend.get_texts()]
    texts += [text.get_text() for axis in drawn.axes for text in axis.texts]
    (label,) = [text for text in texts if text.startswith("MRT (STaR)")]
    assert "n = 2 of 12, 2 samples" in label
    assert any(text.startswith("STaR") and "n =" not in text for text in texts)
    row = table.filter(model="mrt_2").row(0, named=True)
    assert (row["n"], row["of"], row["samples_most"]) == (2, 12, 2)
    assert any("n = 12 problems" in axis.get_title() for axis in drawn.axes)


def test_episodes_and_progress_say_what_they_stand_on():
    from mrt.figures import episode_counts, progress

    for module, name in ((episode_counts, "episodes"), (progress, "progress")):
        drawn, _ = module.draw({name: partial(name).drop("samples")}, MODELS)
        texts = [text.get_text() for legend in drawn.legends for text in legend.get_texts()]
        (label,) = [text for text in texts if text.startswith("MRT (STaR)")]
        assert "(n = 2 of 12)" in label and not any("of 12" in text for text in texts if text != label)


def test_a_training_with_fewer_runs_says_so_and_is_compared_over_problems():
    from mrt.figures.pass1 import layout, summary

    models = {
        "base": MODELS["base"],
        "star_1": MODELS["star_1"].model_copy(update={"parent": "base"}),
        "mrt_2": MODELS["mrt_2"].model_copy(update={"parent": "star_1"}),
    }
    rows = of_models("accuracy")
    again = rows.filter(model="star_1").with_columns(pl.lit("again").alias("run"), pl.col("accuracy") * 0.9)
    table = summary({"accuracy": pl.concat([rows, again])}, models).filter(difficulty="all")
    over = dict(table.select("model", "difference_over").iter_rows())
    assert over == {"base": None, "star_1": "runs and problems", "mrt_2": "problems"}
    parts = layout(table, models)
    assert parts.cells[2][1].endswith(", 1 run") and "run" not in parts.cells[0][1] + parts.cells[1][1]
    assert "†: over problems alone" in parts.note


def test_runs_are_compared_over_seeds_and_problems():
    from mrt.figures.runs import layout, summary

    def values(model, right, tokens):
        accuracy = of_models("accuracy", "base").drop("model", "run")
        return accuracy.select(pl.lit(model).alias("model"), pl.all().exclude("accuracy", "tokens")).with_columns(
            pl.lit(right).alias("accuracy"), pl.lit(tokens).alias("tokens")
        )

    models = {
        "base": ModelStyle(label="Base"),
        "grpo": ModelStyle(label="GRPO", method="grpo"),
        "mrt_rl": ModelStyle(label="MRT (RL)", method="mrt_rl"),
        "again": ModelStyle(label="MRT (RL), seed 1", method="mrt_rl", replicate_of="mrt_rl"),
    }
    found = {"base": (0.25, 90.0), "grpo": (0.5, 80.0), "mrt_rl": (0.5, 60.0), "again": (0.75, 40.0)}
    cost = pl.DataFrame(
        {"model": ["grpo", "mrt_rl", "again"], "generated_tokens": [10, 20, 40], "flops": [1.0, 2.0, 4.0]}
    )
    accuracy = pl.concat(values(m, *x) for m, x in found.items())
    tables = {"accuracy": accuracy, "regret": pl.DataFrame(), "cost": cost}
    tables = {name: of_runs(rows, {"again": "mrt_rl"}) for name, rows in tables.items()}
    table = summary(tables, {name: style for name, style in models.items() if name != "again"})
    row = table.filter(model="mrt_rl", value="accuracy").row(0, named=True)
    assert [row[c] for c in ("runs", "estimate", "low", "high")] == pytest.approx([2, 0.625, 0, 1])  # t of one df: all
    assert [row[c] for c in ("difference", "generated_tokens", "flops")] == pytest.approx([0.125, 30, 3])
    assert table.filter(model="again").is_empty() and table.filter(model="base")["flops"].to_list() == [0, 0]
    assert "the difference to GRPO, with" in layout(table, models).note
    without = {name: style for name, style in models.items() if style.method != "grpo"}
    assert "difference" not in layout(table.filter(pl.col("model") != "grpo"), without).note
    parts = layout(table, models)
    low, high = (f"{50 + sign * 12.7062 * 10:.1f}" for sign in (-1, 1))  # of two runs, 40 and 60: t of one df
    assert parts.cells[2][-1] == f"50.0 [{low}, {high}] (-30.0*†)" and parts.cells[1][-1] == "80.0 [80.0, 80.0]"
    assert parts.header[-1] == "toy_test: tokens (n = 12)" and "†: over problems alone" in parts.note


def solution_tree():
    """A tree of one problem: three solutions that begin with a, of which one is right, and one that begins with b."""
    from mrt.episodes.parameterization import Backtracking
    from mrt.sampling.tree import Tree

    tree = Tree(Backtracking())
    for steps, right in (("a c", False), ("a d", True), ("a e", False), ("b f", False)):
        text = "".join(f"Step {i}: {step}\n\n" for i, step in enumerate(steps.split(), start=1))
        tree.add(0, f"{text}Answer: {steps}", right)
    return tree


def test_the_constructions_of_a_tree_are_drawn_as_paths(tmp_path):
    from random import Random

    from mrt.core.artifacts import SET
    from mrt.figures import constructions
    from mrt.figures.style import save
    from mrt.methods.warmstart import CONSTRUCTIONS, Paths, examples

    tree = solution_tree()
    table = tree.table("p")
    sets = []
    for method in CONSTRUCTIONS:
        made = examples(Paths(table), method, tree.words, Random(0))
        rows = [("p", e.leaf, e.kept, e.attempt, e.completion, 1.0) for e in made]
        sets.append(
            pl.DataFrame(rows, schema=SET.columns, orient="row").select(pl.lit(method).alias("model"), pl.all())
        )
    styles = {method: ModelStyle(label=method, method=method) for method in ("base", *CONSTRUCTIONS)}
    tables = {"constructions": pl.concat(sets), "trees": table.select(pl.lit("base").alias("model"), pl.all())}
    figure, drawn = constructions.draw(tables, styles)
    save(figure, tmp_path / "out")
    told = {
        model: {path: "".join(rows.sort("place")["text"]) for (path,), rows in of.group_by("path")}
        for (model,), of in drawn.group_by("model")
    }
    right = "Step 1: a\n\nStep 2: d\n\nAnswer: a d"
    assert {paths["revision"] for paths in told.values()} == {right} and set(told) == set(CONSTRUCTIONS)
    assert "attempt" not in told["rejection"] and told["warmstart"]["attempt"].startswith("Step 1: a")
    figure, drawn = constructions.draw(tables | {"constructions": sets[0].with_columns(problem_id=pl.lit("q"))}, styles)
    save(figure, tmp_path / "nothing")
    assert drawn.is_empty()


def test_a_backtrack_that_helps_and_one_that_does_not_are_drawn(tmp_path):
    from mrt.figures import backtrack
    from mrt.figures.style import save

    texts = ("Step 1: $\\boxed{a}$\n\nAnswer: 3", "\n\nWait, this seems off.\n\nStep 1:", " b\n\nAnswer: 4")
    gains = {"mrt": [0.2, 0.9, 0.5], "base": [0.0, 0.1, 0.2]}  # of the backtracks of three traces
    places = [(m, "test", "p", i, gain) for m, of in gains.items() for i, gain in enumerate(of)]
    traces = pl.DataFrame(
        [(*at, n, text) for *at, _ in places for n, text in enumerate(texts)],
        schema=["model", "dataset", "problem_id", "sample", "episode", "text"],
        orient="row",
    )
    progress = pl.DataFrame(
        [
            (*at, j, 3, J, step)
            for *at, gain in places
            for j, J, step in ((1, 0.0, 0.0), (2, gain, gain), (3, 1.0, 1 - gain))
        ],
        schema=["model", "dataset", "problem_id", "sample", "prefix", "episodes", "J", "progress"],
        orient="row",
    )
    styles = {name: ModelStyle(label=name, method=name) for name in ("base", "mrt")}
    figure, drawn = backtrack.draw({"traces": traces, "progress": progress}, styles)
    save(figure, tmp_path / "out")
    assert drawn["model"].unique().to_list() == ["mrt"] and drawn["sample"].to_list() == [1, 1, 1, 0, 0, 0]
    never = progress.with_columns(episodes=pl.lit(1).cast(pl.Int64))
    figure, drawn = backtrack.draw({"traces": traces, "progress": never}, styles)
    save(figure, tmp_path / "nothing")
    assert drawn.is_empty()


def test_claims_are_decided_over_runs(tmp_path, monkeypatch):
    from mrt.figures import claims

    shifts = {"a": 0.3, "a1": 0.32, "a2": 0.31, "a3": 0.29, "b": 0.1}
    first, keys = {"a1": "a", "a2": "a", "a3": "a"}, [f"p{i}" for i in range(20)]
    styles = {"a": ModelStyle(label="A", method="mrt"), "b": ModelStyle(label="B")}
    rng = np.random.default_rng(0)
    accuracy = [(m, "d", p, min(1, x + rng.random() / 10), 50.0) for m, x in shifts.items() for p in keys]
    maj = [(m, "d", p, k, x + k / 20, 50.0 * k) for m, x in shifts.items() for p in keys for k in (1, 2, 4)]
    names = ["model", "dataset", "problem_id"]
    tables = {
        "accuracy": pl.DataFrame(accuracy, schema=[*names, "accuracy", "tokens"], orient="row"),
        "maj": pl.DataFrame(maj, schema=[*names, "k", "maj", "tokens"], orient="row").with_columns(pass_=0.0),
    }
    tables["maj"] = tables["maj"].rename({"pass_": "pass"})
    text = {"section": "8.2", "says": "A is better", "model": "a", "than": "b", "redraw": "table1"}
    asked = [text | {"value": v, "expect": e} for v, e in (("accuracy", "more"), ("tokens", "less"))]
    asked += [text | {"value": "token efficiency", "expect": "more"}, text | {"value": "regret at 9", "expect": "less"}]
    asked += [text | {"value": "maj at equal tokens", "expect": "more"}]
    tables = {name: of_runs(rows, first) for name, rows in tables.items()}
    table = claims.summary(tables, styles, asked)  # regret is not measured
    assert table["verdict"].to_list() == ["supported", "not significant", "supported", "supported"]
    assert table["runs"].to_list() == [4] * 4 and table["than_runs"].to_list() == [1] * 4
    assert table["problems"].to_list() == table["of"].to_list() == [20] * 4
    assert table["bound"].to_list() == [None, None, "at least", None]
    assert set(table["family"]) == {"base against mrt"} and set(table["over"]) == {"runs and problems"}
    rows = claims.layout(table, styles).cells
    assert rows[0][2].startswith("accuracy, A against B: +18.8 [") and rows[2][2].endswith("x")
    assert rows[2][2].startswith("token efficiency, A against B: ≥ ")
    assert rows[3][2].startswith("maj at equal tokens, A against B: +20.5 [")
    apart = {**tables, "maj": tables["maj"].with_columns(pl.col("tokens") * pl.when(model="b").then(100).otherwise(1))}
    none = claims.summary(apart, styles, [asked[-1], asked[0]])
    assert none["verdict"].to_list() == ["not significant", "supported"] and none["p"].to_list()[0] is None
    assert claims.layout(none, styles).cells[0][2] == "maj at equal tokens, A against B: the curves share no tokens"
    assert rows[1][3:6] == ["4 against 1", "20", "not significant (p = 1.000), not by more runs"]
    many = pl.lit(504, pl.Int64).alias("needed")
    shown = claims.layout(table[1:2].with_columns(many), styles).cells[0][5]
    assert shown == "not significant (p = 1.000), would need over 100 runs"
    alike = [text | {"value": "accuracy", "expect": e, "margin": 0.3} for e in ("same", "not more")]
    verdicts = [row[5] for row in claims.layout(claims.summary(tables, styles, alike), styles).cells]
    assert all(word.startswith("supported (p ") and word.endswith(" (alike within 30)") for word in verdicts)


def test_a_single_training_run_decides_nothing():
    """The interval is over problems; how much another run would differ is not known. A model that is given is known."""
    from mrt.figures import claims

    rng = np.random.default_rng(0)
    rows = [(m, "d", f"p{i}", x + rng.random() / 10) for m, x in (("a", 0.5), ("b", 0.1)) for i in range(20)]
    table = of_runs(pl.DataFrame(rows, schema=["model", "dataset", "problem_id", "accuracy"], orient="row"), {})
    tables = {"accuracy": table.with_columns(tokens=9.0)}
    asked = {"section": "8", "says": "x", "value": "accuracy", "model": "a", "than": "b", "redraw": "table1"}
    asked = [asked | {"expect": "more"}]
    given = {"a": ModelStyle(label="A"), "b": ModelStyle(label="B")}
    trained = given | {"a": ModelStyle(label="A", method="mrt")}
    (row,) = claims.summary(tables, given, asked).iter_rows(named=True)
    assert (row["verdict"], row["over"]) == ("supported", "runs and problems")
    table = claims.summary(tables, trained, asked)
    (row,) = table.iter_rows(named=True)
    assert (row["verdict"], row["over"], row["p"]) == ("not significant", "problems", None) and row["low"] > 0
    parts = claims.layout(table, trained)
    assert parts.cells[0][2].endswith("]†") and "†: over problems alone" in parts.note


def test_verdicts_are_corrected_for_the_number_of_claims_about_two_methods():
    """Alone the difference is significant; as one of thirty about the same methods it is not."""
    from mrt.figures import claims

    rng = np.random.default_rng(3)
    gaps = {"b": 0.0, "a": 0.05, "c": 0.05}
    rows = [
        (m, f"{m}{run}", "d", f"p{i}", 0.4 + x + of_run + rng.normal(0, 0.1))
        for m, x in gaps.items()
        for run, of_run in enumerate((-0.02, -0.01, 0.0, 0.01, 0.02))
        for i in range(30)
    ]
    table = pl.DataFrame(rows, schema=["model", "run", "dataset", "problem_id", "accuracy"], orient="row")
    tables = {"accuracy": table.with_columns(tokens=9.0)}
    styles = {m: ModelStyle(label=m, method=of) for m, of in (("a", "mrt"), ("b", "star"), ("c", "grpo"))}
    text = {"section": "8", "says": "x", "than": "b", "expect": "more", "redraw": "table1"}
    one = [text | {"value": "accuracy", "model": "a"}]
    many = [text | {"value": "tokens", "model": "a"}] * 29
    alone = claims.summary(tables, styles, one)
    assert alone["verdict"].to_list() == ["supported"] and 0.05 / 30 < alone["p"].item() < 0.05
    found = claims.summary(tables, styles, one + many)
    assert found["p"][0] == alone["p"].item() and found["p_corrected"][0] == pytest.approx(30 * found["p"][0])
    assert set(found["verdict"]) == {"not significant"}
    elsewhere = [claim | {"model": "c"} for claim in many]  # of other methods: another family
    found = claims.summary(tables, styles, one + elsewhere)
    assert found["verdict"][0] == "supported" and found["family"].unique().sort().to_list() == [
        "grpo against star",
        "mrt against star",
    ]
    note = claims.layout(found, styles).note
    assert "here 30 in 2 families" in note and "at most 0.1 of 2 families" in note and "at most 10% of cases" in note


def test_a_model_is_compared_with_zero_across_modes_and_by_its_log():
    from mrt.figures import claims

    keys = [("d", f"p{i}") for i in range(20)]
    schema = ["model", "dataset", "problem_id"]
    rng = np.random.default_rng(0)
    progress = [("a", *key, 2, 0.2 + rng.random() / 10) for key in keys]
    curve = [("a", *key, k, 0.5 + k / 20 + rng.random() / 100, 40.0 * k) for key in keys for k in (1, 2, 4)]
    maj = pl.DataFrame(curve, schema=[*schema, "k", "maj", "tokens"], orient="row").with_columns(
        pl.lit(0.0).alias("pass")
    )
    tables = {
        "progress": pl.DataFrame(progress, schema=[*schema, "prefix", "progress"], orient="row"),
        "maj": maj,
        "linearized": maj.with_columns(pl.col("tokens") / 2),
        "accuracy": maj.filter(k=1).rename({"maj": "accuracy"}),
        "sft_log": pl.DataFrame(
            [
                (m, "train", step, x + i / 100)
                for m, x in (("a", 0.1), ("a1", 0.12), ("a2", 0.11), ("b", 0.3), ("b1", 0.31), ("b2", 0.32))
                for i, step in enumerate((1, 2))
            ],
            schema=["model", "dataset", "step", "loss"],
            orient="row",
        ),
    }
    tables = {name: of_runs(rows, {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}) for name, rows in tables.items()}
    styles = {"a": ModelStyle(label="A"), "b": ModelStyle(label="B")}
    text = {"section": "ours", "says": "?", "model": "a", "expect": "more", "redraw": "table1"}
    asked = [
        text | {"value": "progress of the backtrack"},
        text | {"value": "linearized token efficiency", "than": "a", "than_value": "token efficiency"},
        text | {"value": "training loss", "than": "b", "expect": "less"},
    ]
    found = claims.summary(tables, styles, asked)
    assert found["verdict"].to_list() == ["supported"] * 3
    assert found["estimate"].to_list() == pytest.approx([0.25, 2.0, -0.2], abs=0.02)
    shown = [row[2].split(": ")[0] for row in claims.layout(found, {}).cells]
    efficiency = "linearized token efficiency against token efficiency, A"
    assert shown == ["progress of the backtrack, A", efficiency, "training loss, A against B"]
    assert [row[3] for row in claims.layout(found, {}).cells] == ["1", "1", "3"]
    few = {
        "sft_log": tables["sft_log"].filter(~pl.col("run").is_in(["b1", "b2"]))
    }  # how much b's runs differ is not known
    assert claims.summary(few, styles, asked[2:])["verdict"].to_list() == ["not significant"]


def test_section_5_is_decided_within_one_model(tmp_path):
    """The end of a thought is worth .5 with one answer, half of it with votes more, in long thoughts alone."""
    from mrt.figures import claims

    rows = [
        ("m", "d", f"p{i}", s, k, j, 1, maj, 10.0 * (j + 1), 8, 10.0, *bought)
        for i in range(20)
        for s, (k, j, maj, bought) in enumerate(
            ((6, 6, 0.5, (None, None)), (6, 3, 0.1, (4, 0.8)), (2, 2, 0.5, (None, None)), (2, 1, 0.2, (2, 0.2)))
        )
    ]
    names = ["model", "dataset", "problem_id", "sample", "episodes", "prefix", "p", "maj", "tokens", "answers"]
    table = pl.DataFrame(rows, schema=[*names, "answer_tokens", "affordable", "affordable_maj"], orient="row")
    table = of_runs(table.with_columns(sample=pl.col("sample") // 2), {})
    text = {"section": "5", "says": "votes", "model": "m", "than": "m", "redraw": "fig3", "value": "votes halfway"}
    text |= {"than_value": "answer at the end", "expect": "more"}
    asked, styles = [text | {"episodes": group} for group in ([2, 5], [6, 9])], {"m": ModelStyle(label="M")}
    found = claims.summary({"prefixes": table, "maj": pl.DataFrame()}, styles, asked)
    assert found["verdict"].to_list() == ["contradicted", "supported"]
    assert found.select("spent", "used", "affordable").rows() == [(1.0, 2, 2), (1.0, 4, 4)]
    shown = claims.layout(found, {}).cells[1]
    assert shown[2] == "votes halfway against answer at the end, M: +30.0 [+30.0, +30.0]"
    short = table.with_columns(answers=pl.lit(3, pl.Int64))  # sampled: too few to spend what the thought costs
    found = claims.summary({"prefixes": short}, styles, asked)
    assert found["verdict"].to_list() == ["contradicted", "not significant"] and found["spent"].to_list() == [1, 0.75]
    said = claims.layout(found, {}).cells[1][5]
    assert said == (
        "not significant, 3 answers sampled, where tokens buy up to 4: 75% of them spent, not at equal tokens"
    )


def test_the_runs_that_would_decide_within_one_model_are_those_of_the_difference():
    """Runs differ much more than the end of their thoughts and the votes halfway do in each."""
    from mrt.figures import claims

    rng = np.random.default_rng(0)
    rows = [
        (run, "d", f"p{i}", 0, 6, j, 1, x, 10.0 * (j + 1), 8, 10.0, *((None, None) if j == 6 else (4, x)))
        for run, of_run, gain in (("m", -0.2, 0.06), ("m1", 0.0, -0.01), ("m2", 0.2, 0.01))
        for i in range(20)
        for j, shift in ((6, 0), (3, gain))
        for x in (0.5 + shift + of_run + rng.normal(0, 0.05),)
    ]
    names = ["model", "dataset", "problem_id", "sample", "episodes", "prefix", "p", "maj", "tokens"]
    names += ["answers", "answer_tokens", "affordable", "affordable_maj"]
    table = of_runs(pl.DataFrame(rows, schema=names, orient="row"), {"m1": "m", "m2": "m"})
    asked = {"section": "5", "says": "votes", "model": "m", "than": "m", "redraw": "fig3", "value": "votes halfway"}
    asked |= {"than_value": "answer at the end", "expect": "more"}
    (found,) = claims.summary({"prefixes": table}, {"m": ModelStyle(label="M")}, [asked]).iter_rows(named=True)
    assert found["verdict"] == "not significant" and found["runs"] == 3
    assert found["needed"] is not None and found["needed"] < 30


def test_a_curriculums_steps_are_counted_on():
    from mrt.figures import reward

    styles = {"short": ModelStyle(label="8K"), "long": ModelStyle(label="16K", parent="short")}
    log = measure("rl_log", "short")
    logs = pl.concat([log.select(pl.lit(model).alias("model"), pl.all()) for model in styles])
    _, table = reward.draw({"rl_log": of_runs(logs, {})}, styles)
    assert table.filter(model="short")["step"].to_list() == list(range(1, 61))
    assert table.filter(model="long")["step"].to_list() == list(range(61, 121))


def test_a_line_of_training_ends_where_the_shortest_run_does_and_the_next_goes_on_there():
    from mrt.figures import reward

    styles = {"short": ModelStyle(label="8K"), "long": ModelStyle(label="16K", parent="short")}
    log = measure("rl_log", "short")
    logs = [of_runs(log.select(pl.lit(model).alias("model"), pl.all()), {}) for model in styles]
    second = [
        one.with_columns(pl.format("{}_seed1", "model").alias("run")).filter(pl.col("step") <= 50) for one in logs
    ]
    _, table = reward.draw({"rl_log": pl.concat([*logs, *second])}, styles)
    assert table.filter(model="short")["step"].to_list() == list(range(1, 51)) and table["runs"].unique().item() == 2
    assert table.filter(model="long")["step"].to_list() == list(range(51, 101))


def test_where_every_second_prefix_is_scored_all_traces_are_behind_all_points():
    """A trace's last prefix is always scored: alone at its number, it would be a point of its own."""
    from mrt.figures import scaling
    from mrt.figures.progress import at_every_nth, spacing

    names = {"a": [0, 2, 3], "b": [0, 2, 4], "c": [0, 2, 4, 5]}
    rows = [
        ("m", "s", name, 0, js[-1], j, p, j / 5, 10.0 * j) for name, js in names.items() for j in js for p in (1, 2)
    ]
    schema = ["model", "dataset", "problem_id", "sample", "episodes", "prefix", "p", "maj", "tokens"]
    data = of_runs(pl.DataFrame(rows, schema=schema, orient="row"), {})
    assert spacing(data) == 2
    curve = at_every_nth(data.filter(p=1).rename({"maj": "J"}), spacing(data))
    assert curve.group_by("prefix", maintain_order=True).len().rows() == [(0, 3), (2, 3), (4, 3)]  # of 3 and 5 no J
    _, table = scaling.draw({"prefixes": data}, {"m": ModelStyle(label="M")}, [[3, 5]])
    points = table.filter(p=1).sort("point").select("point", "prefix", "n", "tokens").rows()
    assert points == [(0, 0, 3, 0.0), (1, 2, 3, 20.0), (2, 4, 3, pytest.approx(110 / 3)), (3, 5, 3, 40.0)]


def test_a_trace_that_has_ended_keeps_its_last_J():
    from mrt.figures.progress import at_every_nth

    lengths = {"a": 1, "b": 3, "c": 2}
    rows = [("m", "s", name, 0, j, j / 4) for name, k in lengths.items() for j in range(k + 1)]
    schema = ["model", "dataset", "problem_id", "sample", "prefix", "J"]
    table = at_every_nth(of_runs(pl.DataFrame(rows, schema=schema, orient="row"), {}), 1)
    assert table.height == 3 * 3  # up to prefix 2, the 95th percentile, rounded down
    assert dict(table.filter(pl.col("prefix") == 2).select("problem_id", "J").iter_rows()) == {
        "a": 0.25,
        "b": 0.5,
        "c": 0.5,
    }
