"""The broker is killed and started again in the middle of a step (fault 14).

The same turn goes on, or its step fails whole and is run again.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ackline.errors import AcklineError
from ackline.kafka.dead_letters import DeadLetters
from ackline.kafka.group import Group
from ackline.local.broker import READY_SECONDS, Broker
from ackline.local.processes import wait_until
from ackline.steps import replay
from tests.chaos import handlers
from tests.e2e import wire
from tests.e2e.lab import Lab, Spark

MANY = 24_000
"""Records of a kilobyte: more than two of the batches that Spark gives to a handler."""

WHERE: dict[str, tuple[Any, str]] = {
    "read": (replay, "_run_spark_job"),
    "dead letter": (DeadLetters, "send"),
    "commit": (Group, "commit"),
}


@pytest.mark.parametrize("where", WHERE)
def test_the_broker_is_bounced_and_nothing_is_lost_or_repeated(
    fragile: Broker, tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    one = Lab(fragile, tmp_path, spark, retry={"max_retries": 0})
    one.records(200, {7: {"fail": -1}, 50: {"skip": True}})
    owner, name = WHERE[where]
    with monkeypatch.context() as patch:
        back = _bounced_once(fragile, getattr(owner, name), patch, owner, name)
        _run_until_done(one, back)
    assert {row["turn"] for row in one.table("plans") if row["end_offset"] > row["start_offset"]} == {1}
    assert one.outcomes() == {"acked": 198, "skipped": 1, "failed": 1, "dead": 1}
    assert one.committed() == 200
    one.judge(settled=True)


def test_the_broker_is_bounced_in_the_middle_of_a_range_that_is_read(
    fragile: Broker, tmp_path: Path, spark: Spark
) -> None:
    """The handler is at its first record when the broker dies; of what follows, Spark has not read all ahead."""
    kafka = {"properties": {"fetch.message.max.bytes": 65_536}}
    one = Lab(fragile, tmp_path, spark, handler="tests.chaos.handlers:gated", kafka=kafka)
    payload = b'{"note": "' + b"." * 1000 + b'"}'
    wire.produce(fragile.bootstrap, one.topic, (wire.Write(payload) for _ in range(MANY)))

    def bounce() -> None:
        if wait_until(lambda: bool(one.calls()), READY_SECONDS):
            fragile.kill()
            handlers.gate(one.topic).touch()
            fragile.start()

    back = threading.Thread(target=bounce)
    back.start()
    _run_until_done(one, back)
    assert {row["turn"] for row in one.table("plans") if row["end_offset"] > row["start_offset"]} == {1}
    assert one.outcomes() == {"acked": MANY}
    assert one.committed() == MANY
    one.judge(settled=True)


def _bounced_once(
    broker: Broker, real: Callable[..., Any], patch: pytest.MonkeyPatch, owner: Any, name: str
) -> threading.Thread:
    """Has the broker die as the step gets there, and come back beside it."""
    back = threading.Thread(target=broker.start)

    def struck(*arguments: Any, **named: Any) -> Any:
        patch.setattr(owner, name, real)
        broker.kill()
        back.start()
        return real(*arguments, **named)

    patch.setattr(owner, name, struck)
    return back


def _run_until_done(one: Lab, back: threading.Thread) -> None:
    """Run, and again once the broker is back, as Airflow would."""
    for _ in range(3):
        try:
            one.run()
        except AcklineError:
            back.join(2 * READY_SECONDS)
        else:
            break
    back.join(2 * READY_SECONDS)
    one.run()
