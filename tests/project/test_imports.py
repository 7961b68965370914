"""Which part of the package may import which other part: the pure modules stay pure, and adapters meet in `steps/`."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "include" / "ackline"
CORE = "core"
"""The modules at the top level of the package, which are pure."""

MAY_IMPORT: dict[str, dict[str, str]] = {
    CORE: {},
    "kafka": {CORE: ""},
    "audit": {CORE: ""},
    "spark": {
        CORE: "",
        "kafka": "Spark's tasks read retries with the exact reader",
        "audit.conditional_put": "a task creates its marker exclusively, in an object store too",
        "audit.data_files": "a task writes its outcomes as the ledger writes its rows",
        "audit.object_store": "a task reaches the object store with the options of its driver",
        "audit.storage": "the folder of the table that a task writes to",
    },
    "steps": {CORE: "", "kafka": "", "audit": "", "spark": ""},
    "airflow": {
        CORE: "",
        "steps": "",
        "audit.maintenance": "the maintenance DAG calls it, without a step",
        "audit.object_store": "Airflow's connections hold the login of the object store",
        "kafka.java": "Spark's Kafka client is configured when its job is submitted",
        "spark.driver_address": "the hook announces the driver as the command does",
        "spark.jars": "spark-submit needs the paths of the JARs",
        "spark.session": "the driver opens the session and gives it to the steps",
    },
    "ui": {CORE: "", "airflow": "", "audit": "the page reads the tables, and calls no step"},
    "cli": {
        CORE: "",
        "steps": "",
        "local": "",
        "audit": "queries read the tables, and call no step",
        "kafka.config": "`ackline doctor` names the brokers",
        "kafka.registry": "`ackline doctor` checks the schema registry",
        "spark.jars": "`ackline doctor` checks the JARs",
        "spark.session": "the command opens the session and gives it to the steps",
        "spark.sql": "`ackline sql --engine spark` queries the tables, and calls no step",
    },
    "local": {CORE: "", "audit.store": "the demo reads the ledger", "spark.jars": "Spark's JARs include the broker"},
    "verify": {},
    "testing": {CORE: "", "kafka": "", "audit": "", "spark": "", "steps": "", "local": ""},
}
"""For each part of the package: the parts or single modules that it may import, with the reason if it is no matter of
course. A part is a folder; imports inside a part are free."""

LIBRARIES: dict[str, set[str]] = {
    "airflow": {"airflow", "ui"},
    "confluent_kafka": {"kafka", "spark", "local", "verify", "testing"},
    "deltalake": {"audit", "verify", "steps", "demo_outputs"},
    "duckdb": {"audit"},
    "obstore": {"audit"},
    "psutil": {"local", "process_identity"},
    "pyspark": {"spark"},
    "typer": {"cli"},
}
"""The parts (of the core: the modules) that may import a library. `steps` builds the log entries of outcome files, and
the demo reads output tables as a user does."""


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


def part_of(module: str) -> str:
    """Returns the part of the package that a module `ackline.…` belongs to."""
    first = module.split(".")[1] if "." in module else ""
    return first if (PACKAGE / first).is_dir() and first else CORE


@cache
def imports_of(path: Path) -> list[Import]:
    """Returns all imports of a file but those for type checkers."""
    return [
        Import(path, node.lineno, name, at_import)
        for node, at_import in _import_statements(ast.parse(path.read_text()), at_import=True)
        for name in _imported_modules(node)
    ]


def _import_statements(node: ast.AST, *, at_import: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, at_import
    elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _import_statements(child, at_import=at_import and not in_function)


def _imported_modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, f"line {node.lineno}: a relative import"
    # `from ackline.steps import plan` imports ackline.steps.plan, and `from ackline.errors import X` ackline.errors.
    names = [f"{node.module}.{alias.name}" for alias in node.names]
    return sorted({name if name in modules() else str(node.module) for name in names})


def allowed(part: str, module: str) -> bool:
    """Returns whether a part may import a module `ackline.…`."""
    target = part_of(module)
    inner = module.removeprefix("ackline.")
    return part == target or target in MAY_IMPORT[part] or inner in MAY_IMPORT[part]


def test_each_part_imports_only_the_parts_below_it() -> None:
    wrong = [
        f"{found.where}: {part_of(module)} must not import {found.module}"
        for module, path in modules().items()
        for found in imports_of(path)
        if found.module.split(".")[0] == "ackline" and not allowed(part_of(module), found.module)
    ]
    assert not wrong, "\n".join([*wrong, "MAY_IMPORT in tests/project/test_imports.py lists what each part may import"])


def test_each_library_is_imported_by_its_adapter_alone() -> None:
    wrong = [
        f"{found.where}: {part_of(module)} must not import {found.module}"
        for module, path in modules().items()
        for found in imports_of(path)
        if found.module.split(".")[0] in LIBRARIES
        and not {part_of(module), module.split(".")[-1]} & LIBRARIES[found.module.split(".")[0]]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_tables_name_parts_that_exist() -> None:
    """Also, the table itself has no circle, and no entry that no import needs."""
    parts = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} | {CORE}
    assert MAY_IMPORT.keys() == parts
    TopologicalSorter({part: {name.split(".")[0] for name in names} for part, names in MAY_IMPORT.items()}).prepare()
    imported = {(part_of(m), found.module) for m, path in modules().items() for found in imports_of(path)}
    for part, names in MAY_IMPORT.items():
        used = {name for of_part, m in imported if of_part == part for name in (part_of(m), m.removeprefix("ackline."))}
        assert names.keys() <= used, f"{part} does not import {sorted(names.keys() - used)}"


def test_only_tests_import_the_doubles() -> None:
    files = [path for folder in ("include", "dags", "plugins", "spark_jobs") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > len(modules())
    wrong = [
        f"{found.where}: only tests may import {found.module}"
        for path in sorted(files)
        if not path.is_relative_to(PACKAGE / "testing")
        for found in imports_of(path)
        if found.module.startswith("ackline.testing")
    ]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        module: {found.module for found in imports_of(path) if found.at_import and found.module in modules()}
        for module, path in modules().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]
        pytest.fail(" imports ".join(reversed(circle)))


def test_finding_a_connection_loads_neither_psutil_nor_airflow_nor_pyspark() -> None:
    """Most commands find a connection first, and must not wait for modules that they do not use."""
    code = "import sys, ackline.cli.connection; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"airflow", "psutil", "pyspark"} & set(done.stdout.split())
