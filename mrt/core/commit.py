"""The commit of the code, and today's date: for pages and cards, as tables hold neither."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path


def today() -> str:
    """Today's date, in UTC."""
    return f"{datetime.now(UTC):%d %B %Y}"


def git(folder: Path, *command: str) -> str:
    """The output of a command of git in a folder; empty if it fails."""
    done = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def short_commit(folder: Path) -> str:
    """The abbreviated commit of the code in a folder; empty without one."""
    return git(folder, "rev-parse", "--short", "HEAD")


def commit_of(folder: Path) -> str:
    """The commit of the code in a folder, in words."""
    commit, changed = short_commit(folder), git(folder, "status", "--porcelain", "--untracked-files=no")
    edited = ", with changes that are not committed" if changed else ""
    return f"commit {commit} of the code{edited}" if commit else "code without a commit"
