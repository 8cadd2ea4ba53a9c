"""A hook of MkDocs: pages outside `docs/` are part of the site, and an image is a figure whose alt text is its caption.

The site has README as its front page, CONTRIBUTING, `experiments/` and `benchmarks/`. Their links are those that GitHub
follows. On the site `docs/` is the root, so links to and from it are rewritten.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
FRONT = "index.md"  # README on the site
OUTSIDE = [
    *("CONTRIBUTING.md", "CITATION.cff", "LICENSE", "config/README.md", "experiments/**/*.md", "experiments/**/*.png"),
    *("benchmarks/*.md", "benchmarks/images/*.png"),
]
KATEX = ROOT / "mrt" / "traces" / "vendor"  # the page of traces has it too
LINK = re.compile(r"""(?<=\]\()[^)#:\s]+|(?<=(?:src|ref)=")[^"#:]+|(?<=srcset=")[^"#:]+""")
IMAGE = re.compile(r'<p>((?:<img alt="[^"]+" src="[^"]+" ?/?>\s*)+)</p>')


def on_config(config: Any) -> Any:
    """List the experiments in the navigation, by their questions."""
    readmes = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("experiments/*/README.md"))
    for part in config.nav:
        if "Results" in part:
            part["Results"].append({"Experiments": ["experiments/README.md", *readmes]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside `docs/`."""
    added = {FRONT: ROOT / "README.md"}
    added |= {str(path.relative_to(ROOT)): path for pattern in OUTSIDE for path in sorted(ROOT.glob(pattern))}
    added |= {
        f"katex/{path.relative_to(KATEX)}": path
        for path in KATEX.rglob("*")
        if path.suffix in (".js", ".css", ".woff2")
    }
    for uri, path in added.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links as GitHub follows them into those of the site."""
    uri = page.file.src_uri
    outside = uri == FRONT or (ROOT / uri).is_file()
    folder = "" if uri == FRONT else posixpath.dirname(uri if outside else f"docs/{uri}")

    def on_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[0]))
        target = FRONT if target == "README.md" else target.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(uri) or ".")

    return LINK.sub(on_site, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Make a figure of each image that is a paragraph, or part of a paragraph of images."""
    figure = r'<figure><img alt="\1" src="\2" loading="lazy"><figcaption>\1</figcaption></figure>'
    return IMAGE.sub(lambda p: re.sub(r'<img alt="([^"]+)" src="([^"]+)" ?/?>\s*', figure, p[1]), html)
