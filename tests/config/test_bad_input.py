"""Malformed configs and problem files: one clear error, exit code 1, no traceback, no job, nothing changed on disk."""

import re
from pathlib import Path

import polars as pl
import pytest
import yaml
from conftest import ROOT, checkout, snakemake

from mrt.config.load import check_yaml, load

CONFIG = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
GOOD = '{"problem": "1 + 1?", "answer": "2"}\n'


def setting(path, value):
    def apply(folder):
        config = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
        at = config
        *parents, last = path.split(".")
        for part in parents:
            at = at.setdefault(part, {})
        at[last] = value
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))

    return apply


def text(content):
    return lambda folder: (folder / "config.yaml").write_text(content)


def problem_file(name, content, **options):
    def apply(folder):
        if isinstance(content, pl.DataFrame):
            content.write_parquet(folder / name)
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        setting("problems.toy_test", {"file": name, "split": "test", **options})(folder)

    return apply


def few_to_train_on(folder):
    (folder / "p.jsonl").write_text(GOOD)
    setting("problems.toy_train", {"file": "p.jsonl", "split": "train"})(folder)


def completions(content):
    def apply(folder):
        (folder / "traces.jsonl").write_text(content)
        setting("models.theirs", {"rollouts": {"file": "traces.jsonl"}})(folder)

    return apply


def evaluated_completions(content):
    def apply(folder):
        completions(content)(folder)
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["evaluation"] |= {
            "models": [*config["evaluation"]["models"], "theirs"],
            "measures": ["accuracy", "regret"],
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))

    return apply


def of_two_runs(folder):
    setting("models.star_1.parent", ["base"])(folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["training"]["runs"] = 2
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def edited(**settings):
    """Several settings, by their paths with __ for dots."""

    def apply(folder):
        config = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
        for path, value in settings.items():
            *parents, last = path.split("__")
            at = config
            for part in parents:
                at = at[part]
            at[last] = value
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))

    return apply


def completions_of(problem_id, k=(1,)):
    def apply(folder):
        (folder / "p.jsonl").write_text(GOOD)
        (folder / "traces.jsonl").write_text(f'{{"problem_id": {problem_id}, "text": "x"}}\n')
        file = {"file": "p.jsonl", "split": "test"}
        evaluation = {"problems": ["toy_test"], "models": ["theirs"], "measures": ["accuracy", "maj"], "k": list(k)}
        theirs = {"rollouts": {"file": "traces.jsonl"}}
        edited(problems__toy_test=file, models__theirs=theirs, evaluation=evaluation)(folder)

    return apply


def claimed(**claim):
    """A claim beside those of tests/tiny.yaml, which has none, and measures."""
    asked = {"section": "8", "says": "x", "model": "mrt_1", "than": "base", "expect": "more", "redraw": "table1"}
    return setting("claims", [asked | claim])


def direct_of_one_completion(folder):
    completions_of('"toy_test-0"')(folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["evaluation"] |= {"models": ["base"], "direct": {"model": "theirs", "samples": 8, "k": [1, 8]}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


SIZES = dict(parameters=1000, layers=1, hidden=8, intermediate=8, heads=1, kv_heads=1, head_dim=8, vocabulary=100)
CASES = {
    # configs: structure and names
    "not YAML": (text("models: [a\n"), r"config\.yaml, line 2: not YAML"),
    "a list": (text("- a\n- b\n"), r"config\.yaml: .*belong at its top level"),
    "a key that stands twice": (
        text((ROOT / "tests" / "tiny.yaml").read_text() + "seed: 1\nseed: 2\n"),
        r"seed: stands twice in .*config\.yaml",
    ),
    "empty": (text(""), r"config\.yaml: .*belong at its top level"),
    "a missing section": (text("results: r\nmodels: {}\n"), r"problems: Field required"),
    "unknown key at the top": (setting("modls", {}), r"modls: there is no such setting; did you mean 'models'\?"),
    "unknown key deep down": (
        setting("training.recipe.learning_rat", 1),
        r"training\.recipe\.learning_rat: there is no such setting; did you mean 'learning_rate'\?",
    ),
    "unknown key of a model": (
        setting("models.star_1.parnt", "base"),
        r"models\.star_1\.parnt: there is no such setting; did you mean 'parent'\?",
    ),
    "a section that is text": (setting("evaluation", "all"), r"evaluation: Input should be .*got 'all'"),
    "a name that is no file name": (setting("models.a/b", {"toy": "shipped"}), r"models\.a/b: a name is made of"),
    # configs: values
    "text for a number": (setting("evaluation.samples", "many"), r"evaluation\.samples: .*integer.*got 'many'"),
    "a switch for a number": (setting("evaluation.samples", True), r"evaluation\.samples: a number is wanted"),
    "a fraction of a sample": (setting("evaluation.samples", 2.5), r"evaluation\.samples: .*got 2\.5"),
    "no samples": (setting("evaluation.samples", 0), r"evaluation\.samples: .*greater than or equal to 1 \(got 0\)"),
    "a huge number": (setting("evaluation.samples", 10**30), r"evaluation\.samples: .*less than or equal to"),
    "a negative learning rate": (setting("training.recipe.learning_rate", -1), r"learning_rate: .*greater than 0"),
    "NaN": (setting("training.decoding.temperature", float("nan")), r"training\.decoding\.temperature: .*got nan"),
    "infinity": (setting("training.recipe.weight_decay", float("inf")), r"training\.recipe\.weight_decay: .*got inf"),
    "a top_p beyond 1": (setting("training.decoding.top_p", 1.5), r"training\.decoding\.top_p: .*got 1\.5"),
    "an unknown method": (setting("models.star_1.method", "stars"), r"models\.star_1\.method: .*'star'.*got 'stars'"),
    "an unknown measure": (setting("evaluation.measures", ["acuracy"]), r"evaluation\.measures\.0: .*'accuracy'"),
    "an empty list of models": (setting("evaluation.models", []), r"evaluation\.models: .*at least 1"),
    "a toy problem of two numbers": (setting("problems.toy_test.toy.difficulties", [2]), r"3 to 8 numbers"),
    "a truncated distribution in RL": (
        setting("training.rl", {"decoding": {"top_p": 0.95}}),
        r"training\.rl: decoding\.top_p: below 1 .* biases the gradient",
    ),
    "a truncated distribution in RL of one model": (
        setting("models.mrt_rl.rl", {"decoding": {"top_p": 0.5}}),
        r"models\.mrt_rl\.rl: decoding\.top_p: below 1",
    ),
    "a penalty from the first token on": (
        setting("models.mrt_rl.rl", {"overlong_buffer": 16000}),
        r"models\.mrt_rl\.rl: with those of training\.rl: overlong_buffer: 16000 tokens are more than .*max_tokens",
    ),
    "problems of 3 numbers that no base saw": (
        setting("problems.toy_test.toy", {"count": 4, "unseen": True}),
        r"problems\.toy_test\.toy: unseen: the toy bases were trained on all problems of 3 numbers",
    ),
    "problems unseen by a base that is not the shipped one": (
        edited(
            seed=1,
            models__base__toy="remade",
            problems__toy_test__toy={"count": 4, "difficulties": [4, 5], "unseen": True},
        ),
        r"problems\.toy_test\.toy\.unseen: what a base saw is known of the shipped ones alone",
    ),
    # configs: what does not go together
    "a parent that is not there": (
        setting("models.star_1.parent", "bsae"),
        r"models\.star_1\.parent: there is no 'bsae'; did you mean 'base'\?",
    ),
    "a cycle of parents": (setting("models.star_1.parent", "star_1"), r"models\.star_1\.parent: .*circle"),
    "two origins": (setting("models.base.path", "x"), r"models\.base: .*exactly one of path, toy, rollouts, parent"),
    "a parent without a method": (setting("models.star_1.method", None), r"models\.star_1: .*all of parent, method"),
    "training on an evaluation set": (
        setting("models.star_1.problems", "toy_test"),
        r"models\.star_1\.problems: 'toy_test' is an evaluation set",
    ),
    "a set disjoint from one that is not there": (
        setting("problems.toy_train.disjoint_from", ["toy_tst"]),
        r"problems\.toy_train\.disjoint_from: there is no 'toy_tst'; did you mean 'toy_test'\?",
    ),
    "sets that wait for each other": (
        setting("problems.toy_test.disjoint_from", ["toy_train"]),
        r"problems\.toy_t.*\.disjoint_from: .*wait",
    ),
    "an unknown evaluation set": (
        setting("evaluation.problems", ["toy"]),
        r"evaluation\.problems: there is no 'toy'; there are toy_test, toy_train",
    ),
    "a model evaluated twice": (setting("evaluation.models", ["base", "base"]), r"evaluation\.models: .*twice"),
    "more votes than samples": (setting("evaluation.k", [64]), r"evaluation\.k: 64 is more than the 4 samples"),
    "a budget beyond the longest completion": (
        setting("evaluation.budgets", [4096]),
        r"evaluation\.budgets: 4096 is beyond decoding\.max_tokens, 400",
    ),
    "completions longer than the model's context": (
        setting("engine.max_model_len", 256),
        r"evaluation\.decoding\.max_tokens: 400 does not fit into engine\.max_model_len, 256",
    ),
    "one label for two models": (setting("models.star_1.label", "Base"), r"models: several have the label 'Base'"),
    "rules of a model that is not trained": (
        setting("models.base.rules", {"minimum_J": 0.5}),
        r"models\.base: .*trained",
    ),
    "rules of a method that has none": (
        setting("models.star_1.rules", {"minimum_J": 0.5}),
        r"models\.star_1\.rules: they are for a model of method mrt",
    ),
    "weights that do not count": (
        setting("models.mrt_1.rules", {"weight": "progress"}),
        r"models\.mrt_1\.rules\.weight: it counts only with `recipe: \{weighted: true\}`",
    ),
    "weights that are all 1": (
        setting("models.mrt_1.recipe", {"weighted": True}),
        r"models\.mrt_1\.recipe\.weighted: all examples weigh the same",
    ),
    "texts longer than a model's own context": (
        edited(
            models__other={"path": "some/model", "architecture": SIZES | {"context": 128}},
            models__child={"parent": "other", "method": "star", "problems": "toy_train"},
        ),
        r"training\.decoding\.max_tokens: 400 does not fit into the context of other, 128",
    ),
    "thoughts longer than the meta-prover's context": (
        edited(models__judge={"path": "some/model", "architecture": SIZES | {"context": 420}}, evaluation__mu="judge"),
        r"evaluation\.prover\.decoding\.max_tokens: \d+ does not fit into the context of judge, 420",
    ),
    "a folder without weights": (
        setting("models.other", {"path": "."}),
        r"models\.other\.path: \. is no whole checkpoint, .*: it lacks config\.json, .*model\.safetensors",
    ),
    "a folder that is not there": (
        setting("models.other", {"path": "my/models/qwen"}),
        r"models\.other\.path: there is no folder 'my/models/qwen' in ",
    ),
    "a home folder": (setting("results", "~/results"), r"results: `~` means nothing here; write '/.*/results'"),
    "a name that runs take": (
        edited(training__runs=2, models__star_1_seed1={"toy": "shipped", "label": "Mine"}),
        r"models\.star_1_seed1: `training\.runs` calls a run of star_1 so",
    ),
    "fewer problems than a step of RL takes": (
        edited(problems__toy_train__toy__count=3),
        r"models\.mrt_rl: a step takes 4 problems \(.*\), and toy_train has 3",
    ),
    "a file of fewer problems than a step of RL takes": (
        few_to_train_on,
        r"models\.mrt_rl: a step takes 4 problems \(.*\), and toy_train has 1",
    ),
    "an unknown type of weights": (setting("engine.dtype", "fp16"), r"engine\.dtype: .*'bfloat16'.*got 'fp16'"),
    "a type of GPU that the SLURM plugin does not take": (
        setting("cluster", {"gpu": "a100-80gb", "slurm_type": "nvidia_a100-sxm4-80gb"}),
        r"cluster\.slurm_type: String should match",
    ),
    "no measures": (setting("evaluation.measures", []), r"evaluation\.measures: .*at least 1"),
    # problem files
    "no such file": (
        setting("problems.toy_test", {"file": "absent.jsonl", "split": "test"}),
        r"problems\.toy_test\.file: there is no file absent\.jsonl",
    ),
    "0 problems": (problem_file("p.jsonl", ""), r"p\.jsonl: 0 problems"),
    "an empty answer": (
        problem_file("p.jsonl", GOOD + '{"problem": "x", "answer": " "}\n'),
        r"p\.jsonl, line 2: answer",
    ),
    "no answers": (problem_file("p.jsonl", '{"problem": "x"}\n'), r"p\.jsonl.*answer"),
    "duplicate ids": (
        problem_file("p.jsonl", '{"id": 1, "problem": "x", "answer": 1}\n{"id": 1, "problem": "y", "answer": 2}\n'),
        r"two different problems have the id '1'",
    ),
    "an answer that is NaN": (problem_file("p.jsonl", '{"problem": "x", "answer": NaN}\n'), r"line 1: answer .*NaN"),
    "an answer that is an object": (problem_file("p.jsonl", '{"problem": "x", "answer": {}}\n'), r"line 1: answer"),
    "bad UTF-8": (problem_file("p.jsonl", GOOD.encode() + b'{"problem": "\xff", "answer": 1}\n'), r"line 2: not UTF-8"),
    "not JSON": (problem_file("p.jsonl", GOOD + "{problem: x}\n"), r"p\.jsonl, line 2: not JSON"),
    "a CSV named .jsonl": (problem_file("p.jsonl", "problem,answer\n1+1,2\n"), r"p\.jsonl, line 1: not JSON.*"),
    "a JSONL named .csv": (problem_file("p.csv", GOOD), r"p\.csv, line 1: .*name the file \.jsonl"),
    "a CSV of semicolons": (
        problem_file("p.csv", "problem;answer\nx;1\n"),
        r"p\.csv, line 1: columns are separated by commas; this header has ';'",
    ),
    "a solution for an answer": (
        problem_file("p.jsonl", '{"problem": "x", "answer": "1 + 1 = 2\\n#### 2"}\n'),
        r"p\.jsonl, line 1: answer \(column 'answer'\) is a solution .*answer_after: \"####\".*solution: answer",
    ),
    "a CSV row too long": (problem_file("p.csv", "problem,answer\n1,2,3\n"), r"p\.csv, line 2: 3 values for 2 columns"),
    "a Parquet file cut short": (
        problem_file("p.parquet", b"PAR1\x00\x00"),
        r"p\.parquet: not a readable Parquet file",
    ),
    "an unknown suffix": (problem_file("p.txt", GOOD), r"p\.txt: problems are read from \.jsonl, \.parquet or \.csv"),
    "a column that is not there": (problem_file("p.jsonl", GOOD, columns={"id": "uid"}), r"p\.jsonl.*uid"),
    "an infinite difficulty": (
        problem_file("p.jsonl", '{"problem": "x", "answer": 1, "difficulty": Infinity}\n'),
        r"p\.jsonl, line 1: difficulty",
    ),
    "several completions at temperature 0": (
        setting("training.prover.decoding.temperature", 0),
        r"training\.prover\.decoding\.temperature: at 0 all \d+ completions",
    ),
    "RL at temperature 0": (
        setting("training.rl.decoding.temperature", 0),
        r"training\.rl: .*decoding\.temperature: at 0 all completions of a group are alike",
    ),
    "a parent that is a list": (setting("models.star_1.parent", ["base"]), r"models\.star_1\.parent: .*string"),
    "runs of a parent that is a list": (of_two_runs, r"models\.star_1\.parent: .*string"),
    "a log that is not there": (
        setting("models.base.training_log", "absent.csv"),
        r"models\.base\.training_log: there is no file absent\.csv",
    ),
    "completions whose model would be asked": (
        evaluated_completions('{"problem_id": "p", "text": "x"}\n'),
        r"evaluation\.measures: 'theirs' is a file of completions, .*leave out regret",
    ),
    "completions of no problem": (
        completions_of('"toy_test-1"'),
        r"traces\.jsonl: no completion is of a problem of toy_test: problem_id is 'toy_test-1' .*'toy_test-0'",
    ),
    "fewer completions than votes": (
        completions_of('"toy_test-0"', k=[1, 2]),
        r"traces\.jsonl has 1 completions of problem 'toy_test-0' of toy_test, and evaluation\.k or .* asks for 2",
    ),
    "fewer completions than the direct baseline's votes": (
        direct_of_one_completion,
        r"traces\.jsonl has 1 completions of problem 'toy_test-0' of toy_test, and .*evaluation\.direct\.k asks for 8",
    ),
    "a claim about a k that is not measured": (
        claimed(value="maj at 8"),
        r"claims\.0\.value: 'maj at 8' is not measured of 'mrt_1', but 1, 2, 4 is",
    ),
    "a claim about a budget that is not measured": (
        claimed(value="regret at 100"),
        r"claims\.0\.value: 'regret at 100' is not measured of 'mrt_1', but 64, 128, 192, 256 is",
    ),
    "a claim about a model that is not extended": (
        claimed(value="accuracy after 2 extensions", model="star_1"),
        r"claims\.0\.value: 'accuracy after 2 extensions' is not measured of 'star_1', but nothing is",
    ),
    "a claim about an extrapolated budget of a model that is not extended": (
        claimed(value="regret at 256", than="star_1"),
        r"claims\.0\.value: 'regret at 256' is not measured of 'star_1', but 64, 128 is",
    ),
    "a claim without its measure": (
        edited(
            evaluation__measures=["accuracy"],
            claims=[
                dict(
                    section="8",
                    says="x",
                    value="token efficiency",
                    model="mrt_1",
                    than="base",
                    expect="more",
                    redraw="table1",
                )
            ],
        ),
        r"claims\.0\.value: 'token efficiency' needs 'maj' among evaluation\.measures",
    ),
    "a cold start whose answers begin otherwise than mu's": (
        edited(
            models__cold=dict(parent="direct", method="cold_start", problems="toy_train"),
            models__direct={"toy": "shipped", "prompt": {"open_thought": ""}},
            template={"header": "So: "},
        ),
        r"models\.cold\.cold_start\.answer: an answer has to begin as mu is made to, .*'So: '",
    ),
    "a completion without a problem id": (
        completions('{"problem_id": "p", "text": "x"}\n{"problem_id": null, "text": "x"}\n'),
        r"traces\.jsonl, row 2: problem_id is empty or missing",
    ),
    "completions without problem ids": (completions('{"text": "x"}\n'), r"traces\.jsonl.*problem_id"),
}


def test_completions_that_only_teach_need_no_problem_of_the_evaluation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mrt").symlink_to(ROOT / "mrt")
    (tmp_path / "other.jsonl").write_text(GOOD.replace("1 + 1", "2 + 2"))
    completions_of('"taught-0"')(tmp_path)
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    config["problems"]["taught"] = {"file": "other.jsonl", "split": "train"}
    config["models"]["direct"]["prompt"]["open_thought"] = ""
    config["models"]["cold"] = {"parent": "direct", "method": "cold_start", "teacher": "theirs", "problems": "taught"}
    config["evaluation"] |= {"models": ["cold"], "samples": 1, "decoding": {"max_tokens": 400}}
    load(config)
    (tmp_path / "traces.jsonl").write_text('{"problem_id": "x", "text": "x"}\n')
    with pytest.raises(ValueError, match="no completion is of a problem of taught: problem_id is 'x'"):
        load(config)


def state_of(folder: Path):
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*") if ".snakemake" not in p.parts}


@pytest.mark.parametrize("name", CASES)
def test_each_is_one_clear_error(name, tmp_path, monkeypatch):
    """What the Snakefile does with a config, without Snakemake."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mrt").symlink_to(ROOT / "mrt")  # the shipped toy base
    CASES[name][0](tmp_path)
    before = state_of(tmp_path)
    with pytest.raises(ValueError) as error:
        check_yaml("config.yaml")
        load(yaml.safe_load(Path("config.yaml").read_text()), ["config.yaml"])
    assert re.search(CASES[name][1], str(error.value)), str(error.value)
    assert state_of(tmp_path) == before


# One of each way in which they are found: by the YAML parser, in the files, by pydantic, and in a given file.
THROUGH_SNAKEMAKE = (
    "not YAML",
    "a key that stands twice",
    "more votes than samples",
    "completions without problem ids",
)


@pytest.mark.parametrize("name", THROUGH_SNAKEMAKE)
def test_snakemake_ends_with_it_before_any_job(name, tmp_path):
    folder = checkout(tmp_path)
    CASES[name][0](folder)
    before = state_of(folder)
    done = snakemake(folder, "--cores", "2", check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert re.search(CASES[name][1], said), said[-3000:]
    assert "Traceback" not in said and "rule " not in said.replace("rule definition", "") and "Job stats" not in said
    assert state_of(folder) == before


def test_all_mistakes_are_shown_at_once(tmp_path):
    folder = checkout(tmp_path)
    setting("evaluation.samples", 0)(folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["models"]["mrt_1"]["parent"] = "bsae"
    config["training"]["recipe"]["epoch"] = 3
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    said = snakemake(folder, "--cores", "1", check=False).stderr
    assert "(3 mistakes)" in said
    for path in ("evaluation.samples", "models.mrt_1.parent", "training.recipe.epoch"):
        assert f"  {path}: " in said
