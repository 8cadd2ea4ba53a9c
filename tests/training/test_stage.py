"""What training stages share."""

import platform
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.fast
BATCHES = """
import numpy as np
from mrt.training.stage import tune_malloc
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

BLOCKS = """
import resource
from mrt.training.stage import tune_malloc
{call}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        bytearray(b"x") * 50_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def printed(script, call):
    """The number that the script prints if it begins with the call."""
    command = [sys.executable, "-c", script.format(call=call)]
    return float(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_batches_of_other_lengths_do_not_fill_the_memory():
    """Of 20 MiB that are kept, and 20 batches that are not."""
    assert printed(BATCHES, "tune_malloc(10**9)") < 30
    assert printed(BATCHES, "") > 60  # this test would see it


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_small_model_asks_once_for_its_memory():
    """Five blocks of 50 MB have 60,000 pages of 4 kB; the system may give larger ones."""
    assert 10 * printed(BLOCKS, "tune_malloc(2 * 10**6)") < printed(BLOCKS, "tune_malloc(10**9)")
