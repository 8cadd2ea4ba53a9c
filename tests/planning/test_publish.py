"""`mrt publish`: the folders that go to the hub, their cards, and errors, with a local copy of the hub."""

import json
import os
import re
import shlex
import shutil
import threading
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import datasets
import polars as pl
import pytest
import yaml
from conftest import ROOT, TOY_BASE
from huggingface_hub import DatasetCard, ModelCard, constants

from mrt.config.load import read_files
from mrt.core import storage
from mrt.core.artifacts import COST, PROGRESS, PROVER, ROLLOUTS, RULES, SET
from mrt.planning import card
from mrt.planning.publish import Publish

INTERVAL = {"estimate": 0.75, "low": 0.5, "high": 0.875}
RECIPE = {"learning_rate": 3e-4, "epochs": 2.0}
CUT = {"segmentation": {"by": "/home/me/cut.py:cut", "text": "two\n\nlines"}}


def rows(artifact, count, **values):
    """A table of an artifact with n rows, each value that of its column's kind."""
    defaults = {pl.String: "a", pl.Int64: 1, pl.Float64: 1.0, pl.Boolean: True}
    data = {name: [defaults[kind]] * count for name, kind in artifact.columns.items()}
    data |= {name: list(range(count)) for name in artifact.keys if artifact.columns[name] == pl.Int64}
    return pl.DataFrame(data | values, schema=artifact.columns)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """tests/tiny.yaml as a finished experiment: small tables, and the weights of the toy base."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mrt").symlink_to(ROOT / "mrt")
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    raw["training"]["runs"] = 2
    raw["models"]["mrt_2"] = raw["models"]["mrt_1"] | {"parent": "mrt_1", "label": "MRT, twice"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    folder = tmp_path / "results" / "tiny"
    shutil.copytree(TOY_BASE, folder / "models" / "mrt_1")
    (folder / "models" / "mrt_1" / "checkpoint-2").mkdir()
    made = {"stage": "mrt.training.sft", "code": "abc", "versions": {"trl": "trl 1.0"}}
    options = {"model": "/home/me/base", "recipe": RECIPE, "parameterization": CUT}
    monkeypatch.setattr(storage, "provenance", made | {"options": options})
    storage.write_table(pl.DataFrame({"loss": [1.0]}), folder / "models" / "mrt_1.history.parquet")
    place = {"m": "base", "d": "toy_train"}
    for artifact, count in ((ROLLOUTS, 80), (PROVER, 8), (PROGRESS, 4)):
        artifact.write(rows(artifact, count), folder / artifact.path.format(**place))
    SET.write(rows(SET, 62), folder / SET.path.format(m="mrt_1"))
    RULES.write(rows(RULES, 1, rule=["J at least 0.5"], kept=[62]), folder / RULES.path.format(m="mrt_1"))
    phases = {"trained_model": ["mrt_1"] * 2, "phase": ["rollouts", "training"], "flops": [1e15, 2e15]}
    COST.write(rows(COST, 2, **phases), folder / COST.path.format(m="mrt_1"))
    result = {"dataset": "toy_test", "value": "accuracy", "n": 12, "samples_most": 4, "remark": None, **INTERVAL}
    measured = [result | {"model": "base", "runs": 1, "estimate": 0.625}, result | {"model": "mrt_1", "runs": 2}]
    measured += [measured[1] | {"value": "regret at 64", "remark": "the loss did not fall"}]
    storage.write_table(pl.DataFrame(measured), folder / card.RUNS)
    return folder


class Hub(BaseHTTPRequestHandler):
    """The hub's interface to new repositories, as far as uploads use it; the server keeps all in `repositories`."""

    def do_POST(self):
        given = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tokens.add(self.headers["Authorization"])
        commit = re.fullmatch(r"/api/(\w+)s/([\w-]+/[\w-]+)/commit/main", self.path)
        if self.path == "/api/repos/create":
            new = json.loads(given)
            name, kind = f"{new['organization']}/{new['name']}", new.get("type", "model")
            if name.startswith("forbidden/"):
                return self.answer({"error": "no right to write"}, 403)
            old = self.server.repositories.setdefault(
                f"{kind} {name}", {"private": new.get("visibility") == "private", "files": {}}
            )
            folder = "datasets/" if kind == "dataset" else ""
            self.answer({"url": f"{constants.ENDPOINT}/{folder}{name}"}, 409 if old["files"] else 200)
        elif self.path == "/api/validate-yaml":
            self.answer({} if yaml.safe_load(json.loads(given)["content"].split("---")[1]) else {"warnings": ["none"]})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(given)["files"]]
            self.answer({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        elif commit:
            operations = [json.loads(line) for line in given.splitlines()]
            files = {o["value"]["path"]: b64decode(o["value"]["content"]) for o in operations if o["key"] == "file"}
            self.server.repositories[f"{commit[1]} {commit[2]}"]["files"] |= files
            url = f"{constants.ENDPOINT}/{commit[2]}/commit/{'c' * 40}"
            self.answer({"success": True, "commitOid": "c" * 40, "commitUrl": url, "hookOutput": ""})
        else:
            self.answer({"error": self.path}, 404)

    def do_GET(self):
        about = re.fullmatch(r"/api/(\w+)s/([\w-]+/[\w-]+)", self.path)
        kept = self.server.repositories.get(f"{about[1]} {about[2]}") if about else None
        self.answer({"id": about[2], "private": bool(kept["private"])} if kept else {}, 200 if kept else 404)

    def answer(self, content, status=200):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    """A hub on this machine, a token for it, and no word of being offline."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.repositories, server.tokens = {}, set()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "secret")
        yield server
        server.shutdown()


def test_the_checkpoint_its_card_and_its_data_are_uploaded(results, hub, capsys):
    Publish(model="mrt_1", repo="me/mrt", data=True).cli_cmd()
    assert hub.tokens == {"Bearer secret"} and list(hub.repositories) == ["dataset me/mrt-data", "model me/mrt"]
    data, model = (repository["files"] for repository in hub.repositories.values())
    sent = {name: content for name, content in model.items() if name != "README.md"}
    assert sent == {file.name: file.read_bytes() for file in TOY_BASE.iterdir() if file.name != "README.md"}
    assert data.keys() == {"README.md", *(f"{name}.parquet" for name in ("set", "completions", "answers", "J"))}
    assert data["set.parquet"] == (results / "sets" / "mrt_1.parquet").read_bytes()
    said = capsys.readouterr().out
    assert f"dataset me/mrt-data: {constants.ENDPOINT}/me/mrt-data/commit/ccc" in said
    assert {repository["private"] for repository in hub.repositories.values()} == {False}

    cards = ModelCard(model["README.md"].decode()), DatasetCard(data["README.md"].decode())
    metadata = card.model_metadata(read_files([]), "mrt_1", "me/mrt-data")
    assert metadata.pop("base_model") is None and cards[0].data.to_dict() == metadata  # the toy base is not on the hub
    assert {c["config_name"]: c["data_files"] for c in cards[1].data.configs}["J"] == "J.parquet"
    for each in cards:  # the round trip of metadata and text
        assert type(each)(str(each)).data.to_dict() == each.data.to_dict() and each.text.startswith("\n# ")
    for column in SET.columns:
        assert f"| `{column}` |" in cards[1].text


def test_the_uploaded_dataset_loads_as_the_page_says(results, hub, tmp_path):
    """From a folder with the repository's files: the local hub serves no downloads."""
    Publish(model="mrt_1", repo="me/mrt", data=True).cli_cmd()
    for name, content in hub.repositories["dataset me/mrt-data"]["files"].items():
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_bytes(content)
    (call,) = re.findall(r'load_dataset\("OWNER/NAME-data", "(\w+)"\)', (ROOT / "docs" / "publish.md").read_text())
    loaded = datasets.load_dataset(str(tmp_path / "data"), call, cache_dir=str(tmp_path / "cache"))
    assert loaded["train"].column_names == list(PROGRESS.columns) and len(loaded["train"]) == 4


def test_the_card_has_the_numbers_of_the_tables(results):
    text = card.model_text(read_files([]), "mrt_1")
    assert "| toy_test | accuracy (pass@1), % | 12 | 4 | 75.0 [50.0, 87.5] | 62.5 [50.0, 87.5] |" in text
    assert "| toy_test | normalized regret at 64 tokens (lower is better) | 12 | 4 | 0.750 [0.500, 0.875] |  |" in text
    assert "3e+15 FLOPs in all" in text and "| mrt_1 | training | 1 | 1 | 1 | 2.00e+15 |" in text
    assert "| set | what SFT trains a model on | 62 |" in text and "| J at least 0.5 | 62 | 1 |" in text
    settings = yaml.safe_load(text.split("```")[1].removeprefix("yaml"))
    cut = {"segmentation": CUT["segmentation"] | {"by": "cut.py:cut"}}
    assert settings["training"] == {"recipe": RECIPE, "parameterization": cut}
    assert settings["prompt"]["instruction"] == "{problem}"
    assert "/home/me" not in text  # paths stay here
    assert "means over 2 training runs" in text and "seed 0" in text and "Remark" in text
    assert re.search(r"Published on \d\d \w+ \d{4}, with (commit [0-9a-f]{7}|code without)", text)
    assert "Fingerprint of its code and versions: `abc`, another one than" in text


def test_the_metadata_names_the_base_and_the_problems_of_the_hub(results):
    config = yaml.safe_load((results.parents[1] / "config.yaml").read_text())
    config["models"]["base"] = {"path": "someone/base", "revision": "d" * 40}
    config["problems"]["toy_train"] = {"hub": {"path": "someone/sums", "revision": "e" * 40}, "split": "train"}
    (results.parents[1] / "other.yaml").write_text(yaml.safe_dump(config))
    named = read_files([results.parents[1] / "other.yaml"])
    metadata = card.model_metadata(named, "mrt_1", "me/mrt-data")
    assert metadata["base_model"] == "someone/base" and metadata["datasets"] == ["someone/sums", "me/mrt-data"]
    assert f"`someone/base`, revision `{'d' * 40}`" in card.model_text(named, "mrt_1")


def test_a_private_model_goes_to_no_public_repository(results, hub):
    Publish(model="mrt_1", repo="me/mrt", private=True).cli_cmd()
    assert hub.repositories["model me/mrt"]["private"] is True
    hub.repositories["model me/mrt"] = {"private": False, "files": {"README.md": b"old"}}
    with pytest.raises(ValueError, match=r"me/mrt exists and is public; leave out --private"):
        Publish(model="mrt_1", repo="me/mrt", private=True).cli_cmd()
    assert hub.repositories["model me/mrt"]["files"] == {"README.md": b"old"}


def test_the_dry_run_of_the_page_sends_nothing(results, hub, capsys):
    page = (ROOT / "docs" / "publish.md").read_text()
    command = re.search(r"^mrt publish (.*--dry-run.*)$", page, re.MULTILINE)[1]
    Publish(_cli_parse_args=shlex.split(command, comments=True)).cli_cmd()
    said = capsys.readouterr().out
    assert hub.repositories == {} and hub.tokens == set()
    assert f"    set.parquet: {(results / 'sets' / 'mrt_1.parquet').stat().st_size:,} bytes" in said
    assert "dataset OWNER/mrt_1-data: 5 files" in said and "## Cost of training" in said


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"model": "mrt_9"}, "the configuration has no model 'mrt_9'; did you mean"),
        ({"model": "base"}, "base is given, not trained by this experiment"),
        ({"model": "mrt_2"}, r"mrt_2 is not trained yet: there is no results/tiny/models/mrt_2; run snakemake first"),
        ({"model": "mrt_1", "repo": None}, "name the repository: --repo OWNER/NAME"),
        ({"model": "mrt_1", "repo": "mrt"}, "--repo mrt: OWNER/NAME is needed"),
        ({"model": "mrt_1", "repo": "me/--x"}, "me/--x"),
    ],
)
def test_a_mistake_is_explained(results, hub, options, why):
    with pytest.raises(ValueError, match=why):
        Publish(**{"repo": "me/mrt", **options}).cli_cmd()
    assert hub.repositories == {}


def test_a_run_with_another_seed_has_the_results_of_all_runs(results):
    config = read_files([])
    for file in ("models/{m}.history.parquet", COST.path):
        shutil.copy(results / file.format(m="mrt_1"), results / file.format(m="mrt_1_seed1"))
    texts = [card.model_text(config, name).split("## Results")[1] for name in ("mrt_1", "mrt_1_seed1")]
    assert texts[1] == texts[0].replace("seed 0", "seed 1")


@pytest.mark.parametrize("table", ["costs/mrt_1.parquet", card.RUNS])
def test_a_table_of_the_card_is_made_and_no_older_than_the_model(results, table):
    os.utime(results / table, (0, 0))
    with pytest.raises(ValueError, match=f"{table} is older than the model.*`snakemake --cores 2 runs` first"):
        Publish(model="mrt_1", dry_run=True).cli_cmd()
    (results / table).unlink()
    with pytest.raises(ValueError, match=f"{table} does not exist"):
        Publish(model="mrt_1", dry_run=True).cli_cmd()


def test_without_a_token_nothing_is_sent(results, hub, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="no token for the hub: `hf auth login`, or export HF_TOKEN"):
        Publish(model="mrt_1", repo="me/mrt").cli_cmd()
    assert hub.tokens == set()


def test_a_refusal_of_the_hub_is_told(results, hub):
    with pytest.raises(OSError, match=r"forbidden/mrt could not be uploaded: .*403"):
        Publish(model="mrt_1", repo="forbidden/mrt").cli_cmd()


def test_a_hub_that_does_not_answer_is_told(results, hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(OSError, match="me/mrt could not be uploaded: "):
        Publish(model="mrt_1", repo="me/mrt").cli_cmd()


@pytest.mark.slow
def test_each_trained_model_of_a_finished_run_has_a_card(finished, monkeypatch, capsys):
    monkeypatch.chdir(finished)
    for model in ("star_1", "mrt_1", "mrt_rl"):
        Publish(model=model, data=True, dry_run=True).cli_cmd()
        said = capsys.readouterr().out
        assert "the same as that of the code" in said and "normalized regret at 128 tokens" in said
