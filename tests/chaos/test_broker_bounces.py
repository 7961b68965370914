"""The broker is killed and started again in the middle of a step (fault 14).

The step goes on, or it fails as a whole and runs again; the turn stays the same.
"""

import threading
from pathlib import Path
from typing import Any

import pytest

from ackline.errors import AcklineError
from ackline.kafka.dead_letters import DeadLetters
from ackline.kafka.group import Group
from ackline.local.broker import READY_SECONDS, Broker
from ackline.local.processes import wait_until
from ackline.spark import job
from tests.chaos import handlers
from tests.e2e import wire
from tests.e2e.lab import Lab, Spark

MANY = 24_000
"""Records of a kilobyte; together they are more than two of the batches that Spark gives to a handler."""

STRUCK_AT: dict[str, tuple[Any, str]] = {
    "read": (job, "run_replay"),
    "dead letter": (DeadLetters, "send"),
    "commit": (Group, "commit"),
}


@pytest.mark.parametrize(
    "operation",
    ["read", pytest.param("dead letter", marks=pytest.mark.deep), pytest.param("commit", marks=pytest.mark.deep)],
)
def test_the_broker_is_bounced_and_nothing_is_lost_or_repeated(
    fragile: Broker, tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    lane = Lab(fragile, tmp_path, spark, retry={"max_retries": 0})
    lane.produce_records(200, {7: {"fail": -1}, 50: {"skip": True}})
    owner, name = STRUCK_AT[operation]
    with monkeypatch.context() as patch:
        restart = _bounce_once(fragile, patch, owner, name)
        _run_until_done(lane, restart)
    assert {row["turn"] for row in lane.table("plans") if row["end_offset"] > row["start_offset"]} == {1}
    assert lane.outcomes() == {"acked": 198, "skipped": 1, "failed": 1, "dead": 1}
    assert lane.committed() == 200
    lane.judge(settled=True)


@pytest.mark.deep
def test_the_broker_is_bounced_in_the_middle_of_a_range_that_is_read(
    fragile: Broker, tmp_path: Path, spark: Spark
) -> None:
    """The broker is killed at the first handler call, when Spark has not read all records yet."""
    kafka = {"properties": {"fetch.message.max.bytes": 65_536}}
    lane = Lab(fragile, tmp_path, spark, handler="tests.chaos.handlers:gated", kafka=kafka)
    payload = b'{"note": "' + b"." * 1000 + b'"}'
    wire.produce(fragile.bootstrap, lane.topic, (wire.Write(payload) for _ in range(MANY)))

    def bounce() -> None:
        if wait_until(lambda: bool(lane.calls()), READY_SECONDS):
            fragile.kill()
            handlers.gate(lane.topic).touch()
            fragile.start()

    restart = threading.Thread(target=bounce)
    restart.start()
    _run_until_done(lane, restart)
    assert {row["turn"] for row in lane.table("plans") if row["end_offset"] > row["start_offset"]} == {1}
    assert lane.outcomes() == {"acked": MANY}
    assert lane.committed() == MANY
    lane.judge(settled=True)


def _bounce_once(broker: Broker, patch: pytest.MonkeyPatch, owner: Any, name: str) -> threading.Thread:
    """Kills the broker at the first call of a function. Returns the thread that starts it again beside the call."""
    restart, real = threading.Thread(target=broker.start), getattr(owner, name)

    def struck(*arguments: Any, **named: Any) -> Any:
        patch.setattr(owner, name, real)
        broker.kill()
        restart.start()
        return real(*arguments, **named)

    patch.setattr(owner, name, struck)
    return restart


def _run_until_done(lane: Lab, restart: threading.Thread) -> None:
    """Runs, and runs again when the broker is up again, as Airflow would."""
    for _ in range(3):
        try:
            lane.run()
        except AcklineError:
            restart.join(2 * READY_SECONDS)
        else:
            break
    restart.join(2 * READY_SECONDS)
    lane.run()
