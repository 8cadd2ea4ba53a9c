"""Runs a program of a model where it can do no harm: in bubblewrap, with limits (docs/grading.md).

Each run is alone in its namespaces: it has no network and no other process. It has only the read-only files of Python
and the system, and a `/tmp` in memory that ends with it. A filter of system calls leaves it one process, so that limits
of CPU time and memory hold for the whole run. Where we are root, a run has the id of a user that does not exist.
"""

import itertools
import json
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from inspect import getsource
from pathlib import Path
from typing import Literal, NamedTuple

from mrt.grading.inside import Channel, Remote, decode, encode, enter, judge, names_in, run, serve

PATIENCE = 4  # times as many seconds of real time as of CPU time, after which a program is killed too
MIB = 1 << 20
STACK = 64 * MIB
NO_USER = 1 << 31  # with this bit, ids of users that do not exist
Mode = Literal["root", "user", "unsafe"]
ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "PYTHONINTMAXSTRDIGITS": "0",
}
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # how the kernel names an architecture, and its system calls:
FORBIDDEN = {  # new processes and namespaces, and memory that no limit counts
    "x86_64": (57, 58, 272, 308, 165, 430, 428, 29, 68, 64, 240, 319, 447, 425, 323, 321, 298, 248, 250),
    "aarch64": (97, 268, 40, 430, 428, 194, 186, 190, 180, 279, 447, 425, 282, 280, 241, 217, 219),
}
CLONE, CLONE3, CLONE_THREAD = {"x86_64": 56, "aarch64": 220}, 435, 0x10000
ALLOW, REFUSE, ABSENT, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000  # refused: EPERM; absent: ENOSYS

SCRIPTS = {  # of `mrt.grading.inside`, with their parts
    run: (run,),
    serve: (encode, decode, serve),
    judge: (encode, decode, Channel, Remote, names_in, judge),
}

_slots = itertools.count()


class Limits(NamedTuple):
    """The limits of a run."""

    seconds: int  # of CPU time; `PATIENCE` times as many of real time
    memory: int  # MiB of address space
    files: int  # MiB in /tmp, and of output
    threads: int


def syscall_filter(machine: str) -> bytes:
    """A filter for the kernel (seccomp, classic BPF) that lets no process be made, but threads."""
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    code = [(load, 0, 0, 4), (equal, 1, 0, AUDIT[machine]), (give, 0, 0, KILL), (load, 0, 0, 0)]
    code += [(at_least, 0, 1, 0x40000000), (give, 0, 0, KILL)]  # x32
    for call in FORBIDDEN[machine]:
        code += [(equal, 0, 1, call), (give, 0, 0, REFUSE)]
    code += [(equal, 0, 1, CLONE3), (give, 0, 0, ABSENT)]  # its flags are out of a filter's sight; libc takes clone
    code += [(equal, 0, 4, CLONE[machine]), (load, 0, 0, 16), (any_bit, 1, 0, CLONE_THREAD), (give, 0, 0, REFUSE)]
    code += [(give, 0, 0, ALLOW), (give, 0, 0, ALLOW)]
    return b"".join(struct.pack("HBBI", *line) for line in code)


class Output(NamedTuple):
    """The output of a program, None if it failed; and whether a limit ended it."""

    text: str | None
    limited: bool


@contextmanager
def in_memory(content: str | bytes = "") -> Iterator[int]:
    """A file in memory; its descriptor is at the beginning."""
    descriptor = os.memfd_create("mrt")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode(errors="replace"))
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def python(packages: bool) -> tuple[str, list[Path]]:
    """The interpreter of programs, and the folders that it needs: with this environment's packages, or without."""
    base = Path(sys.base_prefix).resolve()
    bare = base / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return (sys.executable, [base, Path(sys.prefix)]) if packages else (str(bare), [base])


def wrapper(setting: "Setting", folders: Sequence[Path], seccomp: int) -> list[str]:
    """The command of bubblewrap, before the command that it runs."""
    if setting.mode == "unsafe":
        return []
    command = [shutil.which("bwrap") or "bwrap", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for path in (Path("/bin"), Path("/lib"), Path("/lib64")):
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            command += ["--ro-bind", str(path), str(path)]
    command += ["--perms", "1777", "--size", str(setting.limits.files * MIB), "--tmpfs", "/tmp"]
    for folder in folders:
        if not folder.is_relative_to("/usr"):
            for parent in [*folder.parents][-2::-1]:
                command += ["--perms", "0755", "--dir", str(parent)] if parent != Path("/tmp") else []
            command += ["--ro-bind", str(folder), str(folder)]
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--die-with-parent", "--new-session"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--seccomp", str(seccomp)]
    if setting.mode == "user":
        return [*command, "--unshare-user"]
    return [*command, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


def counts_by_namespace() -> bool:
    """Whether the kernel counts a user's threads within a sandbox alone (since 5.14)."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    return version is not None and (int(version[1]), int(version[2])) >= (5, 14)


@contextmanager
def started(
    script: Callable[[], None], descriptors: Sequence[int], setting: "Setting", stdin: int, stdout: int
) -> Iterator[subprocess.Popen[bytes]]:
    """A script of `mrt.grading.inside` at work, its arguments the numbers of open files; at the end, it is killed.

    Raises RuntimeError if it was not started, so that no fault of the machine counts as one of the program.
    """
    limits, mode = setting.limits, setting.mode
    interpreter, folders = python(setting.packages)
    rlimits = {"CPU": limits.seconds, "AS": limits.memory * MIB, "FSIZE": limits.files * MIB, "STACK": STACK}
    rlimits |= {"CORE": 0, "NOFILE": 64, "MSGQUEUE": 0}
    if mode == "root" or (mode == "user" and counts_by_namespace()):
        rlimits["NPROC"] = limits.threads + (mode == "user")  # there, one process of bubblewrap counts
    user = NO_USER | (os.getpid() << 9 & NO_USER - 1) | next(_slots) % 511 if mode == "root" else None
    parts = [getsource(part) for part in SCRIPTS[script]]
    text = "\n".join(["from __future__ import annotations", *parts, f"{script.__name__}()"])
    command = [interpreter, "-s", "-c", text, *map(str, descriptors)]
    with ExitStack() as stack:
        mark, errors = (stack.enter_context(in_memory()) for _ in range(2))
        entry = [interpreter, "-S", "-s", "-c", f"{getsource(enter)}\nenter()"]
        entry += [json.dumps([rlimits, user, command, mark])]
        seccomp = stack.enter_context(in_memory(b"" if mode == "unsafe" else syscall_filter(platform.machine())))
        folder = "/"
        if mode == "unsafe":
            folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        process = stack.enter_context(
            subprocess.Popen(
                [*wrapper(setting, folders, seccomp), *entry],
                pass_fds=(*descriptors, seccomp, mark),
                env=ENVIRONMENT,
                cwd=folder,
                start_new_session=True,
                stderr=errors,
                stdin=stdin,
                stdout=stdout,
            )
        )
        try:
            yield process
        finally:
            process.kill()
            if mode == "unsafe":
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if (reached := content_of(mark)) != "+":
            fault = f"{reached or ''}{content_of(errors) or ''}".strip("+\n") or "it took too long"
            raise RuntimeError(f"a program could not be started in its sandbox: {fault}")


class Setting(NamedTuple):
    """How programs are run."""

    limits: Limits
    mode: Mode
    packages: bool = False  # whether those of this environment can be imported

    def in_time(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for a process; whether it ended by itself, and at no limit of CPU time."""
        try:
            return process.wait(PATIENCE * self.limits.seconds) not in (128 + signal.SIGKILL, -signal.SIGKILL)
        except subprocess.TimeoutExpired:
            return False

    def output(self, script: Callable[[], None], program: str, given: str) -> Output:
        """The output of a program, `run` or `serve`, for a text on its standard input."""
        with in_memory(program) as source, in_memory(given) as stdin, in_memory() as stdout:
            with started(script, [source], self, stdin=stdin, stdout=stdout) as process:
                in_time = self.in_time(process)
            return Output(content_of(stdout) if process.returncode == 0 else None, not in_time)

    def checked(self, program: str, tests: Sequence[str]) -> tuple[list[tuple[bool, str | None]], bool]:
        """For each test that ended, whether the program passes, and a hash of its replies; whether a limit ended it."""
        with ExitStack() as stack:
            source, texts = (stack.enter_context(in_memory(text)) for text in (program, json.dumps(tests)))
            verdicts = stack.enter_context(in_memory())
            ends = [stack.enter_context(os.fdopen(end, "wb", 0)) for end in (*os.pipe(), *os.pipe())]
            requests_in, requests_out, replies_in, replies_out = (end.fileno() for end in ends)
            serving = stack.enter_context(started(serve, [source], self, stdin=requests_in, stdout=replies_out))
            judging = started(judge, [texts, requests_out, replies_in], self, stdin=subprocess.DEVNULL, stdout=verdicts)
            process = stack.enter_context(judging)
            for end in ends:
                end.close()
            in_time = self.in_time(process)
            limited = not in_time or serving.poll() in (128 + signal.SIGKILL, -signal.SIGKILL)
            lines = (content_of(verdicts) or "").splitlines()
        return [(passed, replies) for passed, replies in map(json.loads, lines)], limited


def content_of(descriptor: int) -> str | None:
    """The text of a file in memory; None if it is none."""
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()
    except UnicodeDecodeError:
        return None


@cache
def sandbox(packages: bool = False) -> tuple[Mode | None, str]:
    """How programs can be shut in on this machine, tried once; or None, and why they cannot."""
    if platform.machine() not in AUDIT:
        return None, f"the sandbox knows {' and '.join(AUDIT)}, and this machine is {platform.machine()}"
    if not shutil.which("bwrap"):
        return None, "bubblewrap is not installed: there is no `bwrap` on the path"
    error, modes = "", list[Mode](["root", "user"] if os.geteuid() == 0 else ["user"])
    for mode in modes:
        try:
            if Setting(Limits(10, 1024, 1, 8), mode, packages).output(run, "print(6 * 7)", "").text == "42\n":
                return mode, ""
            error = "a program of one line fails in it"
        except RuntimeError as fault:
            error = str(fault)
    return None, f"bubblewrap does not work here ({error})"
