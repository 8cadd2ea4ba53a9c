"""Fork server: runs stages in forks of a process that has already imported vLLM and TRL, to save their import time.

    MRT_FORK_SERVER=$$ python -m mrt.core.fork_server mrt.sampling.rollouts --model ...
    MRT_FORK_SERVER=$$ python -m mrt.core.fork_server # only starts the host

Importing vLLM or TRL takes longer than most stages of the laptop configuration. A run, or its first job, starts the
server (the host): a process that imports them, listens on a socket, and forks for each requested stage. A fork shares
only the imported modules with the host. Each stage loads its own model, builds its own engine, and takes all its state
with it when it ends. So artifacts depend on each other no more than without a host. The client passes its standard
streams, folder and environment to the fork, waits for it and ends with its exit code; if the client is killed, so is
the stage.

`MRT_FORK_SERVER` is the id of the owner, the process whose lifetime limits the host's; the Snakefile sets it to
Snakemake's id. If it is unset or `off`, the stage runs in this process. So it does if there is a GPU: CUDA does not
survive a fork, and there most of the startup time is spent on loading weights.
"""

import atexit
import contextlib
import fcntl
import gc
import hashlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from mrt.core import accelerator, vllm_environment

# Slow imports of stages, with attributes that are imported lazily, on first use. Not polars: its threads would not
# survive a fork, and it imports fast.
IMPORTS = (
    "torch",
    "transformers:AutoModelForCausalLM",
    "transformers:AutoTokenizer",
    "transformers:ProgressCallback",
    "datasets:Dataset",
    "vllm:LLM",
    "vllm:SamplingParams",
    "vllm.v1.worker.cpu_worker",
    "trl:SFTTrainer",
    "trl:GRPOTrainer",
    "tqdm",
)
exit_code: list[int] = []  # of a fork
PATIENCE = 120.0  # seconds to wait for the host to start; after that the stage runs without it


def main(stage: Sequence[str]) -> NoReturn:
    """Run a stage, given as module and options, in the host or in this process; without a stage, start the host."""
    owner = os.environ.get("MRT_FORK_SERVER", "off")
    host = reach(int(owner)) if owner.isdecimal() and not accelerator.gpu_available() else None
    if not stage:
        sys.exit()
    if host:
        sys.exit(hand_over(host, stage))
    sys.argv = list(stage)
    runpy.run_module(stage[0], run_name="__main__", alter_sys=True)
    sys.exit(0)


def address(owner: int) -> Path:
    """Path of the socket of the host of an owner process; specific to the user, Python environment and folder."""
    of = hashlib.blake2b(f"{sys.prefix} {os.getcwd()} {owner}".encode(), digest_size=8).hexdigest()
    folder = Path(tempfile.gettempdir(), f"mrt-fork-server-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise OSError(f"{folder}: not a folder of this user alone; remove it, or set MRT_FORK_SERVER=off")
    return folder / of


def reach(owner: int) -> socket.socket | None:
    """A connection to the host, which is started if there is none; None if it cannot be started."""
    path = address(owner)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that only one host is started
        if connection := connected(path):
            return connection
        with contextlib.suppress(OSError):
            path.unlink()
        command = [sys.executable, "-m", "mrt.core.fork_server", "--host", str(path), str(owner)]
        nothing = subprocess.DEVNULL
        host = subprocess.Popen(
            command,
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # the host must have no other threads when it forks
        )
        until = time.monotonic() + PATIENCE
        while host.poll() is None and time.monotonic() < until:
            if connection := connected(path):
                return connection
            time.sleep(0.05)
        return None


def connected(path: Path) -> socket.socket | None:
    """A connection to the process that listens at a path; None if none does."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def hand_over(host: socket.socket, stage: Sequence[str]) -> int:
    """Let the host run a stage as if it ran here, pass termination signals on to it, and return its exit code."""
    request = json.dumps({"stage": list(stage), "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    try:
        socket.send_fds(host, [len(request).to_bytes(8, "big")], [0, 1, 2])
        host.sendall(request)
        child = int.from_bytes(received(host, 8), "big")
    except (EOFError, OSError):
        print(
            "the process that stages are forked from could not fork this one, perhaps for lack of memory; start again,"
            " with MRT_FORK_SERVER=off to do without it",
            file=sys.stderr,
        )
        return 1

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    try:
        status = int.from_bytes(received(host, 8), "big")
    except EOFError:
        print("the process that stages are forked from has ended, and the stage with it", file=sys.stderr)
        return 1
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # killed by a signal: die of the same one
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    return code


def received(connection: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes. Raises EOFError if the other end closes before."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def serve(path: Path, owner: int) -> None:
    """The host: import, then listen and fork while the owner lives. Single-threaded, so that forks are clean."""
    atexit.register(leave)  # the first one, which is called last
    vllm_environment.configure(cpu=True)
    for name in IMPORTS:
        module, _, attribute = name.partition(":")
        imported = import_module(module)
        if attribute:
            getattr(imported, attribute)
    gc.collect()
    gc.freeze()  # else the first garbage collection in a fork touches, and so copies, all imported objects
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    listening.listen(64)
    watched = selectors.DefaultSelector()
    watched.register(listening, selectors.EVENT_READ)
    children: dict[int, tuple[int, socket.socket]] = {}  # by pidfd: process, connection to its client
    try:
        while alive(owner):
            for key, _ in watched.select(timeout=1.0):
                if key.fileobj is listening:
                    connection, _ = listening.accept()
                    try:
                        child = forked(connection, [listening, *(c for _, c in children.values())])
                    except (OSError, EOFError, ValueError):
                        connection.close()  # the client has gone
                        continue
                    process = os.pidfd_open(child)
                    children[process] = child, connection
                    watched.register(process, selectors.EVENT_READ, process)
                    watched.register(connection, selectors.EVENT_READ, process)
                    continue
                process = key.data
                if process not in children:
                    continue
                child, connection = children[process]
                if key.fileobj is connection:  # closed: the client was killed
                    watched.unregister(connection)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)
                    continue
                del children[process]
                status = os.waitpid(child, 0)[1]
                watched.unregister(process)
                os.close(process)
                with contextlib.suppress(KeyError, ValueError):
                    watched.unregister(connection)
                with contextlib.suppress(OSError):
                    connection.sendall(status.to_bytes(8, "big"))
                connection.close()
    finally:
        for child, _ in [] if exit_code else children.values():  # in the host
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        if not exit_code:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def forked(connection: socket.socket, close: Sequence[socket.socket]) -> int:
    """Fork a process that runs the requested stage; returns its id, and only in the host."""
    connection.settimeout(10)
    head, files, _, _ = socket.recv_fds(connection, 8, 3)
    while len(head) < 8:
        head += received(connection, 8 - len(head))
    request = json.loads(received(connection, int.from_bytes(head, "big")))
    connection.settimeout(None)
    child = os.fork()
    if child:
        for file in files:
            os.close(file)
        try:
            connection.sendall(child.to_bytes(8, "big"))
        except OSError:  # the client has gone, and no process would wait for the stage
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        return child
    exit_code.append(1)
    try:
        os.setsid()
        for one in close:
            one.close()
        connection.close()
        for target, file in enumerate(files):
            os.dup2(file, target)
            os.close(file)
        exit_code[0] = carry_out(request["stage"], request["folder"], request["environment"])
    finally:
        sys.exit()  # runs the stage's functions of `atexit`, and then `leave`


def leave() -> None:
    """End a fork as soon as all functions of `atexit` have run, without tearing down the imported modules."""
    if exit_code:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(exit_code[0])


def carry_out(stage: Sequence[str], folder: str, environment: dict[str, str]) -> int:
    """In the fork: run the stage with its own folder and environment; returns its exit code."""
    import traceback

    import torch

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = list(stage)
    threads = environment.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(int(threads) if threads.isdecimal() else len(os.sched_getaffinity(0)))
    try:
        runpy.run_module(stage[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--host"]:
        serve(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(sys.argv[1:])
