"""Worker processes that compare answers, with limits on time and memory (pebble's pool)."""

import atexit
import logging
import multiprocessing
import os
import resource
import signal
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, TimeoutError
from typing import Literal

from pebble import ProcessExpired, ProcessPool

from mrt.grading.equality import math_verify, same_answer, search_answer

TIMEOUT = 5.0  # seconds of CPU time per pair: so verdicts do not depend on load
PATIENCE = 6  # times as many seconds of real time, after which a worker is killed too
START = 120.0  # seconds a worker may take to start
MEMORY = 4 << 30  # bytes of address space of a worker
Task = tuple[Literal["same_answer", "math_verify", "search_answer"], str, str]


def _prepare(memory: int) -> None:
    """Limit a worker, which the fork server has started with everything imported (`mrt.grading.preloaded`)."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, ceiling = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory if ceiling < 0 else min(memory, ceiling), ceiling))


def _ready() -> None:
    import math_verify  # noqa: F401  # a worker that lacks it would find everything unequal


def _judge(task: Task, timeout: float) -> bool | str | None:
    kind, one, other = task
    signal.setitimer(signal.ITIMER_PROF, timeout)  # SIGPROF ends the worker: in C code too, and if its parent is gone
    try:
        if kind == "search_answer":
            return search_answer(one)
        return math_verify(one, other) if kind == "math_verify" else same_answer(one, other)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class Pool:
    """Worker processes that are killed when they overrun; they start when needed and stay for the next call."""

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory = memory
        self.owner = os.getpid()
        self.size = 0
        self.processes: ProcessPool | None = None
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["mrt.grading.preloaded"])

    def run(self, tasks: Sequence[Task], workers: int, timeout: float) -> list[tuple[bool | str | None, bool]]:
        """(value, whether it timed out) of each task, in order; the value is None if the task failed.

        `timeout` is in seconds of CPU time per task. Raises RuntimeError if no worker can be started.
        """
        results: list[tuple[bool | str | None, bool]] = []
        while len(results) < len(tasks):
            pool, limit = self._started(workers), PATIENCE * timeout
            for future in [
                pool.schedule(_judge, args=[task, timeout], timeout=limit) for task in tasks[len(results) :]
            ]:
                try:
                    results.append((future.result(2 * limit), False))
                except TimeoutError:
                    results.append((None, True))
                    if not future.done():  # its worker hangs before its start
                        self.close()
                        break
                except ProcessExpired as error:
                    results.append((None, error.exitcode == -signal.SIGPROF))
                except BrokenExecutor:  # no worker is left; new ones go on with the next task
                    results.append((None, False))
                    self.close()
                    break
                except Exception:  # whatever Math-Verify, SymPy and ANTLR raise on text that is not mathematics
                    results.append((None, False))
        return results

    def _started(self, workers: int) -> ProcessPool:
        if self.size == workers and self.processes is not None and self.processes.active:
            return self.processes
        self.close()
        self.processes, self.size = ProcessPool(workers, 5_000, _prepare, [self.memory], self.context), workers
        try:
            self.processes.schedule(_ready).result(START)
        except (ImportError, ProcessExpired, BrokenExecutor, TimeoutError) as error:
            self.close()
            raise RuntimeError(
                f"grading cannot start its worker processes ({error}); they need Math-Verify, and a script that grades"
                " needs `if __name__ == '__main__':`"
            ) from error
        return self.processes

    def close(self) -> None:
        """End all workers; a later `run` starts new ones."""
        if self.processes is not None:
            self.processes.stop()  # type: ignore[no-untyped-call]
            self.processes.join()
            self.processes = None


_pool: Pool | None = None


def shared_pool() -> Pool:
    """The pool of this process; a forked child makes another one."""
    global _pool
    if _pool is None or _pool.owner != os.getpid():
        _pool = Pool()
        atexit.register(_pool.close)
    return _pool
