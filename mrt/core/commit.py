"""The commit of the code, and today's date: for pages and cards, as tables hold neither."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path


def today() -> str:
    """Today's date, in UTC."""
    return f"{datetime.now(UTC):%d %B %Y}"


def commit_of(folder: Path) -> str:
    """The commit of the code in a folder, in words."""
    git = ["git", "-C", str(folder)]
    commit, changed = (
        subprocess.run([*git, *command], capture_output=True, text=True, check=False)
        for command in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    )
    edited = ", with changes that are not committed" if changed.stdout else ""
    return f"commit {commit.stdout.strip()} of the code{edited}" if commit.returncode == 0 else "code without a commit"
