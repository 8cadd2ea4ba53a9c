"""`mrt STAGE ...` runs a stage, as `python -m mrt.STAGE ...` does; `mrt` alone lists them."""

import runpy
import sys
from importlib.util import find_spec

STAGES = {
    "problems": "datasets from the hub, a file or the toy world",
    "sampling": "rollouts, with vLLM",
    "imports": "rollouts that somebody sampled elsewhere",
    "episodes": "cut thoughts into episodes",
    "prover": "forced answers at every prefix, with vLLM",
    "budget_forcing": "thoughts made to go on, and their answers, with vLLM",
    "grading": "right or wrong",
    "progress": "J and progress of every prefix",
    "sets": "STaR's and MRT's training sets",
    "cold_start": "the set that makes a model without thoughts one that thinks",
    "train.sft": "fine-tune, with TRL",
    "train.log": "the log of a model that RL trained elsewhere",
    "evaluate": "measurements of one model on one dataset",
    "figures.pass1": "the table of pass@1; the other tables and figures: docs/gallery.md",
    "provenance": "what made the results, for the report",
    "toy.base": "make the toy base reasoner",
    "show": "what a table is and what made it",
    "plan": "what an experiment will cost, before it runs; after it, what it did",
    "why": "why jobs would run again, and which of them would train or sample",
    "calibrate": "how fast this machine is, for the plan",
}


def main() -> None:
    """Run the stage that the command line names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if not name or name.startswith("-") or find_spec(f"mrt.{name}") is None:
        print("usage: mrt STAGE [--help | options]\n", *(f"  {k:15}{v}" for k, v in STAGES.items()), sep="\n")
        sys.exit(0 if name in ("", "-h", "--help") else f"\nthere is no stage {name!r}")
    del sys.argv[1]
    runpy.run_module(f"mrt.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
