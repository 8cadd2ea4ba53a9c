"""Token ids of texts that go on from each other are those of each text alone."""

import re

import pytest
from conftest import TOY_BASE
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mrt.sampling.tokens import PATTERNS, Reader, common, encode, encode_completions, line_of, writes_a_space

CORPUS = "Wait, let me try 3 + 4.\n\nThat is 7, isn't it?\n  So \\boxed{7}\n\n\n等等 再试 é\u0301\n\t- a\n1. b \n" * 20
PIECES = [
    "Wait",
    " it",
    "\n",
    "\n\n",
    " ",
    "1",
    "23",
    "'s",
    "é",
    "\u0301",
    "等",
    "\t",
    "-",
    "<think>",
    "<",
    "e",
    "\r",
    "\n\n**",
    "x\u200d",
]


def trained(cutter, normalizer=None):
    """A byte-level tokenizer as a model's is, with merges of white space and line breaks too."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, cutter
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([CORPUS], trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def cut_by(pattern):
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_only])


TOKENIZERS = [
    AutoTokenizer.from_pretrained(TOY_BASE),
    trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    *(trained(cut_by(pattern), normalizers.NFC()) for pattern in sorted(PATTERNS)),
]


@given(st.lists(st.tuples(st.floats(0, 1), st.lists(st.sampled_from(PIECES), max_size=12)), max_size=12))
# GPT-2's pattern cuts "\n\n<" before the last "\n", an added token after it.
@example([(0.0, ["\n\n", "<think>"]), (0.5, [])])
def test_ids_are_those_of_each_text_alone(changes):
    texts = [""]
    for share, added in changes:
        texts.append(texts[-1][: round(share * len(texts[-1]))] + "".join(added))
    for tokenizer in TOKENIZERS:
        alone = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        assert list(encode(tokenizer, texts)) == alone
        reader = Reader(tokenizer)
        assert [ids for at in range(0, len(texts), 3) for ids in reader.read(texts[at : at + 3])] == alone


def test_all_of_these_tokenizers_are_known():
    assert all(map(line_of, TOKENIZERS))


@pytest.mark.parametrize(
    "cutter", [pre_tokenizers.Metaspace(), pre_tokenizers.ByteLevel(add_prefix_space=True), cut_by(r"\n?\w+|.|\n")]
)
def test_others_are_not_and_are_read_whole(cutter):
    tokenizer = trained(cutter)
    assert line_of(tokenizer) is None
    texts = [CORPUS[:50], CORPUS[:90]]
    assert list(encode(tokenizer, texts)) == tokenizer(texts, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("text", ["Okay, so 3 + 4.", " it is 7", "\n\nWait", ""])
def test_a_completion_has_the_tokens_that_follow_a_prompt(text):
    """Also where the tokenizer writes a space before each text, as Llama 2's."""
    bytes_of_lines = [*CORPUS.replace("\n", " ").split(), "Wait", "Okay,"]
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((f"▁{word}", -2.0) for word in set(bytes_of_lines)),
                                          *((char, -9.0) for char in sorted({*CORPUS, *"Okay,▁"}))], 0))  # fmt: skip
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    spaced = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert writes_a_space(spaced) and not any(map(writes_a_space, TOKENIZERS))
    for each in (spaced, *TOKENIZERS):
        prompt, whole = each(["3 + 4 =\n", f"3 + 4 =\n{text}"], add_special_tokens=False)["input_ids"]
        (ids,) = encode_completions(each, [text])
        if not text.startswith("\n"):  # else both line breaks may be one token
            assert whole == prompt + ids


def test_no_beginning_of_a_completion_is_lost():
    """Of a tokenizer that writes a space and joins line breaks."""
    letters = {letter: i for i, letter in enumerate(["▁", "\n", "S", "o", "=", "a", "\n\n", "~"])}
    joined = Tokenizer(models.BPE(letters, [("\n", "\n")], ignore_merges=False))
    joined.normalizer = normalizers.Prepend("▁")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=joined)
    assert writes_a_space(tokenizer)
    assert [[letters["\n"], letters["S"], letters["o"]]] == [*encode_completions(tokenizer, ["\nSo"])]
    assert [[letters["\n\n"], letters["S"]]] == [*encode_completions(tokenizer, ["\n\nS"])]


def test_a_prefix_is_read_once():
    read = []

    class Counting(PreTrainedTokenizerFast):
        def __call__(self, texts, **options):
            read.extend(texts)
            return super().__call__(texts, **options)

    tokenizer = Counting(tokenizer_object=TOKENIZERS[0].backend_tokenizer)
    prefixes = [CORPUS[: match.end()] for match in re.finditer("\n\n", CORPUS)]
    list(encode(tokenizer, prefixes))
    assert sum(map(len, read)) < 3 * len(CORPUS) < sum(map(len, prefixes))


@given(st.text("ab", max_size=20), st.text("ab", max_size=20))
def test_what_two_texts_have_in_common(one, other):
    length = common(one, other)
    assert (one[:length] == other[:length] and one[length : length + 1] != other[length : length + 1]) or length == len(
        one
    ) == len(other)
