"""The workers: hostile pairs cost their time limit, and a worker's death costs its pair."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from mrt.grading.grader import Grader
from mrt.grading.workers import Pool, Task

HOSTILE = [
    ("9^{9^{9^9}}", "2"),
    ("99999999!!!!", "7"),
    ("{" * 10_000, "x"),
    ("(" * 900 + "1" + ")" * 900, "3"),
    (r"\sqrt{" * 250 + "2" + "}" * 250, "x"),
    ("x" * 10**6, "y"),
]


def test_hostile_pairs_cost_their_time_limit_and_stall_nobody() -> None:
    good = [("x^2-1", "(x-1)(x+1)"), (r"\sqrt{8}", r"2\sqrt{2}"), ("x+1", "x+2"), ("x+x", "2x")]
    pairs = [pair for hostile in HOSTILE for pair in (hostile, *good)]
    grader = Grader(workers=2, timeout=1.0)
    grader.equal(good)  # the workers have started
    start = time.monotonic()
    verdicts = grader.equal(pairs)
    assert time.monotonic() - start < len(HOSTILE) * 2.5
    for i in range(len(HOSTILE)):
        assert verdicts[5 * i : 5 * i + 5] == [False, True, True, False, True]
    assert grader.timed_out >= 1


def worker_of(pool: Pool) -> int:
    """The process of a pool's only worker."""
    assert pool.processes is not None
    (pid,) = pool.processes._pool_manager.worker_manager.workers
    return int(pid)


def test_a_worker_in_c_code_is_killed_and_a_dead_one_replaced() -> None:
    pool = Pool()
    tasks: list[Task] = [("same_answer", "9^{9^{9^9}}", "2"), ("same_answer", "a+b", "b+a"), ("same_answer", "x", "y")]
    try:
        assert pool.run(tasks, workers=1, timeout=0.5) == [(None, True), (True, False), (False, False)]
        os.kill(worker_of(pool), signal.SIGKILL)
        time.sleep(0.5)
        assert pool.run(tasks[1:2], workers=1, timeout=5.0) == [(True, False)]
    finally:
        pool.close()


def test_a_worker_that_hangs_is_killed() -> None:
    """A stopped process begins no pair, so that no limit of a pair ends it."""
    pool = Pool()
    tasks: list[Task] = [("same_answer", "x + 1", "1 + x"), ("same_answer", "a+b", "b+a"), ("same_answer", "x", "y")]
    try:
        assert pool.run(tasks[:1], workers=1, timeout=5.0) == [(True, False)]
        os.kill(worker_of(pool), signal.SIGSTOP)
        assert pool.run(tasks, workers=1, timeout=0.5) == [(None, True), (True, False), (False, False)]
    finally:
        pool.close()


def test_workers_that_cannot_start_are_an_error_and_no_verdict(tmp_path: Path) -> None:
    """A script without the guard is run again by its own workers, which may not start others."""
    script = tmp_path / "script.py"
    script.write_text("from mrt.grading.grade import is_correct\nprint(is_correct(r'\\boxed{x+1}', '1+x'))\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode and not done.stdout, done.stdout
    assert "grading cannot start its worker processes" in done.stderr


def test_memory_of_a_worker_is_bounded() -> None:
    pool = Pool(memory=1 << 20)  # nothing more can be had: every pair fails, none brings the parent down
    try:
        value, _ = pool.run([("same_answer", r"\sum_{k=1}^{n} k^{3} + 1", r"\frac{n^2 (n+1)^2}{4}+1")], 1, 5.0)[0]
        assert not value
    finally:
        pool.close()
