"""Plans count cached completions, without an engine."""

import json
from shlex import quote

import polars as pl
import pytest
from conftest import TOY_BASE

from mrt.core.artifacts import PROBLEMS, SET
from mrt.core.digest import digest_of_files
from mrt.planning.cached import Caches, Lack, in_all, options_in
from mrt.planning.dry_run import Described
from mrt.sampling.cache import CompletionCache
from mrt.sampling.engine import Completion, Decoding, Engine, EngineSettings, Request, seed_of
from mrt.sampling.prompt import Prompt
from mrt.training.sft import Train

ENGINE = {"max_model_len": 512, "cpu_cache_gib": 0.1}
DECODING = {"max_tokens": 50}
THOUGHT = "Try 3 + 4 = 7.\n\nWait, try 5 + 3 = 8.\n\nSo it is right.\n</think>\n\n**Answer:** \\boxed{8}"


def fill(folder, problems, samples):
    """A completion cache with n rollouts of each problem."""
    engine = Engine(str(TOY_BASE), EngineSettings(**ENGINE))
    prompt = Prompt(instruction="{problem}")
    engine.thinking = prompt.thinking_of(engine.tokenizer)
    cache = CompletionCache(folder, engine)
    rows = PROBLEMS.read(problems, ["id", "problem"]).iter_rows()
    requests = [
        Request(prompt.render(engine.tokenizer, text), samples, seed_of(0, "base", "toy", name), Decoding(**DECODING))
        for name, text in rows
    ]
    cache.add([(key, Completion(THOUGHT, 20, "stop", None)) for each in requests for key in cache.keys(each)])


def job(rule, command, inputs, outputs, *names):
    fields = {"input": ", ".join(map(str, inputs)), "output": ", ".join(map(str, outputs))}
    return Described(rule, dict(zip("abc", names, strict=False)), fields, f"{command} > x.log 2>&1")


def as_json(**options):
    return quote(json.dumps(options))


def sampling(tmp_path, kind, settings, files):
    """The jobs that request, sample and gather a table of a kind."""
    request, mark, folder = tmp_path / f"{kind}.json", tmp_path / f"{kind}.mark", str(tmp_path / "cache" / kind)
    settings = {"model": str(TOY_BASE), "names": ["base", "toy"], "seed": 0, **settings}
    files = {name: str(path) for name, path in files.items()}
    stage, (samples, gathers) = {
        "rollouts": ("sampling.rollouts", ("sample_rollouts", "gather_rollouts")),
        "prover": ("sampling.prover", ("force_answers", "gather_answers")),
    }[kind]
    inputs = [path for name, path in files.items() if name != "out"]
    asks = f"printf x {stage} {as_json(**settings)} {as_json(**files)} > {request} 2"
    pool = as_json(engine=ENGINE, folder=folder, requests=[str(request)], shard="0/1")
    gathered = as_json(cache={"folder": f"{folder}/toy", "gather": 1}, engine=ENGINE, **files)
    return [
        job("request", asks, inputs, [request], kind),
        job(samples, f"python -m mrt.core.fork_server mrt.sampling.pool --execution {pool} --out {mark}", [], [mark]),
        job(
            gathers,
            f"python -m mrt.core.fork_server mrt.{stage} --settings {as_json(**settings)} --execution {gathered}",
            inputs,
            [files["out"]],
        ),
    ]


def lacks(tmp_path, toy_problems, *, samples, traces=None, more=()):
    """What rollouts and forced answers lack, by rule."""
    rollouts, episodes = tmp_path / "rollouts.parquet", tmp_path / "episodes.parquet"
    asks = {"samples": samples, "decoding": DECODING, "prompt": {"instruction": "{problem}"}}
    prover = {"prover": {"answers": 3, "traces": traces, "decoding": {"max_tokens": 8}}}
    cut = f"python -m mrt.episodes.cut --settings '{{}}' --rollouts {rollouts} --out {episodes}"
    jobs = [
        *more,
        *sampling(tmp_path, "rollouts", asks, {"problems": toy_problems, "out": rollouts}),
        job("cut_episodes", cut, [rollouts], [episodes]),
        *sampling(
            tmp_path, "prover", prover, {"rollouts": rollouts, "episodes": episodes, "out": tmp_path / "p.parquet"}
        ),
    ]
    counted = Caches(jobs).lacks()
    return {each.rule: counted[each.name] for each in jobs if each.name in counted}


def test_only_the_additional_completions_are_sampled(tmp_path, toy_problems):
    fill(tmp_path / "cache" / "rollouts" / "toy", toy_problems, 2)
    counted = lacks(tmp_path, toy_problems, samples=5)
    assert counted["sample_rollouts"] == Lack(36, 60, True)
    assert in_all(counted.items())[0] == "sample_rollouts: will sample 36 of 60 (the rest is cached)"
    assert list(tmp_path.glob("*.parquet")) == [toy_problems], "nothing is written beside the cache"


def test_mu_is_asked_at_thoughts_whose_rollouts_are_cached(tmp_path, toy_problems):
    """With one trace a problem, more rollouts add nothing; with all, the new ones are unknown."""
    fill(tmp_path / "cache" / "rollouts" / "toy", toy_problems, 2)
    one = lacks(tmp_path, toy_problems, samples=4, traces=1)["force_answers"]
    both = lacks(tmp_path, toy_problems, samples=2)["force_answers"]
    every = lacks(tmp_path, toy_problems, samples=4)["force_answers"]
    assert one.exact and both.exact and one.lacking * 2 == both.lacking == both.wanted > 0
    assert every == Lack(2 * both.wanted, 2 * both.wanted, False)


def test_what_is_made_of_problems_that_are_not_made_is_not_known(tmp_path, toy_problems):
    again = job(
        "build_dataset", 'python -m mrt.problems.build --settings \'{"set": {"path": "x"}}\'', [], [toy_problems]
    )
    counted = lacks(tmp_path, toy_problems, samples=2, more=[again])
    assert counted["sample_rollouts"] == counted["force_answers"] == Lack(None, None, True)


@pytest.mark.parametrize("kept", [True, False])
def test_a_kept_checkpoint_is_foreseen(tmp_path, kept):
    examples = tmp_path / "set.parquet"
    values = {pl.String: "x", pl.Int64: 0, pl.Float64: 1.0}
    row = {name: values.get(kind) for name, kind in SET.columns.items()}
    pl.DataFrame([row], schema=SET.columns).write_parquet(examples)
    folder, recipe = tmp_path / "kept", {"learning_rate": 0.5}
    outputs = [tmp_path / "model", tmp_path / "model.history.parquet"]
    stage = Train(
        model=str(TOY_BASE), recipe=recipe, set=examples, state=tmp_path / "s", out=outputs[0], history=outputs[1]
    )
    keys = []
    vars(stage)["make"] = lambda rows, *decisive: keys.append(stage.key(json.dumps(rows), *decisive))
    stage.cli_cmd()
    if kept:
        (folder / keys[0] / "checkpoint").mkdir(parents=True)
        (folder / keys[0] / "digest").write_text(digest_of_files([folder / keys[0] / "checkpoint"]))
    command = (
        "OMP_NUM_THREADS=1 python -m mrt.training.launch --nodes 1 --processes 1 --cpus 1 mrt.training.sft"
        f" --settings {as_json(model=str(TOY_BASE), recipe=recipe)}"
        f" --execution {as_json(cache={'folder': str(folder)}, state=str(tmp_path / 's'), earlier=[])}"
        f" --set {examples} --history {outputs[1]} --out {outputs[0]}"
    )
    counted = Caches([job("train", command, [examples], outputs, "m")]).lacks()
    assert counted == {"train m": Lack(0 if kept else 1, 1, True)}
    assert counted["train m"].in_words("train") == ("trains nothing: all is kept" if kept else "will train")


def test_a_command_is_read_as_a_rule_writes_it():
    command = 'OMP_NUM_THREADS=1 python -m mrt.core.fork_server mrt.sampling.pool --execution \'{"a": " > b"}\' --out x'
    assert options_in(f"{command} > 'y z.log' 2>&1") == (
        "mrt.sampling.pool",
        {"execution": '{"a": " > b"}', "out": "x"},
    )
