"""Measures: planned by their declarations, and each alone in its fingerprint; a user's in a file, and its mistakes."""

import json
from types import SimpleNamespace

import polars as pl
import pytest
import yaml
from conftest import ROOT

from mrt.analysis.evaluate import Evaluate
from mrt.analysis.measure import MEASURES, measures
from mrt.config import measuring
from mrt.config.load import load
from mrt.config.sections import Figures as Drawn
from mrt.core import fingerprint, scope
from mrt.core.artifacts import ROLLOUTS
from mrt.core.settings import laid_over
from workflow.figures import Figures
from workflow.measures import Measures
from workflow.options import Options
from workflow.paths import Paths
from workflow.resources import JobResources

BASE = SimpleNamespace(model="base", dataset="toy_test", get={"model": "base", "dataset": "toy_test"}.get)
MINE = """import polars as pl

from mrt.analysis.measure import Read, measure
from mrt.core.artifacts import FORCED, ROLLOUTS
from said import WORD


@measure(["problem_id", "words"], keys=["problem_id"], rollouts=Read(ROLLOUTS, ["problem_id", "text"]))
def words(rollouts: pl.DataFrame, ks: list[int]) -> pl.DataFrame:
    share = pl.col("text").str.contains(WORD).mean() * max(ks)
    return rollouts.group_by("problem_id").agg(words=share).sort("problem_id")
"""
CACHED = {each for module in (fingerprint, scope) for each in vars(module).values() if hasattr(each, "cache_clear")}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The working folder, with a user's measure."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_measure.py").write_text(MINE)
    (tmp_path / "said.py").write_text('WORD = "Wait"\n')
    return tmp_path


def configured(*names, **more):
    tiny = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    evaluation = {"measures": [*names]} if names else {}
    return load(laid_over(tiny, {"evaluation": {**evaluation, **more}}))


def rules_of(config):
    paths = Paths(config)
    return Measures(config, paths, Options(config, paths, JobResources(config)))


def test_a_users_measure_is_planned_with_what_it_declares(mine):
    config = configured("accuracy", "my_measure.py:words", k=[1, 2], samples=10_000)
    rules = rules_of(config)
    assert rules.paths.table("words") == "results/tiny/metrics/{model}/{dataset}.words.parquet"
    assert rules.inputs("words", BASE) == {"rollouts": "results/tiny/rollouts/base/toy_test.parquet"}
    settings = json.loads(rules.settings("words", BASE))
    assert settings == {"measure": "my_measure.py:words", "options": {"ks": [1, 2]}}
    assert rules.memory("words")(BASE, 1) > rules.memory("maj")(BASE, 1) > 2000  # texts take more than numbers
    tables = rules.unread(Figures(config, rules.paths).read())
    assert "results/tiny/metrics/base/toy_test.words.parquet" in tables
    assert len(tables) == len(measuring.measured_runs(config))  # other measures are made for figures

    figure = (ROOT / "mrt" / "figures" / "episode_counts.py").read_text()
    (mine / "figure.py").write_text(figure.replace('("episodes",), paper=("fig23",)', '("words",)'))
    drawn = Figures(config.model_copy(update={"figures": Drawn(files=[mine / "figure.py"])}), rules.paths)
    assert set(drawn.files("figure")) == set(tables) and rules.unread(drawn.read()) == []


def test_a_users_measure_gives_the_table_that_it_declares(mine):
    rows = [(problem, i, "", text, 1, 1, "stop", None, False, None) for i, text in enumerate(("Wait", "no"))
            for problem in ("p", "q")]  # fmt: skip
    pl.DataFrame(rows, schema=ROLLOUTS.columns, orient="row").write_parquet("rollouts.parquet")
    stage = {"measure": "my_measure.py:words", "tables": {"rollouts": "rollouts.parquet"}, "out": "words.parquet"}
    Evaluate(**stage, options={"ks": [1, 2]}).cli_cmd()
    assert pl.read_parquet("words.parquet").rows() == [("p", 1.0), ("q", 1.0)]
    with pytest.raises(ValueError, match="ks"):
        Evaluate(**stage, options={"ks": "two"}).cli_cmd()
    wrong = {
        "agg(words=share)": (
            "agg(says=share)",
            "the columns problem_id, says; it declares problem_id, words",
        ),
        "share = pl": ("share = 1 / 0 * pl", "my_measure.py, line 10: ZeroDivisionError"),
        '.sort("problem_id")': (".rows()", "words gives the columns of a list; it declares problem_id, words"),
    }
    for old, (new, message) in wrong.items():
        (mine / "my_measure.py").write_text(MINE.replace(old, new))
        with pytest.raises(ValueError, match=message):
            Evaluate(**stage, options={"ks": [1, 2]}).cli_cmd()


WRONG = {
    "a name that is taken": ("words", "accuracy", "my_measure.py:accuracy: there is a measure accuracy already"),
    "of another stage": ("words", "progress", "there is a measure progress already"),
    "a column": ('"text"]', '"texts"]', r"line 8: .*words: rollouts/{m}/{d}.parquet has no column texts, but"),
    "a table": ("(rollouts:", "(rows:", "line 8: ValueError: words has no parameter rollouts"),
    "a setting": ("ks: list[int]", "kinds: int", "words: kinds is no table that it reads, and no setting: closing, ks"),
    "an optional table": (
        "rollouts: pl.DataFrame, ks: list[int]", "ks: list[int], rollouts=None", "rollouts is a table, whose",
    ),
    "a key": ('keys=["problem_id"]', 'keys=["id"]', "words: its own table has no column id, but problem_id, words"),
    "a measure": ("Read(ROLLOUTS,", 'Read("word",', "words reads the measure word, and there is none; there are acc"),
    "of a measure": (
        'Read(ROLLOUTS, ["problem_id", "text"])', 'Read("maj", ["text"])', "the measure maj has no column text, but",
    ),
    "itself": ('Read(ROLLOUTS, ["problem_id", "text"])', 'Read("words", ["words"])', "read each other: words, words"),
    "not to be imported": ("from said", "from says", "my_measure.py, line 5: ModuleNotFoundError"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_users_measure_is_said_before_any_job(name, mine):
    old, new, message = WRONG[name]
    (mine / "my_measure.py").write_text(MINE.replace(old, new))
    measure = f"my_measure.py:{new}" if old == "words" else "my_measure.py:words"
    with pytest.raises(ValueError, match=message):
        configured("accuracy", measure)


@pytest.mark.parametrize("read", ['PROVER, ["problem_id"', 'ANSWER_GRADES, ["problem_id"', '"prefixes", ["p"'])
def test_a_measure_that_needs_forced_answers_is_checked_as_ours_are(read, mine):
    asking = MINE.replace('ROLLOUTS, ["problem_id", "text"', read).replace("FORCED, ROLLOUTS", "ANSWER_GRADES, PROVER")
    (mine / "my_measure.py").write_text(asking)
    config = configured("my_measure.py:words")
    assert measuring.asks_mu(config) and not measuring.forces(config)
    with pytest.raises(ValueError, match=r"there are no votes; leave my_measure.py:words out of measures"):
        configured("my_measure.py:words", prover={"estimate": "likelihood"})
    (mine / "my_measure.py").write_text(MINE.replace("Read(ROLLOUTS", "Read(FORCED"))
    config = configured("my_measure.py:words")
    assert measuring.forces(config) and not measuring.asks_mu(config)
    models = {path.split("/")[3] for path in rules_of(config).unread(set())}
    assert models == set(measuring.extended(config)) < set(measuring.measured_runs(config))


def test_each_measure_is_alone_in_its_fingerprint(mine):
    """So an edit of one, or a new one, makes no other again; tables of others are read by name."""
    rules, package = rules_of(configured("accuracy", "my_measure.py:words")), "mrt.analysis.measures."
    before = {name: rules.code(name) for name in rules.known}
    assert len({*before.values()}) == len(before) > 8
    for name in measures():
        definitions = fingerprint.reached("mrt.analysis.evaluate", *MEASURES.starts(name)).definitions
        modules = {each.removeprefix(package).split(".")[0] for each in definitions if each.startswith(package)}
        assert modules == {name}
    for file, text in (("said.py", 'WORD = "So"\n'), ("my_measure.py", MINE.replace("max(ks)", "min(ks)"))):
        (mine / file).write_text(text)
        for cached in CACHED:
            cached.cache_clear()
        again = rules_of(configured("accuracy", "my_measure.py:words"))
        after = {name: again.code(name) for name in again.known}
        assert {name for name in before if before[name] != after[name]} == {"words"}, file
        before = after


def test_regret_reads_forced_answers_where_it_goes_on_through_them():
    rules = rules_of(configured())
    inputs = {name: rules.inputs("regret", SimpleNamespace(model=name, dataset="d")) for name in ("base", "star_1")}
    progress = {name: f"results/tiny/progress/{name}/d.parquet" for name in inputs}
    forced = "results/tiny/metrics/base/d.budget_forcing.parquet"
    assert inputs["base"] == {"progress": progress["base"], "forced": forced}
    assert inputs["star_1"] == {"progress": progress["star_1"]}
