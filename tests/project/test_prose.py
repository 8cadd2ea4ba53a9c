"""Prose of pages, docstrings, comments and descriptions: short sentences and lines, plain words, one interval each.

`python tests/project/test_prose.py PAGE ...` prints the findings of these pages, or of folders of code, and without
pages those of all. codespell finds misspelt words.
"""

import ast
import inspect
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
WORDS, CHARACTERS = 30, 120  # of a sentence; of a line of Markdown
SPELT = "unparseable,nd,notin,whats"  # words, in small letters, that codespell takes for others
GENERATED = {"artifacts", "claims", "configuration", "earlier_claims", "figures"}  # pages
INTERVAL = re.compile(r"\[[-+−]?\d[\d.,%  ]*(?:,| to) ?[-+−]?\d[\d.,%]*\]")
DIALECT = {  # a pattern, and the plain words
    r"\b(?:stands?|stood)\b(?! for\b)": "is, lies; differs",
    r"\bbehind\b": "after",
    r"\btold\b": "given, passed; reported",
    r"\bbegun\b": "started",
    r"\bdrawn\b": "sampled; plotted",
    r"\bown\b(?![ -]\w)|\bof (?:its|their|his) own\b": "its",
    r"\b(?:found|looked for) (?:there|here)\b|\bas (?:it|they) (?:was|were) found\b": "the noun",
    r"\b(?:be|is|are|was|were|been) asked\b|\basks? (?:for|of)\b": "queried, requested",
    r"\b(?:made|takes?n?|built|read) anew\b|\banew\b": "again, from scratch",
    r"\bin (?:whose|its|their) (?:stead|place)\b": "instead",
    r"\bnothing that\b|\bnobody\b|\bsomebody\b|\bwhoever\b": "the passive, or who it is",
    r"\bso many\b": "that many, n",
    r"\bto be had\b|\bat hand\b|\bin hand\b": "available",
    r"\bleads? clearly\b|\bclearly (?:leads?|better|above|below)\b": "significantly",
    r"\bas (?:trained|TRL has it)\b": "the term",
    r"\bin no (?:fingerprint|slice)\b": "excluded from",
    r"\brooms?\b": "subpackage",
    r"\bit is (?:let|left) alone\b|\blet alone\b": "ignored",
    r"\bsay\)|, say,": "for example",
}
PLAIN = {re.compile(pattern, re.IGNORECASE): plain for pattern, plain in DIALECT.items()}
CLAUSE = re.compile(  # instead of a noun; questions are allowed
    r"\bwhat (?:an?|the|it|its|they|their|each|this|these|one|is|are|was|were|has|no|else|nobody)\b(?![^.?!]*\?)", re.I
)
SECTION = re.compile(r"^(?:Args|Returns|Raises|Yields):$")


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph, without white space around them."""
    return re.split(r"(?<=[.!?])[)*_”\"]*\s+(?=[^a-z\s])", " ".join(text.split()))


def paragraphs(markdown: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, items and headings of a page, with the line that each begins in; tables and code are left out.

    A piece of code within a sentence counts as one word.
    """
    parser = MarkdownIt("commonmark").enable("table")
    table = False
    for token in parser.parse(markdown):
        if token.type in ("table_open", "table_close"):
            table = token.type == "table_open"
        if token.type == "inline" and not table:
            line = token.map[0] + 1
            parts = ["\n" if t.type in ("softbreak", "hardbreak") else t.content for t in token.children]
            parts = [
                "`code`" if t.type == "code_inline" else part for t, part in zip(token.children, parts, strict=True)
            ]
            yield line, "".join(part for t, part in zip(token.children, parts, strict=True) if t.type != "html_inline")


def as_markdown(docstring: str) -> str:
    """A docstring, its lists of arguments and errors as items."""
    lines, within = [], False
    for line in inspect.cleandoc(docstring).split("\n"):
        if SECTION.match(line):
            within = True
            lines += ["", line, ""]
        elif within and line.startswith("    "):
            item = re.match(r"    \S[^:]{0,60}: ", line)
            lines.append(("- " if item else "  ") + line.strip())
        else:
            within = within and not line
            lines.append(line)
    return "\n".join(lines)


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Paragraphs of a page, or of docstrings, descriptions of fields and comments in code, each with a line."""
    text = path.read_text()
    if path.suffix == ".md":
        yield from paragraphs(text)
        return
    for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (docstring := ast.get_docstring(node, clean=False)):
            yield from ((node.body[0].lineno, part) for _, part in paragraphs(as_markdown(docstring)))
        if isinstance(node, ast.keyword) and node.arg == "description" and isinstance(node.value, ast.Constant):
            yield from ((node.value.lineno, part) for _, part in paragraphs(node.value.value))
    comment, first, last = list[str](), 0, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"# (?:fmt|type|noqa)\b", token.string):
            alone = not token.line[: token.start[1]].strip()
            if comment and not (alone and token.start[0] == last + 1):
                yield first, " ".join(comment)
                comment = []
            first = first if comment else token.start[0]
            comment.append(re.sub(r"  # type: .*", "", token.string).lstrip("# "))
            last = token.start[0] if alone else 0
    if comment:
        yield first, " ".join(comment)


def findings_in(path: Path) -> Iterator[tuple[str, int, str]]:
    """Findings in a file: kind, line, and text."""
    for line, paragraph in prose_of(path):
        for sentence in sentences(paragraph):
            words = sum(bool(re.search(r"\w", word)) for word in sentence.split())
            if words > WORDS:
                yield "sentence", line, f"{words} words: {sentence[:80]} ..."
            if len(INTERVAL.findall(sentence)) > 1:
                yield "intervals", line, sentence[:120]
            for pattern, plain in PLAIN.items():
                for match in pattern.finditer(sentence):
                    yield "dialect", line, f"{match[0]} ({plain}): {sentence[:80]}"
            for match in CLAUSE.finditer(sentence):
                yield "clause", line, f"{match[0]} ... (its noun): {sentence[:80]}"
    if path.suffix == ".md":
        code = False
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            code ^= line.lstrip().startswith("```")
            shown = re.sub(r"\]\([^)]*\)|<https?://[^>]*>", "]", line)
            if not (code or line.lstrip().startswith("|")) and len(shown) > CHARACTERS:
                yield "line", number, f"{len(shown)} characters"


def pages() -> dict[str, list[Path]]:
    """Files by page, or by folder of code."""
    docs = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.stem not in GENERATED]
    readmes = [path for path in sorted((ROOT / "experiments").rglob("*.md")) if path.stem not in GENERATED]
    fronts = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "config/README.md")]
    files = {str(p.relative_to(ROOT)): [p] for p in (*fronts, *docs, *readmes)}
    files["Snakefile"] = [ROOT / "Snakefile"]
    for path in sorted(path for folder in ("mrt", "workflow", "tests") for path in (ROOT / folder).rglob("*.*")):
        if path.suffix in (".py", ".smk"):
            files.setdefault(str(path.parent.relative_to(ROOT)), []).append(path)
    return files


def report(page: str) -> list[str]:
    """The findings of a page or a folder of code, a line each."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {kind}: {text}"
        for path in PAGES[page]
        for kind, line, text in findings_in(path)
    ]


PAGES = pages()


@pytest.mark.fast
@pytest.mark.parametrize("page", PAGES)
def test_prose_is_plain(page):
    assert report(page) == []


@pytest.mark.fast
def test_words_are_spelt_right():
    places = ["README.md", "CONTRIBUTING.md", "docs", "experiments", "benchmarks", "config", "mrt", "workflow"]
    files = [path for place in places for path in [ROOT / place, *(ROOT / place).rglob("*")] if path.is_file()]
    texts = [str(path) for path in files if path.suffix in (".md", ".yaml", ".py", ".smk")]
    command = [sys.executable, "-m", "codespell_lib", "--ignore-words-list", SPELT, *texts]
    done = subprocess.run(command, capture_output=True, text=True)
    assert len(texts) > 300 and not done.returncode, done.stdout + done.stderr


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("A short sentence. Another one, with `a piece of code` and [a link](https://example.org).", []),
        ("One sentence\n" + "that goes on and on\n" * 7 + ".", ["sentence"]),
        ("A sentence " + "of words " * 10 + ".\nAnother " + "of words " * 10 + ".", []),
        ("| a table | " + "with a cell " * 30 + "|\n|---|---|\n| stands | told |", []),
        ("```\nwhat it is told " + "x" * 200 + "\n```", []),
        ("x" * 121, ["line"]),
        ("[a link](https://example.org/" + "x" * 200 + ")", []),
        ("Accuracy is 0.5 [0.4, 0.6].", []),
        ("Accuracy is 0.5 [0.4, 0.6], that of the base 0.3 [0.2, 0.4].", ["intervals"]),
        ("It stands below. `what it is` stands for none.", ["dialect"]),
        ("- what it is told", ["dialect", "clause"]),
        ("What is it? Behind the code.", ["dialect"]),
    ],
)
def test_each_kind_is_found(tmp_path, text, kinds):
    (tmp_path / "page.md").write_text(text)
    assert [kind for kind, _, _ in findings_in(tmp_path / "page.md")] == kinds


@pytest.mark.fast
def test_docstrings_and_comments_are_read_and_code_is_not(tmp_path):
    long = "word " * 20
    code = f'"""A module.\n\n    python -m it is told\n\nArgs:\n    a: {long}\n    b: {long}\n"""\n'
    code += f'told = "it is told"  # {long}\n# {long}\n# {long}.\n'
    (tmp_path / "module.py").write_text(code + 'Field(description="The file that it is told.")\n')
    findings = [(kind, line) for kind, line, _ in findings_in(tmp_path / "module.py")]
    assert findings == [("dialect", 12), ("sentence", 10)]
    (tmp_path / "rules.smk").write_text("rule told:\n    shell: 'told'  # told\n")
    assert [kind for kind, _, _ in findings_in(tmp_path / "rules.smk")] == ["dialect"]


if __name__ == "__main__":
    print(*(line for page in sys.argv[1:] or PAGES for line in report(page)), sep="\n")
