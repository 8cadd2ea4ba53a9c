"""Whether there is a GPU, and who has which: with an nvidia-smi that lists eight cards which are not there."""

import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, TOY_BASE, fake_cards, has_ended

from mrt.core import accelerator

CLAIM = """
import os, sys
from mrt.core import accelerator
accelerator.claim(int(sys.argv[1]))
print("has", os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"), flush=True)
if sys.argv[2:] == ["parent"]:
    import subprocess
    code = "from mrt.core import accelerator; accelerator.join(); print('joined', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    print("child", child.pid, flush=True)
elif sys.argv[2:]:
    os.execvp(sys.argv[2], sys.argv[2:])
sys.stdin.read()
"""
SOON = 60  # seconds, on a busy machine


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Starts jobs that claim cards of a machine with eight."""
    fake_cards(tmp_path, monkeypatch, 8)
    jobs = []

    def start(count, *arguments, **environment):
        command = [sys.executable, "-c", CLAIM, str(count), *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        jobs.append(subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, bufsize=0, **pipes))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
        job.wait()


def line(job, seconds=SOON):
    """The next line that a job prints; None if it prints none for so long."""
    return job.stdout.readline().decode().strip() if select.select([job.stdout], [], [], seconds)[0] else None


def cards(job, seconds=SOON):
    """The cards that a job has, once it has them; None if it waits."""
    while (said := line(job, seconds)) is not None:
        if said.startswith("has "):
            return said.split()[1].split(",")
    return None


def waiting(job):
    said = line(job)
    assert said.startswith("waiting for"), said
    return said


def end(*jobs):
    for job in jobs:
        job.kill()
        job.wait()


def test_eight_jobs_have_eight_cards_and_a_ninth_waits_until_one_is_killed(machine):
    jobs = [machine(1) for _ in range(8)]
    own = [cards(job) for job in jobs]
    assert sorted(own) == [[str(i)] for i in range(8)]
    ninth = machine(1)
    assert f"{own[5][0]}: {os.environ.get('USER') or os.getuid()}, process {jobs[5].pid}" in waiting(ninth)
    assert cards(ninth, 2) is None
    end(jobs[5])  # SIGKILL
    assert line(ninth) == f"got GPUs {own[5][0]}"
    assert line(ninth) == f"has {own[5][0]} PCI_BUS_ID"


def test_a_training_has_four_cards_beside_four_samplings(machine):
    samplings = [cards(machine(1)) for _ in range(4)]
    training = cards(machine(4))
    assert len(training) == 4 and sorted([*training, *(name for own in samplings for name in own)]) == list("01234567")


def test_two_that_want_more_than_half_do_not_wait_for_each_other(machine):
    first, second = machine(6), machine(6)
    ready, _, _ = select.select([first.stdout, second.stdout], [], [], SOON)
    assert ready
    time.sleep(2)
    has, waits = sorted((first, second), key=lambda job: "waiting" in line(job))
    end(has)
    assert len(cards(waits)) == 6


def test_a_child_shares_the_card_and_dies_with_the_parent(machine):
    parent = machine(8, "parent")
    assert len(cards(parent)) == 8
    said = {line(parent), line(parent)}
    (child,) = (int(one.split()[1]) for one in said if one.startswith("child"))
    assert "joined" in said
    os.kill(child, signal.SIGSTOP)  # it cannot die yet, as one that is deep in the driver
    other = machine(1)
    waiting(other)
    end(parent)
    assert cards(other, 3) is None
    os.kill(child, signal.SIGCONT)
    assert len(cards(other)) == 1  # whichever the kernel freed first
    assert has_ended(child)


def test_what_a_process_becomes_keeps_its_cards(machine):
    job = machine(8, "sh", "-c", "echo became; read line")
    assert len(cards(job)) == 8 and line(job) == "became"
    other = machine(1)
    waiting(other)
    assert cards(other, 2) is None
    end(job)
    assert len(cards(other)) == 1  # whichever is free first: the kernel lets go of one after the other


def test_jobs_share_out_what_they_were_given(machine):
    given = {"CUDA_VISIBLE_DEVICES": "2,GPU-5", "SLURM_JOB_ID": "7"}
    first, second, third = (machine(1, **given) for _ in range(3))
    own = [cards(first, 5), cards(second, 5), cards(third, 5)]
    assert sorted(filter(None, own)) == [["2"], ["GPU-5"]]
    assert cards(machine(1, CUDA_VISIBLE_DEVICES="3", SLURM_JOB_ID="8")) == ["3"]  # not held up by those that wait
    end(next(job for job, has in zip((first, second, third), own, strict=True) if not has))
    assert [cards(machine(1)) for _ in range(5)] == [["0"], ["1"], ["4"], ["6"], ["7"]]  # the others are known by UUID
    too_many = machine(3, **given)
    assert too_many.wait(SOON) == 1
    said = too_many.stdout.read().decode()
    assert "3 GPUs are asked for, 2 are there: 2, GPU-5" in said and "cluster.training_gpus" in said


def test_a_card_is_called_by_its_whole_uuid(monkeypatch):
    monkeypatch.setattr(accelerator, "ask_driver", lambda *fields: [["0", "GPU-aa-1"], ["1", "GPU-bb-2"]])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b,0")
    assert accelerator.cards() == [("GPU-bb-2", "GPU-bb-2"), ("0", "GPU-aa-1")]


def test_numbers_without_uuids_are_of_a_job_of_slurm(machine, monkeypatch):
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))  # no nvidia-smi
    assert not accelerator.ask_driver("index")
    own = [cards(machine(1, CUDA_VISIBLE_DEVICES="0", SLURM_JOB_ID=job)) for job in ("7", "8")]
    assert own == [["0"], ["0"]]
    waiting(machine(1, CUDA_VISIBLE_DEVICES="0", SLURM_JOB_ID="8"))


@pytest.mark.parametrize("purpose", [{"MRT_DEVICE": "cpu"}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_on_the_cpu_nothing_is_claimed(machine, tmp_path, purpose):
    jobs = [machine(8, **purpose) for _ in range(2)]
    assert [line(job) for job in jobs] == [f"has {purpose.get('CUDA_VISIBLE_DEVICES')} None"] * 2
    assert not (tmp_path / "locks").exists()


@pytest.mark.parametrize(
    ("given", "names"),
    [("", []), ("0", ["0"]), ("3, 1", ["3", "1"]), ("0,-1,1", ["0"]), ("-1", []), ("NoDevFiles", [])],
)
def test_cards_are_named_up_to_the_first_that_is_none(monkeypatch, given, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert accelerator.named() == names and accelerator.gpu_available() == bool(names)


def test_all_users_may_lock(machine, tmp_path):
    cards(machine(1))
    folder = tmp_path / "locks"
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert {file.name for file in folder.iterdir()} == {"GPU-0"}
    assert all(file.stat().st_mode & 0o777 == 0o666 for file in folder.iterdir())


@pytest.fixture
def torch_is(monkeypatch):
    """Has torch look like another build."""
    import torch

    def torch_is(cuda, finds=True, compatible=False):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: finds)
        monkeypatch.setattr(accelerator, "another_process_can", lambda: compatible)

    return torch_is


def test_a_training_without_a_gpu_on_a_node_that_has_some_stops(tmp_path, monkeypatch, torch_is):
    torch_is("13.0", finds=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
    monkeypatch.setattr(accelerator.os.path, "exists", lambda path: str(path) == "/dev/nvidiactl")
    with pytest.raises(accelerator.NoGPU, match=r"none of its node's GPUs: .*cluster\.gpu"):
        accelerator.on_gpu()
    monkeypatch.setattr(accelerator.os.path, "exists", lambda path: False)
    assert accelerator.on_gpu() is False


def test_a_torch_for_cpus_beside_gpus_is_an_error_with_what_to_do(tmp_path, monkeypatch, torch_is):
    fake_cards(tmp_path, monkeypatch, 2, driver="550.54.15")
    torch_is(None, finds=False)
    with pytest.raises(accelerator.NoGPU) as error:
        accelerator.on_gpu()
    said = str(error.value)
    assert said.startswith("this machine has GPUs, but torch cannot use them: this torch is built for CPUs")
    assert "driver: 550.54.15" in said and "setup.sh --gpu" in said and "MRT_DEVICE=cpu" in said
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(accelerator.NoGPU, match="CUDA_VISIBLE_DEVICES=1, but torch"):
        accelerator.on_gpu()


@pytest.mark.parametrize(
    ("driver", "cuda", "compatible", "wrong"),
    [
        ("580.65.06", "13.0", False, None),
        ("550.54.15", "13.0", False, r"CUDA 13\.0 needs driver 580 or later"),  # though NVML lists its cards
        ("550.54.15", "13.0", True, None),
        ("550.54.15", "12.8", False, None),
        ("515.43", "12.8", False, "driver 525"),
    ],
)
def test_a_driver_that_is_too_old_is_an_error(tmp_path, monkeypatch, torch_is, driver, cuda, compatible, wrong):
    fake_cards(tmp_path, monkeypatch, 2, driver=driver)
    torch_is(cuda, compatible=compatible)
    if wrong is None:
        assert accelerator.on_gpu() is True
    else:
        with pytest.raises(accelerator.NoGPU, match=wrong):
            accelerator.on_gpu()


def test_cards_that_torch_does_not_find_are_an_error(tmp_path, monkeypatch, torch_is):
    fake_cards(tmp_path, monkeypatch, 2)
    torch_is("13.0", finds=False)
    with pytest.raises(accelerator.NoGPU, match="torch finds none"):
        accelerator.on_gpu()


@pytest.mark.parametrize(("name", "value"), [("MRT_DEVICE", "cpu"), ("CUDA_VISIBLE_DEVICES", "")])
def test_the_cpu_is_used_on_purpose(tmp_path, monkeypatch, torch_is, name, value):
    fake_cards(tmp_path, monkeypatch, 2)
    torch_is("13.0", finds=False)
    monkeypatch.setenv(name, value)
    assert accelerator.on_gpu() is False
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_another_process_tries_torch_for_real():
    import torch

    assert accelerator.another_process_can() == torch.cuda.is_available()


@pytest.mark.parametrize(
    ("flags", "emulates"),
    [("avx2 avx512f", True), ("avx512_bf16", False), ("amx_bf16", False), ("Features: fp asimd bf16", False)],
)
def test_a_cpu_says_whether_it_knows_bfloat16(tmp_path, flags, emulates):
    (tmp_path / "cpuinfo").write_text(f"flags : fpu {flags} sse\n")
    assert accelerator.emulates_bfloat16(tmp_path / "cpuinfo") == emulates
    assert not accelerator.emulates_bfloat16(tmp_path / "nothing")


def test_nothing_else_asks_torch_for_a_gpu():
    """But the trial of a card, which claims one before and measures its memory."""
    probe = re.compile(r"torch\.cuda|cuda\.is_available|device_count|nvidiactl|nvidia-smi|torch\.accelerator")
    asking = {path.name for path in (ROOT / "mrt").rglob("*.py") if probe.search(path.read_text())}
    assert asking == {"accelerator.py", "trial.py", "trial_stages.py"}


ORDER = f"""
import os, sys, torch

def probed(answer):
    def asked():
        print("probe", os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"), os.environ.get("CUDA_VISIBLE_DEVICES"),
              "vllm" in sys.modules)
        return answer
    return asked

class Imports:
    def find_spec(self, name, *_):
        if name == "vllm":
            told = os.environ
            print("vllm", told.get("VLLM_WORKER_MULTIPROC_METHOD"), told.get("VLLM_USE_FLASHINFER_SAMPLER"))
            sys.exit()

torch.version.cuda, torch.cuda.is_available, torch.cuda.device_count = "13.0", probed(True), probed(8)
sys.meta_path.insert(0, Imports())
from mrt.sampling.engine import Engine, EngineSettings
Engine({str(TOY_BASE)!r}, EngineSettings(tensor_parallel_size=2)).llm
"""


def test_vllm_comes_after_its_environment_and_no_probe_before_the_variable_that_keeps_cuda_asleep(
    tmp_path, monkeypatch
):
    fake_cards(tmp_path, monkeypatch, 8)
    for name in ("PYTORCH_NVML_BASED_CUDA_CHECK", "VLLM_WORKER_MULTIPROC_METHOD"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, "-c", ORDER], cwd=ROOT, capture_output=True, text=True)
    *probes, imported = done.stdout.splitlines()
    assert set(probes) == {"probe 1 0,1 False"} and imported == "vllm spawn 0", done.stdout + done.stderr


def test_other_programs_on_a_card_are_told(tmp_path, monkeypatch, capsys):
    fake_cards(tmp_path, monkeypatch, 2, used=40_000)
    accelerator.tell_others(accelerator.cards()[:1])
    said = capsys.readouterr().out
    assert said.startswith("GPU 0: other programs use 39.1 of 79.6 GiB (nvidia-smi lists them)") and "GPU 1" not in said
    (tmp_path / "idle").mkdir()
    fake_cards(tmp_path / "idle", monkeypatch, 2)
    accelerator.tell_others(accelerator.cards())
    assert not capsys.readouterr().out


def test_a_lack_of_shared_memory_or_of_room_for_programs_is_one_sentence(tmp_path, monkeypatch):
    accelerator.check_room(2)
    monkeypatch.setattr(accelerator, "SHARED", 2**60)
    accelerator.check_room(1)
    with pytest.raises(
        accelerator.NoGPU, match=r"/dev/shm has \d+ MiB left, too little for NCCL between 2 GPUs.*shm-size"
    ):
        accelerator.check_room(2)
    monkeypatch.setenv("NCCL_SHM_DISABLE", "1")
    accelerator.check_room(2)
    monkeypatch.setattr(accelerator, "CACHE", 2**60)
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "not" / "there"))
    with pytest.raises(accelerator.NoGPU, match=rf"^{tmp_path} has \d+ MiB left, .*VLLM_CACHE_ROOT"):
        accelerator.check_room(1)
