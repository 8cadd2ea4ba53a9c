"""Malformed configs and problem files: one clear error, exit code 1, no traceback, no job, nothing changed on disk."""

import json
import re
from functools import reduce
from pathlib import Path

import polars as pl
import pytest
import yaml
from conftest import ROOT, checkout, snakemake

from mrt.config.load import check_yaml, load
from mrt.core.settings import laid_over

TINY = "tests/tiny.yaml"
GOOD = '{"problem": "1 + 1?", "answer": "2"}\n'


def laid(names, settings):
    """These configurations over each other, with further settings by their paths."""
    config = reduce(laid_over, (yaml.safe_load((ROOT / name).read_text()) for name in names.split()))
    for path, value in settings.items():
        *parents, last = path.split(".")
        reduce(lambda at, part: at.setdefault(part, {}), parents, config)[last] = value
    return config


def write(folder, settings, names=TINY):
    (folder / "config.yaml").write_text(yaml.safe_dump(laid(names, settings), sort_keys=False))


def text(content):
    return lambda folder: (folder / "config.yaml").write_text(content)


def problem_file(name, content, **options):
    def apply(folder):
        if isinstance(content, pl.DataFrame):
            content.write_parquet(folder / name)
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        write(folder, {"problems.toy_test": {"file": name, "split": "test", **options}})

    return apply


def few_to_train_on(folder):
    (folder / "p.jsonl").write_text(GOOD)
    write(folder, {"problems.toy_train": {"file": "p.jsonl", "split": "train"}})


THEIRS = {"models.theirs": {"rollouts": {"file": "traces.jsonl"}}}


def completions(content, **evaluation):
    def apply(folder):
        (folder / "traces.jsonl").write_text(content)
        write(folder, THEIRS | {f"evaluation.{name}": value for name, value in evaluation.items()})

    return apply


def completions_of(problem_id, k=(1,), **more):
    """The evaluation of completions of one problem, of which there is one."""

    def apply(folder):
        (folder / "p.jsonl").write_text(GOOD)
        (folder / "traces.jsonl").write_text(f'{{"problem_id": {problem_id}, "text": "x"}}\n')
        evaluation = {"problems": ["toy_test"], "models": ["theirs"], "measures": ["accuracy", "maj"], "k": list(k)}
        file = {"problems.toy_test": {"file": "p.jsonl", "split": "test"}}
        write(folder, THEIRS | file | {"evaluation": evaluation | more})

    return apply


CASES = {  # those that are more than a setting; all others are rows of mistakes.tsv
    "not YAML": (text("models: [a\n"), r"config\.yaml, line 2: not YAML"),
    "a list": (text("- a\n- b\n"), r"config\.yaml: .*belong at its top level"),
    "a key that stands twice": (
        text((ROOT / "tests" / "tiny.yaml").read_text() + "seed: 1\nseed: 2\n"),
        r"seed: stands twice in .*config\.yaml",
    ),
    "empty": (text(""), r"config\.yaml: .*belong at its top level"),
    "a missing section": (text("results: r\nmodels: {}\n"), r"problems: Field required"),
    "more votes than samples": (
        lambda folder: write(folder, {"evaluation.k": [64]}),
        r"evaluation\.k: 64 is more than the 4 samples",
    ),
    "a file of fewer problems than a step of RL takes": (
        few_to_train_on,
        r"models\.mrt_rl: a step takes 4 problems \(.*\), and toy_train has 1",
    ),
    # problem files
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
    "an unknown suffix": (problem_file("p.txt", GOOD), r"p\.txt: rows are read from \.jsonl, \.parquet or \.csv"),
    "a column that is not there": (problem_file("p.jsonl", GOOD, columns={"id": "uid"}), r"p\.jsonl.*uid"),
    "an infinite difficulty": (
        problem_file("p.jsonl", '{"problem": "x", "answer": 1, "difficulty": Infinity}\n'),
        r"p\.jsonl, line 1: difficulty",
    ),
    "completions whose model would be asked": (
        completions('{"problem_id": "p", "text": "x"}\n', models=["base", "theirs"], measures=["accuracy", "regret"]),
        r"evaluation\.measures: 'theirs' is a file of completions, .*leave out regret",
    ),
    "completions of no problem": (
        completions_of('"toy_test-1"'),
        r"traces\.jsonl: no completion is of a problem of toy_test: problem_id is 'toy_test-1' .*'toy_test-0'",
    ),
    "fewer completions than votes": (
        completions_of('"toy_test-0"', k=[1, 2]),
        r"traces\.jsonl has 1 completion of problem 'toy_test-0' of toy_test, and evaluation\.k asks for 2",
    ),
    "fewer completions than the direct baseline's votes": (
        completions_of('"toy_test-0"', models=["base"], direct={"model": "theirs", "samples": 8, "k": [1, 8]}),
        r"traces\.jsonl has 1 completion of problem 'toy_test-0' of toy_test, and evaluation\.direct\.k asks for 8",
    ),
    "a completion without a problem id": (
        completions('{"problem_id": "p", "text": "x"}\n{"problem_id": null, "text": "x"}\n'),
        r"traces\.jsonl, row 2: problem_id is empty or missing",
    ),
    "completions without problem ids": (completions('{"text": "x"}\n'), r"traces\.jsonl.*problem_id"),
}


def state_of(folder: Path):
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*") if ".snakemake" not in p.parts}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with the shipped toy base."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mrt").symlink_to(ROOT / "mrt")
    return tmp_path


def error_of(folder):
    """The Snakefile's checks of a config, without Snakemake; nothing on disk is changed."""
    before = state_of(folder)
    with pytest.raises(ValueError) as error:
        check_yaml("config.yaml")
        load(yaml.safe_load(Path("config.yaml").read_text()), ["config.yaml"])
    assert state_of(folder) == before
    return str(error.value)


MISTAKES = [line.split("\t") for line in (ROOT / "tests/config/mistakes.tsv").read_text().splitlines()[1:]]


@pytest.mark.parametrize(("configs", "settings", "message"), [row[1:] for row in MISTAKES])
def test_a_mistake_is_named_with_its_path(configs, settings, message, folder):
    write(folder, yaml.safe_load(settings), configs)
    assert re.search(message, said := error_of(folder)), said


@pytest.mark.parametrize("name", CASES)
def test_each_is_one_clear_error(name, folder):
    CASES[name][0](folder)
    assert re.search(CASES[name][1], said := error_of(folder)), said


def test_completions_that_only_teach_need_no_problem_of_the_evaluation(folder):
    (folder / "other.jsonl").write_text(GOOD.replace("1 + 1", "2 + 2"))
    completions_of('"taught-0"')(folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["problems"]["taught"] = {"file": "other.jsonl", "split": "train"}
    config["models"]["direct"]["prompt"]["open_thought"] = ""
    config["models"]["cold"] = {"parent": "direct", "method": "cold_start", "teacher": "theirs", "problems": "taught"}
    config["evaluation"] |= {"models": ["cold"], "samples": 1, "decoding": {"max_tokens": 400}}
    load(config)
    (folder / "traces.jsonl").write_text('{"problem_id": "x", "text": "x"}\n')
    with pytest.raises(ValueError, match="no completion is of a problem of taught: problem_id is 'x'"):
        load(config)


def test_an_id_of_two_problems_is_refused(folder):
    (folder / "other.jsonl").write_text(GOOD.replace("1 + 1", "2 + 2"))
    completions_of('"0"')(folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    of_rows = [json.dumps({"id": "0", **json.loads(line)}) for line in GOOD.splitlines()[:1]]
    for name, change in (("a", "1 + 1"), ("b", "2 + 2")):
        (folder / f"{name}.jsonl").write_text("\n".join(of_rows).replace("1 + 1", change))
        config["problems"][name] = {"file": f"{name}.jsonl"}
    config["evaluation"] |= {"problems": ["a", "b"], "models": ["theirs"], "samples": 1, "k": [1]}
    config["evaluation"]["measures"] = ["accuracy"]
    config["models"] = {"theirs": config["models"]["theirs"]}
    with pytest.raises(ValueError, match=r"traces\.jsonl: the id '0' is of a problem of a and of another one of b"):
        load(config)
    (folder / "b.jsonl").write_text((folder / "a.jsonl").read_text())
    load(config)


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
    wrong = {"evaluation.samples": 0, "models.mrt_1.parent": "bsae", "training.recipe.epoch": 3}
    write(folder, wrong)
    said = snakemake(folder, "--cores", "1", check=False).stderr
    assert "(3 mistakes)" in said
    for path in wrong:
        assert f"  {path}: " in said
