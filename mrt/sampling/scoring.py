"""The probability that a model writes a given text next, with vLLM and its prefix cache; sampling and RL share it."""

from collections.abc import Sequence
from functools import cache
from math import exp, inf, log
from typing import Any

ENDS = 20  # next tokens whose probabilities are known: vLLM's own limit


@cache
def reading(*, cached: bool = True) -> Any:
    """vLLM's parameters of a prompt that ends in the scored text.

    It returns the log-probabilities of the prompt's tokens and of the next token. If `cached`, the prefix cache is
    read. By default vLLM does not read it here, as it returns nothing for the tokens that it finds there.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0,
        max_tokens=1,
        prompt_logprobs=0,
        logprobs=ENDS,
        skip_reading_prefix_cache=not cached,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def readable(output: Any, ids: Sequence[int]) -> bool:
    """Whether the log-probabilities of the prompt's last tokens `ids` were computed.

    They were not if the token before them was found in the prefix cache: where a block ends there, and the same prompt
    was read before, with this text or another. Such a prompt is read once more, without the cache.
    """
    return (output.num_cached_tokens or 0) < len(output.prompt_token_ids) - len(ids)


def log_probability(tokenizer: Any, output: Any, ids: Sequence[int]) -> float:
    """Log-probability, in nats, of the prompt's last tokens `ids` and of a token that begins with `}` behind them.

    Of the tokens behind them the `ENDS` most likely ones count. -inf if none of these begins with `}`.
    """
    found = sum(place[i].logprob for place, i in zip(output.prompt_logprobs[-len(ids) :], ids, strict=True))
    following = output.outputs[0].logprobs[0]
    ends = sum(exp(of.logprob) for i, of in following.items() if tokenizer.decode([i]).startswith("}"))
    return float(found + log(ends)) if ends else -inf
