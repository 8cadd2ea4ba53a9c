"""Find the answer of a completion: its last box after the thought."""

import re

LONGEST = 2_000  # characters; longer answers are unparseable, and Math-Verify searches only so much of an answer part
_BOX = r"\\\\?(?:boxed|f(?:rame)?box)(?![A-Za-z])"
_FUNCTION = r"(?:a(?:rc)?)?(?:sin|cos|tan)|cot|sec|csc|log|ln|exp|sqrt|pi|mod|and|or"
_SCALE = r"(?:per ?cent|per ?mille|hundred|thousand|million|[bt]r?illion|dozen|lakh|crore)"
_BOX_TOKEN = re.compile(  # `\boxed{`, `\framebox[2cm]{`, `\boxed 7`; not `\boxed` in a sentence about it
    rf"{_BOX}(?:(?:\s*\[[^\[\]{{}}\n]{{0,20}}\]){{0,2}}\s*(\{{)"
    r"|\s*(?:\\[,;:! ]\s*)?(?P<bare>(?=\s?\$[\d\\-])(?<=\s)|(?=[-+−]?\s?(?:\.?\d|[A-Z]+(?![A-Za-z])"
    r"|(?![aI] [a-z]{2})[a-z](?![A-Za-z])"
    r"|[a-z]{2,3}\s?(?:\$|\\[)\]]|[-+*/^=])|[(\[|](?!\s?[A-Za-z]{2})|[√α-ω∞€£¥∅]"
    rf"|\\(?:[{{$|]|(?!(?:q?quad|end|right|boxed|f(?:rame)?box|tag|hfill)(?![A-Za-z]))[A-Za-z]+)))))|\\.|[{{}}]",
    re.DOTALL,
)
_END_OF_MATH = re.compile(  # where an expression outside of brackets ends
    rf"\$|[\n\"`“”&}})\]。，；]|\\\\?[)\]]|\\\\(?![A-Za-z])|\\(?:q?quad|tag|label|end|hfill|blacksquare|square"
    rf"|checkmark)(?![A-Za-z])"
    rf"|{_BOX}|\*\*|[.;:?](?!\d)|!(?=\s|\Z)|,(?=\s*(?:\Z|\n|\$|\\?\\[)\]]|\\text|{_BOX}|[A-Za-z]{{2}}|[aI]\s))"
    rf"|(?<![A-Za-z\\])(?!(?:{_FUNCTION}|{_SCALE}s?)\b)[A-Z]?[a-z]{{2,}}|(?<=\s)[aI](?=\s[a-z]{{2}})"
    rf"|\(\s*[A-Za-z]{{2,}}\s|\\text\s*\{{\s*(?:and|or)"
)
_MATH_TOKEN = re.compile(r"\\\\?[A-Za-z]+|\\.|.", re.DOTALL)
_OPENS, _CLOSES = {"{", "(", "[", r"\{"}, {"}", ")", "]", r"\}"}
_GOES_ON = re.compile(  # an expression that continues directly after the braces of a box
    rf"[ \t]*(?:(?P<scale>\$?[ \t]*\\?%)|[\^_](?! ?\{{?\s*\\(?:circ"
    rf"|prime))(?=\S)|/(?=[\d({{\\]|[A-Za-z](?![A-Za-z]))(?!/?{_BOX})"
    r"|\\(?:times|cdot|div|sqrt|[dt]?frac|pi|log|ln|sin|cos|tan)(?![A-Za-z])"
    rf"|[-+][ \t]?(?:[\d(]|(?!{_BOX})\\[A-Za-z]|(?![aAI][ \t]+[a-z]{{2}})[A-Za-z](?![A-Za-z])))"
)
_BRACKET = re.compile(r"\\.|[(){}]", re.DOTALL)
_FILLED = re.compile(r"\S")
_LINKS = re.compile(r"\\q?quad|\\text|\b(?:and|or)\b|\w{1,9}\s*=|[\s$\\()\[\]{},;!.]")
_JOINS = re.compile(r"[,;]|\b(?:and|or)\b")
_PROSE = re.compile(  # text around a box that does not change its value
    r"\\(?:text(?:bf|it|rm|sf|normal)?|math(?:rm|bf)|mbox|q?quad|[ ,;:!()\[\]])(?![A-Za-z])"
    r"|\([A-Za-z ,.]{3,200}\)|[A-Za-z]{2,}|[\s.,;:!?'’${}]"
)
_END = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]>|</s>|<(?:eos|pad|end_of_turn)>|\[(?:EOS|/INST)\]")  # tokens as text
_SPELLED = str.maketrans({"−": "-", "：": ": ", "（": "(", "）": ")", "。": ".\n", "，": ", ", "*": None, "`": None})
_MARKED = re.compile(r"(?:^|\s)####[ \t]*([-+]?\$?[-+]?\d[\d,]*(?:\.\d+)?%?)\.?[ \t]*(?=\n|\Z)")  # GSM8K's
_LAST_LINE = re.compile(r"####[ \t]*(\S.*)\s*\Z")  # with more than a number; elsewhere it is a heading
_SAID = re.compile(r"(?i)\banswer(?: is)? ?[:=]|\banswer is\b|答案(?:是|为|為)? ?:?|答え(?:は)? ?:?|정답(?:은)? ?:?")
_TAGGED = re.compile(r"(?i)<answer>((?:(?!</?answer>).){0,2000})</answer>", re.DOTALL)
_DENIED = re.compile(
    r"(?i)\banswer (?:(?:is|was|ca|could|must|should|would|wo|does|do)n['’]?t|(?:can|could|must|should|would|will"
    r"|does|is|was)"
    r" (?:[a-z]+ly )?(?:not|never)|cannot)\b|答案(?:不|并不|並不)(?:是|为|為)"
)
_BOUND = (  # a negation or a comparison
    r"(?:not|never|no(?:ne|r)?|neither|between|(?:greater|less|more|fewer|larger|smaller|bigger|higher|lower|other)\s+than"
    r"|at\s+(?:most|least)|up\s+to|above|below|under|over|different\s+from|any(?:thing)?\s+but|不(?!等)|无|無)(?![A-Za-z])"
)
_DOUBT = re.compile(  # before a value
    r"(?i)[\s:$*]*(?:[a-z]+ly\s+|(?:a|any|some|that|the)\s+(?:number|value|integer)?\s*|\\?[a-z]\$?\s+(?:is"
    rf"|must be)\s+)?{_BOUND}"
)
_BOUNDED = re.compile(  # text before a number (`\0`), and after it
    rf"(?i)(?<![A-Za-z]){_BOUND}(?:(?:\s+or)?\s+equal\s+to|(?<=between)[^.\n]*\band|[^A-Za-z\d.\n]|\b[a-z]\b)*\0"
    r"|\0\W*(?:or (?:more|less|fewer|greater|higher|lower)|at (?:most|least))\b"
)
_NUMBER = re.compile(r"\d[\d.,/]*")
_CLAUSE_WORDS = (
    r"as|because|since|which|where|whereas|while|not|rather than|instead of|so|though"
    r"|although|however|for (?:all|any|every|each|the)|hence|thus|therefore|and not"
)
_CONDITION_WORDS = (
    r"if|unless|when|whenever|provided|assuming|otherwise|only|for|or (?:more|less|fewer|greater|higher|lower)"
)
_STATED = re.compile(  # mathematics to the end of its sentence or clause, with at most two words after a number
    r"\s*((?:\\[A-Za-z]+|\\.|\b(?:and|or)\b|(?<![A-Za-z])[A-Za-z](?![A-Za-z])"
    r"|[-\d²³½α-ω+*/^_=<>!,;:%$€£¥°√∞'|(){}\[\] ]|\.(?=\d)){1,200}?"
    rf"(?:(?<=\d) ?(?!(?:{_CLAUSE_WORDS}|{_CONDITION_WORDS}|rather|instead)\b)[A-Za-z]+(?: (?!(?:{_CLAUSE_WORDS}"
    rf"|{_CONDITION_WORDS})\b)[a-z]+)?"
    r"|(?<=\d) ?[\u3040-\u9fff]{1,6})?)"
    rf"(?:\s*(?:\.(?!\d)|\n|\Z)|(?<![,\s])(?:\s+|\s*[,;]\s*)(?:(?:{_CLAUSE_WORDS})\b|\((?!mod\b|base\b)[a-z]{{2,}}[ )])"
    rf"|(?<![,\s])(?P<condition>(?:\s+|\s*[,;]\s*)(?:{_CONDITION_WORDS})\b))"
)
_LETTER = re.compile(
    r"(?:(?i:answer)(?:\s*(?::|(?i:is|(?:must|should|would) be|option|choice)\b)\s*:?\s*(?:(?!not\b|never\b"
    r"|neither\b|none\b)[a-z]+\s+){0,3}|\s*)"
    r"|(?i:(?<!other )(?:option|choice)\s*(?::|(?:is|must be|should be|would be)\b)\s*:?\s*(?:option\s+)?)"
    r"|答案(?:是|为|為)?\s*:?\s*)"
    r"[(]{0,3}([A-J])[)]{0,3}(?=\s{0,3}(?:[.,;:\n]|$))"
    r"(?!\s*,?\s*(?:(?:or|and)\s+)?(?:maybe\s+|perhaps\s+|possibly\s+)?\(?[A-J]\b)"
    r"|(?i:option|choice|answer)\s+\(?([A-J])\)?\s+is\s+(?:the\s+)?(?:correct|right)\b"
)


def boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}`, `\fbox{...}` or `\framebox{...}` that closes and is not empty.

    For completions and solutions; "" if the last box cannot be read. Without braces (`\boxed 2^{10}`) the expression
    to the end of the mathematics counts, and so does an expression that continues after braces (`\boxed{0.5}\%`). Of
    nested boxes the outer counts, unless it adds only prose to the inner ones. Successive boxes separated only by
    "and", "or" or a comma form one list. Linear time.
    """
    opened: list[tuple[int, int]] = []  # (start of the token, start of the content or -1), one for each open brace
    boxes: list[tuple[int, int, int]] = []  # start, start of the content, end of the content
    for token in _BOX_TOKEN.finditer(text):
        if token["bare"] is not None:
            boxes.append((token.start(), token.end(), -1))
        elif token.group(1):
            opened.append((token.start(), token.end()))
        elif token.group() == "{":
            opened.append((token.start(), -1))
        elif token.group() == "}" and opened:
            start, content = opened.pop()
            if content >= 0 and (filled := _FILLED.search(text, content)) and filled.start() < token.start():
                inner = []
                while boxes and boxes[-1][0] > start:
                    begin, at, end = boxes.pop()
                    inner.append((begin, at, end if end >= 0 else abs(_expression(text, at))))
                ends = [content, *(_behind(text, end) for *_, end in reversed(inner))]
                begins = [*(begin for begin, *_ in reversed(inner)), token.start()]
                around = "".join(text[a:b] for a, b in zip(ends, begins, strict=True))
                prose = inner and not _PROSE.sub("", around)
                boxes += reversed(inner) if prose else [(start, content, token.start())]
    if not boxes:
        return None
    answers: list[str] = []
    following = 0  # where the next box starts
    for start, content, end in reversed(boxes):
        answer, behind = _content(text, content, end)
        gap = text[behind:following]
        if answers and (len(gap) > 60 or _LINKS.sub("", gap) or not _JOINS.search(gap)):
            break
        if not answer:
            return ""
        answers.append(answer)
        following = start
    return ", ".join(dict.fromkeys(reversed(answers)))


def tagged(part: str) -> str | None:
    """The content of the last `<answer>...</answer>` of an answer part; None without one."""
    contents = _TAGGED.findall(part)
    return contents[-1].strip() if contents else None


def _content(text: str, start: int, end: int) -> tuple[str, int]:
    """A box's content with its continuation ("" if unreadable), and its end; `end` -1 is no brace."""
    if end < 0:
        behind = _expression(text, start)
        return text[start : max(behind, start)].strip(), abs(behind)
    content, behind = text[start:end].strip(), _behind(text, end)
    if text[end : end + 1] != "}" or not (more := _GOES_ON.match(text, behind)):
        return content, behind
    if more["scale"]:
        return content + r"\%", more.end()
    last = _expression(text, behind)
    first = content if re.fullmatch(r"[\w.]+|\\[A-Za-z]+", content) else f"({content})"
    return (first + text[behind:last].rstrip() if last > 0 else ""), abs(last)


def _expression(text: str, start: int) -> int:
    """Where the expression at a place of the text ends; below 0, the negative place, if it is unreadable."""
    at, depth = start, 0
    while at < len(text):
        if depth == 0 and (at > start or text[at] == "$") and _END_OF_MATH.match(text, at):
            break
        token = _MATH_TOKEN.match(text, at)
        if token is None or at - start > 500 or (depth and token[0] in "\n$"):
            return -max(at, 1)
        depth += (token[0] in _OPENS) - (token[0] in _CLOSES)
        at = token.end()
    expression = re.sub(r"\s+(?:and|or|[-–—=+*/|]+)\s*$", "", text[start:at]).rstrip()
    if depth or not re.search(r"\w|√|∞|∅", expression) or re.search(r"(?:[-+/^_=<>]|\\(?:cdot|times))$", expression):
        return -max(at, 1)
    return start + len(expression)


def _behind(text: str, end: int) -> int:
    """The place after a box whose content ends at `end`, with or without a brace."""
    return end + (text[end : end + 1] == "}")


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
        return (answer if 0 < len(answer) <= LONGEST else None), None
    text = _END.sub("\n", part).translate(_SPELLED)
    if (inside := tagged(part)) is not None:
        text = inside.translate(_SPELLED)
        if not _SAID.search(text):
            return text.strip("$ ") or None, None
    tail = text[-LONGEST:]
    said = [match.end() for match in _SAID.finditer(tail)]
    denied = [match.end() for match in _DENIED.finditer(tail)]
    if denied and denied[-1] >= max(said, default=0):
        return None, None
    if (letters := list(_LETTER.finditer(tail))) and letters[-1].end() >= max(said, default=0):
        return letters[-1][1] or letters[-1][2], None
    marked = list(_MARKED.finditer(text))
    if marked and (not said or marked[-1].end() > len(text) - len(tail) + said[-1]):
        return marked[-1][1], None
    if last := _LAST_LINE.search(tail):
        return last[1], None
    if said and _DOUBT.match(tail, said[-1]):
        return None, None
    if said and (stated := _STATED.match(tail, said[-1])) and re.search(r"[\dA-Za-z]", stated[1]):
        if stated["condition"]:
            return None, None
        return stated[1].strip("$ ") if stated[1].count("$") == 2 else stated[1].strip(), None
    if not said and (numbers := list(_NUMBER.finditer(tail))):  # the last one is what Math-Verify finds
        start, end = numbers[-1].span()
        if _BOUNDED.search(f"{tail[max(0, start - 60) : start]}\0{tail[end : end + 60]}"):
            return None, None
    return None, tail[said[-1] :] if said else tail
