"""RL's engine: created with the options of mrt.sampling.engine, given the trainer's weights, checked to sample them."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from mrt.core import accelerator, vllm_environment
from mrt.sampling.engine import EngineSettings, engine_options
from mrt.training.one_card import has_adapters, merged

# Mean differences between the engine's and the trainer's log-probabilities, in nats per token. Rounding in bfloat16
# causes about 0.03 to 0.04 (docs/rl.md); an engine whose weights are not updated soon exceeds STALE.
DOUBTFUL, STALE = 0.05, 0.2


class StaleEngine(ValueError):
    """The engine does not sample from the trainer's weights."""


@contextmanager
def cpu_vllm(settings: EngineSettings) -> Iterator[None]:
    """Make TRL build its engine like `mrt.sampling.engine`, and on a CPU replace its transfer of weights to the engine.

    TRL's own transfer ignores that vLLM's CPU backend packs weights; a tied head's weight is packed again here. On any
    device, weights with adapters are those of `merged`, which leaves the trainer's own as they are.
    """
    from trl.generation import vllm_generation

    generation = vllm_generation.VLLMGeneration
    build, sync, cpu = vllm_generation.LLM, generation.sync_weights, not accelerator.on_gpu()

    def built(**options: Any) -> Any:
        options |= engine_options(settings, cpu)
        if cpu:
            # on a CPU, seeded requests do not work with chunked prefill, so that a batch must hold the longest text
            longest = options["max_model_len"]  # None: the model's context, which vLLM then allows for
            batched = longest and max(longest, options["max_num_batched_tokens"] or 0)
            options |= {"max_num_batched_tokens": batched, "disable_log_stats": True}
        return build(**options)

    def synced(self: Any) -> None:
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        def packed_again(model: Any) -> None:
            if model.config.tie_word_embeddings:
                dispatch_cpu_unquantized_gemm(model.lm_head, remove_weight=False)

        weights = [(name, weight.detach().clone()) for name, weight in self._iter_named_params()]
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        self.llm.apply_model(packed_again)
        self.llm.reset_prefix_cache()

    def handed_over(self: Any) -> None:
        if has_adapters(self.model):
            setattr(self, "_iter_named_params", partial(merged, self.model))  # noqa: B010 (as a place that is listed)
        (synced if cpu else sync)(self)

    vllm_environment.configure(cpu)
    # TRL would take port 29500 if it is free, and so would another job that starts at the same time.
    with socket.socket() as free:
        free.bind(("", 0))
        os.environ.setdefault("MASTER_PORT", str(free.getsockname()[1]))
    vllm_generation.LLM = built
    generation.sync_weights = handed_over
    try:
        yield
    finally:
        vllm_generation.LLM, generation.sync_weights = build, sync


FAR = (
    f"step {{}}: the engine's log-probabilities differ from the trainer's by more than {DOUBTFUL} nats a token in the"
    f" mean, beyond what rounding in bfloat16 usually makes; beyond {STALE} the run stops. Watch logp_difference in the"
    " log (docs/rl.md)"
)


def check_fresh(output: dict[str, Any]) -> float:
    """Mean difference between the engine's and the trainer's log-probabilities of sampled tokens, in nats per token.

    Raises StaleEngine if the difference shows other weights, or if log-probabilities are missing.
    """
    if "old_per_token_logps" not in output or "sampling_per_token_logps" not in output:
        raise StaleEngine("TRL no longer gives both log-probabilities; whether the engine is fresh cannot be checked")
    mask = output["completion_mask"].bool()
    difference = (output["old_per_token_logps"] - output["sampling_per_token_logps"])[mask].abs()
    mean = difference[~difference.isnan()].mean().item() if mask.any() else 0.0  # all completions may be masked
    if not mean <= STALE:
        raise StaleEngine(
            f"the engine samples from other weights than the trainer has: log-probabilities differ by {mean:.3f} nats a"
            f" token in the mean, where {STALE} is allowed. Were weights handed over? (mrt.training.rl.engine.cpu_vllm)"
        )
    return float(mean)
