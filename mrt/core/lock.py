"""One process at a time makes an artifact, on any node, and no job of an earlier run writes over it.

A lock is a file beside the artifact. Its holder has the kernel's lock on it (`flock`), which ends with the holder,
however it dies. Some file systems of clusters have no such locks, or only between the processes of a node. So the file
also says who holds it, and the holder renews its modification time:

- on this node a holder lives as long as its process;
- on another node it lives while it gives signs of life, every `BEAT` seconds; without any, while SLURM has its job in
  the queue; without SLURM, for `SILENT` seconds.

A run of Snakemake holds the lock `.running` in its results folder (workflow/running.py), and its jobs have the lock's
id in `MRT_RUN`. Jobs may outlive a Snakemake that is killed. Once the next run has the lock, they are superseded: they
may still add to caches, where things are found by content, but write no output (`refuse_if_superseded`).
"""

import fcntl
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, TextIO
from uuid import uuid4

BEAT, SILENT = 20.0, 300.0  # seconds: between signs of life; without one, until a holder counts as dead
POLL = 1.0  # seconds between looks at a lock that another process holds
SETTLE = 1.0  # seconds after which a holder looks whether another node wrote the file at the same time
AFTER = 5.0  # seconds in which the Snakemake of a job that failed removes its outputs
RUN = "MRT_RUN"  # environment variable: id and file of the lock of a job's run

Record = dict[str, Any]  # of a holder; empty of none
_held: set[Path] = set()  # the locks of this process


class Locked(OSError):
    """Another process holds a lock."""


class Superseded(ValueError):
    """A later run of Snakemake works on the results of this job's run."""


def started(process: int) -> str | None:
    """When a process of this node started, in ticks since the boot; None if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def meeting_point() -> str | None:
    """The address at which the processes of a distributed training meet, the same on all nodes; None outside one."""
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    return " ".join(os.environ.get(name, "") for name in names) if "RANK" in os.environ else None


def record_of(file: Path) -> Record:
    """Who holds a lock, or held it last."""
    try:
        record: Record = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return record


def in_words(record: Record) -> str:
    job = f", SLURM job {record['job']}" if record.get("job") else ""
    return f"{record.get('user')} on {record.get('host')}, process {record.get('process')}{job}"


def in_queue(job: str) -> bool | None:
    """Whether SLURM has a job that has not ended; None if it does not say."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}  # may hide jobs
    command = ["squeue", "--noheader", "--format=%T", f"--jobs={job}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode:
        return False if "Invalid job id" in answer.stderr else None
    return bool(answer.stdout.strip())


def lives(record: Record, file: Path) -> bool:
    """Whether the holder that a lock file names is alive."""
    if not record or record.get("released"):
        return False
    if record["host"] == os.uname().nodename:
        return started(record["process"]) == record["started"]
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent) as now:  # by the clock of the file system
            silence = os.stat(now.name).st_mtime - file.stat().st_mtime
    except FileNotFoundError:  # the folder was removed
        return False
    if silence < 3 * BEAT:
        return True
    job = record.get("job")
    is_queued = in_queue(job) if job and job != os.environ.get("SLURM_JOB_ID") else None
    return silence < SILENT if is_queued is None else is_queued


def holder_of(lock: TextIO, file: Path, claim: Record) -> Record:
    """Take the lock and return nothing, or return its holder."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_sure = "SLURM_JOB_ID" not in os.environ  # else the kernel's lock may be one of this node alone
    except BlockingIOError:
        return record_of(file) or {"host": "this node or another one"}
    except OSError:  # a file system without locks
        is_sure = False
    holder = record_of(file)
    if not lives(holder, file):
        lock.truncate(0)
        lock.write(json.dumps(claim))
        lock.flush()
        if is_sure:
            return {}
        os.fsync(lock.fileno())
        time.sleep(SETTLE)
        holder = record_of(file)
        if holder == claim:
            return {}
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_UN)
    return holder


def renew(file: Path, claim: Record, released: Event) -> None:
    """Give signs of life; end this process if another one has taken it for dead, and the lock."""
    while not released.wait(BEAT):
        with suppress(OSError):
            if record_of(file) not in ({}, claim):
                print(f"{file}: this process gave no sign of life, and another one has gone on", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            os.utime(file)


@contextmanager
def held(file: Path, *, wait: bool = True) -> Iterator[str]:
    """Hold a lock, waiting for its holder to end; the id of this hold.

    In a distributed training the first process holds it; the others wait until it does. A process that holds the lock
    already goes on.

    Raises Locked if another process holds it and this one is not to wait.
    """
    file, first = file.absolute(), os.environ.get("RANK", "0") == "0"
    if file in _held:
        yield str(record_of(file).get("id"))
        return
    if not first:
        while record_of(file).get("group") != meeting_point():
            time.sleep(POLL)
        yield str(record_of(file).get("id"))
        return
    claim: Record = {"id": uuid4().hex, "host": os.uname().nodename, "process": os.getpid()}
    claim |= {"started": started(os.getpid()), "user": os.environ.get("USER") or os.getuid(), "folder": os.getcwd()}
    claim |= {"job": os.environ.get("SLURM_JOB_ID"), "group": meeting_point()}
    released, known = Event(), Record()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        while holder := holder_of(lock, file, claim):
            if not wait:
                raise Locked(in_words(holder))
            if holder != known:
                print(f"waiting for {in_words(holder)}, which holds {file}", flush=True)
            known = holder
            time.sleep(POLL)
        if known:
            time.sleep(AFTER)
        Thread(target=renew, args=(file, claim, released), daemon=True).start()
        _held.add(file)
        try:
            yield str(claim["id"])
        finally:
            _held.discard(file)
            released.set()
            if record_of(file) == claim:
                lock.truncate(0)
                lock.write(json.dumps(claim | {"released": True}))


def refuse_if_superseded() -> None:
    """Raise Superseded if a run of Snakemake has started on these results after that of this job."""
    run, _, file = os.environ.get(RUN, "").partition(" ")
    latest = record_of(Path(file)) if run else {}
    if latest and latest["id"] != run:
        raise Superseded(
            f"a later run of Snakemake works on these results ({in_words(latest)}), so this job of an earlier one"
            " writes no output; what it sampled or trained is kept, and found by the later run"
        )
