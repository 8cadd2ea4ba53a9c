"""A process that runs stages for `benchmarks.scaling`, each input line in a child process, and reports their cost.

    python -m benchmarks.stages < commands.jsonl

A line of input is `{"commands": [["mrt.analysis.progress", "--prover", ...]], "engine": null}`, or `{"make": [folder,
kinds, sizes]}` to write the tables that a command reads. Children are forked from a process that has imported the
stages and done nothing else, so that a command of 0.3 s is not lost in 1.5 s of imports. Seconds are those of the
stage's work after its options are read; MiB are its peak resident memory less what it held then. `engine` is null, `at
once` or `vllm`. `at once` replaces vLLM by an engine that answers without computing, so that only the sampling stage's
own work is measured; `vllm` builds one engine for all commands of the line.
"""

import gc
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import tables
from benchmarks.record import TOY_BASE
from mrt.core.cli import Stage
from mrt.sampling.engine import Engine, EngineSettings

PRELOADED = (  # what the children need
    *("mrt.analysis.evaluate", "mrt.training.sets", "mrt.training.prompts", "mrt.episodes.cut", "mrt.problems.build"),
    *("mrt.problems.contamination", "mrt.grading.grade", "mrt.sampling.rollouts", "mrt.sampling.prover"),
    *("mrt.sampling.budget_forcing", "mrt.sampling.linearized", "mrt.figures.progress"),
    *(
        "transformers.models.auto.tokenization_auto",
        "vllm.sampling_params",
        "matplotlib.backends.backend_agg",
        "matplotlib.pyplot",
        "matplotlib.backends.backend_pdf",
    ),
)
STATUS = Path("/proc/self/status")
ANSWER = "Try 3 + 4.\n\nThat is 7.\n\nSo \\boxed{7}\n"


class AtOnce:
    """Replaces vLLM's engine: it answers requests in the next step, as many as fit."""

    def __init__(self) -> None:
        self.llm_engine, self.waiting = self, list[tuple[str, int]]()
        self.model_config = SimpleNamespace(max_model_len=10_000_000)
        self.ids = Engine(TOY_BASE, EngineSettings()).encode([ANSWER])[0]

    def add_request(self, name: str, prompt: Any, parameters: Any, priority: int = 0) -> None:
        self.waiting.append((name, parameters.n))

    def step(self) -> list[Any]:
        now, self.waiting = self.waiting[:256], self.waiting[256:]
        return [
            SimpleNamespace(request_id=name, finished=True, outputs=[self.drawn(i) for i in range(n)])
            for name, n in now
        ]

    def drawn(self, index: int) -> Any:
        return SimpleNamespace(
            index=index, text=ANSWER, token_ids=self.ids, cumulative_logprob=-1.0, finish_reason="stop"
        )


def mebibytes(line: str) -> float:
    """MiB in a line of this process's status, such as its peak resident memory."""
    return next(int(found.split()[1]) for found in STATUS.read_text().splitlines() if found.startswith(line)) / 1024


def watched(work: Callable[[Stage], None], results: list[tuple[float, float]]) -> Callable[[Stage], None]:
    """Wrap a stage's work so that its seconds and MiB are recorded."""

    def wrapper(stage: Stage) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        held, since = mebibytes("VmRSS"), time.perf_counter()
        work(stage)
        results.append((time.perf_counter() - since, mebibytes("VmHWM") - held))

    return wrapper


def carry_out(commands: list[list[str]], engine: str | None) -> list[tuple[float, float]]:
    """Run stages' commands as `python -m` would, one after the other."""
    results: list[tuple[float, float]] = []
    plain = Stage.carry_out

    def measured(stage: Stage) -> None:
        type(stage).cli_cmd = watched(type(stage).cli_cmd, results)  # type: ignore[method-assign]
        plain(stage)

    Stage.carry_out = measured  # type: ignore[method-assign]
    if engine:
        Engine.llm = AtOnce() if engine == "at once" else property(one_for_all(Engine.llm))  # type: ignore[assignment]
    for command in commands:
        sys.argv = command
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    return results


def one_for_all(llm: Any) -> Callable[[Engine], Any]:
    """Let all engines share the vLLM that the first one builds, with an empty prefix cache."""
    built: list[Any] = []

    def given(engine: Engine) -> Any:
        if not built:
            built.append(llm.func(engine))
        built[0].reset_prefix_cache()
        return built[0]

    return given


def in_a_child(work: Callable[[], Any]) -> Any:
    """The result of `work` in a child process; raises RuntimeError with its output if it fails."""
    here, there = os.pipe()
    log = os.memfd_create("log")
    child = os.fork()
    if not child:
        os.dup2(log, 1)
        os.dup2(log, 2)
        status = 1
        try:
            result = work()
            os.write(there, json.dumps(result).encode())
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(there)
    with os.fdopen(here, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    os.lseek(log, 0, 0)
    with os.fdopen(log, "rb") as told:
        if status:
            raise RuntimeError(told.read().decode(errors="replace")[-3000:])
    return json.loads(said)


def main() -> None:
    for name in PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()  # else a child's first garbage collection copies all that was imported
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "make" in asked:
                found = in_a_child(lambda: tables.make(*asked["make"]))  # noqa: B023  called here and now
            else:
                found = in_a_child(lambda: carry_out(asked["commands"], asked["engine"]))  # noqa: B023
            answer: dict[str, Any] = {"found": found}
        except RuntimeError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
