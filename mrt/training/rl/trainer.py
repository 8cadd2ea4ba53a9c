"""TRL's GRPOTrainer with the rewards or advantages of a variant (mrt.training.variant)."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from mrt.core.hub import ends_of
from mrt.episodes.parameterization import OpenEnded, Parameterization
from mrt.episodes.segmentation import splitter
from mrt.episodes.thinking import answer_parts, of_cell, special_ids
from mrt.grading.grade import right_forced
from mrt.grading.task import Row, Task, answers_in, scores
from mrt.sampling.engine import seed_of, vllm_reads
from mrt.sampling.tokens import decode, end_of, pieces, tokens_up_to
from mrt.training.budget import EndsOnBudget
from mrt.training.devices import LENGTHS, padded_left
from mrt.training.flops import Counts, Sizes, distinct, pairs
from mrt.training.frozen import Frozen
from mrt.training.rl.dynamic_sampling import draw_again
from mrt.training.rl.engine import DOUBTFUL, FAR, check_fresh
from mrt.training.rl.meta_prover import MetaProver
from mrt.training.rl.recipe import ONE_RATIO, RL
from mrt.training.schedule import EveryStepLearns, carried
from mrt.training.stage import EndsOnce, show_progress
from mrt.training.variant import Boundaries, Group, Variant, values_of

MIDDLE = (
    "the training resumes at step {}, in the middle of the {} updates with a batch of completions, which the checkpoint"
    " does not have: results would differ. Remove {} to begin anew"
)


def without_end(ids: Sequence[int], ends: Collection[int]) -> Sequence[int]:
    """A completion's token ids without the token that ended it (`ends`), which texts may keep."""
    return ids[:-1] if ids and ids[-1] in ends else ids


def overlong_penalties(lengths: Sequence[int], longest: int, buffer: int | None) -> list[float]:
    """The penalty of each completion for its length (DAPO, Equation 13); 0 without a buffer.

    Args:
        lengths: tokens of each completion.
        longest: L_max, the tokens at which a completion is cut.
        buffer: L_cache: the number of last tokens over which the penalty goes from 0 to -1, linearly.
    """
    if buffer is None:
        return [0.0] * len(lengths)
    from trl.rewards import get_soft_overlong_punishment

    penalties: list[float] = get_soft_overlong_punishment(longest, buffer)([range(n) for n in lengths])
    return penalties


def problem_of(example: Mapping[str, Any]) -> Row:
    """The problem of a row of prompts; without its column `row`, its id and gold answer alone."""
    row: Row = json.loads(example.get("row") or "{}")
    return row or {"id": example.get("problem_id"), "answer": example["answer"]}


def outcome_reward(task: Task, tokenizer: Any) -> Any:
    """A reward function for TRL: the score of a completion's answer, 1 where it is right.

    A completion that continues a prefix is graded together with it: an attempt in the prefix is the answer if the
    completion adds none. One that begins `inside` a thought has no answer without `</think>`; where `inside` is None,
    it is an answer that was forced.
    """

    @cache
    def ends() -> tuple[int, ...]:
        return ends_of(tokenizer)

    @cache
    def ends_are_text() -> bool:
        """Whether TRL's texts have an end: it decodes without special tokens, but with an end that is not special."""
        return any(tokenizer.decode([end], skip_special_tokens=True) for end in ends())

    def outcome(
        completions: list[str],
        answer: list[str],
        inside: list[bool | None],
        prefix_text: list[str],
        thinking: list[str | None],
        completion_ids: list[list[int]],
        **columns: Any,
    ) -> list[float]:
        kept = special_ids(tokenizer, of_cell(thinking[0]))
        if any(completion_ids) and (kept or ends_are_text()):
            completions = [decode(tokenizer, [], without_end(ids, ends()), kept) for ids in completion_ids]
        whole = [before + completion for before, completion in zip(prefix_text, completions, strict=True)]
        tags = list(map(of_cell, thinking))
        given = {"answer": answer} | {name: columns[name] for name in ("problem_id", "row") if name in columns}
        problems = [problem_of(dict(zip(given, values, strict=True))) for values in zip(*given.values(), strict=True)]
        score = scores(task, answers_in(task, answer_parts(whole, list(map(bool, inside)), tags), problems), problems)
        forced = [i for i, begins in enumerate(inside) if begins is None]
        of_forced = right_forced(task, [completions[i] for i in forced], [problems[i] for i in forced])
        for i, value in zip(forced, of_forced, strict=True):
            score[i] = value
        return score

    return outcome


def make_trainer_class() -> type:
    """GRPOTrainer with a variant's rewards or advantages; a function because importing TRL takes seconds."""
    import torch
    from accelerate.utils import gather_object  # type: ignore[import-untyped]
    from trl import GRPOTrainer

    def left_aligned(values: Any, counts: list[tuple[int, int]], width: int) -> Any:
        """The last n values of each row, moved to its beginning and padded to this width; `counts`: (row, n)."""
        rows = [torch.nn.functional.pad(values[i, values.size(1) - n :], (0, width - n)) for i, n in counts]
        return torch.stack(rows)

    class Carrying(torch.utils.data.Sampler[int]):
        """TRL's sampler, which carries problems over to the next epoch where TRL's leaves them out.

        The order of a pass depends on its number, so that a resumed training has the same. It calls `epoch`, because
        `set_epoch` is not passed on through the samplers that skip batches and split them over processes.

        Args:
            data_source: the problems.
            batch_size: problems of which completions are sampled at once.
            mini_repeat_count: completions of each.
            repeat_count: how often a batch is read: once a micro-batch.
            seed: of the order.
            epoch: the number of the epoch.
        """

        def __init__(
            self,
            data_source: Any,
            batch_size: int,
            mini_repeat_count: int,
            repeat_count: int,
            seed: int,
            epoch: Callable[[], int],
        ) -> None:
            self.data_source, self.num_samples, self.batch_size = data_source, len(data_source), batch_size
            self.mini_repeat_count, self.repeat_count = mini_repeat_count, repeat_count
            self.seed, self.epoch = seed, epoch

        def order(self, number: int) -> list[int]:
            """The problems in the order of this pass."""
            generator = torch.Generator().manual_seed(self.seed + number)
            order: list[int] = torch.randperm(self.num_samples, generator=generator).tolist()
            return order

        def __len__(self) -> int:
            return (
                -(-self.num_samples // self.batch_size) * self.batch_size * self.mini_repeat_count * self.repeat_count
            )

        def __iter__(self) -> Iterator[int]:
            for batch in carried(self.data_source, self.batch_size, self.epoch(), self.order):
                for _ in range(self.repeat_count):
                    yield from (problem for problem in batch for _ in range(self.mini_repeat_count))

    class MRTTrainer(EndsOnBudget, EndsOnce, EveryStepLearns, GRPOTrainer):
        """GRPOTrainer with our rewards and advantages, batches without padding, counters and checks."""

        def __init__(
            self,
            variant: Variant,
            recipe: RL,
            task: Task,
            parameterization: Parameterization,
            frozen: Any = None,
            **options: Any,
        ) -> None:
            tokenizer = options["processing_class"]
            self.graded = outcome_reward(task, tokenizer)
            os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `rollout_func` is a public, experimental argument
            if options["args"].use_vllm:
                options["rollout_func"] = self.rollout
            super().__init__(reward_funcs=self.outcome, **options)
            self.variant, self.recipe, self.parameterization = variant, recipe, parameterization
            self.split = splitter(parameterization)
            if recipe.estimate == "likelihood" and not isinstance(parameterization, OpenEnded):
                raise ValueError("estimate: likelihood is for thoughts; after an attempt mu repeats its answer")
            self.kept = special_ids(tokenizer, of_cell(self.train_dataset[0]["thinking"]))
            self.spent = Counts("tokens_sampled", "tokens_forced", "tokens_read", "flops")
            self.sizes = Sizes.of(self.model)
            self.mu = MetaProver(
                recipe=recipe,
                answers=recipe.answers or self.num_generations,
                task=task,
                parameterization=parameterization,
                tokenizer=tokenizer,
                kept=self.kept,
                engine=self.vllm_generation if self.use_vllm else None,
                frozen=frozen and Frozen(frozen, tokenizer, self.accelerator.device),
                sizes=self.sizes,
                spent=self.spent,
            )
            self.group = Group(None, None, None)  # the completions of all processes, as those of one group
            self.stopped: list[bool] = []  # whether each of this process's completions has to answer at once
            self.lengths: list[int] = []  # tokens of this process's completions, also of those that are masked
            self.notes: dict[str, list[float]] = defaultdict(list)  # additions to the next log entry, of each step
            self.draws = 0  # calls of the engine in this step
            self.doubted = False  # whether the warning FAR was printed
            self.inputs: list[dict[str, Any]] = []  # those of this process's completions
            self.scores: list[float] | None = None  # their outcomes, if dynamic sampling computed them
            if self.use_vllm and self.vllm_mode == "colocate":  # a server's requests have no seeds
                self.vllm_generation.llm.generate = self.seeded(self.vllm_generation.llm.generate)
            show_progress(self)

        def seeded(self, generate: Any) -> Any:
            """The engine's `generate` with a seed per request, by step and position: equal in a resumed run.

            The engine makes no texts, which takes a fifth of its time on a GPU: TRL reads the tokens alone.
            """
            rank = self.accelerator.process_index // self.vllm_generation.tensor_parallel_size

            def generate_seeded(prompts: Sequence[Any], sampling_params: Any, **options: Any) -> Any:
                self.draws += 1
                given = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(prompts)
                each = [parameters.clone() for parameters in given]
                for place, parameters in enumerate(each):
                    parameters.seed = seed_of(self.recipe.seed, self.state.global_step, self.draws, rank, place)
                    parameters.detokenize = parameters.detokenize and vllm_reads(self.processing_class, parameters.stop)
                return generate(prompts, sampling_params=each, **options)

            return generate_seeded

        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return Carrying(
                self.train_dataset if dataset is None else dataset,
                batch_size=self.args.generation_batch_size // self.num_generations,
                mini_repeat_count=self.num_generations,
                repeat_count=self.num_iterations * self.args.steps_per_generation,
                seed=self.args.seed,
                epoch=lambda: int(self.state.epoch or 0),
            )

        def note(self, name: str, value: float) -> None:
            self.notes[name].append(float(value))

        @contextmanager
        def timed(self, phase: str) -> Iterator[None]:
            began, noted = time.monotonic(), self.notes[f"seconds_{phase}"]
            yield
            noted[:] = [sum(noted) + time.monotonic() - began]  # of all calls of a step

        def rollout(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
            """Completions for TRL; with dynamic sampling, perhaps of other problems, to which `inputs` then belong."""
            sampled = self.draw(prompts)
            if self.recipe.dynamic_sampling and self.model.training:
                self.scores = draw_again(self, self.inputs, sampled)
            return sampled

        def draw(self, prompts: list[str]) -> dict[str, Any]:
            """Completions of these prompts, read as the sampling engine reads them.

            A chat prompt already begins with its special token, and TRL would add another.
            """
            prompt_ids = self.mu.encode(prompts)
            with self.timed("sampling"):
                _, completion_ids, logprobs, _ = self.vllm_generation.generate(
                    prompts=prompt_ids, images=None, num_generations=self.num_generations
                )
            sampled_logps = [[token[0] for token in completion] for completion in logprobs]
            return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": sampled_logps}

        def outcome(self, prompts: list[str], **columns: Any) -> list[float]:
            """The reward of each completion, by the variant or else its outcome less what length costs."""
            with self.timed("grading"):
                scored, count = self.graded(**columns) if self.scores is None else self.scores, len(prompts)
                right = torch.tensor(scored, dtype=torch.float32)
                self.lengths = [len(ids) for ids in columns["completion_ids"]]
                longest, buffer = self.recipe.decoding.max_tokens, self.recipe.overlong_buffer
                lost = torch.tensor(overlong_penalties(self.lengths, longest, buffer), dtype=torch.float32)
                stopped = torch.tensor(self.stopped if len(self.stopped) == count else [False] * count)
                of_each = (right, lost, torch.tensor(self.lengths), stopped)
                outcomes, penalties, lengths, stopped = map(self.of_all_processes, of_each)
                self.group = Group(outcomes, penalties, lengths, stopped=stopped)
                if self.variant.gives == "advantages":
                    rewards = self.group.rewards[self.slice_of(count)]
                else:
                    rewards = self.by_group(count)
            return list(map(float, rewards))

        def slice_of(self, count: int) -> slice:
            """The places of this process's completions among those of all, of which each process has `count`."""
            first = self.accelerator.process_index * count
            return slice(first, first + count)

        def of_all_processes(self, values: Any) -> Any:
            """Values of the completions of all processes, in the order of the processes."""
            return self.accelerator.gather(values.to(self.accelerator.device)).cpu()

        def by_group(self, count: int) -> Any:
            """The variant's values for this process's completions, `count` of them [count] or [count, tokens].

            A group may lie in several processes, each of which works it out.
            """
            local, size = self.slice_of(count), self.num_generations
            first = local.start // size * size
            groups = [
                values_of(self.variant, self.group.part(slice(start, start + size)), self.recipe.values())
                for start in range(first, local.stop, size)
            ]
            width = max((values.size(1) for values in groups if values.dim() == 2), default=0)
            wide = [torch.nn.functional.pad(v, (0, width - v.size(1))) if v.dim() == 2 else v for v in groups]
            return torch.cat(wide)[local.start - first : local.stop - first]

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            self.draws, self.stopped, self.scores = 0, [False] * len(inputs), None
            if self.state.global_step % self.num_iterations and self.model.training:
                raise ValueError(MIDDLE.format(self.state.global_step, self.num_iterations, self.args.output_dir))
            self.inputs = inputs = self.prompted(inputs)
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
            if self.recipe.vllm_importance_sampling_mode == "none" and "importance_sampling_ratio" in output:
                output["importance_sampling_ratio"] = torch.ones_like(output["importance_sampling_ratio"])
            if check_fresh(output) > DOUBTFUL and not self.doubted and self.accelerator.is_main_process:
                self.doubted = True
                print(FAR.format(self.state.global_step + 1), flush=True)
            read = zip(output["prompt_ids"], output["prompt_mask"].bool(), strict=True)
            sampled = zip(output["completion_ids"], self.lengths, strict=True)
            self.count_sampled([ids[m].tolist() for ids, m in read], [ids[:n].tolist() for ids, n in sampled])
            if self.scores is None:
                self.note_traces(self.group.outcomes[self.slice_of(len(inputs))], self.lengths)
            if self.model.training:
                self.ask(inputs, output)
                if self.variant.gives == "advantages":
                    output["advantages"] = self.advantages(output["completion_ids"])
            return output

        def ask(self, inputs: list[dict[str, Any]], output: dict[str, Any]) -> None:
            """Add to the group the meta-prover's J that the variant needs: at prompts, or at boundaries of episodes."""
            outcomes = self.group.outcomes[self.slice_of(len(inputs))]
            match self.variant.asks:
                case "stop":
                    stopped = torch.tensor(self.stopped)
                    self.note("J_prefix", self.mean_of(outcomes[stopped]))
                    self.note("progress", self.mean_of(outcomes[~stopped]) - self.mean_of(outcomes[stopped]))
                case "continuations":
                    V, along = self.values(inputs, output)
                    at_prompts = self.of_all_processes(torch.tensor(V, dtype=outcomes.dtype))
                    self.group = replace(self.group, J=at_prompts, boundaries=gather_object(along))
                case "budgets":
                    with self.timed("forced"):
                        along = self.boundaries(inputs, output)
                    self.group = replace(self.group, boundaries=gather_object(along))
                case "prefix" | "boundaries" as asks:
                    with self.timed("forced"):
                        J = self.mu.accuracy_at([x["forced"] for x in inputs], list(map(problem_of, inputs)))
                        along = self.boundaries(inputs, output) if asks == "boundaries" else []
                    before = torch.tensor(J, dtype=outcomes.dtype)
                    self.group = replace(self.group, J=self.of_all_processes(before), boundaries=gather_object(along))
                    self.note("J_prefix", self.mean_of(before))
                    self.note("progress", self.mean_of(outcomes - before))

        def advantages(self, completion_ids: Any) -> Any:
            """The variant's advantages of these completions, [completions] or [completions, tokens].

            Raises ValueError for advantages of tokens with a ratio per completion, or of more tokens than there are.
            """
            values = self.by_group(len(completion_ids))
            if values.dim() == 2:
                if self.importance_sampling_level == "sequence":
                    raise ValueError(f"importance_sampling_level: {ONE_RATIO}")
                missing = completion_ids.size(1) - values.size(1)
                if missing < 0:
                    raise ValueError(f"variant {self.variant.name}: advantages of more tokens than completions have")
                values = torch.nn.functional.pad(values, (0, missing))
            return values.to(completion_ids.device)

        def note_traces(self, outcomes: Any, lengths: Sequence[int]) -> None:
            """Note the mean outcome and length of whole traces, without answers of stopped completions."""
            going_on = ~torch.tensor(self.stopped)
            prefix_lengths = map(len, self.mu.encode(x["prefix_text"] for x in self.inputs))
            whole = torch.tensor([b + n for b, n in zip(prefix_lengths, lengths, strict=True)])
            self.note("outcome", self.mean_of(outcomes[going_on]))
            self.note("trace_tokens", self.mean_of(whole[going_on]))

        def scores_of(self, inputs: Sequence[dict[str, Any]], completion_ids: Sequence[list[int]]) -> list[float]:
            """The outcome of each completion."""
            columns = {name: [x[name] for x in inputs] for name in inputs[0] if name != "prompt"}
            completions = self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
            with self.timed("grading"):
                scored: list[float] = self.graded(completions=completions, completion_ids=completion_ids, **columns)
            return scored

        def prompted(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
            """The inputs, with the prompts that the variant has of them."""
            return self.half_stopped(inputs) if self.variant.asks == "stop" and self.model.training else inputs

        def half_stopped(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
            """The inputs; prompts of the second half of each group end with the stop phrase, if the context allows."""
            first, half = self.slice_of(len(inputs)).start, self.num_generations // 2
            forced = self.mu.encode(x["forced"] for x in inputs)
            self.stopped = [
                self.mu.fits(ids) and (first + i) % self.num_generations >= half for i, ids in enumerate(forced)
            ]
            answering = [{**x, "prompt": x["forced"], "prefix_text": "", "inside": None} for x in inputs]
            return [a if stop else x for x, a, stop in zip(inputs, answering, self.stopped, strict=True)]

        def _get_per_token_logps_and_entropies(
            self,
            model: Any,
            input_ids: Any,
            attention_mask: Any,
            logits_to_keep: int,
            batch_size: Any = None,
            **options: Any,
        ) -> Any:
            """TRL's method on rows of similar length, with padding removed: it takes most of the time on a CPU.

            Rows come as a prompt, padded on the left, and a completion, padded on the right. Padding then fills up
            whole lengths only, however these divide into prompt and completion.
            """
            rows = [ids[mask] for ids, mask in zip(input_ids, attention_mask.bool(), strict=True)]
            lengths = attention_mask[:, input_ids.size(1) - logits_to_keep :].sum(dim=1).tolist()
            rows, reader = self.reading(model, rows, lengths, batch_size or len(rows))
            again, backward = self.args.gradient_checkpointing, torch.is_grad_enabled()
            parts: list[tuple[Any, Any, Any]] = []
            order: list[int] = []
            for batch in torch.arange(len(rows)).split(batch_size or len(rows)):
                for places in torch.tensor([len(rows[i]) for i in batch]).argsort().chunk(LENGTHS):
                    which = batch[places].tolist()
                    ids, mask = padded_left([rows[i] for i in which])
                    keep, (model, before) = max(1, *(lengths[i] for i in which)), reader(which)
                    *values, aux = super()._get_per_token_logps_and_entropies(model, ids, mask, keep, **options)
                    size = (*ids.shape, int(mask[:, -keep:].sum()), before)
                    self.spent.add(flops=self.sizes.training(*size, backward=backward, checkpointing=again))
                    counts = [(place, lengths[i]) for place, i in enumerate(which)]
                    parts.append((*(x if x is None else left_aligned(x, counts, logits_to_keep) for x in values), aux))
                    order += which
            logps, entropies, aux = zip(*parts, strict=True)
            back_to = torch.tensor(order).argsort()
            joined = (None if x[0] is None else torch.cat(x)[back_to] for x in (logps, entropies))
            return (*joined, None if aux[0] is None else torch.stack(aux).mean())

        def reading(
            self, model: Any, rows: list[Any], lengths: list[int], batch_size: int
        ) -> tuple[list[Any], Callable[[list[int]], tuple[Any, int]]]:
            """The token ids that a pass reads of each row, and the model that reads them.

            Args:
                model: the model.
                rows: token ids of each row, which ends with its completion.
                lengths: tokens of each completion.
                batch_size: rows that are read at once.

            Returns:
                The token ids to read, and a function of rows (indices): the model that reads them, and how many tokens
                it attends to before them.
            """
            return rows, lambda _: (model, 0)

        def mean_of(self, values: Any) -> float:
            """Mean of the values of all processes."""
            totals = torch.stack([values.sum(), torch.tensor(float(values.numel()))]).to(self.accelerator.device)
            total, count = self.accelerator.reduce(totals, reduction="sum").tolist()
            return total / max(count, 1.0)

        def count_sampled(self, prompts: Sequence[list[int]], completions: Sequence[list[int]]) -> None:
            """Count completions of prompts [tokens], also those of which no token is learnt."""
            lengths = list(map(len, completions))
            self.mu.cached = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
            read, attended = distinct(prompts)
            behind = sum(pairs(len(p), len(p) + n) for p, n in zip(prompts, lengths, strict=True))
            flops = self.sizes.sampling(read, attended) + self.sizes.sampling(sum(lengths), behind, sum(lengths))
            self.spent.add(tokens_sampled=sum(lengths), tokens_read=read, flops=flops)

        def boundaries(self, inputs: Any, output: Any) -> list[Boundaries]:
            """For each completion, its tokens up to each place where the variant asks mu inside it, and J there."""
            prefixes: list[tuple[str, Row]] = []
            ends: list[list[int]] = []
            for x, (of_completion, texts) in zip(inputs, self.places(inputs, output), strict=True):
                words = self.parameterization.of(of_cell(x["thinking"]))
                chat = x["prompt"].removesuffix(x["prefix_text"])
                prefixes += [(chat + words.force(text), problem_of(x)) for text in texts]
                ends.append(of_completion)
            # all processes call this, even without prefixes: it communicates
            J = iter(self.mu.accuracy_at([p for p, _ in prefixes], [row for _, row in prefixes]))
            return [(of_completion, [next(J) for _ in of_completion]) for of_completion in ends]

        def places(self, inputs: Any, output: Any) -> Iterator[tuple[list[int], list[str]]]:
            """For each completion, its tokens up to each place where the variant asks, and its whole text up to there.

            The places are the ends of episodes but the last one's, or budgets that the thought does not stay below.
            """
            for x, prompt, completion in zip(inputs, *self.tokens_of(output), strict=True):
                before, words = x["prefix_text"], self.parameterization.of(of_cell(x["thinking"]))
                texts = list(
                    pieces(self.processing_class, end_of(self.processing_class, prompt), completion, self.kept)
                )
                by_budget = self.variant.asks == "budgets"
                split = (lambda thought: [thought]) if by_budget else self.split
                episodes, closed = words.cut("".join(texts), before, inside=bool(x["inside"]), split=split)
                thought = "".join(episodes)
                if by_budget:
                    written = len(thought) - len(before)
                    longest = tokens_up_to(texts, [written])[0] - 1 if closed and written > 0 else len(texts)
                    ends = [tokens for tokens in self.recipe.budget_tokens() if written > 0 and tokens <= longest]
                    cuts = [len(before) + sum(map(len, texts[:tokens])) for tokens in ends]
                else:
                    all_cuts = np.cumsum([len(e) for e in episodes])
                    cuts = [cut for cut in all_cuts if len(before) < cut < len(thought)][: self.recipe.max_episodes]
                    ends = tokens_up_to(texts, [cut - len(before) for cut in cuts])
                yield ends, [thought[:cut] for cut in cuts]

        def tokens_of(self, output: Any) -> tuple[list[list[int]], list[list[int]]]:
            """The token ids of each prompt, and of each completion that is not masked, without padding."""
            both = (output[f"{name}_ids"] for name in ("prompt", "completion"))
            masks = (output[f"{name}_mask"].bool() for name in ("prompt", "completion"))
            prompts, completions = (
                [ids[mask].tolist() for ids, mask in zip(rows, kept, strict=True)]
                for rows, kept in zip(both, masks, strict=True)
            )
            return prompts, completions

        def values(self, inputs: Any, output: Any) -> tuple[list[float], list[Boundaries]]:
            """V at each prompt, and for each completion its tokens up to each place inside it and V there.

            V is the mean outcome of continuations of the current policy; 0 where the context is full.
            """
            ends = [ends for ends, _ in self.places(inputs, output)]
            states: dict[tuple[int, ...], tuple[Any, list[int]]] = {}  # and the completion's part of each
            of_each: list[list[tuple[int, ...]]] = []
            for x, prompt, completion, places in zip(inputs, *self.tokens_of(output), ends, strict=True):
                parts = [completion[:end] for end in (0, *places)]
                of_each.append([(*prompt, *part) for part in parts])
                states |= {state: (x, part) for state, part in zip(of_each[-1], parts, strict=True)}
            with self.timed("forced"):
                room = [self.recipe.decoding.max_tokens - len(part) for _, part in states.values()]
                sampled = self.mu.continuations(list(states), room)
            whole = [(x, part + ids) for (x, part), of in zip(states.values(), sampled, strict=True) for ids in of]
            scored = iter(self.scores_of([x for x, _ in whole], [ids for _, ids in whole]) if whole else [])
            V = {s: float(np.mean([next(scored) for _ in of] or [0.0])) for s, of in zip(states, sampled, strict=True)}
            at_prompts = [V[first] for first, *_ in of_each]
            return at_prompts, [(e, [V[state] for state in of[1:]]) for e, of in zip(ends, of_each, strict=True)]

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            means = {name: sum(values) / len(values) for name, values in self.notes.items()}
            self.notes.clear()
            super().log({**logs, **means, **self.spent.totals(self)}, start_time)

    return MRTTrainer
