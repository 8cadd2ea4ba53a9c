"""`setup.sh` on machines unlike this one: an environment that imports, or a sentence that says what to do.

What makes environments (marker `setup`, `make test-setup`) takes minutes and gigabytes each, and is not run by default.
"""

import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import zipfile
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.utils import parse_wheel_filename

from mrt.core.accelerator import OLDEST_DRIVER

PYTHONS = ((3, 11), (3, 12))
INDEX_ALONE = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "UV_FIND_LINKS": "", "UV_NO_CONFIG": "1"}
NO_INDEX = {**INDEX_ALONE, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
IMPORTS = (
    "import torch, vllm, trl, deepspeed, snakemake, polars, matplotlib, mrt.sampling.engine; print(torch.__version__)"
)


FILES, FOLDERS = ("setup.sh", "pyproject.toml", "README.md", "LICENSE"), ("envs", "mrt")  # what setup.sh reads


@pytest.fixture
def project(tmp_path):
    """What `setup.sh` reads, in a separate folder."""
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def setup(project, *arguments, before=(), **environment):
    command = [*before, "bash", str(project / "setup.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def refusal(done):
    """The one sentence that it ended in."""
    *_, last = done.stderr.strip().splitlines()
    assert done.returncode == 1 and last.startswith("setup: "), done.stdout + done.stderr
    return last


def programs(folder, **texts):
    """A PATH on which these shell scripts come first."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name.replace("_", "-")).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_an_unknown_option(project):
    assert "--tpu" in refusal(setup(project, "--tpu")) and not (project / ".venv").exists()


def test_a_driver_that_is_too_old_for_the_cuda_build(project):
    path = programs(project / "bin", nvidia_smi="echo 550.54.15")
    said = refusal(setup(project, PATH=path))
    assert "driver 550.54.15" in said and "580" in said and "bash setup.sh --cpu" in said
    assert not (project / ".venv").exists()


NO_PYTHON = dict.fromkeys(("python3", "python3.11", "python3.12"), "exit 1")  # so that it goes no further


@pytest.mark.parametrize("lock", ["torch-cuda", "gpu"])
def test_the_oldest_driver_is_that_of_the_locked_cuda(project, lock):
    text = (ROOT / "envs" / f"{lock}.lock").read_text()
    needed = OLDEST_DRIVER[int(re.search(r"^nvidia-cuda-runtime==(\d+)", text, re.MULTILINE)[1])]
    path = programs(project / "old", nvidia_smi=f"echo {needed - 1}.99")
    assert f"needs {needed} or later" in refusal(setup(project, "--gpu", PATH=path))
    path = programs(project / "new", nvidia_smi=f"echo {needed}.65.06", **NO_PYTHON)
    assert "Python 3.11" in refusal(setup(project, "--gpu", PATH=path, PYTHON=""))


def needed_glibc(lock):
    """The minor version of glibc that the wheels of a lock need, each package by its least demanding wheel."""
    needed = {}
    for name, _, _, tags in map(parse_wheel_filename, re.findall(r"# (\S+\.whl)$", lock.read_text(), re.MULTILINE)):
        for tag in tags:
            minor = re.match(r"manylinux_2_(\d+)_x86_64", tag.platform)
            key, older = (name, tag.interpreter), needed.get((name, tag.interpreter), 99)
            needed[key] = min(older, int(minor[1]) if minor else 17)
    return max(needed.values())


def test_the_oldest_glibc_is_that_of_the_locked_wheels(project):
    needed = max(needed_glibc(ROOT / "envs" / f"{name}.lock") for name in ("cpu", "gpu", "torch-cpu", "torch-cuda"))
    path = programs(project / "old", getconf=f"echo glibc 2.{needed - 1}")
    said = refusal(setup(project, "--cpu", PATH=path))
    assert f"glibc 2.{needed} or later" in said and f"glibc 2.{needed - 1}." in said and "envs/apptainer.def" in said
    assert not (project / ".venv").exists()
    path = programs(project / "new", getconf=f"echo glibc 2.{needed}", **NO_PYTHON)
    assert "Python 3.11" in refusal(setup(project, "--cpu", PATH=path, PYTHON=""))


def test_another_c_library(project):
    path = programs(project / "bin", getconf="exit 1")
    assert "without glibc" in refusal(setup(project, "--cpu", PATH=path))


def test_no_python_that_fits(project):
    path = programs(project / "bin", **NO_PYTHON)
    said = refusal(setup(project, "--cpu", PATH=path, PYTHON=""))
    assert "Python 3.11 or 3.12" in said and "PYTHON=" in said


def test_no_library_for_vllm_on_a_cpu(project):
    path = programs(project / "bin", python="case $2 in *libnuma*) exit 1 ;; esac")
    said = refusal(setup(project, "--cpu", PATH=path, PYTHON=str(project / "bin" / "python")))
    assert "libnuma.so.1" in said and "apt-get install libnuma1" in said
    assert "libnuma1" in image()["post"]


FULL = "echo head; echo /dev/x 9 9 1000000 9% /"  # what `df` prints


def test_a_disk_that_is_full(project):
    path = programs(project / "bin", df=FULL)
    assert "needs 4 GB" in refusal(setup(project, "--cpu", PATH=path, PYTHON=sys.executable))


def image():
    """Header and sections of the definition of the image, as Apptainer reads them: {key or section: its text}."""
    lines = [line for line in (ROOT / "envs" / "apptainer.def").read_text().splitlines() if line[:1] != "#"]
    head, *sections = re.split(r"^%", "\n".join(lines), flags=re.MULTILINE)
    read = dict(re.findall(r"^(\w+): (\S+)$", head, re.MULTILINE))
    return read | {name: re.sub(r"(?m)^ *#.*\n", "", text) for name, _, text in (s.partition("\n") for s in sections)}


def test_the_image_has_the_locked_environment(tmp_path):
    """Its files are what setup.sh reads: in a folder of these alone it comes as far as the size of the disk."""
    read = image()
    assert read.keys() == {"Bootstrap", "From", "files", "post", "environment"}
    copied = dict(line.split() for line in read["files"].strip().splitlines())
    assert copied.keys() == {*FILES, *FOLDERS}
    (folder,) = {folder.rstrip("/") for folder in copied.values()}
    subprocess.run(["cp", "-fLr", *(ROOT / name for name in copied), tmp_path], check=True)
    (command,) = re.findall(rf"^ *bash {folder}/(setup\.sh --gpu)$", read["post"], re.MULTILINE)
    path = programs(tmp_path / "bin", df=FULL)
    done = subprocess.run(
        ["bash", *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "PYTHON": sys.executable},
    )
    assert "needs 10 GB" in refusal(done)
    assert f"PATH={folder}/.venv/bin:" in read["environment"]


def test_the_image_has_a_python_of_the_locks():
    """Debian 12's, by its name, which setup.sh looks for; and a glibc that is no older than theirs."""
    read = image()
    assert (read["Bootstrap"], read["From"]) == ("docker", "debian:12")  # glibc 2.36, Python 3.11
    for python in (packages := set(re.findall(r"python[\d.]+", read["post"]))):
        assert python in (ROOT / "setup.sh").read_text()
        assert tuple(map(int, python.removeprefix("python").split("."))) in PYTHONS
    assert packages and needed_glibc(ROOT / "envs" / "gpu.lock") <= 36


@pytest.mark.slow
def test_no_package_index_at_all(project):
    said = refusal(setup(project, "--cpu", PYTHON=sys.executable, **NO_INDEX))
    assert "Connection refused" in said and "PIP_INDEX_URL" in said and "logs/setup.log" in said


def test_a_wheel_of_the_project_holds_what_it_needs(project, tmp_path):
    """Of files that are not Python: the toy bases, DeepSpeed's configuration."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", tmp_path / "wheel", project], check=True)
    (wheel,) = (tmp_path / "wheel").iterdir()
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("mrt/")}
    there = {str(file.relative_to(project)) for file in (project / "mrt").rglob("*") if file.is_file()}
    assert held == {name for name in there if "__pycache__" not in name}
    (tmp_path / "elsewhere").mkdir()
    zipfile.ZipFile(wheel).extractall(tmp_path / "elsewhere")
    code = "import mrt.config.load; from mrt.config.memory import zero_3; print(zero_3(), mrt.__file__)"
    said = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "elsewhere", capture_output=True, text=True)
    assert said.returncode == 0 and str(tmp_path / "elsewhere") in said.stdout, said.stderr


def imported(project, **environment):
    """torch's version, after importing everything from a folder that is not the project's."""
    return subprocess.run(
        [project / ".venv" / "bin" / "python", "-c", IMPORTS],
        cwd=project.parent,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    ).stdout.split()[-1]


@pytest.mark.slow
def test_what_has_no_wheel_is_built_with_the_locked_setuptools(tmp_path):
    """Without caches, as on a machine that never built it: setuptools 77.0.3 cannot build DeepSpeed."""
    lock, pip = str(ROOT / "envs" / "sources.lock"), [sys.executable, "-m", "pip"]
    done = subprocess.run(
        [*pip, "wheel", "--no-cache-dir", "--no-deps", "--no-build-isolation", "-r", lock, "--wheel-dir", tmp_path],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    if done.returncode and re.search("name resolution|Connection refused|No matching distribution", done.stderr):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {wheel.name.split("-")[0] for wheel in tmp_path.iterdir()} == {"connection_pool", "deepspeed"}


@pytest.mark.setup
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_an_ordinary_index_gives_an_environment_that_imports(project, kind):
    done = setup(project, f"--{kind}", **INDEX_ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert imported(project).startswith("2.13.0")
    assert "up to date" in setup(project, f"--{kind}", **INDEX_ALONE).stdout


@pytest.mark.setup
def test_pytorchs_own_index_gives_the_cpu_build(project, tmp_path):
    """A local substitute for it, with the wheel that pip can get here."""
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("openssl"):
        pytest.skip("a stand-in for PyTorch's index takes root, unshare and openssl")
    lock = (ROOT / "envs" / "torch-cpu.lock").read_text()
    files = tmp_path / "served" / "whl" / "cpu" / "torch"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(files),
        "torch==2.13.0+cpu",
    ]
    if subprocess.run(command).returncode:
        pytest.skip("pip has no CPU build of torch here")
    (wheel,) = files.iterdir()
    assert wheel.name in lock
    (files / "index.html").write_text(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>')
    asked = ["pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path), "uv"]
    subprocess.run([sys.executable, "-m", *asked], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "uv")], check=True)
    subprocess.run([tmp_path / "uv" / "bin" / "pip", "install", "--quiet", *tmp_path.glob("uv-*.whl")], check=True)
    host = host_of_pytorchs_index(tmp_path / "uv")
    certificates = certify(tmp_path, host)
    server = HTTPServer(("127.0.0.1", 443), partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {host}\n" + Path("/etc/hosts").read_text())
    inside = ["unshare", "--mount", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"]
    try:
        cache = str(tmp_path / "cache")
        done = setup(project, "--cpu", before=inside, SSL_CERT_FILE=certificates, UV_CACHE_DIR=cache, **INDEX_ALONE)
    finally:
        server.shutdown()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CUDA" not in done.stdout and imported(project) == "2.13.0+cpu"


def host_of_pytorchs_index(venv):
    """The host from which uv gets CPU builds; uv knows it, and this project names none."""
    command = [venv / "bin" / "uv", "pip", "install", "--verbose", "--dry-run", "--offline", "--torch-backend", "cpu"]
    asked = subprocess.run(
        [*command, "torch==2.13.0"], capture_output=True, text=True, env={**os.environ, "VIRTUAL_ENV": str(venv)}
    )
    found = re.search(r"https://([\w.-]+)/whl/cpu", asked.stderr)
    assert found, asked.stderr
    return found[1]


def certify(folder, host):
    """A certificate for the host, by a new authority; the file of trusted authorities, this one included."""
    openssl = partial(subprocess.run, check=True, capture_output=True, cwd=folder)
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj"]
    openssl([*new, "/CN=a test's authority", "-x509", "-days", "2", "-keyout", "own.key", "-out", "own.pem"])
    openssl([*new, f"/CN={host}", "-keyout", "server.key", "-out", "server.csr"])
    (folder / "names").write_text(f"subjectAltName=DNS:{host}\n")
    sign = ["openssl", "x509", "-req", "-in", "server.csr", "-CA", "own.pem", "-CAkey", "own.key", "-CAcreateserial"]
    openssl([*sign, "-days", "2", "-extfile", "names", "-out", "server.pem"])
    usual = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    (folder / "trusted.pem").write_text(Path(usual).read_text() + (folder / "own.pem").read_text())
    return str(folder / "trusted.pem")
