"""Which problems the shipped toy bases were trained on, in any order of their numbers.

`seen.parquet` has one code for each problem that at least one of the three bases saw, in column `step` the distance of
each to the one before, in increasing order. `workflow/scripts/seen.py` draws the training traces again and writes it.
"""

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import polars as pl

LEDGER = Path(__file__).with_name("seen.parquet")
SHA256 = "d1288bca9835268afb0ef978b07f5b2021a318528b0deda031cc7800857cf082"


def code(numbers: Iterable[int], target: int) -> int:
    """A number for a problem, the same for all orders of its numbers (1 to 20, all different; the target is below 64).

    Bit 6 + n says whether it gives the number n; the lowest six bits are the target.
    """
    return sum(1 << 6 + number for number in numbers) | target


@cache
def seen() -> frozenset[int]:
    """Codes of the problems that the shipped bases were trained on; raises ValueError if the ledger is another one."""
    if hashlib.sha256(LEDGER.read_bytes()).hexdigest() != SHA256:
        raise ValueError(f"{LEDGER} is not the ledger of the shipped toy bases; take it from the repository again")
    return frozenset(pl.read_parquet(LEDGER)["step"].cast(pl.Int64).cum_sum().to_list())


def write(codes: Iterable[int], file: Path) -> None:
    """Write a ledger of these codes."""
    steps = pl.Series("step", sorted({*codes}), pl.Int64).diff().fill_null(0)
    first = min(codes)
    steps[0] = first
    steps.cast(pl.UInt32).to_frame().write_parquet(file, compression="zstd", compression_level=22, statistics=False)
