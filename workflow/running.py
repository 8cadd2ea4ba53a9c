"""Nothing runs twice: no job is started while another one, of whichever Snakemake, may write the same results.

A Snakemake that is killed leaves its jobs in SLURM. They go on, and a Snakemake that is started anew would submit them
once more. So before it plans, Snakemake here
- holds `.running` in the results folder, a file lock that the kernel frees when its holder dies, however it dies: what
  of these results is still in the queue then belongs to no living Snakemake;
- asks SLURM for jobs that write into this results folder: their names carry a digest of its path, so that those of
  another checkout or user are found as well, and those of other experiments are let alone;
- waits for them, cancels them, or stops.

A job itself holds a lock for each target that it makes. Should SLURM have lost it while it lives (its node was silent
for too long, or sbatch gave up and was heard all the same), the next one for that target waits until it has ended.

Outputs of those that succeeded stay: each job itself, as it ends, takes away Snakemake's mark of an incomplete output
and writes the record (params, code, inputs) from which Snakemake later sees whether it must run again. What failed or
was cancelled is still marked or not there, and runs again (`rerun-incomplete` in the profile).

What this project changes in Snakemake and its SLURM plugin is here and in workflow/start.py (workflow/terminal.py
listens to Snakemake's log, mrt/planning reads its dry runs). tests/project/test_internals.py names the versions that
were tried, and fails if what is changed has moved.
"""

import fcntl
import getpass
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from mrt.core.storage import write_text
from workflow.start import limit_gpus

Workflow = Any  # Snakemake's, which comes without types
CHOICES = ("wait", "cancel", "stop")
POLL, REPORT = 10, 30  # seconds between looks into the queue, and between lines about it
PATIENCE, ANSWER = 300, 60  # seconds for SLURM to come back, and to answer


class Job(NamedTuple):
    """A job in SLURM's queue, as squeue tells of it."""

    id: str
    name: str
    user: str
    state: str
    elapsed: str
    reason: str
    comment: str  # of the plugin: rule_RULE_wildcards_VALUES

    def __str__(self) -> str:
        what = self.comment.removeprefix("rule_").replace("_wildcards_", " ", 1)
        how_long = f"for {self.elapsed}" if self.state != "PENDING" else f"({self.reason})"
        return f"  {self.id}  {what}  {self.state} {how_long}, of {self.user}"


def guard(workflow: Workflow, results: str, choice: str = "wait") -> None:
    """Have Snakemake look for jobs that write into the results folder before it plans a run.

    Only the main process looks, and only before it runs something; a dry run just says what it found. `choice` is what
    to do with them: "wait", "cancel" or "stop". Raises WorkflowError on another choice.
    """
    if choice not in CHOICES:
        raise WorkflowError(f"--config running={choice}: it can be {', '.join(CHOICES)}")
    execute = workflow.execute  # which executor runs, and whether it is a dry run, is known only when this is called

    def recorded(executor_plugin: Any, **settings: Any) -> None:
        """Inside a job: leave the record of what it made, as Snakemake has jobs do whose main process does not wait."""
        # The step that the job starts is what writes, and what may outlive it.
        with nullcontext() if executor_plugin.name == "slurm-jobstep" else alone(Path(results)):
            execute(executor_plugin=executor_plugin, **settings)
        workflow.remote_execution_settings.immediate_submit = True
        for job in workflow.dag.finished_jobs:
            workflow.async_run(workflow.persistence.finished(job))

    def guarded(executor_plugin: Any, executor_settings: Any, **settings: Any) -> Any:
        tag = hashlib.sha256(os.path.realpath(results).encode()).hexdigest()[:10]
        on_slurm = executor_plugin.name == "slurm"
        run = partial(execute, executor_plugin=executor_plugin, executor_settings=executor_settings, **settings)
        if executor_plugin.common_settings.dryrun_exec:
            if jobs := in_queue(tag, None):
                logger.warning(f"Jobs in SLURM write into {results} (a run would {choice}):\n{listed(jobs)}")
            tell_of_unknown_records(Path(results))
            return run()
        with held(Path(results)):
            claim_records(Path(results))
            tell_of_unknown_records(Path(results))
            refuse_lock(workflow, results)
            if on_slurm or shutil.which("squeue"):
                settle(tag, results, choice, PATIENCE if on_slurm else None, workflow.execution_settings.latency_wait)
            if on_slurm:
                longest = workflow.remote_execution_settings.seconds_between_status_checks
                mend_plugin(final_when_preempted=executor_settings.no_requeue, longest_pause=longest)
                executor_settings.jobname_prefix = f"{executor_settings.jobname_prefix or 'mrt'}-{tag}"
            if executor_plugin.name == "local":
                limit_gpus(workflow)
            done = run()
            if workflow.dag_settings.forceall and not workflow.dag_settings.targets:  # made anew, or touched: all of it
                claim_records(Path(results), again=True)
            return done

    if workflow.remote_exec:
        workflow.execute = recorded
    elif workflow.is_main_process:
        workflow.execute = guarded


def mend_plugin(final_when_preempted: bool, longest_pause: float) -> None:
    """Have the plugin ask squeue also while slurmctld does not answer, and take preempted jobs for what they are.

    It asks ten seconds later than the last time, up to three minutes, for as long as no job ends, which short jobs then
    wait for: now at most `longest_pause` seconds later.

    It looks up MinJobAge each time, takes no answer for a small one, and asks sacct. Where sacct cannot tell, without
    slurmdbd say, the plugin forgets its jobs and waits for ever. So it is told what MinJobAge was at the start. For a
    preempted job it waits until SLURM starts it again, which SLURM does not if it was told not to requeue: then it has
    failed, and is tried again.
    """
    import snakemake_executor_plugin_slurm as plugin

    age = plugin.get_min_job_age() or 300  # SLURM's default
    plugin.get_min_job_age = lambda: age
    ask = plugin.query_job_status

    async def asked(*args: Any) -> tuple[dict[str, str] | None, float]:
        states, seconds = await ask(*args)
        if states and final_when_preempted:
            states = {job: "FAILED" if state == "PREEMPTED" else state for job, state in states.items()}
        return states, seconds

    plugin.query_job_status = asked
    pause = plugin.Executor.next_seconds_between_status_checks
    plugin.Executor.next_seconds_between_status_checks = pause.setter(
        lambda self, seconds: pause.fset(self, min(seconds, longest_pause))
    )


@contextmanager
def alone(results: Path) -> Iterator[None]:
    """Inside a job: hold the locks of its targets, waiting for whoever makes them still."""
    after = sys.argv[sys.argv.index("--target-jobs") + 1 :] if "--target-jobs" in sys.argv else []
    with ExitStack() as locks:
        for target in sorted(takewhile(lambda word: not word.startswith("--"), after)):
            file = results / ".running.jobs" / hashlib.sha256(target.encode()).hexdigest()[:20]
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                lock = locks.enter_context(file.open("a"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(f"Another job still makes {target}; waiting until it ends.", flush=True)
                    fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:  # a file system without locks
                print(f"{file} cannot be locked ({error}): if SLURM lost a job, two may write at once.", flush=True)
        yield


@contextmanager
def held(results: Path) -> Iterator[None]:
    """Hold the results folder. Raises WorkflowError if another Snakemake does, or if it cannot be written."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        file = (results / ".running").open("a+")
    except OSError as error:
        raise WorkflowError(f"The results folder cannot be written: {error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise WorkflowError(
                f"Another Snakemake works on {results}: {file.read().strip()}. Two at once would write the same files. "
                "Wait until it ends, or stop it."
            ) from None
        except OSError as error:  # a file system without locks
            logger.warning(f"{file.name} cannot be locked ({error}): see to it that no other Snakemake works there.")
        file.truncate(0)
        here = f"{getpass.getuser()} on {socket.gethostname()}, process {os.getpid()} in {Path.cwd()}"
        print(f"{here}, since {datetime.now():%Y-%m-%d %H:%M}", file=file, flush=True)
        yield


class Mark(NamedTuple):
    """What a results folder tells of its records: the identity of their `.snakemake`, where that lies, and their name.

    Snakemake keeps what made a file under the path of the file, as it was written: under the folder's `name`.
    """

    identity: str
    checkout: str
    name: str  # empty in marks of older versions

    @classmethod
    def of(cls, results: Path) -> "Mark | None":
        file = results / ".checkout"
        if not file.is_file():
            return None
        first, _, name = file.read_text().partition("\n")
        identity, _, checkout = first.partition(" ")
        return cls(identity, checkout, name)

    def leads_to(self, results: Path) -> bool:
        """Whether the records are here, and their name is one of the folder."""
        here = Path(".snakemake", "identity")
        is_here = here.is_file() and here.read_text() == self.identity
        return is_here and bool(self.name) and os.path.realpath(self.name) == os.path.realpath(results)


def recorded_name(results: Path) -> Path:
    """The results folder by the name that its records have, whatever it is called now: `..`, a link, absolute."""
    mark = Mark.of(results)
    return Path(mark.name if mark and mark.leads_to(results) else os.path.normpath(results))


def claim_records(results: Path, *, again: bool = False) -> None:
    """Note in the results that what makes them is recorded here, under this name; `again`: whatever they bear already.

    `.snakemake` has an identity for that, and results bear that of the first run that made some.
    """
    here, mark = Path(".snakemake", "identity"), Mark.of(results)
    if not here.is_file():
        write_text(uuid4().hex, here)
    is_older = mark is not None and not mark.name and mark.identity == here.read_text()
    if mark is None or is_older or again:
        write_text(f"{here.read_text()} {Path.cwd()}\n{results}", results / ".checkout")


def tell_of_unknown_records(results: Path) -> None:
    """Warn if what made these results is recorded elsewhere: Snakemake then sees no change of settings or code."""
    here, mark = Path(".snakemake", "identity"), Mark.of(results)
    if mark is None or mark.leads_to(results):
        return
    elsewhere = not here.is_file() or here.read_text() != mark.identity
    if not elsewhere and not mark.name:
        return
    begun = f"in {mark.checkout}, with another .snakemake" if elsewhere else f"as {mark.name}"
    way_back = "work there, or copy its .snakemake here" if elsewhere else f"call it {mark.name} again"
    logger.warning(
        f"{results} was begun {begun}. What made each file is recorded there, and not here: where settings or code have"
        f" changed since, NOTHING RUNS AGAIN, and tables may be of other settings. Either {way_back}; or make all anew"
        " (--forceall); or, if all is of these settings and this code, have it recorded here:"
        " snakemake --cores 1 --touch --forceall"
    )


def refuse_lock(workflow: Workflow, results: str) -> None:
    """Raise WorkflowError if Snakemake's own lock is on these results, before waiting for hours just to meet it."""
    locks = Path(".snakemake/locks").glob("*.output.lock") if workflow.execution_settings.lock else ()
    if any(line.startswith(f"{results}/") for lock in locks for line in lock.read_text().splitlines()):
        raise WorkflowError(
            f"Snakemake's lock is on {results}. If a Snakemake still runs here, on another login node say, let it end. "
            "If it was killed, run `snakemake --unlock` and start again: its jobs will be found."
        )


def in_queue(tag: str, patience: int | None) -> list[Job]:
    """Jobs in SLURM's queue that write into the results folder of this tag.

    Asks again for so many seconds if SLURM does not answer; None: once, and then returns no jobs. Raises WorkflowError
    if it does not answer: jobs that cannot be seen may be there.
    """
    command = ["squeue", "--noheader", "--format=%i|%j|%u|%T|%M|%r|%k"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}  # those may hide jobs
    until = time.monotonic() + (patience or 0)
    while True:
        try:
            asked = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER, env=own)
            problem = asked.stderr.strip() or f"squeue ended with {asked.returncode}"
        except (OSError, subprocess.TimeoutExpired) as error:
            asked, problem = None, str(error)
        if asked and asked.returncode == 0:
            return [Job(*line.split("|", 6)) for line in asked.stdout.splitlines() if f"-{tag}_" in line]
        if patience is None:
            return []
        if time.monotonic() > until:
            raise WorkflowError(
                f"SLURM has not answered for {patience} s ({problem}). Jobs of this workflow may still run there, so "
                "nothing was started. Try again when `squeue` works."
            )
        logger.warning(f"SLURM does not answer ({problem}). Asking again, for {patience} s in all.")
        time.sleep(POLL)


def listed(jobs: Sequence[Job]) -> str:
    return "\n".join(map(str, jobs))


def settle(tag: str, results: str, choice: str, patience: int | None, latency: float) -> None:
    """Return when no job in SLURM writes into the results folder.

    `latency`: seconds until what they wrote is seen here. Raises WorkflowError if it was chosen to stop, if jobs cannot
    be cancelled, if SLURM does not answer, or on Ctrl-C.
    """
    jobs: list[Job] = []
    told = float("-inf")
    try:
        jobs = in_queue(tag, patience)
        if not jobs:
            return
        if choice == "stop":
            raise WorkflowError(
                f"Jobs in SLURM write into {results}, and this was started with running=stop:\n{listed(jobs)}\n"
                "Start it with --config running=wait or running=cancel."
            )
        if choice == "cancel":
            cancel(tag, jobs)
        while jobs:
            if time.monotonic() - told >= REPORT:
                told = time.monotonic()
                logger.warning(f"Waiting for jobs in SLURM that write into {results}; Ctrl-C to stop:\n{listed(jobs)}")
            time.sleep(POLL)
            jobs = in_queue(tag, PATIENCE)
        logger.warning("They ended. What they finished is not run again.")
        time.sleep(latency)
    except KeyboardInterrupt:
        still = f"These jobs are still in SLURM:\n{listed(jobs)}" if jobs else "Jobs may still be in SLURM."
        raise WorkflowError(f"Stopped waiting, nothing was started. {still}") from None


def cancel(tag: str, jobs: Sequence[Job]) -> None:
    """Cancel the jobs. Raises WorkflowError if they stay, for example because they are another user's."""
    logger.warning(f"Cancelling jobs in SLURM:\n{listed(jobs)}")
    done = subprocess.run(["scancel", *[job.id for job in jobs]], capture_output=True, text=True)
    if done.returncode:  # as it is, too, if one has just ended by itself
        stay = [job for job in in_queue(tag, PATIENCE) if job.state != "COMPLETING"]
        if stay:
            raise WorkflowError(f"These could not be cancelled ({done.stderr.strip()}):\n{listed(stay)}")
