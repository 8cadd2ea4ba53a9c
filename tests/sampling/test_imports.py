"""Completions sampled elsewhere become rollouts."""

import json

import polars as pl
import pytest

from mrt.core.artifacts import GRADES, PROBLEMS, READING, ROLLOUTS
from mrt.grading.grade import Grade
from mrt.sampling.imports import Completions, Import

pytestmark = pytest.mark.fast


@pytest.fixture
def problems(tmp_path):
    rows = {"index": [0, 1], "id": ["1", "2"], "problem": ["1 + 1?", "1 + 2?"], "answer": ["2", "3"]}
    kinds = PROBLEMS.columns
    table = pl.DataFrame(rows).with_columns(pl.lit(None, k).alias(n) for n, k in kinds.items() if n not in rows)
    PROBLEMS.write(table.select(pl.col(n).cast(k) for n, k in kinds.items()), tmp_path / "problems.parquet")
    return tmp_path / "problems.parquet"


def imported(problems, rows, **settings):
    file = problems.with_name("traces.jsonl")
    file.write_text("\n".join(map(json.dumps, rows)))
    options = {"file": file, "problems": problems, "out": problems.with_name("out.parquet")}
    options["reading"] = problems.with_name("reading.parquet")
    Import(completions=Completions(**settings), **options).cli_cmd()
    return ROLLOUTS.read(problems.with_name("out.parquet")).select("problem_id", "sample", "text").rows()


def verdicts(problems, rows, **settings):
    """Where each text begins, and whether it is right."""
    imported(problems, rows, **settings)
    rollouts, grades = problems.with_name("out.parquet"), problems.with_name("grades.parquet")
    Grade(problems=problems, answers=rollouts, out=grades).cli_cmd()
    return ROLLOUTS.read(rollouts)["inside"].to_list(), GRADES.read(grades)["correct"].to_list()


def set_of(folder, name, **problems):
    """A dataset of problems by id, all with the answer 2."""
    kinds = PROBLEMS.columns
    rows = {"index": range(len(problems)), "id": list(problems), "problem": list(problems.values())}
    table = pl.DataFrame(rows).with_columns(pl.lit("2").alias("answer"))
    table = table.with_columns(pl.lit(None, k).alias(n) for n, k in kinds.items() if n not in table.columns)
    PROBLEMS.write(table.select(pl.col(n).cast(k) for n, k in kinds.items()), folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


def test_an_id_of_problems_of_two_sets_stops(tmp_path):
    old, new = set_of(tmp_path, "old", a="1 + 1?", b="1 + 2?"), set_of(tmp_path, "new", a="1 + 1?", b="2 + 2?")
    file, out = tmp_path / "traces.jsonl", {name: tmp_path / f"{name}.parquet" for name in ("out", "reading")}
    file.write_text('{"problem_id": "a", "text": "2"}')
    Import(file=file, problems=old, others=[new], **out).cli_cmd()
    file.write_text('{"problem_id": "b", "text": "2"}')
    with pytest.raises(ValueError, match="the id 'b' is of a problem of old and of another one of new"):
        Import(file=file, problems=old, others=[new], **out).cli_cmd()


QUESTIONS = {"a": "How many sides does a square have?", "b": "How many sides does a cube have?"}


def test_a_prompt_of_another_problem_stops(tmp_path):
    problems = set_of(tmp_path, "set", **QUESTIONS)
    square, cube = (f"Question:\n{QUESTIONS[name].replace(' ', '  ')}\nAnswer:" for name in "ab")
    assert imported(problems, [{"problem_id": "a", "text": "4", "prompt": square}]) == [("a", 0, "4")]
    with pytest.raises(ValueError, match="row 1: its problem_id is 'a', and its prompt has the problem 'b'"):
        imported(problems, [{"problem_id": "a", "text": "6", "prompt": cube}])
    rows = [{"problem_id": "a", "text": "4", "prompt": prompt} for prompt in (square, "Of last year's set?")]
    with pytest.raises(ValueError, match=r"row 2: .* its prompt lacks it, which other rows with this id have"):
        imported(problems, rows)


def test_prompts_in_other_words_are_counted(tmp_path, capsys):
    problems = set_of(tmp_path, "set", **QUESTIONS)
    imported(
        problems, [{"problem_id": "a", "text": "4", "prompt": "Sides of a square?"}, {"problem_id": "b", "text": ""}]
    )
    assert "warning: 1 of 1 prompts lack the problem of set with their id" in capsys.readouterr().out


def test_ids_may_be_numbers_and_samples_are_counted(problems):
    rows = [{"problem_id": i, "text": text} for i, text in ((2, "a"), (1, "b"), (2, "c"), (9, "d"))]
    assert imported(problems, rows) == [("1", 0, "b"), ("2", 0, "a"), ("2", 1, "c")]


def test_what_is_of_no_problem_stops_and_what_lacks_is_told(problems, capsys):
    with pytest.raises(ValueError, match=r"no completion is of a problem of .*: problem_id is 'x' \.\.\., ids of"):
        imported(problems, [{"problem_id": "x", "text": "t"}])
    assert imported(problems, [{"problem_id": 2.0, "text": "t"}]) == [("2", 0, "t")]  # as ids of problems are read
    assert "1 problems of problems have no completion" in capsys.readouterr().out


def test_a_row_without_a_text_stops_before_any_job(problems):
    rows = [{"problem_id": "1", "text": text} for text in ("a", None, "")]
    with pytest.raises(ValueError, match=r"traces\.jsonl, row 2: text is null; leave the row out"):
        imported(problems, rows)
    assert imported(problems, [rows[0], rows[2]]) == [("1", 0, "a"), ("1", 1, "")]
    with pytest.raises(ValueError, match=r"traces\.jsonl, row 2: text is null"):
        imported(problems, [rows[0], {"problem_id": "1"}])
    of_others = [row | {"model": model} for row, model in zip(rows, "ABA", strict=True)]
    assert imported(problems, of_others, model="A") == [("1", 0, "a"), ("1", 1, "")]


def test_rows_of_several_models_are_not_taken_for_one(problems):
    rows = [{"problem_id": "1", "text": "a", "model": "A"}, {"problem_id": "1", "text": "b", "model": "B"}]
    with pytest.raises(ValueError, match=r"of several models \(A, B\), .* choose one by `rollouts: \{model: A\}`"):
        imported(problems, rows)


def test_a_harness_whose_ids_are_of_other_problems_is_refused(problems, capsys):
    def of(*golds):
        return [
            {"doc": {"id": str(i), "query": "?", "choices": [gold], "gold_index": 0}}
            | {"model_response": {"text": ["\\boxed{2}"]}, "metric": {"em": 1}}
            for i, gold in enumerate(golds, 1)
        ]

    assert len(imported(problems, of("2", "3.0"))) == 2 and "gold answers" not in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"2 of 2 gold answers are not those of problems, .*'1': '25', there '2'"):
        imported(problems, of("25", "70"))
    imported(problems, of("2", "70"))
    assert "warning: 1 of 2 gold answers" in capsys.readouterr().out


def test_rows_may_name_no_model(problems):
    rows = [{"problem_id": "1", "text": "a"}, {"problem_id": "1", "text": "b", "model": "B"}]
    assert imported(problems, rows, model="B") == [("1", 0, "b")]
    with pytest.raises(ValueError, match=r"no row has model 'C'; there are B"):
        imported(problems, rows, model="C")


CUT, CLOSED = r"So maybe \boxed{2}. Wait, that cannot be right, let me", r"1 + 1 = 2.</think>\boxed{2}"
OPENED, ANSWER, QUOTED = r"<think>2.</think>\boxed{2}", r"It is \boxed{2}.", r"A tag is <think>. \boxed{2}"
FULL = "<|user|>1 + 1?<|assistant|><think>\n"
FINAL = r"<|channel|>final<|message|>\boxed{2}"
HARMONY = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant" + FINAL


TURNS = [
    "<|im_end|>\n<|im_start|>assistant\n",
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "<｜Assistant｜>",
    "<end_of_turn>\n<start_of_turn>model\n",
    " [/INST]",
    "[|endofturn|]\n[|assistant|]",
    "<seed:eos><seed:bos>assistant\n",
    "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "\n\nAssistant: ",
    "\n\n### Response:\n",
    "\nassistant\n",
    "<turn|>\n<|turn>model\n",
    " ASSISTANT: ",
    "<|end|><|start|>assistant",
]


def row(text, **given):
    return {"problem_id": "1", "text": text, **given}


@pytest.mark.parametrize(
    ("rows", "inside", "right"),
    [
        ([row(ANSWER), row(ANSWER)], [False, False], [True, True]),
        ([row(CLOSED), row(OPENED)], [True, False], [True, True]),
        ([row(CUT, prompt=FULL), row(ANSWER, prompt=FULL + "\n</think>\n\n")], [True, False], [False, True]),
        ([row(ANSWER, prompt="Begin with <think>. 1 + 1?<|assistant|>")], [False], [True]),
        ([row(ANSWER, prompt=FULL.replace("1?", "1? Use <think>.")[:-9])], [False], [True]),
        ([row(CLOSED, prompt="1 + 1?"), row(OPENED, prompt="1 + 1?")], [True, False], [True, True]),
        # a tag that the text only speaks of opens no thought: the row is an answer
        ([row(ANSWER), row(QUOTED)], [False, False], [True, True]),
        ([row("[THINK]2[/THINK]\\boxed{2}"), row("[THINK]it is \\boxed{2}")], [False, False], [True, False]),
        ([row("◁think▷2◁/think▷\\boxed{2}"), row("◁think▷\\boxed{2}")], [False, False], [True, False]),
        # tags of other kinds
        (
            [row(r"So \boxed{3}? No</thought>\boxed{2}"), row(r"<thought>1</thought>\boxed{2}")],
            [True, False],
            [True] * 2,
        ),
        (
            [row(r"No</seed:think>\boxed{2}", prompt="Q <seed:think>"), row(CUT, prompt="Q<seed:think>\n")],
            [True] * 2,
            [True, False],
        ),
        ([row("Okay.\n<thought>So \\boxed{2}"), row(r"1</thought>\boxed{2}")], [False, True], [False, True]),
        ([row(r"1<|end_of_thought|>\boxed{2}"), row(r"<|start_of_thought|>\boxed{2}")], [True, False], [True, False]),
        ([row(r"1[/REASONING]\boxed{2}"), row(r"[REASONING]\boxed{2}")], [True, False], [True, False]),
        ([row(r"It is <reason>1 + 1</reason> \boxed{2}"), row(ANSWER)], [False, False], [True, True]),
        (
            [row(r"He gave a <reason> for \boxed{2}"), row("[Reasoning] 1 + 1\n[Answer] \\boxed{2}")],
            [False] * 2,
            [True] * 2,
        ),
        ([row(r"`<thought>` and `</thought>` are tags. \boxed{2}"), row(ANSWER)], [False, False], [True, True]),
        ([row(ANSWER, prompt="<|user|>Think in <thought> and </thought><|assistant|>")], [False], [True]),
        # gpt-oss, in channels and decoded without special tokens
        ([row(HARMONY), row(FINAL)], [False, False], [True, True]),
        ([row(HARMONY.partition("hm")[2]), row("hm" + FINAL)], [True, True], [True, True]),
        ([row(FINAL.replace("final", "final <|constrain|>json")), row(HARMONY[:-30])], [False, False], [True, False]),
        (
            [row(r"analysisWe hm \boxed{3} assistantfinal\boxed{2}"), row(r"hm assistantfinal\boxed{2}")],
            [False, True],
            [True] * 2,
        ),
        ([row(r"analysisWe \boxed{2}"), row(r"1 assistantfinal\boxed{2}")], [False, True], [False, True]),
        (
            [row(CUT, prompt="Q<|start|>assistant" + HARMONY[:30]), row(ANSWER, prompt=FINAL[:-9])],
            [True, False],
            [False, True],
        ),
        # prompts that end in the model's turn and open nothing
        ([row(t, prompt=f"Q{turn}") for t in (OPENED, CUT) for turn in TURNS], [False] * 28, [True] * 28),
        (
            [row(OPENED, prompt=f"Q{TURNS[0]}"), row(ANSWER, prompt=f"Q{TURNS[0]}", finish_reason="stop")],
            [False] * 2,
            [True] * 2,
        ),
        # prompts that open a thought and go on
        ([row(CUT, prompt=FULL + "Okay, ")], [True], [False]),
        ([row(CUT, prompt=f"Use <think>.{turn}<think>...\nOkay, ") for turn in TURNS], [True] * 14, [False] * 14),
        ([row(ANSWER, prompt=f"Use <think> now: 1 + 1?{turn}") for turn in TURNS], [False] * 14, [True] * 14),
        ([row(CUT, prompt="user\nUse <think> first.\nassistant\n<think>\nOkay, ")], [True], [False]),
        ([row(CUT, prompt="Use <think>. [/INST]<think>\nA tag is <think> and")], [True], [False]),
        ([row(ANSWER, prompt=FULL + "\n</think>\n\nSo "), row(CUT, prompt=FULL)], [False, True], [True, False]),
        (
            [row(ANSWER, prompt="<|im_start|>user\nBegin with <think> now: 1 + 1?<|im_end|>\n<|im_start|>assistant\n")],
            [False],
            [True],
        ),
        ([row(ANSWER, prompt="Put thoughts in <think> tags. 1 + 1?")], [False], [True]),
        ([row(r"1</chain_of_thought>\boxed{2}"), row(r"<chain_of_thought>\boxed{2}")], [True, False], [True, False]),
    ],
)
def test_each_row_says_where_it_begins(problems, rows, inside, right):
    assert verdicts(problems, rows) == (inside, right)


def test_texts_without_the_reasoning_that_their_prompts_open_are_told_of(problems, capsys):
    """As in files of lm-evaluation-harness with `think_end_token`, or of a server's reasoning parser."""
    rows = [row(ANSWER, prompt=FULL), row(r"So \boxed{3}", prompt=FULL)]
    assert verdicts(problems, rows) == ([True, True], [False, False])
    assert "warning: 2 prompts open a thought, and no text closes one" in capsys.readouterr().out
    assert verdicts(problems, rows, begins="outside") == ([False, False], [True, False])
    assert "no text closes one" not in capsys.readouterr().out
    rows.append(row(CLOSED, prompt=FULL))
    assert verdicts(problems, rows, begins="outside") == ([True] * 3, [False, False, True])
    assert "no text closes one" not in capsys.readouterr().out


def test_a_text_ends_where_the_next_turn_begins(problems):
    next_turn = "<|im_end|>\n<|im_start|>user\n1 + 2?<|im_end|>\n<|im_start|>assistant\n\\boxed{3}"
    assert verdicts(problems, [row(ANSWER + next_turn), row(ANSWER)]) == ([False, False], [True, True])


OTHERS = [
    ("<antThinking>", "</antThinking>"),
    ("<thinking_process>", "</thinking_process>"),
    ("<analysis>", "</analysis>"),
    ("【思考】", "【/思考】"),
    ("‹think›", "‹/think›"),
    ("&lt;think&gt;", "&lt;/think&gt;"),
    ("<|channel>thought\n", "<channel|>"),
    ("Here's my thought process:", "Here's my response:"),
]


@pytest.mark.parametrize(("opening", "closing"), OTHERS)
def test_a_cut_row_is_no_answer_in_silence_whatever_the_tags(problems, opening, closing):
    whole, cut = row(rf"{opening}3{closing}\boxed{{2}}"), row(rf"{opening}\boxed{{2}}, but")
    assert verdicts(problems, [whole, cut]) == ([False, False], [True, False])
    assert verdicts(problems, [row(rf"3{closing}\boxed{{2}}")]) == ([True], [True])
    with pytest.raises(ValueError, match=r"row 1 opens a thought with .*`rollouts: \{thinking: \{open: \.\.\., close"):
        imported(problems, [cut])
    for shows in (whole, row(rf"3{closing}\boxed{{2}}")):
        with pytest.raises(ValueError, match=r"row 1 shows a thought .*\(rows 2\).*`rollouts: \{begins: inside"):
            imported(problems, [shows, row(CUT)])
    prompt = f"Q<|im_end|>\n<|im_start|>assistant\n{opening}"
    rows = [row(CUT, prompt=prompt), row(rf"3{closing}\boxed{{2}}", prompt=prompt)]
    assert verdicts(problems, rows) == ([True, True], [False, True])


@pytest.mark.parametrize(
    "rows",
    [
        [row(CUT), row(CLOSED)],
        [row(CUT, finish_reason="length"), row(OPENED)],
        [row(ANSWER), row(r"</think>It is \boxed{2}."), row(ANSWER)],
        [row(CUT, prompt="1 + 1?"), row(CLOSED, prompt="1 + 1?")],  # the question alone is not the whole prompt
        # prompts without the tag that they ended in
        [row(CUT, prompt="Q<|assistant|>"), row(CLOSED, prompt="Q<|assistant|>")],
        [row(CUT, prompt="What does it say to the assistant: "), row(OPENED)],
        [row(CUT), row(CUT, prompt=FULL)],
        [row(CUT), row(ANSWER, prompt=FULL + "\n</think>\n\n")],
        [row(CUT), row(r"1</thought>\boxed{2}")],
        [row(CUT), row(r"1◁/think▷\boxed{2}"), row(r"◁think▷1◁/think▷\boxed{2}")],
        [row(CUT), row(r"Okay. <thought>1</thought>\boxed{2}")],
        [row(CUT), row(r"Sure. <think>1</think>\boxed{2}")],
        [row(CUT), row("Sure.\n[THINK]1")],
        [row(CUT), row(FINAL)],
        [row(CUT), row(r"analysisWe hm assistantfinal\boxed{2}")],
        [row(CUT), row(r"hm assistantfinal\boxed{2}")],
        [row(CUT, prompt="Q<think>\nOkay, ")],
        [row(CUT, prompt="Q<|channel|>analysis<|message|>Okay, ")],
        [row(CUT, prompt="<|im_start|>user\nBegin with <think> now: 1 + 1?")],
        [row(CUT, prompt="You are a good assistant. <think> first, then solve 1 + 1")],
        [row(CUT, prompt="Q<seed:think>\nOkay, "), row(r"1</seed:think>\boxed{2}", prompt="Q<seed:think>\n")],
    ],
)
def test_a_row_that_may_be_a_thought_or_an_answer_stops(problems, rows):
    with pytest.raises(
        ValueError, match=r"traces\.jsonl: row \d shows a thought .*\(rows \d.*`rollouts: \{begins: inside"
    ):
        imported(problems, rows)
    inside, _ = verdicts(problems, rows, begins="inside")
    outside, _ = verdicts(problems, rows, begins="outside")
    assert sum(inside) > sum(outside) and len(inside) == len(rows)


def test_a_row_of_another_model_is_not_asked(problems):
    rows = [row(CLOSED, model="A"), row(ANSWER, model="B"), row(ANSWER, model="B")]
    assert verdicts(problems, rows, model="B") == ([False, False], [True, True])


def test_other_tags_can_be_given_and_two_kinds_are_refused(problems):
    rows = [row(r"<<2>>\boxed{2}"), row(r"<<\boxed{2}")]
    assert verdicts(problems, rows, thinking={"open": "<<", "close": ">>"}) == ([False, False], [True, False])
    with pytest.raises(ValueError, match=r"show thoughts in <think> \(row 1\) and \[THINK\] \(row 2\)"):
        imported(problems, [row(OPENED), row("[THINK]2[/THINK]2")])


@pytest.mark.parametrize(
    "shown",
    [
        row(CUT, prompt="Q <seed:think>"),
        row("Okay.\n<thought>So \\boxed{2}"),
        row(r"<|think|>So \boxed{2}"),
        row(CUT, prompt="Q\n[REASONING]\n"),
    ],
)
def test_a_thought_that_no_row_closes_in_unknown_tags_is_asked_for(problems, shown):
    """The closing tag is unknown: with another tag, no row would have an answer."""
    with pytest.raises(ValueError, match=r"row 1 opens a thought with .*`rollouts: \{thinking: \{open: \.\.\., close"):
        imported(problems, [shown])
    if "<" not in shown["text"]:  # its prompt opens the thought
        assert verdicts(problems, [shown], thinking="none") == ([False], [True])


@pytest.mark.parametrize(
    "text",
    [
        r"<reasoning>The answer is \boxed{2}",
        r"<think>cut \boxed{2}",
        "Okay.\n<thought>So \\boxed{2}",
        OPENED,
        CLOSED,
        r"analysisWe \boxed{2}",
    ],
)
def test_a_thought_of_a_model_that_is_said_to_write_none_stops(problems, text):
    """Its row would have no answer, or a part of the text for one, and could not say so."""
    with pytest.raises(ValueError, match=r"traces\.jsonl, row 2: the text shows a thought, and `thinking: none` says"):
        imported(problems, [row(ANSWER), row(text)], thinking="none")
    plain = [row(ANSWER), row(QUOTED), row(r"`<thought>` and `</thought>`: \boxed{2}")]
    assert verdicts(problems, plain, thinking="none") == ([False] * 3, [True] * 3)


def test_texts_do_not_begin_inside_what_a_model_does_not_write():
    with pytest.raises(ValueError, match=r"`begins: inside` says .* `thinking: none` .* leave out one of them"):
        Completions(begins="inside", thinking="none")
    Completions(begins="outside", thinking="none")


def test_how_rows_were_read_is_printed(problems, capsys):
    rows = [row(CLOSED, finish_reason="max_tokens"), row(OPENED), row("", prompt=FULL), row(OPENED, problem_id="9")]
    imported(problems, rows)
    told = dict(READING.read(problems.with_name("reading.parquet")).iter_rows())
    assert told == {
        "begin inside a thought: the text closes a thought with </think>": 1,
        "begin outside a thought: the text opens a thought": 1,
        "begin inside a thought: the prompt opens a thought": 1,
        "are of problems outside problems and left out": 1,
        "are empty": 1,
        "are cut off": 1,
    }
    printed = capsys.readouterr().out
    assert "3 of 4 rows imported" in printed and all(f"1 {what}\n" in printed for what in told)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (
            {"text": {"role": "assistant", "content": "2"}},
            r"row 2: text is no text but \{.*a chat message's text is its",
        ),
        ({"text": ["2"]}, "row 2: text is no text but"),
        ({"text": True}, "row 2: text is no text but True"),
        ({"text": 2}, "row 2: text is no text but 2"),
        ({"prompt": [{"role": "user", "content": "1 + 1?"}]}, "row 2: prompt is no text but"),
        ({"tokens": -1}, "row 2: tokens is no number of tokens: -1"),
        ({"tokens": 3.7}, "row 2: tokens is no number of tokens: 3.7"),
        ({"tokens": True}, "row 2: tokens is no number of tokens: True"),
        ({"tokens": 1e30}, r"row 2: tokens is no number of tokens: 1e\+30"),
        ({"tokens": 2**63}, "row 2: tokens is no number of tokens: 9223372036854775808"),
        ({"tokens": "9" * 30}, "row 2: tokens is no number of tokens: '9999"),
        ({"tokens": "3.7"}, "row 2: tokens is no number of tokens: '3.7'"),
        ({"finish_reason": "whatever"}, "row 2: finish_reason 'whatever' is not known; these are: stop, "),
        ({"finish_reason": 3}, "row 2: finish_reason is no text but 3"),
        ({"model": 3}, "row 2: model is no text but 3"),
        ({"problem_id": ""}, "row 2: problem_id is empty"),
        ({"problem_id": True}, "row 2: is neither text nor a number"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_row(problems, given, what):
    with pytest.raises(ValueError, match=rf"traces\.jsonl, {what}"):
        imported(problems, [row("a"), row("b") | given])


def test_finish_reasons_of_other_engines_are_read(problems):
    reasons = ["stop", "eos", "END_TURN", "length", "max_tokens", "content_filter", None, ""]
    imported(problems, [row("a", finish_reason=reason) for reason in reasons])
    found = ROLLOUTS.read(problems.with_name("out.parquet"))["finish_reason"].to_list()
    assert found == ["stop"] * 3 + ["length"] * 3 + ["unknown"] * 2


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        *dict.fromkeys(["None", "null", "NaN", "FinishReason.FINISH_REASON_UNSPECIFIED"], "unknown").items(),
        *dict.fromkeys(["FinishReason.STOP", "<|im_end|>", "</s>", "tool_calls", "FINISH_REASON_STOP"], "stop").items(),
        ("FinishReason.MAX_TOKENS", "length"),
    ],
)
def test_finish_reasons_are_read_as_engines_write_them(problems, reason, kind):
    imported(problems, [row("a", finish_reason=reason)])
    assert ROLLOUTS.read(problems.with_name("out.parquet"))["finish_reason"].to_list() == [kind]


def test_an_empty_cell_is_null_unless_it_is_the_text(problems):
    file, out = problems.with_name("traces.csv"), problems.with_name("out.parquet")
    file.write_text("problem_id,text,tokens,prompt,finish_reason\n1,a,5,Q,stop\n1,,,,\n")
    Import(file=file, problems=problems, out=out, reading=problems.with_name("reading.parquet")).cli_cmd()
    columns = ("text", "tokens", "prompt", "finish_reason")
    assert ROLLOUTS.read(out).select(columns).rows() == [("a", 5, "Q", "stop"), ("", None, "", "unknown")]


def test_a_value_that_cannot_be_read_is_told_with_its_file(problems):
    with pytest.raises(ValueError, match=r"traces\.jsonl, row 1: tokens is no number of tokens: 'twelve'"):
        imported(problems, [{"problem_id": "1", "text": "a", "tokens": "twelve"}])
    rows = [{"problem_id": "1", "text": "a"}, {"problem_id": "1", "text": "cut \ud83d"}]
    with pytest.raises(ValueError, match=r"traces\.jsonl, row 2: text holds half a character"):
        imported(problems, rows)
    unused = [row | {"text": "a", "notes": notes} for row, notes in zip(rows, ([1], "\ud83d"), strict=True)]
    assert imported(problems, unused) == [("1", 0, "a"), ("1", 1, "a")]


@pytest.mark.parametrize(
    "end", ["<|im_end|>", "<|im_end|>\n<|endoftext|>", "</s>", "<｜end▁of▁sentence｜>", "<turn|>\n"]
)
def test_a_token_that_ended_a_completion_is_no_part_of_its_text(problems, end):
    """A tool that decodes special tokens leaves it in, and an answer that is compared as text would be wrong."""
    assert imported(problems, [row("Answer: 2" + end)]) == [("1", 0, "Answer: 2")]
    Grade(
        problems=problems,
        answers=problems.with_name("out.parquet"),
        out=problems.with_name("grades.parquet"),
        task="exact",
    ).cli_cmd()
    assert GRADES.read(problems.with_name("grades.parquet"))["answer"].to_list() == ["2"]


@pytest.mark.parametrize(
    "text", ["<|im_end|> is a token", "a <|channel|>analysis<|message|>", "2 < 3 <s>", "Use </s> here"]
)
def test_other_tokens_stay_in_a_text(problems, text):
    assert imported(problems, [row(text)], begins="outside") == [("1", 0, text)]
