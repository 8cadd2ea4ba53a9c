"""Another workflow uses this one as a module, from its folder."""

import pytest
from conftest import ROOT, TOY_BASE, snakemake

from mrt.core.artifacts import ROLLOUTS
from mrt.core.digest import identity_of_model
from mrt.core.fingerprint import fingerprint
from mrt.core.storage import read_provenance

pytestmark = pytest.mark.slow

SNAKEFILE = f"""
configfile: "toy.yaml"


module mrt:
    snakefile: "{ROOT}/Snakefile"
    config: config


use rule * from mrt as mrt_*


onstart:
    mrt.onstart()


rule mine:
    default_target: True
    input: "results/tiny/rollouts/base/toy_test.parquet"
    output: "size.txt"
    shell: "wc -c {{input}} > {{output}}"
"""


def test_rollouts_of_the_toy_are_made_for_another_workflow(tmp_path):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "toy.yaml").write_text((ROOT / "tests" / "tiny.yaml").read_text())
    snakemake(tmp_path, "--cores", "1")
    rollouts = tmp_path / "results" / "tiny" / "rollouts" / "base" / "toy_test.parquet"
    assert ROLLOUTS.read(rollouts).height and str(rollouts.stat().st_size) in (tmp_path / "size.txt").read_text()
    made_with = read_provenance(rollouts)
    assert made_with["code"] == fingerprint("mrt.sampling.rollouts")  # of this package, not of an installed one
    weights = identity_of_model(str(TOY_BASE))
    assert made_with["weights"] == weights
    assert (tmp_path / "results" / "tiny" / ".running").exists()  # the run held its results
    again = snakemake(tmp_path, "-n")
    assert "Nothing to be done" in again.stdout + again.stderr
