"""The command line of stages: what --help begins with, and options that are too long for an argument."""

import json
import subprocess
import sys

from conftest import ROOT, python


def test_a_stages_own_options_come_first():
    shown = python("-m", "mrt.analysis.progress", "--help")
    assert shown.index("--prover Path") < shown.index("--grades Path") < shown.index("--settings dict")


def test_options_come_from_standard_input_and_the_command_stands_in_the_log(tmp_path):
    told = {"files": {}, "config": {"text": "x" * 200_000}}  # more than an argument may hold
    command = [sys.executable, "-m", "mrt.figures.provenance", "--settings", "-", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(told), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "x" * 200_000 in (tmp_path / "out.md").read_text()
    assert done.stdout.startswith('python -m mrt.figures.provenance --settings \'{"files": {}, ')
    command[-3:-2] = [json.dumps(told | {"config": {}})]
    by_hand = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert by_hand.returncode == 0, by_hand.stderr


def test_a_key_that_stands_twice_in_an_option_is_an_error(tmp_path):
    options = ["--set", '{"toy": {"count": 3, "count": 4}}', "--out", str(tmp_path / "out.parquet")]
    command = [sys.executable, "-m", "mrt.problems.build", "--name", "toy", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "mrt.problems.build: the key 'count' stands twice; keep one of them\n"
    assert not (tmp_path / "out.parquet").exists()
