"""The workflow on a real SLURM: the same artifacts as here, GPUs where they were requested, training on two nodes."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, Cluster, brought_up, checkout, copy_of, snakemake

from mrt.core.artifacts import SET
from mrt.training import launch

pytestmark = pytest.mark.slow

SMALL = {  # the part of tiny.yaml that has all kinds of jobs
    "models": {"mrt_rl": None},
    "evaluation": {
        "models": ["mrt_1"],
        "measures": ["accuracy", "maj", "regret"],
        "direct": None,
        "budget_forcing": None,
    },
    # H200s by name; the fake ones of the lab are not used, only handed out
    "cluster": {
        "gpu": "h200",
        "slurm_type": "h200",
        "gpus_per_node": 2,
        "training_gpus": 1,
        "cpus_per_gpu": 1,
        "shards": 2,
    },
}
LONG = 1500  # seconds, on a busy machine


def prepared(folder, change):
    """tiny.yaml with a change, and the profile, in a checkout."""
    config = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    for section, values in change.items():
        below = config.get(section, {})
        config[section] = {k: v for k, v in (below | values).items() if v is not None or k == "direct"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    shutil.copytree(ROOT / "slurm", folder / "slurm", dirs_exist_ok=True)
    return folder


def on_slurm(cluster, folder, *arguments, python=sys.executable):
    """Run the workflow through the profile; its output."""
    options = ["--profile", "slurm", "--jobs", "3", "--seconds-between-status-checks", "1"]
    command = [python, "-m", "snakemake", *options, *arguments]
    with (folder / "out").open("w") as out:
        status = cluster.start(*command, cwd=folder, stdout=out, stderr=subprocess.STDOUT).wait(timeout=LONG)
    printed = (folder / "out").read_text()
    logs = "".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("logs/**/*.log")) if status else ""
    assert status == 0, printed[-6000:] + logs[-20000:]
    return printed


def jobs_of(cluster, folder):
    """{rule with wildcards: {field: value}} of the jobs that SLURM has had from this folder."""
    found = {}
    for line in cluster.run("scontrol", "--oneliner", "--detail", "show", "job").splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if fields["WorkDir"] == str(folder):
            found[fields["Comment"].removeprefix("rule_").replace("_wildcards_", " ")] = fields
    return found


@pytest.fixture(scope="module")
def small_run(cluster, tmp_path_factory):
    folder = prepared(checkout(tmp_path_factory.mktemp("small")), SMALL)
    on_slurm(cluster, folder)
    return folder


def test_artifacts_up_to_training_are_those_of_a_run_here(small_run, request):
    finished, compared = request.getfixturevalue("finished"), 0  # a waiting process makes SLURM start its run
    for kind in ("problems", "rollouts/base", "episodes/base", "prover/base", "grades/base", "progress/base", "sets"):
        for file in sorted((small_run / "results" / "tiny" / kind).glob("*.parquet")):
            here = finished / file.relative_to(small_run)
            assert file.read_bytes() == here.read_bytes(), file
            compared += 1
    assert compared >= 9
    assert (small_run / "results" / "tiny" / "figures" / "regret.png").stat().st_size > 10_000


def test_sampling_and_training_have_gpus_and_nothing_else_has(small_run, cluster):
    jobs = jobs_of(cluster, small_run)
    gpus = {name: len(re.findall(r"gpu:h200:1", fields.get("TresPerJob", ""))) for name, fields in jobs.items()}
    with_gpus = {name.split()[0] for name, count in gpus.items() if count}
    assert with_gpus == {"sample_rollouts", "force_answers", "train"}
    assert {f["Partition"] for name, f in jobs.items() if gpus[name]} == {"gpu"}
    assert {f["Partition"] for name, f in jobs.items() if not gpus[name]} == {"cpu"}
    assert all(fields["NodeList"] in ("n1", "n2", "n3") for fields in jobs.values())
    parts = [name for name in jobs if name.startswith("sample_rollouts")]
    assert len(parts) == 2 * 2  # of base on the training set, of mrt_1 on the test set


def test_short_jobs_go_together(small_run, cluster):
    names = [name.split()[0] for name in jobs_of(cluster, small_run)]
    assert not {"measure_accuracy", "measure_maj", "measure_progress", "measure_regret"} & set(names)


def test_training_on_two_nodes_equals_that_on_one(cluster, finished, tmp_path):
    from safetensors.torch import load_file

    weights = {}
    for nodes in (1, 2):
        folder = prepared(copy_of(finished, tmp_path / str(nodes)), {"cluster": {"training_nodes": nodes}})
        examples = folder / "results/tiny/sets/star_1.parquet"
        table = SET.read(examples)
        SET.write(table.head(table.height // 16 * 16), examples)  # else the last batch is filled up for two processes
        if nodes == 1:
            snakemake(folder, "--cores", "1", "results/tiny/models/star_1")
        else:
            on_slurm(cluster, folder, "results/tiny/models/star_1")
        weights[nodes] = load_file(folder / "results/tiny/models/star_1/model.safetensors")
    job = jobs_of(cluster, folder)["train star_1"]
    assert job["NumNodes"] == "2" and re.fullmatch(r"n\[\d[-,]\d\]", job["NodeList"])
    before = load_file(ROOT / "mrt" / "toy" / "weights" / "model.safetensors")
    one, two = weights.values()
    assert one.keys() == two.keys() == before.keys()
    assert max((one[name] - before[name].float()).abs().max() for name in one) > 5e-4
    assert max((one[name] - two[name]).abs().max() for name in one) < 2e-5


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a core alone is always shared")
def test_processes_on_several_nodes_have_all_cores_of_the_job(tmp_path):
    """SLURM binds them to the cores that the step requests; Snakemake's jobs have lost SLURM's variables of the job."""
    show = "import os; print('cores', os.environ['SLURM_NODEID'], len(os.sched_getaffinity(0)))"
    *srun, _, _, _ = launch.on_nodes(2, 2, [])  # instead of the module that it starts
    wrap = "env -u SLURM_CPUS_PER_TASK " + shlex.join([*srun, "python3", "-c", show])
    asked = ["--nodes=2", "--ntasks=2", "--cpus-per-task=2", f"--output={tmp_path}/out", "--wrap", wrap]
    (tmp_path / "lab").mkdir()
    settings = {"NODES": "n1 n2", "CPUS": "2", "TASK_PLUGIN": "task/affinity"}
    with brought_up(Cluster(tmp_path / "lab", **settings)) as cluster:
        cluster.run("sbatch", "--wait", *asked)
    said = (tmp_path / "out").read_text()
    assert sorted(re.findall(r"cores (\d) (\d+)", said)) == [("0", "2"), ("1", "2")], said


def test_a_whole_run_in_one_job(cluster, tmp_path):
    """As docs/cluster.md submits it, but for the container; with temporary files in a folder that the node lacks."""
    folder, target = checkout(tmp_path), Path("results/tiny/grades/base/toy_test.rollouts.parquet")
    shutil.copy(ROOT / "tests" / "tiny.yaml", folder / "config.yaml")
    run = shlex.join([sys.executable, "-m", "snakemake", "--cores", "1", str(target)])
    submit = [
        "sbatch",
        "--wait",
        f"--chdir={folder}",
        f"--output={folder / 'out'}",
        "--export=ALL,TMPDIR=/local/nobody",
    ]
    status = cluster.start(*submit, f"--wrap={run}").wait(timeout=LONG)
    assert status == 0 and (folder / target).is_file(), (folder / "out").read_text()


# What Apptainer does with these options, as far as it matters here; files of the lab stand for those of the image.
STAND_IN = """#!/bin/bash
shift # exec
path=/opt/mrt/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
binds=(--dev-bind / / --tmpfs /opt --ro-bind "$MRT_TEST_VENV" /opt/mrt/.venv)
while [[ $1 != *.sif ]]; do
  case $1 in
  --nv) shift ;;
  --env)
    case $2 in PREPEND_PATH=*) path=${2#*=}:$path ;; APPEND_PATH=*) path=$path:${2#*=} ;; *) exit 64 ;; esac
    shift 2 ;;
  --bind)
    for one in ${2//,/ }; do binds+=(--bind "${one%:*}" "${one#*:}"); done
    shift 2 ;;
  *) exit 64 ;;
  esac
done
echo "${SLURM_JOB_ID:-login}" >>"$(dirname "$0")/starts"
exec env PATH="$path" bwrap "${binds[@]}" "${@:2}"
"""


@pytest.mark.skipif(not shutil.which("bwrap"), reason="Bubblewrap stands in for Apptainer")
def test_jobs_of_a_run_in_a_container_come_back_into_it(cluster, finished, tmp_path, monkeypatch):
    """By the lines of the profile and the `python` that docs/cluster.md names. Outside there is no /opt/mrt."""
    assert not Path("/opt/mrt").exists()
    (tmp_path / "bin").mkdir()
    folder = prepared(copy_of(finished, tmp_path / "run"), {})
    profile, lines = re.subn(r"# (.*) # in a container.*", r"\1", (folder / "slurm" / "config.yaml").read_text())
    assert lines == 2
    (folder / "slurm" / "config.yaml").write_text(profile)
    (folder / "mrt.sif").touch()
    (tmp_path / "bin" / "apptainer").write_text(STAND_IN)
    (tmp_path / "bin" / "apptainer").chmod(0o755)
    monkeypatch.setitem(cluster.environment, "PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setitem(cluster.environment, "MRT_TEST_VENV", str(Path(sys.executable).parents[1]))
    target = "results/tiny/grades/base/toy_train.rollouts.parquet"
    (folder / target).unlink()
    on_slurm(cluster, folder, target, python=folder / "slurm" / "apptainer" / "python")
    jobs = {fields["JobId"] for fields in jobs_of(cluster, folder).values()}
    starts = (tmp_path / "bin" / "starts").read_text().split()
    assert (folder / target).is_file() and jobs and sorted(starts) == sorted({"login", *jobs})
