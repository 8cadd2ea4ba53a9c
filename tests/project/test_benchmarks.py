import re

import polars as pl
import pytest
from conftest import ROOT

from benchmarks.__main__ import NAMES, main
from benchmarks.record import Goal, Record, markdown, middle


def test_a_record_has_medians():
    record = Record()
    for seconds in (3, 1, 2):
        record.add("ours", "seconds", seconds)
    assert middle(record.table(), "ours", "seconds") == 2
    with pytest.raises(KeyError, match="theirs"):
        middle(record.table(), "theirs", "seconds")


def test_goals_say_by_how_much_they_are_missed():
    assert Goal("times faster", 3.0, 2.5).row() == ("times faster", "at least 2.5", "3", "met")
    assert Goal("times faster", 2.0, 2.5, why="Short thoughts.").row()[-1] == "missed by 20%. Short thoughts."
    assert Goal("percent changed", 1.0, 2.0, at_most=True).met
    assert markdown(("a",), [(1234.5,)]).splitlines()[-1] == "| 1,234 |"


def test_an_unknown_benchmark_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["provers"])
    assert "there is no provers; there are prover" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_is_what_the_records_say(tmp_path):
    records = ROOT / "benchmarks" / "records"
    (tmp_path / "records").mkdir()
    for file in records.iterdir():
        (tmp_path / "records" / file.name).write_bytes(file.read_bytes())
    main(["--page", "--out", str(tmp_path)])
    assert (tmp_path / "results.md").read_text() == (ROOT / "benchmarks" / "results.md").read_text()
    assert {pl.read_parquet(file).height > 0 for file in records.glob("*.parquet")} == {True}
    assert {file.stem for file in records.glob("*.parquet")} >= set(NAMES)


def test_what_was_measured_once_names_its_code():
    page = (ROOT / "benchmarks" / "once.md").read_text()
    sections = page.split("\n## ")[1:]
    assert sections and all(re.search(r"`git show [0-9a-f]{7,}:benchmarks/\w+\.py`", text) for text in sections)
    images = re.findall(r"\(images/(\w+\.png)\)", page)
    assert images and all((ROOT / "benchmarks" / "images" / image).exists() for image in images)
