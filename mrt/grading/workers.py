"""Worker processes that compare answers, with limits on time and memory."""

import atexit
import logging
import math
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Literal

from mrt.grading.equality import same_answer, search_answer

TIMEOUT = 5.0  # seconds per pair
MEMORY = 4 << 30  # bytes of address space of a worker
START = 120.0  # seconds a worker may take to import Math-Verify
BATCH = 8  # tasks in a message to a worker
Task = tuple[Literal["same", "search"], str, str]
_GRACE = 1.0  # seconds after the time limit of a pair until its worker is killed
_TURNS = 5_000  # tasks after which a worker is replaced, to empty its caches


class _Late(BaseException):
    """A task has run out of time; not an Exception, so that no handler inside Math-Verify or SymPy catches it."""


def _serve(pipe: Connection, memory: int) -> None:
    """Run batches of tasks until the pipe closes; sends (index, value, whether it timed out) for each in turn."""
    armed = False

    def alarm(signum: int, frame: FrameType | None) -> None:
        if armed:
            raise _Late

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
    signal.signal(signal.SIGALRM, alarm)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        same_answer("x + 1", "1 + x")  # imports everything
        _, ceiling = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (memory if ceiling < 0 else min(memory, ceiling), ceiling))
        pipe.send((-1, None, False))
    except ImportError as error:
        pipe.send((-2, str(error), False))
        return
    while True:
        try:
            timeout, tasks = pipe.recv()
        except (EOFError, OSError):
            return
        for index, (kind, one, other) in tasks:
            # In case the parent is gone by then, the kernel ends even C code at this CPU time limit.
            _, ceiling = resource.getrlimit(resource.RLIMIT_CPU)
            allowed = math.ceil(time.process_time() + timeout + 3 * _GRACE)
            resource.setrlimit(resource.RLIMIT_CPU, (allowed if ceiling < 0 else min(allowed, ceiling), ceiling))
            value: bool | str | None = None
            late = False
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, timeout, 0.2)  # repeats, in case a bare `except` swallows it
                value = same_answer(one, other) if kind == "same" else search_answer(one)
            except _Late:
                late = True
            except Exception:  # whatever Math-Verify, SymPy and ANTLR raise on text that is not mathematics
                value = None
            finally:
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            pipe.send((index, value, late))


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    ready: bool = False
    tasks: deque[int] = field(default_factory=deque)  # given and not yet answered, in order
    deadline: float = 0.0  # of the first of these, or of the start; by time.monotonic
    turns: int = 0


class Pool:
    """Worker processes that are killed when they overrun; they start when needed and stay for the next call."""

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory = memory
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.workers: list[_Worker] = []
        self.failures = 0  # failed starts in a row
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["math_verify", "mrt.core.cli", "mrt.core.storage"])

    def run(self, tasks: Sequence[Task], workers: int, timeout: float) -> list[tuple[bool | str | None, bool]]:
        """(value, whether it timed out) of each task, in order; the value is None if the task failed.

        `timeout` is in seconds per task. Raises RuntimeError if no worker can be started.
        """
        results: list[tuple[bool | str | None, bool]] = [(None, False)] * len(tasks)
        pending = deque(range(len(tasks)))
        size = max(1, min(BATCH, len(tasks) // (4 * workers)))
        with self.lock:
            try:
                while pending or any(worker.tasks for worker in self.workers):
                    while len(self.workers) < min(workers, len(pending)):
                        self._start()
                    for worker in [w for w in self.workers if w.ready and not w.tasks]:
                        if pending:
                            self._give(worker, tasks, pending, size, timeout)
                    self._collect(results, pending, timeout)
            except BaseException:
                self.close()
                raise
        return results

    def _start(self) -> None:
        here, there = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(there, self.memory), daemon=True)
        process.start()
        there.close()
        self.workers.append(_Worker(process, here, deadline=time.monotonic() + START))

    def _give(self, worker: _Worker, tasks: Sequence[Task], pending: deque[int], size: int, timeout: float) -> None:
        if worker.turns >= _TURNS or not worker.process.is_alive():
            self._end(worker)
            return
        batch = [pending.popleft() for _ in range(min(size, len(pending)))]
        worker.tasks.extend(batch)
        worker.turns += len(batch)
        worker.deadline = time.monotonic() + timeout + _GRACE
        try:
            worker.pipe.send((timeout, [(index, tasks[index]) for index in batch]))
        except OSError:  # it died while idle, so no task failed
            pending.extendleft(reversed(worker.tasks))
            self._end(worker)

    def _collect(self, results: list[tuple[bool | str | None, bool]], pending: deque[int], timeout: float) -> None:
        """Collect answers, waiting until the next deadline at most; end workers that are past theirs or have died."""
        active = [worker for worker in self.workers if worker.tasks or not worker.ready]
        if not active:
            return
        nearest = min(worker.deadline for worker in active)
        heard = wait([worker.pipe for worker in active], max(0.0, nearest - time.monotonic()))
        now = time.monotonic()
        for worker in active:
            if worker.pipe in heard:
                try:
                    index, value, late = worker.pipe.recv()
                except (EOFError, OSError):
                    self._lose(worker, results, pending, late=False)
                    continue
                if index == -2:
                    raise RuntimeError(f"grading needs Math-Verify, and a worker cannot import it: {value}")
                if index == -1:
                    worker.ready, self.failures = True, 0
                else:
                    results[index] = value, late
                    worker.tasks.remove(index)
                    worker.deadline = now + timeout + _GRACE
            elif now >= worker.deadline:
                self._lose(worker, results, pending, late=True)

    def _lose(
        self, worker: _Worker, results: list[tuple[bool | str | None, bool]], pending: deque[int], late: bool
    ) -> None:
        """End a worker; its current task has failed, and its tasks not yet begun go back to the queue."""
        if worker.tasks:
            results[worker.tasks.popleft()] = None, late
            pending.extendleft(reversed(worker.tasks))
        elif not worker.ready:
            self.failures += 1
            if self.failures >= 3:
                raise RuntimeError(
                    "grading cannot start its worker processes; a script that grades needs `if __name__ == '__main__':`"
                )
        self._end(worker)

    def _end(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.process.kill()
        worker.pipe.close()
        worker.process.join()

    def close(self) -> None:
        """End all workers; a later `run` starts new ones."""
        for worker in list(self.workers):
            self._end(worker)


_pool: Pool | None = None


def shared_pool() -> Pool:
    """The pool of this process; a forked child makes its own."""
    global _pool
    if _pool is None or _pool.owner != os.getpid():
        _pool = Pool()
        atexit.register(_pool.close)
    return _pool
