"""Check that a training set shares no problem with the evaluation sets; if it does, nothing learns from it.

    python -m mrt.problems.contamination --problems train.parquet --evaluation '{"aime2024": "aime2024.parquet"}' \\
        --out compared.parquet

A problem is shared if decontamination (`disjoint_from`, `mrt.problems.build`) would have dropped it.
"""

from pathlib import Path

import polars as pl
from pydantic import Field

from mrt.core.cli import Stage, run
from mrt.core.storage import write_table
from mrt.problems.decontamination import Sets, contents, toy_key


class Contamination(Stage):
    """Look for problems of a training set in the evaluation sets; sharing one is an error."""

    problems: Path = Field(description="Training set (Parquet).")
    evaluation: dict[str, Path] = Field(description="Evaluation sets: {name: Parquet}, as JSON.")
    out: Path = Field(description="Numbers of problems compared, one row per evaluation set (Parquet).")

    def cli_cmd(self) -> None:
        mine = contents(self.problems)
        compared, shared = [], []
        for name, path in self.evaluation.items():
            theirs = contents(path).select("content", "source")
            # Toy problems all have the same wording, so they are compared by their numbers.
            toys = {toy_key(problem) for problem, source in theirs.iter_rows() if source == "toy"}
            texts = Sets(problem for problem, source in theirs.iter_rows() if source != "toy")
            common = [
                problem_id
                for problem_id, problem, source in mine.iter_rows()
                if (toy_key(problem) in toys if source == "toy" else texts.has(problem) or texts.overlaps(problem))
            ]
            compared.append((name, theirs.height, mine.height))
            if common:
                some = ", ".join(common[:3])
                shared.append(f"{len(common)} problems of {name} ({some}{', ...' if len(common) > 3 else ''})")
        if shared:
            lacking = self.problems.stem
            raise ValueError(
                f"{self.problems}: the training set has {'; '.join(shared)}: name these sets in"
                f" problems.{lacking}.disjoint_from"
            )
        write_table(
            pl.DataFrame(compared, schema=["evaluation_set", "problems", "training_problems"], orient="row"), self.out
        )


if __name__ == "__main__":
    run(Contamination)
