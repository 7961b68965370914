"""Handlers are imported by name. One that would ack records unhandled is refused before anything is read."""

import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ackline import Dead, Record, Skip
from ackline.errors import ConfigError
from ackline.handler import Tier, arrow_handler, column_handler, load_handler, tier_of

Write = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> str:
        name = f"handler_{tmp_path.name}_{len(list(tmp_path.glob('*.py')))}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        monkeypatch.setitem(sys.modules, name, None)  # so that the module is forgotten after the test
        monkeypatch.delitem(sys.modules, name)
        return name

    return write


@pytest.mark.parametrize(
    "definition",
    [
        "def handle(record): ...", "def handle(record, dry_run=False): ...", "def handle(*records): ...",
        "handle = lambda record: None", "import functools\ndef f(a, record): ...\nhandle = functools.partial(f, 1)",
        "class Handle:\n    def __call__(self, record): ...\nhandle = Handle()", "handle = print",
    ],
)  # fmt: skip
def test_a_callable_of_one_argument_is_a_handler(module: Write, definition: str) -> None:
    name = module(definition)
    assert load_handler(f"{name}:handle") is getattr(sys.modules[name], "handle")  # noqa: B009 - a module has no such type


def test_a_handler_may_be_a_method_of_a_class(module: Write) -> None:
    name = module("class Shop:\n    @staticmethod\n    def handle(record): return 5")
    assert load_handler(f"{name}:Shop.handle")(object()) == 5


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("other = 1", "does not import: AttributeError"),
        ("handle = 'text'", "is not a function"),
        ("handle = None", "is not a function"),
        ("def handle(): ...", "does not take exactly one argument"),
        ("def handle(a, b): ...", "does not take exactly one argument"),
        ("def handle(*, record): ...", "does not take exactly one argument"),
        ("def handle(record):\n    yield 1", "is a generator, and no `steps`"),
        ("async def handle(record):\n    yield 1", "is a generator, and no `steps`"),
        ("class handle:\n    async def __call__(self, record):\n        yield 1", "is a generator, and no `steps`"),
        (
            "class Handle:\n    def __call__(self, record):\n        yield 1\nhandle = Handle()",
            "is a generator, and no `steps`",
        ),
        ("class handle:\n    def __init__(self, record): ...", "is a class"),
        (
            "class handle:\n    def __init__(self, url): ...\n    def __call__(self, record): ...",
            "does not take exactly one argument: missing a required argument: 'url'",
        ),
        ("class handle:\n    def __call__(self): ...", "does not take exactly one argument"),
        ("import not_there_at_all", "does not import: ModuleNotFoundError"),
        ("raise RuntimeError('no licence')", "does not import: RuntimeError: no licence"),
        ("def handle(record)", "does not import: SyntaxError"),
        ("import sys\nsys.exit(0)", "does not import: SystemExit"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_a_handler_is_refused_with_its_name_and_the_reason(
    module: Write, definition: str, reason: str
) -> None:
    path = f"{module(definition)}:handle"
    with pytest.raises(ConfigError, match=reason) as caught:
        load_handler(path)
    assert str(caught.value).startswith(f"handler {path} ")
    assert (caught.value.key, caught.value.exit_status) == ("handler", 2)


@pytest.mark.parametrize("path", ["", ":", "nowhere", "nowhere:", ":handle", "no.where:handle", ".relative:handle"])
def test_a_path_that_does_not_import_is_a_configuration_error(path: str) -> None:
    with pytest.raises(ConfigError, match="does not import"):
        load_handler(path)


@pytest.mark.parametrize(
    ("definition", "line"),
    [
        ("x = 1\nimport reqeusts\n", "2: import reqeusts"),
        ("import json\n\nsettings = json.loads('{')\n", "3: settings = json.loads('{')"),
        ("def f():\n    raise OSError('no disk')\nf()\n", "2: raise OSError('no disk')"),
        ("def handle(record)\n    pass\n", "1: def handle(record)"),
        ("token = open('token=/secret/of/mine')\n", "1: token = ***"),
    ],
)
def test_what_fails_while_it_is_imported_is_named_with_the_users_line(
    module: Write, definition: str, line: str
) -> None:
    """Not with the line of a library that it calls. A line that looks as if it had a secret hides it."""
    name = module(definition)
    with pytest.raises(ConfigError) as caught:
        load_handler(f"{name}:handle")
    assert f"/{name}.py:{line}" in str(caught.value)
    assert "/secret/of/mine" not in str(caught.value).partition(".py:")[2]


def test_a_misspelt_function_or_module_gets_the_nearest_name(module: Write) -> None:
    name = module("def handle(record): ...\ndef prices(record): ...\nhandles = 1\n")
    for path, near in (
        (f"{name}:handel", "; did you mean handle?"),
        (f"{name}:price", "; did you mean prices?"),
        (f"{name}:zebra", "has no attribute 'zebra'"),
        (f"{name}x:handle", f"; did you mean {name}?"),
        ("handler.shop:split", "No module named 'handler'; did you mean handlers?"),
        ("handlers.shopp:split", "No module named 'handlers.shopp'; did you mean shop?"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_handler(path)
        assert str(caught.value).endswith(near), caught.value


def test_the_tier_is_declared_by_a_decorator() -> None:
    @arrow_handler
    def batch(batch: object) -> None: ...

    @column_handler
    def column(frame: object) -> None: ...

    def record(record: Record) -> None: ...

    tiers = [tier_of(handler) for handler in (batch, column, record, print)]
    assert (tiers, batch.__name__) == ([Tier.ARROW, Tier.COLUMN, Tier.RECORD, Tier.RECORD], "batch")


def test_a_record_can_not_be_changed_by_its_handler() -> None:
    record = Record("orders", 0, 5, datetime(2026, 3, 1, tzinfo=UTC), b"k", b"v", (("h", None), ("h", b"1")), 2)
    with pytest.raises(AttributeError):
        record.offset = 6  # type: ignore[misc]
    assert not hasattr(record, "__dict__")


def test_skip_and_dead_are_unrelated_exceptions() -> None:
    assert not issubclass(Skip, Dead)
    assert not issubclass(Dead, Skip)
    assert str(Skip("seen before")) == "seen before"
