"""What training stages share."""

import platform
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.fast
BATCHES = """
import numpy as np
from mrt.training.stage import return_freed_memory
{call}
def resident():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) / 1024
rng, kept, before = np.random.default_rng(0), [], resident()
for _ in range(20):
    batch = [np.ones(int(n)) for n in rng.integers(2**20, 3.5 * 2**20, 8)]  # 8 to 28 MiB each
    kept += [np.ones(2**16), np.ones(2**16)]  # 1 MiB, behind them
    del batch
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_batches_of_other_lengths_do_not_fill_the_memory():
    """Of 20 MiB that are kept, and 20 batches that are not."""

    def grown(call):
        command = [sys.executable, "-c", BATCHES.format(call=call)]
        return float(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)

    assert grown("return_freed_memory()") < 30
    assert grown("") > 60  # this test would see it
