"""Lock the environments of a cluster's nodes: each `envs/KIND.in` becomes `envs/KIND.yaml`, all of it pinned by hash.

    python envs/lock.py     needs uv and packaging; resolves for Python 3.11 on Linux x86-64, downloads no package

Conda makes Python and pip, pip the rest, from what is written here alone. Of a package's files those are named that fit
this Python and platform, and its source where there is none.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

PYTHON, GLIBC = (3, 11), 28
HERE = Path(__file__).parent


def fitting() -> set[object]:
    """Tags of the wheels that the Python and the platform take."""
    glibc = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)]
    platforms = [*glibc, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    return {*cpython_tags(PYTHON, platforms=platforms), *compatible_tags(PYTHON, platforms=platforms)}


def resolved(requirements: Path) -> list[dict]:
    """The packages that requirements come to, with their files."""
    version = ".".join(map(str, PYTHON))
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "pylock.toml"
        options = ["--python-version", version, "--python-platform", f"x86_64-manylinux_2_{GLIBC}"]
        command = ["uv", "pip", "compile", str(requirements), *options, "--format", "pylock.toml", "-o", str(lock)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return tomllib.loads(lock.read_text())["packages"]


def pinned(package: dict, tags: set[object]) -> str:
    """A line for pip: a package, its version, and the hashes of its files that fit."""
    wheels = [w for w in package.get("wheels", []) if parse_wheel_filename(w["url"].rsplit("/", 1)[1])[3] & tags]
    hashes = sorted(f["hashes"]["sha256"] for f in wheels or [package["sdist"]])
    return f"{package['name']}=={package['version']} " + " ".join(f"--hash=sha256:{h}" for h in hashes)


def main() -> None:
    tags = fitting()
    for requirements in sorted(HERE.glob("*.in")):
        about, *_ = requirements.read_text().splitlines()
        lines = [pinned(package, tags) for package in resolved(requirements)]
        head = f"{about}\n# Written by envs/lock.py from {requirements.name}; do not edit.\n"
        head += "channels: [conda-forge, nodefaults]\ndependencies:\n  - python=3.11\n  - pip=25\n  - pip:\n"
        path = requirements.with_suffix(".yaml")
        path.write_text(head + "".join(f"      - {line}\n" for line in lines))
        print(f"{path.name}: {len(lines)} packages")


if __name__ == "__main__":
    sys.exit(main())
