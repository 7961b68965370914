"""Spans of OpenTelemetry: what a step of a turn did, and how long each part of it took.

Airflow configures the tracing of its tasks (`[traces] otel_on`), and the driver of a replay continues the trace of its
task. So the spans of a turn are children of those of Airflow's tasks. The command configures nothing. In a process that
has not loaded OpenTelemetry, a span is nothing but a call: this module imports no part of it.

A span holds the names of pipeline, lane and run, the numbers of the turn, its code, and counts. It never holds a key, a
value or the text of an error.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ackline.errors import AcklineError
from ackline.lane.adapters import Adapters
from ackline.ledger.turns import TurnId

PREFIX = "ackline"
"""The prefix of the names of all spans, and of their attributes."""
Note = Callable[..., None]
"""Adds the number of a turn and counts to a span, as attributes: `note(turn, records=3)`."""


@contextmanager
def span(adapters: Adapters, name: str, turn: TurnId | None = None) -> Iterator[Note]:
    """Runs the block as the span `ackline.NAME`, a child of the current one, and yields what adds attributes to it.

    An error that leaves the block is the state of the span, by its class alone. Whatever OpenTelemetry raises while a
    span is begun is raised: its API promises to raise nothing.
    """
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        yield lambda *_, **__: None
        return
    with api.get_tracer(PREFIX).start_as_current_span(
        f"{PREFIX}.{name}", record_exception=False, set_status_on_exception=False
    ) as current:

        def note(turn: TurnId | None = None, /, **attributes: int | float | bool | str) -> None:
            numbers: Mapping[str, int | float | bool | str] = (
                {} if turn is None else {"epoch": turn.epoch, "turn": turn.n}
            )
            for key, value in {**numbers, **attributes}.items():
                current.set_attribute(f"{PREFIX}.{key}", value)

        for key, value in (
            ("pipeline", adapters.pipeline.name), ("lane", adapters.store.lane), ("run_id", adapters.run_id)
        ):  # fmt: skip
            current.set_attribute(f"{PREFIX}.{key}", value)
        note(turn)
        try:
            yield note
        except BaseException as error:
            kind = error.kind if isinstance(error, AcklineError) else type(error).__name__
            current.set_status(api.Status(api.StatusCode.ERROR, kind))
            raise
