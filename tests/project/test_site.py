"""The documents as a site, built as `make docs` builds it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "mkdocs.yml")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the documents, with what the command builds them by."""
    for name in DOCUMENTS:
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in ("docs", "examples", "scripts", "include/handlers", "include/pipelines"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (ROOT / ".ackline").mkdir(exist_ok=True)
    (tmp_path / ".ackline").mkdir()
    (ROOT / ".ackline" / "docs").mkdir(exist_ok=True)
    (tmp_path / ".ackline" / "docs").symlink_to(ROOT / ".ackline" / "docs")  # made once for each version of the lock
    return tmp_path


def build(tree: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([tree / "scripts" / "docs.sh"], capture_output=True, text=True, check=False)


def test_each_document_is_a_page_whose_parts_come_from_the_site_alone(tree: Path) -> None:
    built = build(tree)
    assert built.returncode == 0, built.stderr
    site = tree / ".ackline" / "site"
    assert {path.stem for path in tree.glob("docs/*.md")} <= {path.stem for path in site.glob("*.html")}
    page = (site / "index.html").read_text()
    assert 'href="settings.html"' in page
    assert "/blob/main/include/handlers/orders.py" in page
    sources = re.findall(r"""<(?:script|img)[^>]* src="([^"]+)\"""", page)
    styles = re.findall(r"""<link rel="(?:stylesheet|preconnect)" href="([^"]+)\"""", page)
    assert sources
    assert styles
    assert [address for address in sources + styles if ":" in address] == []


def test_links_that_lead_nowhere_fail_the_build_by_name(tree: Path) -> None:
    links = ("nofile.md", "semantics.md#no-such-part", "../README.md#none-there-either")
    with (tree / "docs" / "runbook.md").open("a") as file:
        file.write("\n" + "".join(f"See [there]({link}). " for link in links) + "\n")
    built = build(tree)
    assert built.returncode == 1
    for link in links:
        named = [line for line in built.stderr.splitlines() if link.removeprefix("../README.md") in line]
        assert any("'runbook.md' contains a link" in line for line in named), link
