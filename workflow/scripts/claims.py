"""Make docs/claims.md from the claims of finished experiments, in the checkout that ran them:

snakemake --cores 2 claims runs --configfile config.yaml config/rl.yaml config/claims.yaml
snakemake --cores 2 claims runs --configfile config/backtracking.yaml config/claims_backtracking.yaml
python workflow/scripts/claims.py docs/claims.md results/claims results/claims_backtracking
"""

import subprocess
import sys
from pathlib import Path

import polars as pl

from mrt.core.storage import read_table, write_text
from mrt.figures.claims import layout
from mrt.figures.tables import markdown

INTRODUCTION = """# The paper's claims, and what they are here

One row is one claim of the paper: where it stands and what it says; the same comparison on the toy world, with its 95 %
interval over training runs and problems; the verdict; and the target that redraws it. A claim is **confirmed** or
**refuted** only if the interval leaves no other possibility; else it is **undecided** here. The toy is a 1M-parameter
model on sums: what is refuted does not hold everywhere, and may well hold at the paper's scale.

Of {claims} claims {confirmed} are confirmed, {refuted} refuted, {undecided} undecided. These commands made this page,
at commit {commit}; other pages quote it:

```sh
{commands}```
"""


def section(folder: Path) -> tuple[str, pl.DataFrame]:
    table = read_table(folder / "tables" / "claims.parquet")
    runs = (folder / "tables" / "runs.md").read_text()
    return f"\n## {folder.name}\n\n{markdown(layout(table, {}))}\n### Its models\n\n{runs}", table


if __name__ == "__main__":
    out, *folders = map(Path, sys.argv[1:])
    sections = [section(folder) for folder in folders]
    verdicts = pl.concat([table["verdict"] for _, table in sections])
    counts = {verdict: int((verdicts == verdict).sum()) for verdict in ("confirmed", "refuted", "undecided")}
    commands = "".join(f"{line.strip()}\n" for line in (__doc__ or "").splitlines()[2:])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    text = INTRODUCTION.format(claims=len(verdicts), commands=commands, commit=commit.strip(), **counts)
    write_text(text + "".join(part for part, _ in sections), out)
