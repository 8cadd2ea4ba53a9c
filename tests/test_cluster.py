"""How many GPUs jobs ask for."""

import pytest
import yaml
from conftest import ROOT, TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.cluster import GIB, GPUS, Architecture, sampling_gpus, training_gpus
from mrt.config import load

QWEN_7B = Architecture(
    parameters=7_615_616_512, layers=28, hidden=3584, heads=28, kv_heads=4, head_dim=128, vocabulary=152_064
)
architectures = st.builds(
    Architecture,
    parameters=st.integers(10**6, 10**11),
    layers=st.integers(1, 100),
    hidden=st.integers(64, 10_000),
    heads=st.sampled_from([32, 64, 128]),
    kv_heads=st.integers(1, 32),
    head_dim=st.integers(16, 256),
    vocabulary=st.integers(100, 200_000),
)


@given(architectures, st.sampled_from(sorted(GPUS)))
def test_weights_and_as_much_cache_fit_on_the_fewest_gpus(architecture, name):
    gpu = GPUS[name]
    n = sampling_gpus(architecture, gpu)
    needed = 4 * architecture.parameters
    assert needed <= n * 0.9 * gpu.memory * GIB
    assert n == 1 or needed > n / 2 * 0.9 * gpu.memory * GIB


@given(architectures, st.sampled_from(sorted(GPUS)), st.integers(1, 40_000), st.floats(0, 0.8))
def test_training_fits_or_says_why_not(architecture, name, tokens, share):
    gpu = GPUS[name]
    try:
        n = training_gpus(architecture, gpu, tokens, share)
    except ValueError as error:
        assert "lower micro_batch_size" in str(error)
        assert architecture.training_bytes(tokens) >= (0.95 - share) * gpu.memory * GIB * 0.999
        return
    on_each = 16 * architecture.parameters / n + architecture.training_bytes(tokens) + share * gpu.memory * GIB
    assert on_each <= 0.9501 * gpu.memory * GIB


def test_the_architecture_of_a_checkpoint_is_read():
    from safetensors import safe_open

    with safe_open(TOY_BASE / "model.safetensors", "pt") as weights:
        names = weights.keys()
        count = sum(weights.get_tensor(name).numel() for name in names)
    found = Architecture.read(TOY_BASE)
    assert found.parameters == count and found.vocabulary > 100 and found.heads * found.head_dim >= found.hidden


def test_heads_that_gpus_do_not_divide():
    odd = QWEN_7B.model_copy(update={"heads": 7, "parameters": 70_000_000_000})
    with pytest.raises(ValueError, match="7 attention heads cannot be spread over 4 GPUs"):
        sampling_gpus(odd, GPUS["h100"])


def experiment(**cluster):
    return load(yaml.safe_load((ROOT / "config.yaml").read_text()) | {"cluster": cluster})


def test_a_training_takes_a_node_or_as_many_as_it_is_told():
    assert experiment().training_processes("mrt_1") == (1, 1) and experiment().sampling_gpus("mrt_1") == 0
    assert experiment(gpu="h100").training_processes("mrt_1") == (1, 8)
    assert experiment(gpu="h100").sampling_gpus("mrt_1") == 1
    assert experiment(gpu="h100", training_gpus=16).training_processes("mrt_1") == (2, 8)
    assert experiment(gpu="h100", training_gpus=16, gpus_per_node=4).training_processes("mrt_1") == (4, 4)
    assert experiment(training_nodes=2).training_processes("mrt_1") == (2, 1)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"gpu": "h1000"}, "cluster.gpu"),
        ({"gpu": "h100", "training_gpus": 3}, "models.mrt_1: batch_size 32 is not divided by its 1 x 3 GPUs"),
    ],
)
def test_what_does_not_fit_is_told_before_any_job(cluster, message):
    with pytest.raises(ValueError, match=message):
        experiment(**cluster)


def test_an_engine_that_rl_shares_divides_a_nodes_gpus():
    tiny = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    tiny |= {"cluster": {"gpu": "h100"}, "engine": {"tensor_parallel_size": 3}}
    with pytest.raises(ValueError, match=r"models\.mrt_rl: its engine, on 3 GPUs, does not divide the 8") as error:
        load(tiny)
    assert "1 mistakes" in str(error.value)  # SFT has no engine
    load(tiny | {"engine": {"tensor_parallel_size": 4}})


def test_a_hub_model_has_to_tell_its_sizes():
    raw = yaml.safe_load((ROOT / "config" / "paper.yaml").read_text())
    del raw["models"]["base_7b"]["architecture"]
    with pytest.raises(ValueError, match=r"models\.base_7b\.architecture: cluster\.gpu is set, and nothing tells"):
        load(raw)


def test_the_papers_models_on_the_papers_gpus():
    config = load(yaml.safe_load((ROOT / "config" / "paper.yaml").read_text()))
    assert [config.sampling_gpus(name) for name in ("base_1.5b", "mrt_7b_1")] == [1, 1]
    assert config.training_processes("mrt_7b_1") == (1, 8)
    study = load(yaml.safe_load((ROOT / "config" / "paper_case_study.yaml").read_text()))
    assert study.sampling_gpus("base_32b") == 2
