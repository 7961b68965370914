"""The checker shares no code with the product."""

import ast
import subprocess
import sys
from pathlib import Path

from ackline import verify

MODULES = sorted(Path(verify.__file__).parent.rglob("*.py"))


def imported_names(path: Path) -> set[str]:
    """Return the names of all modules that a file imports, wherever the import is."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            # `from ackline import handler` imports ackline.handler: the names count with their module.
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_no_module_imports_ackline_other_than_ackline_verify() -> None:
    assert "check.py" in {path.name for path in MODULES}
    names = {name for path in MODULES for name in imported_names(path)}
    assert "ackline.verify.judge_endings.judge_calls" in names
    assert [n for n in names if n.partition(".")[0] == "ackline" and not n.startswith("ackline.verify.")] == []
    third_party = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"ackline"}
    assert third_party == {"confluent_kafka", "deltalake", "numpy", "pyarrow"}


def test_no_module_imports_by_name() -> None:
    """`importlib` and `__import__` would not be seen above."""
    for path in MODULES:
        assert not {"importlib", "__import__", "exec", "eval"} & {
            node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)
        }, path


def test_the_command_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "ackline.verify", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--dead-letter-topic" in shown.stdout


def test_running_the_checker_loads_nothing_of_the_product_but_the_handler_interface() -> None:
    """`import ackline` itself loads ackline.handler; the checker adds no other module."""
    code = "import sys, ackline; before = set(sys.modules); import ackline.verify.__main__; " + (
        "print(*(m for m in sys.modules if m.startswith('ackline') and m not in before))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert printed
    assert [module for module in printed if not module.startswith("ackline.verify")] == []
