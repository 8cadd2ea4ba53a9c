"""Choose whether stages run on GPUs or on the CPU, and which GPUs a job uses; nothing else decides either.

On a machine with NVIDIA GPUs, or in a job with GPUs, a stage uses them or ends with an error that gives the reason.
Nothing falls back to the CPU silently. To use the CPU on purpose, set `MRT_DEVICE=cpu` or an empty
`CUDA_VISIBLE_DEVICES`.

Snakemake counts the GPUs of a machine (`gpu` of its rules), and assigns none. So a process claims as many as it needs
before it uses any. A claim is a file lock per card, named by the card's UUID, in a folder that all users of the machine
share. `CUDA_VISIBLE_DEVICES` then lists only the claimed cards. The kernel frees a lock when its holders die, however
that is. SLURM jobs claim too: the cards that SLURM gave to a job are free, and stages started within one job share them
out.

Child processes of a claiming process, those of torchrun and vLLM, call `join`. They share its locks, so that a card
stays taken while any process of the job lives, and they die with it. The engine core of vLLM does not notice that the
stage was killed, and would keep the card's memory for ever.
"""

import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import parent_process
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from mrt.core.lock import started

DEVICES, HOLDER, LOCKS = "CUDA_VISIBLE_DEVICES", "MRT_GPU_HOLDER", "MRT_GPU_LOCKS"  # environment variables
FOLDER = "/tmp/mrt-gpus"  # for the locks, unless MRT_GPU_FOLDER is set; not TMPDIR, which may differ by user
SHARED_MEMORY, SHARED = "/dev/shm", 256 * 2**20  # bytes that NCCL needs at least, a container's default being 64 MiB
CACHE = 2**30  # bytes that must be free for compiled programs
OTHERS = 0.1  # share of a card's memory that is not worth a word
POLL = 0.5  # seconds between looks for free cards
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}  # by CUDA's major version (NVIDIA, "CUDA Compatibility", minor versions)


class NoGPU(OSError):
    """GPUs are present or requested, but cannot be used."""


class Card(NamedTuple):
    """A GPU: its name in `CUDA_VISIBLE_DEVICES`, and an identity that is the same in every process of the machine."""

    name: str
    identity: str


def ask_driver(*fields: str) -> list[list[str]]:
    """These nvidia-smi fields of each card of the machine; empty without cards or without nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [[word.strip() for word in line.split(",")] for line in said.stdout.splitlines()]
    return [words for words in lines if len(words) == len(fields)] if said.returncode == 0 else []


def named() -> list[str] | None:
    """The cards listed in `CUDA_VISIBLE_DEVICES`, up to the first invalid entry; None if it is not set."""
    if DEVICES not in os.environ:
        return None
    names = [name.strip() for name in os.environ[DEVICES].split(",")]
    ends = [i for i, name in enumerate(names) if name in ("", "-1", "NoDevFiles")]  # the last is SLURM's
    return names[: ends[0]] if ends else names


def cpu_on_purpose() -> bool:
    return os.environ.get("MRT_DEVICE", "").lower() == "cpu"


def gpu_available() -> bool:
    """Whether this process should use a GPU: one was given to it, or its machine has some. Does not import torch."""
    if cpu_on_purpose():
        return False
    given = named()
    if given is not None:
        return bool(given)
    return os.path.exists("/dev/nvidiactl") or bool(ask_driver("index"))


def cards() -> list[Card]:
    """The GPUs that this process may use; none if it is to use the CPU."""
    if not gpu_available():
        return []
    listed = [Card(*words) for words in ask_driver("index", "uuid")]
    given = named()
    if given is None:
        return listed
    return [called(name, listed) for name in given]


def called(name: str, listed: list[Card]) -> Card:
    """The card that `CUDA_VISIBLE_DEVICES` means by a number, a UUID, or the beginning of a UUID."""
    for card in listed:
        if name == card.name:
            return card
        if card.identity.startswith(name):  # vLLM knows whole UUIDs alone
            return Card(card.identity, card.identity)
    # If the UUID is unknown, a number identifies a card of this machine, or of this SLURM job, which may renumber.
    return Card(name, f"{os.environ.get('SLURM_JOB_ID', 'card')}-{name}" if name.isdecimal() else name)


def on_gpu() -> bool:
    """Whether this process runs on GPUs. Raises NoGPU if it should but torch cannot use them."""
    if cpu_on_purpose():
        os.environ[DEVICES] = ""  # so that no library finds one
        return False
    # Set before torch is first queried: otherwise the query initializes CUDA, and forks can no longer use it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    usable = torch.cuda.is_available()
    if os.environ.get(DEVICES) == "NoDevFiles" and torch.version.cuda and os.path.exists("/dev/nvidiactl"):
        raise NoGPU(
            "SLURM gave this job none of its node's GPUs: name them in the configuration, cluster.gpu, or use the CPU"
            " on purpose, `export MRT_DEVICE=cpu`"
        )
    if gpu_available():
        build = torch.version.cuda
        driver = next((words[0] for words in ask_driver("driver_version")), None)
        problem = too_old(driver, build) if build else "this torch is built for CPUs"
        if problem and build and another_process_can():  # by NVIDIA's forward compatibility
            problem = None
        if problem or not usable:
            raise NoGPU(complaint(build, driver, problem))
    return usable


def emulates_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine's CPU has no bfloat16 instructions (avx512_bf16, amx_bf16, ARM's bf16); Linux tells."""
    try:
        return "bf16" not in cpuinfo.read_text()
    except OSError:
        return False


def too_old(driver: str | None, build: str) -> str | None:
    """Why a driver is too old for a torch built for this CUDA; None if it is not, or its version is unknown."""
    needed, installed = OLDEST_DRIVER.get(int(build.partition(".")[0]), 0), (driver or "").partition(".")[0]
    return f"CUDA {build} needs driver {needed} or later" if installed.isdecimal() and int(installed) < needed else None


def another_process_can() -> bool:
    """Whether torch can use a GPU, tested in another process: NVML lists cards whatever the driver, and a test in this
    process would initialize CUDA.
    """
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    environment = os.environ | {"PYTORCH_NVML_BASED_CUDA_CHECK": "0"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).returncode == 0


def complaint(build: str | None, driver: str | None, problem: str | None) -> str:
    """The error message about unusable GPUs, with remedies."""
    given = f"{DEVICES}={os.environ[DEVICES]}" if DEVICES in os.environ else "this machine has GPUs"
    torch = f"built for CUDA {build}" if build else "the CPU build"
    return (
        f"{given}, but torch cannot use them: {problem or 'torch finds none'}.\n"
        f"  torch: {torch}; driver: {driver or 'unknown, nvidia-smi lists no card'}\n"
        "  What to do, one of: `bash setup.sh --gpu`, for an environment with CUDA; a newer driver (CUDA 13 needs 580\n"
        "  or later); to use the CPU on purpose, `bash setup.sh --cpu` and `export MRT_DEVICE=cpu` (or an empty\n"
        "  CUDA_VISIBLE_DEVICES)."
    )


def claim(count: int) -> None:
    """Reserve `count` of the machine's GPUs for this process until it ends, waiting for them, and hide all others.

    A process that has claimed before keeps its cards, and its child processes share them. Nothing is claimed on a CPU,
    nor by a process of a torchrun that was started by hand. Raises NoGPU if fewer than `count` may be used.
    """
    holder = os.environ.get(HOLDER, "")
    if holder not in ("", str(os.getpid())):
        join()
    elif not holder and "LOCAL_RANK" in os.environ:
        return
    os.environ[HOLDER] = str(os.getpid())  # for its own children to join
    if not gpu_available():
        return
    gpus = cards()
    if count > len(gpus):
        raise NoGPU(
            f"{count} GPUs are asked for, {len(gpus)} are there: {', '.join(card.name for card in gpus) or 'none'}. "
            "Lower cluster.training_gpus or cluster.gpus_per_node for trainings, engine.tensor_parallel_size for "
            f"sampling; set {DEVICES} if nvidia-smi does not list your cards"
        )
    if LOCKS in os.environ:
        return
    check_room(count)
    held = collect(gpus, count)
    tell_others(held)
    os.environ[LOCKS] = os.pathsep.join(str(lock_of(card)) for card in held)
    os.environ[DEVICES] = ",".join(card.name for card in held)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the numbering of nvidia-smi


def check_room(count: int) -> None:
    """Raise NoGPU if CUDA's programs cannot be cached, or NCCL lacks shared memory for several cards."""
    cache = Path(os.environ.get("VLLM_CACHE_ROOT") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "vllm"))
    place = next(path for path in (cache.expanduser(), *cache.expanduser().parents) if path.exists())
    if (free := shutil.disk_usage(place).free) < CACHE:
        raise NoGPU(
            f"{place} has {free / 2**20:.0f} MiB left, and vLLM keeps compiled programs in {cache}. Make room, or name"
            " another folder: `export VLLM_CACHE_ROOT=...`"
        )
    if count == 1 or os.environ.get("NCCL_SHM_DISABLE") == "1" or not os.path.exists(SHARED_MEMORY):
        return
    if (free := shutil.disk_usage(SHARED_MEMORY).free) < SHARED:
        raise NoGPU(
            f"{SHARED_MEMORY} has {free / 2**20:.0f} MiB left, too little for NCCL between {count} GPUs. Start the"
            " container with more (`--shm-size=8g`), or do without, which is slower: `export NCCL_SHM_DISABLE=1`"
        )


def tell_others(held: list[Card]) -> None:
    """Print a line if programs that claim no cards, which are not this project's, use these."""
    memory = {uuid: words for uuid, *words in ask_driver("uuid", "memory.used", "memory.total")}
    for card in held:
        numbers = [word.partition(" ")[0] for word in memory.get(card.identity, [])]
        if all(number.isdecimal() for number in numbers) and numbers:
            used, total = map(int, numbers)
            if used > OTHERS * total:
                print(
                    f"GPU {card.name}: other programs use {used / 1024:.1f} of {total / 1024:.1f} GiB (nvidia-smi lists"
                    f" them). If memory runs out, end them, leave the card out ({DEVICES}), or lower"
                    " engine.gpu_memory_utilization",
                    flush=True,
                )


def join() -> None:
    """In a child of a claiming process: share its locks, and die when it does, even if it is killed."""
    holder = int(os.environ.get(HOLDER, os.getpid()))
    if holder == os.getpid():
        return
    Thread(target=die_with, args=(holder, started(holder)), name=f"dies with {holder}", daemon=True).start()
    for path in filter(None, os.environ.get(LOCKS, "").split(os.pathsep)):
        fcntl.flock(opened(Path(path)), fcntl.LOCK_SH)


def die_with(holder: int, since: str | None) -> None:
    """Kill this process when that one has ended."""
    while since is not None and started(holder) == since:
        time.sleep(POLL)
    engine = parent_process()  # in a vLLM worker: the engine core, which does not see it end
    if engine and engine.pid and engine.is_alive():
        os.kill(engine.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def collect(usable: list[Card], count: int) -> list[Card]:
    """Lock `count` of these cards as soon as that many are free; prints a line if it has to wait.

    It holds none while it waits, so that no two processes wait for each other.
    """
    waits = False
    while True:
        held: dict[Card, int] = {}
        for card in usable:
            if len(held) < count and (lock := locked_card(card)) is not None:
                held[card] = lock
        if len(held) == count:
            break
        for lock in held.values():
            os.close(lock)
        if not waits:
            others = "; ".join(f"{card.name}: {holder_of(card)}" for card in usable if card not in held)
            print(f"waiting for {count} of {len(usable)} GPUs ({others})", flush=True)
        waits = True
        time.sleep(POLL * (1 + random.random()))
    if waits:
        print(f"got GPUs {', '.join(card.name for card in held)}", flush=True)
    return list(held)


def folder() -> Path:
    """The folder of the lock files, created writable for all users."""
    path = Path(os.environ.get("MRT_GPU_FOLDER", FOLDER))
    try:
        path.mkdir()
        path.chmod(0o1777)
    except FileExistsError:
        pass
    return path


def lock_of(card: Card) -> Path:
    """The lock file of a card."""
    return folder() / card.identity.replace("/", "-")


def opened(path: Path) -> int:
    """The descriptor of an opened file that all users may lock; it stays open across exec."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)  # Linux refuses O_CREAT on another user's file here
            break
        except FileNotFoundError:
            before = os.umask(0)
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
            except FileExistsError:
                pass
            finally:
                os.umask(before)
    os.set_inheritable(file, True)
    return file


def locked_card(card: Card) -> int | None:
    """Lock a card and record its holder: the descriptor; None if it is taken."""
    file = opened(lock_of(card))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    os.ftruncate(file, 0)
    os.pwrite(file, f"{os.environ.get('USER') or os.getuid()}, process {os.getpid()}".encode(), 0)
    fcntl.flock(file, fcntl.LOCK_SH)  # so that children can join
    return file


def holder_of(card: Card) -> str:
    """Who has or had a card, in words."""
    try:
        return lock_of(card).read_text() or "free"
    except OSError:
        return "free"
