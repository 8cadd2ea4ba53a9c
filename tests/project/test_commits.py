"""Every commit that a page cites is one of this repository's history."""

import re
import subprocess

import pytest
from conftest import ROOT

CITED = re.compile(r"\b(?:(?<=commit )[0-9a-f]{7,40}|(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,12})\b")
PAGES = [
    *ROOT.glob("*.md"),
    *(page for name in ("docs", "experiments", "benchmarks") for page in (ROOT / name).rglob("*.md")),
]


def cited(text):
    """Commits that a text cites: hexadecimal names of 7 to 12 digits, or any after the word."""
    return set(CITED.findall(text))


def test_citations_are_found():
    digest, revision = "0d4ffdc599927cca", "0cb88a4f764b7a12671c53f0838cd831a0843b95"
    text = f"At commit 4130343, as of a28cb18 (cd4e676); digest {digest}, revision {revision}, 1234567 tokens, effaced."
    assert cited(text) == {"4130343", "a28cb18", "cd4e676"}
    assert cited(f"commit {revision}") == {revision}


def test_every_commit_that_a_page_cites_exists():
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if shallow.returncode or shallow.stdout.strip() != "false":
        pytest.skip("the history is not here")
    history = subprocess.run([*git, "rev-list", "HEAD"], capture_output=True, text=True, check=True).stdout.split()
    wrong = {}
    for page in PAGES:
        for name in cited(page.read_text()):
            if not any(commit.startswith(name) for commit in history):
                wrong.setdefault(str(page.relative_to(ROOT)), []).append(name)
    assert wrong == {}
