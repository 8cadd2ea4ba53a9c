"""Progress along real thoughts: the page shows the output of its script, and the curves are of whole traces."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, SHARED, needs_shared

from mrt.analysis.regret import normalized_regret

SCRIPT = ROOT / "docs" / "examples" / "prefix_accuracy.py"


def tables(text):
    return [line for line in text.splitlines() if line.startswith("|")]


@needs_shared
def test_the_page_shows_what_the_script_prints(tmp_path):
    command = [sys.executable, str(SCRIPT), str(SHARED / "traces"), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "POLARS_MAX_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    page = (ROOT / "experiments" / "real_traces" / "results.md").read_text(encoding="utf-8")
    assert tables(done.stdout) and tables(done.stdout) == tables(page)
    assert (tmp_path / "real_prefix_accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert (ROOT / "docs" / "images" / "real_prefix_accuracy.png").is_file()


@pytest.fixture(scope="module")
def curves():
    spec = importlib.util.spec_from_file_location("prefix_accuracy", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    traces, rows = (
        [json.loads(line) for line in (SHARED / "traces" / f"{name}.jsonl").open(encoding="utf-8")]
        for name in ("reasoning_traces", "prefix_accuracy")
    )
    text = {trace["source"]: trace["text"] for trace in traces}
    return [script.place(row, text[row["source"].replace("chunks_labeled", "base_solution")]) for row in rows]


@needs_shared
def test_curves_are_of_whole_traces_in_order(curves):
    assert len(curves) == 24
    for curve in curves:
        assert np.all(np.diff(curve.start) > 0) and np.all(np.diff(curve.at) >= 0)
        huge = normalized_regret(curve.start, curve.J, 10**6)
        assert huge == pytest.approx(1 - curve.J[-1], abs=0.02)  # a huge budget leaves the last J
