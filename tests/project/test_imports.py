"""Which room of the package may import which: imports run downward, so the pure rooms stay pure."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from ackline.cli.app import COMMANDS, Command, app

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "include" / "ackline"
ROOT_ROOM = "root"
"""The modules at the top level of the package: what a user's code imports, and errors."""

ROOMS: dict[str, set[str]] = {
    ROOT_ROOM: set(),
    "ledger": {ROOT_ROOM},
    "pipeline": {ROOT_ROOM, "ledger"},
    "forms": {ROOT_ROOM, "ledger", "pipeline"},
    "kafka": {ROOT_ROOM, "ledger", "pipeline"},
    "delta": {ROOT_ROOM, "pipeline", "forms"},
    "tables": {ROOT_ROOM, "ledger", "pipeline", "delta"},
    "audit": {ROOT_ROOM, "ledger", "pipeline", "forms", "delta", "tables"},
    "worker": {ROOT_ROOM, "ledger", "pipeline", "kafka", "delta", "tables"},
    "trees": {ROOT_ROOM, "ledger", "pipeline", "kafka", "delta", "worker"},
    "spark": {ROOT_ROOM, "ledger", "pipeline", "forms", "kafka", "delta", "tables", "worker", "trees"},
    "lane": {ROOT_ROOM, "ledger", "pipeline", "forms", "kafka", "tables", "worker", "spark"},
    "outputs": {
        ROOT_ROOM, "ledger", "pipeline", "forms", "kafka", "delta", "tables", "worker", "trees", "lane",
    },
    "in_flight": {ROOT_ROOM, "ledger", "kafka", "lane"},
    "dead_letters": {ROOT_ROOM, "ledger", "kafka", "tables", "lane"},
    "steps": {
        ROOT_ROOM, "ledger", "pipeline", "forms", "kafka", "tables", "worker", "lane", "outputs", "in_flight",
        "dead_letters",
    },
    "actions": {ROOT_ROOM, "ledger", "pipeline", "forms", "delta", "tables", "lane", "outputs", "steps"},
    "answers": {
        ROOT_ROOM, "ledger", "pipeline", "forms", "kafka", "tables", "audit", "worker", "trees", "lane", "outputs",
        "steps", "actions",
    },
    "backfill": {
        ROOT_ROOM, "ledger", "pipeline", "forms", "tables", "lane", "outputs", "in_flight", "dead_letters", "steps",
        "actions", "answers",
    },
    "airflow": {
        ROOT_ROOM, "ledger", "pipeline", "forms", "delta", "tables", "spark", "lane", "outputs", "steps", "actions",
        "answers", "backfill",
    },
    "ui": {ROOT_ROOM, "ledger", "pipeline", "tables", "audit", "lane", "airflow"},
    "local": {ROOT_ROOM, "ledger", "pipeline", "forms", "tables", "spark"},
    "cli": {
        ROOT_ROOM, "ledger", "pipeline", "forms", "kafka", "delta", "tables", "audit", "spark", "lane", "outputs",
        "in_flight", "steps", "actions", "answers", "backfill", "local",
    },
    "verify": set(),
}  # fmt: skip
"""The rooms, lowest first, each with the rooms that it imports: only rooms above it in this list. Imports inside a room
are free. The page (`ui`) reads the tables and calls no step; the checker (`verify`) imports nothing of the product."""

UPWARD = {
    ("ackline.__main__", "ackline.cli"),
    ("ackline.testing", "ackline.answers.tried"),
    ("ackline.testing", "ackline.ledger.offsets"),
    ("ackline.testing", "ackline.ledger.outcomes"),
    ("ackline.testing", "ackline.pipeline.streams"),
    ("ackline.testing", "ackline.pipeline.topology"),
    ("ackline.testing", "ackline.worker.records"),
    ("ackline.testing", "ackline.worker.settings"),
}
"""Imports that run upward: `python -m ackline` is the command, under a name that Python gives it, and `ackline.testing`
is what the tests of users import. Nothing of the package imports either."""

LIBRARIES: dict[str, set[str]] = {
    "airflow": {"airflow", "ui"},
    "confluent_kafka": {"kafka", "worker", "local", "verify"},
    "deltalake": {"delta", "tables", "outputs", "steps", "local", "verify"},
    "duckdb": {"audit", "where"},
    "obstore": {"delta"},
    "psutil": {"local", "lease"},
    "pyspark": {"spark", "worker", "trees"},
    "typer": {"cli"},
}
"""The rooms, or the modules by their last name, that may import a library. `steps` builds the log entries of outcome
files, the demo reads output tables as a user does, and a lease names its process."""


class Import(NamedTuple):
    """An import in a file: the imported module, and whether it happens when the file itself is imported."""

    path: Path
    line: int
    module: str
    at_import: bool

    @property
    def where(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


@cache
def modules() -> dict[str, Path]:
    """Returns the file of each module of the package, by module name."""
    paths = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    return {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in sorted(paths)}


def room_of(module: str) -> str:
    first = module.split(".")[1] if "." in module else ""
    return first if (PACKAGE / first).is_dir() and first else ROOT_ROOM


@cache
def imports_of(path: Path, for_types: bool = False) -> list[Import]:
    """Returns all imports of a file, those for type checkers only with `for_types`."""
    return [
        Import(path, node.lineno, name, at_import)
        for node, at_import in _import_statements(ast.parse(path.read_text()), True, for_types)
        for name in _imported_modules(node)
    ]


def _import_statements(
    node: ast.AST, at_import: bool, for_types: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, at_import
    elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        if not for_types:
            return
        at_import = False
    in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _import_statements(child, at_import and not in_function, for_types)


def _imported_modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, f"line {node.lineno}: a relative import"
    # `from ackline.steps import plan` imports ackline.steps.plan, and `from ackline.errors import X` ackline.errors.
    names = [f"{node.module}.{alias.name}" for alias in node.names]
    return sorted({name if name in modules() else str(node.module) for name in names})


def imports_between_rooms() -> list[tuple[str, Import]]:
    """Returns the imports of the package's modules from other rooms, each with the module that imports."""
    return [
        (module, found)
        for module, path in modules().items()
        for found in imports_of(path)
        if found.module.startswith("ackline.") and room_of(found.module) != room_of(module)
    ]


def test_each_room_imports_only_rooms_below_it() -> None:
    wrong = [
        f"{found.where}: {room_of(module)} must not import {found.module}"
        for module, found in imports_between_rooms()
        if room_of(found.module) not in ROOMS[room_of(module)] and (module, found.module) not in UPWARD
    ]
    assert not wrong, "\n".join([*wrong, "ROOMS in tests/project/test_imports.py lists what each room may import"])
    order = list(ROOMS)
    assert not {
        (room, name) for room, names in ROOMS.items() for name in names if order.index(name) >= order.index(room)
    }


def test_each_library_is_imported_by_its_adapter_alone() -> None:
    wrong = [
        f"{found.where}: {room_of(module)} must not import {found.module}"
        for module, path in modules().items()
        for found in imports_of(path)
        if found.module.split(".")[0] in LIBRARIES
        and not {room_of(module), module.split(".")[-1]} & LIBRARIES[found.module.split(".")[0]]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_table_names_the_rooms_that_exist_and_no_import_that_no_module_needs() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} | {ROOT_ROOM}
    assert ROOMS.keys() == rooms
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module, found in imports_between_rooms():
        used[room_of(module)].add(room_of(found.module))
    for room, names in ROOMS.items():
        assert names <= used[room], f"{room} does not import {sorted(names - used[room])}"


def test_the_package_imports_no_test() -> None:
    files = [path for folder in ("include", "dags", "plugins", "spark_jobs") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > len(modules())
    assert not [found.where for path in files for found in imports_of(path) if found.module.split(".")[0] == "tests"]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports in functions and for type checkers count, too."""
    graph = {
        module: {found.module for found in imports_of(path, for_types=True) if found.module in modules()}
        for module, path in modules().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]
        pytest.fail(" imports ".join(reversed(circle)))


def test_finding_a_connection_loads_neither_psutil_nor_airflow_nor_pyspark() -> None:
    """Most commands find a connection first, and must not wait for modules that they do not use."""
    code = "import sys, ackline.local.connection; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"airflow", "psutil", "pyspark"} & set(done.stdout.split())


EACH = {"ackline", "annotated_doc", "shellingham", "typer", "typing_extensions"}
"""What each command line loads."""
HELP = {*EACH, "attr", "linkify_it", "markdown_it", "mdurl", "pygments", "rich", "uc_micro"}
COMMAND = {
    *HELP, "annotated_types", "arro3", "confluent_kafka", "croniter", "cython_runtime", "dateutil", "deltalake",
    "filelock", "numpy", "packaging", "pandas", "psutil", "pyarrow", "pydantic", "pydantic_core", "pytz",
    "six", "tenacity", "typing_inspection", "yaml",
}  # fmt: skip
"""What a command loads to read tables and Kafka. pyarrow loads pandas by itself, where it is installed."""
COMMAND_LINES = {
    "--version": EACH,
    "-q --version": EACH,
    "--help": HELP,
    "run --help": COMMAND,
}
"""Command lines that do nothing, each with the libraries that it may load."""
LOADED = """
import importlib, os, sys
import ackline.cli
sys.argv = ["ackline", *sys.argv[1:]]
real, sys.stdout, sys.stderr = sys.stdout, open(os.devnull, "w"), open(os.devnull, "w")
try:
    ackline.cli.main()
except SystemExit:
    print(*sys.modules, file=real)
"""


def libraries_loaded_by(program: str, *arguments: str) -> set[str]:
    """Returns the installed libraries among the modules that a program prints."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    return {name for name in loaded - sys.stdlib_module_names if not name.startswith("_")}


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_line_loads_no_library_that_it_does_not_need(line: str) -> None:
    """No time is measured: `ackline --version` is quick because it loads no command."""
    loaded = libraries_loaded_by(LOADED, *line.split())
    assert "typer" in loaded
    assert loaded - COMMAND_LINES[line] == set()


def test_a_command_loads_pyspark_duckdb_and_object_stores_only_when_it_uses_them() -> None:
    modules = sorted({module for module, _ in COMMANDS.values()})
    program = f"import sys, {', '.join(f'ackline.cli.{module}' for module in modules)}; print(*sys.modules)"
    assert libraries_loaded_by(program) - COMMAND == set()


def test_the_help_of_a_command_builds_no_model_of_pydantic() -> None:
    """The first one makes pydantic look through all installed packages for its plugins, and each takes milliseconds."""
    program = "import ackline.cli.status, pydantic.plugin._loader as loader; print(loader._plugins)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def test_the_tasks_plan_and_settle_load_neither_spark_nor_duckdb() -> None:
    """Beside what they need, as a task that ends in a second must not load more: DuckDB is for SQL alone."""
    program = """
import sys
import ackline.airflow.metrics, ackline.airflow.operators, ackline.airflow.results, ackline.steps.plan
import ackline.steps.settle
print(*sys.modules)
"""
    loaded = libraries_loaded_by(program)
    assert {"airflow", "confluent_kafka", "deltalake"} <= loaded
    assert not {"duckdb", "kubernetes", "obstore", "py4j", "pyspark"} & loaded


def test_the_list_of_commands_has_the_first_sentences_of_each_command() -> None:
    for name, command in typer.main.get_group(app).commands.items():
        assert isinstance(command, Command)
        assert command.short_help == inspect.cleandoc(command.loaded().help or "").partition("\n\n")[0], name
    listed = {module: {name for name, (of, _) in COMMANDS.items() if of == module} for module, _ in COMMANDS.values()}
    assert listed == {module: set(import_module(f"ackline.cli.{module}").COMMANDS) for module in listed}
