"""Steps of training and runs of the workflow taken apart: every second has one place, and none is lost."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import overhead, rl_step
from benchmarks.overhead import FINISHED, PARTS, Job, finished_run, free_cores, imported, jobs_of, take_apart
from benchmarks.record import SCHEMA, Record
from mrt.core.artifacts import RL_PROMPTS

SAID = """Provided cores: 2
[Sun Nov  1 10:00:03 2026]
rule sample:
    input: base, problems.parquet
    output: rollouts.parquet
    log: logs/sample.log
    jobid: 7
    threads: 2
[Sun Nov  1 10:00:13 2026]
Finished jobid: 7 (Rule: sample)
1 of 3 steps (33%) done
[Sun Nov  1 10:00:14 2026]
localrule cut:
    input: rollouts.parquet
    output: episodes.parquet, counts.parquet
    log: logs/cut.log
    jobid: 3
[Sun Nov  1 10:00:15 2026]
rule broken:
    log: logs/broken.log
    jobid: 4
[Sun Nov  1 10:00:16 2026]
Finished jobid: 3 (Rule: cut)
3 of 3 steps (100%) done
"""


def test_jobs_are_those_that_finished_with_their_threads_and_files():
    sample, cut = jobs_of(SAID.splitlines())
    assert (sample.rule, sample.threads, sample.end - sample.start, sample.inputs[1]) == (
        "sample",
        2,
        10,
        "problems.parquet",
    )
    assert (cut.rule, cut.threads, cut.end - cut.start, cut.outputs[1]) == ("cut", 1, 2, "counts.parquet")
    assert cut.start - sample.end == 1


def test_a_free_core_is_late_if_a_job_waits_for_it_and_idle_if_none_can_run():
    first = Job("a", 1, 4, outputs=("x",))
    second = Job("b", 6, 8, inputs=("x",))
    # 0 to 1: one core late for a, one idle; 1 to 4 and 6 to 8: one idle; 4 to 6: one late for b, one idle. 8 to 9: late
    assert free_cores([first, second], wall=9, cores=2) == (1 + 2 + 2, 1 + 3 + 2 + 2)


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 20), st.integers(1, 2)), min_size=1, max_size=8),
    st.floats(0, 9),
)
def test_every_core_second_is_busy_late_or_idle(drawn, tail):
    free, jobs = np.zeros(2), []  # each job on the cores that are free first, as Snakemake would
    for i, (wait, took, threads) in enumerate(drawn):
        order = np.argsort(free)[:threads]
        start = free[order].max() + wait
        free[order] = start + took
        jobs.append(Job("r", start, start + took, threads, (f"{i - 1}",), (f"{i}",)))
    wall = max(job.end for job in jobs) + tail
    late, idle = free_cores(jobs, wall, 2)
    busy = sum(job.threads * (job.end - job.start) for job in jobs)
    assert late >= 0 and idle >= 0 and late + idle + busy == pytest.approx(2 * wall)


def test_a_finished_run_is_taken_apart_from_its_logs(tmp_path):
    told = tmp_path / ".snakemake" / "log" / "2026-11-01T100000.123456.snakemake.log"
    told.parent.mkdir(parents=True)
    told.write_text(SAID)
    (tmp_path / "logs").mkdir()
    log = "import time:  10 |  2000000 | vllm\nimport time:  10 |  500000 |   torch\nimport time:  1 | 9 | mrt\n"
    log += "took 8.0 s\n"
    (tmp_path / "logs" / "sample.log").write_text(log)
    (tmp_path / "logs" / "cut.log").write_text("took 0.5 s\n")
    assert imported(log) == 2.0  # torch is in vllm's
    jobs, _, cores = finished_run(tmp_path)
    record = Record()
    take_apart(record, tmp_path, jobs, 20, cores)
    found = {quantity: value for _, _, quantity, value in record.rows}
    parts = [found[f"core-seconds, {part}"] for part in PARTS]
    assert parts[:3] == [2 * 6 + 0.5, 2 * 2, 2 * 2 + 1.5] and sum(parts) == pytest.approx(40)
    assert finished_run(tmp_path / "elsewhere") is None


def test_a_run_that_is_mostly_overhead_misses_its_goal():
    rows = [(FINISHED, 0, quantity, 5) for quantity in ("jobs", "wall seconds")]
    rows += [(FINISHED, 0, f"core-seconds, {part}", 2) for part in PARTS] + [(FINISHED, 0, "core-seconds", 10)]
    (goal,) = overhead.report(pl.DataFrame(rows, schema=SCHEMA, orient="row")).goals
    assert (round(goal.value, 2), goal.met) == (0.8, False)


def test_seconds_go_to_the_phase_that_calls(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(rl_step.time, "perf_counter", lambda: now[0])

    class Trainer:
        def draw(self):
            now[0] += 3

        def force(self):
            now[0] += 1
            self.draw()

    trainer, clock = Trainer(), rl_step.Clock()
    clock.watch(trainer, "draw", "sampling")
    clock.watch(trainer, "force", "forced answers")
    trainer.draw()
    trainer.force()
    now[0] += 2
    clock.switch()
    assert clock.seconds == {"sampling": 3, "forced answers": 4, "rest": 2}


def test_prompts_of_a_step_are_an_artifact(tmp_path):
    rl_step.make_prompts(tmp_path / "prompts.parquet", 2)
    assert RL_PROMPTS.read(tmp_path / "prompts.parquet").height == 2
