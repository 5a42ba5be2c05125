"""All messages of Rust's errors stand in one document, where they are read together; other tests assert variants."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs/reference/messages.md"
TITLE = """# Error messages

The messages of Rust's error types, from which the program, the Python package and the server make theirs. Names in
braces stand for values. `TENURE_UPDATE=1 just python -k messages` writes this page.
"""
ENUM = re.compile(r"^(?:pub(?:\(\w+\))? )?(?:enum|struct) (\w+)", re.MULTILINE)
#: The attribute of a variant, or of a whole type, and the name after it and after its other attributes and comments.
MESSAGE = re.compile(
    r'#\[error\(\s*"(?P<text>(?:[^"\\]|\\.)*)"[^\]]*\)\]\s*'
    r"(?:#\[[^\]]*\]\s*|///[^\n]*\s*)*(?P<name>(?:pub(?:\(\w+\))? )?(?:struct |enum )?\w+)",
    re.DOTALL,
)


def messages(source: str) -> Iterator[tuple[str, str]]:
    """Each message in a source: its type and variant, and its text on one line."""
    for found in MESSAGE.finditer(source):
        text = re.sub(r"\\\n\s*", "", found["text"]).replace('\\"', '"').replace("\\\\", "\\")
        *kind, name = found["name"].split()
        types = [] if kind else [match[1] for match in ENUM.finditer(source, 0, found.start())]
        yield "::".join([*types[-1:], name]), text


def page() -> str:
    """The document as the sources have it."""
    lines = [TITLE]
    for crate in sorted((ROOT / "crates").iterdir()):
        sources = sorted((crate / "src").rglob("*.rs"))
        found = sorted({message for source in sources for message in messages(source.read_text())})
        if found:
            lines += [f"## {crate.name}\n", "| error | message |", "| --- | --- |"]
            lines += [f"| `{name}` | {text.replace('|', '&#124;').replace('<', '&lt;')} |" for name, text in found]
            lines.append("")
    return "\n".join(lines)


def test_the_document_of_messages_is_that_of_the_sources() -> None:
    if os.environ.get("TENURE_UPDATE"):
        DOCUMENT.write_text(page())
    assert DOCUMENT.read_text() == page(), "run `TENURE_UPDATE=1 just python -k messages`, and read what changed"
