"""Make docs/claims.md from the claims of finished experiments, in the checkout that ran them (`make claims`):

    python workflow/scripts/claims.py docs/claims.md results/claims_star results/claims_rl

Each experiment has a section, which names its commit and its command. One that is not given keeps the section that the
page has.
"""

import re
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path

from mrt.core.storage import read_table, write_text
from mrt.figures.claims import layout
from mrt.figures.tables import markdown

EXPERIMENTS = {  # by results folder: heading, and the configuration files
    "claims_star": ("Thoughts, STaR and MRT (STaR)", "config.yaml experiments/star/config.yaml"),
    "claims_rl": ("GRPO and MRT (RL)", "config.yaml config/rl.yaml experiments/rl/config.yaml"),
    "claims_curriculum": (
        "A budget that grows",
        "config.yaml config/rl.yaml experiments/curriculum/models.yaml experiments/curriculum/config.yaml",
    ),
    "mu_seeds": (
        "J by likelihood against sampled answers",
        "config.yaml config/rl.yaml experiments/likelihood/models.yaml experiments/likelihood/config.yaml",
    ),
    "mu_confirm": (
        "J by likelihood without prefixes, on other problems",
        "config.yaml config/rl.yaml experiments/likelihood/models.yaml experiments/likelihood_confirmed/config.yaml",
    ),
    "mu_published": (
        "J by likelihood without prefixes, against GRPO as published",
        "config.yaml config/rl.yaml experiments/likelihood/models.yaml experiments/likelihood_published/config.yaml",
    ),
    "mu_prefixes": (
        "J by likelihood, from prefixes and without",
        "config.yaml config/rl.yaml experiments/likelihood/models.yaml experiments/likelihood_prefixes/config.yaml",
    ),
    "long_thoughts": (
        "J by likelihood without prefixes, where thoughts are long",
        "config.yaml config/rl.yaml experiments/long_thoughts/config.yaml",
    ),
    "claims_backtracking": ("Backtracking search", "config/backtracking.yaml experiments/backtracking/config.yaml"),
}
NOTES = {
    "claims_star": "MRT (STaR) keeps prefixes with J of at least 0.6, which is not the paper's rule. What is called"
    " the paper's rule keeps any progress above 0 and weighs by it. Few episodes are 2 to 5, many are 6 and more"
    " (there 6 to 10 and 41 to 45).",
    "claims_rl": "MRT (RL) is Algorithm 2, which gives one reward at the end of a trace, as the paper does (Sections"
    " 7.1 and 9). By episode is what the paper names and does not use: each episode is credited with its own progress,"
    " alpha 2, centred ([rl.md](rl.md)). Lengths are of traces at test time: in training MRT (RL) goes on from an"
    " unfinished thought of its parent, whose tokens count there too.",
    "claims_curriculum": "At test time, where the paper's Figure 11 is of training. Beyond 96 tokens the regret of the"
    " first model is extrapolated by budget forcing, as in Figure 12; the table of models has none there.",
    "claims_backtracking": "MRT (RL) is Algorithm 2; by episode credits each episode with its own progress, alpha 2,"
    " centred. MRT (STaR) keeps backtracks with a progress above 0.3. The training loss is that of the second"
    " half of the steps, on sets cut to the same number of tokens.",
    "mu_seeds": "The paper leaves open whether MRT (RL) is worth its compute (Section 9). Here MRT (RL) credits each"
    " episode with its own progress; [its page](../experiments/likelihood/README.md) says what the models are. *From"
    " the problem*: prompts hold the problem alone (`prefixes: 0`); else they also hold the first episodes of a"
    " thought.",
    "mu_confirm": "The comparison that came out for MRT (RL) at equal FLOPs, repeated alone with six training runs,"
    " other training problems and 600 other test problems.",
    "mu_published": "With new problems, and six training runs of each model.",
    "mu_prefixes": "At equal FLOPs, as they are since a training pass reads each distinct prompt once.",
    "long_thoughts": "The base thinks for 14 episodes in the mean (nine tenths of its thoughts have 3 to 29), some 290"
    " tokens, on problems of 6 to 8 numbers.",
}
COMMAND = "snakemake --cores 2 claims runs --configfile {files}"
OLDER = "follows older rules"  # of a page with percentile intervals and verdicts that are not corrected
INTRODUCTION = """# The paper's claims, and what they are here

One row is one claim of the paper: where it stands and what it says (*ours*: not the paper's, but asked here); the same
comparison on the toy world, with its 95 % interval over training runs and problems; the runs and problems that it
stands on; the verdict; and the target that redraws it. A claim is **supported** or **contradicted** if the difference
is significant at 5 %, corrected (Holm) for the number of claims about the same two methods in an experiment: a family.
Else it is **not significant**. The verdict is of the direction, not of the size of the difference. `5 against 1` are
five runs against a model that is given, of which there is only one. The toy is a 1M-parameter model on sums: what is
contradicted here may well hold at the paper's scale.

Of {claims} rows of the paper {paper}.
Of {questions} of ours {ours}.
Verdicts are corrected within {families} families. Each holds a false verdict in at most 5 % of cases: at most
{bound:.2g} of them are expected to.
`make claims` makes this page; other pages quote it. A link leads to a row by the folder of its results and its number,
`claims.md#claims_star_12`; `results/claims_star/tables/claims.csv` has its numbers where the command has run.
"""


def section(folder: Path, commit: str) -> str:
    """What the page says of an experiment."""
    heading, files = EXPERIMENTS[folder.name]
    claims = anchored(markdown(layout(read_table(folder / "tables" / "claims.parquet"), {})), folder.name)
    models = (folder / "tables" / "runs.md").read_text()
    command = COMMAND.format(files=files)
    note = f"{NOTES[folder.name]} " if folder.name in NOTES else ""
    head = f"## {heading}\n\n{note}At commit {commit}:\n\n```sh\n{command}\n```\n\n"
    return f"{head}{claims}\n### Its models\n\n{models}"


def anchored(claims: str, name: str) -> str:
    """A table of claims with an anchor in each row, beside its runs: `#claims_star_12` leads to the twelfth."""
    number = count(1)
    runs = re.compile(r"^(\|[^|]*\|[^|]*\|[^|]*\| \d[^|]*?) \|", re.MULTILINE)
    return runs.sub(lambda row: f'{row[1]} <a id="{name}_{next(number)}"></a> |', claims)


def page(old: str, new: dict[str, str]) -> str:
    """The page with new sections, by heading, in place of those of the old one.

    Raises:
        ValueError: if a section that would stay is of a page that follows older rules: verdicts of both cannot be
            counted together.
    """
    kept = {part.splitlines()[0]: f"## {part}" for part in re.split(r"^## ", old, flags=re.MULTILINE)[1:]}
    stale = [heading for heading in kept if heading not in new] if OLDER in old.split("## ")[0] else []
    if stale:
        raise ValueError(f"the page {OLDER}; make these sections with the others: {'; '.join(stale)}")
    sections = [new.get(heading) or kept.get(heading) for heading, _ in EXPERIMENTS.values()]
    text = "\n".join(part.strip() + "\n" for part in sections if part)
    rows = re.findall(
        r"^\| (ours)?[^|]*\|.*\| (supported|contradicted|not significant)\b[^|]*\| \w+ \|$", text, re.MULTILINE
    )
    paper, ours = (Counter(verdict for who, verdict in rows if who == whose) for whose in ("", "ours"))
    counted = "{0[supported]} are supported, {0[contradicted]} contradicted, {0[not significant]} not significant"
    families = sum(map(int, re.findall(r"claims about the same two methods, here \d+ in (\d+) families", text)))
    counts = {"claims": paper.total(), "questions": ours.total(), "families": families, "bound": 0.05 * families}
    return INTRODUCTION.format(paper=counted.format(paper), ours=counted.format(ours), **counts) + "\n" + text


if __name__ == "__main__":
    out, *folders = map(Path, sys.argv[1:])
    if unknown := [str(folder) for folder in folders if folder.name not in EXPERIMENTS]:
        sys.exit(f"{', '.join(unknown)}: the page has no such experiment, but {', '.join(EXPERIMENTS)}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    sections = {EXPERIMENTS[folder.name][0]: section(folder, commit.strip()) for folder in folders}
    try:
        write_text(page(out.read_text() if out.exists() else "", sections), out)
    except ValueError as error:
        sys.exit(f"{out}: {error}")
