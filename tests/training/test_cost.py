"""What training takes: tokens and FLOPs along the lineage."""

import polars as pl

from mrt.core.artifacts import COST, PROVER, ROLLOUTS
from mrt.training.cost import Cost, of_prover, of_rollouts
from mrt.training.flops import Sizes

SIZES = {"block_weights": 900, "output_weights": 100, "attention_width": 8, "last_weights": 100}


def forced(prefixes, answers):
    rows = [
        ("p", 0, j, i, "text", 5, 30, 10 * j, 30 + 10 * j + 7, "stop", None)  # 30 of the problem, 7 that force answers
        for j in range(prefixes)
        for i in range(answers)
    ]
    return pl.DataFrame(rows, schema=PROVER.columns, orient="row")


def test_the_lineage_adds_up(tmp_path):
    rollouts = pl.DataFrame(
        [("p", s, "q", "t", 100, 30, "stop", -1.0) for s in range(2)], schema=ROLLOUTS.columns, orient="row"
    )
    rollouts.write_parquet(tmp_path / "rollouts.parquet")
    forced(3, 4).write_parquet(tmp_path / "prover.parquet")
    sft = {"step": [1, 2], "num_tokens": [50, 90], "flops": [0.0, 5e5]} | SIZES
    pl.DataFrame(sft).write_parquet(tmp_path / "sft.parquet")
    rl = {"step": [1], "num_tokens": [60], "flops": [9e9]} | SIZES
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
    drawn = of_rollouts(rollouts).flops(Sizes(**SIZES))
    assert drawn == 2 * 900 * 230 + 2 * 100 * 200 + 4 * 8 * (30 * 31 / 2 + 2 * (130 * 131 - 30 * 31) / 2)
    assert COST.read(tmp_path / "rl_cost.parquet").rows() == [
        ("mrt", "rollouts", 200, 30, 0, drawn),
        ("mrt", "prover", 60, 30 + 20 + 3 * 7, 0, of_prover(forced(3, 4)).flops(Sizes(**SIZES))),
        ("mrt", "training", 0, 0, 90, 5e5),
        ("rl", "rollouts", 200, 30, 0, drawn),
        ("rl", "training", 48, 3, 60, 9e9),
    ]


def test_a_resumed_trainer_counts_on():
    from types import SimpleNamespace

    from mrt.training.flops import Counts

    history = [{"step": 1, "flops": 5.0}, {"step": 2, "flops": 7.0}, {"train_runtime": 1.0}]
    accelerator = SimpleNamespace(device="cpu", reduce=lambda own, reduction: 2 * own)  # two processes
    counts, trainer = (
        Counts("flops"),
        SimpleNamespace(accelerator=accelerator, state=SimpleNamespace(log_history=history)),
    )
    counts.add(flops=1.5)
    counts.add(flops=0.5)
    assert counts.totals(trainer) == {"flops": 11.0} and counts.totals(trainer) == {"flops": 7.0}
