"""J of the policy that RL trains, asked from TRL's engine, or of a frozen mu: by likelihood, or by forced answers.

And continuations, from which a value V of the policy follows (VinePPO).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, inf
from typing import Any

import numpy as np

from mrt.episodes.parameterization import Parameterization
from mrt.grading.grade import right_forced
from mrt.grading.task import Row, Task, golds_of
from mrt.sampling.engine import text_of, vllm_reads
from mrt.sampling.scoring import as_written, log_probability, readable, reading
from mrt.sampling.tokens import encode, end_of
from mrt.training.flops import Counts, Sizes, distinct, pairs
from mrt.training.frozen import Frozen
from mrt.training.rl.recipe import RL


@dataclass
class MetaProver:
    """Asks mu at prefixes, and counts what that takes."""

    recipe: RL
    answers: int  # forced answers of a prefix, or continuations of a state
    task: Task
    parameterization: Parameterization
    tokenizer: Any
    kept: dict[int, str]  # the special tokens that texts keep: those of the tags of a thought
    engine: Any  # TRL's, which has the policy's weights
    frozen: Frozen | None  # mu, if it is not the policy
    sizes: Sizes
    spent: Counts
    cached: list[list[int]] = field(default_factory=list)  # token ids of all texts that the engine read in this step

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Token ids of texts, without special tokens."""
        return list(encode(self.tokenizer, texts))

    def count_forced(self, prompts: list[list[int]], answers: list[list[int]], share: int) -> None:
        """Count forced answers, or continuations, by the lengths of those of each prompt; `share` processes do so.

        Without answers the prompts were scored, which takes logits of all that is read.
        """
        (known, of_known), (all_, of_all) = distinct(self.cached), distinct([*self.cached, *prompts])
        generated = sum(map(sum, answers))
        behind = sum(pairs(len(p), len(p) + n) for p, lengths in zip(prompts, answers, strict=False) for n in lengths)
        logits = generated if answers else all_ - known
        flops = self.sizes.sampling(all_ - known + generated, of_all - of_known + behind, logits)
        self.spent.add(tokens_forced=generated / share, tokens_read=(all_ - known) / share, flops=flops / share)
        self.cached += prompts

    def accuracy_at(self, forced: Sequence[str], problems: Sequence[Row]) -> list[float]:
        """J of the current policy at each prefix, asked for once per prefix; 0 where the context is full."""
        requests, place = self.together(list(zip(forced, problems, strict=True)))
        by = self.by_likelihood if self.recipe.estimate == "likelihood" else self.by_answers
        J = by(dict(requests), self.engine.tensor_parallel_size)
        return [J[prompt] for prompt, _ in requests[place]]

    def together(self, requests: list[Any]) -> tuple[list[Any], slice]:
        """The requests of all processes that share an engine (tensor parallelism), and the place of these among them.

        Such processes must submit the same requests. The texts that the engine has read are joined too.
        """
        if self.engine.tensor_parallel_size == 1:
            return requests, slice(len(requests))
        from torch import distributed

        group, parts = self.engine.tp_group, list[Any]([None] * self.engine.tensor_parallel_size)
        distributed.all_gather_object(parts, (requests, self.cached), group=group)
        before = sum(len(theirs) for theirs, _ in parts[: distributed.get_rank(group)])
        self.cached = [ids for _, cached in parts for ids in cached]
        return [each for theirs, _ in parts for each in theirs], slice(before, before + len(requests))

    def continuations(self, states: Sequence[Sequence[int]], room: Sequence[int]) -> list[list[list[int]]]:
        """Token ids of continuations of each state, sampled as completions are; none where the context is full.

        `states` are token ids of a prompt and the beginning of a completion, each of them once. A continuation of each
        has at most as many tokens as `room` gives.
        """
        from vllm import SamplingParams

        requests, place = self.together(list(zip(map(tuple, states), room, strict=True)))
        queries = [(list(ids), tokens) for ids, tokens in dict.fromkeys(requests) if self.fits(list(ids))]
        temperature = self.recipe.decoding.temperature
        outputs = self.engine.llm.generate(
            [{"prompt_token_ids": ids} for ids, _ in queries],
            sampling_params=[
                SamplingParams(n=self.answers, temperature=temperature, max_tokens=tokens, detokenize=False)
                for _, tokens in queries
            ],
            use_tqdm=False,
        )
        sampled = [[list(each.token_ids) for each in output.outputs] for output in outputs]
        lengths = [list(map(len, of_state)) for of_state in sampled]
        self.count_forced([ids for ids, _ in queries], lengths, self.engine.tensor_parallel_size)
        of = {tuple(ids): each for (ids, _), each in zip(queries, sampled, strict=True)}
        return [of.get(ids, []) for ids, _ in requests[place]]

    def fits(self, ids: list[int]) -> bool:
        """Whether the engine's context is longer than these tokens."""
        return len(ids) < int(self.engine.llm.model_config.max_model_len)

    def by_likelihood(self, problem_of: dict[str, Row], share: int) -> dict[str, float]:
        """J at each prompt: the probability of its gold answer, in all its texts (`golds`)."""
        texts_of = [(prompt, spelling) for prompt, row in problem_of.items() for spelling in golds_of(self.task, row)]
        scored = [as_written(self.tokenizer, self.recipe.opening, spelling) for _, spelling in texts_of]
        before = self.encode(prompt for prompt, _ in texts_of)
        if self.frozen:
            logps = self.frozen.log_probabilities(list(zip(before, scored, strict=True)))
            self.spent.add(flops=self.frozen.taken() / share)
        else:
            logps = [-inf] * len(texts_of)
            whole = [[*ids, *text.before, *text.target] for ids, text in zip(before, scored, strict=True)]
            room = [i for i, ids in enumerate(whole) if self.fits(ids)]
            texts = [whole[i] for i in room]
            outputs = self.read(texts, cached=True)
            unread = [n for n, i in enumerate(room) if not readable(outputs[n], scored[i].target)]
            for n, output in zip(unread, self.read([texts[n] for n in unread], cached=False), strict=True):
                outputs[n] = output
            for i, output in zip(room, outputs, strict=True):
                logps[i] = log_probability(self.tokenizer, output, scored[i])
            self.count_forced(texts, [], share)
        J = dict.fromkeys(problem_of, 0.0)
        for (prompt, _), logp in zip(texts_of, logps, strict=True):
            J[prompt] = min(1.0, J[prompt] + exp(logp))
        return J

    def read(self, texts: list[list[int]], *, cached: bool) -> list[Any]:
        """vLLM's outputs for texts whose last tokens are scored."""
        prompts = [{"prompt_token_ids": ids} for ids in texts]
        outputs = self.engine.llm.generate(prompts, sampling_params=reading(cached=cached), use_tqdm=False)
        return list(outputs)

    def by_answers(self, problem_of: dict[str, Row], share: int) -> dict[str, float]:
        """J at each prompt: the mean score of forced answers."""
        from vllm import SamplingParams

        stop = self.parameterization.answer_ends
        parameters = SamplingParams(
            n=self.answers,
            temperature=self.recipe.decoding.temperature,
            max_tokens=self.recipe.answer_tokens,
            stop=list(stop) or None,
            detokenize=vllm_reads(self.tokenizer, stop),
            skip_special_tokens=not self.kept,
            spaces_between_special_tokens=not self.kept,
        )
        ids_of = dict(zip(problem_of, self.encode(problem_of), strict=True))
        prompts = [prompt for prompt, ids in ids_of.items() if self.fits(ids)]
        ids = [ids_of[prompt] for prompt in prompts]
        outputs = self.engine.llm.generate(
            [{"prompt_token_ids": i} for i in ids], sampling_params=parameters, use_tqdm=False
        )
        texts = [
            text_of(self.tokenizer, answer, stop, before, self.kept)
            for before, output in zip((end_of(self.tokenizer, i) for i in ids), outputs, strict=True)
            for answer in output.outputs
        ]
        self.count_forced(ids, [[len(answer.token_ids) for answer in output.outputs] for output in outputs], share)
        problems = [problem_of[prompt] for prompt in prompts for _ in range(self.answers)]
        right = np.reshape(right_forced(self.task, texts, problems), (len(prompts), self.answers))
        return dict.fromkeys(problem_of, 0.0) | dict(zip(prompts, right.mean(axis=1).tolist(), strict=True))
