"""The task `code`: programs, judged by the tests of the problem's row in a sandbox (MBPP, HumanEval, APPS, TACO).

Programs are run by `mrt.grading.sandbox`. docs/grading.md (Programs) has its limits, and the comparison of outputs.
"""

import json
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, PrivateAttr, model_validator

from mrt.core.digest import digest
from mrt.grading.answers import boxed
from mrt.grading.cases import (
    Cases,
    cases_of,
    equal_texts,
    equal_values,
    function_named,
    lines_of,
    plain,
    request,
    shown,
    tests_of,
)
from mrt.grading.inside import decode, encode, run, serve
from mrt.grading.sandbox import Limits, Setting, sandbox
from mrt.grading.task import Row, Task

_BLOCK = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n`]*\n(.*?)^[ \t]*```(?![`\w])", re.DOTALL | re.MULTILINE)
_PYTHON = {"python", "python3", "py"}
LONGER, LEAST = 8, 1 << 20  # an output of more characters than these times the expected ones is wrong


class Run(NamedTuple):
    """A program on one test."""

    passed: bool
    output: str | None  # a hash of the output; None if it failed


class Code(Task):
    """Programs: right if they pass all tests of the problem's row. They run in a sandbox, bubblewrap."""

    tests: str | tuple[str, ...] | None = Field(
        "tests",
        description="Column of the tests: Python code with `assert`, or a list of it; or inputs and outputs, as"
        " objects or in JSON. If several columns are named, all are used. null: the program has to"
        " print the gold answer.",
    )
    inputs: str | None = Field(None, description="Column of the inputs, a list, instead of `tests`.")
    outputs: str | None = Field(None, description="Column of the outputs that belong to `inputs`.")
    function: str | None = Field(
        None, description="Column that names the function to call, or JSON with `fn_name` or `func_name`."
    )
    program: Literal["block", "box"] = Field(
        "block", description="The program: the last fenced Python block; or a box, whose expression it prints."
    )
    setup: str = Field("", description="Python code put before each program, such as `from typing import *`.")
    shown: int = Field(0, ge=0, description="Number of tests that the problem shows below its text.")
    tolerance: float = Field(
        0, ge=0, description="Error of a decimal number in an output, relative above 1 and else absolute; at 0, none."
    )
    partial: bool = Field(False, description="Whether the score is the share of tests passed; else all or nothing.")
    votes: int = Field(
        8,
        ge=0,
        description="Number of first tests whose outputs decide whether two programs are one vote; at 0, texts do.",
    )
    seconds: int = Field(6, ge=1, description="Seconds of CPU time a test; of real time, four times as many.")
    memory: int = Field(1024, ge=64, description="MiB of memory (address space).")
    threads: int = Field(32, ge=1, description="Threads. A program has one process, and can start no other.")
    files: int = Field(64, ge=1, description="MiB of files in /tmp, and of printed output.")
    packages: bool = Field(False, description="Whether programs may import the packages of this environment.")
    unsafe: bool = Field(False, description="Run programs without a sandbox, with all rights of the user.")
    _runs: dict[tuple[str, str], list[Run]] = PrivateAttr(default_factory=dict)
    _limited: int = PrivateAttr(0)

    @model_validator(mode="after")
    def _one_kind_of_tests(self) -> Self:
        if (self.inputs is None) != (self.outputs is None):
            raise ValueError("`inputs` and `outputs` go together")
        if self.inputs and "tests" in self.model_fields_set:
            raise ValueError("give `tests`, or `inputs` and `outputs`")
        return self

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        """The columns of the tests, and of the function's name."""
        tests = (self.tests,) if isinstance(self.tests, str) else self.tests or ()
        tests = (self.inputs, self.outputs) if self.inputs and self.outputs else tests
        return (*tests, *([self.function] if self.function else []))

    def posed(self, problem: Row) -> Row:
        """The problem with a request for a program, and its tests in one form. Raises ValueError if they are none."""
        if not self.columns:
            return problem
        function = function_named(problem[self.function]) if self.function else None
        if self.inputs and self.outputs:
            values: list[Any] = [{"inputs": problem[self.inputs], "outputs": problem[self.outputs]}]
        else:
            values = [problem[name] for name in self.columns if name != self.function]
        cases = cases_of(values, function)
        parts = [problem["problem"], *shown(cases, self.shown), *request(cases, function)]
        return {"id": problem["id"], "problem": "\n\n".join(parts), "answer": problem["answer"], "cases": cases}

    def cases(self, problem: Row) -> Cases:
        """The tests of a problem as `posed` gives it. Raises KeyError for a row of the source."""
        cases: Cases = problem["cases"] if self.columns else {"pairs": [["", problem["answer"]]]}
        return cases

    def answer(self, part: str, problem: Row) -> str | None:
        if self.program == "box":
            return f"print({box})" if (box := boxed(part)) else None
        blocks = [(tag.lower(), text) for tag, text in _BLOCK.findall(part.replace("\r\n", "\n"))]
        texts = [text for tag, text in blocks if tag in _PYTHON] or [text for tag, text in blocks if not tag]
        return textwrap.dedent(texts[-1]).strip("\n") or None if texts else None

    def right(self, answers: Sequence[str], problems: Sequence[Row]) -> list[float]:
        def goes_on(runs: Sequence[Run]) -> bool:
            return self.partial or all(run.passed for run in runs)

        each = [self.cases(row) for row in problems]
        runs_of = self.judged(list(zip(answers, each, strict=True)), goes_on)
        counts = [len(tests_of(cases)) for cases in each]
        shares = [sum(run.passed for run in runs) / count for runs, count in zip(runs_of, counts, strict=True)]
        return [share if self.partial else float(share == 1) for share in shares]

    def same(self, pairs: Sequence[tuple[str, str]], problems: Sequence[Row]) -> list[bool]:
        """Whether texts are equal, or the outputs on the first tests; programs that fail alike are not the same."""
        sides = [(text, self.cases(row)) for pair, row in zip(pairs, problems, strict=True) for text in pair]
        if not self.votes:
            return [one == other for one, other in pairs]
        runs_of = self.judged(sides, lambda runs: len(runs) < self.votes)
        given = [[run.output for run in runs[: self.votes]] for runs in runs_of]
        outputs = zip(pairs, given[::2], given[1::2], strict=True)
        return [one == other or (first == second and any(first)) for (one, other), first, second in outputs]

    def judged(
        self, programs: Sequence[tuple[str, Cases]], goes_on: Callable[[Sequence[Run]], bool]
    ) -> list[list[Run]]:
        """The runs of each program on its tests, in order, as long as `goes_on`; each is made once."""
        mode = "unsafe" if self.unsafe else sandbox(self.packages)[0]
        if mode is None:
            raise RuntimeError(f"the task code cannot judge programs on this machine: {self.unmet()}")
        setting = Setting(Limits(self.seconds, self.memory, self.files, self.threads), mode, self.packages)
        digests = {id(cases): "" for _, cases in programs}  # tests may be long, and shared by many programs
        for _, cases in programs:
            digests[id(cases)] = digests[id(cases)] or digest(json.dumps(cases, sort_keys=True))
        keys = [(text, digests[id(cases)]) for text, cases in programs]
        each = dict(zip(keys, programs, strict=True))

        def work(key: tuple[str, str]) -> None:
            (text, cases), runs = each[key], self._runs.setdefault(key, [])
            if len(runs) < len(tests_of(cases)) and goes_on(runs):
                self.proceed(f"{self.setup}\n{text}\n", cases, setting, runs, goes_on)

        with ThreadPoolExecutor(self._workers or len(os.sched_getaffinity(0))) as pool:
            list(pool.map(work, each))
        return [self._runs[key] for key in keys]

    def proceed(
        self, text: str, cases: Cases, setting: Setting, runs: list[Run], goes_on: Callable[[Sequence[Run]], bool]
    ) -> None:
        """Add runs. One that a limit ends is the last, and further tests count as failed."""
        limited = False
        if cases.get("checks"):
            verdicts, limited = setting.checked(text, cases["checks"])
            runs += [Run(*verdict) for verdict in verdicts]
        while cases.get("pairs") and not limited and len(runs) < len(cases["pairs"]) and goes_on(runs):
            made, limited = self.on_pair(text, cases, len(runs), setting)
            runs.append(made)
        if limited or cases.get("checks"):
            runs += [Run(False, None)] * (len(tests_of(cases)) - len(runs))
        self._limited += limited

    def on_pair(self, text: str, cases: Cases, index: int, setting: Setting) -> tuple[Run, bool]:
        """A program on a pair of input and output, and whether a limit ended it. Only the input goes to the program."""
        given, expected = cases["pairs"][index]
        longest = LONGER * len(json.dumps(expected)) + LEAST
        failed, function = Run(False, None), cases.get("function")
        if function is None:
            output, limited = setting.output(run, text, given)
            if output is None or len(output) > longest:
                return failed, limited
            return Run(equal_texts(output, expected, self.tolerance), digest("\n".join(lines_of(output)))), limited
        requests = [["globals", ["list", [function]]], ["call", ["object", 0], encode(given, int), ["dict", []]]]
        output, limited = setting.output(serve, text, "".join(f"{json.dumps(line)}\n" for line in requests))
        if output is None or len(output) > longest:
            return failed, limited
        try:
            _, reply = output.splitlines()
            kind, content = json.loads(reply)
            value = plain(decode(content, lambda _: object()))
            golds = [expected, *(expected if cases.get("wrapped") else [])]
            passed = kind == "value" and any(equal_values(value, gold, self.tolerance) for gold in golds)
        except Exception:  # the program may have written anything
            return failed, limited
        return Run(passed, digest(reply)) if kind == "value" else failed, limited

    def unmet(self) -> str:
        mode, fault = ("unsafe", "") if self.unsafe else sandbox(self.packages)
        return (
            "" if mode else f"{fault}; install bubblewrap (docs/installation.md), or trust all programs: `unsafe: true`"
        )

    def note(self) -> str:
        return f"{len(self._runs)} programs run, {self._limited} ended by a limit"
