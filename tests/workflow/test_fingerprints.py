"""Fingerprints that are kept between starts of Snakemake."""

import json

import pytest

from mrt.core.cli import check_planned
from mrt.core.fingerprint import fingerprint
from workflow import fingerprints
from workflow.fingerprints import Fingerprints

pytestmark = pytest.mark.fast
STAGES = ("mrt.grading.grade", "mrt.sampling.rollouts")


@pytest.mark.parametrize("with_versions", [True, False])
def test_they_are_those_of_the_code_when_searched_and_when_kept(tmp_path, monkeypatch, with_versions):
    expected = [fingerprint(stage, with_versions=with_versions) for stage in STAGES]
    first = Fingerprints(tmp_path)
    assert [first.of(stage, with_versions=with_versions) for stage in STAGES] == expected
    monkeypatch.setattr(fingerprints, "reached", None)  # nothing is searched again
    again = Fingerprints(tmp_path)
    assert [again.of(stage, with_versions=with_versions) for stage in STAGES] == expected


def test_they_are_searched_anew_when_a_source_changes_or_the_file_is_broken(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(fingerprints, "PACKAGE", package)
    folder = tmp_path / "kept"
    first = Fingerprints(folder)
    first.of(STAGES[0], with_versions=False)
    assert Fingerprints(folder).known == first.known
    first.file.write_text("[")
    assert Fingerprints(folder).known == {}
    for change in ("x = 2\n", "x = 1\n# a comment\n"):
        (package / "a.py").write_text(change)
        assert Fingerprints(folder).known == {}
    (package / "b.py").write_text("")
    new = Fingerprints(folder)
    new.of(STAGES[1], with_versions=False)
    assert [row[0] for row in json.loads(new.file.read_text())] == [STAGES[1]]
    monkeypatch.setattr(fingerprints, "MOST", 2)
    for i in range(3):
        (package / "b.py").write_text(f"x = {i}\n")
        Fingerprints(folder).of(STAGES[1], with_versions=False)
    assert len(list(folder.glob("*.json"))) == 2  # the oldest go


def test_a_job_whose_code_is_edited_after_the_plan_stops(tmp_path, monkeypatch):
    planned = Fingerprints(tmp_path)
    planned.of(STAGES[0], with_versions=True)
    monkeypatch.setenv("MRT_PLANNED", str(planned.file))
    for stage in STAGES:  # the one as it was, and one that was not planned
        check_planned(stage)
    known = json.loads(planned.file.read_text())
    planned.file.write_text(json.dumps([[stage, "another", libraries] for stage, _, libraries in known]))
    with pytest.raises(ValueError, match="its code has changed since this run of Snakemake began"):
        check_planned(STAGES[0])
    monkeypatch.setenv("MRT_PLANNED", str(tmp_path / "gone.json"))
    check_planned(STAGES[0])
