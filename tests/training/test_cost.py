"""What training takes: tokens and FLOPs along the lineage."""

import polars as pl
from conftest import TOY_BASE

from mrt.core.artifacts import COST, PROVER, ROLLOUTS
from mrt.training.cost import Cost, of_prover, of_rollouts, sizes_of
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
        [("p", s, "q", "t", 100, 30, "stop", -1.0, True, None) for s in range(2)], schema=ROLLOUTS.columns, orient="row"
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


def test_a_checkpoint_on_the_way_counts_its_training_until_its_step(tmp_path):
    pl.DataFrame({"step": [1, 2], "num_tokens": [50, 90], "flops": [3e5, 5e5]} | SIZES).write_parquet(tmp_path / "log")
    Cost(model="sft_step1", log=tmp_path / "log", step=1, out=tmp_path / "cost").cli_cmd()
    assert COST.read(tmp_path / "cost").rows() == [("sft_step1", "training", 0, 0, 50, 3e5)]


def test_gold_answers_are_read_and_not_generated():
    """Where their probability is read off, the output layer runs for all that is read."""
    drawn = of_prover(forced(3, 1))
    scored = of_prover(forced(3, 1).with_columns(finish_reason=pl.lit("scored")))
    assert (drawn.generated, drawn.read, drawn.scored) == (15, 71, 0)
    assert (scored.generated, scored.read, scored.scored) == (0, 86, 86) and scored.pairs == drawn.pairs
    sizes = Sizes(**SIZES)
    assert scored.flops(sizes) - drawn.flops(sizes) == 2 * 100 * 71
    some = forced(3, 1).with_columns(finish_reason=pl.when(prefix=0).then(pl.lit("scored")).otherwise("finish_reason"))
    assert (of_prover(some).generated, of_prover(some).scored) == (10, 76)


def test_where_mu_repeats_an_attempt_nothing_more_is_read():
    """Its prompt ends before the attempt's answer: 20 tokens of the prefix, of which it has 12."""
    table = forced(3, 1).with_columns(prompt_tokens=pl.min_horizontal("prompt_tokens", pl.lit(42)))
    assert of_prover(table).read == 30 + 12 + 7 + 2


def test_a_teacher_and_another_mu_count_with_their_own_sizes(tmp_path):
    pl.DataFrame({"step": [1], "num_tokens": [5], "flops": [1.0]} | SIZES).write_parquet(tmp_path / "log.parquet")
    forced(3, 4).write_parquet(tmp_path / "prover.parquet")
    given = sizes_of(str(TOY_BASE))
    assert given.output_weights > 0 and given != Sizes(**SIZES)
    cost = Cost(
        model="m", log=tmp_path / "log.parquet", prover=tmp_path / "prover.parquet", out=tmp_path / "cost.parquet",
        settings={"sampled_by": {"prover": [str(TOY_BASE), None]}},
    )  # fmt: skip
    cost.cli_cmd()
    assert COST.read(cost.out)["flops"].to_list() == [of_prover(forced(3, 4)).flops(given), 1.0]


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
