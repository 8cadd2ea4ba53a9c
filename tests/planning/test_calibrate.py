"""How fast a machine is, measured with the real engine."""

import polars as pl
import pytest
from conftest import TOY_BASE

from mrt.planning.bill import Reached
from mrt.planning.calibrate import Calibrate


def test_what_is_measured_is_a_share_of_the_data_sheet(tmp_path, capfd):  # vLLM writes to the file descriptor
    engine = {"max_model_len": 256, "cpu_cache_gib": 0.1, "max_num_seqs": 8}
    sizes = {"prompts": 4, "prompt_tokens": 64, "sequences": 8, "tokens": 16}
    Calibrate(model=str(TOY_BASE), engine=engine, out=tmp_path / "out.parquet", **sizes).cli_cmd()
    (row,) = pl.read_parquet(tmp_path / "out.parquet").to_dicts()
    reached = Reached.model_validate(row)
    assert 0 < reached.prefill <= 1 and 0 < reached.decode <= 1
    assert reached.training == pytest.approx(0.8 * reached.prefill)
    assert capfd.readouterr().out.splitlines()[-1].startswith("measured on a CPU: ")


def test_a_machine_faster_than_its_data_sheet_is_planned_as_the_data_sheet():
    assert Reached.at_most_all(3, 2, 4) == Reached.ideal()
    assert Reached.at_most_all(3, 2).training == pytest.approx(0.8)
