"""Incremental tokenization of texts that share prefixes: a shared prefix is tokenized once.

The prefixes of a thought of k episodes are together as long as k² / 2 episodes. Some tokenizers never make a token
across a line break and the printed character after it, and look no further than that character. The position between
the two is a safe split: if two texts are equal up to and including that character, their tokens are equal up to the
split. So only the text after the last safe split that both share is tokenized again. This is known to hold for
tokenizers that first split a text by one of the patterns below (Qwen2's, Llama 3's, the toy world's) or by GPT-2's.
Within a match of these, a line break is followed by white space only. A line break before a character that may begin an
added token is not a safe split. An added token is cut out first, and line breaks before it then end a text. With any
other tokenizer, every text is tokenized whole.

Incremental detokenization: the text of an answer's token ids, without decoding its whole prompt again.
"""

import json
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from types import MappingProxyType
from typing import Any

LINE = re.compile(r"\n(?=[!-~\u4e00-\u9fff])")  # ends at a safe split, unless an added token may begin there
PATTERNS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\d+|\n\n|\n|[^\d\n]+",
}
BATCH = 256  # texts tokenized at once
BEFORE = ("\n", "=", "~")  # texts that tokenizers hardly join with the next one


@lru_cache(maxsize=8)  # a tokenizer's JSON is as long as its vocabulary
def line_of(tokenizer: Any) -> re.Pattern[str] | None:
    """The pattern of line breaks that end at a safe split of this tokenizer; None if none are known."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    model, cutter = parts["model"], parts["pre_tokenizer"] or {}
    stages = cutter["pretokenizers"] if cutter.get("type") == "Sequence" else [cutter]
    *splits, last = stages
    whole_bytes = last.get("type") == "ByteLevel" and not last["add_prefix_space"]
    if splits:
        patterns = [split.get("pattern", {}).get("Regex") for split in splits]
        known = (
            len(patterns) == 1
            and patterns[0] in PATTERNS
            and splits[0]["behavior"] == "Isolated"
            and not splits[0]["invert"]
        )
        known = known and whole_bytes and not last["use_regex"]
    else:
        known = whole_bytes and last["use_regex"]
    added, normalizer = parts["added_tokens"], parts["normalizer"] or {"type": "Sequence", "normalizers": []}
    normalizers = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    if not (
        known
        and model["type"] == "BPE"
        and not model.get("dropout")
        and all(part["type"] == "NFC" for part in normalizers)
        and not any(
            token["lstrip"] or token["rstrip"] or token["single_word"] or LINE.search(token["content"])
            for token in added
        )
    ):
        return None
    begins = "".join(sorted({unicodedata.normalize("NFD", token["content"])[0] for token in added}))
    return re.compile(f"{LINE.pattern}(?![{re.escape(begins)}])" if begins else LINE.pattern)


def common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Length of the common prefix of two texts, in characters, or of two lists of tokens."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Reader:
    """Tokenizes texts in turn, each from the last safe split that it shares with the text before."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.line = tokenizer, line_of(tokenizer)
        self.last, self.begin = "", 0  # the last text, and the split from which it was tokenized
        self.ids: list[int] = []  # of the last text
        self.pieces: list[tuple[int, int, Any]] = []  # (characters before, tokens before, encoding) of parts

    def place(self, text: str) -> int:
        """The last safe split that a text shares with the text before; 0 if there is none."""
        if not self.line:
            return 0
        alike = common(self.last, text)
        stop = self.begin if self.begin < alike else 0  # itself a safe split: no need to look further back
        line = text.rfind("\n", stop, max(alike - 1, stop))  # the next character has to be equal too
        while line >= 0 and not self.line.match(text, line):
            line = text.rfind("\n", stop, line)
        return line + 1 if line >= 0 else stop

    def read(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Token ids of texts, without special tokens."""
        if not texts:
            return
        begins = []
        for text in texts:
            begins.append(self.place(text))
            self.last, self.begin = text, begins[-1]
        rest = [text[begin:] for text, begin in zip(texts, begins, strict=True)]
        encoded = self.tokenizer(rest, add_special_tokens=False)
        for index, begin in enumerate(begins):
            ids: list[int] = encoded["input_ids"][index]
            if self.line:
                while self.pieces and self.pieces[-1][0] > begin:
                    self.pieces.pop()
                count = 0
                if begin:
                    start, count, piece = self.pieces[-1]
                    if begin > start:
                        count += piece.char_to_token(begin - start)
                    else:
                        self.pieces.pop()
                else:
                    self.pieces.clear()
                self.pieces.append((begin, count, encoded.encodings[index]))
                ids = self.ids = self.ids[:count] + ids
            yield ids


def encode(tokenizer: Any, texts: Iterable[str]) -> Iterator[list[int]]:
    """Token ids of each text in turn, without special tokens; at most `BATCH` texts are held at once."""
    reader, texts = Reader(tokenizer), iter(texts)
    while batch := list(islice(texts, BATCH)):
        yield from reader.read(batch)


def encode_completions(tokenizer: Any, texts: Iterable[str]) -> Iterator[list[int]]:
    """Token ids of each text as what follows a prompt.

    Some tokenizers (Llama 2's) write a space before each text that they encode. A model writes none after its prompt.

    Raises:
        ValueError: for a text whose beginning such a tokenizer joins with whatever precedes it.
    """
    if writes_a_space(tokenizer):
        yield from (encode_after(tokenizer, text) for text in texts)
    else:
        yield from encode(tokenizer, texts)


def encode_after(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text after one of `BEFORE`."""
    for before in BEFORE:
        first, whole = tokenizer([before, before + text], add_special_tokens=False)["input_ids"]
        if whole[: len(first)] == first:
            return list(whole[len(first) :])
    raise ValueError(f"its tokenizer makes no tokens of {text[:20]!r} that follow another text")


@lru_cache(maxsize=8)
def writes_a_space(tokenizer: Any) -> bool:
    """Whether a text has other tokens after another one than alone."""
    return list(tokenizer("a", add_special_tokens=False)["input_ids"]) != encode_after(tokenizer, "a")


def end_of(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """The last token ids of a text, enough to decode what follows it; they begin with a character's first byte."""
    size = 8
    while size < len(ids) and tokenizer.is_fast:
        text = tokenizer.backend_tokenizer.decode(ids[-size:])
        if text and "\ufffd" not in text:
            break
        size *= 2
    return list(ids[-size:])


def pieces(
    tokenizer: Any, before: Sequence[int], ids: Iterable[int], kept: Mapping[int, str] = MappingProxyType({})
) -> Iterator[str]:
    """The text that each token id adds after a text whose `end_of` is `before`, as vLLM decodes it after the whole.

    Special tokens add nothing but those that are `kept`, nor do bytes until they complete a character. Needs a fast
    tokenizer (`is_fast`).
    """
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(ids=list(before), skip_special_tokens=True)
    for token in ids:
        try:
            piece = stream.step(tokenizer.backend_tokenizer, token)
        except Exception as error:  # invalid bytes; the library raises no narrower type
            if not str(error).startswith("Invalid prefix encountered"):
                raise
            stream = DecodeStream(skip_special_tokens=True)
            piece = stream.step(tokenizer.backend_tokenizer, token)
        yield piece or kept.get(token, "")


def tokens_up_to(texts: Sequence[str], places: Iterable[int]) -> list[int]:
    """How many tokens reach each place of a text, in characters; the last of them may go on beyond it.

    Args:
        texts: the text that each token adds (`pieces`).
        places: numbers of characters, each at least 1 and at most those of the text.
    """
    ends = list(accumulate(map(len, texts)))
    return [bisect_left(ends, place) + 1 for place in places]


def decode(
    tokenizer: Any, before: Sequence[int], ids: Iterable[int], kept: Mapping[int, str] = MappingProxyType({})
) -> str:
    """The text that token ids add after a text whose `end_of` is `before`; see `pieces`."""
    return "".join(pieces(tokenizer, before, ids, kept))
