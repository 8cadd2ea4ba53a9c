"""A frozen mu in RL: the parent's probability of the gold answer, at all boundaries of many thoughts, in few passes.

The current policy's J comes from the engine that samples (`mrt.sampling.scoring`). The parent has no engine, so it
reads its J in plain forward passes. The texts of a step are prefixes of a few thoughts, each followed by an answer;
they share most of their tokens. They are packed as a tree: each distinct token is in a row once and attends to the
earlier tokens of its texts. Its position is its depth, its mask its ancestors. So a row gives the same probabilities as
all of its texts alone, and costs as much as its distinct tokens.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mrt.sampling.scoring import Scored
from mrt.sampling.tokens import common
from mrt.training.flops import Sizes
from mrt.training.prompt_cache import has_cache

ROW = 4096  # tokens of a row, if no text is longer; the mask has its square
CHUNK = 32  # tokens of which log-probabilities are worked out at once, in float32


class Row(NamedTuple):
    """Texts packed as a tree: a token a node, parents before their children."""

    ids: npt.NDArray[np.int64]  # tokens [nodes]
    depth: npt.NDArray[np.int64]  # position of each in its texts [nodes]
    mask: npt.NDArray[np.bool_]  # whether the first attends to the second [nodes, nodes]
    paths: list[tuple[int, list[int]]]  # (number of the text, the nodes of its tokens)


def rows(texts: Sequence[Sequence[int]], size: int = ROW) -> Iterator[Row]:
    """Pack texts, each a list of token ids, into rows of at most `size` distinct tokens; a longer text is one row."""
    order = sorted(range(len(texts)), key=lambda i: list(texts[i]))
    ids: list[int] = []
    parents: list[int] = []
    paths: list[tuple[int, list[int]]] = []
    for number in order:
        text, last = texts[number], paths[-1][1] if paths else []
        shared = common(list(text), [ids[node] for node in last])
        if paths and len(ids) + len(text) - shared > size:
            yield row(ids, parents, paths)
            ids, parents, paths, last, shared = [], [], [], [], 0
        path = list(last[:shared])
        for token in text[shared:]:
            parents.append(path[-1] if path else -1)
            path.append(len(ids))
            ids.append(token)
        paths.append((number, path))
    if paths:
        yield row(ids, parents, paths)


def row(ids: list[int], parents: list[int], paths: list[tuple[int, list[int]]]) -> Row:
    """The row of a tree, given each node's token and parent (-1: none)."""
    depth, mask = np.zeros(len(ids), dtype=np.int64), np.eye(len(ids), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            depth[node] = depth[parent] + 1
            mask[node] |= mask[parent]
    return Row(np.array(ids, dtype=np.int64), depth, mask, paths)


class Frozen:
    """A model that stays as it is, and the probability of texts under it.

    Raises ValueError if it has layers that do not attend to all earlier tokens: they would read other texts of a row.
    """

    def __init__(self, model: Any, tokenizer: Any, device: Any) -> None:
        if not has_cache(model.config.get_text_config()):
            raise ValueError("mu: parent packs its texts, which takes full attention in every layer; use mu: policy")
        self.model = model.eval().requires_grad_(False).to(device)
        self.begin: dict[str, list[int]] = {}
        self.text_of = {i: tokenizer.decode([i]) for i in tokenizer.get_vocab().values()}
        self.sizes = Sizes.of(model)
        self.flops = 0.0

    def taken(self) -> float:
        """FLOPs since the last call."""
        taken, self.flops = self.flops, 0.0
        return taken

    def ends(self, begin: str) -> list[int]:
        """The tokens that begin with a text."""
        if begin not in self.begin:
            self.begin[begin] = [i for i, text in sorted(self.text_of.items()) if text.startswith(begin)]
        return self.begin[begin]

    def log_probabilities(self, texts: Sequence[tuple[Sequence[int], Scored]]) -> list[float]:
        """Log-probability, in nats, of each scored text after the tokens of its prompt, with its end."""
        import torch

        logps_of = [0.0] * len(texts)
        device = self.model.device
        for packed in rows([[*prompt, *scored.before, *scored.target] for prompt, scored in texts]):
            # the nodes whose next token is read: from the last one before the target to the text's last
            nodes_of = {number: path[len(path) - len(texts[number][1].target) - 1 :] for number, path in packed.paths}
            kept = sorted({node for nodes in nodes_of.values() for node in nodes})
            place = {node: i for i, node in enumerate(kept)}
            mask = torch.zeros(packed.mask.shape, dtype=self.model.dtype, device=device)
            mask.masked_fill_(~torch.from_numpy(packed.mask).to(device), torch.finfo(self.model.dtype).min)
            with torch.no_grad():
                logits = self.model(
                    input_ids=torch.from_numpy(packed.ids)[None].to(device),
                    position_ids=torch.from_numpy(packed.depth)[None].to(device),
                    attention_mask=mask[None, None],
                    logits_to_keep=torch.tensor(kept, device=device),
                    use_cache=False,
                ).logits[0]
            self.flops += self.sizes.training(1, len(packed.ids), len(kept), backward=False)
            for number, nodes in nodes_of.items():
                scored = texts[number][1]
                logp = 0.0
                for first in range(0, len(nodes), CHUNK):
                    at = [place[node] for node in nodes[first : first + CHUNK]]
                    logps = logits[at].float().log_softmax(dim=-1)
                    tokens = scored.target[first : first + CHUNK]
                    logp += float(logps[range(len(tokens)), tokens].sum())
                    if first + CHUNK >= len(nodes):
                        logp += float(logps[-1, self.ends(scored.end)].logsumexp(dim=0))
                    del logps
                logps_of[number] = logp
        return logps_of
