"""What the documents point to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKS = [(text, link) for text in TEXTS for link in re.findall(r"\]\(([^)\s]+)\)", text.read_text(encoding="utf-8"))]


def anchors(text):
    """The names that GitHub gives the headings of a document."""
    heads = re.findall(r"^#+ (.+)$", text.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize(("text", "link"), [(text, link) for text, link in LINKS if "://" not in link])
def test_each_link_within_the_checkout_leads_somewhere(text, link):
    """The file is there, and so is the heading, if one is named."""
    path, _, anchor = link.partition("#")
    target = text.parent / path if path else text
    assert target.exists()
    assert not anchor or anchor in anchors(target)
