"""Methods and variants of a user's: the examples of docs/extend.md, as one would use them."""

import json
import re
from types import SimpleNamespace

import polars as pl
import pytest
import yaml
from conftest import ROOT, checkout, planned_jobs, python

from mrt.config import lineage
from mrt.config.load import load
from mrt.core import fingerprint as fp
from mrt.core.artifacts import GRADES, ROLLOUTS, SET
from mrt.planning.bill import Bill
from mrt.training.method import method_named, parts_of, variant_named
from mrt.training.rl.recipe import RL
from mrt.training.sets import MakeSet
from mrt.training.variant import Group, values_of

EXAMPLES = dict(
    re.findall(r"^```python\n# (my_\w+\.py)\n(.*?)^```", (ROOT / "docs" / "extend.md").read_text(), re.M | re.S)
)
CLIPPED, SHORTEST = "my_variant.py:clipped", "my_method.py:shortest"


def experiment(**models):
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    raw["models"] |= models
    raw["evaluation"]["models"] += list(models)
    return raw


OF_USERS = {
    "clipped": {
        "parent": "base",
        "method": "mrt_rl",
        "problems": "toy_train",
        "rl": {"variant": CLIPPED, "settings": {"most": 0.25}},
    },
    "short": {"parent": "base", "method": SHORTEST, "problems": "toy_train"},
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working folder, with the examples."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mrt").symlink_to(ROOT / "mrt")  # the shipped toy base
    for name, text in EXAMPLES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_mean_progress_of_a_group_is_clipped(here):
    import torch

    group = Group(torch.tensor([1.0, 0, 0, 1]), torch.zeros(4), torch.ones(4), torch.full((4,), 0.125))
    clipped = variant_named(CLIPPED)
    centred = [0.5, -0.5, -0.5, 0.5]
    for most, progress in ((0.25, 0.25), (0.5, 0.375)):  # the mean is 0.5 - 0.125
        values = values_of(clipped, group, RL(variant=CLIPPED, settings={"most": most}).values())
        assert values.tolist() == pytest.approx([r + progress for r in centred])


def test_an_error_in_a_function_is_told_with_file_and_line(here):
    """Where a job runs it: importing the file does not show it."""
    import torch

    text = EXAMPLES["my_variant.py"].replace("group.J", "group.Q")
    (here / "my_variant.py").write_text(text)
    line = 1 + text[: text.index("group.Q")].count("\n")
    with pytest.raises(ValueError, match=rf"my_variant\.py, line {line}: AttributeError"):
        values_of(variant_named(CLIPPED), Group(torch.ones(2), torch.zeros(2), torch.ones(2)), {"alpha": 1.0})


def test_a_method_of_a_users_makes_its_set(here):
    """The second trace of a problem is shorter, and right; the third is wrong."""
    texts = ["a long way\n</think>\n\n4", "a way\n</think>\n\n4", "no\n</think>\n\n5"]
    rollouts = [("p", i, "x<think>\n", t, 9, 5, "stop", None, True, None) for i, t in enumerate(texts)]
    grades = [("p", i, t[-1], True, t.endswith("4"), 0) for i, t in enumerate(texts)]
    for name, table, rows in (("rollouts", ROLLOUTS, rollouts), ("grades", GRADES, grades)):
        pl.DataFrame(rows, schema=table.columns, orient="row").write_parquet(here / f"{name}.parquet")
    files = {name: here / f"{name}.parquet" for name in ("rollouts", "grades", "out", "out_rules")}
    MakeSet(method=SHORTEST, **files).cli_cmd()
    assert SET.read(files["out"])["sample"].to_list() == [1]
    with pytest.raises(ValueError, match=r"my_method\.py:shortest needs --rollouts"):
        MakeSet(method=SHORTEST, **files | {"rollouts": None}).cli_cmd()


def test_a_method_of_a_users_has_the_configured_way_to_cut_and_prompt(here):
    from workflow.options import Options
    from workflow.paths import Paths

    def settings(**changes):
        config = load(experiment(**OF_USERS) | changes)
        return Options(config, Paths(config), None).training_set(SimpleNamespace(model="short"))

    cut = {"segmentation": {"by": "steps", "min_steps": 1}}
    prompt = {"prompt": {"instruction": "Work out: {problem}"}}
    stage = MakeSet(settings=json.loads(settings(**cut, **prompt)), out=here / "out", out_rules=here / "rules")
    assert stage.parameterization.segmentation.by == "steps" and stage.prompt.instruction == "Work out: {problem}"
    assert len({settings(), settings(**cut), settings(**prompt)}) == 3


def test_the_bill_and_the_slice_follow_from_what_a_variant_asks_and_reads(here):
    config = load(experiment(**OF_USERS))
    nothing = "from mrt.training.variant import variant\n\n\n@variant()\ndef own(group):\n    return group.rewards\n"
    (here / "nothing.py").write_text(nothing)
    recipes = {name: RL(variant=name) for name in (CLIPPED, "explicit", "nothing.py:own")}
    unread = {name: recipe.unread("mrt_rl") for name, recipe in recipes.items()}
    assert unread[CLIPPED] - unread["explicit"] == {"centred"}
    assert {"alpha", "centred", "estimate", "mu", "answers"} <= unread["nothing.py:own"]
    forced = Bill(config).work("train_rl", "clipped", "toy_train").generated
    config.models["clipped"].rl.variant = "nothing.py:own"
    assert Bill(config).work("train_rl", "clipped", "toy_train").generated < forced
    assert lineage.sources(config, "clipped") == lineage.sources(config, "short") == ("rollouts",)


WRONG = {
    "no such variant": ("clipped", {"rl": {"variant": "explict"}}, "there is no variant 'explict'; did you mean 'expl"),
    "no such file": ("clipped", {"rl": {"variant": "no.py:f"}}, r"variant: no\.py: no such file"),
    "no such name": (
        "clipped",
        {"rl": {"variant": "my_variant.py:f"}},
        r"my_variant\.py: it defines no variant 'f'; there are clipped",
    ),
    "something else": ("clipped", {"rl": {"variant": "my_variant.py:Group"}}, "Group is no variant, a Variant"),
    "an error in it": ("clipped", {"rl": {"variant": "broken.py:f"}}, r"broken\.py, line 2: NameError: name 'x'"),
    "an unknown parameter": (
        "clipped",
        {"rl": {"variant": CLIPPED, "settings": {"least": 1}}},
        "settings: no parameter least; those of clipped are most",
    ),
    "likelihood that nobody asks": (
        "clipped",
        {"rl": {"variant": "own.py:own", "estimate": "likelihood"}},
        "the own variant asks mu nothing; leave out estimate",
    ),
    "no such method": ("short", {"method": "sta"}, r"models\.short\.method: there is no method 'sta'; did you mean"),
    "a variant as a method": ("short", {"method": CLIPPED}, "clipped is no method, a SFTMethod or RLMethod"),
    "a table that there is not": (
        "short",
        {"method": "typo.py:shortest"},
        r"typo\.py:shortest: it reads 'rollout', which is none of rollouts, prover",
    ),
    "settings that it has not": ("short", {"settings": {"most": 1}}, "settings: it is for a model of method FILE"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_one_is_told_before_any_job(case, here):
    (here / "broken.py").write_text("from mrt.training.variant import variant\nx + 1\n")
    (here / "own.py").write_text(
        "from mrt.training.variant import variant\n\n\n@variant()\ndef own(group):\n    return group.rewards\n"
    )
    (here / "typo.py").write_text(EXAMPLES["my_method.py"].replace('("rollouts", ', '("rollout", '))
    name, changes, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        load(experiment(**{name: OF_USERS[name] | changes}))


def codes(folder):
    """Fingerprints of the trainings and sets of an experiment, in a new process."""
    script = """
import json
from types import SimpleNamespace
from mrt.config.load import load
from workflow.options import Options
from workflow.paths import Paths
from workflow.resources import JobResources
config = load(json.loads(open("config.json").read()))
paths = Paths(config)
options = Options(config, paths, JobResources(config))
found = {}
for name in paths.trained:
    w, is_rl = SimpleNamespace(model=name), name in paths.by_rl()
    code = options.trainer_code(w) if is_rl else options.set_code(w)
    found[name] = [code, options.rl(w) if is_rl else options.training_set(w)]
print(json.dumps(found))
"""
    return json.loads(python("-c", script, folder=folder))


def test_edits_of_a_file_and_what_it_imports_make_its_own_models_again_and_no_others(tmp_path):
    folder = checkout(tmp_path)
    for name, text in EXAMPLES.items():
        (folder / name).write_text(text)
    (folder / "limits.py").write_text("LEAST = -0.5\n")
    importing = EXAMPLES["my_variant.py"].replace("from mrt", "from limits import LEAST\nfrom mrt")
    (folder / "my_variant.py").write_text(importing.replace("(-most,", "(LEAST,"))
    (folder / "config.json").write_text(json.dumps(experiment()))
    before = codes(folder)
    (folder / "config.json").write_text(json.dumps(experiment(**OF_USERS)))
    added = codes(folder)
    assert {name: added[name] for name in before} == before and set(added) - set(before) == set(OF_USERS)

    def changed(file, old, new):
        path = folder / file
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
        now = codes(folder)
        path.write_text(text)
        return {name for name in added if now[name] != added[name]}

    assert changed("limits.py", "-0.5", "-0.25") == {"clipped"}
    assert changed("my_variant.py", "+ alpha * progress", "- alpha * progress") == {"clipped"}
    assert changed("my_method.py", 'keep="first"', 'keep="last"') == {"short"}
    assert changed("mrt/methods/star.py", "answer right", "right") == {"star_1", "short"}
    assert changed("mrt/methods/mrt.py", '"stop"', '"length"') == {"mrt_1"}
    assert changed("mrt/methods/mrt.py", "#D55E00", "#D55E01") == set()
    assert changed("mrt/training/sets.py", '("sampled"', '("drawn"') == {"star_1", "mrt_1", "short"}


def test_one_new_file_of_the_package_is_a_variant_and_a_method(tmp_path):
    """They are in the plan, the reference and the schema; nothing else changes its fingerprint."""
    folder = checkout(tmp_path)
    (folder / "config.json").write_text(json.dumps(experiment()))
    before = codes(folder)
    for name, file in (("my_variant.py", "clipped.py"), ("my_method.py", "shortest.py")):
        (folder / "mrt" / "methods" / file).write_text(EXAMPLES[name])
    assert codes(folder) == before
    (folder / "docs").mkdir()
    python("-m", "mrt.config.reference", "--out", "docs", folder=folder)
    page = (folder / "docs" / "configuration.md").read_text()
    assert "`clipped`" in page and "`shortest`" in page
    by_name = {"clipped": OF_USERS["clipped"] | {"rl": {"variant": "clipped"}}, "short": OF_USERS["short"]}
    by_name["short"] |= {"method": "shortest"}
    (folder / "config.yaml").write_text(yaml.safe_dump(experiment(**by_name)))
    jobs = planned_jobs(folder, "results/tiny/models/clipped", "results/tiny/models/short")
    assert jobs["train_rl"] == {"clipped"} and jobs["make_set"] == jobs["train"] == {"short"}
    assert re.search(r"^train \(RL\) +2 ", python("-m", "mrt", "plan", folder=folder), re.M)  # and mrt_rl


def test_the_code_of_each_method_is_in_the_fingerprint_of_what_it_decides():
    assert parts_of("mrt") == ["mrt.methods.mrt:examples", "mrt.methods.mrt:Rules"]
    assert parts_of("grpo", "explicit") == ["mrt.methods.grpo:outcome"]
    assert parts_of("mrt_rl", "termination") == ["mrt.methods.mrt_rl:termination"]
    definitions = fp.reached("mrt.training.rl", *parts_of("mrt_rl", "per_episode")).definitions
    assert "mrt.methods.mrt_rl.episode_advantages" in definitions
    assert not {"mrt.methods.mrt_rl.termination", "mrt.methods.grpo.outcome"} & set(definitions)
    assert method_named("star").colour == "#009E73"
