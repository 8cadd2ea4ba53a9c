"""A folder as `snakedeploy deploy-workflow` writes it has this workflow as a module, and runs with a clone's Python.

`github(...)` is fetched from a repository on this disk: git reads it for the host's URL.
"""

import re
import shutil
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT, planned, snakemake

from mrt.core.commit import short_commit
from mrt.core.fingerprint import fingerprint
from mrt.core.storage import read_provenance

URL = "https://github.com/lab/mrt"
FETCHED = 'github("lab/mrt", path="workflow/Snakefile", branch="main")'
OF_A_CLONE = f'"{ROOT}/workflow/Snakefile"'  # snakedeploy 0.17.1 leaves out the clone's path
SNAKEFILE = """
configfile: "config/config.yaml"


module mrt:
    snakefile:
        {declaration}
    config:
        config


use rule * from mrt
"""
README = (ROOT / "config" / "README.md").read_text()


def deployed(folder, declaration):
    """All that snakedeploy 0.17.1 writes: copies of `config`, `profiles` and LICENSE, and the Snakefile."""
    for name in ("config", "profiles"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "LICENSE", folder)
    (folder / "workflow").mkdir()
    (folder / "workflow" / "Snakefile").write_text(SNAKEFILE.format(declaration=declaration))
    return folder


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A repository with the rules, as a host serves it."""
    folder = tmp_path / "mrt"
    shutil.copytree(ROOT / "workflow", folder / "workflow", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("config", "profiles"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("Snakefile", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", folder], check=True)
    committed(folder)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{folder}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", URL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # of fetched files
    return folder


def committed(folder):
    author = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", "-C", folder, "add", "--all"], check=True)
    subprocess.run(["git", "-C", folder, *author, "commit", "--quiet", "--message", "rules"], check=True)


@pytest.mark.parametrize("declaration", [FETCHED, OF_A_CLONE], ids=["fetched", "of a clone"])
def test_a_folder_of_snakedeploy_plans_the_toy(tmp_path, host, declaration):
    jobs = planned(deployed(tmp_path / "toy", declaration), "--workflow-profile", "none")
    assert jobs["train"] == "4" and jobs["all"] == "1"


def test_rules_of_another_version_than_the_code_are_refused(tmp_path, host):
    with (host / "workflow" / "rules" / "episodes.smk").open("a") as rules:
        rules.write("\n# of a later version\n")
    committed(host)
    done = snakemake(deployed(tmp_path / "toy", FETCHED), "-n", check=False)
    assert done.returncode and "workflow/rules/episodes.smk differs. Check out that version" in done.stderr


def test_a_python_without_the_package_is_refused(tmp_path, host, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n\n\nclass Without:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'mrt':\n            raise ModuleNotFoundError(name=name)\n\n\n"
        "sys.meta_path.insert(0, Without())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = snakemake(deployed(tmp_path / "toy", FETCHED), "-n", check=False)
    assert done.returncode and "lacks mrt, which Snakemake does not fetch. Make an environment" in done.stderr


def test_the_catalog_has_what_it_reads():
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert {*usage} == {"mandatory-flags", "software-stack-deployment"}
    assert {*usage["software-stack-deployment"]} == {"conda", "apptainer", "apptainer+conda", "report"}
    assert (ROOT / "config" / "config.yaml").resolve() == ROOT / "config.yaml" and len(README.split()) <= 250
    assert {"snakemake", "workflow"} <= set(re.findall(r"\w+", (ROOT / "README.md").read_text().lower()))


@pytest.mark.slow
def test_the_toy_runs_in_a_folder_of_snakedeploy(extras, tmp_path, host, monkeypatch):
    """By the commands and edits of the page, of a clone without .venv."""
    (command,) = re.findall(r"^snakedeploy (deploy-workflow) /path/to/mrt (toy --branch main)", README, re.MULTILINE)
    monkeypatch.setenv("PYTHONPATH", str(extras))
    snakedeploy = [sys.executable, extras / "bin" / "snakedeploy", command[0], host, *command[1].split()]
    subprocess.run(snakedeploy, cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.delenv("PYTHONPATH")
    folder = tmp_path / "toy"
    written = (folder / "workflow" / "Snakefile").read_text()
    assert written.count(' "workflow/Snakefile"') == 1
    mended = written.replace('"workflow/Snakefile"', OF_A_CLONE)
    (folder / "workflow" / "Snakefile").write_text(mended)
    shutil.copy(ROOT / "tests" / "tiny.yaml", folder / "config" / "config.yaml")
    (handlers,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with (folder / "workflow" / "Snakefile").open("a") as snakefile:
        snakefile.write(f"\n\n{handlers}")
    printed = snakemake(folder, "--cores", "1").stderr
    results = folder / "results" / "tiny"
    assert "pass@1, %" in printed and "All on one page, to look at in a browser: results/tiny/index.html" in printed
    assert (results / ".running").exists()  # the run held its results
    for table, stage in (
        ("rollouts/base/toy_test", "sampling.rollouts"),
        ("progress/mrt_1/toy_test", "analysis.progress"),
    ):
        made_with = read_provenance(results / f"{table}.parquet")
        assert made_with["code"] == fingerprint(f"mrt.{stage}")
    assert f"commit {short_commit(ROOT)} of the code" in (results / "tables" / "provenance.md").read_text()
    again = snakemake(folder, "-n")
    assert "Nothing to be done" in again.stdout + again.stderr
