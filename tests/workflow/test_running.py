"""Nothing runs twice: Snakemake is killed while its jobs are in a real SLURM, and started again."""

import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import ROOT, snakemake
from on_slurm import LONG, Checkout, until

SNAKEFILE = f"""
import sys

sys.path.insert(0, "{ROOT}")
from workflow import running

running.POLL, running.REPORT, running.PATIENCE = 1, 2, int(config.get("patience", 60))
left_running = config.pop("running", "wait")
RESULTS = config.get("results", "results")
GUARD


rule a:
    output: RESULTS + "/a"
    params: value=config.get("value", 1)
    resources: slurm_extra=config.get("extra", "")
    shell:
        "echo start a >> jobs; echo half > {{output}}; until [ -e {{output}}.go ]; do sleep 0.2; done; [ ! -e fails ]; "
        "echo {{params.value}} > {{output}}; echo end a >> jobs"


rule b:
    input: RESULTS + "/a"
    output: RESULTS + "/b"
    shell: "echo start b >> jobs; cp {{input}} {{output}}; echo end b >> jobs"
"""
GUARD = "running.guard(workflow, RESULTS, left_running)"


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
    shutil.copy(tmp_path / "a" / ".snakemake" / "identity", tmp_path / "b" / ".snakemake")  # as `cp -a .snakemake` does
    running.tell_of_unknown_records(results)
    assert len(told) == 2


NAMED = f"""
import sys
from pathlib import Path

sys.path.insert(0, "{ROOT}")
from workflow import running

RESULTS = str(running.recorded_name(Path(config["results"])))
running.guard(workflow, RESULTS)


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
    """Runs Snakemake with results of a name and a setting; the jobs that ran, by rule, and what it said."""
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
    """As they are, or made anew: from then on a change of settings is seen."""
    named("x", 1)
    for old, new, options in (("x", "y", ("--touch", "--forceall")), ("y", "z", ("--forceall",))):
        shutil.move(named.folder / old, named.folder / new)
        assert "NOTHING RUNS AGAIN" in named(new, 1)[1]
        ran, _ = named(new, 1, *options)
        assert ran == ([] if "--touch" in options else ["a", "b"])
        ran, said = named(new, 1)
        assert ran == [] and "NOTHING RUNS AGAIN" not in said
        assert named(new, 2)[0] == ["a", "b"] and named(new, 1)[0] == ["a", "b"]


def test_slurm_is_asked_again_within_the_longest_pause(monkeypatch):
    """The plugin waits ten seconds longer each time that no job has ended, up to three minutes."""
    import snakemake_executor_plugin_slurm as plugin

    from workflow.running import mend_plugin

    for name in ("get_min_job_age", "query_job_status"):
        monkeypatch.setattr(plugin, name, lambda *_: 300)
    usual = plugin.Executor.next_seconds_between_status_checks
    monkeypatch.setattr(plugin.Executor, "next_seconds_between_status_checks", usual)
    mend_plugin(final_when_preempted=True, longest_pause=30)
    executor = object.__new__(plugin.Executor)
    pauses = []
    for seconds in (2, 12, 180):
        executor.next_seconds_between_status_checks = seconds
        pauses.append(executor.next_seconds_between_status_checks)
    assert pauses == [2, 12, 30]


class Guarded(Checkout):
    """With a job `a` that notes its start and end, and otherwise runs for ever."""

    always = ("--retries", "0")

    def __init__(self, cluster, folder, guard=GUARD):
        super().__init__(cluster, folder, SNAKEFILE.replace("GUARD", guard))

    def start(self, *arguments, target="results/a"):
        return super().start(*arguments, targets=[target])

    def let_end(self, results="results"):
        (self.folder / results / "a.go").touch()

    def runs_a(self):
        until(lambda: self.jobs()[-1:] == [("start", "a")], "running job", self.out)

    def kill_with_job(self, state, *arguments):
        """Start it, and kill it when its job is in this state."""
        main = self.start(*arguments)
        if state == "RUNNING":
            self.runs_a()
        else:
            until(lambda: self.queue() == [state], state, self.out)
        main.kill()
        main.wait()
        assert self.queue() == [state]

    def unlock(self):
        self.ends_well("--unlock")

    def starts_and_waits(self, *arguments, **options):
        main = self.start(*arguments, **options)
        self.says("Waiting for jobs in SLURM")
        return main


ONCE = [("start", "a"), ("end", "a")]


def waits_for_a_running_job(checkout):
    run = checkout()
    run.kill_with_job("RUNNING")
    status, said = run.run()
    assert status == 1 and "run `snakemake --unlock`" in said
    assert run.queue("%j")[0].startswith("mrt-")
    run.unlock()
    main = run.starts_and_waits(target="results/b")
    run.let_end()
    assert "  a  RUNNING for " in run.ended_well(main)
    assert run.jobs() == [*ONCE, ("start", "b"), ("end", "b")]


def without_the_guard_it_runs_twice(checkout):
    """These tests would see it."""
    run = checkout(guard="")
    run.kill_with_job("RUNNING")
    run.unlock()
    main = run.start()
    until(lambda: run.jobs() == [("start", "a")] * 2, "second job", run.out)
    run.let_end()
    run.ended_well(main)


def does_what_the_user_chose(checkout):
    """A dry run reports, `stop` stops, Ctrl-C stops waiting, and all three leave the job alone; `cancel` cancels."""
    run = checkout()
    run.kill_with_job("RUNNING")
    assert "Jobs in SLURM write into results (a run would wait):" in run.ends_well("-n")
    run.unlock()
    status, said = run.run("--config", "running=stop")
    assert status == 1 and "started with running=stop" in said and "  a  RUNNING for" in said
    main = run.starts_and_waits()
    main.send_signal(signal.SIGINT)
    assert main.wait(timeout=LONG) == 1
    said = run.out.read_text()
    assert "Stopped waiting, nothing was started. These jobs are still in SLURM:" in said and "Traceback" not in said
    assert run.jobs() == [("start", "a")] and run.queue() == ["RUNNING"]
    main = run.start("--config", "running=cancel")
    until(lambda: len(run.jobs()) == 2, "second job", run.out)
    assert len(run.queue()) == 1
    run.let_end()
    assert "Cancelling jobs" in run.ended_well(main)
    assert run.jobs() == [("start", "a"), *ONCE]


def adopts_what_finished_meanwhile(checkout):
    """Also where there is a record from before, of other params."""
    run = checkout()
    run.let_end()
    run.ends_well()
    (run.folder / "results" / "a.go").unlink()
    run.kill_with_job("RUNNING", "--config", "value=2")
    run.let_end()
    run.queue_empties()
    run.unlock()
    assert "Nothing to be done" in run.ends_well("--config", "value=2")
    assert run.jobs() == [*ONCE, *ONCE] and (run.folder / "results" / "a").read_text() == "2\n"
    assert "Params have changed" in run.ends_well("-n", "--config", "value=3")


def waits_for_a_pending_job(checkout):
    run = checkout()
    run.let_end()
    run.kill_with_job("PENDING", "--config", "extra=--hold")
    run.unlock()
    main = run.starts_and_waits()
    run.cluster.run("scontrol", "release", *run.queue("%i"))
    said = run.ended_well(main)
    assert "  a  PENDING (JobHeldUser), of root" in said and "Nothing to be done" in said
    assert run.jobs() == ONCE


def runs_again_what_failed_meanwhile(checkout):
    run = checkout()
    run.kill_with_job("RUNNING")
    run.unlock()
    (run.folder / "fails").touch()
    main = run.starts_and_waits()
    run.let_end()
    until(lambda: "They ended" in run.out.read_text(), "end of the job", run.out)
    (run.folder / "fails").unlink()
    run.ended_well(main)
    assert run.jobs() == [("start", "a"), *ONCE]


def runs_again_what_died_half_written(checkout):
    run = checkout()
    run.kill_with_job("RUNNING")
    run.unlock()
    main = run.starts_and_waits()
    died = run.queue("%i")
    run.cluster.run("scancel", "--full", "--signal=KILL", *died)
    until(lambda: not set(died) & set(run.queue("%i")), "death of the job", run.out)
    run.let_end()
    run.ended_well(main)
    assert run.jobs() == [("start", "a"), *ONCE] and (run.folder / "results" / "a").read_text() == "1\n"


def refuses_a_second_one(checkout):
    """In the same folder, and in another one with the same results; this one waits when the first was killed."""
    run, other = checkout(), checkout()
    same_results, target = ("--config", f"results={run.folder}/results"), f"{run.folder}/results/a"
    first = run.start()
    run.runs_a()
    status, said = run.run()
    assert status == 1 and "Another Snakemake works on results: root on " in said and str(first.pid) in said
    status, said = other.run(*same_results, target=target)
    assert status == 1 and "Another Snakemake works on" in said and str(run.folder) in said
    first.kill()
    first.wait()
    main = other.starts_and_waits(*same_results, target=target)
    run.let_end()
    assert "Nothing to be done" in other.ended_well(main)
    assert run.jobs() == ONCE and not other.jobs()


def lets_other_results_alone(checkout):
    """Two experiments at once in one folder."""
    run = checkout()
    first, out = run.start(), run.out
    run.runs_a()
    (run.folder / "others").mkdir()
    run.let_end("others")
    said = run.ends_well("--config", "results=others", "running=cancel", target="others/a")
    assert "SLURM that write" not in said and "Cancelling" not in said
    run.let_end()
    assert first.wait(timeout=LONG) == 0, out.read_text()
    assert run.jobs() == [("start", "a"), *ONCE, ("end", "a")]


def refuses_an_unknown_choice(checkout):
    status, said = checkout().run("--config", "running=maybe")
    assert status == 1 and "running=maybe: it can be wait, cancel, stop" in said


CASES = [
    *(waits_for_a_running_job, does_what_the_user_chose, adopts_what_finished_meanwhile, waits_for_a_pending_job),
    *(refuses_a_second_one, runs_again_what_failed_meanwhile, runs_again_what_died_half_written),
    *(lets_other_results_alone, without_the_guard_it_runs_twice, refuses_an_unknown_choice),
]


@pytest.fixture(scope="module")
def checkout(cluster, tmp_path_factory):
    def make(**options):
        return Guarded(cluster, tmp_path_factory.mktemp("checkout"), **options)

    return make


@pytest.fixture(scope="module")
def started(checkout):
    """All cases, each in folders of its own, some of them at once."""
    seconds = {}

    def timed(case):
        start = time.monotonic()
        case(checkout)
        seconds[case.__name__] = round(time.monotonic() - start)

    with ThreadPoolExecutor(5) as pool:
        yield {case: pool.submit(timed, case) for case in CASES}
        pool.shutdown(cancel_futures=True)
    print(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_nothing_runs_twice(case, started):
    started[case].result()


@pytest.mark.slow
def test_asks_until_slurm_answers(cluster, checkout):
    """And gives up with a message, never goes on blind."""
    run, gives_up = checkout(), checkout()
    run.kill_with_job("RUNNING")
    run.unlock()
    cluster.controller("stop")
    main, other = run.start(), gives_up.start("--config", "patience=0")
    try:
        run.says("SLURM does not answer")
        assert other.wait(timeout=LONG) == 1
        assert "SLURM has not answered for 0 s" in gives_up.out.read_text() and not gives_up.jobs()
    finally:
        cluster.controller("start")
    run.let_end()
    run.ended_well(main)
    assert run.jobs() == ONCE
