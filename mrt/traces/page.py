"""A page to look at traces: episodes, progress, and the answers of mu at every prefix (Sections 5 and 6).

    mrt traces results/laptop

The page is one file of HTML that needs neither server nor network. It shows whatever the folder holds so far, and
`snakemake traces` makes it of a finished experiment. The markup is followed by an index, which the list of problems
shows, and a chunk for each problem: JSON, gzip, base64. The browser unpacks a chunk when its problem is opened.

A page holds at most `megabytes`. If there are more traces, whole problems are sampled by `seed`, and the page says so.
"""

import gzip
import json
import random
import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field
from pydantic_settings import CliPositionalArg

from mrt.analysis.progress import value_of
from mrt.core.artifacts import (
    ANSWER_GRADES,
    EPISODES,
    GRADES,
    PREFIX,
    PROBLEMS,
    PROGRESS,
    PROVER,
    ROLLOUTS,
    SET,
    TRACE,
    TREE,
    Artifact,
)
from mrt.core.cli import Stage, run
from mrt.core.storage import write_text
from mrt.episodes.parameterization import MARKERS, Backtracking
from mrt.episodes.thinking import take_apart
from mrt.figures.style import Appearance, ModelStyle
from mrt.methods.mrt import best_prefixes
from mrt.problems.sources import prefix_accuracy

HERE = Path(__file__).parent
IN_REPORT = (
    1.5  # megabytes: Snakemake's report embeds a page as a URL, of which browsers open 2 MB, a third of it base64
)
NORMAL = 1.96  # quantile of a 95 % interval
POINTS = ("prefix", "prefix_tokens", "answers", "J", "progress", "low", "high")  # of a trace, along its prefixes
RECORD = ".traces.json"  # in a results folder: the options that its last run of Snakemake makes the page with
LINEARIZED = "linearized/{m}/{d}.parquet", "grades/{m}/{d}.linearized.parquet"
MATH = re.compile(r"\$|\\\(|\\\[")  # what opens LaTeX in a text

Rows = dict[tuple[str, int], dict[str, Any]]  # by trace


class Folder:
    """A results folder, of which `tables` are read; whatever is there (yet) if None."""

    def __init__(self, path: Path, tables: Collection[Path] | None = None) -> None:
        self.path, self.tables = path, None if tables is None else set(tables)

    def read(self, artifact: Artifact, model: str = "", dataset: str = "", path: str = "") -> pl.DataFrame | None:
        """The table of a model on a dataset; None if it is not there."""
        file = self.path / (path or artifact.path).format(m=model, d=dataset)
        wanted = file.is_file() if self.tables is None else file in self.tables
        return artifact.read(file) if wanted else None

    def datasets(self) -> dict[str, list[str]]:
        """Models with rollouts here, with the datasets of these."""
        datasets: dict[str, list[str]] = {}
        for path in sorted((self.path / "rollouts").glob("*/*.parquet")):
            datasets.setdefault(path.parent.name, []).append(path.stem)
        return datasets


def by_trace(table: pl.DataFrame | None, *columns: pl.Expr | str) -> Rows:
    """Lists of these columns of each trace, in the table's order."""
    if table is None:
        return {}
    lists = table.group_by(TRACE, maintain_order=True).agg(*columns)
    return {(row["problem_id"], row["sample"]): row for row in lists.iter_rows(named=True)}


def with_bounds(progress: pl.DataFrame, answers: pl.DataFrame | None) -> pl.DataFrame:
    """Progress with the Wilson interval of J at 95 %, in `low` and `high`; null where J is no share of right answers.

    `answers` are graded forced answers that were sampled.
    """
    if answers is None:
        return progress.with_columns(pl.lit(None, pl.Float64).alias("low"), pl.lit(None, pl.Float64).alias("high"))
    counted = answers.group_by(PREFIX).agg(pl.col("correct").sum().alias("right"))
    n, J, z = pl.col("answers"), pl.col("J"), NORMAL
    centre, half = (J + z**2 / (2 * n)) / (1 + z**2 / n), (J * (1 - J) / n + z**2 / (4 * n**2)).sqrt() * z
    is_share = (J - pl.col("right") / n).abs() < 1e-9
    bounds = (centre - half / (1 + z**2 / n)).clip(0, 1), (centre + half / (1 + z**2 / n)).clip(0, 1)
    return progress.join(counted, on=PREFIX, how="left", maintain_order="left").with_columns(
        pl.when(is_share).then(bound).alias(name) for name, bound in zip(("low", "high"), bounds, strict=True)
    )


def sampled(prover: pl.DataFrame) -> pl.DataFrame:
    """The forced answers that were sampled: all but those whose probability was read off."""
    return prover.filter(pl.col("finish_reason") != "scored")


def distinct_answers(prover: pl.DataFrame | None, grades: pl.DataFrame | None) -> Rows:
    """Of each trace, by prefix: the distinct answers that mu gives there as [answer, right, times, cluster, text].

    The most frequent answer comes first. `text` is the first of its forced answers.
    """
    if prover is None or grades is None:
        return {}
    given = sampled(prover).select(*PREFIX, "answer_index", "text").join(grades, on=[*PREFIX, "answer_index"])
    counted = (
        given.sort(*PREFIX, "answer_index")
        .group_by(*PREFIX, "answer", "correct", "cluster", maintain_order=True)
        .agg(pl.len().alias("times"), pl.col("text").first())
        .sort(*PREFIX, "times", descending=[False, False, False, True], maintain_order=True)
    )
    answers: Rows = {}
    for row in counted.iter_rows(named=True):
        at = answers.setdefault((row["problem_id"], row["sample"]), {}).setdefault(row["prefix"], [])
        at.append([row["answer"], row["correct"], row["times"], row["cluster"], row["text"]])
    return answers


def traces_of(
    folder: Folder, model: str, dataset: str, kept: Rows | None = None, backtracking: Backtracking | None = None
) -> dict[str, list[dict[str, Any]]]:
    """A model's traces on a dataset, by problem, as the page shows them; none if there are no rollouts.

    `kept` holds the prefix that a training set cut each trace at. Without it, that is the prefix of maximal cumulative
    progress, if there is progress (Algorithm 1). Lists along `prefix` are of the prefixes with forced answers.
    """
    rollouts, grades = (folder.read(table, model, dataset) for table in (ROLLOUTS, GRADES))
    if rollouts is None:
        return {}
    if grades is not None:
        grades = grades.with_columns(value_of(grades).alias("score"))
    verdicts = by_trace(grades, pl.col("answer", "correct", "score", "cluster").first())
    thoughts = by_trace(folder.read(EPISODES, model, dataset), "text", pl.col("closed").first())
    prover, answer_grades, progress = (folder.read(t, model, dataset) for t in (PROVER, ANSWER_GRADES, PROGRESS))
    answers = distinct_answers(prover, answer_grades)
    points: Rows = {}
    by_set = kept is not None
    if progress is not None:
        grades_of_sampled = (
            None if prover is None or answer_grades is None else answer_grades.join(sampled(prover), PREFIX, "semi")
        )
        points = by_trace(with_bounds(progress.sort(PREFIX), grades_of_sampled), *POINTS)
        if kept is None:
            kept = by_trace(best_prefixes(progress).filter(pl.col("gain") > 0), pl.col("prefix").first())
    read = set() if prover is None else set(prover.filter(finish_reason="scored").select(TRACE).iter_rows())
    traces: dict[str, list[dict[str, Any]]] = {}
    for row in rollouts.sort(TRACE).iter_rows(named=True):
        key = (row["problem_id"], row["sample"])
        verdict, thought, at = verdicts.get(key, {}), thoughts.get(key, {}), points.get(key)
        before, episodes, after = split_completion(row["text"], thought.get("text") or [])
        trace = {
            **{name: row[name] for name in ("sample", "tokens", "finish_reason")},
            **{name: verdict.get(name) for name in ("answer", "correct", "score", "cluster")},
            **{"before": before, "episodes": episodes, "after": after, "closed": thought.get("closed")},
        }
        if at:
            trace |= {name: at[name] for name in POINTS}
            trace |= {"kept": (kept or {}).get(key, {}).get("prefix"), "by_set": by_set, "read": key in read}
            trace["forced"] = [answers.get(key, {}).get(prefix, []) for prefix in at["prefix"]]
        if backtracking:
            trace["kinds"] = kinds(episodes, backtracking)
        traces.setdefault(row["problem_id"], []).append(trace)
    return traces


def kinds(episodes: Iterable[str], backtracking: Backtracking) -> list[str]:
    """The kind of each episode of backtracking search, and the step that a backtrack names."""
    names: list[str] = []
    step = ""
    for episode in episodes:
        if backtracking.backtrack.fullmatch(episode):
            step = episode.strip().removeprefix(backtracking.marker).strip()
            names.append(f"backtrack to {step}" if step else "backtrack")
        else:
            revised = f"revision from {step}" if step else "revision"
            names.append(revised if names else "attempt")
    return names


def attempts_of(folder: Folder, model: str, dataset: str) -> dict[str, list[list[list[Any]]]]:
    """Linearized search by problem: of each text its attempts in order, as [answer, right, text]."""
    searches: dict[str, list[list[list[Any]]]] = {}
    given = distinct_answers(
        folder.read(PROVER, model, dataset, LINEARIZED[0]), folder.read(ANSWER_GRADES, model, dataset, LINEARIZED[1])
    )
    for (problem, _), attempts in sorted(given.items()):
        first = (answers[0] for _, answers in sorted(attempts.items()))
        searches.setdefault(problem, []).append([[answer, right, text] for answer, right, _, _, text in first])
    return searches


def split_completion(text: str, episodes: list[str]) -> tuple[str, list[str], str]:
    """A completion in three parts: the text before its episodes, the episodes, and the text after them."""
    thought = "".join(episodes)
    start = text.find(thought)
    if not episodes or start < 0:
        return "", [], text
    return text[:start], episodes, text[start + len(thought) :]


def align_chunks(text: str, chunks: list[tuple[str, float]]) -> tuple[list[int], list[float]] | None:
    """Where in a text the chunks begin, in characters, and their accuracies; None if the text does not begin with them.

    A chunk that is not in the text word for word is left out; if these are most, the curve is another text's.
    """
    at, places = 0, list[tuple[int, float]]()
    for chunk, accuracy in chunks:
        start = text.find(chunk.strip(), at)
        if start >= 0:
            places.append((start, accuracy))
            at = start + len(chunk.strip())
    first = chunks[0][0].strip() if chunks else ""
    if 2 * len(places) <= len(chunks) or not (take_apart(text).thought or text).lstrip().startswith(first):
        return None
    return [start for start, _ in places], [accuracy for _, accuracy in places]


def summary(traces: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """The sort keys of the list of problems, of a model's traces of one problem; means over traces, null where unknown.

    `accuracy`; `tokens`; `truncated`, a share. `gain` is the largest progress of an episode, and `fall` the largest J
    of a trace less its last. `late` is the share of the thought's tokens after the first prefix at which J is largest,
    if it is ever above 0.
    """
    traces = list(traces)
    scored = [trace for trace in traces if trace.get("J")]

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    def late(trace: Mapping[str, Any]) -> float | None:
        tokens, J = trace["prefix_tokens"], trace["J"]
        return 1 - tokens[J.index(max(J))] / tokens[-1] if tokens[-1] and max(J) else None

    def cut_off(trace: Mapping[str, Any]) -> float | None:
        return None if trace["finish_reason"] == "unknown" else float(trace["finish_reason"] == "length")

    gains = [gain for trace in scored for gain in trace["progress"] if gain is not None]
    return {
        "accuracy": mean(t["score"] for t in traces),
        "tokens": mean(t["tokens"] for t in traces),
        "gain": max(gains, default=None),
        "fall": max((max(t["J"]) - t["J"][-1] for t in scored), default=None),
        "late": mean(late(t) for t in scored),
        "truncated": mean(map(cut_off, traces)),
    }


def trees_of(folder: Folder, model: str, dataset: str) -> dict[str, list[list[Any]]]:
    """Solution trees by problem: of each node its number, its parent's, text, value, visits, whether it is a leaf."""
    tree = folder.read(TREE, model, dataset)
    trees: dict[str, list[list[Any]]] = {}
    for problem, *node in (tree if tree is not None else pl.DataFrame(schema=TREE.columns)).sort(TREE.keys).select(
        "problem_id", "node", "parent", "text", "value", "visits", "leaf"
    ).iter_rows():  # fmt: skip
        trees.setdefault(problem, []).append(node)
    return trees


def packed(value: Any) -> str:
    """A value as JSON, gzip, base64."""
    return b64encode(
        gzip.compress(json.dumps(value, separators=(",", ":"), allow_nan=False).encode(), 9, mtime=0)
    ).decode()


def assets() -> list[Path]:
    """The files beside this module that the page is made of."""
    return sorted(path for path in HERE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc"))


def page(title: str, index: Mapping[str, Any], chunks: Mapping[str, str], *, latex: bool) -> str:
    """The page: markup, style and scripts, the index, and the packed chunks by id. `latex` says that texts have some.

    The content security policy admits the page's own scripts, by their hash, and nothing from elsewhere.
    """
    vendor = HERE / "vendor"
    names = ["katex.min.js", "auto-render.min.js"] if latex else []
    scripts = [*(vendor / name for name in (*names, "uPlot.iife.min.js")), HERE / "page.js"]
    styles = [vendor / "uPlot.min.css", HERE / "page.css", *([vendor / "katex.min.css"] if latex else [])]
    code = [path.read_text(encoding="utf-8").replace("</script", "<\\/script") for path in scripts]
    hashes = " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in code)
    parts = {
        "title": escape(title),
        "policy": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; font-src data:;"
        " base-uri 'none'; form-action 'none'",
        "style": "\n".join(with_fonts(path.read_text(encoding="utf-8"), vendor) for path in styles),
        "data": "\n".join(
            f'<script type="text/plain" id="{name}">{content}</script>'
            for name, content in {"index": packed(index), **chunks}.items()
        ),
        "script": "\n".join(f"<script>{text}</script>" for text in code),
    }
    template = (HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"@@(\w+)@@", lambda match: parts[match[1]], template)


def fitting(order: list[int], sizes: list[int], room: float) -> list[int]:
    """The first items of `order` whose sizes fit into `room`, at least one, sorted."""
    shown = list[int]()
    for i in order:
        room -= sizes[i]
        if room < 0 and shown:
            break
        shown.append(i)
    return sorted(shown)


def with_fonts(style: str, folder: Path) -> str:
    """A style sheet with its fonts in it, of those that `folder` has, and without the rules of all others."""

    def embedded(rule: re.Match[str]) -> str:
        file = re.search(r"url\((fonts/[\w-]+\.woff2)\)", rule[0])
        if file is None or not (folder / file[1]).is_file():
            return ""
        font = b64encode((folder / file[1]).read_bytes()).decode()
        return re.sub(r"src:[^}]*", f'src:url(data:font/woff2;base64,{font}) format("woff2")', rule[0])

    return re.sub(r"@font-face\{[^}]*\}", embedded, style)


class Traces(Stage):
    """Make the page of traces."""

    results: CliPositionalArg[Path] = Field(description="Results folder of the experiment.")
    models: dict[str, ModelStyle] = Field(
        {},
        description="Models in order: {model: {label, method, iteration}}, as JSON; by default those of the last run.",
    )
    datasets: dict[str, list[str]] = Field(
        {}, description="Datasets of each model: {model: [dataset]}, as JSON; by default those with rollouts."
    )
    sets: dict[str, tuple[str, str]] = Field(
        {}, description="Training sets whose cuts are shown: {trained model: [model, dataset]}, as JSON."
    )
    tables: list[Path] | None = Field(None, description="Tables to read; by default all that exist.")
    markers: tuple[str, ...] = Field(MARKERS, description="Openings of episodes to highlight.")
    backtracking: Backtracking | None = Field(
        None, description="How backtracks are recognized, if traces have them; JSON."
    )
    prefix_accuracy: Path | None = Field(
        None, description="Curves measured elsewhere: JSON lines with problem_id, model, chunks [{text, accuracy}]."
    )
    named: dict[str, str] = Field({}, description="Names of the models in that file, as JSON.")
    megabytes: float = Field(20.0, gt=0, le=500, description="Maximum size of the page.")
    seed: int = Field(0, ge=0, description="Seed of the sample of problems, if not all fit.")
    out: Path | None = Field(None, description="The page (HTML); by default traces.html in the results folder.")
    excerpt: Path | None = Field(None, description="A page of at most 1.5 MB, for Snakemake's report.")

    def cli_cmd(self) -> None:
        if not self.models and (record := self.results / RECORD).is_file():
            options = json.loads(record.read_text()) | self.model_dump(include=self.model_fields_set)
            return Traces(**options).cli_cmd()
        folder = Folder(self.results, self.tables)
        datasets = self.datasets or folder.datasets()
        if not datasets:
            raise ValueError(f"{self.results}/rollouts: no rollouts here yet")
        styles = self.models or {name: ModelStyle(label=name) for name in datasets}
        looks = Appearance(styles)
        problems, chunks, latex = self.problems(folder, datasets)
        order = list(range(len(problems)))
        random.Random(self.seed).shuffle(order)
        sizes = [len(chunk) + len(packed(line)) for chunk, line in zip(chunks, problems, strict=True)]
        fixed = {
            "experiment": self.results.name,
            "markers": sorted(self.markers, key=len, reverse=True),
            "models": {m: {"label": styles[m].label, "colour": looks.colour(m)} for m in styles if m in datasets},
        }
        title, out = f"Traces of {self.results.name}", self.out or self.results / "traces.html"
        for path, most in {out: self.megabytes, **({self.excerpt: IN_REPORT} if self.excerpt else {})}.items():
            shown = fitting(order, sizes, most * 1e6 - len(page(title, fixed, {}, latex=latex)))
            note = (
                f"{len(shown)} of {len(problems)} problems, drawn by seed {self.seed}"
                if len(shown) < len(order)
                else ""
            )
            lines = [{**problems[i], "chunk": f"chunk{i}"} for i in shown]
            kept = {f"chunk{i}": chunks[i] for i in shown}
            write_text(page(title, {**fixed, "note": note, "problems": lines}, kept, latex=latex), path)
            print(f"{path}: {note or f'{len(shown)} problems'}, {path.stat().st_size / 1e6:.1f} MB")

    def problems(
        self, folder: Folder, datasets: Mapping[str, list[str]]
    ) -> tuple[list[dict[str, Any]], list[str], bool]:
        """Of each problem its line of the index and its packed chunk; and whether any text may hold LaTeX."""
        lines, chunks, latex = [], [], False
        curves = prefix_accuracy(self.prefix_accuracy) if self.prefix_accuracy else {}
        for dataset in dict.fromkeys(name for names in datasets.values() for name in names):
            problems = folder.read(PROBLEMS, dataset=dataset)
            models = [model for model in datasets if dataset in datasets[model]]
            traces = {
                m: traces_of(folder, m, dataset, self.cuts(folder, m, dataset), self.backtracking) for m in models
            }
            trees = {m: trees_of(folder, m, dataset) for m in models}
            searches = {m: attempts_of(folder, m, dataset) for m in models}
            for row in problems.iter_rows(named=True) if problems is not None else ():
                of = {m: traces[m][row["id"]] for m in models if row["id"] in traces[m]}
                grown = {m: nodes[row["id"]] for m, nodes in trees.items() if row["id"] in nodes}
                if not (of or grown):
                    continue
                for m, its in of.items():
                    for trace, curve in product(its, curves.get((row["id"], self.named.get(m, m)), [])):
                        if aligned := align_chunks(
                            "".join((trace["before"], *trace["episodes"], trace["after"])), curve
                        ):
                            trace["measured"] = aligned
                opening = " ".join(row["problem"].split())[:160]
                numbers = {m: summary(its) for m, its in of.items()}
                line = {"id": row["id"], "dataset": dataset, "difficulty": row["difficulty"], "opening": opening}
                lines.append({**line, "models": numbers})
                shown = {name: row[name] for name in ("problem", "answer", "solution", "source")}
                texts = [
                    row["problem"],
                    *(text for its in of.values() for t in its for text in (*t["episodes"], t["after"])),
                ]
                latex = latex or any(MATH.search(text) for text in texts)
                attempts = {m: search[row["id"]] for m, search in searches.items() if row["id"] in search}
                chunks.append(packed({**shown, "traces": of, "trees": grown, "linearized": attempts}))
        return lines, chunks, latex

    def cuts(self, folder: Folder, model: str, dataset: str) -> Rows | None:
        """Where a training set cut the model's traces of a dataset; None if none was made of them.

        Of several sets, MRT's counts, the first one: STaR's keep whole traces.
        """
        cuts = None
        for trained, of in self.sets.items():
            if of == (model, dataset) and (rows := folder.read(SET, trained)) is not None:
                cuts = by_trace(rows, pl.col("prefix").first())
                if rows["prefix"].is_not_null().any():
                    break
        return cuts


if __name__ == "__main__":
    run(Traces)
