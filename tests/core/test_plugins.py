"""Objects by their names: no stage that loads one forgets to say so, and no rule forgets its fingerprint."""

import re
from importlib import import_module

import pytest
from conftest import ROOT

from mrt.core import plugins
from mrt.core.cli import Stage
from mrt.core.fingerprint import reached
from mrt.core.plugins import Kind
from mrt.core.scope import STAGE, modules, statements_of

# Stages that no rule runs: one that takes a task's name but not its code, and one that runs others.
EXEMPT = (
    "mrt.config.",
    "mrt.planning.",
    "mrt.core.",
    "mrt.figures.figure",
    "mrt.training.launch",
    "mrt.problems.build",
    "mrt.sampling.pool",
)


def stages():
    names = (module.removesuffix(".__main__") for module in modules("") if statements_of(module)[STAGE])
    return [name for name in names if name != "mrt" and not name.startswith(EXEMPT)]


def says(stage):
    """Whether a class of the stage tells which objects it loads."""
    module = import_module("mrt.training.rl.stage" if stage == "mrt.training.rl" else stage)
    classes = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Stage))
    return any(each.plugins is not Stage.plugins for each in classes)


def test_each_stage_that_loads_an_object_by_its_name_says_which_and_no_rule_forgets_it():
    loads = {stage for stage in stages() if "mrt.core.plugins.Kind" in reached(stage).definitions}
    assert loads == {stage for stage in stages() if says(stage)} and "mrt.grading.grade" in loads
    sources = [*(ROOT / "workflow").rglob("*.smk"), *(ROOT / "workflow").rglob("*.py")]
    alone = {f"mrt.{name}" for file in sources for name in re.findall(r'code\("([\w.]+)"\)', file.read_text())}
    assert not alone & loads and "mrt.analysis.progress" in alone


class Base:
    pass


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A package of one folder, `things`."""
    (tmp_path / "shelf" / "things").mkdir(parents=True)
    monkeypatch.setattr(plugins, "PACKAGE", tmp_path / "shelf")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    plugins.modules_in.cache_clear()
    yield tmp_path / "shelf" / "things"
    plugins.modules_in.cache_clear()


IMPORTS = "from test_plugins import Base\n\n\n"


def test_ours_and_a_users_are_found_by_one_law(folder):
    kind = Kind("thing", "things", (Base,))
    (folder / "__init__.py").touch()
    (folder / "some.py").write_text(f"{IMPORTS}class MyThing(Base):\n    pass\n\n\nother = MyThing()\nnumber = 3\n")
    (folder / "more.py").write_text("from shelf.things.some import MyThing, other\n")
    (folder.parents[1] / "mine.py").write_text(f"{IMPORTS}class Own(Base):\n    pass\n\n\nnumber = 3\n")
    assert [*kind.all()] == ["other", "my_thing"]
    assert kind.find("my_thing").__name__ == "MyThing" and kind.find("mine.py:Own").__name__ == "Own"
    assert kind.starts("my_thing") == ["shelf.things.some:MyThing"] and kind.starts("mine.py:Own") == ["mine.py:Own"]
    for name, message in {
        "my_thin": "there is no thing 'my_thin'; did you mean 'my_thing'",
        "mine.py:number": r"mine\.py: number is no thing, a Base",
        "mine.py:x": r"mine\.py: it defines no thing 'x'; there are Own",
        "mine.py": "what a file holds is named FILE.py:NAME",
    }.items():
        with pytest.raises(ValueError, match=message):
            kind.find(name)
    plugins.modules_in.cache_clear()
    (folder / "twice.py").write_text(f"{IMPORTS}other = Base()\n")
    with pytest.raises(ValueError, match=r"twice\.py: another module has a other too"):
        kind.all()
    plugins.modules_in.cache_clear()
    (folder / "wrong.py").write_text("x = 1\ny = z\n")
    with pytest.raises(ValueError, match=r"wrong\.py, line 2: NameError"):
        kind.all()
