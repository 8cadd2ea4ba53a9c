"""The page of the paper's claims, and the pages that quote it."""

import re
from operator import attrgetter

import polars as pl
import pytest
import yaml
from conftest import ROOT

from mrt.analysis.claims import Claim, claims_in
from mrt.core.storage import write_table
from mrt.figures.claims import SCHEMA
from mrt.figures.style import ModelStyle
from workflow.scripts.claims import (
    EXPERIMENTS,
    PRIMARY,
    Kept,
    by_claim,
    files_of,
    has_results,
    league,
    merged,
    page,
    read_by,
    with_tables,
)

PAGE = (ROOT / "docs" / "claims.md").read_text()
README = (ROOT / "README.md").read_text()
INTERVAL = re.compile(r"([+-]?[\d.]+)\s+(?:[a-z%]+\s+)*\[((?:< )?[+-]?[\d.]+),\s+((?:> )?[+-]?[\d.]+)\]")
FOLDERS = sorted((ROOT / "experiments").glob("*/"))
WITH_CLAIMS = [folder for folder in FOLDERS if (folder / "claims.tsv").exists()]


def claims_of(config):
    """The claims of the table that a configuration names, by line."""
    return claims_in(ROOT / yaml.safe_load(config.read_text())["claims"])


def numbers(found, sign=1):
    """An estimate and the ends of its interval; with sign -1, of the other model against the one."""
    estimate, *ends = (sign * float(x.lstrip("<> ")) for x in found)
    return estimate, *sorted(ends)


def test_the_page_is_made_from_what_is_kept():
    assert page([Kept.of(name) for name in with_tables()]) == PAGE


def claim(name=None, section="8.4", **fields):
    defaults = {"says": "by so much", "value": "accuracy", "model": "mrt", "than": "star", "expect": "more"}
    return Claim(claim=name, section=section, redraw="table1", **(defaults | fields))


def kept(claims, **accuracy):
    """Three runs of each model on twenty problems, with this accuracy in all of them."""
    rows = [
        {"model": model, "run": f"{model}_{run}", "dataset": "test", "problem_id": f"p{i:02}", "samples": 8}
        | {"accuracy": share + 0.02 * ((i + run) % 3), "tokens": 80.0 + run}
        for model, share in accuracy.items()
        for run in range(3)
        for i in range(20)
    ]
    models = {name: ModelStyle(label=name.upper(), method=name) for name in accuracy}
    cost = {"model": ["mrt"], "run": ["mrt_0"], "generated_tokens": [10], "flops": [1e9]}
    tables = {"accuracy": pl.DataFrame(rows), "cost": pl.DataFrame(cost)}
    return Kept("star", "config.yaml experiments/star/config.yaml", "abc1234", claims, models, tables)


def test_a_row_is_a_claim_and_its_comparisons_stand_behind_it():
    claims = [
        claim("MRT is better"),
        claim(says="than the base", than="base"),
        claim("MRT is worse", expect="less"),
        claim(section="ours", says="and is STaR?", model="star", than="base"),
    ]
    text = page([kept(claims, mrt=0.7, star=0.5, base=0.3)])
    overview, _, details = text.partition("## All comparisons")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| \*\*([^|]+)\*\* \| \[(.*)\]\(#(\w+)\) \|$", overview, re.MULTILINE)
    assert [row[1:3] for row in rows] == [("MRT is better", "supported"), ("MRT is worse", "contradicted")]
    assert [row[4] for row in rows] == ["star_1", "star_3"] and rows[0][3].startswith("accuracy: +20.0 [+")
    assert "accuracy, MRT against STAR: +20.0 [+" in details
    assert re.findall(r'<a id="(\w+)"', details) == ["star_1", "star_2", "star_3", "star_4"]
    assert "Of 2 claims 1 are supported, 1 contradicted, 0 not significant, 0 not\ntested." in overview
    assert "abc1234" in details and "experiments/star/config.yaml" in details and "| MRT | 3 |" in details


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        (["supported", "not significant", "supported"], "better"),
        (["not significant", "contradicted", "not significant"], "worse"),
        (["supported", "contradicted", "not significant"], "trade-off"),
        (["not significant"] * 3, "not significant"),
        (["not tested", "not tested", "not significant"], "not significant"),
        (["not tested"] * 3, "not tested"),
    ],
)
def test_the_league_has_a_row_a_method_and_a_word_for_it(verdicts, word):
    league_claims = [
        claim(section="league", value=value, expect="less" if "regret" in value else "more") for value in PRIMARY
    ]
    experiment = kept(league_claims, mrt=0.7, star=0.5)
    of_regret = experiment.tables["accuracy"].select("model", "run", "dataset", "problem_id", "samples")
    columns = {"budget": pl.lit(192), "extensions": pl.lit(0), "regret": pl.lit(0.25)}
    experiment.tables["regret"] = of_regret.with_columns(**columns)
    rows = [
        dict.fromkeys(SCHEMA)
        | {"section": "league", "value": value, "model": "MRT", "than": "STAR", "verdict": verdict, "over": "runs"}
        | {"estimate": 0.1, "low": 0.05, "high": 0.2, "ratio": value == "token efficiency"}
        for value, verdict in zip(PRIMARY, verdicts, strict=True)
    ]
    (text,) = league(experiment, pl.DataFrame(rows, schema=SCHEMA))
    header, _, reference, method = text.splitlines()
    assert (
        header.startswith("| against STAR | FLOPs | accuracy")
        and "| STAR | 0.00e+00 | 52.0% | 1 | 0.250 |" in reference
    )
    assert method.startswith("| MRT | 1.00e+09 | 72.0%, +10.0 [+5.0, +20.0]")
    assert method.replace("**", "").endswith(f"| {word} |")
    assert method.count(r" \*") == sum(not verdict.startswith("not ") for verdict in verdicts)


def test_questions_of_ours_are_no_claims():
    rows = {"claim": ["a", None, None, "b"], "part_of": ["a", "a", "a", "b"], "section": ["8", "8", "ours", "9"]}
    assert [(c.number, len(c.rows)) for c in by_claim("star", pl.DataFrame(rows))] == [(1, 2), (4, 1)]


def test_a_claim_whose_primary_comparison_has_no_result_has_no_verdict():
    claims = [
        claim("MRT is better", than="never_run"),
        claim(says="than the base", than="base"),
        claim("STaR is better", model="star", than="base"),
    ]
    overview = page([kept(claims, mrt=0.7, star=0.5, base=0.3)]).partition("## All comparisons")[0]
    assert "MRT is better" not in overview and "| STaR is better | **supported** |" in overview
    assert "Of 1 claims 1 are supported" in overview


def test_what_is_kept_is_what_claims_compare():
    claims = [claim(), claim(value="regret at 64"), claim(value="maj at 8", model="base", than="mrt")]
    measures = read_by(claims, ["base", "star", "mrt", "other"])
    assert measures["maj"] == {"base", "mrt"} and measures["accuracy"] == {"base", "star", "mrt", "other"}


def test_models_that_are_not_measured_now_keep_their_rows(tmp_path):
    old, new = (pl.DataFrame({"model": models, "x": x}) for models, x in ((["a", "b"], [1, 2]), (["b", "c"], [3, 4])))
    write_table(old, tmp_path / "x.parquet")
    assert merged(tmp_path / "x.parquet", new).rows() == [("a", 1), ("b", 3), ("c", 4)]
    assert merged(tmp_path / "none.parquet", new).equals(new)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_experiment_has_its_question_command_and_commit(folder):
    """The command is that of the configuration and, where there are claims, of their page; so are the commits."""
    readme = (folder / "README.md").read_text()
    title, *_ = readme.splitlines()
    assert title.startswith("# ") and title.endswith("?") and len(readme.split()) <= 600
    assert {path.suffix for path in folder.iterdir()} <= {".yaml", ".tsv", ".md", ""}
    assert f"({folder.name}/README.md)" in (folder.parent / "README.md").read_text()
    assert f"(../experiments/{folder.name}/README.md)" in (ROOT / "docs" / "experiments.md").read_text()
    assert re.search(r"\b(?=[a-f]*\d)[0-9a-f]{7}\b", readme) or "This page is the plan" in readme
    if not (folder / "config.yaml").exists():  # a user starts from it, so that it is in config/
        (files,) = re.findall(r"^snakemake --cores 2 --configfile (.*)", readme, re.MULTILINE)
        assert all((ROOT / "config" / file.removeprefix("config/")).exists() for file in files.split())
        return
    config = (folder / "config.yaml").read_text()
    (files,) = re.findall(r"^#   snakemake --cores 2 --configfile (.*)", config, re.MULTILINE)
    assert re.search(rf"^snakemake --cores 2 .*--configfile {re.escape(files)}$", readme, re.MULTILINE)
    assert files_of(folder.name) == files
    if folder in WITH_CLAIMS:
        assert claims_of(folder / "config.yaml") == claims_in(folder / "claims.tsv") != {}
    else:
        assert "claims" not in yaml.safe_load(config)


def test_a_user_has_few_configurations_to_start_from():
    """At most 14, and the first line of each says for whom it is."""
    paths = [path for path in (ROOT / "config").glob("*.yaml") if not path.is_symlink()]  # config.yaml, for snakedeploy
    files = {path.name: path.read_text() for path in paths}
    assert len(files) <= 14
    assert [name for name, text in files.items() if not text.startswith("# For ")] in ([], ["gpu_trial.yaml"])


EARLIER = EXPERIMENTS / "earlier_claims.md"
QUOTED = [name for name in map(attrgetter("name"), WITH_CLAIMS) if name in with_tables() or has_results(name)]


def not_on(page_path, text):
    """The intervals of a text that a page lacks; there have to be four."""
    on_page = {numbers(interval, sign) for interval in INTERVAL.findall(page_path.read_text()) for sign in (1, -1)}
    quoted = INTERVAL.findall(text)
    assert len(quoted) >= 4
    return [x for x in quoted if numbers(x) not in on_page]


@pytest.mark.parametrize("name", QUOTED)
def test_what_an_experiment_quotes_stands_on_the_page(name):
    """Intervals of several runs; those of earlier rules are on another page."""
    pages = [path.read_text() for path in (EXPERIMENTS / name).glob("README.md" if has_results(name) else "*.md")]
    assert not_on(ROOT / "docs" / "claims.md" if name in with_tables() else EARLIER, "\n".join(pages)) == []


def test_what_the_results_by_likelihood_quote_stands_on_the_page():
    text = (EXPERIMENTS / "likelihood" / "results.md").read_text()
    assert not_on(EARLIER, text.split("## Gain in MRT (RL)")[1].split("[20 steps on GSM8K]")[0]) == []


def rows_of(text):
    """The cells of the rows of a page's tables, without bold and links."""
    plain = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text).replace("**", "").replace(r"\*", "*")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in plain.splitlines() if line[:1] == "|"]


def league_of(part):
    """The cells of a method's row in the table of a baseline, in a part of the page."""
    cells_of, baseline = {}, ""
    for first, *cells in rows_of(part):
        if first.startswith("against "):
            baseline = first.removeprefix("against ")
        elif first != "---":
            cells_of[first, baseline] = cells
    return cells_of


LEAGUE, LONG_THOUGHTS = map(league_of, PAGE.split("\n## ")[1:3])


def test_the_results_in_the_readme_are_those_of_the_league():
    """A row is a method and its baseline, accuracy, ratio of tokens, difference in regret, and verdict."""
    results = README.split("## Results")[1].split("## ")[0]
    _, _, *rows = [cells for cells in rows_of(results) if len(cells) == 6]
    assert len(rows) >= 6
    for method, baseline, *cells, verdict in rows:
        _, accuracy, *others, its_verdict = LEAGUE[method, baseline]
        shown = [accuracy.replace("%, ", " % ("), *others]
        expected = [re.sub(r" \[[^]]*\](?: x)?", "", cell).replace(" *", "*") for cell in shown]
        expected[0] += ")"
        assert ([*cells], verdict) == (expected, its_verdict)
    (counts,) = re.findall(r"of (\d+), \[(\d+) are supported, (\d+) contradicted\]", results)
    assert "Of {} claims {} are supported, {} contradicted".format(*counts) in PAGE


def test_the_verdicts_of_rl_are_those_of_the_league():
    results = (ROOT / "docs" / "rl.md").read_text().split("## Results")[1]
    (_, *references), _, *rows = rows_of(results)
    baselines = [reference.removeprefix("against ") for reference in references]
    pairs = [(method, baseline) for method, *_ in rows for baseline in baselines]
    verdicts = [verdict for _, *cells in rows for verdict in cells]
    assert len(rows) >= 10
    assert [LEAGUE.get(pair, [""])[-1] for pair in pairs] == verdicts


GRPO, CONTROL = "GRPO, TRL's default", "GRPO from prefixes"
NOT_BY_RL = (GRPO, "Base", "STaR, both sets", "MRT (STaR), both sets")


def test_what_pages_say_of_rl_methods_are_verdicts_of_the_leagues():
    """No RL method differs from GRPO in either world. Neither do two of them from the control."""
    sentence = r"None of (\w+) RL methods\*\* \[differs significantly.*, nor any of (\w+)\s+\[where thoughts are long"
    (counts,) = re.findall(sentence, README)
    for count, league_cells in zip(counts, (LEAGUE, LONG_THOUGHTS), strict=True):
        verdicts = [
            cells[-1] for (method, than), cells in league_cells.items() if than == GRPO and method not in NOT_BY_RL
        ]
        assert verdicts == ["not significant"] * {"ten": 10, "four": 4}[count]
    single = [LEAGUE["MRT (RL) by Algorithm 2", CONTROL], LONG_THOUGHTS["Base", GRPO]]
    single += [cells for (method, than), cells in LONG_THOUGHTS.items() if method != than == CONTROL]
    assert [cells[-1] for cells in single] == ["not significant"] * 3


def test_the_real_model_in_the_readme_is_that_of_the_page():
    """The comparison with STaR is that of the page, where it is not tested."""
    (interval,) = INTERVAL.findall(re.findall(r"With a 0\.5B model.* against STaR", README)[0])
    comparison = "accuracy, MRT (STaR) against STaR: "
    (cells,) = [cells for cells in rows_of(PAGE) if cells[0] == "ours" and cells[3].startswith(comparison)]
    assert numbers(interval) == numbers(INTERVAL.findall(cells[3])[0])
    assert cells[6] == "not tested"
