"""A hook of MkDocs: the pages of `experiments/`, which lie outside `docs/`, are part of the site.

Links between them and `docs/` are those that GitHub follows; on the site `experiments/NAME/README.md` is the page
`experiments/NAME.md`.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each experiment."""
    for readme in sorted((ROOT / "experiments").glob("*/README.md")):
        source = f"experiments/{readme.parent.name}.md"
        files.append(File.generated(config, source, content=readme.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to where the pages are on the site."""
    if page.file.src_uri.startswith("experiments/"):
        markdown = markdown.replace("](../../docs/", "](../")
        return re.sub(r"\]\(\.\./(\w+)/README\.md", r"](\1.md", markdown)
    return re.sub(r"\]\(\.\./experiments/(\w+)/README\.md", r"](experiments/\1.md", markdown)
