"""Find the answer of a completion: its last box after the thought."""

import re

LONGEST = 2_000  # characters; longer answers are unparseable, and Math-Verify searches only so much of an answer part
_BOX_TOKEN = re.compile(r"\\\\?(?:boxed|fbox)\s*(\{)|\\.|[{}]", re.DOTALL)
_BRACKET = re.compile(r"\\.|[(){}]", re.DOTALL)
_FILLED = re.compile(r"\S")
_LINKS = re.compile(r"\\q?quad|\\text|\b(?:and|or)\b|\w{1,9}\s*=|[\s$\\()\[\]{},;!.]")
_JOINS = re.compile(r"[,;]|\b(?:and|or)\b")
_PROSE = re.compile(  # what a solution may put around a box without changing its value
    r"\\(?:text(?:bf|it|rm|sf|normal)?|math(?:rm|bf)|mbox|q?quad|[ ,;:!()\[\]])(?![A-Za-z])"
    r"|\([A-Za-z ,.]{3,200}\)|[A-Za-z]{2,}|[\s.,;:!?'’${}]"
)
_LAST_LINE = re.compile(r"####[ \t]*(\S.*)\s*\Z")  # GSM8K's; elsewhere it is a heading
_SAID = re.compile(r"(?i)\banswer(?: is)? ?:|\banswer is\b")
_LETTER = re.compile(
    r"(?i:answer)(?:\s*(?::|(?i:is|(?:must|should|would) be|option|choice)\b)\s*:?\s*(?:[a-z]+\s+){0,3}|\s*)"
    r"[(*]{0,3}([A-J])[)*]{0,3}(?=\s{0,3}(?:[.,;:\n]|$))"
)


def boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` or `\fbox{...}` that closes and is not empty; for completions and solutions.

    Of nested boxes the outer counts, unless it adds only prose to the inner ones. Successive boxes separated only by
    "and", "or" or a comma form one list. Linear time.
    """
    opened: list[tuple[int, int]] = []  # (start of the token, start of the content or -1), one for each open brace
    boxes: list[tuple[int, int, int]] = []  # start, start of the content, end of the content
    for token in _BOX_TOKEN.finditer(text):
        if token.group(1):
            opened.append((token.start(), token.end()))
        elif token.group() == "{":
            opened.append((token.start(), -1))
        elif token.group() == "}" and opened:
            start, content = opened.pop()
            if content >= 0 and (filled := _FILLED.search(text, content)) and filled.start() < token.start():
                inner = []
                while boxes and boxes[-1][0] > start:
                    inner.append(boxes.pop())
                ends = [content, *(end + 1 for *_, end in reversed(inner))]
                begins = [*(begin for begin, *_ in reversed(inner)), token.start()]
                around = "".join(text[a:b] for a, b in zip(ends, begins, strict=True))
                prose = inner and not _PROSE.sub("", around)
                boxes += reversed(inner) if prose else [(start, content, token.start())]
    if not boxes:
        return None
    answers = [text[boxes[-1][1] : boxes[-1][2]].strip()]
    for (_, content, end), (start, _, _) in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        gap = text[end + 1 : start]
        if len(gap) > 60 or _LINKS.sub("", gap) or not _JOINS.search(gap):
            break
        answers.append(text[content:end].strip())
    return ", ".join(dict.fromkeys(reversed(answers)))


def closing(text: str, at: int) -> int:
    """Where the brace or parenthesis at a place of the text closes; 0 if there is none or it never does."""
    depth = 0
    steps = {"{": {"{": 1, "}": -1}, "(": {"(": 1, ")": -1}}.get(text[at : at + 1], {})
    for token in _BRACKET.finditer(text, at) if steps else ():
        depth += steps.get(token.group(), 0)
        if depth == 0:
            return token.start()
    return 0


def find_box(part: str | None) -> tuple[str | None, str | None]:
    """(the boxed answer, None), or (None, the text that Math-Verify should search), or (None, None).

    `part` is the answer part of a completion; None if its thought is left open.
    """
    if part is None or not part.strip():
        return None, None
    answer = boxed(part)
    if answer is not None:
        return (answer if len(answer) <= LONGEST else None), None
    tail = part[-LONGEST:].replace("**", "").replace("`", "")
    if named := _LETTER.findall(tail) or _LAST_LINE.findall(tail):
        return named[-1], None
    said = [match.start() for match in _SAID.finditer(tail)]
    return None, tail[said[-1] :] if said else tail
