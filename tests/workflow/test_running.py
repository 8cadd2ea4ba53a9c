"""Nothing is lost or doubled when Snakemake is killed; results without records here are reported.

A user sees: the next run waits for what jobs of the killed one still make, and uses it; nothing is written late.
"""

import asyncio
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT, snakemake
from on_slurm import LONG, Checkout, until


def test_results_of_another_checkout_are_told_of(tmp_path, monkeypatch):
    """Snakemake's records of what made them are not here, so it would see no change."""
    from workflow import running

    told = []
    monkeypatch.setattr(running.logger, "warning", told.append)
    for name in ("a", "b"):
        (tmp_path / name / ".snakemake").mkdir(parents=True)
    results = tmp_path / "results"
    results.mkdir()
    for folder, claim, warned in (("a", False, 0), ("a", True, 0), ("a", True, 0), ("b", False, 1), ("b", True, 2)):
        monkeypatch.chdir(tmp_path / folder)
        if claim:
            running.claim_records(results)
        running.tell_of_unknown_records(results)
        assert len(told) == warned
    assert f"{results} was begun in {tmp_path / 'a'}, with another .snakemake." in told[0]
    assert f"`cp -a {results} {tmp_path / 'a' / '.snakemake'} .`" in told[0]
    monkeypatch.chdir(tmp_path / "a")
    (tmp_path / "a" / "results" / "x").mkdir(parents=True)
    running.claim_records(Path("results/x"))
    subprocess.run(["cp", "-r", "results", tmp_path / "b"], check=True)
    monkeypatch.chdir(tmp_path / "b")
    running.tell_of_unknown_records(Path("results/x"))
    (line,) = re.findall("`(cp -a [^`]*)`", told.pop())
    subprocess.run(line, shell=True, check=True)  # as it is written
    running.tell_of_unknown_records(Path("results/x"))
    assert len(told) == 2
    shutil.copy(tmp_path / "a" / ".snakemake" / "identity", tmp_path / "b" / ".snakemake")  # as `cp -a .snakemake` does
    running.tell_of_unknown_records(results)
    assert len(told) == 2


NAMED = f"""
import sys
from pathlib import Path

sys.path.insert(0, "{ROOT}")
from workflow import running

RESULTS = str(running.recorded_name(Path(config["results"])))
running.tell_of_unknown_records(Path(RESULTS))


onstart:
    running.begin(Path(RESULTS))


onsuccess:
    if workflow.dag_settings.forceall and not workflow.dag_settings.targets:
        running.claim_records(Path(RESULTS), again=True)


rule all:
    input: RESULTS + "/b"


rule a:
    output: RESULTS + "/a"
    params: value=config["value"]
    shell: "echo a >> jobs; echo {{params.value}} > {{output}}"


rule b:
    input: RESULTS + "/a"
    output: RESULTS + "/b"
    shell: "echo b >> jobs; cp {{input}} {{output}}"
"""


@pytest.fixture
def named(tmp_path):
    """Runs Snakemake with results of a name and a setting; the jobs that ran, by rule, and its output."""
    (tmp_path / "Snakefile").write_text(NAMED)

    def run(results, value, *options):
        (tmp_path / "jobs").write_text("")
        done = snakemake(tmp_path, "--cores", "1", "--config", f"results={results}", f"value={value}", *options)
        return (tmp_path / "jobs").read_text().split(), done.stdout + done.stderr  # a dry run's words are in the first

    run.folder = tmp_path
    return run


@pytest.mark.slow
def test_results_are_found_under_any_spelling_of_their_folder(named):
    folder = named.folder
    assert named("results/x", 1)[0] == ["a", "b"]
    (folder / "link").symlink_to("results/x")
    (folder / "other").mkdir()
    for value, spelling in enumerate((folder / "results/x", "link", "other/../results//x/"), start=2):
        ran, said = named(spelling, value - 1)
        assert ran == [] and "NOTHING RUNS AGAIN" not in said
        assert named(spelling, value)[0] == ["a", "b"]


@pytest.mark.slow
def test_results_that_began_under_a_link_keep_their_name(named):
    (named.folder / "disk").mkdir()
    (named.folder / "results").symlink_to("disk")
    assert named("results/x", 1)[0] == ["a", "b"]
    assert named("disk/x", 2)[0] == ["a", "b"] and named("results/x", 2)[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("moves", ["mv results/x results/y", "cp -a results/x results/y", "mv results other"])
def test_results_of_another_name_are_told_of(named, moves):
    """Under another name Snakemake has no record of them, and sees no change: a run and a dry run say so."""
    named("results/x", 1)
    subprocess.run(moves, shell=True, cwd=named.folder, check=True)
    new = "other/x" if moves.endswith("other") else "results/y"
    for options in ((), ("-n",)):
        ran, said = named(new, 2, *options)
        assert ran == [] and f"{new} was begun as results/x. " in said and "NOTHING RUNS AGAIN" in said
    if moves.startswith("mv results/x"):
        shutil.move(named.folder / new, named.folder / "results/x")
        ran, said = named("results/x", 2)
        assert ran == ["a", "b"] and "NOTHING RUNS AGAIN" not in said


@pytest.mark.slow
def test_results_of_another_name_can_be_recorded_under_it(named):
    """As they are, or made again: from then on a change of settings is seen."""
    named("x", 1)
    for old, new, options in (("x", "y", ("--touch", "--forceall")), ("y", "z", ("--forceall",))):
        shutil.move(named.folder / old, named.folder / new)
        assert "NOTHING RUNS AGAIN" in named(new, 1)[1]
        ran, _ = named(new, 1, *options)
        assert ran == ([] if "--touch" in options else ["a", "b"])
        ran, said = named(new, 1)
        assert ran == [] and "NOTHING RUNS AGAIN" not in said
        assert named(new, 2)[0] == ["a", "b"] and named(new, 1)[0] == ["a", "b"]


SNAKEFILE = f"""
import sys
from pathlib import Path

sys.path.insert(0, "{ROOT}")
from mrt.core.lock import refuse_if_superseded
from workflow import running

refuse_if_superseded()
if running.is_job():
    running.record_in_jobs(workflow)
RESULTS = config.get("results", "results")


onstart:
    running.begin(Path(RESULTS))
    if workflow.executor_plugin.name == "slurm":
        running.mend_plugin(final_when_preempted=workflow.executor_settings.no_requeue, longest_pause=2)


rule a:
    output: RESULTS + "/a"
    params: value=config.get("value", 1)
    resources: slurm_extra=config.get("extra", "")
    shell: "{sys.executable} work {{output}} {{params.value}}"


rule b:
    input: RESULTS + "/a"
    output: RESULTS + "/b"
    shell: "echo start b >> jobs; cp {{input}} {{output}}; echo end b >> jobs"
"""
WORK = f"""
import sys, time
from pathlib import Path

sys.path.insert(0, "{ROOT}")
from mrt.core import lock, storage

def note(what):
    with open("jobs", "a") as file:
        print(what, value, file=file)

output, value = Path(sys.argv[1]), sys.argv[2]
kept = output.parent / ".cache" / f"{{output.name}}.{{value}}"
lock.refuse_if_superseded()
with lock.held(output.parent / ".state" / f"{{output.name}}.lock"):
    if not kept.exists():
        note("start")
        while not output.with_suffix(".go").exists():
            time.sleep(0.2)
        storage.write_text(value, kept)
        note("end")
    storage.write_text(kept.read_text(), output)
"""  # as a stage does


class Killed(Checkout):
    """With a job `a` that notes its start and end, and otherwise runs for ever."""

    always = ("--retries", "0")

    def __init__(self, cluster, folder, work=WORK):
        super().__init__(cluster, folder, SNAKEFILE)
        (folder / "work").write_text(work)

    def start(self, *arguments, target="results/a"):
        return super().start(*arguments, targets=[target])

    def let_end(self, results="results"):
        (self.folder / results / "a.go").touch()

    def is_running(self, value="1"):
        until(lambda: self.jobs()[-1:] == [("start", value)], "running job", self.out)

    def kill_with_job(self, state, *arguments):
        """Start it, and kill it when its job is in this state; then unlock, as Snakemake says."""
        main = self.start(*arguments)
        if state == "RUNNING":
            self.is_running()
        else:
            until(lambda: self.queue() == [state], state, self.out)
        main.kill()
        main.wait()
        assert self.queue() == [state]
        status, said = self.run()
        assert status == 1 and "--unlock" in said
        self.ends_well("--unlock")

    def second_job_waits(self):
        logs = self.folder / "logs" / "slurm"
        until(lambda: any("waiting for " in file.read_text() for file in logs.rglob("*.log")), "waiting job", self.out)


ONCE = [("start", "1"), ("end", "1")]


def waits_for_a_running_job_and_uses_what_it_makes(checkout):
    run = checkout()
    run.kill_with_job("RUNNING")
    main = run.start(target="results/b")
    run.says("A job of an earlier run is at work: ")
    run.second_job_waits()
    assert run.jobs() == [("start", "1")]
    run.let_end()
    run.ended_well(main)
    assert run.jobs() == [*ONCE, ("start", "b"), ("end", "b")]


def finds_what_finished_meanwhile(checkout):
    run = checkout()
    run.kill_with_job("RUNNING")
    run.let_end()
    run.queue_empties()
    run.ends_well()
    assert run.jobs() == ONCE and (run.folder / "results" / "a").read_text() == "1"
    assert "Nothing to be done" in run.ends_well("-n")
    assert "Params have changed" in run.ends_well("-n", "--config", "value=2")


def keeps_results_of_new_settings(checkout):
    """The old job ends while the new one waits, and does not overwrite the new one's files."""
    run = checkout()
    run.kill_with_job("RUNNING")
    main = run.start("--config", "value=2")
    run.second_job_waits()
    run.let_end()
    run.ended_well(main)
    run.queue_empties()
    assert run.jobs() == [*ONCE, ("start", "2"), ("end", "2")]
    assert (run.folder / "results" / "a").read_text() == "2"
    assert "Nothing to be done" in run.ends_well("-n", "--config", "value=2")


def refuses_a_job_that_starts_late(checkout):
    """It was still pending when a later run began."""
    run = checkout()
    run.kill_with_job("PENDING", "--config", "extra=--hold")
    late = run.queue("%i")
    (run.folder / "results").mkdir(exist_ok=True)
    run.let_end()
    run.ends_well("--config", "value=2")
    run.cluster.run("scontrol", "release", *late)
    run.queue_empties()
    assert run.jobs() == [("start", "2"), ("end", "2")] and (run.folder / "results" / "a").read_text() == "2"


def goes_on_when_the_old_job_dies(checkout):
    run = checkout()
    run.kill_with_job("RUNNING")
    died = run.queue("%i")
    main = run.start()
    run.second_job_waits()
    run.cluster.run("scancel", "--full", "--signal=KILL", *died)
    until(lambda: len(run.jobs()) == 2, "second start", run.out)
    run.let_end()
    run.ended_well(main)
    assert run.jobs() == [("start", "1"), *ONCE] and (run.folder / "results" / "a").read_text() == "1"


def without_locks_it_runs_twice(checkout):
    """These tests would see it."""
    run = checkout(work=WORK.replace("with lock.held(", "if str("))
    run.kill_with_job("RUNNING")
    main = run.start()
    until(lambda: run.jobs() == [("start", "1")] * 2, "second job", run.out)
    run.let_end()
    main.wait(timeout=LONG)  # well or not: Snakemake removes the refused job's possible outputs


def refuses_a_second_one(checkout):
    """In the same folder, and in another one with the same results."""
    run, other = checkout(), checkout()
    same_results = ("--config", f"results={run.folder}/results")
    first = run.start()
    run.is_running()
    status, said = run.run()
    assert status == 1 and "--unlock" in said  # Snakemake's own lock
    status, said = other.run(*same_results, target=f"{run.folder}/results/a")
    assert status == 1 and "Another Snakemake works on" in said and str(first.pid) in said and str(run.folder) in said
    run.let_end()
    assert first.wait(timeout=LONG) == 0
    assert run.jobs() == ONCE and not other.jobs()


def lets_other_results_alone(checkout):
    """Two experiments of one folder, one after the other, with a job of the first still at work."""
    run = checkout()
    run.kill_with_job("RUNNING")
    (run.folder / "others").mkdir()
    run.let_end("others")
    said = run.ends_well("--config", "results=others", target="others/a")
    assert "earlier run" not in said
    run.let_end()
    run.queue_empties()
    assert run.jobs() == [("start", "1"), *ONCE, ("end", "1")] and (run.folder / "results" / "a").read_text() == "1"


CASES = [
    *(waits_for_a_running_job_and_uses_what_it_makes, finds_what_finished_meanwhile, keeps_results_of_new_settings),
    *(refuses_a_job_that_starts_late, goes_on_when_the_old_job_dies, without_locks_it_runs_twice),
    *(refuses_a_second_one, lets_other_results_alone),
]


@pytest.fixture(scope="module")
def checkout(cluster, tmp_path_factory):
    def make(**options):
        return Killed(cluster, tmp_path_factory.mktemp("checkout"), **options)

    return make


@pytest.fixture(scope="module")
def started(checkout):
    """All cases, each in separate folders, some of them at once."""
    seconds = {}

    def timed(case):
        start = time.monotonic()
        case(checkout)
        seconds[case.__name__] = round(time.monotonic() - start)

    with ThreadPoolExecutor(4) as pool:
        yield {case: pool.submit(timed, case) for case in CASES}
        pool.shutdown(cancel_futures=True)
    print(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_killed_run_on_slurm(case, started):
    started[case].result()


def test_slurm_is_asked_often_and_always_the_same_way(monkeypatch):
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm")
    from workflow import running

    asked = []

    async def query(command, log):
        asked.append(command)
        return ({"1": "PREEMPTED", "2": "RUNNING"}, 0.1) if len(asked) > 1 else (None, None)

    monkeypatch.setattr(plugin, "query_job_status", query)
    usual = plugin.Executor.next_seconds_between_status_checks
    monkeypatch.setattr(plugin.Executor, "next_seconds_between_status_checks", usual)
    running.mend_plugin(final_when_preempted=True, longest_pause=30)
    states = [asyncio.run(plugin.query_job_status(command, None))[0] for command in ("squeue --name x", "sacct")]
    assert states == [None, {"1": "FAILED", "2": "RUNNING"}]
    assert asked == ["squeue --name x", "squeue --name x"]
    executor, pauses = object.__new__(plugin.Executor), []
    for seconds in (2, 12, 180):
        executor.next_seconds_between_status_checks = seconds
        pauses.append(executor.next_seconds_between_status_checks)
    assert pauses == [2, 12, 30]
