"""The thought of docs/method.md: its numbers on the pages are those that the package computes."""

import importlib.util
import json

import pytest
from conftest import ROOT

from mrt.progress import cumulative_regret

EXAMPLES = ROOT / "docs" / "examples"
METHOD, LIKELIHOOD = ((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("method.md", "likelihood.md"))


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("one_thought", EXAMPLES / "one_thought.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example():
    return json.loads((EXAMPLES / "one_thought.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def measured(script, example):
    return script.measured(example)


def test_the_pages_show_the_tables_of_the_script(script, measured):
    along, regrets, both, _ = "\n".join(script.tables(measured)).split("\n\n")
    assert along in METHOD and regrets in METHOD and both in LIKELIHOOD


def test_the_page_sums_regret_and_progress(script, measured):
    losses = " + ".join(f"{1 - J:.2f}" for J in measured.J[:-1])
    assert f"{losses} = {cumulative_regret(measured.J[:-1]):.2f}." in METHOD
    prefix, gain = script.kept(measured)
    assert f"The candidate of the example is $z_{{0:{prefix}}}$, with a cumulative progress of {gain:.2f}." in METHOD


def test_the_page_shows_the_end_of_the_text_that_is_learnt(script, example, measured):
    (end,) = METHOD.partition("The text to learn ends:\n\n```text\n")[2].split("\n```")[:1]
    assert script.learnt(example, measured).endswith(end) and "Time is up" not in script.learnt(example, measured)
    assert f"> {example['problem']}\n" in METHOD


def test_an_answer_at_the_whole_thought_costs_the_tokens_of_the_completion(script, example, measured):
    """All answers there are alike, and equal to the completion's."""
    tokenizer, _ = script.toy()
    assert measured.tokens[-1] == len(tokenizer(example["completion"])["input_ids"]) + 1
    assert "".join(measured.episodes) == example["completion"].partition("</think>")[0]


def test_the_figure_is_drawn(script, measured, tmp_path, monkeypatch):
    assert script.FIGURE.is_file() and f"](images/{script.FIGURE.name})" in METHOD
    monkeypatch.setattr(script, "FIGURE", tmp_path / "figure.svg")
    script.draw(measured)
    assert "<svg" in (tmp_path / "figure.svg").read_text()
