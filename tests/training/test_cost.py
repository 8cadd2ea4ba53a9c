"""What training takes: tokens and FLOPs along the lineage."""

import polars as pl
import pytest

from mrt.core.artifacts import COST, PROVER, ROLLOUTS
from mrt.training.cost import Cost, flops, of_prover


def forced(prefixes, answers):
    rows = [
        ("p", 0, j, i, "text", 5, 10 * j, 10 * j + 7, "stop")  # a prefix of 10 j tokens, and 7 that force the answer
        for j in range(prefixes)
        for i in range(answers)
    ]
    return pl.DataFrame(rows, schema=PROVER.columns, orient="row")


def test_a_shared_prefix_is_read_once():
    assert of_prover(forced(3, 4)) == (3 * 4 * 5, 20 + 3 * 7)


def test_the_lineage_adds_up(tmp_path):
    rollouts = pl.DataFrame(
        [("p", s, "q", "t", 100, "stop", -1.0) for s in range(2)], schema=ROLLOUTS.columns, orient="row"
    )
    rollouts.write_parquet(tmp_path / "rollouts.parquet")
    forced(3, 4).write_parquet(tmp_path / "prover.parquet")
    sft = {"step": [1, 2], "num_tokens": [50.0, 90.0], "parameters": 1000, "flops": [0.0, flops(1000, trained=90)]}
    pl.DataFrame(sft).write_parquet(tmp_path / "sft.parquet")
    rl = {"step": [1], "num_tokens": [60], "parameters": 1000, "flops": [9e9]}
    rl |= {"tokens_sampled": [40], "tokens_forced": [8], "tokens_read": [3]}
    pl.DataFrame(rl).write_parquet(tmp_path / "rl.parquet")
    Cost(
        model="mrt", log=tmp_path / "sft.parquet", rollouts=tmp_path / "rollouts.parquet",
        prover=tmp_path / "prover.parquet", out=tmp_path / "mrt.parquet",
    ).cli_cmd()  # fmt: skip
    Cost(
        model="rl", log=tmp_path / "rl.parquet", rollouts=tmp_path / "rollouts.parquet",
        parent=tmp_path / "mrt.parquet", out=tmp_path / "rl_cost.parquet",
    ).cli_cmd()  # fmt: skip
    assert COST.read(tmp_path / "rl_cost.parquet").rows() == [
        ("mrt", "rollouts", 200, 0, 0, 2.0 * 1000 * 200),
        ("mrt", "prover", 60, 41, 0, 2.0 * 1000 * 101),
        ("mrt", "training", 0, 0, 90, 6.0 * 1000 * 90),
        ("rl", "rollouts", 200, 0, 0, 2.0 * 1000 * 200),
        ("rl", "training", 48, 3, 60, 9e9),
    ]


def test_a_resumed_trainer_counts_on():
    from mrt.training.log import sft_log

    names = ("epoch", "loss", "learning_rate", "grad_norm", "entropy", "mean_token_accuracy")
    history = [
        {"parameters": 10, "step": i + 1, **dict.fromkeys(names, 1.0), "num_tokens": n}
        for i, n in enumerate([100, 250, 80, 200])
    ]
    log = sft_log(history)
    assert log["num_tokens"].to_list() == [100, 250, 330, 450]
    assert log["flops"].to_list() == pytest.approx([60 * n for n in (100, 250, 330, 450)])
