"""What changes a fingerprint and what does not, on a small package of its own; the closures of the real stages."""

import pytest

from mrt import fingerprint as fp

PACKAGE = {
    "__init__": "",
    "stage": """'Doc.'
from mrt.deep import value


def work():
    'Doc.'
    from . import lazy
    return value + lazy.x
""",
    "deep": "import torch\nvalue = 1  # remark\n",
    "lazy": "x = 2\n",
    "other": "y = 3\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "mrt"
    folder.mkdir()
    for name, content in PACKAGE.items():
        (folder / f"{name}.py").write_text(content)
    monkeypatch.setattr(fp, "PACKAGE", folder)

    def write(name=None, content=None):
        if name:
            (folder / f"{name}.py").write_text(content)
        for cached in (fp._parsed, fp.closure, fp.fingerprint):
            cached.cache_clear()
        return fp.fingerprint("mrt.stage", with_versions=False)

    yield write
    for cached in (fp._parsed, fp.closure, fp.fingerprint):
        cached.cache_clear()


def test_the_closure_follows_all_imports(package):
    package()
    assert fp.closure("mrt.stage") == (("mrt", "mrt.deep", "mrt.lazy", "mrt.stage"), ("torch",))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("deep", '"""New."""\nimport torch\nvalue = 1\n'),
        ("deep", "import torch\nvalue = (\n    1\n)\n"),
        ("stage", PACKAGE["stage"].replace("Doc.", "Other.")),
        ("other", "y = 4\n"),
    ],
)
def test_what_does_not_matter(package, name, content):
    before = package()
    assert package(name, content) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("deep", "import torch\nvalue = 2\n"),
        ("lazy", "x = 2.0\n"),
        ("__init__", "z = 1\n"),
        ("stage", PACKAGE["stage"].replace("deep", "other").replace("value", "y")),
    ],
)
def test_what_matters(package, name, content):
    before = package()
    assert package(name, content) != before


def test_descriptions_of_fields_do_not_matter(package):
    before = package("deep", "value = Field(1, description='a')\n")
    assert package("deep", "value = Field(1, description='b')\n") == before
    assert package("deep", "value = Field(2, description='b')\n") != before


def test_versions_count_where_they_are_used(monkeypatch):
    before = {stage: fp.fingerprint(f"mrt.{stage}") for stage in ("sampling", "sets", "grading")}
    fp.fingerprint.cache_clear()
    real = fp.version
    monkeypatch.setattr(fp, "version", lambda name: "0.0" if name.startswith("vllm") else real(name))
    after = {stage: fp.fingerprint(f"mrt.{stage}") for stage in before}
    fp.fingerprint.cache_clear()
    assert [stage for stage in before if before[stage] != after[stage]] == ["sampling"]


def test_stages_that_sample_nothing_do_not_depend_on_the_engine():
    for stage in ("episodes", "grading", "progress", "sets", "imports", "evaluate", "problems", "figures.regret"):
        modules, libraries = fp.closure(f"mrt.{stage}")
        assert "mrt.engine" not in modules and not {"vllm", "torch"} & set(libraries), stage


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"there is no module mrt\.absent"):
        fp.fingerprint("mrt.absent")


def test_files_are_hashed_by_name_and_content(tmp_path):
    (tmp_path / "a").write_text("1")
    before = fp.digest_of_files([tmp_path])
    (tmp_path / "a").touch()
    assert fp.digest_of_files([tmp_path]) == before
    (tmp_path / "a").write_text("2")
    assert fp.digest_of_files([tmp_path]) != before
