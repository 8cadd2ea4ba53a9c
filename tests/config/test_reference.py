"""The generated configuration reference is up to date, complete, and part of a site that builds strictly."""

import json
import re
import subprocess
import sys

from conftest import ROOT

from mrt.config.reference import artifacts, figures_page, meaning_of, page
from mrt.config.schema import Config


def test_the_schema_and_the_pages_are_up_to_date():
    hint = "run: python -m mrt.config.reference --out docs"
    assert json.loads((ROOT / "docs" / "config.schema.json").read_text()) == Config.model_json_schema(), hint
    assert (ROOT / "docs" / "configuration.md").read_text() == page(), hint
    assert (ROOT / "docs" / "artifacts.md").read_text() == artifacts(), hint
    assert (ROOT / "docs" / "figures.md").read_text() == figures_page(), hint


def test_every_setting_is_described():
    schema = Config.model_json_schema()
    for name, group in [("Config", schema), *schema["$defs"].items()]:
        assert group.get("description"), name
        for field, what in group.get("properties", {}).items():
            assert meaning_of(what, schema["$defs"]), f"{name}.{field}"


def test_the_site_builds_strictly(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {str(path.relative_to(tmp_path / "site")): path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    assert "Configuration reference" in pages["configuration.html"]
    assert 'href="experiments/star/index.html"' in pages["index.html"]  # the navigation
    loaded = {
        address for text in pages.values() for address in re.findall(r'<(?:script|link|img)[^>]*"(https?:[^"]*)', text)
    }
    assert not loaded, "the site is read without a network"
