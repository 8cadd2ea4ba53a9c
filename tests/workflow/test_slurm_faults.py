"""What goes wrong on a cluster, on a real SLURM with the project's profile, retries and all.

Each run ends complete, or names the fault; none hangs, and no two attempts of a job are ever alive at once.
"""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import groupby
from typing import NamedTuple

import pytest
from conftest import ROOT, Cluster, brought_up
from on_slurm import LONG, Checkout, until

pytestmark = pytest.mark.slow

RULES = {  # {rule: its requests}
    "steady": "",
    "other": "",
    "failing": "",
    "held": 'slurm_extra=config.get("extra", "")',
    "late": "runtime=lambda wildcards, attempt: 2 * attempt",  # minutes; in one, a job may not have started here
    "greedy": "mem_mb=lambda wildcards, attempt: 700 * attempt",
}
SNAKEFILE = f"""
import sys
from pathlib import Path

sys.path.insert(0, "{ROOT}")
from workflow import running

if running.is_job():
    running.record_in_jobs(workflow)


onstart:
    running.begin(Path("results"))
    running.mend_plugin(final_when_preempted=workflow.executor_settings.no_requeue, longest_pause=2)


ATTEMPT = lambda wildcards, attempt: attempt
WORK = "{sys.executable} alone {{output}} {{log}} bash work {{resources.attempt}} {{output}}"


rule after:
    input: "results/{{name}}"
    output: "results/{{name}}.after"
    log: "logs/{{name}}.after.log"
    resources: attempt=ATTEMPT
    shell: WORK
"""
for rule, asks in RULES.items():
    SNAKEFILE += f"""

rule {rule}:
    output: "results/{rule}"
    log: "logs/{rule}.log"
    resources: attempt=ATTEMPT, {asks}
    shell: WORK
"""

# Holds a lock while it works, as a stage does that samples or trains.
ALONE = f"""
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, "{ROOT}")
from mrt.core.lock import held

_, output, log, *command = sys.argv
with held(Path(output + ".lock")), open(log, "w") as file:
    status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
sys.exit(status)
"""
# Half an output, then all of it, and every moment a note that it is alive.
WORK = """
attempt=$1 output=$2 name=${2##*/}
note() { echo "$name $SLURM_JOB_ID $attempt $SLURMD_NODENAME $1" >> jobs; }
lives_until() { until "$@"; do note lives; sleep 0.5; done; }
ended() { ! kill -0 "$1" 2>/dev/null; }
note starts
echo "attempt $attempt" # where a stage printed nothing, Snakemake does not show SLURM's log either
echo half > "$output"
case $name.$attempt in
failing.*) [ -e mended ] || { echo "this is what went wrong"; exit 1; } ;;
late.1) lives_until false ;;
greedy.*) python3 -c 'import time; x = b"x" * (700 << 20); time.sleep(8)' & lives_until ended $!; wait $! || exit ;;
late.2 | *.after.*) ;;
*) lives_until test -e "$name.go" ;;
esac
echo "$name" > "$output"
note ends
"""
OUTAGE = 60  # seconds without slurmctld


class Note(NamedTuple):
    name: str
    job: str
    attempt: str
    node: str
    what: str


class Faulty(Checkout):
    """Its jobs live until they are released; `late` and `greedy` request too little at first, `failing` fails."""

    def __init__(self, cluster, folder):
        super().__init__(cluster, folder, SNAKEFILE)
        (folder / "work").write_text(WORK)
        (folder / "alone").write_text(ALONE)

    def start(self, *names, arguments=(), **options):
        return super().start(*arguments, targets=[f"results/{name}" for name in names], **options)

    def notes(self, name):
        return [note for note in (Note(*words) for words in self.jobs() if len(words) == 5) if note.name == name]

    def lives(self, name, attempt=1):
        """Wait until this attempt of the job lives, from now on; its last note."""
        before = len(self.notes(name))

        def does():
            assert self.main.poll() is None, self.out.read_text()
            return any(note.attempt == str(attempt) for note in self.notes(name)[before:])

        until(does, f"attempt {attempt} of {name}", self.out)
        return self.notes(name)[-1]

    def let_end(self, *names):
        for name in names:
            (self.folder / f"{name}.go").touch()

    def ended(self, name):
        until(lambda: self.notes(name)[-1].what == "ends", f"end of {name}", self.out)

    def is_complete(self, **attempts):
        """Every output is that of an undisturbed run, after n attempts, of which no two were alive at once."""
        for name, wanted in attempts.items():
            assert (self.folder / "results" / name).read_text() == f"{name}\n"
            one_after_another = [job for job, _ in groupby(note.job for note in self.notes(name))]
            assert len(one_after_another) == len(set(one_after_another)) == wanted, (name, one_after_another)
            assert [note.what for note in self.notes(name)].count("ends") == 1


def a_node_dies(run):
    main = run.start("steady")
    first = run.lives("steady")
    run.cluster.run(first.node, first.job, script="crash")
    second = run.lives("steady", attempt=2)
    run.let_end("steady")
    assert "NODE_FAIL" in run.ended_well(main)
    assert {first.node, second.node} == {"n1", "n2"}
    run.is_complete(steady=2)


def a_nodes_daemon_dies(run):
    """A job ends while it is away, another one after it is back."""
    main = run.start("steady", "other")
    node = run.lives("steady").node
    run.lives("other")
    run.cluster.run(node, "kill", script="daemon")
    run.let_end("steady")
    run.ended("steady")
    run.lives("other")
    run.cluster.run(node, "start", script="daemon")
    run.lives("other")
    run.let_end("other")
    run.ended_well(main)
    run.is_complete(steady=1, other=1)


def the_controller_is_away(run):
    """A job ends meanwhile, another one goes on, a third is to be submitted when the first has ended."""
    main = run.start("steady.after", "other")
    run.lives("steady")
    run.lives("other")
    run.cluster.controller("stop")
    back = time.monotonic() + OUTAGE
    run.let_end("steady")
    run.ended("steady")
    time.sleep(back - time.monotonic())
    run.lives("other")
    run.cluster.controller("start")
    run.let_end("other")
    run.ended_well(main)
    run.is_complete(**{"steady": 1, "steady.after": 1, "other": 1})


def a_job_is_cancelled(run):
    main = run.start("steady")
    run.cluster.run("scancel", run.lives("steady").job)
    run.lives("steady", attempt=2)
    run.let_end("steady")
    assert "CANCELLED" in run.ended_well(main)
    run.is_complete(steady=2)


def a_job_takes_too_long(run):
    main = run.start("late", "other")
    job = run.lives("late").job
    run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")  # as it has started: not 2 minutes
    until(lambda: "TIMEOUT" in run.queue("%T", "--states=all"), "time limit", run.out, every=2)
    run.let_end("other")  # whenever one ends well, the plugin looks more often
    assert "TIMEOUT" in run.ended_well(main)
    run.is_complete(late=2, other=1)


def a_job_takes_too_much_memory(run):
    said = run.ends_well("greedy")
    assert "Error in rule greedy:" in said and "exceeded memory limit" in said
    run.is_complete(greedy=2)


def a_job_fails(run):
    """All other jobs run, also those submitted after that."""
    main = run.start("failing.after", "steady.after")
    run.lives("failing", attempt=3)
    run.let_end("steady")
    assert main.wait(timeout=LONG) == 1
    said = run.out.read_text()
    assert said.count("\nthis is what went wrong\n") == said.count("SLURM status is: 'FAILED'") == 3
    assert "Error in rule failing:" in said and "Error in rule steady" not in said
    assert not (run.folder / "results" / "failing").exists() and not run.notes("failing.after")
    run.is_complete(**{"steady": 1, "steady.after": 1})
    (run.folder / "mended").touch()
    run.ends_well("failing", "steady.after")
    run.is_complete(**{"failing": 4, "steady": 1, "steady.after": 1})


def a_job_is_preempted(run):
    main = run.start("steady")
    node = run.lives("steady").node
    run.cluster.run("sbatch", "--partition=urgent", "--exclusive", f"--nodelist={node}", "--wrap=sleep 3")
    run.lives("steady", attempt=2)
    run.let_end("steady")
    run.ended_well(main)
    run.is_complete(steady=2)


def a_lost_job_lives_on(run):
    """SLURM gives up a node that is only silent, and the next attempt starts while the first one still writes."""
    main = run.start("steady")
    first = run.lives("steady")
    run.cluster.run(first.node, "kill", script="daemon")
    log = run.folder / "logs" / "slurm"
    until(lambda: any("waiting for " in f.read_text() for f in log.rglob("*.log")), "second attempt", run.out)
    assert run.lives("steady").job == first.job  # it alone: whether the second one starts is seen below
    run.let_end("steady")
    run.ended_well(main)
    notes = run.notes("steady")
    assert [n.attempt for n in notes if n.what == "ends"] == ["1", "2"]
    assert len([job for job, _ in groupby(note.job for note in notes)]) == 2  # one after the other
    assert (run.folder / "results" / "steady").read_text() == "steady\n"


def ctrl_c(run):
    """With a job that runs and one that waits."""
    main = run.start("steady", "held", arguments=["--config", "extra=--hold"], start_new_session=True)
    run.lives("steady")
    until(lambda: sorted(run.queue()) == ["PENDING", "RUNNING"], "two jobs", run.out)
    os.killpg(main.pid, signal.SIGINT)  # as a terminal does
    run.queue_empties()
    assert main.wait(timeout=LONG) == 1
    assert "Terminating processes on user request" in run.out.read_text()
    run.let_end("steady", "held")
    run.ends_well("steady", "held")
    run.is_complete(steady=2, held=1)


CASES = [
    *(the_controller_is_away, a_job_takes_too_long, a_job_fails, a_node_dies),
    *(a_job_is_cancelled, a_job_takes_too_much_memory, ctrl_c, a_nodes_daemon_dies),
    *(a_job_is_preempted, a_lost_job_lives_on),
]
CLUSTERS_OF_THEIR_OWN = {  # for cases that break them
    the_controller_is_away: {"NODES": "n1"},
    a_node_dies: {"NODES": "n1 n2", "SLURMD_TIMEOUT": "10"},
    a_nodes_daemon_dies: {"NODES": "n1"},
    a_job_is_preempted: {"NODES": "n1"},
    a_lost_job_lives_on: {"NODES": "n1 n2", "SLURMD_TIMEOUT": "10"},
}


@pytest.fixture(scope="module")
def started(cluster, tmp_path_factory):
    """All cases at once, each in a separate folder."""
    seconds = {}

    def timed(case):
        start, folder = time.monotonic(), tmp_path_factory.mktemp(case.__name__)
        own = CLUSTERS_OF_THEIR_OWN.get(case)
        with brought_up(Cluster(folder / "slurm", **own)) if own else nullcontext(cluster) as where:
            case(Faulty(where, folder / "checkout"))
        seconds[case.__name__] = round(time.monotonic() - start)

    with ThreadPoolExecutor(len(CASES)) as pool:
        yield {case: pool.submit(timed, case) for case in CASES}
        pool.shutdown(cancel_futures=True)
    print(seconds)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_ends_complete_or_says_why(case, started):
    started[case].result()
