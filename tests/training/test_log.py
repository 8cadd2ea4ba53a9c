"""Training logs from elsewhere become the log of a model."""

import polars as pl
import pytest

from mrt.training.log import RL_LOG, MakeLog


def test_a_log_is_read_sorted_and_typed(tmp_path):
    (tmp_path / "log.csv").write_text("completion_tokens,step,reward,note\n900,2,0.5,x\n1000,1,0.25,y\n")
    MakeLog(file=tmp_path / "log.csv", out=tmp_path / "log.parquet").cli_cmd()
    log = pl.read_parquet(tmp_path / "log.parquet")
    assert dict(log.schema) == RL_LOG and log.rows() == [(1, 0.25, 1000.0), (2, 0.5, 900.0)]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("step,reward\n1,0.5\n", "no column completion_tokens; found step, reward"),
        ("step,reward,completion_tokens\n1,,9\n2,much,9\n", r"log.csv, row 3: reward is not a number but 'much'"),
        ("step,reward,completion_tokens\n1,0.5,inf\n", "row 2: completion_tokens is not a number but 'inf'"),
        ("step,reward,completion_tokens\n1.5,0.5,9\n", "row 2: step is not a whole number but '1.5'"),
        ("step,reward,completion_tokens\n,0.5,9\n", "row 2: step is not a whole number but ''"),
        ("step,reward,completion_tokens\n1,0.5,9\n1,0.5,9\n", "a key that is null or repeats"),
    ],
)
def test_what_is_no_log_is_named(tmp_path, text, wrong):
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(ValueError, match=wrong):
        MakeLog(file=tmp_path / "log.csv", out=tmp_path / "log.parquet").cli_cmd()


def test_a_switch_is_no_reward(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1, "reward": true, "completion_tokens": 9}')
    with pytest.raises(ValueError, match="row 1: reward is not a number but True"):
        MakeLog(file=tmp_path / "log.jsonl", out=tmp_path / "log.parquet").cli_cmd()
