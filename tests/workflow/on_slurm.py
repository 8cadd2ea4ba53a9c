"""Small workflows on a real SLURM, through the project's profile."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from conftest import ROOT

LONG = 600  # seconds, on a busy machine


def until(condition, what, log, every=0.2):
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, f"no {what}: {log.read_text()}"
        time.sleep(every)


class Checkout:
    """A folder with a workflow that runs on the cluster; its jobs note their work in the file `jobs`."""

    always: tuple = ()  # arguments of each Snakemake

    def __init__(self, cluster, folder, snakefile):
        self.cluster, self.folder, self.runs = cluster, folder, 0
        (folder / "results").mkdir(parents=True)
        (folder / "Snakefile").write_text(snakefile)
        shutil.copytree(ROOT / "slurm", folder / "slurm")

    def start(self, *arguments, targets=(), **options):
        self.runs += 1
        self.out = self.folder / f"out{self.runs}"
        profile = ["--profile", "slurm", "--seconds-between-status-checks", "1", "--latency-wait", "1"]
        command = [Path(sys.executable).parent / "snakemake", *targets, *profile, *self.always]
        with self.out.open("w") as out:
            options = {"cwd": self.folder, "stdout": out, "stderr": subprocess.STDOUT, **options}
            self.main = self.cluster.start(*command, *arguments, **options)
        return self.main

    def run(self, *arguments, **options):
        """Its exit status and output."""
        status = self.start(*arguments, **options).wait(timeout=LONG)
        return status, self.out.read_text()

    def ends_well(self, *arguments, **options):
        return self.ended_well(self.start(*arguments, **options))

    def ended_well(self, main):
        assert main.wait(timeout=LONG) == 0, self.out.read_text()
        return self.out.read_text()

    def says(self, words):
        until(lambda: words in self.out.read_text(), words, self.out)

    def queue_empties(self):
        until(lambda: not self.queue(), "end of the job", self.out)

    def jobs(self):
        """The notes of its jobs, line by line: [(word, word, ...), ...]."""
        path = self.folder / "jobs"
        return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []

    def queue(self, form="%T", *options):
        asked = self.cluster.run("squeue", "--noheader", f"--format=%Z {form}", *options).splitlines()
        return [line.split()[1] for line in asked if line.split()[0] == str(self.folder)]
