"""The page of traces shows the content of the tables, within its size."""

import gzip
import json
import math
import re
import subprocess
import sys
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from shutil import copytree

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import backtracking, results, training_set, tree

from mrt.core.artifacts import ANSWER_GRADES, GRADES, PROGRESS, PROVER, ROLLOUTS
from mrt.episodes.parameterization import Backtracking
from mrt.figures.style import Appearance, ModelStyle
from mrt.problems.sources import prefix_accuracy
from mrt.traces import page
from mrt.traces.page import (
    Folder,
    align_chunks,
    attempts_of,
    fitting,
    kinds,
    split_completion,
    summary,
    traces_of,
    with_bounds,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return results(tmp_path_factory.mktemp("results") / "made")


def make(folder, *options, out):
    done = subprocess.run(
        [sys.executable, "-m", "mrt", "traces", str(folder), "--out", str(out), *options],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def unpacked(file):
    blocks = re.findall(r'<script type="text/plain" id="(\w+)">([\w+/=]*)</script>', file.read_text())
    return {name: json.loads(gzip.decompress(b64decode(content))) for name, content in blocks}


@given(st.text(), st.lists(st.text(min_size=1), max_size=4), st.text())
def test_a_completion_is_taken_apart_without_loss(before, episodes, after):
    text = before + "".join(episodes) + after
    first, found, rest = split_completion(text, episodes)
    assert first + "".join(found) + rest == text and found in ([], episodes)


def test_traces_are_those_of_the_tables(folder):
    found = traces_of(Folder(folder), "base", "toy")
    grades = GRADES.read(folder / "grades/base/toy.rollouts.parquet")
    progress = PROGRESS.read(folder / "progress/base/toy.parquet")
    answers = ANSWER_GRADES.read(folder / "grades/base/toy.prover.parquet")
    for row in ROLLOUTS.read(folder / "rollouts/base/toy.parquet").iter_rows(named=True):
        (trace,) = [t for t in found[row["problem_id"]] if t["sample"] == row["sample"]]
        assert trace["before"] + "".join(trace["episodes"]) + trace["after"] == row["text"]
        mine = (pl.col("problem_id") == row["problem_id"]) & (pl.col("sample") == row["sample"])
        assert trace["correct"] == grades.filter(mine)["correct"].item()
        rows = progress.filter(mine).sort("prefix")
        assert trace.get("J", []) == rows["J"].to_list() and trace.get("progress", []) == rows["progress"].to_list()
        for prefix, given_ in enumerate(trace.get("forced", [])):
            here = answers.filter(mine, prefix=prefix)
            assert sum(times for _, _, times, _, _ in given_) == here.height
            assert {(answer, right) for answer, right, *_ in given_} == set(
                here.select("answer", "correct").iter_rows()
            )
    of = {(t["tokens"], t["finish_reason"]) for its in found.values() for t in its}
    assert of == set(ROLLOUTS.read(folder / "rollouts/base/toy.parquet").select("tokens", "finish_reason").iter_rows())


def test_partial_credit_counts_in_the_list(folder, tmp_path):
    folder = copytree(folder, tmp_path / "results")
    path = folder / "grades/base/toy.rollouts.parquet"
    grades = GRADES.read(path)
    GRADES.write(grades.with_columns(pl.lit(0.9).alias("score"), correct=pl.lit(False)), path)
    for traces in traces_of(Folder(folder), "base", "toy").values():
        assert summary(traces)["accuracy"] == pytest.approx(0.9)


def test_mrt_keeps_the_prefix_of_most_progress_unless_a_set_says_otherwise(folder):
    for traces in traces_of(Folder(folder), "base", "toy").values():
        J = traces[0]["J"]
        best = max(range(1, len(J)), key=lambda j: (J[j], -j))
        assert traces[0]["kept"] == (best if J[best] > J[0] else None)
    training_set(folder, [1, 1])
    stage = page.Traces(results=folder, sets={"mrt_1": ("base", "toy")})
    cuts = stage.cuts(Folder(folder), "base", "toy")
    by_set = traces_of(Folder(folder), "base", "toy", cuts)
    assert [by_set[f"p/{i}?#"][0]["kept"] for i in range(3)] == [1, 1, None]
    assert stage.cuts(Folder(folder), "other", "toy") is None


def test_intervals_are_wilsons_where_J_is_a_share(folder):
    progress = PROGRESS.read(folder / "progress/base/toy.parquet")
    answers = ANSWER_GRADES.read(folder / "grades/base/toy.prover.parquet")
    rows = with_bounds(progress, answers)
    assert (rows["low"] <= rows["J"]).all() and (rows["high"] >= rows["J"]).all()
    none = rows.filter(pl.col("J") == 0)
    z2 = 1.96**2
    assert none["low"].to_list() == [0.0] * none.height and none["high"][0] == pytest.approx(z2 / (4 + z2))
    scored = progress.with_columns(pl.col("J") * 0.9 + 0.01)  # a probability, not a share
    assert with_bounds(scored, answers)["low"].null_count() == scored.height
    assert with_bounds(progress, None)["high"].null_count() == progress.height


def test_the_list_sorts_by_measures_of_the_traces():
    scored = {"J": [0.25, 1.0, 0.5], "progress": [None, 0.75, -0.5], "prefix_tokens": [0, 10, 40]}
    traces = [
        {"score": 1.0, "tokens": 50, "finish_reason": "stop", **scored},
        {"score": 0.0, "tokens": None, "finish_reason": "length"},
    ]
    assert summary(traces) == {
        "accuracy": 0.5, "tokens": 50.0, "gain": 0.75, "fall": 0.5, "late": 0.75, "truncated": 0.5,
    }  # fmt: skip
    unknown = summary([{"score": None, "tokens": None, "finish_reason": "unknown"}])
    assert unknown == dict.fromkeys(unknown)
    never = summary([{"score": 0.0, "tokens": 9, "finish_reason": "stop", **scored, "J": [0.0, 0.0, 0.0]}])
    assert never["late"] is None and never["fall"] == 0  # a trace that is never right has no over-thinking


def test_a_page_of_all_that_is_there(folder, tmp_path):
    said = make(folder, out=tmp_path / "all.html")
    assert "12 problems" in said
    blocks = unpacked(tmp_path / "all.html")
    index = blocks.pop("index")
    assert set(index["models"]) == {"base", "other"} and len(index["problems"]) == len(blocks) == 12
    first = index["problems"][0]
    rollouts = ROLLOUTS.read(folder / "rollouts/base/toy.parquet").filter(problem_id=first["id"])
    assert math.isclose(first["models"]["base"]["tokens"], rollouts["tokens"].mean())
    assert blocks[first["chunk"]]["answer"] == "0" and not index["note"]
    make(folder, out=tmp_path / "again.html")
    assert (tmp_path / "all.html").read_bytes() == (tmp_path / "again.html").read_bytes()


@pytest.mark.slow
def test_a_run_that_has_begun_has_a_page_too(folder, tmp_path):
    begun = results(tmp_path / "begun", models=("base",))
    for kind in ("progress", "prover", "grades", "episodes"):
        for file in (begun / kind).rglob("*.parquet"):
            file.unlink()
        make(begun, out=tmp_path / "page.html")
    (trace, *_) = unpacked(tmp_path / "page.html")["chunk1"]["traces"]["base"]
    assert trace["correct"] is None and trace["episodes"] == [] and "Try" in trace["after"]
    done = subprocess.run(
        [sys.executable, "-m", "mrt", "traces", str(tmp_path / "none")], capture_output=True, text=True
    )
    assert done.returncode == 1 and "no rollouts here yet" in done.stderr


def test_what_is_too_large_is_drawn_by_seed(folder, tmp_path):
    many = results(tmp_path / "many", problems=60)
    sizes = []
    for seed in ("0", "1"):
        said = make(
            many,
            "--megabytes",
            "0.74",
            "--seed",
            seed,
            "--excerpt",
            str(tmp_path / "small.html"),
            out=tmp_path / "page.html",
        )
        index = unpacked(tmp_path / "page.html")["index"]
        shown = len(index["problems"])
        assert (
            1 < shown < 60
            and index["note"] == f"{shown} of 60 problems, drawn by seed {seed}"
            and index["note"] in said
        )
        assert (tmp_path / "page.html").stat().st_size < 0.74e6
        assert len(unpacked(tmp_path / "small.html")["index"]["problems"]) == 60
        sizes.append([p["id"] for p in index["problems"]])
    assert sizes[0] != sizes[1]


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(0, 300), st.randoms(use_true_random=False))
def test_as_many_problems_are_shown_as_fit(sizes, room, random):
    order = random.sample(range(len(sizes)), len(sizes))
    shown = fitting(order, sizes, room)
    assert shown == sorted(order[: len(shown)]) and shown
    assert sum(sizes[i] for i in shown) <= room or len(shown) == 1
    assert len(shown) == len(sizes) or sum(sizes[i] for i in order[: len(shown) + 1]) > room


def test_only_the_named_tables_are_read(folder):
    only = [folder / "rollouts/base/toy.parquet", folder / "grades/base/toy.rollouts.parquet"]
    found = traces_of(Folder(folder, only), "base", "toy")
    assert all("J" not in t and not t["episodes"] for traces in found.values() for t in traces)
    assert set(Folder(folder).datasets()) == {"base", "other"}


def test_curves_measured_elsewhere_lie_along_the_right_trace(folder, tmp_path):
    thought = "One step. Another. And so on."
    chunks = [("One step.", 0.2), (" Another.", 0.4), ("Not there.", 0.5), ("And so on.", 0.9)]
    assert align_chunks("<think>\n" + thought, chunks) == ([8, 18, 27], [0.2, 0.4, 0.9])
    assert (
        align_chunks("<think>\nWell. " + thought, chunks)
        is align_chunks(thought, [])
        is align_chunks("", chunks)
        is None
    )
    assert align_chunks("One step. Then something else.", chunks) is None  # of another text that opens alike
    rollouts = ROLLOUTS.read(folder / "rollouts/base/toy.parquet")
    row = rollouts.filter(problem_id="p/2?#", sample=1).row(0, named=True)
    steps = [{"text": step, "accuracy": 0.5} for step in row["text"].removeprefix("<think>").split("\n\n")[:2]]
    file = tmp_path / "curves.jsonl"
    file.write_text(json.dumps({"problem_id": "p/2?#", "model": "Base/1B", "chunks": steps}) + "\n")
    make(folder, "--prefix_accuracy", str(file), "--named", '{"base": "Base/1B"}', out=tmp_path / "page.html")
    traces = unpacked(tmp_path / "page.html")["chunk2"]["traces"]
    assert [bool(t.get("measured")) for t in traces["base"]] == [False, True, False]
    assert not any("measured" in t for t in traces["other"])
    file.write_text('{"problem_id": 1}\n')
    with pytest.raises(ValueError, match=r"curves.jsonl, line 1: not a JSON object with problem_id, model and chunks"):
        prefix_accuracy(file)


def test_curves_measured_elsewhere_are_json_lines_of_shares(tmp_path):
    """A line ends at a line feed alone: a text may hold the other characters that end lines in Python."""
    file = tmp_path / "curves.jsonl"

    def write(*accuracies):
        rows = [
            {"problem_id": "p", "model": "m", "chunks": [{"text": "a\u2028b\x85c", "accuracy": a}]} for a in accuracies
        ]
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows) + "\n")

    write(0, 1)
    assert prefix_accuracy(file) == {("p", "m"): [[("a\u2028b\x85c", 0.0)], [("a\u2028b\x85c", 1.0)]]}
    for wrong in (math.nan, -0.1, 50):
        write(0.5, wrong)
        with pytest.raises(ValueError, match=rf"curves.jsonl, line 2: accuracy {float(wrong)} is not in \[0, 1\]"):
            prefix_accuracy(file)


def test_what_an_episode_of_backtracking_search_is(tmp_path):
    words = Backtracking()
    marker = words.marker + "\n\n"
    episodes = words.cut(f"Step 1: a\n\nAnswer: 1\n\n{marker}Step 2: b\n\nAnswer: 2\n\n{marker}Well.").episodes
    assert kinds(episodes, words) == ["attempt", "backtrack to Step 2", "revision from Step 2", "backtrack", "revision"]
    folder = results(tmp_path / "searched", problems=2, models=("base",))
    backtracking(folder)
    found = traces_of(Folder(folder), "search", "toy", backtracking=words)
    assert [t["kinds"] for t in found["p/0?#"]] == [["attempt", "backtrack to Step 1", "revision from Step 1"]]
    assert attempts_of(Folder(folder), "search", "toy")["p/1?#"] == [
        [["3", False, "\\boxed{3}"], ["2", True, "\\boxed{2}"]]
    ]
    assert attempts_of(Folder(folder), "base", "toy") == {}


def test_answers_that_were_read_off_are_not_shown_as_sampled(tmp_path):
    folder = results(tmp_path / "read", problems=2, models=("base",))
    path = folder / "prover/base/toy.parquet"
    PROVER.write(PROVER.read(path).with_columns(finish_reason=pl.lit("scored")), path)
    (trace, *others) = traces_of(Folder(folder), "base", "toy")["p/1?#"]
    assert trace["read"] and trace["forced"] == [[]] * len(trace["J"]) and set(trace["low"]) == {None}
    assert not any(other.get("read") for other in others)


def test_trees_are_shown(folder, tmp_path):
    own = results(tmp_path / "grown", problems=2, models=("base",))
    tree(own)
    make(own, out=tmp_path / "page.html")
    nodes = unpacked(tmp_path / "page.html")["chunk0"]["trees"]["base"]
    assert [node[:2] for node in nodes] == [[0, None], [1, 0], [2, 1]] and nodes[1][3] == 1.0


def test_bundled_libraries_are_the_pinned_ones():
    vendor = Path(page.__file__).parent / "vendor"
    pinned = dict(reversed(line.split()) for line in (vendor / "SHA256SUMS").read_text().splitlines())
    files = {str(p.relative_to(vendor)): p for p in vendor.rglob("*") if p.is_file() and p.name != "SHA256SUMS"}
    assert {name: sha256(path.read_bytes()).hexdigest() for name, path in files.items()} == pinned


def test_the_page_asks_nothing_of_the_network(folder, tmp_path):
    make(folder, out=tmp_path / "page.html")
    text = re.sub(r'<script type="text/plain".*?</script>', "", (tmp_path / "page.html").read_text())
    assert "default-src 'none'" in text and not re.search(r"""(src|href)=["']?https?:|url\((?!data:)|@import""", text)


def test_models_have_the_configurations_order_and_the_figures_colours(tmp_path):
    """Also by hand, while a run goes on: the run leaves in the results how the page will look."""
    from mrt.config.load import load
    from workflow.figures import Figures
    from workflow.paths import Paths
    from workflow.traces import TracesPage

    names = ["zeta", "mid", "alpha"]  # not in alphabetical order
    rows = [{"id": "p/0?#", "problem": "What is 1 + 2?", "answer": "3"}]
    toy, theirs, folder = tmp_path / "toy.jsonl", tmp_path / "theirs.jsonl", tmp_path / "made"
    toy.write_text("".join(json.dumps(row) + "\n" for row in rows))
    theirs.write_text(json.dumps({"problem_id": "p/0?#", "text": "It is \\boxed{3}."}) + "\n")
    models = {name: {"label": name.upper(), "rollouts": {"file": str(theirs)}} for name in names}
    evaluation = {"problems": ["toy"], "models": names, "measures": ["accuracy", "episodes"]}
    config = load(
        {"results": str(folder), "problems": {"toy": {"file": str(toy)}}, "models": models, "evaluation": evaluation}
    )
    paths = Paths(config)
    look = Appearance({m: ModelStyle(**s) for m, s in Figures(config, paths).models("episode_counts").items()})
    wanted = {name: {"label": name.upper(), "colour": look.colour(name)} for name in names}
    assert len({each["colour"] for each in wanted.values()}) == 3
    results(folder, problems=4, models=("alpha", "zeta"))
    made = TracesPage(config, paths)
    make(folder, "--settings", made.settings(), out=tmp_path / "page.html")
    shown = unpacked(tmp_path / "page.html")["index"]["models"]
    assert list(shown.items()) == list(wanted.items())
    made.record()
    make(folder, "--megabytes", "5", out=tmp_path / "by_hand.html")
    assert list(unpacked(tmp_path / "by_hand.html")["index"]["models"].items()) == list(wanted.items())
