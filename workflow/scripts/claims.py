"""Make docs/claims.md from tables of finished experiments, which the repository keeps (experiments/*/tables).

    python -m workflow.scripts.claims keep star rl     keep the tables of experiments/star and of experiments/rl
    python -m workflow.scripts.claims page             make the page from all tables that are kept

The tables have the compared values, a row a problem and training run. A model that an experiment has not measured
yet, or no more, keeps its rows: so an experiment may be run in pieces.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from mrt.analysis.claims import TRAINING, Claim, claims_in, measure_of
from mrt.config.load import read_files
from mrt.core.storage import read_table, write_table, write_text
from mrt.figures import claims as claims_table
from mrt.figures.runs import layout as runs_layout
from mrt.figures.runs import summary as runs_summary
from mrt.figures.stage import gather, of_runs
from mrt.figures.style import ModelStyle
from mrt.figures.tables import Layout, markdown
from workflow.figures import Figures
from workflow.paths import Paths

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
PAGE = ROOT / "docs" / "claims.md"
OF_MODELS = ("accuracy", "regret", "cost")  # measures that the tables of models show, of every model
PRIMARY = ("accuracy", "token efficiency", "regret at 192")  # measures of the league
LEAGUE = ("FLOPs", "accuracy, points", "times fewer tokens for the same maj@k", "regret at 192 tokens", "verdict")
STAR = r" \*"  # of significant differences
COMMAND = "snakemake --cores 2 claims runs --configfile {files}"
INTRODUCTION = """# Results: the league, and the paper's claims

All results but those on GSM8K are of the toy world: sums, and a 1M-parameter model. They may be otherwise at the
paper's scale. Intervals are of 95 %, over training runs and problems. p-values are corrected (Holm) for all comparisons
of the same two methods in an experiment; all MRT (RL) is one method. *Significant* means a corrected p below 5 %.
Intervals are not corrected: one may exclude 0 where the corrected p is above 5 %. A comparison with a model that was
trained only once is *not tested*, nor is one whose answers are not at equal tokens.
"""
LEAGUE_TITLE = """## The league: {title}

[The plan](../experiments/{name}/README.md) is older than [the results](../experiments/{name}/results.md).
"""
LEAGUE_RULES = """
Every training spends the same FLOPs within 3 %, rollouts, forced answers and discarded groups included. \\* marks
significant differences. A method is **better** with a significant advantage and no significant loss, **worse** in the
opposite case, a **trade-off** with both. A ratio of tokens below 1 means that it needs more. Its interval ends at > 100
where the curves may share no accuracy.
"""
CLAIMS_TITLE = "## The paper's claims\n"
COUNTS = """One row is one claim: what the paper says and where, and the verdict on its primary comparison. A claim is
**supported** or **contradicted** if the difference is significant. Else it is **not significant**, or **not tested**.
The verdict is of the direction, not of the size of the difference. Each link leads to the models that are compared, and
to further comparisons of the claim.

Of {claims} claims {supported} are supported, {contradicted} contradicted, {undecided} not significant, {untested} not
tested.
"""
ELSEWHERE = """Not repeated with the present rules: {}.
[A page of earlier rules](../experiments/earlier_claims.md) has their comparisons.
"""


class Kept(NamedTuple):
    """An experiment as the repository keeps it."""

    name: str
    files: str  # its configuration files
    commit: str  # that made the tables
    claims: list[Claim]
    models: dict[str, ModelStyle]
    tables: dict[str, pl.DataFrame]

    @classmethod
    def of(cls, name: str) -> "Kept":
        folder = EXPERIMENTS / name
        record = json.loads((folder / "tables" / "models.json").read_text())
        return cls(
            name,
            files_of(name),
            record["commit"],
            [Claim.model_validate(row) for row in claims_in(folder / "claims.tsv").values()],
            {model: ModelStyle.model_validate(style) for model, style in record["models"].items()},
            {path.stem: read_table(path) for path in sorted((folder / "tables").glob("*.parquet"))},
        )


def files_of(name: str) -> str:
    """The configuration files of an experiment, as the head of its configuration names them."""
    text = (EXPERIMENTS / name / "config.yaml").read_text()
    (files,) = re.findall(r"^#   snakemake --cores 2 --configfile (.*)", text, re.MULTILINE)
    return str(files)


def read_by(claims: Collection[Claim], models: Collection[str]) -> dict[str, set[str]]:
    """The models of which each measure is kept: those that a claim compares; of some measures, all."""
    kept = {measure: set(models) for measure in OF_MODELS}
    for claim in claims:
        for value in filter(None, (claim.value, claim.than_value)):
            compared = {claim.model, claim.than, claim.gains_over} - {None}
            kept.setdefault(measure_of(value), set()).update(compared)  # type: ignore[arg-type]
    return kept


def keep(name: str) -> None:
    """Write the tables of an experiment that was run in this folder to its folder."""
    experiment = read_files([Path(file) for file in files_of(name).split()])
    figures, folder = Figures(experiment, Paths(experiment)), EXPERIMENTS / name / "tables"
    styles = {model: ModelStyle.model_validate(style) for model, style in figures.styles.items()}
    first = {model: style.replicate_of for model, style in styles.items() if style.replicate_of in styles}
    wanted = read_by(experiment.claims, experiment.evaluation.models)
    paths = figures.tables("claims") | figures.tables("runs")
    measured: set[str] = set()
    for measure, of_models in paths.items():
        models = {*wanted.get(measure, ())} if measure != "direct" else {*of_models}
        present = {
            run: {dataset: Path(path) for dataset, path in sets.items() if Path(path).is_file()}
            for run, sets in of_models.items()
            if first.get(run, run) in models
        }
        table = of_runs(gather({run: sets for run, sets in present.items() if sets}), first)
        if table.height:
            measured |= {*table["model"]}
            write_table(merged(folder / f"{measure}.parquet", table), folder / f"{measure}.parquet")
    shown = {model: styles[model].model_dump(exclude_none=True) for model in styles if model not in first}
    write_text(json.dumps({"commit": commit(), "models": shown}, indent=1) + "\n", folder / "models.json")
    print(f"{folder}: {len(measured)} models")


def merged(kept: Path, table: pl.DataFrame) -> pl.DataFrame:
    """A table with the rows that are kept of other models."""
    if not kept.is_file():
        return table
    others = read_table(kept).filter(~pl.col("model").is_in(table["model"].unique().implode()))
    return pl.concat([others, table], how="diagonal_relaxed")


def commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class Decided(NamedTuple):
    """A claim of the paper: its experiment, and its comparisons as rows of the table of claims."""

    experiment: str
    number: int  # of its first comparison among the experiment's, from 1
    rows: list[dict[str, Any]]


def by_claim(name: str, table: pl.DataFrame) -> Iterator[Decided]:
    """The claims of an experiment in order, except those whose primary comparison has no result.

    The experiment's own questions (section `ours` or `league`) are none.
    """
    rows = [row | {"number": i} for i, row in enumerate(table.iter_rows(named=True), 1)]
    of_paper = [row for row in rows if not row["section"].startswith(("ours", "league"))]
    for _, of_claim in groupby(of_paper, key=lambda row: row["part_of"]):
        comparisons = list(of_claim)
        if comparisons[0]["claim"]:
            yield Decided(name, comparisons[0]["number"], comparisons)


def overview(decided: Collection[Decided]) -> str:
    """The table of claims: a row each, with the verdict on its primary comparison."""
    lines = ["| where | the paper's claim | verdict here | primary comparison |", "|---|---|---|---|"]
    for claim in decided:
        first = claim.rows[0]
        link = f"[{first['value']}: {claims_table.difference_text(first)}](#{claim.experiment}_{claim.number})"
        lines.append(f"| {first['section']} | {first['claim']} | **{first['verdict']}** | {link} |")
    return "\n".join(lines) + "\n"


def details(kept: Kept, table: pl.DataFrame) -> str:
    """All comparisons of an experiment, and its models."""
    text = claims_table.layout(table, {})
    cells = [
        [row[0], f'<a id="{kept.name}_{number}"></a>{claim or ""}', *row[1:]]
        for number, (row, claim) in enumerate(zip(text.cells, table["claim"], strict=True), 1)
    ]
    all_rows = markdown(Layout(text.title, ["", "claim", "comparison", *text.header[2:]], cells, set(), text.note))
    # on this page a star is for corrected p-values
    models = markdown(runs_layout(runs_summary(kept.tables, kept.models), kept.models, stars=False))
    command = COMMAND.format(files=kept.files)
    question = f"[What was asked](../experiments/{kept.name}/README.md). The tables are of commit {kept.commit}:"
    head = f"## All comparisons: {title_of(kept.name)}\n\n{question}\n\n"
    return f"{head}```sh\n{command}\n```\n\n{all_rows}\n### Its models\n\n{models}"


def standing(verdicts: Collection[str]) -> str:
    """The verdict on a method from those on the primary measures, each of an expected advantage."""
    if "supported" in verdicts:
        return "trade-off" if "contradicted" in verdicts else "better"
    if "contradicted" in verdicts:
        return "worse"
    return "not significant" if "not significant" in verdicts else "not tested"


def league(kept: Kept, table: pl.DataFrame) -> Iterator[str]:
    """A table a reference: the methods that are compared with it in all primary measures.

    Args:
        kept: an experiment.
        table: its comparisons; those of section `league` count.
    """
    means = {(row["model"], row["value"]): row for row in runs_summary(kept.tables, kept.models).iter_rows(named=True)}
    names = {style.label: name for name, style in kept.models.items()}
    for (reference,), rows in table.filter(section="league").group_by("than", maintain_order=True):
        accuracy, regret = (means[names[reference], value] for value in (PRIMARY[0], PRIMARY[2]))
        absolute = [f"{accuracy['flops']:.2e}", f"{accuracy['estimate']:.1%}", "1", f"{regret['estimate']:.3f}", ""]
        lines = [[f"against {reference}", *LEAGUE], ["---"] * (len(LEAGUE) + 1), [reference, *absolute]]
        for (label,), of_method in rows.group_by("model", maintain_order=True):
            by_value = {row["value"]: row for row in of_method.iter_rows(named=True)}
            primary = [by_value[value] for value in PRIMARY]
            marks = [STAR if row["verdict"] in ("supported", "contradicted") else "" for row in primary]
            cells = [claims_table.difference_text(row) + mark for row, mark in zip(primary, marks, strict=True)]
            mean = means[names[label], PRIMARY[0]]
            cells[0] = f"{mean['estimate']:.1%}, {cells[0]}"
            verdict = standing([row["verdict"] for row in primary])
            bold = f"**{verdict}**" if verdict in ("better", "worse", "trade-off") else verdict
            lines.append([label, f"{mean['flops']:.2e}", *cells, bold])
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def page(experiments: Collection[Kept]) -> str:
    """The page, from the kept tables of experiments."""
    decided: list[Decided] = []
    leagues: list[str] = []
    parts: list[str] = []
    for kept in experiments:
        claims = [claim.model_dump() for claim in kept.claims]
        table = claims_table.summary(kept.tables, kept.models, claims)
        if (sets := table.filter(pl.col("dataset") != TRAINING)["dataset"].unique().sort()).len() > 1:
            raise ValueError(f"{kept.name}: the page has one row a comparison, but its tables are of {', '.join(sets)}")
        decided += by_claim(kept.name, table)
        if standings := list(league(kept, table)):
            title = LEAGUE_TITLE.format(title=title_of(kept.name), name=kept.name)
            leagues += [title if leagues else title + LEAGUE_RULES, *standings]
        parts.append(details(kept, table))
    counts = Counter(claim.rows[0]["verdict"] for claim in decided)
    of_claims = COUNTS.format(
        claims=len(decided),
        supported=counts["supported"],
        contradicted=counts["contradicted"],
        undecided=counts["not significant"],
        untested=counts["not tested"],
    )
    on_page = {kept.name for kept in experiments}
    others = [name for name in listed() if name not in on_page and has_results(name)]
    links = ",\n".join(f"[{name}](../experiments/{name}/README.md)" for name in others)
    elsewhere = [ELSEWHERE.format(links)] if others else []
    the_claims = [of_claims, overview(decided)] if decided else []
    return "\n".join([INTRODUCTION, *leagues, CLAIMS_TITLE, *the_claims, *elsewhere, *parts])


def title_of(name: str) -> str:
    """The question of an experiment."""
    return (EXPERIMENTS / name / "README.md").read_text().splitlines()[0].removeprefix("# ")


def has_results(name: str) -> bool:
    """Whether an experiment has claims, and its README is no plan."""
    folder = EXPERIMENTS / name
    return (folder / "claims.tsv").is_file() and "This page is the plan" not in (folder / "README.md").read_text()


def listed() -> list[str]:
    """The experiments in the order of their list."""
    return re.findall(r"^\| \[(\w+)\]\(", (EXPERIMENTS / "README.md").read_text(), re.MULTILINE)


def with_tables() -> list[str]:
    """The experiments whose tables are kept."""
    return [name for name in listed() if (EXPERIMENTS / name / "tables" / "models.json").is_file()]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["keep", *names] if names:
            for each in names:
                keep(each)
        case ["page"]:
            write_text(page([Kept.of(name) for name in with_tables()]), PAGE)
        case _:
            sys.exit(__doc__)
