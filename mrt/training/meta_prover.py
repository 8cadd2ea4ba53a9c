"""J of the policy that RL trains, asked from TRL's engine, or of a frozen mu: by likelihood, or by forced answers."""

from collections.abc import Iterable, Sequence
from math import exp, inf
from typing import TYPE_CHECKING, Any

import numpy as np

from mrt.episodes.parameterization import Parameterization
from mrt.grading.grade import right_forced
from mrt.grading.task import Row, Task, golds_of
from mrt.sampling.engine import text_of, vllm_reads
from mrt.sampling.scoring import as_written, log_probability, readable, reading
from mrt.sampling.tokens import encode, end_of
from mrt.training.flops import Counts, Sizes, distinct, pairs
from mrt.training.frozen import Frozen

if TYPE_CHECKING:
    from mrt.training.rl import RL


class MetaProver:
    """What a trainer with an engine of vLLM needs to ask mu at prefixes, and to count what that takes."""

    recipe: "RL"
    task: Task
    parameterization: Parameterization
    frozen: Frozen | None  # mu, if it is not the policy
    processing_class: Any  # the tokenizer
    kept: dict[int, str]  # the special tokens that texts keep: those of the tags of a thought
    vllm_generation: Any  # TRL's engine, which has the policy's weights
    num_generations: int
    temperature: float
    sizes: Sizes
    spent: Counts
    cached: list[list[int]]  # token ids of all texts that the engine has read in this step

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Token ids of texts, without special tokens."""
        return list(encode(self.processing_class, texts))

    def count_forced(self, prompts: list[list[int]], answers: list[list[int]], share: int) -> None:
        """Count forced answers, given the lengths of those behind each prompt; `share` processes count the same.

        Without answers the prompts were scored, which takes logits of all that is read.
        """
        (known, of_known), (all_, of_all) = distinct(self.cached), distinct([*self.cached, *prompts])
        drawn = sum(map(sum, answers))
        behind = sum(pairs(len(p), len(p) + n) for p, own in zip(prompts, answers, strict=False) for n in own)
        logits = drawn if answers else all_ - known
        flops = self.sizes.sampling(all_ - known + drawn, of_all - of_known + behind, logits)
        self.spent.add(tokens_forced=drawn / share, tokens_read=(all_ - known) / share, flops=flops / share)
        self.cached += prompts

    def accuracy_at(self, forced: Sequence[str], problems: Sequence[Row]) -> list[float]:
        """J of the current policy at each prefix, asked for once per prefix; 0 where the context is full."""
        # processes that share an engine (tensor parallelism) must submit the same requests: those of all of them
        size, own = self.vllm_generation.tensor_parallel_size, slice(len(forced))
        if size > 1:
            from torch import distributed

            group, told = self.vllm_generation.tp_group, list[Any]([None] * size)
            distributed.all_gather_object(told, (list(forced), list(problems), self.cached), group=group)
            before = sum(len(theirs) for theirs, *_ in told[: distributed.get_rank(group)])
            own = slice(before, before + len(forced))
            forced, problems, self.cached = ([x for part in parts for x in part] for parts in zip(*told, strict=True))
        by = self.by_likelihood if self.recipe.estimate == "likelihood" else self.by_answers
        J = by(dict(zip(forced, problems, strict=True)), size)
        return [J[prompt] for prompt in forced][own]

    def fits(self, ids: list[int]) -> bool:
        """Whether the engine's context has room behind these tokens."""
        return len(ids) < int(self.vllm_generation.llm.model_config.max_model_len)

    def by_likelihood(self, problem_of: dict[str, Row], share: int) -> dict[str, float]:
        """J at each prompt: the probability of its gold answer, in all its texts (`golds`)."""
        asked = [(prompt, spelling) for prompt, row in problem_of.items() for spelling in golds_of(self.task, row)]
        scored = [as_written(self.processing_class, self.recipe.opening, spelling) for _, spelling in asked]
        before = self.encode(prompt for prompt, _ in asked)
        if self.frozen:
            found = self.frozen.log_probabilities(list(zip(before, scored, strict=True)))
            self.spent.add(flops=self.frozen.taken() / share)
        else:
            found = [-inf] * len(asked)
            whole = [[*ids, *text.before, *text.own] for ids, text in zip(before, scored, strict=True)]
            room = [i for i, ids in enumerate(whole) if self.fits(ids)]
            texts = [whole[i] for i in room]
            outputs = self.read(texts, cached=True)
            unread = [n for n, i in enumerate(room) if not readable(outputs[n], scored[i].own)]
            for n, output in zip(unread, self.read([texts[n] for n in unread], cached=False), strict=True):
                outputs[n] = output
            for i, output in zip(room, outputs, strict=True):
                found[i] = log_probability(self.processing_class, output, scored[i])
            self.count_forced(texts, [], share)
        J = dict.fromkeys(problem_of, 0.0)
        for (prompt, _), logp in zip(asked, found, strict=True):
            J[prompt] = min(1.0, J[prompt] + exp(logp))
        return J

    def read(self, texts: list[list[int]], *, cached: bool) -> list[Any]:
        """vLLM's outputs for texts whose last tokens are scored."""
        prompts = [{"prompt_token_ids": ids} for ids in texts]
        outputs = self.vllm_generation.llm.generate(prompts, sampling_params=reading(cached=cached), use_tqdm=False)
        return list(outputs)

    def by_answers(self, problem_of: dict[str, Row], share: int) -> dict[str, float]:
        """J at each prompt: the mean score of forced answers."""
        from vllm import SamplingParams

        each = self.recipe.answers or self.num_generations
        stop = self.parameterization.answer_ends
        parameters = SamplingParams(
            n=each,
            temperature=self.temperature,
            max_tokens=self.recipe.answer_tokens,
            stop=list(stop) or None,
            detokenize=vllm_reads(self.processing_class, stop),
            skip_special_tokens=not self.kept,
            spaces_between_special_tokens=not self.kept,
        )
        ids_of = dict(zip(problem_of, self.encode(problem_of), strict=True))
        prompts = [prompt for prompt, own in ids_of.items() if self.fits(own)]
        ids = [ids_of[prompt] for prompt in prompts]
        outputs = self.vllm_generation.llm.generate(
            [{"prompt_token_ids": i} for i in ids], sampling_params=parameters, use_tqdm=False
        )
        texts = [
            text_of(self.processing_class, drawn, stop, before, self.kept)
            for before, output in zip((end_of(self.processing_class, i) for i in ids), outputs, strict=True)
            for drawn in output.outputs
        ]
        self.count_forced(ids, [[len(drawn.token_ids) for drawn in output.outputs] for output in outputs], share)
        problems = [problem_of[prompt] for prompt in prompts for _ in range(each)]
        right = np.reshape(right_forced(self.task, texts, problems), (len(prompts), each))
        return dict.fromkeys(problem_of, 0.0) | dict(zip(prompts, right.mean(axis=1).tolist(), strict=True))
