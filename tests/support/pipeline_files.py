"""Pipeline files for tests: a valid one, changes to it, and texts that are not YAML."""

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
"""Changes that turn the valid file into that of another pipeline."""

NO_HANDLER = ("handler: handlers.orders:handle\n", "")
TWO_TOPICS = ("[orders]", "[orders, payments]")
STREAMS = """\
streams:
  - name: paid
    topics: [payments]
    handler: shop:paid
    decode: {value: json}
  - name: large
    filter: shop:large
    handler: shop:large_order
"""

NOT_YAML = {
    "tab": "\tname: x\n",
    "unclosed quote": 'schedule: "*\n',
    "unclosed list": "x: [1, 2\n",
    "NUL": "x: \0\n",
    "two documents": "---\nname: b\n",
    "code": "x: !!python/object/apply:os.system [id]\n",
    "list as key": "? [a, b]\n: 1\n",
    "mapping as key": "? {a: b}\n: 1\n",
    "not a date": "x: 2026-13-45\n",
    "not a number": "x: !!int abc\n",
    "huge number": "x: " + "9" * 5_000 + "\n",
    "mapping in itself": "x: &a {b: *a}\n",
    "list in itself": "x: &a [*a]\n",
    "laughs": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    "many levels": "x: " + "[" * 2_000 + "]" * 2_000 + "\n",
    "levels that would end libyaml's process": "x: " + "[" * 100_000,
    "levels of dashes": "x:\n" + "- " * 100_000,
}
"""Text at the end of a file that makes it invalid as a whole, by what is wrong."""

Write = Callable[..., Path]
"""Writes a pipeline file: called with pairs of old and new text, the file's `name`, and `more` text for its end."""


def writer(folder: Path) -> Write:
    """Returns a function that writes the valid file, changed, into `folder`."""

    def write(*changes: tuple[str, str], name: str = "orders.yaml", more: str = "") -> Path:
        text = GOOD + more
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")
        return folder / name

    return write
