"""The glossary is short: at most 30 terms in order, each with one sentence."""

import re

import pytest
from conftest import ROOT
from test_prose import sentences

ROWS = re.findall(r"^- \*\*(.+?)\*\*: ((?:.|\n  )+)$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)


@pytest.mark.fast
def test_terms_are_few_and_in_order():
    terms = [term.lower() for term, _ in ROWS]
    assert 10 < len(set(terms)) == len(terms) <= 30 and terms == sorted(terms)


@pytest.mark.fast
@pytest.mark.parametrize(("term", "meaning"), ROWS)
def test_a_term_has_one_sentence(term, meaning):
    (sentence,) = sentences(re.sub(r"\(\"[^\"]*\"\)|`[^`]*`|z_0, \.\.\., ", "", meaning))
    assert sentence.endswith(".") and len(sentence.split()) <= 30
