"""The documents' code: Python that compiles and names what there is, and files and recipes that exist."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: Files of the project in commands, such as `examples/switch.py`.
FILE = re.compile(r"(?<![\w/.])(?:bench|examples|scripts|tests)/[\w/.-]+\w")


def blocks(document: Path, language: str) -> Iterator[str]:
    """The code blocks of a document that are in a language."""
    yield from (code for name, code in BLOCK.findall(document.read_text()) if name == language)


def path_of(node: ast.expr) -> list[str]:
    """`["tenure", "torch", "install"]` for `tenure.torch.install`; empty for what is no path of names."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (path := path_of(node.value)):
        return [*path, node.attr]
    return []


def resolved(path: list[str]) -> object:
    """The member of the package that a path names; it fails if there is none."""
    import tenure

    if path[1] == "torch":
        pytest.importorskip("torch")
        import tenure.torch
    member: object = tenure
    for name in path[1:]:
        member = getattr(member, name)
    return member


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_in_documents_compiles_and_calls_what_there_is(document: Path) -> None:
    for code in blocks(document, "python"):
        tree = ast.parse(code)
        compile(tree, str(document), "exec")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and (path := path_of(node))[:1] == ["tenure"]:
                resolved(path)
            if isinstance(node, ast.Call) and (called := path_of(node.func))[:1] == ["tenure"]:
                function = resolved(called)
                if inspect.isbuiltin(function):
                    # An operation of the table: it has a signature for each overload, in its documentation.
                    signatures = (function.__doc__ or "").partition("\n\n")[0]
                    parameters = {*re.findall(r"\w+", signatures), "requires_grad"}
                else:
                    parameters = set(inspect.signature(function).parameters)  # type: ignore[arg-type]
                keywords = {keyword.arg for keyword in node.keywords if keyword.arg}
                assert keywords <= parameters, f"{'.'.join(called)} takes no {keywords - parameters}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_documents_name_files_and_recipes_that_exist(document: Path) -> None:
    recipes = set(re.findall(r"^([a-z][a-z-]*)(?: [^\n:]*)?:(?!=)", (ROOT / "justfile").read_text(), re.MULTILINE))
    for code in blocks(document, "sh"):
        for name in FILE.findall(code):
            assert (ROOT / name).exists(), f"there is no {name}"
        for recipe in re.findall(r"^just ([a-z-]+)", code, re.MULTILINE):
            assert recipe in recipes, f"there is no recipe {recipe}"


def test_links_of_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            target, _, anchor = link.partition("#")
            if target.startswith("http"):
                continue
            page = document.parent / target if target else document
            assert page.exists(), f"{document.relative_to(ROOT)}: there is no {link}"
            if anchor:
                assert anchor in anchors(page), f"{document.relative_to(ROOT)}: there is no {link}"


def anchors(page: Path) -> set[str]:
    """The anchors of a document's headings, as forges and mdBook make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
