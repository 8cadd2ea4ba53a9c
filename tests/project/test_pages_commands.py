"""Commands of the pages: `commands.toml` has a test, a dry run or the needs of each.

`python tests/project/test_pages_commands.py` prints all commands, each with the pages that show it.
"""

import re
import shlex
import shutil
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, checkout, slow_case, snakemake, thorough_case
from markdown_it import MarkdownIt

LISTED = tomllib.loads(Path(__file__).with_name("commands.toml").read_text())
NEEDS, LACKS = ([*chain.from_iterable(LISTED[kind].values())] for kind in ("needs", "lacks"))
PATTERNS = [*LISTED["plan"], *LISTED["test"], *NEEDS, *LACKS]
FRONTS = [ROOT / "README.md", ROOT / "config" / "README.md"]
PAGES = [*FRONTS, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "experiments").glob("*/README.md"))]


def commands_in(markdown: str) -> Iterator[str]:
    """The commands of a page's blocks of shell, quotes and comments removed, without `source` and `export`."""
    for token in MarkdownIt().parse(markdown):
        if token.info.split()[:1] not in (["sh"], ["bash"]) or token.content.startswith("#!"):  # a file
            continue
        text = ""
        for line in token.content.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(text := f"{text}\n{line}", comments=True)
            except ValueError:  # an open quotation mark
                continue
            text = ""
            for command in re.split(r" && ", " ".join(" ".join(words).split())):
                command = re.sub(r"^(?:python -m )?(?=mrt )", "", command.removeprefix(".venv/bin/"))
                if command and not command.startswith(("source ", "export ")):
                    yield command
        assert not text, f"an open quotation mark: {text}"


def all_commands() -> dict[str, list[str]]:
    """Each command with the pages that show it."""
    pages = defaultdict(list)
    for page in PAGES:
        for command in commands_in(page.read_text()):
            pages[command].append(str(page.relative_to(ROOT)))
    return dict(pages)


COMMANDS = all_commands()


def planned(patterns: list[str]) -> list[str]:
    """The commands of Snakemake among those of some patterns; those that differ only in jobs and profile once."""
    matches = (c for c in COMMANDS if c.startswith("snakemake ") and any(fnmatchcase(c, p) for p in patterns))
    return [*{" ".join(arguments(command)): command for command in matches}.values()]


def arguments(command: str) -> list[str]:
    """The arguments of a dry run: targets and configuration files."""
    return re.sub(r" -[nq]\b| --cores \d+| --profile \S+", "", command).split()[1:]


@pytest.mark.fast
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_listed_once(command):
    matches = [pattern for pattern in PATTERNS if fnmatchcase(command, pattern)]
    assert len(matches) == 1, f"{COMMANDS[command]}: {command!r} is listed {len(matches)} times in commands.toml"


@pytest.mark.fast
def test_what_is_listed_is_on_a_page():
    assert [p for p in PATTERNS if not any(fnmatchcase(command, p) for command in COMMANDS)] == []


@pytest.mark.fast
@pytest.mark.parametrize("place", sorted(set(LISTED["test"].values())))
def test_a_listed_test_exists(place):
    file, _, name = place.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text() if name else (ROOT / file).is_file()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkout with the configurations that the pages show by name."""
    folder = checkout(tmp_path_factory.mktemp("pages"))
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "tiny.yaml", folder / "tests")
    for page in PAGES:
        for name, text in re.findall(r"^```yaml\n# (\w+\.yaml)(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            (folder / name).write_text(f"# {name}{text}")
    return folder


def later(command: str) -> Any:
    """A command that the second tier plans, or the third one if it is of an experiment."""
    return (thorough_case if "experiments/" in command else slow_case)(command)


@pytest.mark.parametrize("command", [*planned(LISTED["plan"]), *map(later, planned(NEEDS))])
def test_a_command_is_planned(command, folder):
    printed = snakemake(folder, *arguments(command), "-n", "--quiet", "rules").stdout
    assert re.search(r"^total +\d+$", printed, re.MULTILINE)


@pytest.mark.fast
def test_commands_are_read_as_a_shell_reads_them():
    page = "```sh\nsource x\nbash a && .venv/bin/b  # c\nd \\\n  e\n.venv/bin/python -m mrt f 'g\nh'\n```\n"
    page += "```\ni\n```\n```sh\n#!/bin/sh\nj\n```\n"
    assert [*commands_in(page)] == ["bash a", "b", "d e", "mrt f g h"]


if __name__ == "__main__":
    for command, pages in sorted(COMMANDS.items()):
        print(f"{command}\n    {', '.join(dict.fromkeys(pages))}")
