"""Datasets: sources, values, rules, sampling, errors."""

import json
from itertools import chain, combinations

import polars as pl
import pytest
import yaml
from conftest import ROOT, SHARED, needs_shared
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_settings import CliApp

from mrt.core.artifacts import PROBLEMS
from mrt.problems.build import Problems, Row, build, sample
from mrt.problems.decontamination import Sets, contents, tokens_of
from mrt.problems.filters import asks_proof, offers_choice
from mrt.problems.settings import Dataset
from mrt.problems.sources import number, text
from mrt.tasks.choice import Choice

BENCHMARKS = SHARED / "benchmarks"


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def made(path, others=(), **options):
    return build("mine", Dataset.model_validate({"file": path, "split": "test", **options}), others)[0]


def dropped(tally):
    return {rule: dropped for rule, _, dropped in tally.rules}


def rows_of(n):
    return [{"problem": f"Compute {i} + {i}.", "answer": 2 * i, "difficulty": i % 3} for i in range(n)]


# ---- values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (27.0, "27"),
        (0.5, "0.5"),
        (-3, "-3"),
        ("  $025$\n", "$025$"),
        ("27.0", "27.0"),
        (["1", 2.0], "1, 2"),
        ([], None),
        (" ", None),
        (None, None),
        (4.5e33, "4.5e+33"),
        ("Nandor", "Nandor"),
    ],
)
def test_text(value, expected):
    assert text(value) == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "NaN", True, {"a": 1}, "\ud800", [float("nan")]])
def test_text_refuses(value):
    with pytest.raises(ValueError):
        text(value)


def test_number():
    found = [number(x) for x in ("1983-I-1", "aime1983-01", "Level 3", "4.5", -2, 5.5, None, "")]
    assert found == [1983, 1983, 3, 4.5, -2, 5.5, None, None]
    with pytest.raises(ValueError, match="no number"):
        number("hard")
    with pytest.raises(ValueError, match="inf"):
        number("inf")
    assert [number(x, needed=False) for x in ("Level 3", "Level ?", None)] == [3, None, None]
    with pytest.raises(ValueError, match="inf"):
        number("inf", needed=False)


# ---- rules


@pytest.mark.parametrize(
    ("problem", "answer", "expected"),
    [
        ("Prove that $a=b$.", "a=b", True),
        ("Show that\n\n$x>0$", "x>0", True),
        ("Is it so?", r"\text{Proved}", True),
        ("Is it so?", r"\text{Q.E.D.}", True),
        ("Improve the bound 3.", "4", False),
        ("The figure shows that $x=3$. Find $y$.", "4", False),
        ("A 40-proof liquor: how many percent?", "20", False),
    ],
)
def test_asks_proof(problem, answer, expected):
    assert asks_proof(problem, answer) is expected


@pytest.mark.parametrize(
    ("problem", "answer", "expected"),
    [
        ("Sum?\n(A) 1 (B) 2 (C) 3", "3", True),
        (r"Sum? $\textbf{(A)}\ 9\qquad \textbf{(B)}\ 15\qquad\textbf{(C)}\ 21$", "9", True),
        ("Sum?\nA: $1$\n\nB: $2$\n\nC: $3$\n\nD: $4$", r"\sqrt{2}", True),
        ("Sum?\nA) 7  \nB) 8  \nC) 9", "8", True),
        ("Sum? A. 7   B. 8   C. 9", "8", True),
        ("Sum? (The options are A: $47$, B: $65$, C: $63$.)", "65", True),
        ("Split it as A:B = 1:2, B:C = 2:3, C:D = 3:4.", "10", False),
        ("Anything", r"\text{(C)}", True),
        ("Anything", r"\textbf{B}.", True),
        ("Anything", r"\text{The answer is } D", True),
        ("Find $P(A)$, $P(B)$ and $P(C)$.", "1", False),
        ("A line meets A. Then B. Then C. How many?", "2", False),
        ("Triangle $ABC$: A, B, C lie on a circle. Find the angle at A.", r"\angle A", False),
        ("The ratio of A to B is 2. Find A.", "a", False),
    ],
)
def test_offers_choice(problem, answer, expected):
    assert offers_choice(problem, answer) is expected


def test_disjoint_rules():
    long = "Let $F(z)=\\dfrac{z+i}{z-i}$ for all complex numbers $z\\neq i$, and let $z_n=F(z_{n-1})$ for all $n$."
    sets = Sets([long, "Compute $3+4$."])
    assert sets.has("compute 3 + 4")
    assert not sets.has("Compute $3-4$.")
    in_unicode = "Find the roots of $(x − 3)³ + √2·π ≤ ½°$ with $x ≥ 0$."
    assert Sets([in_unicode]).has(
        r"Find the roots of $(x - 3)^3 + \sqrt{2} \cdot \pi \leq \frac{1}{2}^\circ$ with $x \ge 0$."
    )
    respelled = long.replace("dfrac", "frac").replace(r"\neq", r"\not=") + " Find z."
    assert sets.overlaps(respelled)
    boilerplate = (
        "The probability is $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$."
    )
    first = "A die is rolled four times by each of three children in a room with seven doors. " * 2 + boilerplate
    second = (
        "Urns hold red and green balls; a boy takes two of each colour, then puts one back again. " * 2 + boilerplate
    )
    assert not Sets([first]).overlaps(second)


LANGUAGES = {  # a problem, and a text before a copy of it
    "Chinese": (
        "一个长方形花坛的长是宽的两倍，周长为三十六米，现在沿花坛四周铺一条宽一米的小路，求小路的面积。",
        "例题：",
    ),
    "Japanese": ("ある数に七を加えて三倍すると四十八になるとき、もとの数はいくつか答えなさい。", "次の問題を解け。"),
    "Korean": ("연속하는 세 짝수의 합이 칠십이일 때 가장 큰 짝수를 구하여라", "문제: "),
    "Korean without spaces": ("연속하는세짝수의합이칠십이일때가장큰짝수를구하여라", "문제:"),
    "Thai": ("พ่อค้าซื้อส้มมาสามสิบผลแล้วขายไปครึ่งหนึ่งจะเหลือส้มกี่ผลในตะกร้า", "โจทย์ข้อหนึ่ง"),
    "Lao": ("ຊາວນາມີງົວຊາວໂຕແລ້ວຂາຍໄປແປດໂຕຍັງເຫຼືອງົວຈັກໂຕ", "ຄໍາຖາມ"),
    "Khmer": ("កសិករម្នាក់មានគោម្ភៃក្បាលហើយលក់អស់ប្រាំបីក្បាលតើនៅសល់គោប៉ុន្មានក្បាល", "លំហាត់"),
    "Burmese": ("လယ်သမားတစ်ဦးတွင်နွားအကောင်နှစ်ဆယ်ရှိပြီးရှစ်ကောင်ရောင်းလိုက်လျှင်ဘယ်နှစ်ကောင်ကျန်မလဲ", "ပုစ္ဆာ"),
    "a mixture": (
        "设 $f(x)=x^2+bx+c$ 的最小值为 $-4$，且 f(0)=5，求 b 与 c 的所有可能取值。",
        "Translate, then solve: ",
    ),
    "Hindi": ("एक आयत की लंबाई उसकी चौड़ाई से तीन गुना है और परिमाप चालीस मीटर है तो क्षेत्रफल बताइए", "प्रश्न एक "),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_copy_is_found_in_every_script(language, tmp_path):
    """With words before it, and where others of the same script are no copies."""
    problem, before = LANGUAGES[language]
    sets = Sets([problem, "Compute $3+4$."])
    assert sets.overlaps(before + problem) and not sets.has(before + problem)
    others = [text for name, (text, _) in LANGUAGES.items() if name.split()[0] != language.split()[0]]
    assert not any(sets.overlaps(other) or sets.has(other) for other in others)
    rows = [{"problem": before + problem, "answer": 1}, {"problem": "What is $5+6$?", "answer": 11}]
    assert made(write_jsonl(tmp_path / "a.jsonl", rows), (problem,))["problem"].to_list() == ["What is $5+6$?"]


def test_scripts_without_spaces_are_compared_by_character():
    """As words are: a number that differs changes the shingles that it is in; less than a shingle is compared whole."""
    assert tokens_of("小明有１２个苹果，abc_d") == ["小", "明", "有", "12", "个", "苹", "果", "abc", "d"]
    assert tokens_of("ราคา ๑๕ บาท") == [*"ราคา", "15", *"บาท"] and tokens_of("٣ كُتُب") == ["3", "كتب"]
    assert tokens_of("Où est $\\bar x$, naïve?") == ["où", "est", "bar", "x", "naïve"]
    short = Sets(["求三加四。"])
    assert short.has("求 三加四") and not short.has("求三加五。") and not short.overlaps("求三加五。")
    apart = Sets(["甲乙两人从相距九公里的两地同时出发相向而行，几小时后相遇？"])
    assert not apart.overlaps("一个水池有进水管与出水管，单开进水管六小时注满，几小时后放空？")
    numbers = "食堂运来大米 {} 袋，每袋 {} 千克，吃掉 {} 千克，还剩多少千克？"
    assert not Sets([numbers.format(3, 50, 20)]).has(numbers.format(4, 60, 35))
    assert Sets([numbers.format(3, 50, 20)]).has(numbers.format("３", "５０", "２０").replace("，", ","))


# ---- sources


def test_every_field_of_a_file(tmp_path):
    rows = [{"Q": " What? ", "A": 27.0, "key": 5, "level": "Level 3", "sol": "", "from": "AoPS"}]
    columns = {"problem": "Q", "answer": "A", "id": "key", "difficulty": "level", "solution": "sol", "source": "from"}
    expected = [("5", "What?", "27", None, 3.0, "AoPS", "test")]
    table = made(write_jsonl(tmp_path / "a.jsonl", rows), columns=columns)
    assert dict(table.schema) == PROBLEMS.columns
    assert table.rows() == expected
    pl.DataFrame(rows).write_parquet(tmp_path / "a.parquet")
    assert made(tmp_path / "a.parquet", columns=columns).rows() == expected


def test_csv_keeps_leading_zeros_and_newlines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeffproblem,answer\r\n"Two\nlines, and a comma",025\r\nNext,1\r\n'.encode())
    table = made(path)
    assert table["problem"].to_list() == ["Two\nlines, and a comma", "Next"]
    assert table["answer"].to_list() == ["025", "1"]
    assert table["id"].to_list() == ["mine-0", "mine-1"]


def test_jsonl_read_robustly(tmp_path):
    path = tmp_path / "a.jsonl"
    for end in ("\r\n", "\n", "\r"):
        text = f'\ufeff{{"problem": "a\u2028b", "answer": "1"}}{end}{end}{{"problem": "c", "answer": 2}}'
        path.write_bytes(text.encode())
        assert made(path)["problem"].to_list() == ["a\u2028b", "c"]


@needs_shared
@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_shared_benchmarks(path):
    table, tally = build(path.stem, Dataset(file=path, split="test"))
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    assert len(table) == len(rows)
    assert set(dropped(tally).values()) == {0}
    assert table["id"].to_list() == [row["id"] for row in rows]
    assert table["answer"].to_list() == [row["answer"].strip() for row in rows]
    assert table["id"].n_unique() == len(table)


@needs_shared
def test_shared_subsets():
    omni = made(BENCHMARKS / "omni_math.jsonl", difficulties=[4, 4.5, 5, 5.5], per_difficulty=10)
    assert omni["difficulty"].value_counts().sort("difficulty").rows() == [(4.0, 10), (4.5, 10), (5.0, 10), (5.5, 10)]
    aime = made(BENCHMARKS / "aime_1983_2023.jsonl", keep={"id": [1989, 2023]})
    assert len(aime) == 11 * 15 + 24 * 30
    math500 = tuple(made(BENCHMARKS / "math500.jsonl")["problem"])
    both = Dataset(file=BENCHMARKS / "aime_1983_2023.jsonl", split="train")
    assert dropped(build("aime", both, math500)[1])["equal text in disjoint sets"] == 6


@needs_shared
def test_shared_numina():
    numina = Dataset(
        file=BENCHMARKS / "numina_math_cot.jsonl",
        split="train",
        answer_from_solution=True,
        drop=["proof", "multiple_choice"],
    )
    table, tally = build("numina", numina)
    upstream = {row["id"]: row["answer"] for row in pl.read_ndjson(BENCHMARKS / "numina_math_cot.jsonl").to_dicts()}
    theirs = pl.col("id").replace_strict(upstream).str.strip_chars()
    others = table.with_columns(theirs.alias("upstream")).filter(pl.col("answer") != pl.col("upstream"))
    assert len(others) <= 0.01 * len(table)  # upstream takes the last of several boxes, where we list them
    longer = others.filter(pl.col("answer").str.contains(", "))
    assert all(ours.endswith(last) for ours, last in longer.select("answer", "upstream").iter_rows())
    assert len(others) - len(longer) <= 2  # upstream's own mistakes
    counts = dropped(tally)
    assert counts["no boxed answer"] == 0
    assert 80 <= counts["drop proof"] <= 130
    assert 400 <= counts["drop multiple_choice"] <= 520


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A dataset repository (a card-less folder of Parquet files), while the real hub is out of reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        import datasets

        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield dataset_folder(tmp_path_factory.mktemp("hub") / "aime")


def dataset_folder(folder):
    """Writes a training split of AIME's years and a test split of two rows, as the hub stores them."""
    (folder / "data").mkdir(parents=True)
    rows = [
        {"Year": year, "Question": f"Question {year}?", "Answer": float(year), "Solution": f"\\boxed{{{year}}}"}
        for year in range(1983, 2025)
    ]
    pl.DataFrame(rows).write_parquet(folder / "data" / "train-00000.parquet")
    pl.DataFrame(rows[:2]).write_parquet(folder / "data" / "test-00000.parquet")
    return folder


def test_hub(hub):
    options = {
        "hub": {"path": str(hub), "revision": "v1", "split": "train"},
        "columns": {"problem": "Question", "answer": "Answer"},
        "keep": {"Year": [1989, 2023]},
        "split": "train",
    }
    table, tally = build("aime", Dataset.model_validate(options))
    assert table["answer"].to_list() == [str(year) for year in range(1989, 2024)]
    assert table["id"][0] == "aime-6"
    assert table["source"][0] == f"{hub}@v1:train"
    assert dropped(tally)["keep Year 1989 to 2023"] == 7
    options["hub"] = {"path": str(hub), "revision": "v1", "split": "test"}
    del options["keep"]
    assert len(build("aime", Dataset.model_validate(options))[0]) == 2


def test_the_hub_says_what_is_a_proof(tmp_path, hub):
    rows = [{"problem": f"p{i}", "answer": "1", "question_type": kind} for i, kind in enumerate(("proof", "other"))]
    pl.DataFrame(rows).write_parquet(tmp_path / "train.parquet")
    settings = {"hub": {"path": str(tmp_path), "revision": "v1"}, "drop": ["proof"]}
    assert build("a", Dataset.model_validate(settings))[0]["problem"].to_list() == ["p1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hub": {"split": "validation"}}, "split validation: .*validation"),
        ({"hub": {"path": "nobody/nothing-here"}}, "hub dataset nobody/nothing-here at v1"),
        ({"columns": {"problem": "question"}}, "no column 'question'.*found Year, Question.*did you mean 'Question'"),
    ],
)
def test_hub_errors(hub, change, message):
    given = {
        "hub": {"path": str(hub), "revision": "v1", "split": "train", **change.get("hub", {})},
        "columns": {"problem": "Question", "answer": "Answer", **change.get("columns", {})},
        "split": "test",
    }
    with pytest.raises(ValueError, match=message):
        build("aime", Dataset.model_validate(given))


# ---- errors


X = b'{"problem":"x","answer":1}'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"problem,answer\nx,1\n", r"a.jsonl, line 1: not JSON .*CSV"),
        ("a.jsonl", X + b'\n{"problem": "y", "ans', r"line 2: not JSON"),
        ("a.jsonl", X + b"\n[1]", r"line 2: not a JSON object but a list"),
        ("a.jsonl", X + b'\n\n{"problem": "\xff"}', r"line 3: not UTF-8 .*0xff"),
        ("a.jsonl", X + b'\n\n{"problem": "y", "answer": " "}', r"line 3: answer .*is empty"),
        ("a.jsonl", b'{"problem": "", "answer": "1"}', r"line 1: problem .*is empty"),
        ("a.jsonl", b'{"problem":"x","answer":NaN}', r"line 1: answer \(column 'answer'\) is NaN"),
        ("a.jsonl", b'{"problem":"x","answer":"1", "difficulty": NaN}', r"line 1: difficulty .* is NaN"),
        ("a.jsonl", b'{"problem":"x","answer":true}', r"line 1: answer .*neither text nor a number: True"),
        ("a.jsonl", b'{"problem": "\\ud800", "answer": 1}', r"line 1: problem .*surrogate"),
        ("a.jsonl", b'{"problem": "x", "anwser": "1"}', r"no column 'answer'.*found problem, anwser.*mean 'anwser'"),
        ("a.jsonl", b'{"problem":"x","answer":1,"id":7}\n{"problem":"y","answer":1,"id":"7"}', r"rows 1 and 2.*id '7'"),
        ("a.jsonl", b'{"problem":"x","answer":1,"id":null}', r"line 1: id .*is empty"),
        ("a.jsonl", b"", r"a.jsonl: 0 problems"),
        ("a.jsonl", b"\n \n", r"a.jsonl: 0 problems"),
        ("a.csv", b"problem,answer\n", r"a.csv: 0 problems"),
        ("a.csv", b"problem,answer\nx,1\ny,2,3\n", r"line 3: 3 values for 2 columns"),
        ("a.csv", b"problem,answer\nx,\n", r"line 2: answer .*is empty"),
        ("a.csv", b'problem,answer\n"x\n",1\n"y,1\n', r"line 4: not CSV"),
        ("a.csv", b"problem,answer\n\xe9,1\n", r"line 2: not UTF-8"),
        ("a.csv", b'{"problem": "x", "answer": 1}\n', r"line 1: .*JSON"),
        ("a.parquet", b"PAR1 not really", r"a.parquet: not a readable Parquet"),
        ("a.json", b"[]", r"not .json"),
        ("a.jsonl", X + b'\n{"answer":1,"problem":"y","answer":1}', r"line 2: the key 'answer' s.* twice"),
        ("a.jsonl", b'{"problem":"x","answer":1,"about":[{"by":"p","by":"q"}]}', r"line 1: the key 'by' stands twice"),
        ("a.jsonl", X + b"\n" + b'{"problem":"y","answer":' + b"7" * 5000 + b"}", r"a.jsonl, line 2: "),
        ("a.jsonl", X + b'\xef\xbb\xbf{"problem":"y","answer":1}', r"line 1: .*files joined"),
        ("a.jsonl", X + b'{"problem":"y","answer":1}\n', r"line 1: .*files joined without a line end"),
        ("a.jsonl", X + b'\n{"problem":"y","answer":', r"line 2: .*the file ends within this line: it was cut"),
        ("a.jsonl", X + b'\n{"problem":"caf\xc3', r"line 2: the file ends within a character"),
        ("a.jsonl", b'[\n{"problem":"x","answer":1}\n]', r"line 1: not JSON .*one JSON object a line"),
        ("a.jsonl", X + b'\n{"problem":"caf\xe9","answer":1}', r"line 2: not UTF-8 .*Latin-1 .*café"),
        ("a.jsonl", X.decode().encode("utf-16"), r"a.jsonl: the file is UTF-16"),
        ("a.jsonl", X.decode().encode("utf-16-le"), r"line 1: a byte 0: .*UTF-16"),
        ("a.jsonl", X.decode().encode("utf-32"), r"a.jsonl: the file is UTF-16 or UTF-32"),
        ("a.csv", "problem,answer\nx,1\n".encode("utf-16-be"), r"line 1: a byte 0"),
        ("a.csv", b"\x1f\x8b\x08...", r"a.csv: the file is compressed with gzip"),
        ("a.csv", b"PK\x03\x04...", r"a.csv: the file is a zip archive or a spreadsheet"),
        ("a.csv", b"problem,answer\nx,1\n\xef\xbb\xbfproblem,answer\ny,2\n", r"line 3: a header again: were files"),
        ("a.csv", b"problem,answer\nx,1\nproblem,answer\ny,2\n", r"line 3: a header again"),
        ("a.csv", b"problem,answer\nx,1\nanswer,problem\n2,y\n", r"line 3: a header again"),
        ("a.csv", b'problem,answer\nx,1\n"y,2\nz,3\n', r"line 3: .*a quotation mark is never closed"),
        ("a.csv", b"problem,answer\nx,1\ny", r"line 3: 1 values for 2 columns"),
        ("a.jsonl", b'{"problem": 7, "answer": 1}', r"line 1: problem .*is not text but a int: 7"),
        ("a.jsonl", b'{"problem":[{"role":"user"}],"answer":1}', r"line 1: problem .*is not text but a list"),
        ("a.jsonl", b'{"problem":"x","answer":[[1, 2], [3, 4]]}', r"line 1: answer .*is a list of lists"),
        ("a.jsonl", b'{"problem":"x","answer":"Not Found"}', r"line 1: answer .*'Not Found', which.*drop: .empty"),
        ("a.jsonl", b'{"problem":"x","answer":"proof"}', r"line 1: answer .*'proof', which stands.*drop: .proof"),
    ],
)
def test_malformed_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        made(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_parquet_file_that_was_cut_is_named(tmp_path, share):
    pl.DataFrame(rows_of(500)).write_parquet(tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"a.parquet: not a readable Parquet file.*Is it whole\?"):
        made(tmp_path / "a.parquet")


def test_joined_files_with_byte_order_marks_are_read(tmp_path):
    parts = [f'{{"problem": "p{i}", "answer": " {i}\ufeff"}}\n'.encode("utf-8-sig") for i in range(3)]
    (tmp_path / "a.jsonl").write_bytes("\ufeff".encode() + b"".join(parts) + "\ufeff".encode())
    assert made(tmp_path / "a.jsonl").select("problem", "answer").rows() == [("p0", "0"), ("p1", "1"), ("p2", "2")]


def test_single_precision_is_read_as_it_is_written(tmp_path):
    table = pl.DataFrame({"problem": ["x", "y"], "answer": [0.1, 27.0]}, schema_overrides={"answer": pl.Float32})
    table.write_parquet(tmp_path / "a.parquet")
    assert made(tmp_path / "a.parquet")["answer"].to_list() == ["0.1", "27"]


def test_a_difficulty_in_words_is_none_unless_numbers_are_asked_for(tmp_path):
    rows = [{"problem": f"x{i}", "answer": "1", "difficulty": level} for i, level in enumerate(["hard", "Level 3"])]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    assert made(path)["difficulty"].to_list() == [None, 3.0]
    for asked in ({"columns": {"difficulty": "difficulty"}}, {"difficulties": [3]}, {"per_difficulty": 1}):
        with pytest.raises(ValueError, match=r"line 1: difficulty .* has no number in it: 'hard'"):
            made(path, **asked)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        made(tmp_path / "no.jsonl")


def test_too_few_and_none_left(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", rows_of(6))
    with pytest.raises(ValueError, match="7 problems are asked for, 6 are left"):
        made(path, count=7)
    with pytest.raises(ValueError, match="3 problems of difficulty 0 are asked for, 2 are left"):
        made(path, per_difficulty=3)
    with pytest.raises(ValueError, match=r"0 problems are left(.|\n)*keep difficulty 8 to 9 +6 +0"):
        made(path, keep={"difficulty": [8, 9]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of toy, hub and file; got none"),
        ({"toy": {"count": 1}, "file": "a.jsonl"}, "got toy and file"),
        ({"toy": {"count": 1}, "count": 3}, "count: not for the toy world"),
        ({"toy": {"count": 1, "difficulties": [2]}}, "3 to 8 numbers"),
        ({"file": "a.jsonl", "count": 3, "per_difficulty": 1}, "exclude each other"),
        ({"file": "a.jsonl", "answer_from_solution": True, "columns": {"answer": "a"}}, "exclude each other"),
        ({"file": "a.jsonl", "keep": {"Year": [2, 1]}}, "range is empty"),
        ({"file": "a.jsonl", "sead": 3}, "sead"),
        ({"hub": {"path": "a/b"}}, "revision"),
    ],
)
def test_settings_errors(options, message):
    with pytest.raises(ValidationError, match=message):
        Dataset.model_validate({"split": "test", **options})


# ---- rows that are kept


def test_duplicates_and_empty_rows(tmp_path):
    rows = [
        {"problem": "x  y", "answer": 1},
        {"problem": "x\ny", "answer": 1},
        {"problem": "xy", "answer": 2},
        {"problem": "z", "answer": None},
        {"problem": "w"},
    ]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    table, tally = build("a", Dataset(file=path, split="test", drop=["empty"]))
    assert table["problem"].to_list() == ["x  y"]
    assert table["answer"].to_list() == ["1"]
    assert dropped(tally) == {"read": 0, "drop empty": 2, "duplicate problem": 1, "duplicate problem, other answer": 1}
    assert tally.table().columns == ["rule", "kept", "dropped"]
    assert "duplicate problem, other answer         1         1" in str(tally)


NONE = r"notfound| Not found. |NOT_FOUND|\text{not found}|Answer not found|no answer|N/A|#N/A|?|...|#REF!"
NONE += r"|见解析|See solution.|[]|{}|$$|\boxed{}|TBD|omitted|暂无|证明略"


@pytest.mark.parametrize("answer", NONE.split("|"))
def test_a_word_for_no_answer_is_none(tmp_path, answer):
    rows = [{"problem": "How many tiles?", "answer": answer}, {"problem": "Which?", "answer": "8"}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    table, tally = build("a", Dataset(file=path, drop=["empty", "proof"]))
    counts = dropped(tally)
    assert table["answer"].to_list() == ["8"] and counts["drop empty"] + counts["drop proof"] == 1
    with pytest.raises(ValueError, match=r"line 1: answer .*stands for none.*no_answer: \[\]"):
        made(path)
    assert made(path, no_answer=[]).height == 2 and made(path, no_answer=[answer], drop=["empty"]).height == 1


@pytest.mark.parametrize(
    ("problem", "answer"),
    [
        ("How many of them are prime?", "None"),
        ("Which of the sets is it?", "null"),
        ("$n$ pens cost $a$ cents; what does a pen cost?", "n/a"),
        ("There are N atoms in an area A. What is their density?", r"$N/A$"),
        ("Name the segment.", "NA"),
        ("Is it + or -?", "-"),
        ("Which solutions are there?", "no solution"),
        ("What is not found in the list?", "7 is not found"),
        ("What is 1/0?", "undefined"),
        ("Which relation holds?", "="),
    ],
)
def test_what_may_be_an_answer_stays_one(tmp_path, problem, answer):
    path = write_jsonl(tmp_path / "a.jsonl", [{"problem": problem, "answer": answer}])
    assert made(path, drop=["empty", "proof"])["answer"].to_list() == [answer]


def test_a_source_that_says_what_is_valid_decides(tmp_path):
    """NuminaMath-1.5's columns, also as a dataset of the hub has them; and doubtful rows are reported."""
    fine = {"problem_is_valid": "Yes", "solution_is_valid": "Yes", "question_type": "math-word-problem"}
    rows = [
        {"problem": "How many?", "answer": "None", **fine},
        {"problem": "How many here?", "answer": "None", **fine, "solution_is_valid": "Incomplete"},
        {"problem": "How many there?", "answer": "None", **fine, "problem_is_valid": "Problem not solved"},
        {"problem": "Compare $a$ and $b$.", "answer": "a > b", **fine, "question_type": "proof"},
        {"problem": "Which one?", "answer": "12", **fine, "question_type": "MCQ"},
        {"problem": "Establish it.", "answer": "proof", **fine},
    ]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    settings = Dataset(file=path, drop=["empty", "proof", "multiple_choice"])
    table, tally = build("a", settings)
    assert table["problem"].to_list() == ["How many?"]
    counts = dropped(tally)
    assert [counts[f"drop {rule}"] for rule in settings.drop] == [2, 2, 1]
    assert "1 answers may stand for none (line 1: 'None') and count as answers" in str(tally)
    assert made(path, drop=["empty"])["answer"].to_list() == ["None", "a > b", "12"]
    stated = write_jsonl(tmp_path / "b.jsonl", [rows[0], rows[5], {"problem": "Why?", "answer": "see the solution"}])
    assert dropped(build("b", Dataset(file=stated, drop=["proof"]))[1])["drop proof"] == 2


def test_the_answer_in_a_box_or_after_a_mark_of_the_solution(tmp_path):
    """GSM8K's way: the text after the last mark; a solution without one is dropped and counted."""
    rows = [
        {"problem": "p", "solution": "2 + 3 is 5.\n#### 5\nNo, 4.\n#### 1,004"},
        {"problem": "q", "solution": r"so \boxed{7}"},
    ]
    options = {"answer_from_solution": True, "answer_after": "####"}
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    table, tally = build("a", Dataset(file=file, split="train", **options))
    assert table["answer"].to_list() == ["1,004"] and dropped(tally)["nothing after ####"] == 1
    after = {"problem": "p", "solution": "So 110.\n#### 110\nThe answer is: 110"}  # as MetaMathQA has it
    of_lines = write_jsonl(tmp_path / "b.jsonl", [after, after | {"problem": "q", "solution": "####\n\n7\n\nDone."}])
    table, _ = build("b", Dataset(file=of_lines, split="train", **options))
    assert table["answer"].to_list() == ["110", "7"]
    table, tally = build("a", Dataset(file=file, split="train", answer_from_solution=True))
    assert table["answer"].to_list() == ["7"] and dropped(tally)["no boxed answer"] == 1
    with pytest.raises(ValidationError, match="answer_after goes with `answer_from_solution: true`"):
        Dataset(file=file, split="train", answer_after="####")


def test_per_difficulty_and_keep(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", rows_of(30))
    table = made(path, per_difficulty=4, keep={"difficulty": [1, 2]})
    assert table["difficulty"].value_counts().sort("difficulty").rows() == [(1.0, 4), (2.0, 4)]
    assert len(made(path, difficulties=[0])) == 10


texts = st.lists(st.text("abc ", min_size=1, max_size=6), unique_by=lambda x: "".join(x.split()), max_size=25)


@given(texts, st.integers(0, 26), st.integers(0, 3), st.randoms())
def test_sampling_laws(problems, count, seed, rng):
    """A sample contains every smaller one, and is the same set whatever the order of rows."""
    rows = [Row(i, i, problem=problem) for i, problem in enumerate(problems)]
    small = [row.problem for row in sample(rows, count, seed)]
    large = [row.problem for row in sample(rows, count + 1, seed)]
    assert len(small) == min(count, len(problems))
    assert [problem for problem in large if problem in small] == small
    rng.shuffle(rows)
    assert sorted(row.problem for row in sample(rows, count, seed)) == sorted(small)
    many = [Row(i, i, problem=str(i)) for i in range(100)]
    assert sample(many, 10, seed) != sample(many, 10, seed + 1)


# ---- toy world


def toy(count, seed, others=(), **options):
    return build(
        "toy", Dataset.model_validate({"toy": {"count": count, "seed": seed, **options}, "split": "train"}), others
    )[0]


def toy_numbers(problem):
    numbers, target = (
        problem.removeprefix("Some of the numbers ")
        .removesuffix(". What is the sum of the smallest and the largest of them?")
        .split(" add up to ")
    )
    return [int(x) for x in numbers.split(", ")], int(target)


def same(problem):
    numbers, target = toy_numbers(problem)
    return tuple(sorted(numbers)), target


def test_toy_gold_by_brute_force():
    table = toy(100, 1, difficulties=[3, 4, 5])
    assert dict(table.schema) == PROBLEMS.columns
    assert table["id"].to_list() == [f"toy-1-{i}" for i in range(100)]
    for row in table.to_dicts():
        numbers, target = toy_numbers(row["problem"])
        choices = chain.from_iterable(combinations(numbers, n) for n in range(len(numbers) + 1))
        (found,) = [choice for choice in choices if sum(choice) == target]
        assert row["answer"] == str(min(found) + max(found))
        assert row["difficulty"] == len(numbers)
    assert table["difficulty"].value_counts().sort("difficulty")["count"].to_list() == [34, 33, 33]


@given(st.integers(1, 80), st.integers(0, 5), st.integers(0, 5))
def test_toy_laws(count, seed, other):
    """Distinct, disjoint even for equal seeds, and growing only appends."""
    train = toy(count, seed, difficulties=[3, 4])
    test = toy(count, other, train["problem"].to_list(), difficulties=[3, 4])
    keys = [same(problem) for problem in [*train["problem"], *test["problem"]]]
    assert len(set(keys)) == 2 * count
    assert toy(count + 7, seed, difficulties=[3, 4]).head(count).equals(train)


def test_toy_world_is_finite(monkeypatch):
    monkeypatch.setattr("mrt.problems.build.TOY_REDRAWS", 10)
    with pytest.raises(ValueError, match="no further problem of 3 numbers after"):
        toy(20_000, 0, difficulties=[3])


# ---- command line, declared benchmarks


def test_command_line(tmp_path, capsys):
    train = {"toy": {"count": 40, "seed": 1, "difficulties": [3]}, "split": "train"}
    test = {**train, "split": "test", "disjoint_from": ["toy_train"]}
    first, second = tmp_path / "toy_train.parquet", tmp_path / "toy_test.parquet"
    CliApp.run(Problems, ["--name", "toy_train", "--set", json.dumps(train), "--out", str(first)])
    args = ["--name", "toy_test", "--set", json.dumps(test), "--out", str(second)]
    with pytest.raises(ValueError, match="disjoint from toy_train, but --disjoint gives nothing"):
        CliApp.run(Problems, args)
    CliApp.run(Problems, [*args, "--disjoint", str(first)])
    tables = [pl.read_parquet(path) for path in (first, second)]
    assert not {same(p) for p in tables[0]["problem"]} & {same(p) for p in tables[1]["problem"]}
    assert set(tables[1]["split"]) == {"test"}
    assert "in disjoint sets" in (printed := capsys.readouterr().out)
    assert "toy_test: 40 problems" in printed


def test_declared_benchmarks():
    problems = yaml.safe_load((ROOT / "config" / "benchmarks.yaml").read_text(encoding="utf-8"))["problems"]
    sets = {name: Dataset.model_validate(entry) for name, entry in problems.items()}
    for made_set in sets.values():
        assert set(made_set.disjoint_from) <= set(sets)
        assert made_set.hub is not None
        assert len(made_set.hub.revision) == 40 and int(made_set.hub.revision, 16)
        # a rule passes the model itself on the command line
        assert Dataset.model_validate_json(made_set.model_dump_json()) == made_set


@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=30), max_size=8),
    st.lists(st.sampled_from("abcde"), max_size=30),
)
def test_overlaps_are_those_of_comparing_with_every_problem(others, mine):
    phrase = " ".join("pqrstuvwxyz") + " "  # that all of them share
    texts = [phrase + " ".join(words) for words in others]
    problem = phrase + " ".join(mine)
    own = Sets.shingles(problem)
    shared = ((len(own & theirs), len(theirs)) for theirs in map(Sets.shingles, texts))
    expected = any(common > 0 and common >= 0.4 * min(len(own), size) for common, size in shared)
    assert Sets(texts).overlaps(problem) == expected


def test_an_edit_of_a_dataset_folder_is_seen(tmp_path):
    """A hub dataset may be a folder on this machine: its content counts, as a file's does."""
    from workflow.options import content_of

    (tmp_path / "train.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}')
    hub = {"path": str(tmp_path), "revision": "main"}
    local = Dataset.model_validate({"hub": hub}).local
    before = content_of(local)
    (tmp_path / "train.jsonl").write_text('{"problem": "1 + 1?", "answer": "3"}')
    assert local == tmp_path and content_of(local) != before
    assert Dataset.model_validate({"hub": hub | {"path": "owner/name"}}).local is None


LONG = "Let $F(z)=\\dfrac{z+i}{z-i}$ for all complex numbers $z\\neq i$, and let $z_n=F(z_{n-1})$ for all $n$."


def test_a_problem_that_equals_or_overlaps_one_of_a_disjoint_set_is_dropped(tmp_path):
    rows = [*rows_of(2), {"problem": LONG.replace("dfrac", "frac") + " Find z.", "answer": 1, "difficulty": 1}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    assert len(made(path)) == 3 and len(made(path, (LONG,))) == 2
    assert made(path, (LONG, "compute $1+1$"))["problem"].to_list() == ["Compute 0 + 0."]


@pytest.fixture
def contamination(tmp_path):
    from mrt.problems.contamination import Contamination

    paths = {"problems": tmp_path / "train.parquet", "evaluation": {"e": tmp_path / "e.parquet"}}
    return Contamination(**paths, out=tmp_path / "out.parquet")


@pytest.mark.parametrize(
    "theirs", ["compute $3+3$", LONG.replace("dfrac", "frac") + " Find z.", "".join(LANGUAGES["Japanese"][::-1])]
)
def test_a_training_set_that_shares_a_problem_with_an_evaluation_set_is_refused(tmp_path, contamination, theirs):
    further = [{"problem": text, "answer": 1, "difficulty": 1} for text in (LONG, LANGUAGES["Japanese"][0])]
    PROBLEMS.write(made(write_jsonl(tmp_path / "a.jsonl", [*rows_of(5), *further])), contamination.problems)
    for statement, shared in (("Quite another one.", False), (theirs, True)):
        one = write_jsonl(tmp_path / "e.jsonl", [{"problem": statement, "answer": 1}])
        PROBLEMS.write(made(one), contamination.evaluation["e"])
        if shared:
            with pytest.raises(ValueError, match=r"1 problems of e \(mine-[356]\): .*problems\.train\.disjoint_from"):
                contamination.cli_cmd()
        else:
            contamination.cli_cmd()
            assert pl.read_parquet(contamination.out).rows() == [("e", 1, 7)]


def test_questions_that_begin_alike_are_told_apart_by_their_options(tmp_path, contamination):
    """Choices are compared by question and options, in whatever order they are shown."""

    def of(rows, others=(), seed=1):
        file = write_jsonl(tmp_path / "c.jsonl", rows)
        task = Choice(shuffle=seed)
        return build("mine", Dataset(file=file, split="test"), others, extra=["options"], task=task)[0]

    stem = "Which statement is true?"
    rows = [
        {"problem": stem, "answer": "B", "options": [f"{i} is odd", f"{i} is even", "both"]} for i in range(2, 8, 2)
    ]
    table = of(rows)
    assert table.height == 3 and of([*rows, rows[0]]).height == 3
    PROBLEMS.write(of(rows, seed=1), contamination.problems)
    PROBLEMS.write(of(rows[:1], seed=2), contamination.evaluation["e"])
    with pytest.raises(ValueError, match="1 problems of e"):
        contamination.cli_cmd()
    theirs = contents(contamination.evaluation["e"])["content"]
    assert of(rows, theirs).height == 2 and of(rows[::-1], theirs).height == 2


def test_toy_problems_are_shared_if_their_numbers_are(contamination):
    train, test = toy(5, 1), toy(5, 2)
    numbers, _ = toy_numbers(train["problem"][0])
    turned = train["problem"][0].replace(", ".join(map(str, numbers)), ", ".join(map(str, numbers[::-1])))
    PROBLEMS.write(train, contamination.problems)
    PROBLEMS.write(test, contamination.evaluation["e"])
    contamination.cli_cmd()
    PROBLEMS.write(test.with_columns(problem=pl.lit(turned)), contamination.evaluation["e"])
    with pytest.raises(ValueError, match="1 problems of e"):
        contamination.cli_cmd()
