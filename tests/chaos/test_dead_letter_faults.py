"""Dead letters that the broker does not take (fault 28): they stay pending, hold the floor, and are sent again.

A record that is too large for the topic goes without its value (tests/e2e/test_log.py); here not even that is taken.
That a letter is sent again with the same key and coordinates after a kill (fault 29) is in tests/chaos/test_kills.py.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from ackline.cli.json_output import run_json
from ackline.kafka.dead_letters import DeadLetters, Delivery, Letter
from ackline.ledger import PendingKind
from ackline.steps import run
from ackline.steps.parts import Parts
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, all_of

GIVE_UP = 1.5
"""Seconds, in place of half a minute, after which a letter is given up for this run."""


@contextmanager
def suspended(one: Lab) -> Iterator[None]:
    """The broker neither answers nor goes away while a letter is sent."""

    class Unanswered(DeadLetters):
        def send(self, letters: Iterable[Letter]) -> Iterator[Delivery]:
            read = list(letters)
            os.kill(one.broker.pid, signal.SIGSTOP)
            try:
                sent = list(super().send(read))
            finally:
                os.kill(one.broker.pid, signal.SIGCONT)
            yield from sent

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parts, "dead_letter_sender", lambda parts, topic: Unanswered(parts.kafka, topic, timeout=GIVE_UP))
        yield


@contextmanager
def narrow(one: Lab) -> Iterator[None]:
    """The topic takes nothing as large as a letter's headers."""
    size(one, "100")
    yield
    size(one, "1000000")


def size(one: Lab, largest: str) -> None:
    """Set the size of the largest record that the dead-letter topic takes."""
    entry = ConfigEntry("max.message.bytes", largest, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, one.dead, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": one.broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


@pytest.mark.parametrize("refusing", [suspended, narrow], ids=["times out", "is too large, even without its value"])
def test_fault_28_a_letter_that_is_not_confirmed_stays_pending_and_is_sent_again(
    lab: MakeLab, refusing: Callable[[Lab], AbstractContextManager[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """I6. Neither is the record dead, nor handled again; what was acked around it stands, and new records go on."""
    one = lab(retry={"max_retries": 0})
    one.records(4, {1: {"fail": -1}})
    with refusing(one), one.parts() as parts:
        [partition] = run_json(run.run(parts, one.spark), parts.store)["partitions"]
    assert f"1 dead letters to {one.dead} stay pending: " in caplog.text
    assert (partition["pending"], partition["floor"]) == ({"retry": 0, "dead_letter": 1, "in_flight": 0}, 1)
    assert one.rows() == sorted([*all_of("acked", [0, 2, 3]), Row(1, 1, "failed")])
    assert one.committed() == 1
    one.judge()
    one.records(1)
    with refusing(one):
        one.run()
    assert one.handled() == [(offset, 1) for offset in range(5)]
    assert one.settled().state.pending_by_kind()[PendingKind.DEAD_LETTER] == 1
    assert one.run().calls == 0
    assert Row(1, 0, "dead") in one.rows()
    assert {(letter.said()["offset"], letter.value) for letter in one.letters()} == {("1", b'{"fail": -1}')}
    assert one.committed() == 5
    one.judge(settled=True)
