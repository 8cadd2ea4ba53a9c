"""Fingerprints of stages, kept between starts of Snakemake.

To search the code that all stages reach takes a second, and every job on a cluster starts another Snakemake. So the
results are kept in a file whose name is a digest of the package's sources: after any change, the search is repeated.
"""

import json
import sys
from pathlib import Path

from mrt.core.digest import digest
from mrt.core.fingerprint import hash_of, reached
from mrt.core.scope import PACKAGE
from mrt.core.storage import write_text

MOST = 8  # files, each of a state of the code


class Fingerprints:
    """Fingerprints of stages; their parts are kept in a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / f"{sources()}.json"
        try:
            rows = json.loads(self.file.read_text())
            self.known = {name: (hashed, used) for name, hashed, used in rows if not is_user_file(name)}
        except (OSError, ValueError):  # not there, or broken
            self.known = {}

    def of(self, stage: str, *plugins: str, with_versions: bool) -> str:
        """As `mrt.core.fingerprint.fingerprint`. Raises ValueError as that does."""
        name = " ".join((stage, *plugins))
        if name not in self.known:
            closure = reached(stage, *plugins)
            self.known[name] = (closure.hashed, list(closure.libraries))
            self.write(self.file)
            for old in sorted(self.file.parent.glob("*.json"), key=age)[MOST:]:
                old.unlink(missing_ok=True)
        hashed, libraries = self.known[name]
        return hash_of(hashed, libraries if with_versions else ())

    def write(self, file: Path) -> None:
        write_text(json.dumps([(name, *kept) for name, kept in self.known.items()]), file)


def is_user_file(name: str) -> bool:
    """Whether a stage is or loads a file of a user's: none of the package's sources, it is searched each time."""
    return ".py:" in name or name.endswith(".py")


def age(file: Path) -> float:
    """Seconds since a file was written, less some constant; the largest if it is gone."""
    try:
        return -file.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def sources() -> str:
    """Digest of the package's sources, and of the Python that parses them."""
    files = sorted(PACKAGE.rglob("*.py"))
    return digest(sys.version, *(part for f in files for part in (f.relative_to(PACKAGE).as_posix(), f.read_bytes())))
