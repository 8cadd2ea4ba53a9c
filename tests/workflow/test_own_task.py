"""A task as a user's own file: planned, graded, its errors; a change of it reruns its dependents."""

import json
import re

import polars as pl
import pytest
import yaml
from conftest import ROOT, checkout, planned_jobs, snakemake

from mrt.config.load import load

PAGE = (ROOT / "docs" / "extend.md").read_text()
(NEAR,) = re.findall(r"```python\n# near\.py\n(.*?)```", PAGE, re.DOTALL)
NUMBER = NEAR.index("def number(")
FILES = {  # the task of the page, with its function in a module beside it
    "near.py": NEAR[:NUMBER].replace("from mrt.grading.task", "from numbers_read import number\nfrom mrt.grading.task"),
    "numbers_read.py": NEAR[NUMBER:],
}
CONFIG = {
    "results": "results/near",
    "problems": {"whole": {"file": "whole.jsonl"}},
    "models": {"theirs": {"label": "Theirs", "rollouts": {"file": "traces.jsonl"}}},
    "evaluation": {"problems": ["whole"], "models": ["theirs"], "measures": ["accuracy", "maj"], "k": [1, 2]},
}
MEASURED = {"file": "measured.jsonl", "task": "near.py:Near"}
GRADES = "results/near/grades/theirs/{}.rollouts.parquet"


def configured(folder, **problems):
    config = {**CONFIG, "problems": CONFIG["problems"] | problems}
    config["evaluation"] = {**CONFIG["evaluation"], "problems": list(config["problems"])}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def jobs_of(folder):
    """The planned jobs of each rule, by their wildcards in alphabetical order."""
    return {rule: {" ".join(sorted(job.split())) for job in jobs} for rule, jobs in planned_jobs(folder).items()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A checkout in which an experiment has run without the task, on completions that were sampled elsewhere."""
    folder = checkout(tmp_path_factory.mktemp("own_task"))
    for name, content in FILES.items():
        (folder / name).write_text(content)
    rows = {"whole": [{"answer": "10"}], "measured": [{"answer": "9.81", "tolerance": by} for by in (0.05, 0.2)]}
    for name, problems in rows.items():
        lines = (json.dumps({"problem": f"{name} {i}?", **row}) for i, row in enumerate(problems))
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    answers = {"whole-0": ["10", "9.9"], "measured-0": ["9.8", "10"], "measured-1": ["10", "9.7"]}
    lines = (
        json.dumps({"problem_id": problem, "text": f"<think>\nhm\n</think>\n\nIt is \\boxed{{{answer}}}."})
        for problem, of_problem in answers.items()
        for answer in of_problem
    )
    (folder / "traces.jsonl").write_text("\n".join(lines))
    configured(folder)
    snakemake(folder, "--cores", 2)
    return folder


@pytest.mark.slow
def test_a_problem_set_with_a_task_of_a_file_is_planned_graded_and_remade_alone(finished):
    folder, rows_before = finished, (finished / GRADES.format("whole")).read_bytes()
    configured(folder, measured=MEASURED)
    of_sets = jobs_of(folder)
    assert of_sets["grade_rollouts"] == of_sets["measure_accuracy"] == {"measured theirs"}
    assert not any("whole" in name for names in of_sets.values() for name in names)
    snakemake(folder, "--cores", 2)
    grades = pl.read_parquet(folder / GRADES.format("measured")).sort("problem_id", "sample")
    assert grades["correct"].to_list() == [True, False, True, True]
    assert grades["cluster"].to_list() == [0, 1, 0, 1] and "score" not in grades.columns
    accuracy = pl.read_parquet(folder / "results/near/metrics/theirs/measured.accuracy.parquet")
    assert accuracy.sort("problem_id")["accuracy"].to_list() == [0.5, 1.0]
    assert (folder / GRADES.format("whole")).read_bytes() == rows_before

    (folder / "near.py").write_text(FILES["near.py"].replace('"""A number is right', '"""Right is a number'))
    assert not planned_jobs(folder)
    changed = FILES["numbers_read.py"].replace("return float(text)", "return round(float(text), 1)")
    (folder / "numbers_read.py").write_text(changed)
    of_sets = jobs_of(folder)
    assert of_sets["grade_rollouts"] == {"measured theirs"}
    assert not {"import_rollouts", "build_dataset"} & of_sets.keys()
    assert not any("whole" in name for names in of_sets.values() for name in names)
    (folder / "near.py").write_text(FILES["near.py"].replace("columns = (", "columns = (1 / 0, "))
    done = snakemake(folder, "--cores", 2, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    line = FILES["near.py"][: FILES["near.py"].index("columns")].count("\n") + 1
    assert f"problems.measured.task: near.py, line {line}: ZeroDivisionError: division by zero" in done.stderr


READ_OFF = {"prover": {"estimate": "likelihood"}, "measures": ["accuracy", "regret"]}
MISTAKES = {
    "an unknown task": (
        {"problems": {"toy_test": {"task": "maths"}}},
        r"problems.toy_test.task: there is no task 'maths'",
    ),
    "a missing file": ({"problems": {"toy_test": {"task": "gone.py:A"}}}, r"problems.toy_test.task: gone.py: no such"),
    "a column that the toy lacks": (
        {"problems": {"toy_test": {"task": "near.py:Near"}}},
        r"problems.toy_test.task: it reads tolerance, which problems of the toy world do not have",
    ),
    "the old name of its settings": (
        {"grading": {"by": "math_verify"}},
        r"grading: its settings are those of the task math, .*task: {name: math, by: math_verify}",
    ),
    "J by likelihood to measure": (
        {"evaluation": READ_OFF, "problems": {"toy_test": {"task": "plain.py:Plain"}}},
        r"evaluation.prover.estimate: the task of problems.toy_test, plain.py:Plain, has no texts of gold answers",
    ),
    "J by likelihood to train on": (
        {"training": {"prover": {"estimate": "likelihood"}}, "problems": {"toy_train": {"task": "plain.py:Plain"}}},
        r"training.prover.estimate: the task of problems.toy_train, plain.py:Plain, has no texts",
    ),
    "J by likelihood in RL": (
        {
            "models": {"mrt_rl": {"rl": {"estimate": "likelihood"}}},
            "problems": {"toy_train": {"task": "plain.py:Plain"}},
        },
        r"models.mrt_rl.rl.estimate: the task of problems.toy_train, plain.py:Plain, has no texts",
    ),
}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Loads the tiny experiment with further settings, in a folder with two tasks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "near.py").write_text(NEAR)
    (tmp_path / "plain.py").write_text("from mrt.grading.task import Task\n\n\nclass Plain(Task):\n    pass\n")

    def loaded(more):
        from mrt.core.settings import laid_over

        config = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
        return load(laid_over(config, more))

    return loaded


@pytest.mark.parametrize(("more", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_wrong_task_is_one_clear_error_before_any_job(tiny, more, message):
    with pytest.raises(ValueError, match=message) as error:
        tiny(more)
    assert "(1 mistake)" in str(error.value)


def test_math_named_is_the_default_and_its_likelihood_is_read_off(tiny):
    more = {"evaluation": READ_OFF}
    named = tiny({**more, "problems": {"toy_test": {"task": "math"}}})
    assert named == tiny(more) and named.problems["toy_test"].task is None
