"""Pipeline files for the tests: a good one, changed here and there, and rubbish."""

from collections.abc import Callable
from pathlib import Path

GOOD = """\
name: orders
kafka:
  bootstrap_servers: 127.0.0.1:9092
  group_id: orders-replay
  topics: [orders]
handler: handlers.orders:handle
dead_letter: {topic: orders.dead}
"""

OTHER = [("name: orders", "name: payments"), ("orders-replay", "payments-replay"), ("[orders]", "[payments]")]
"""Changes that make it the file of another pipeline."""

NOT_YAML = {
    "tab": "\tname: x\n",
    "unclosed quote": 'schedule: "*\n',
    "unclosed list": "x: [1, 2\n",
    "NUL": "x: \0\n",
    "two documents": "---\nname: b\n",
    "code": "x: !!python/object/apply:os.system [id]\n",
    "list as key": "? [a, b]\n: 1\n",
    "block as key": "? {a: b}\n: 1\n",
    "date that is none": "x: 2026-13-45\n",
    "number that is none": "x: !!int abc\n",
    "number without end": "x: " + "9" * 5_000 + "\n",
    "block in itself": "x: &a {b: *a}\n",
    "list in itself": "x: &a [*a]\n",
    "laughs": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    "deep": "x: " + "[" * 2_000 + "]" * 2_000 + "\n",
}
"""What people and accidents append to a file, by name."""

Write = Callable[..., Path]
"""`writer` for a folder: called with changes, `name` of the file, and `more` text at its end."""


def writer(folder: Path) -> Write:
    """Writes the good file with pairs of texts replaced one by the other."""

    def write(*changes: tuple[str, str], name: str = "orders.yaml", more: str = "") -> Path:
        text = GOOD + more
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")
        return folder / name

    return write
