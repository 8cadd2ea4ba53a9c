"""The probability that a model writes a given text next, with vLLM and its prefix cache; sampling and RL share it."""

from collections.abc import Sequence
from functools import cache, lru_cache
from math import exp, inf, log
from typing import Any, NamedTuple

from mrt.sampling.tokens import common, encode_completions

ENDS = 20  # next tokens whose probabilities are known: vLLM's own limit


class Scored(NamedTuple):
    """The tokens of a completion that is an opening, a text whose probability is computed, and a `}`."""

    before: list[int]  # those of the opening
    target: list[int]  # those that are scored
    end: str  # beginning of the next token: `}`, and the end of the text where a token has both


@lru_cache(maxsize=2**16)  # answers repeat along a thought
def as_written(tokenizer: Any, opening: str, text: str) -> Scored:
    """Opening and text as a model writes them: many tokenizers have tokens such as `{\\` and `}}`.

    They are encoded together, and apart from the prompt, whose last tokens a completion does not change. A token in
    which the text begins and the opening ends is scored.
    """
    whole, opened = encode_completions(tokenizer, [opening + text + "}", opening])
    alike = min(common(whole, opened), len(whole) - 1)
    return Scored(whole[:alike], whole[alike:-1], tokenizer.decode(whole[-1:]))


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
        flat_logprobs=True,  # no Python object for each token of the prompt
        skip_reading_prefix_cache=not cached,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def readable(output: Any, ids: Sequence[int]) -> bool:
    """Whether the log-probabilities of the prompt's last tokens `ids` were computed; else it is read without the cache.

    They were not if the token before them was found in the prefix cache. This happens where a block ends there, and the
    same prompt was read before, with this text or another. Nor are they the last rows if vLLM has interrupted the
    request in its prompt and continued: it then adds rows again. Otherwise there is a row for each token of the prompt
    (model runner V1 of vLLM), or for each that was not found in the cache (V2, on a GPU).
    """
    length, cached = len(output.prompt_token_ids), output.num_cached_tokens or 0
    return cached < length - len(ids) and len(output.prompt_logprobs) in (length, length - cached)


def log_probability(tokenizer: Any, output: Any, scored: Scored) -> float:
    """Log-probability, in nats, of the prompt's last tokens, which are scored, and of an end after them.

    The `ENDS` most likely next tokens count. -inf if none of these begins with the end.
    """
    places = output.prompt_logprobs[len(output.prompt_logprobs) - len(scored.target) :]
    logprob = sum(place[i].logprob for place, i in zip(places, scored.target, strict=True))
    following = output.outputs[0].logprobs[0]
    ends = sum(exp(of.logprob) for i, of in following.items() if tokenizer.decode([i]).startswith(scored.end))
    return float(logprob + log(ends)) if ends else -inf
