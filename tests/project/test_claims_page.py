"""The page of the paper's claims, and the pages that quote it."""

import re

import pytest
import yaml
from conftest import ROOT

from mrt.analysis.claims import claims_in
from workflow.scripts.claims import COMMAND, EXPERIMENTS, OLDER, anchored, page

PAGE = (ROOT / "docs" / "claims.md").read_text()
WORDS = "confirmed|refuted|undecided|supported|contradicted|not significant"  # of older rules, and of the present ones
ROWS = rf"^\| ([^|]+) \| [^|]+ \| [^|]+ \| \d[^|]* \|(?: \d[^|]* \|)? (?:{WORDS})"
PLACES = re.findall(ROWS, PAGE, re.MULTILINE)
INTERVAL = re.compile(r"([+-]?[\d.]+) (?:points |times |tokens |% right )?\[([+-]?[\d.]+), ([+-]?[\d.]+)\]")
QUOTES = {  # where a page quotes five runs, if it has more than these
    "docs/rl.md": [("## What five runs", "A smaller experiment, with one run")],
    "docs/mu.md": [("## What it brings", "[20 steps on GSM8K]")],
    "docs/backtracking.md": [("## What came out", "In MRT (RL), mu answers twice")],
    "docs/laptop.md": [
        ("say what holds", "| model |"),
        ("Five runs of each model", "- From the base"),
        ("**The rule is not the paper's.**", "**Training runs differ"),
    ],
}


FOLDERS = sorted((ROOT / "experiments").glob("*/"))
WITH_CLAIMS = [folder for folder in FOLDERS if (folder / "claims.tsv").exists()]


def claims_of(config):
    """The claims of the table that a configuration names, by line."""
    return claims_in(ROOT / yaml.safe_load(config.read_text())["claims"])


def numbers(found, sign=1):
    """An estimate and the ends of its interval; with sign -1, of the other model against the one."""
    estimate, *ends = (sign * float(x) for x in found)
    return estimate, *sorted(ends)


def test_the_page_says_by_which_rules_it_is_made():
    """By its script from its sections, or by older rules, whose verdicts the script does not mix with its own."""
    if OLDER in PAGE.splitlines()[2]:
        with pytest.raises(ValueError, match="follows older rules; make these sections with the others: Thoughts"):
            page(PAGE, {})
    else:
        assert page(PAGE, {}) == PAGE
    found = re.search(r"^Of (\d+) rows of the paper .*\nOf (\d+) of ours", PAGE, re.MULTILINE)
    found = re.search(r"^Of (\d+) rows of the paper .*\nOf (\d+) of ours", PAGE, re.MULTILINE)
    theirs, ours = map(int, found.groups())
    assert theirs + ours == len(PLACES) and ours == sum(place.startswith("ours") for place in PLACES) and theirs >= 25
    said = {word for place in PLACES for word in re.findall(r"\b[5-9A-F]\b", place)}
    assert said == {"5", "6", "7", "8", "9", "A", "C", "E", "F"}


def test_every_row_has_an_anchor():
    """Of its own, which links to it name; in a section that is made again, too."""
    anchors = re.findall(r'<a id="(\w+)"></a> \|', PAGE)
    assert len(set(anchors)) == len(anchors) == len(PLACES) and "claims_star_12" in anchors
    rows = ROW.format("8.4", "supported"), ROW.format("ours", "not significant")
    text = page(
        "",
        {EXPERIMENTS["claims_star"][0]: "\n".join(["## x\n", anchored("\n".join(rows), "star"), "", NOTE.format(1)])},
    )
    assert re.findall(r'<a id="(\w+)"', text) == ["star_1", "star_2"] and "1 are supported" in text


def test_every_row_is_a_claim_of_its_configuration():
    """Rows of a section that was made again have the words of the configuration, others may lack those added since."""
    sections = dict(part.split("\n", 1) for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:])
    for heading, files in EXPERIMENTS.values():
        if heading in sections:
            claims = claims_of(ROOT / files.split()[-1]).values()
            found = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^,|]+),.* \| \w+ \|$", sections[heading], re.MULTILINE)
            values = [" against ".join(claim[x] for x in ("value", "than_value") if x in claim) for claim in claims]
            known = {(claim["section"], claim["says"], value) for claim, value in zip(claims, values, strict=True)}
            assert found and set(found) <= known


NOTE = "p corrected (Holm) for the claims about the same two methods, here 9 in {} families."
ROW = "| {} | it is better | accuracy, A against B: +1 [-1, +3] | 5 | 250 | {} (p = 0.020) | fig8 |"


def made(heading, families, *rows):
    return {heading: "\n".join([f"## {heading}\n", *(ROW.format(*row) for row in rows), "", NOTE.format(families)])}


def test_a_new_section_takes_the_place_of_its_old_one():
    first, second = (EXPERIMENTS[name][0] for name in ("claims_star", "claims_backtracking"))
    text = page("", made(first, 3, ("8.4", "supported"), ("ours", "not significant")) | made(second, 2))
    again = page(text, made(second, 4, ("8.4", "contradicted"), ("8.4", "not significant")))
    assert again.index(first) < again.index(second) and again.count("## ") == 2 and page(again, {}) == again
    assert "Of 3 rows of the paper 1 are supported, 1 contradicted, 1 not significant." in again
    assert "Of 1 of ours 0 are supported, 0 contradicted, 1 not significant." in again


def test_the_page_bounds_its_false_verdicts():
    first, second = (EXPERIMENTS[name][0] for name in ("claims_star", "claims_rl"))
    text = " ".join(page("", made(first, 3) | made(second, 9)).split())
    assert "corrected within 12 families" in text and "at most 0.6 of them are expected to" in text


def test_an_older_page_is_made_anew_whole():
    headings = [heading for heading, _ in EXPERIMENTS.values()]
    old = f"# Claims\n\nThis page {OLDER}.\n\n## {headings[0]}\n\nold\n\n## {headings[1]}\n\nold\n"
    with pytest.raises(ValueError, match=re.escape(headings[1])):
        page(old, made(headings[0], 1))
    assert OLDER not in page(old, made(headings[0], 1) | made(headings[1], 1))


def test_the_makefile_runs_what_the_page_says():
    commands = (ROOT / "Makefile").read_text().replace(".venv/bin/", "")
    assert all(COMMAND.format(files=files) in commands for _, files in EXPERIMENTS.values())
    assert " ".join(f"results/{name}" for name in EXPERIMENTS) in commands
    said = re.findall(r"^```sh\n(snakemake .*)\n```$", PAGE, re.MULTILINE)
    sections = [heading for heading, _ in EXPERIMENTS.values() if f"\n## {heading}\n" in PAGE]
    assert len(said) == len(sections) >= 5 and all(command in commands for command in said)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_experiment_has_its_question_command_and_commit(folder):
    """The command is that of the configuration and, where there are claims, of their page; so are the commits."""
    readme, config = (folder / "README.md").read_text(), (folder / "config.yaml").read_text()
    title, *_ = readme.splitlines()
    assert title.startswith("# ") and title.endswith("?") and len(readme.split()) <= 600
    (files,) = re.findall(r"^#   snakemake --cores 2 --configfile (.*)", config, re.MULTILINE)
    assert re.search(rf"^snakemake --cores 2 .*--configfile {re.escape(files)}$", readme, re.MULTILINE)
    assert {path.suffix for path in folder.iterdir()} <= {".yaml", ".tsv", ".md"}
    assert f"({folder.name}/README.md)" in (folder.parent / "README.md").read_text()
    assert f"(../experiments/{folder.name}/README.md)" in (ROOT / "docs" / "experiments.md").read_text()
    commits = re.findall(r"\b(?=[a-f]*\d)[0-9a-f]{7}\b", readme)
    assert commits
    if folder in WITH_CLAIMS:
        assert files in [named for _, named in EXPERIMENTS.values()]
        (section,) = [part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE) if files in part]
        assert set(re.findall(r"\b(?=[a-f]*\d)[0-9a-f]{7}\b", section.split("```")[0])) <= set(commits)
        assert claims_of(folder / "config.yaml") == claims_in(folder / "claims.tsv") != {}
    else:
        assert "claims" not in yaml.safe_load(config)


def test_a_user_has_few_configurations_to_start_from():
    """At most 14, and the first line of each says for whom it is."""
    files = {path.name: path.read_text() for path in (ROOT / "config").iterdir()}
    assert len(files) <= 14
    assert [name for name, text in files.items() if not text.startswith("# For ")] in ([], ["gpu_trial.yaml"])


QUOTED = ["README.md", *QUOTES, *(f"experiments/{folder.name}/README.md" for folder in WITH_CLAIMS)]


@pytest.mark.parametrize("name", QUOTED)
def test_what_others_quote_stands_on_the_page(name):
    """Intervals of five runs."""
    text = (ROOT / name).read_text()
    parts = [text.split(begin)[1].split(end)[0] for begin, end in QUOTES.get(name, [])]
    quoted = "\n".join(parts) or text
    there = {numbers(found, sign) for found in INTERVAL.findall(PAGE) for sign in (1, -1)}
    found = INTERVAL.findall(quoted)
    assert len(found) >= 4
    assert [x for x in found if numbers(x) not in there] == []
