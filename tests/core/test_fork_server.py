import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from conftest import ROOT, TOY_BASE, python

from mrt.core import fork_server

pytestmark = pytest.mark.slow

STAGE = """
import os, sys, signal, time
print("module", "torch" in sys.modules and "vllm" in sys.modules, os.environ.get("ASKED"), os.getcwd())
print("to stderr", file=sys.stderr)
what = sys.argv[1]
if what == "fail":
    raise ValueError("no such luck")
if what == "exit":
    sys.exit(3)
if what == "message":
    sys.exit("in words")
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "wait":
    open(sys.argv[2], "w").write(str(os.getpid()))
    time.sleep(60)
if what == "threads":
    import torch
    print("threads", torch.get_num_threads())
    torch.ones(3000, 3000) @ torch.ones(3000, 3000)  # on all of them, if there are any
"""


@pytest.fixture(scope="module")
def owner():
    """A process that a host lives for."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def start(owner, tmp_path):
    (tmp_path / "stage.py").write_text(STAGE)

    def start(*arguments, warmed=True, **environment):
        own = {**os.environ, "PYTHONPATH": str(tmp_path), "ASKED": "yes", **environment}
        own["MRT_FORK_SERVER"] = str(owner.pid) if warmed else "off"
        command = [sys.executable, "-m", "mrt.core.fork_server", "stage", *map(str, arguments)]
        return subprocess.Popen(command, env=own, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ended(*arguments, **how):
        process = start(*arguments, **how)
        out, errors = process.communicate(timeout=150)
        return process.returncode, out, errors

    start.ended = ended
    return start


@pytest.fixture(autouse=True)
def stages_on_the_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_a_stage_finds_everything_imported_and_its_own_surroundings(start):
    code, out, errors = start.ended("go")
    assert (code, out) == (0, f"module True yes {ROOT}\n") and errors.endswith("to stderr\n")
    code, out, _ = start.ended("go", warmed=False)
    assert (code, out) == (0, f"module False yes {ROOT}\n")


@pytest.mark.parametrize(("what", "code", "said"), [("exit", 3, ""), ("message", 1, "in words"), ("fail", 1, "luck")])
def test_a_stage_ends_as_it_would_alone(start, what, code, said):
    for warmed in (True, False):
        found, _, errors = start.ended(what, warmed=warmed)
        assert found == code and said in errors


def test_a_killed_stage_is_a_killed_process(start):
    assert start.ended("killed")[0] == -signal.SIGKILL


@pytest.mark.parametrize("reads", [True, False])
def test_a_host_that_does_not_fork_is_an_error_with_a_remedy(capsys, reads):
    """It lacks memory, or has ended."""
    here, host = socket.socketpair()

    def refuse():
        if reads:
            host.recv(1 << 20)
        host.close()

    refusing = threading.Thread(target=refuse)
    refusing.start()
    assert fork_server.hand_over(here, ["stage"]) == 1
    refusing.join()
    here.close()
    assert "MRT_FORK_SERVER=off" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_ends_the_caller_ends_the_stage(start, tmp_path, number):
    started = tmp_path / "started"
    process = start("wait", started)
    until = time.monotonic() + 120
    while not (started.exists() and started.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    stage = int(started.read_text())
    process.send_signal(number)
    assert process.wait(10) == -number
    until = time.monotonic() + 10
    while fork_server.alive(stage) and time.monotonic() < until:
        time.sleep(0.05)
    assert not fork_server.alive(stage)


def test_threads_are_those_of_the_job(start):
    for count in ("1", "2"):
        assert f"threads {count}\n" in start.ended("threads", OMP_NUM_THREADS=count)[1]


EARLY = """
import os, sys, time
from types import SimpleNamespace
from mrt.core.fork_server import address
from workflow.start import start_early
shells = (None, "python -m mrt.analysis.progress", *sys.argv[1:])
jobs = [SimpleNamespace(rule=SimpleNamespace(shellcmd=shell)) for shell in shells]
os.environ["MRT_FORK_SERVER"] = str(os.getpid())
local, dag = SimpleNamespace(name="local"), SimpleNamespace(needrun_jobs=lambda: jobs)
start_early(SimpleNamespace(executor_plugin=local, dag=dag))
until = time.monotonic() + (60 if len(sys.argv) > 1 else 3)
while not address(os.getpid()).exists() and time.monotonic() < until:
    time.sleep(0.1)
print(address(os.getpid()).exists(), address(os.getpid()).with_suffix(".lock").exists())
"""


def test_a_run_starts_the_host_at_once_if_a_job_will_need_it():
    assert python("-c", EARLY).split() == ["False", "False"]
    assert (
        python("-c", EARLY, "OMP_NUM_THREADS=1 python -m mrt.core.fork_server mrt.sampling.rollouts").split()[0]
        == "True"
    )


def test_the_host_goes_with_its_owner(tmp_path):
    (tmp_path / "stage.py").write_text(STAGE)
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "MRT_FORK_SERVER": str(owner.pid)}
    subprocess.run([sys.executable, "-m", "mrt.core.fork_server", "stage", "go"], env=environment, cwd=ROOT, check=True)
    path = python("-c", f"from mrt.core import fork_server; print(fork_server.address({owner.pid}))").strip()
    assert os.path.exists(path)
    owner.kill()
    owner.wait()
    until = time.monotonic() + 20
    while os.path.exists(path) and time.monotonic() < until:
        time.sleep(0.1)
    assert not os.path.exists(path)


def test_a_warm_stage_draws_the_same(owner, toy_problems, tmp_path):
    found = []
    for warmed in ("off", str(owner.pid)):
        out = tmp_path / f"{warmed}.parquet"
        options = ["--model", TOY_BASE, "--problems", toy_problems, "--out", out, "--names", "base", "--names", "toy"]
        options += ["--engine.max_model_len", 512, "--decoding.max_tokens", 100]
        environment = {**os.environ, "MRT_FORK_SERVER": warmed, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "mrt.core.fork_server", "mrt.sampling.rollouts", *map(str, options)]
        subprocess.run(command, env=environment, cwd=ROOT, check=True)
        found.append(out.read_bytes())
    assert found[0] == found[1]
