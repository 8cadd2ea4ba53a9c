"""Extraction: the answer of a completion."""

import time

import pytest

from mrt.grading.answers import boxed, closing
from mrt.grading.grade import extract_answer


@pytest.mark.parametrize(
    ("completion", "thinking", "answer"),
    [
        (r"So \boxed{\frac{1}{2}}.", False, r"\frac{1}{2}"),
        (r"\boxed{1} no, \boxed{2}", False, "2"),
        (r"\boxed{\boxed{7}}", False, "7"),
        (r"\boxed{The answer is \(\boxed{390}\)}", False, "390"),
        (r"\boxed{\text{both } \boxed{1} \text{ and } \boxed{2}.}", False, "1, 2"),
        (r"\boxed{\sqrt{\boxed{2}}}", False, r"\sqrt{\boxed{2}}"),
        (r"\boxed{x = \boxed{2}}", False, r"x = \boxed{2}"),
        (r"\boxed {7} \boxed{ }", False, "7"),
        (r"\boxed{1} then \boxed{2} and \boxed{3", False, "2"),
        (r"\boxed{\text{a", False, None),
        (r"thought</think>\boxed{1} and </think> again", True, "1"),
        (r"\fbox{9}", False, "9"),
        (r"\boxed{8} and then \boxed{ cut off", False, "8"),
        (r"\boxed{8} but \boxed{}", False, "8"),
        (r"\boxed{\{1, 2\}}", False, r"\{1, 2\}"),
        (r"$\boxed{3}$ and $\boxed{4}$", False, "3, 4"),
        (r"\boxed{3}. Check: \boxed{3}", False, "3"),
        (r"<think>\boxed{1}</think> The answer is \boxed{2}", False, "2"),
        (r"thought \boxed{1}</think>\boxed{2}", True, "2"),
        (r"a</think>\boxed{1}</think>\boxed{2}", True, "2"),
        (r"<think>\boxed{1}", False, None),
        (r"\boxed{1}", True, None),
        (r"\boxed{1}</think>", True, None),
        ("", False, None),
        ("I do not know.", False, None),
        ("The answer is $x + 1$.", False, "x + 1"),
        ("There are 12 ways, I hope.", False, "12"),
        ("The answer is for sure D, it cannot be A.", False, "D"),
        ("The answer is **4/7**", False, "4/7"),
        ("12 + 6 = 18\n#### 18", False, "18"),
        ("#### Step 1: Add\n1 + 1 = 2\n\n#### Final Answer\nThe answer is 2.", False, "2"),
        ("The answer depends on point A. So the value is 12.", False, "12"),
        ("The answer is clearly (B).", False, "B"),
        (r"\boxed{" + "1" * 20_000 + "}", False, None),
        (r"\boxed{3}, in the end $2+5=\boxed 7$.", False, "7"),
        (r"So it is $\boxed7$.", False, "7"),
        (r"\framebox{9}.", False, "9"),
        (r"\framebox[2cm][l]{9}", False, "9"),
        (r"\boxed 12.5.", False, "12.5"),
        (r"\boxed -5", False, "-5"),
        (r"\boxed\frac12", False, r"\frac12"),
        (r"\boxed 7 then \boxed{3}", False, "3"),
        (r"$\boxed 3$ and $\boxed 4$", False, "3, 4"),
        (r"\boxed{4} in \boxed notation", False, "4"),
        (r"\boxed{x = \boxed 7}", False, r"x = \boxed 7"),
        ("2+40=42\n#### 42\n and this agrees with the 7 pears.", False, "42"),
        ("#### 42\n" + "That is all of it. " * 200, False, "42"),
        ("#### 18<|im_end|>", False, "18"),
        ("#### 18<｜end▁of▁sentence｜>", False, "18"),
        ("#### 18</s>\n", False, "18"),
        ("#### $5.50\nok", False, "$5.50"),
        ("#### 1\nFirst.\n#### 2\nSecond. The answer is 9.", False, "9"),
        ("The answer is −5.", False, "-5"),
        ("最终答案：42", False, "42"),
        ("答案是42。", False, "42"),
        ("答案：B", False, "B"),
        ("最终答案：5万", False, "5万"),
        ("The correct option is (B).", False, "B"),
        ("Hence option (C) is the correct answer.", False, "C"),
        ("The answer is A or B.", False, "A or B"),
        ("The correct option is (B), maybe (C).", False, None),
        ("The answer is 2√3.", False, "2√3"),
        ("The answer is 5 million.", False, "5 million"),
        ("The answer is 3 or 5.", False, "3 or 5"),
        ("The answer is 12 because 3 times 4 is 12.", False, "12"),
        ("The answer is $18<|im_end|>", False, "$18"),
        ("The answer is 6 since y must be less than 9.", False, "6"),
        ("The answer is 6, as 10 is too large.", False, "6"),
        ("The answer is 24, which took 3 steps.", False, "24"),
        ("The answer is $24$, because $2 < 3$.", False, "24"),
        ("The answer is 7, not 9.", False, "7"),
        ("The answer is 7, which is 3 more than 4.", False, "7"),
        ("The answer is 7 rather than 9.", False, "7"),
        ("The answer is 12 (out of 30).", False, "12"),
        ("The answer is 12 ways, since 3 were left out.", False, "12 ways"),
        ("The answer is not 6.", False, None),
        ("The answer cannot be 6.", False, None),
        ("The answer isn't 6.", False, None),
        ("The answer is definitely not B.", False, None),
        ("The answer is greater than 8.", False, None),
        ("The answer is at most 8.", False, None),
        ("The answer is less than or equal to 8.", False, None),
        ("The answer is none of 1, 2, 4.", False, None),
        ("The answer is $7$ if n is odd and $9$ if n is even.", False, None),
        ("So 3 + 4 = 7, step 2.\n<answer>7</answer> after 3 tries", False, "7"),
        ("<answer>The answer is $8$.</answer>", False, "8"),
        (r"\boxed{3}, then $\boxed\pi$", False, r"\pi"),
        (r"\boxed{3}, then $\boxed\sqrt{5}$", False, r"\sqrt{5}"),
        (r"\boxed{3}, then $\boxed\text{D}$", False, r"\text{D}"),
        (r"\boxed{3}, then $\boxed(6,4)$", False, "(6,4)"),
        (r"\boxed{3}, then $\boxed[6,4)$", False, "[6,4)"),
        (r"\boxed{3}, then \boxed\mathbf{8}.", False, r"\mathbf{8}"),
        (r"\boxed{3}, then $\boxed\binom62$", False, r"\binom62"),
        (r"\boxed{3}, then $\boxed\{1,5\}$", False, r"\{1,5\}"),
        (r"\boxed{3}, then \boxed \$6", False, r"\$6"),
        (r"$\boxed 3^{10}$", False, "3^{10}"),
        (r"$\boxed 3\sqrt5$", False, r"3\sqrt5"),
        (r"\boxed 3/5.", False, "3/5"),
        (r"\boxed y+1 and so on", False, "y+1"),
        (r"\boxed{3}, then $\boxed\frac{1}{", False, None),
        (r"\boxed{3}, then $\boxed 2^", False, None),
        (r"\boxed{0.7}\%", False, r"0.7\%"),
        (r"$\boxed{0.7}$ percent", False, "0.7"),
        (r"$\boxed{9}$ million pieces", False, "9"),
        (r"$\boxed{7}^2$", False, "7^2"),
        (r"$\boxed{x+1}/3$", False, "(x+1)/3"),
        (r"**\boxed{9}** - it was $x = 2$", False, "9"),
        (r"\boxed{16} - a perfect square", False, "16"),
        (r"$\boxed{16} - a$", False, "16 - a"),
        (r"$\boxed{15\frac{39}{40}},$ or $\boxed{\frac{639}{40}}$ inches.", False, r"15\frac{39}{40}, \frac{639}{40}"),
        (r"\boxed{3} or \boxed{4}", False, "3, 4"),
        ("Checking answer choice C: 14. The final answer is 12.", False, "12"),
        ("It is 14. The answer is C.", False, "C"),
        ("so y is at most 8", False, None),
        ("Hence $y$ is greater than or equal to $8$.", False, None),
        ("It follows that y is not 8, as I thought.", False, None),
        ("So y is between 3 and 8.", False, None),
        ("So y is 8 or more.", False, None),
        ("Not all are odd. So y is 8.", False, "8"),
        ("There are not 7, there are 8.", False, "8"),
    ],
)
def test_extraction(completion: str, thinking: bool, answer: str | None) -> None:
    assert extract_answer(completion, thinking) == answer


@pytest.mark.parametrize(
    ("text", "at", "end"), [("{a{b}}c", 0, 5), ("(a]b)", 0, 4), (r"{\}}", 0, 3), ("{a", 0, 0), ("a", 0, 0), ("", 0, 0)]
)
def test_closing(text: str, at: int, end: int) -> None:
    assert closing(text, at) == end


def test_extraction_is_linear_in_hostile_text() -> None:
    start = time.process_time()
    for piece in ("{", "}", r"\boxed{", r"\boxed", "\\", r"\boxed{1}, ", r"\boxed{{", "</think", r"\boxed   "):
        boxed(piece * (2 * 10**5 // len(piece)))
    assert boxed("{" * 10_000 + r"\boxed{5}") == "5"
    count = 150_000  # a cost that grows with the square would take minutes
    assert boxed(r"\boxed{" * count + "1" + "}" * count) is not None
    assert boxed(", ".join(rf"\boxed{{{i}}}" for i in range(count))) == ", ".join(map(str, range(count)))
    assert boxed(r"\boxed{7} \boxed{ " + "\t" * count + "}") == "7"
    assert time.process_time() - start < 10


def test_without_a_box_the_last_answer_counts() -> None:
    assert extract_answer("The answer is A.\n\nNo. The answer is B.") == "B"
    assert extract_answer("The answer is 3.\n" + "Let me check. " * 300 + "\nThe answer is $5$.") == "5"
    assert extract_answer("The answer is 3. " + "Let me check. " * 300 + "So it is 5.") == "5"
