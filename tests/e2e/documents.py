"""The code blocks of a document of the project, to be executed word for word."""

import re
from pathlib import Path
from typing import NamedTuple

from tests.e2e.commands import ROOT

_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A code block: its language, its text, and the path that the sentence before it names in backquotes."""

    language: str
    text: str
    path: str | None


def section(document: str, heading: str) -> str:
    """Returns the text below a heading, up to the next heading of the same level or a higher one."""
    text = "\n" + (ROOT / document).read_text(encoding="utf-8")
    level = len(heading.split(" ", 1)[0])
    start = text.index(f"\n{heading}\n") + len(heading) + 2
    # A comment in a code block begins like a heading.
    code = [match.span() for match in _BLOCK.finditer(text)]
    for end in re.finditer(rf"^#{{1,{level}}} ", text, re.MULTILINE):
        if end.start() >= start and not any(first <= end.start() < last for first, last in code):
            return text[start : end.start()]
    return text[start:]


def blocks(text: str) -> list[Block]:
    found = []
    for match in _BLOCK.finditer(text):
        paths = re.findall(r"`([\w./-]+\.\w+)`", text[: match.start()].rsplit("```", 1)[-1])
        found.append(Block(match[2], match[3], paths[-1] if paths else None))
    return found


def comments_removed(commands: str) -> list[str]:
    """Returns the commands of a block without comments and blank lines."""
    lines = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in commands.splitlines()]
    return [line for line in lines if line]


def write(folder: Path, block: Block) -> None:
    assert block.path is not None
    path = folder / block.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")
