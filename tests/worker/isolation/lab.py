"""What the tests of handler isolation share: settings for the handlers in `killers`, and what those leave behind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ackline.ledger.outcomes import Outcome
from ackline.pipeline.topology import StepBlock, Topology, topology
from ackline.worker.isolation.handler_process import IsolatedHandler
from ackline.worker.outcomes import Outcomes
from ackline.worker.records import Records
from ackline.worker.settings import ReplaySettings
from tests.worker.batches import records_of, results

KILLERS = "tests.worker.isolation.killers"


def settings_of(
    handler: str = "handle", *, limit: float | None = None, deliver: bool = False, **settings: Any
) -> ReplaySettings:
    """`handler` is a function of `killers`, or named with its module; `settings` are those of `ReplaySettings`."""
    path = handler if ":" in handler else f"{KILLERS}:{handler}"
    return ReplaySettings(path, deliver, Outcome.FAILED, None, isolated=True, record_timeout=limit, **settings)


def batch_of(values: Sequence[bytes | None], topic: str = "orders") -> Records:
    """Records at the offsets 100, 102, 104, …, with headers."""
    return records_of(values, headers=[(("trace", value),) for value in values], topic=topic)


def classes(outcomes: Outcomes, count: int) -> list[str]:
    return [str(error_class or outcome) for outcome, error_class in results(outcomes, count)]


def call(handler: IsolatedHandler, values: Sequence[bytes | None]) -> list[str]:
    """Calls the handler on a batch. Returns the error class of each row, or "acked"."""
    return classes(handler(batch_of(values)), len(values))


def calls(folder: Path) -> list[int]:
    return [int(line.split()[0]) for line in (folder / "calls").read_text().splitlines()]


def pids(folder: Path, name: str = "calls") -> list[int]:
    return list(dict.fromkeys(int(line.split()[-1]) for line in (folder / name).read_text().splitlines()))


HANDLERS = "tests.spark.deadly_tree_handlers"
SPLIT = f"{HANDLERS}:split"


def steps(*blocks: dict[str, Any]) -> Topology:
    named = ({**block, "handler": f"{HANDLERS}:{block['name']}"} for block in blocks)
    return topology([StepBlock.model_validate(block) for block in named])


GROUPED = steps(
    {"name": "first", "input": "source", "group_by": "key"}, {"name": "second", "input": "first", "group_by": "key"}
)


def items(*deeds: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": f"k{number}", "do": deed} for number, deed in enumerate(deeds)]


WORDS = [b"ok", b"segfault", None, b"ok", b"hang", b"ok"]
EXPECTED: list[tuple[int, str, str | None]] = [
    (0, "acked", None), (1, "failed", "WorkerLost"), (2, "skipped", "Tombstone"), (3, "acked", None),
    (4, "failed", "Timeout"), (5, "acked", None),
]  # fmt: skip
