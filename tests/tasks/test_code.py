"""The task `code`: tests in the forms of datasets, programs that mean harm, the toy version, machines without bwrap."""

import json
import os
import pwd
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import polars as pl
import pytest
import yaml
from conftest import ROOT
from hypothesis import strategies as st

from mrt.analysis.measures.maj import maj
from mrt.analysis.progress import progress_table
from mrt.config.load import load
from mrt.core.artifacts import PROBLEMS as TABLE
from mrt.core.artifacts import PROVER, ROLLOUTS
from mrt.core.fingerprint import reached
from mrt.episodes.thinking import THINK
from mrt.grading import sandbox
from mrt.grading.grade import Grade
from mrt.grading.task import answers_in, clusters, problem_rows, reference, scores, task_of
from mrt.problems.build import Problems, build
from mrt.problems.settings import Dataset
from mrt.tasks.code import Code

needs_bubblewrap = pytest.mark.skipif(bool(Code().unmet()), reason=Code().unmet())
PROGRAMS = yaml.safe_load(Path(__file__).with_name("programs.yaml").read_text())
SECRET = "SECRET-271828"
LIMITS = {"seconds": 1, "memory": 256, "threads": 8, "files": 8}


def posed(*tests, **settings):
    """A problem with these tests, as its task poses it."""
    function = settings.pop("function", None)
    task = Code(**settings, **({"function": "f"} if function else {}))
    return task.posed({"id": "p", "problem": "q", "answer": "-", "tests": [*tests], "f": function})


def rows():
    """Problems for the laws of tasks (tests/tasks/test_tasks.py)."""
    if Code().unmet():
        pytest.skip(Code().unmet())
    return st.sampled_from([posed({"input": "", "output": str(n)}) for n in (3, 4)])


PROBLEMS = st.deferred(rows)
ANSWERS = st.sampled_from(["print(3)", "print(1 + 2)", "print(4)", "print("])


def judge(program, row, **settings):
    """The score of a program."""
    task = Code(**settings)
    return scores(task, answers_in(task, [f"```python\n{program}\n```"], [row]), [row])[0]


@pytest.mark.parametrize(
    ("part", "program"),
    [
        ("```python\nx\n```", "x"),
        ("First\n```python\nx\n```\nthen\n```python\ny\n\nz\n```\nas in\n```text\nw\n```", "y\n\nz"),
        ("```\nx\n```", "x"),
        ("```python\nx\n```\nIt prints\n```\n3\n```", "x"),
        ("1. So\n   ```py\n   if x:\n       y\n   ```", "if x:\n    y"),
        ("```python\r\nx\r\n```<|im_end|>", "x"),
        ("```python3\ns = '```'\n```", "s = '```'"),
        ("```python\n```", None),
        ("```python\nx", None),
        ("x = 3", None),
    ],
)
def test_the_program_is_the_last_fenced_block_of_python(part, program):
    assert Code().answer(part, {}) == program


@needs_bubblewrap
@pytest.mark.parametrize("form", PROGRAMS["forms"])
def test_tests_are_read_as_datasets_have_them(form, tmp_path):
    columns, settings, program = (PROGRAMS["forms"][form].get(key, {}) for key in ("row", "settings", "program"))
    (tmp_path / "p.jsonl").write_text(json.dumps({"problem": "q", "answer": "-", **columns}))
    task = task_of({"name": "code", **settings})
    TABLE.write(
        build("p", Dataset(file=tmp_path / "p.jsonl"), extra=task.columns, task=task)[0], tmp_path / "p.parquet"
    )
    (row,) = problem_rows(tmp_path / "p.parquet").values()
    assert row["problem"].startswith("q\n\nWrite ") and "```python" in row["problem"]
    wrong = program.replace("return", "return 1,").replace("print(", "print(1, ").replace("raise", "return")
    blocks = [
        f"```python\n{text}\n```"
        for text in (program, wrong.replace("self.a[-1]", "0"), "def", "import os; os._exit(0)")
    ]
    assert scores(task, answers_in(task, blocks, [row] * 4), [row] * 4) == [1, 0, 0, 0], row


@pytest.mark.parametrize(
    ("tests", "settings", "message"),
    [
        ([], {}, "it has no tests"),
        (["  "], {}, "it has no tests"),
        (["f(3)"], {}, "no `assert`, so that every program would pass"),
        (["assert f(3 == 2"], {}, "no Python code"),
        (["def check(c):\n    assert c(1) == 1"], {}, "define functions and call none"),
        ([{"input": ["1", "2"], "output": ["1"]}], {}, "an output for each input"),
        ([{"input": "1"}], {}, "an output for each input"),
        ([{"inputs": [], "outputs": []}], {}, "an output for each input"),
        ([{"input": "1", "output": "1"}, "assert f(1) == 1"], {}, "several kinds: a script, assert"),
        ([{"input": "1", "output": "1", "testtype": "functional"}], {}, "`function` names the column"),
        ([{"input": "x", "output": "1"}], {"function": "f"}, "'x' is none"),
        ([{"input": 3, "output": 1}], {"function": "f"}, "a list, or lines of JSON; not 3"),
        ([3], {}, "'3' is neither"),
    ],
    ids=str,
)
def test_tests_that_judge_nothing_are_an_error(tests, settings, message):
    with pytest.raises(ValueError, match=message):
        posed(*tests, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inputs": "a"}, "`inputs` and `outputs` go together"),
        ({"inputs": "a", "outputs": "b", "tests": "c"}, "give `tests`, or `inputs` and `outputs`"),
    ],
    ids=str,
)
def test_columns_that_contradict_each_other_are_an_error(settings, message):
    with pytest.raises(ValueError, match=message):
        task_of({"name": "code", **settings})


def test_a_problem_shows_as_many_tests_as_asked_for():
    assert "\nassert f(1) == 1\n```" in posed("assert f(1) == 1", "assert f(2) == 4", shown=1)["problem"]
    assert "f(2) == 4" not in posed("assert f(1) == 1", "assert f(2) == 4", shown=1)["problem"]
    assert "Input:\n3\nOutput:\n9\n\nWrite a program" in posed({"input": "3", "output": "9"}, shown=2)["problem"]
    assert "cube(2) -> 8" in posed({"input": [2], "output": 8}, function="cube", shown=1)["problem"]


@needs_bubblewrap
def test_partial_credit_and_votes_follow_the_outputs():
    row = posed(*({"input": str(n), "output": str(n * n)} for n in range(4)))
    texts = ["print(int(input()) ** 2)", "n = int(input())\nprint(n * n)", "print(int(input()) * 2)", "x", "y", "x"]
    task = Code(partial=True)
    assert scores(task, texts, [row] * 6) == [1, 1, 0.5, 0, 0, 0]
    assert scores(Code(), texts, [row] * 6) == [1, 1, 0, 0, 0, 0]
    assert clusters(task, [[*texts, None]], [row]) == [[0, 0, 1, 2, 3, 2, -1]]
    assert clusters(Code(votes=0), [texts], [row]) == [[0, 1, 2, 3, 4, 3]]
    assert clusters(Code(votes=1), [["print(0)", *texts[:3]]], [row]) == [[0, 0, 0, 0]]  # 0 is 0 squared and doubled
    checks = posed("assert f(1) == 1", "assert f(2) == 4", "assert f(0) == 0")
    functions = [
        "def f(x): return x * x",
        "f = lambda x: x ** 2",
        "def f(x): return 1 / x and x * x",
        "def f(x): return x",
    ]
    assert clusters(Code(), [functions], [checks]) == [[0, 0, 1, 2]]
    assert scores(task, functions, [checks] * 4) == [1, 1, 2 / 3, 2 / 3]


def test_a_row_of_the_source_is_refused():
    row = {"id": "p", "problem": "q", "answer": "49", "tests": ["assert f(7) == 49"]}
    with pytest.raises(KeyError, match="cases"):
        scores(Code(), ["print(49)"], [row])
    with pytest.raises(KeyError, match="cases"):
        clusters(Code(), [["print(49)", "print(50)"]], [row])


# ---- programs that mean harm: each gives the right answer, but only where it has its way ----

TESTS = [  # all of a row have to pass
    f"assert f(3) == 27 and f('a') == {SECRET!r} and math.isclose(f(0.5), 0.125) and abs(f(2) - 8) < 1e-6",
    "x = [3]\nassert f(x) == sorted(x, reverse=True) + [1]",
]
SCORES = """
import json, sys
from mrt.grading import sandbox
from mrt.grading.task import scores
from mrt.tasks.code import Code
mark, program, rows, settings = json.load(sys.stdin)
sandbox.ENVIRONMENT["MRT_MARK"] = mark
print(sandbox.sandbox()[0], scores(Code(**settings), [program] * len(rows), rows))
"""


@cache
def python_of(user):
    """A Python that a user can run with this environment's packages, and options to run it as that user; else None."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    options = {"env": {"PYTHONPATH": path, "PATH": os.environ["PATH"], "MRT_PASSWORD": "x"}, "cwd": "/"}
    options |= {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with suppress(OSError):
            if not subprocess.run([python, "-c", "import mrt.grading.task"], capture_output=True, **options).returncode:
                return python, options
    return None


def as_user(user, *values):
    """The output of `SCORES` in a process of a user."""
    if user and os.geteuid():
        pytest.skip("only root can become another user")
    if not (able := python_of(user)):
        pytest.skip(f"{user} can read neither this Python nor the system's with our packages")
    python, options = able
    run = subprocess.run([python, "-c", SCORES], input=json.dumps(values), text=True, capture_output=True, **options)
    assert run.returncode == 0, run.stderr
    return run.stdout


def marked(mark):
    """The processes that were started with a mark in their environment."""
    processes = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in file.read_text(errors="replace"):
                processes.append(file.parent.name)
        except OSError:
            continue
    return processes


def wait_for(condition):
    """Wait until something holds, for 20 seconds at most."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@needs_bubblewrap
@pytest.mark.parametrize("user", [None, "nobody"])
@pytest.mark.parametrize("name", [*PROGRAMS["scripts"], *PROGRAMS["functions"]])
def test_a_program_that_means_harm_is_wrong_and_leaves_nothing(name, user, tmp_path):
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    tmp_path.chmod(0o777)
    (tmp_path / "secret.txt").write_text(SECRET)
    with socket.create_server(("0.0.0.0", 0)) as server:
        values = {"MARK": mark, "OUT": str(tmp_path), "HOME": str(Path.home()), "PORT": server.getsockname()[1]}
        values |= {"HOST": socket.gethostname(), **({} if name == "reads its tests" else {"SECRET": SECRET})}
        given = (
            "".join(f"{name} = {value!r}\n" for name, value in values.items()) if name in PROGRAMS["scripts"] else ""
        )
        program = given + (PROGRAMS["scripts"] | PROGRAMS["functions"])[name]
        if name in PROGRAMS["scripts"]:
            of_rows = [posed({"input": "", "output": SECRET})]
        else:
            of_rows = [
                posed(*TESTS),
                posed({"input": [3], "output": 27}, {"input": ["a"], "output": SECRET}, function="f"),
            ]
        start = time.monotonic()
        result = as_user(user, mark, program, of_rows, LIMITS)
        took = time.monotonic() - start
    mode = "root" if os.geteuid() == 0 and not user else "user"
    assert result == f"{mode} {[0.0] * len(of_rows)}\n"
    assert took < 120  # seconds; a busy machine takes longer to start it
    wait_for(lambda: not marked(mark))
    places = [
        *Path("/").iterdir(),
        *map(Path, ("/dev/shm", "/var/tmp", "/usr/lib", "/root")),
        Path.home(),
        tmp_path,
        ROOT,
    ]
    assert not [place for place in places if (place / mark).exists()]


@needs_bubblewrap
def test_a_program_ends_with_the_process_that_judges_it():
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    row, (python, options) = posed({"input": "", "output": "3"}), python_of(None)
    with subprocess.Popen([python, "-c", SCORES], stdin=subprocess.PIPE, text=True, **options) as judging:
        print(json.dumps([mark, "import time\ntime.sleep(600)", [row], {}]), file=judging.stdin)
        judging.stdin.close()
        wait_for(lambda: marked(mark))
        judging.kill()
    wait_for(lambda: not marked(mark))


@needs_bubblewrap
def test_a_harmless_program_may_use_threads_files_and_all_of_its_limits():
    program = (
        "import threading, os, json\nopen('note', 'w').write('x' * 7 * 2 ** 20)\nblock = bytearray(100 * 2 ** 20)\n"
        "threads = [threading.Thread(target=print, args=(n,)) for n in range(3)]\n"
        "for thread in threads: thread.start(); thread.join()\nprint(os.listdir('.'), hash('a') == hash('a'))"
    )
    row = posed({"input": "", "output": "0\n1\n2\n['note'] True"})
    assert judge(program, row, **LIMITS) == 1 and judge(program, row, **LIMITS | {"files": 4}) == 0


@needs_bubblewrap
def test_a_slow_machine_changes_no_verdict_as_cpu_time_counts():
    """A program that waits for longer than its seconds is right, one that computes for as long is not."""
    row = posed({"input": "", "output": "3"})
    assert judge("import time\ntime.sleep(1.5)\nprint(3)", row, seconds=1) == 1
    assert judge("import time\nwhile time.process_time() < 1.5: pass\nprint(3)", row, seconds=1) == 0


# ---- a machine without bubblewrap, the configuration, the toy ----


def configuration(tmp_path, **task):
    """A configuration with a problem set of programs."""
    (tmp_path / "p.jsonl").write_text(json.dumps({"problem": "q", "answer": "-", "tests": ["assert f(1) == 1"]}))
    problems = {"p": {"file": str(tmp_path / "p.jsonl"), "task": {"name": "code", **task}}}
    evaluation = {"problems": ["p"], "models": ["base"], "measures": ["accuracy"], "decoding": {"max_tokens": 400}}
    return {
        "results": str(tmp_path / "r"),
        "problems": problems,
        "models": {"base": {"toy": "shipped"}},
        "evaluation": evaluation,
    }


@pytest.fixture
def no_bubblewrap(monkeypatch, tmp_path):
    """A path without `bwrap`."""
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox.sandbox.cache_clear()
    yield
    sandbox.sandbox.cache_clear()


def test_without_bubblewrap_programs_are_refused_before_any_job_unless_they_are_trusted(
    tmp_path, monkeypatch, no_bubblewrap
):
    with pytest.raises(ValueError, match=r"problems\.p\.task: bubblewrap is not installed.*`unsafe: true`"):
        load(configuration(tmp_path))
    with pytest.raises(RuntimeError, match="cannot judge programs on this machine: bubblewrap is not installed"):
        judge("print(3)", posed({"input": "", "output": "3"}))
    load(configuration(tmp_path, unsafe=True))
    row = posed("assert f(1) == 1", "assert f(2) == 4")
    assert judge("def f(x): return x * x", row, unsafe=True) == 1 and judge("def f(x): return x", row, unsafe=True) == 0
    loop = "import os\nif not os.fork(): os.execv('/bin/sleep', ['sleep', '601'])\nwhile True: pass"
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setitem(sandbox.ENVIRONMENT, "MRT_MARK", mark)
    assert judge(loop, posed({"input": "", "output": "3"}), unsafe=True, seconds=1) == 0
    wait_for(lambda: not marked(mark))


@needs_bubblewrap
def test_J_of_programs_is_counted_and_not_read_off(tmp_path):
    config = configuration(tmp_path)
    load(config)
    config["evaluation"] |= {"measures": ["progress"], "prover": {"estimate": "likelihood"}}
    with pytest.raises(ValueError, match=r"the task of problems\.p, code, has no texts of gold answers"):
        load(config)


@needs_bubblewrap
@pytest.mark.parametrize(
    ("method", "variant", "reads"),
    [
        ("mrt_rl", "explicit", True),
        ("brpo", "explicit", True),
        ("s_grpo", "explicit", True),
        ("grpo", "explicit", False),
    ],
)
def test_rl_reads_no_J_of_programs_off(method, variant, reads, tmp_path):
    config = configuration(tmp_path)
    rl = {"estimate": "likelihood", "opening": "**Ends:** \\boxed{", "variant": variant, "prefixes": 0}
    rl |= {"batch_size": 2, "micro_batch_size": 2, "num_generations": 2, "decoding": {"max_tokens": 400}}
    config["problems"]["train"] = {**config["problems"]["p"], "file": str(tmp_path / "train.jsonl")}
    (tmp_path / "train.jsonl").write_text((tmp_path / "p.jsonl").read_text().replace('"q"', '"r"'))
    config["models"]["child"] = {"parent": "base", "method": method, "problems": "train", "rl": rl}
    if not reads:
        load(config)
        return
    with pytest.raises(
        ValueError, match=r"models\.child\.rl\.estimate: the task of problems\.train, code, has no texts of gold"
    ):
        load(config)


def test_the_fingerprint_has_all_that_runs_in_the_sandbox():
    names = {name.removeprefix("mrt.grading.") for name in reached("mrt.grading.grade", reference("code")).definitions}
    assert {f"inside.{name}" for name in ("enter", "run", "serve", "judge", "Channel", "Remote", "encode")} <= names


@needs_bubblewrap
def test_the_toy_has_programs_whose_grades_votes_and_J_are_those_of_mathematics(tmp_path):
    """Its boxed answer is an expression, which a program prints; so `code` and `math` agree on all."""
    task = {"name": "code", "tests": None, "program": "box"}
    settings = Dataset(toy={"count": 3, "seed": 5, "difficulties": [4]}, task=task)
    Problems(name="t", set=settings, task=task, out=tmp_path / "problems.parquet").cli_cmd()
    golds = {name: int(row["answer"]) for name, row in problem_rows(tmp_path / "problems.parquet").items()}
    sums = [(gold, f"{gold - 1} + 1", gold + 1, f"{gold - 3} + 3", gold + 2, gold + 3) for gold in golds.values()]
    answers = [f"Ends:** they add up to \\boxed{{{value}}}." for values in sums for value in values]
    keys = pl.DataFrame({"problem_id": [name for name in golds for _ in range(6)], "sample": [*range(6)] * 3})
    texts = [f"Try it.\n</think>\n\n1. **{answer}" for answer in answers]
    numbers = [name for name in (*ROLLOUTS.columns, *PROVER.columns) if name.endswith("tokens")]
    words = {"prompt": "", "finish_reason": "stop", "thinking": THINK.cell(), "inside": True, "mean_logprob": -1.0}
    known = {name: pl.lit(value) for name, value in (dict.fromkeys(numbers, 1) | words).items()}
    rollouts = keys.with_columns(**known, text=pl.Series(texts)).select(list(ROLLOUTS.columns)).cast(ROLLOUTS.columns)
    prefixes = {"prefix": pl.col("sample") // 3, "answer_index": pl.col("sample") % 3, "sample": pl.lit(0)}
    forced = keys.with_columns(**known, **prefixes, text=pl.Series(answers))
    forced = forced.select(list(PROVER.columns)).cast(PROVER.columns)
    ROLLOUTS.write(rollouts, tmp_path / "rollouts.parquet")
    PROVER.write(forced, tmp_path / "prover.parquet")
    tables = {}
    for choice in (task, None):
        for answered in ("rollouts", "prover"):
            files = {"problems": tmp_path / "problems.parquet", "answers": tmp_path / f"{answered}.parquet"}
            Grade(**files, out=tmp_path / "grades.parquet", task=choice).cli_cmd()
            tables[answered, bool(choice)] = pl.read_parquet(tmp_path / "grades.parquet")
    of_code, of_math = (tables["rollouts", choice] for choice in (True, False))
    assert of_code["correct"].to_list() == [True, True, False, True, False, False] * 3
    assert of_code.drop("answer").equals(of_math.drop("answer"))
    assert maj(rollouts, of_code, [1, 2, 4]).equals(maj(rollouts, of_math, [1, 2, 4]))
    J_of_code, J_of_math = (progress_table(forced, tables["prover", choice]) for choice in (True, False))
    assert J_of_code.equals(J_of_math) and J_of_code["J"].to_list() == [2 / 3, 1 / 3] * 3
