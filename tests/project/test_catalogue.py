"""docs/guarantees.md explains each number that the project cites, and the documents and paths it names are there."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
CATALOGUE = ROOT / "docs/guarantees.md"
FOLDERS = ("include", "tests", "dags", "plugins", "spark_jobs", "docs")
SUFFIXES = (".py", ".md", ".yaml")
OF_USERS = ("include/handlers/", "include/pipelines/", "handlers/")
"""Where a user's own files are: the documentation names examples there that the repository does not have."""

ENTRY = re.compile(r'^- <a id="(?P<anchor>[^"]*)"></a>\*\*(?P<title>[^*]+)\*\*', re.MULTILINE)
TEST = re.compile(r"`(?P<path>tests/[\w/]+\.py)::(?P<name>\w+(?:::\w+)?)")

CITED = re.compile(r"\b(?:[IS]\d+|M[123])\b")
FAULTS = re.compile(r"\b[Ff]aults?\s+\d+(?:\s*(?:,?\s*\b(?:and|or)\b|[,–-])\s*\d+)*")
TEST_NAME = re.compile(r"\btest_\w+")
CITED_BY_NAME = re.compile(r"(?<=_)(?:(?P<letter>[is]\d+|m[123])|fault_(?P<fault>\d+))(?![^\W_])")
NOQA = re.compile(r"# noqa[^\n]*")
"""Such a comment names rules of ruff, which look like citations."""

MENTION = re.compile(
    r"""
    (?<![\w./:{}*<>'-]) (?<!(?<!"")")  # no part of a longer path or an address; no string literal but a docstring
    (?<!\]\()  # no target of a link
    (?:(?:[\w.-]+/)*[\w-]+\.md | (?:\w+/)+\w+\.py)\b
    (?!::)  # no id of a test
    """,
    re.VERBOSE,
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(rf"{BLOCK.pattern}|`[^`\n]*`", re.MULTILINE | re.DOTALL)
ANCHOR = re.compile(r'<a id="([^"]*)">|^#+ (.*)$', re.MULTILINE)


class Entry(NamedTuple):
    """An entry of the catalogue: its title, its anchor, where it is, and what follows up to the next entry."""

    title: str
    anchor: str
    place: str
    body: str


class Citation(NamedTuple):
    """A number, as the title of its entry has it, and the position in the text at which it is cited."""

    number: str
    position: int


@cache
def texts() -> dict[Path, str]:
    """The text of each file of the project that may cite a number or a document; this file, with its examples, is not
    among them."""
    files = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    return {path: path.read_text() for path in sorted(files) if path.suffix in SUFFIXES and path != Path(__file__)}


def where(path: Path, text: str, position: int) -> str:
    """`file:line` of a position in the text of a file."""
    return f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, position) + 1}"


def citations(text: str) -> Iterator[Citation]:
    """Each number that a text cites, in its prose or in the names of its tests; of a range, its two ends."""
    text = NOQA.sub(lambda found: " " * len(found[0]), text)
    for found in CITED.finditer(text):
        yield Citation(found[0], found.start())
    for found in FAULTS.finditer(text):
        for number in re.findall(r"\d+", found[0]):
            yield Citation(f"Fault {number}", found.start())
    for name in TEST_NAME.finditer(text):
        for found in CITED_BY_NAME.finditer(name[0]):
            number = found["letter"].upper() if found["letter"] else f"Fault {found['fault']}"
            yield Citation(number, name.start())


@cache
def entries() -> list[Entry]:
    text = CATALOGUE.read_text()
    starts = [*ENTRY.finditer(text)]
    ends = [*(entry.start() for entry in starts[1:]), len(text)]
    return [
        Entry(entry["title"], entry["anchor"], where(CATALOGUE, text, entry.start()), text[entry.end() : end])
        for entry, end in zip(starts, ends, strict=True)
    ]


@cache
def functions(path: Path) -> frozenset[str]:
    """The functions of a module and the methods of its classes, these as `Class::method`."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, kinds):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{method.name}" for method in node.body if isinstance(method, kinds)}
    return frozenset(names)


@cache
def anchors(path: Path) -> frozenset[str]:
    """What a link into a document can name: its `<a id>`s, and its headings as GitHub spells them."""
    found = set()
    for given, heading in ANCHOR.findall(BLOCK.sub("", path.read_text())):
        found.add(given or re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return frozenset(found)


def test_each_entry_of_the_catalogue_is_there_once_and_has_the_anchor_of_its_number() -> None:
    problems, titles = [], set()
    for entry in entries():
        anchor = entry.title.lower().replace(" ", "-")
        if entry.anchor != anchor:
            problems.append(f'{entry.place}: {entry.title} has the anchor {entry.anchor}; write id="{anchor}"')
        if entry.title in titles:
            problems.append(f"{entry.place}: {entry.title} is there twice; give this one a number of its own")
        titles.add(entry.title)
    assert not problems, "\n".join(problems)
    assert titles >= {"I1", "S1", "Fault 1", "M1"}, f"{CATALOGUE}: entries are lines of the form {ENTRY.pattern}"


def test_each_number_that_is_cited_has_an_entry_in_the_catalogue() -> None:
    titles = {entry.title for entry in entries()}
    problems = [
        f"{where(path, text, cited.position)}: {cited.number} is cited, and docs/guarantees.md has no such entry; "
        f"add it there with its test, or cite the number that is meant"
        for path, text in texts().items()
        if path != CATALOGUE
        for cited in citations(text)
        if cited.number not in titles
    ]
    assert not problems, "\n".join(problems)


def test_each_entry_names_a_test() -> None:
    problems = [
        f"{entry.place}: {entry.title} names no test; add a line `tests/….py::test_…` below it, or write that test"
        for entry in entries()
        if not TEST.search(entry.body)
    ]
    assert not problems, "\n".join(problems)


def test_each_test_that_is_named_exists() -> None:
    problems = []
    for path, text in texts().items():
        for named in TEST.finditer(text):
            module, place = ROOT / named["path"], where(path, text, named.start())
            if not module.is_file():
                problems.append(f"{place}: {named['path']} does not exist; name the file that has {named['name']} now")
            elif named["name"] not in functions(module):
                problems.append(f"{place}: {named['path']} has no {named['name']}; name the test that holds this now")
    assert not problems, "\n".join(problems)


def test_each_document_and_module_that_is_mentioned_exists() -> None:
    """A path in prose begins at the root, in include/, in the package, or in the folder of the file that names it."""
    problems = []
    for path, text in texts().items():
        bases = (ROOT, ROOT / "include", ROOT / "include/ackline", path.parent)
        for mention in MENTION.finditer(text):
            named = mention[0]
            if not named.startswith(OF_USERS) and not any((base / named).is_file() for base in bases):
                place = where(path, text, mention.start())
                problems.append(f"{place}: {named} does not exist; name a file of this repository, or explain it here")
    assert not problems, "\n".join(problems)


def test_each_link_of_the_documents_leads_somewhere() -> None:
    problems = []
    for path, text in texts().items():
        if path.suffix != ".md":
            continue
        prose = CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
        for link in LINK.finditer(prose):
            target, _, anchor = link["target"].partition("#")
            to = path.parent / target if target else path
            place = where(path, prose, link.start())
            if re.match(r"\w+:", link["target"]):
                continue
            if not to.exists():
                problems.append(f"{place}: the link {link['target']} leads to no file; mend its path")
            elif anchor and to.suffix == ".md" and anchor not in anchors(to):
                problems.append(f"{place}: {to.relative_to(ROOT)} has no heading or anchor #{anchor}; mend the link")
    assert not problems, "\n".join(problems)


def test_no_cell_of_a_table_is_longer_than_200_characters() -> None:
    """Links count by their text. A longer cell makes a narrow, tall column: put the rest below the table."""
    problems = []
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for number, line in enumerate(
            BLOCK.sub(lambda block: "\n" * block[0].count("\n"), path.read_text()).split("\n"), 1
        ):
            cells = re.split(r"(?<!\\)\|", line.strip("|")) if line.startswith("|") else []
            longest = max((len(re.sub(r"\]\([^)]*\)", "]", cell.strip())) for cell in cells), default=0)
            if longest > 200:
                problems.append(f"{path.relative_to(ROOT)}:{number}: a cell of {longest} characters")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("the floor (S1–S8, I4)", ["S1", "S8", "I4"]),
        ("Faults 1, 3 and 29; I9, and fault 31: files", ["I9", "Fault 1", "Fault 3", "Fault 29", "Fault 31"]),
        ("Fault 23, and 1, 3 at every line. Faults 17-21. faults\n    7 and 9.", [
            "Fault 23", "Fault 1", "Fault 3", "Fault 17", "Fault 21", "Fault 7", "Fault 9",
        ]),
        ('{"M1": first, "M3": third}', ["M1", "M3"]),
        ("def test_s40_s41_each_is_found(); def test_it_holds_i14()", ["S40", "S41", "I14"]),
        ("::test_fault_27_the_clock, ::test_m2_is_found", ["Fault 27", "M2"]),
        ("x = 1  # noqa: S102", []),
        ("I18N, IPv4, by default 10, MS1, M25, test_the_s_of_4_s, test_m25_is_no_mutant, S_1", []),
    ],
)  # fmt: skip
def test_only_citations_are_taken_for_citations(text: str, numbers: list[str]) -> None:
    assert [cited.number for cited in citations(text)] == numbers


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ('"""rules.md, "A handler" (`plans/turns.py`)', ["rules.md", "plans/turns.py"]),
        ("tests/unit/test_a.py has it, docs/a.md too", ["tests/unit/test_a.py", "docs/a.md"]),
        ('(folder / "notes.md"), "handlers/a.py", f"{name}.md", *.md, a.py, https://host/docs/a.md', []),
    ],
)
def test_only_paths_in_prose_are_taken_for_paths(text: str, paths: list[str]) -> None:
    assert [mention[0] for mention in MENTION.finditer(text)] == paths
