"""`mrt STAGE ...` runs a stage, as `python -m mrt.STAGE ...` does; `mrt` alone lists them."""

import runpy
import sys
from importlib.util import find_spec

TOOLS = {  # by a short name, since people type them
    "plan": ("planning.plan", "what an experiment will cost, before it runs; after it, what it did"),
    "why": ("planning.why", "why jobs would run again, and which of them would train or sample"),
    "clean": ("planning.clean", "what of the results no configuration needs, and remove it"),
    "show": ("core.show", "what a table or a model is and what made it"),
    "traces": ("traces.page", "a page to look at traces, of what a results folder holds so far"),
    "parity": ("sampling.parity", "an evaluation harness's verdicts against ours, sample by sample"),
    "publish": ("planning.publish", "a trained model, its card and its data to the Hugging Face hub"),
    "trial": ("planning.trial", "whether the project runs on this machine's GPU, how exact, how fast, how large"),
    "calibrate": ("planning.calibrate", "how fast this machine is, for the plan"),
}
STAGES = {
    "problems.build": "datasets from the hub, a file or the toy world",
    "problems.contamination": "whether a training set shares problems with an evaluation set",
    "sampling.rollouts": "rollouts, with vLLM",
    "sampling.pool": "all that a model samples of one stage, with one engine, into completion caches",
    "sampling.imports": "rollouts that somebody sampled elsewhere",
    "episodes.cut": "cut thoughts into episodes",
    "sampling.prover": "forced answers at every prefix, with vLLM",
    "sampling.allocation": "the same, as many as MRT (STaR)'s filter needs",
    "sampling.likelihood": "J at every prefix as the probability of the gold answer, with vLLM",
    "sampling.budget_forcing": "thoughts made to go on, and their answers, with vLLM",
    "sampling.tree": "solution trees, with vLLM",
    "sampling.linearized": "attempt after attempt in one text, with vLLM",
    "grading.grade": "right or wrong",
    "analysis.progress": "J and progress of every prefix",
    "analysis.evaluate": "measurements of one model on one dataset",
    "training.sets": "training sets: STaR's, MRT's, cold starts, warmstarts",
    "training.prompts": "prompts of RL",
    "training.sft": "fine-tune, with TRL",
    "training.rl": "GRPO, MRT (RL), a length penalty, with TRL",
    "training.log": "the log of a training",
    "training.cost": "what a training took",
    "figures.pass1": "the table of pass@1; the other tables and figures: docs/gallery.md",
    "figures.report": "the report, of finished figures",
    "figures.provenance": "what made the results, for the report",
    "training.toy_base": "make the toy base reasoner",
}


def usage() -> str:
    """The tools and the stages, a line each."""
    lines = {name: what for name, (_, what) in TOOLS.items()} | STAGES
    return "\n".join(["usage: mrt STAGE [--help | options]", "", *(f"  {n:24}{what}" for n, what in lines.items())])


def main() -> None:
    """Run the stage that the command line names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    module = f"mrt.{TOOLS[name][0] if name in TOOLS else name}"
    if not name or name.startswith("-") or not is_runnable(module):
        print(usage())
        sys.exit(0 if name in ("", "-h", "--help") else f"\nthere is no stage {name!r}")
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def is_runnable(module: str) -> bool:
    """Whether there is a module of this name that can be run; a package can if it has a `__main__`."""
    try:
        spec = find_spec(module)
        return spec is not None and (spec.submodule_search_locations is None or is_runnable(f"{module}.__main__"))
    except ModuleNotFoundError:  # nor its package
        return False


if __name__ == "__main__":
    main()
