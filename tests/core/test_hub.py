"""Hub models come from the folder of their snapshot, of the revision that is pinned, without a network if they can."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import polars as pl
import pytest
import yaml
from conftest import ROOT, TOY_BASE, hub_cache

from mrt.core.digest import identity_of_model
from mrt.core.hub import cached, ends_of, folder_of, identity, missing, round_trips, tokenizer_of
from mrt.training.log import log_of

NAME, PINNED, LATER = "somebody/model", "a" * 40, "b" * 40
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
TOY = {file.name: file for file in TOY_BASE.iterdir() if file.name != "README.md"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache of the hub's, without a network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """The toy base with its weights in two files, by name."""
    from safetensors.torch import load_file, save_file

    folder, weights = tmp_path_factory.mktemp("sharded"), load_file(TOY["model.safetensors"])
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    names = sorted(weights)
    parts = dict(zip(shards, (names[::2], names[1::2]), strict=True))
    for shard, own in parts.items():
        save_file({name: weights[name] for name in own}, folder / shard, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return {k: v for k, v in TOY.items() if k != "model.safetensors"} | {f.name: f for f in folder.iterdir()}


def test_a_folder_is_its_own():
    assert folder_of(str(TOY_BASE)) == TOY_BASE and missing(TOY_BASE) == []


def test_a_tokenizer_whose_settings_name_a_wrong_class_is_read_from_its_file(tmp_path):
    """As those of R1-Distill-Llama, which transformers knows by their ids on the hub alone."""
    from transformers import AutoTokenizer

    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TOY[name], tmp_path)
    for name, wrong in (("tokenizer_config.json", {"tokenizer_class": "LlamaTokenizerFast"}), ("config.json", LLAMA)):
        settings = json.loads((tmp_path / name).read_text())
        (tmp_path / name).write_text(json.dumps(settings | wrong))
    assert not round_trips(AutoTokenizer.from_pretrained(tmp_path))
    found, right = tokenizer_of(tmp_path, padding_side="left"), tokenizer_of(TOY_BASE)
    text = "Wait, 5.\n\nSo it is"
    assert found.encode(text) == right.encode(text) and found.padding_side == "left"
    assert (found.eos_token, found.chat_template) == (right.eos_token, right.chat_template)
    assert round_trips(AutoTokenizer.from_pretrained(found.name_or_path))  # as vLLM reads it
    assert right.name_or_path == str(TOY_BASE)


def test_a_tokenizer_that_loses_text_is_refused(tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOY[name], tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": {"type": "Lowercase"}}))
    with pytest.raises(ValueError, match=r"its tokenizer makes 'wait, 5 \+ 3 = 8.* answers could not be read"):
        tokenizer_of(tmp_path)


def test_a_snapshot_is_taken_by_commit_and_by_branch(home, sharded):
    pinned = hub_cache(home, "model", NAME, PINNED, sharded)
    later = hub_cache(home, "model", NAME, LATER, TOY)
    assert [folder_of(NAME, revision) for revision in (PINNED, LATER, "main", None)] == [pinned, later, later, later]
    assert identity_of_model(NAME, PINNED) == f"{NAME}@{PINNED}"  # what decides keys is no folder
    assert [cached(NAME, revision) for revision in (PINNED, None)] == [pinned, later]
    (pinned / "tokenizer.json").unlink()
    assert [cached(name, PINNED) for name in (NAME, "somebody/else", "no/such/folder")] == [None] * 3


def test_weights_are_those_of_the_commit_that_is_loaded(home):
    hub_cache(home, "model", NAME, PINNED, TOY)
    identity.cache_clear()
    assert identity(NAME) == identity(NAME, PINNED) == f"{NAME}@{PINNED}"
    hub_cache(home, "model", NAME, LATER, TOY)
    identity.cache_clear()
    assert identity(NAME) == f"{NAME}@{LATER}" and identity(str(TOY_BASE)) == identity_of_model(str(TOY_BASE))


def test_a_run_does_not_go_on_with_another_commit_of_a_model(home, monkeypatch):
    from snakemake.exceptions import WorkflowError

    from mrt.config.load import load
    from workflow.start import refuse_another_commit

    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    raw["models"]["base"] = {"label": "Base", "path": NAME}
    monkeypatch.chdir(home)
    hub_cache(home, "model", NAME, PINNED, TOY)
    experiment = load(raw)
    refuse_another_commit(experiment)
    table = experiment.results / "rollouts" / "base" / "toy_test.parquet"
    table.parent.mkdir(parents=True)
    metadata = {"mrt": json.dumps({"weights": f"{NAME}@{PINNED}", "options": {"model": NAME}})}
    pl.DataFrame({"x": [1]}).write_parquet(table, metadata=metadata)
    refuse_another_commit(experiment)
    hub_cache(home, "model", NAME, LATER, TOY)
    with pytest.raises(
        WorkflowError, match=f"models.base: .* at {PINNED}, and .* at {LATER}. Write `revision: {PINNED}`"
    ):
        refuse_another_commit(experiment)
    for revision in (PINNED, LATER):  # another `revision` makes the rollouts again
        raw["models"]["base"]["revision"] = revision
        refuse_another_commit(load(raw))
    of_branch = {"weights": f"{NAME}@main", "options": {"revision": "main"}}  # as tables once recorded a branch
    pl.DataFrame({"x": [1]}).write_parquet(table, metadata={"mrt": json.dumps(of_branch)})
    raw["models"]["base"]["revision"] = "main"
    refuse_another_commit(load(raw))


@pytest.mark.parametrize(
    "lost", ["config.json", "tokenizer.json", "tokenizer_config.json", "model-00002-of-00002.safetensors"]
)
def test_a_snapshot_that_lacks_a_file_is_not_taken(home, sharded, lost):
    snapshot = hub_cache(home, "model", NAME, PINNED, sharded)
    (snapshot / lost).unlink()
    with pytest.raises(FileNotFoundError) as error:
        folder_of(NAME, PINNED)
    said = str(error.value)
    assert f"hf download {NAME} --revision {PINNED}" in said and str(home / "hub") in said


@pytest.mark.parametrize("name", [NAME, "no/such/folder", "results/models/absent_1"])
def test_a_model_that_is_nowhere_is_told(home, name):
    with pytest.raises(FileNotFoundError, match=f"{name}: there is no such folder, and the hub's model"):
        folder_of(name, PINNED)


class Hub(BaseHTTPRequestHandler):
    """The hub's interface to one repository, as far as downloading needs it."""

    files: dict[str, bytes]  # of the repository, by name

    def do_GET(self):
        self.server.asked.append(self.path)
        resolved = re.fullmatch(rf"/{NAME}/resolve/(\w+)/(.+)", self.path)
        if re.match(rf"/api/models/{NAME}/tree/{PINNED}", self.path):
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": sha1(content).hexdigest()}
                for name, content in self.server.files.items()
            ]
            self.answer(json.dumps(tree).encode(), {})
        elif resolved and resolved[2] in self.server.files:
            content = self.server.files[resolved[2]]
            self.answer(content, {"X-Repo-Commit": resolved[1], "ETag": f'"{sha1(content).hexdigest()}"'})
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def answer(self, content, headers):
        self.send_response(200)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    """A hub on this machine; `asked` has its requests, `files` its files."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.asked, server.files = [], {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def online(home, hub, *command):
    """Python with this cache and this hub, and no word of being offline; its output."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}"}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def test_what_is_not_there_is_downloaded_once_and_no_pickled_weights(tmp_path, hub):
    hub.files = {name: file.read_bytes() for name, file in TOY.items()}
    hub.files |= {
        "pytorch_model.bin": b"pickled",
        "original/consolidated.00.pth": b"pickled",
        "original/params.json": b"",
    }
    part = {name: file for name, file in TOY.items() if name != "model.safetensors"}
    snapshot = hub_cache(tmp_path, "model", NAME, PINNED, part)
    code = f"from mrt.core.hub import folder_of; print(folder_of({NAME!r}, {PINNED!r}))"
    assert online(tmp_path, hub, "-c", code).strip() == str(snapshot)
    assert {path.name for path in snapshot.iterdir()} == set(TOY) and missing(snapshot) == []
    assert hub.asked
    hub.asked.clear()
    assert online(tmp_path, hub, "-c", code).strip() == str(snapshot) and hub.asked == []


def test_a_tokenizer_that_was_loaded_by_its_hub_id_ends_where_the_model_does(home, tmp_path):
    """As users of the trainer load one: the generation settings are in the hub's cache."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    hub_cache(home, "model", NAME, PINNED, TOY | {"generation_config.json": tmp_path / "generation_config.json"})
    tokenizer = tokenizer_of(TOY_BASE)
    tokenizer.name_or_path = NAME
    assert set(ends_of(tokenizer)) == {tokenizer.eos_token_id, 1, 7}
    tokenizer.name_or_path = "somebody/else"
    assert ends_of(tokenizer) == (tokenizer.eos_token_id,)


QUESTION = "Some of the numbers 9, 17, 8, 2 add up to 17. What is the sum of the smallest and the largest of them?"
PROMPT = f"<|user|>{QUESTION}<|assistant|><think>\n"
SAMPLE = """
import sys
from mrt.sampling.engine import Decoding, Engine, EngineSettings, Request
engine = Engine(sys.argv[1], EngineSettings(max_model_len=512, cpu_cache_gib=0.1), sys.argv[2])
print(engine.generate([Request(sys.argv[3], 1, 0, Decoding(temperature=0, max_tokens=9))]))
"""

TRAIN = """
import json, sys
from trl.generation import vllm_generation
from mrt.training import rl, sft

build = vllm_generation.LLM
vllm_generation.LLM = lambda **options: (print("ENGINE", options["model"]), build(**options))[1]
for kind, options in zip((sft, rl), json.loads(sys.argv[1])):
    kind.Train(**options).carry_out()
"""


@pytest.mark.slow
def test_engine_sft_and_rl_take_the_pinned_revision_and_ask_no_network(tmp_path, hub, prompts):
    """Of two revisions the later one, `main`, has a head of zeros, with which every token is as likely as any other."""
    from safetensors.torch import load_file, save_file

    weights = load_file(TOY["model.safetensors"])
    save_file(weights | {"lm_head.weight": 0 * weights["lm_head.weight"]}, tmp_path / "zeros", {"format": "pt"})
    pinned = hub_cache(tmp_path, "model", NAME, PINNED, TOY)
    hub_cache(tmp_path, "model", NAME, LATER, TOY | {"model.safetensors": tmp_path / "zeros"})
    assert "Try" in online(tmp_path, hub, "-c", SAMPLE, NAME, PINNED, PROMPT)

    def options(name, recipe, **own):
        files = {what: str(tmp_path / f"{name}.{what}") for what in ("out", "history", "state")}
        shared = {"bf16": False, "gradient_checkpointing": False, "epochs": 1}
        return {"model": NAME, "revision": PINNED, **files, **own, "recipe": shared | recipe}

    rows = [{"prompt": PROMPT, "completion": "Try 9 + 8 = 17.", "weight": 1.0}] * 2
    pl.DataFrame(rows).write_parquet(tmp_path / "set.parquet")
    decoding = {"temperature": 1.0, "max_tokens": 30}
    both = [
        options("sft", {"batch_size": 2, "max_length": 256}, set=str(tmp_path / "set.parquet")),
        options(
            "rl", {"batch_size": 48, "micro_batch_size": 48, "num_generations": 4, "decoding": decoding}, method="grpo",
            prompts=str(prompts), engine={"max_model_len": 512, "cpu_cache_gib": 0.1},
        ),
    ]  # fmt: skip
    said = online(tmp_path, hub, "-c", TRAIN, json.dumps(both))
    assert f"ENGINE {pinned}\n" in said
    assert [path for path in hub.asked if NAME in path] == []  # of telemetry and the like it is
    for name in ("sft", "rl"):
        assert log_of(tmp_path / f"{name}.history")["entropy"][0] < 2  # of zeros: ln 607 = 6.4
