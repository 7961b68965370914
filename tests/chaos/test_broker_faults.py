"""The broker does not accept a dead letter (fault 28), or is killed and started again within a step (fault 14).

A letter that is too large for the topic is sent without its value (tests/e2e/test_log.py); here that is refused too.
tests/chaos/test_kills.py shows that a letter is sent again with the same key and coordinates after a kill (fault 29).
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]

from ackline.actions.objects import run_object
from ackline.errors import AcklineError
from ackline.kafka.dead_letters import DeadLetters, Delivery, Letter
from ackline.kafka.group import Group
from ackline.lane.adapters import Adapters
from ackline.ledger.fold import PendingKind
from ackline.local.broker import READY_SECONDS, Broker
from ackline.local.processes import wait_until
from ackline.spark import job
from ackline.steps import run
from tests.chaos import handlers
from tests.chaos.victims import beside_next_call
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, Spark, all_of
from tests.support.journal import REASON

GIVE_UP = 1.5
"""Seconds after which a run gives a letter up; by default half a minute."""


@contextmanager
def suspended(lane: Lab) -> Iterator[None]:
    """Suspends the broker while a letter is sent: it does not answer, and its connections stay open."""

    class Unanswered(DeadLetters):
        def send(self, letters: Iterable[Letter]) -> Iterator[Delivery]:
            prepared = list(letters)
            os.kill(lane.broker.pid, signal.SIGSTOP)
            try:
                deliveries = list(super().send(prepared))
            finally:
                os.kill(lane.broker.pid, signal.SIGCONT)
            yield from deliveries

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Adapters, "dead_letter_sender", lambda adapters, topic: Unanswered(adapters.kafka, topic, timeout=GIVE_UP)
        )
        yield


@contextmanager
def narrow(lane: Lab) -> Iterator[None]:
    """Limits the record size of the dead-letter topic to less than the headers of a letter."""
    limit_record_size(lane, "100")
    yield
    limit_record_size(lane, "1000000")


def limit_record_size(lane: Lab, largest: str) -> None:
    entry = ConfigEntry("max.message.bytes", largest, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, lane.dead_letter_topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": lane.broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


@pytest.mark.parametrize("refusing", [suspended, narrow], ids=["times out", "is too large, even without its value"])
def test_fault_28_a_letter_that_is_not_confirmed_stays_pending_and_is_sent_again(
    lab: MakeLab, refusing: Callable[[Lab], AbstractContextManager[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """I6: the record is not dead and is not handled again; the records around it stay acked, and new ones are read."""
    lane = lab(retry={"max_retries": 0})
    failed_at = lane.now.isoformat(timespec="milliseconds")
    lane.produce_records(4, {1: {"fail": -1}})
    with refusing(lane), lane.adapters() as adapters:
        [partition] = run_object(run.run(adapters, lane.spark), adapters.store).dump()["partitions"]
    assert f"1 dead letters to {lane.dead_letter_topic} stay pending: " in caplog.text
    assert (partition["pending"], partition["floor"]) == (
        {"retry": 0, "dead_letter": 1, "in_flight": 0, "held_back": 0},
        1,
    )
    assert (lane.rows(), lane.committed()) == (sorted([*all_of("acked", [0, 2, 3]), Row(1, 1, "failed")]), 1)
    lane.judge()
    lane.produce_records(1)
    lane.advance_clock(60)
    with refusing(lane):
        lane.run()
    assert lane.new_calls() == [(offset, 1) for offset in range(5)]
    assert (lane.settled().state.pending_by_kind()[PendingKind.DEAD_LETTER], lane.run().calls) == (1, 0)
    assert Row(1, 0, "dead") in lane.rows()
    letters = [(letter.ackline_headers, letter.value) for letter in lane.letters()]
    assert {(named["offset"], value) for named, value in letters} == {("1", b'{"fail": -1}')}
    # They come from the row of the attempt, two turns ago.
    assert {(named["error_message"], named["failed_at"]) for named, _ in letters} == {
        (f"attempt 1 fails, {REASON}", failed_at)
    }
    assert lane.committed() == 5
    lane.judge(settled=True)


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
    fragile: Broker, tmp_path: Path, in_process: Spark, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    lane = Lab(fragile, tmp_path, in_process, retry={"max_retries": 0})
    lane.produce_records(200, {7: {"fail": -1}, 50: {"skip": True}})
    restart = threading.Thread(target=fragile.start)

    def bounce() -> None:
        fragile.kill()
        restart.start()

    beside_next_call(monkeypatch, *STRUCK_AT[operation], before=bounce)
    _run_until_done(lane, restart)
    assert {row["turn"] for row in lane.table("plans") if row["end_offset"] > row["start_offset"]} == {1}
    assert (lane.outcomes(), lane.committed()) == ({"acked": 198, "skipped": 1, "failed": 1, "dead": 1}, 200)
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
    assert (lane.outcomes(), lane.committed()) == ({"acked": MANY}, MANY)
    lane.judge(settled=True)


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
