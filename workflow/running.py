"""A run in its results folder: no other run works there, and its records of the origin of each file are known.

One Snakemake at a time holds `.running` in the results folder (mrt/core/lock.py). Jobs of an earlier one that was
killed may still be at work, in SLURM or here. They write no output any more. The jobs of this run wait for them and use
their completions and checkpoints.
"""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from mrt.core import lock
from mrt.core.storage import write_text

_until_the_end = ExitStack()  # closed by the end of the process


def is_job() -> bool:
    """Whether this Snakemake runs one job of another one, on a node of a cluster, say."""
    return lock.RUN in os.environ


def begin(results: Path) -> None:
    """Hold the results folder until this process ends, and say which jobs of earlier runs are still at work.

    Raises WorkflowError if another Snakemake works there, or if the folder cannot be written.
    """
    file = (results / ".running").absolute()
    try:
        run = _until_the_end.enter_context(lock.held(file, wait=False))
    except lock.Locked as error:
        raise WorkflowError(
            f"Another Snakemake works on {results}: {error}. Two at once would write the same files. Wait until it"
            f" ends, or stop it. (If it died on another node: it counts as dead after {lock.SILENT:.0f} s.)"
        ) from None
    except OSError as error:
        raise WorkflowError(f"The results folder cannot be written: {error}") from error
    os.environ[lock.RUN] = f"{run} {file}"
    claim_records(results)
    for other in (*results.glob(".state/*.lock"), *results.glob(".cache/*/*/*.lock")):
        if lock.lives(record := lock.record_of(other), other):
            logger.warning(
                f"A job of an earlier run is at work: {lock.in_words(record)}, with {other}. A job of this run that"
                " needs the same waits for it, and uses what it made. To stop it: `scancel`, `kill`."
            )


def record_in_jobs(workflow: Any) -> None:
    """Inside a job: leave the record of its outputs, as Snakemake has jobs do whose main process does not wait.

    Else outputs that a job makes after its Snakemake was killed would have no record, and no later change of settings
    or code would be seen.
    """
    from snakemake.persistence import PersistenceBase

    finish = PersistenceBase.finished

    async def recorded(self: Any, job: Any) -> None:
        workflow.remote_execution_settings.immediate_submit = True
        try:
            await finish(self, job)
        finally:
            workflow.remote_execution_settings.immediate_submit = False

    PersistenceBase.finished = recorded


def mend_plugin(final_when_preempted: bool, longest_pause: float) -> None:
    """Have the SLURM plugin repeat its first query, at most `longest_pause` seconds apart; fail preempted jobs.

    The plugin chooses between squeue and sacct each time, by MinJobAge, and takes no answer of slurmctld for a small
    one. Where sacct cannot tell, for example without slurmdbd, it forgets its jobs and waits for ever. While no job
    ends, it queries ten seconds later each time, up to three minutes. For a preempted job it waits until SLURM starts
    it again. SLURM does not if requeuing is off: then the job has failed, and is tried again.
    """
    import snakemake_executor_plugin_slurm as plugin

    query_status, first_command = plugin.query_job_status, ""

    async def query(command: str, log: Any) -> tuple[dict[str, str] | None, float]:
        nonlocal first_command
        first_command = first_command or command
        states, seconds = await query_status(first_command, log)
        if states and final_when_preempted:
            states = {job: "FAILED" if state == "PREEMPTED" else state for job, state in states.items()}
        return states, seconds

    plugin.query_job_status = query
    pause = plugin.Executor.next_seconds_between_status_checks
    plugin.Executor.next_seconds_between_status_checks = pause.setter(
        lambda self, seconds: pause.fset(self, min(seconds, longest_pause))
    )


class Mark(NamedTuple):
    """The mark of a results folder for its records: the identity of their `.snakemake`, its place, and their name.

    Snakemake keeps the record of a file under the path of the file, as it was written: under the folder's `name`.
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
    where = f"in {mark.checkout}, with another .snakemake" if elsewhere else f"as {mark.name}"
    folder = mark.name if os.path.isabs(mark.name) else Path(mark.name or results).parts[0]
    copy = f"cp -a {Path(mark.checkout, folder)} {Path(mark.checkout, '.snakemake')} ."
    way_back = f"work there, or copy both, dates kept: `{copy}`" if elsewhere else f"call it {mark.name} again"
    logger.warning(
        f"{results} was begun {where}. Snakemake's records of its files are there, not here: after a change of settings"
        f" or code NOTHING RUNS AGAIN, and tables may be of other settings. Either {way_back}; or run everything again"
        " (--forceall); or, if all results have the present settings and code, record this:"
        " snakemake --cores 1 --touch --forceall"
    )
