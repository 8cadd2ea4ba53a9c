"""Lock the environments by hash: each `envs/NAME.in` becomes `envs/NAME.lock`, or `envs/NAME.yaml` for conda.

    python envs/lock.py     needs uv, pip and packaging; resolves for Linux x86-64, downloads no package

| file | what | installed by |
|---|---|---|
| `cpu.lock`, `gpu.lock` | everything, with tools and tests; `cpu.lock` without torch | `setup.sh` |
| `torch-cpu.lock` | torch's CPU build; written by hand, since only PyTorch's own index has it | `setup.sh --cpu` |
| `torch-cuda.lock` | torch's CUDA build, where the CPU build cannot be had | `setup.sh --cpu` |
| `sources.lock` | what the package index has as source only | `setup.sh` |
| `uv.lock` | the installer | `setup.sh` |
| `analysis.yaml`, `sampling.yaml`, `training.yaml` | what a cluster's nodes of each kind need | conda |
| `declared.json` | what the packages that `cpu.lock` lacks declare to need (`tests/project/test_envs.py`) | - |

All are for Linux x86-64 with glibc 2.31 or later (Debian 11, Ubuntu 20.04, RHEL 9) and for Python 3.11 and 3.12, those
for conda for Python 3.11. Each pin names the wheels that its hashes belong to.
Versions stay those of the locks that are there; delete a pin, or change it in the `.in` file, to have another.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

GLIBC = 31  # 2.31
PYTHONS = ((3, 11), (3, 12))
HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
PIN = re.compile(r"^(?: +- )?([A-Za-z0-9_.-]+)==([^\s\\]+)", re.MULTILINE)


class Pin(NamedTuple):
    """A package at a version, with the hash of each of its files."""

    name: str
    version: str
    files: dict[str, str]

    @property
    def source(self) -> bool:
        return not any(file.endswith(".whl") for file in self.files)

    def lines(self) -> list[str]:
        """Its lines in a lock: the files' names as comments, then the pin."""
        hashes = sorted(f"--hash=sha256:{digest}" for digest in self.files.values())
        return [*(f"# {file}" for file in sorted(self.files)), " ".join([f"{self.name}=={self.version}", *hashes])]


def fitting(python: tuple[int, int]) -> set[Tag]:
    """Tags of the wheels that a Python on the platform takes."""
    glibc = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)]
    platforms = [*glibc, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    return {*cpython_tags(python, platforms=platforms), *compatible_tags(python, platforms=platforms)}


def resolved(name: str, python: tuple[int, int], versions: dict[str, str]) -> list[Pin]:
    """The packages that `envs/NAME.in` comes to, at these versions where it admits them."""
    options = ["--python-version", ".".join(map(str, python)), "--python-platform", f"x86_64-manylinux_2_{GLIBC}"]
    if (overrides := HERE / f"{name}-overrides.txt").is_file():
        options += ["--override", str(overrides)]
    command = ["uv", "pip", "compile", "--quiet", str(HERE / f"{name}.in"), *options]
    with tempfile.TemporaryDirectory() as folder:
        chosen, lock = Path(folder) / "versions.txt", Path(folder) / "pylock.toml"
        chosen.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        for output in ([], ["--constraint", str(chosen), "--format", "pylock.toml"]):  # uv prefers what it finds there
            output += ["--output-file", str(lock if output else chosen)]
            subprocess.run([*command, *output], check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        packages = tomllib.loads(lock.read_text())["packages"]
    tags = fitting(python)
    pins = []
    for package in packages:
        wheels = {w["url"].rsplit("/", 1)[1]: w["hashes"]["sha256"] for w in package.get("wheels", [])}
        files = {name: digest for name, digest in wheels.items() if parse_wheel_filename(name)[3] & tags}
        if wheels and not files:
            sys.exit(f"{name}.in: no wheel of {package['name']} {package['version']} fits Python {python}")
        sdist = package.get("sdist", {})
        files = files or {sdist["url"].rsplit("/", 1)[1]: sdist["hashes"]["sha256"]}
        pins.append(Pin(canonicalize_name(package["name"]), package["version"], files))
    return pins


def locked(name: str, pythons: Iterable[tuple[int, int]], versions: dict[str, str]) -> list[Pin]:
    """The pins of `envs/NAME.in` for all these Pythons, which take the same versions."""
    found: dict[str, Pin] = {}
    for python in pythons:
        for pin in resolved(name, python, versions):
            same = found.setdefault(pin.name, pin)
            if same.version != pin.version:
                sys.exit(f"{name}.in: Python {python} takes {pin.name} {pin.version}, another takes {same.version}")
            same.files.update(pin.files)
            versions = {**versions, pin.name: pin.version}
    return sorted(found.values())


def versions_in(*files: str) -> dict[str, str]:
    """The versions that locks pin; of the first that names a package."""
    texts = [(HERE / file).read_text() for file in files if (HERE / file).is_file()]
    pins = [pin for text in reversed(texts) for pin in PIN.findall(text)]
    return {canonicalize_name(name): version for name, version in pins if "+" not in version}


def write(file: str, head: str, pins: Collection[Pin], indent: str = "", item: str = "") -> None:
    """A lock: for pip, or with `indent` and `item` for conda."""
    lines = [f"{indent}{'' if line.startswith('#') else item}{line}" for pin in pins for line in pin.lines()]
    (HERE / file).write_text("\n".join([head, *lines, ""]))
    print(f"{file}: {len(pins)} packages")


def declared(pins: Iterable[Pin]) -> dict[str, list[str]]:
    """What each package declares to need: the metadata that the package index has beside its wheel."""
    names = [f"{pin.name}==={pin.version}" for pin in pins]  # "==2.13.0" would admit 2.13.0+cpu
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--quiet", "--report", "-"]
    command = [sys.executable, "-m", "pip", "install", *options, *names]
    report = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=ENVIRONMENT).stdout if names else b"{}"
    packages = [package["metadata"] for package in json.loads(report).get("install", ())]
    return {f"{canonicalize_name(p['name'])}=={p['version']}": sorted(p.get("requires_dist", ())) for p in packages}


def main() -> None:
    written = "Written by envs/lock.py"
    sources: dict[str, Pin] = {}
    versions = versions_in("cpu.lock", "torch-cuda.lock")
    whole = locked("cpu", PYTHONS, versions)
    versions |= {pin.name: pin.version for pin in whole}
    torch = needed_by_torch(whole)
    without_triton = [pin for pin in torch.values() if pin.name != "triton"]  # compiles for GPUs; a gigabyte
    gpu = locked("gpu", PYTHONS, {**versions_in("gpu.lock"), **versions})
    sources |= {pin.name: pin for pin in (*whole, *gpu) if pin.source}
    for name, about, pins in (
        ("cpu", "Everything but torch, on a machine without a GPU", [p for p in whole if p.name not in torch]),
        ("torch-cuda", "torch's CUDA build with its libraries, where its CPU build cannot be had", without_triton),
        ("gpu", "Everything, on a machine with an NVIDIA GPU", gpu),
        ("uv", "The installer", locked("uv", PYTHONS, versions_in("uv.lock"))),
    ):
        head = f"# {about}: for Python 3.11 and 3.12 on Linux x86-64. {written}."
        write(f"{name}.lock", head, [pin for pin in pins if not pin.source])
    about = "# What has no wheel in the package index: pure Python, built with the setuptools of the other locks."
    write("sources.lock", f"{about}\n# {written}.", sorted(sources.values()))
    others = [list(torch.values()), gpu]
    for name in ("analysis", "sampling", "training"):
        about, *_ = (HERE / f"{name}.in").read_text().splitlines()
        head = f"{about}\n# {written} from {name}.in; do not edit.\nchannels: [conda-forge, nodefaults]\n"
        head += "dependencies:\n  - python=3.11\n  - pip=25\n  - pip:"
        pins = locked(name, PYTHONS[:1], {pin.name: pin.version for pin in gpu})
        others.append(pins)
        write(f"{name}.yaml", head, pins, " " * 6, "- ")
    ranges: dict[str, list[str]] = {}
    known = {(pin.name, pin.version) for pin in whole if pin.name not in torch}  # by cpu.lock
    for lock in others:
        ranges |= declared(pin for pin in lock if (pin.name, pin.version) not in known)
        known |= {(pin.name, pin.version) for pin in lock}
    (HERE / "declared.json").write_text(json.dumps(ranges, indent=1, sort_keys=True) + "\n")
    print(f"declared.json: {len(ranges)} packages")


def needed_by_torch(whole: Iterable[Pin]) -> dict[str, Pin]:
    """torch, and what only its CUDA build asks for: NVIDIA's libraries, and Triton."""
    return {pin.name: pin for pin in whole if re.match(r"torch$|triton$|nvidia-|cuda-", pin.name)}


if __name__ == "__main__":
    main()
