"""Folders and files with blanks, quotes, umlauts: nothing from a configuration reaches a shell unquoted."""

import json
import re
import shlex
import shutil

import pytest
import yaml
from conftest import ROOT, TOY_BASE, checkout, snakemake

RESULTS, MODEL, FILE = 'results of mine\'s; $HOME/über "x" & `y`', "weights o'mine é", "problems of 'mine' #1.jsonl"


def project(tmp_path):
    folder = tmp_path / "a checkout of o'neil's"
    folder.mkdir()
    checkout(folder)
    problems = [{"problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(4)]
    thoughts = [f"<think>\n{i} twice.\n</think>\n\nIt is \\boxed{{{2 * i}}}." for i in range(4)]
    traces = [{"problem_id": f"test-{i}", "text": text} for i, text in enumerate(thoughts)]
    others = [{"problem": f"What is {i} times {i}?", "answer": str(i * i)} for i in range(4)]
    for name, rows in ((FILE, problems), (f"others of {FILE}", others), (f"traces of {FILE}", traces)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.slow
def test_an_experiment_runs_whatever_its_files_are_called(tmp_path):
    folder = project(tmp_path)
    config = {
        "results": RESULTS,
        "problems": {
            "test": {"file": FILE, "split": "test"},
            "other": {"file": f"others of {FILE}", "disjoint_from": ["test"]},
        },
        "models": {"them": {"label": "Théirs & 'ours'", "rollouts": {"file": f"traces of {FILE}"}}},
        "evaluation": {"problems": ["test"], "models": ["them"], "measures": ["accuracy", "episodes"]},
    }
    (folder / "mine's.yaml").write_text(yaml.safe_dump(config))
    snakemake(folder, "--cores", "2", "all", f"{RESULTS}/problems/other.parquet", "--configfile", "mine's.yaml")
    table = (folder / RESULTS / "tables" / "pass1.md").read_text()
    assert "Théirs & 'ours'" in table and "100.0" in table
    assert (folder / RESULTS / "figures" / "episode_counts.png").stat().st_size > 1000
    assert (folder / RESULTS / "problems" / "other.parquet").exists()
    assert (folder / RESULTS / "traces.html").stat().st_size > 10_000


def told(word):
    """A word of a command, or the texts in it if it is JSON."""
    try:
        found = json.loads(word)
    except ValueError:
        return [word]
    if isinstance(found, dict):
        return [text for value in found.values() for text in told(json.dumps(value))]
    return [text for value in found for text in told(json.dumps(value))] if isinstance(found, list) else [str(found)]


def test_every_command_names_its_files_whole(tmp_path):
    """Of all rules of the tiny experiment, as a dry run prints them."""
    folder = project(tmp_path)
    shutil.copytree(TOY_BASE, folder / MODEL)
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    raw["results"] = RESULTS
    raw["models"]["base"] = {"label": "Base", "path": MODEL}
    (folder / "mine.yaml").write_text(yaml.safe_dump(raw))
    said = snakemake(folder, "-n", "-p", "--configfile", "mine.yaml")
    commands = re.findall(r"^Shell command: (.*?)\n\n", said.stdout + said.stderr, re.MULTILINE | re.DOTALL)
    assert len(commands) > 50
    for command in commands:
        words = [word for found in shlex.split(command) for word in told(found)]
        for name, begins in ((RESULTS, "results of mine"), (MODEL, "weights o")):
            spellings = {name, json.dumps(name)[1:-1]}  # as a path, or in JSON
            assert not [w for w in words if begins in w and not any(n in w for n in spellings)], command
    assert any(MODEL in told(word) for command in commands for word in shlex.split(command))


def test_braces_in_a_results_folder_are_refused(tmp_path):
    folder = project(tmp_path)
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text()) | {"results": "results/{mine}"}
    (folder / "mine.yaml").write_text(yaml.safe_dump(raw))
    said = snakemake(folder, "-n", "--configfile", "mine.yaml", check=False)
    assert said.returncode and "results: braces are Snakemake's" in said.stdout + said.stderr
