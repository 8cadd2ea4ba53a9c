"""Where the results come from: a table of what made each artifact, and the configuration, for the report.

    python -m mrt.figures.provenance --files '{"rollouts base/toy_test": "rollouts.parquet"}' --config '{}' \\
        --out provenance

The metadata of every table that a stage writes gives its origin (`mrt.core.storage`): the stage, the fingerprint of its
code, and the versions of the libraries that determine its result. For completions it also has the content of the
model's weights. The row of a model is that of its training.
"""

from html import escape
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from pydantic import Field

from mrt.core.cli import Stage, run
from mrt.core.commit import commit_of, today
from mrt.core.storage import read_provenance, write_table, write_text
from mrt.figures.tables import Layout, markdown, page

NOTE = (
    "code: fingerprint of the definitions that the stage reaches. weights: content of the checkpoint"
    " that sampled. Equal values everywhere make equal results, up to the rounding of the machine."
)
SCHEMA = {
    "artifact": pl.String,
    "rows": pl.Int64,
    "stage": pl.String,
    "code": pl.String,
    "weights": pl.String,
    "versions": pl.String,
}


def describe(files: dict[str, Path]) -> pl.DataFrame:
    """One row per artifact: its number of rows, and what made it; null where its metadata does not say."""
    rows = []
    for name, path in files.items():
        made = read_provenance(path) or {}
        versions = ", ".join(made.get("versions", {}).values())
        count = pl.scan_parquet(path).select(pl.len()).collect().item()
        rows.append((name, count, made.get("stage"), made.get("code"), made.get("weights"), versions or None))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def written() -> str:
    """When this page is written, and at which commit of the code: of the page alone, as tables hold no date."""
    return f"This page was written on {today()}, at {commit_of(Path(__file__).parent)}."


class Provenance(Stage):
    """Tabulate what made each result."""

    files: dict[str, Path] = Field(description="Artifacts by name (Parquet), as JSON.")
    config: dict[str, Any] = Field(description="The configuration, as JSON.")
    out: Path = Field(description="Output path without suffix; .md, .html and .parquet are written.")

    def cli_cmd(self) -> None:
        table = describe(self.files)
        cells = [["" if value is None else str(value) for value in row] for row in table.iter_rows()]
        settings = yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True, width=110)
        layout = Layout("provenance", table.columns, cells, set(), f"{NOTE} {written()}")
        heading = "The configuration, with all defaults"
        for suffix, text in (
            ("md", f"{markdown(layout)}\n{heading}:\n\n```yaml\n{settings}```\n"),
            ("html", f"{page(layout)}<h3>{heading}</h3><pre>{escape(settings)}</pre>\n"),
        ):
            write_text(text, self.out.with_name(f"{self.out.name}.{suffix}"))
        write_table(table, self.out.with_name(f"{self.out.name}.parquet"))


if __name__ == "__main__":
    run(Provenance)
