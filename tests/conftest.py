"""What tests share: where the toy base is, where real data may be, and tables in the artifacts' columns."""

import os
from pathlib import Path

import polars as pl
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

ROOT = Path(__file__).parents[1]
TOY_BASE = ROOT / "mrt" / "toy" / "weights"
SHARED = ROOT.parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data is not beside this checkout")


@pytest.fixture
def toy_problems(tmp_path: Path) -> Path:
    """A problem set of 12 toy problems on disk."""
    import random

    from mrt.problems import SCHEMA
    from mrt.toy.world import draw_problem

    rng = random.Random(5)
    rows = []
    for i in range(12):
        problem = draw_problem(rng, 3 + i % 3)
        rows.append((f"t{i:02}", problem.text, str(problem.answer), None, float(3 + i % 3), "toy", "test"))
    path = tmp_path / "problems.parquet"
    pl.DataFrame(rows, schema=SCHEMA, orient="row").write_parquet(path)
    return path
