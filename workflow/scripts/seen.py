"""List the problems that the shipped toy bases were trained on: python -m workflow.scripts.seen mrt/toy/seen.parquet

Their training traces are sampled again from their seeds, as their cards say (a minute). Prints the value of SHA256 in
mrt/toy/seen.py.
"""

import hashlib
import random
import sys
from pathlib import Path

from mrt.problems.decontamination import toy_key
from mrt.toy.seen import code, write
from mrt.training.toy_base import drawer

TRACES = {"thoughts": 220_000, "long_thoughts": 20_000, "attempts": 220_000}  # of the cards in mrt/toy/weights*


def trained_on(speaks: str, traces: int) -> set[int]:
    """Codes of the problems in the first training traces of a base."""
    draw = drawer(speaks, random.Random(0))
    texts = (draw()["prompt"].split("<|user|>")[1].split("<|assistant|>")[0] for _ in range(traces))
    return {code(numbers, target) for *numbers, target in map(toy_key, texts)}


if __name__ == "__main__":
    ledger = Path(sys.argv[1])
    write(set().union(*(trained_on(*base) for base in TRACES.items())), ledger)
    print(hashlib.sha256(ledger.read_bytes()).hexdigest())
