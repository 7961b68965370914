"""Messages count once all replicas have them: a refused one costs no neighbour, and any other failure is an error."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from ackline.errors import AcklineError, TransientError
from ackline.kafka import clients
from ackline.kafka.clients import LastError
from ackline.kafka.produce import OutputTopics, Row, cause_of, send_answers

TOO_LARGE, TIMED_OUT = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), KafkaError(KafkaError._MSG_TIMED_OUT)
CONFIG = {"bootstrap.servers": "nowhere:1"}


@dataclass(slots=True)
class ScriptedProducer:
    """A client's producer. `answers` gives the error of each batch that is sent, by the values in it; `refuses` lists
    the values that the client itself refuses. The queue holds `room` messages. `silent` batches get no answer."""

    answers: Callable[[list[bytes]], KafkaError | None] = lambda _: None
    refuses: tuple[bytes, ...] = ()
    room: int = 100
    silent: bool = False
    batches: list[list[bytes]] = field(default_factory=list)
    _waiting: list[tuple[bytes, Any]] = field(default_factory=list)

    def produce(self, _topic: str, value: bytes, _key: bytes, *, headers: Any, on_delivery: Any) -> None:
        assert isinstance(headers, list)
        if value in self.refuses:
            raise KafkaException(TOO_LARGE)
        if len(self._waiting) == self.room:
            raise BufferError
        self._waiting.append((value, on_delivery))

    def poll(self, _seconds: float) -> None:
        batch, self._waiting = self._waiting, []
        self.batches.append([value for value, _ in batch])
        for _, on_delivery in batch:
            on_delivery(self.answers(self.batches[-1]), None)

    def flush(self, _seconds: float) -> int:
        if not self.silent and self._waiting:
            self.poll(0)
        return len(self._waiting)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedProducer:
    producer = ScriptedProducer()
    monkeypatch.setattr(clients, "producer", lambda *_, **__: producer)
    return producer


def sent(*values: bytes) -> list[int]:
    return OutputTopics(CONFIG).send([Row("out", b"k", value) for value in values])


@pytest.mark.parametrize("by_client", [True, False])
def test_only_the_row_that_is_refused_for_itself_fails(scripted: ScriptedProducer, by_client: bool) -> None:
    if by_client:
        scripted.refuses = (b"large",)
    else:
        scripted.answers = lambda batch: TOO_LARGE if b"large" in batch else None
    assert sent(b"a", b"large", b"b") == [1]
    assert scripted.batches == ([[b"a", b"b"]] if by_client else [[b"a", b"large", b"b"], [b"a"], [b"large"], [b"b"]])


@pytest.mark.parametrize("alone", [False, True])
def test_a_row_that_fails_for_another_reason_is_an_error(scripted: ScriptedProducer, alone: bool) -> None:
    """At once, or when it is sent alone."""
    in_batch = TOO_LARGE if alone else TIMED_OUT
    scripted.answers = lambda batch: in_batch if len(batch) > 1 else TIMED_OUT
    with pytest.raises(TransientError, match="writing to the output topic out: _MSG_TIMED_OUT"):
        sent(b"a", b"b")


def test_a_full_queue_is_waited_for(scripted: ScriptedProducer) -> None:
    scripted.room = 2
    assert sent(b"a", b"b", b"c") == []
    assert scripted.batches == [[b"a", b"b"], [b"c"]]


def test_an_answer_counts_only_if_all_of_them_are_acknowledged(scripted: ScriptedProducer) -> None:
    send_answers(CONFIG, "acks", [("t1", "ack"), ("t2", "fail")])
    assert scripted.batches == [[b"ack", b"fail"]]
    scripted.answers = lambda _: TOO_LARGE
    with pytest.raises(AcklineError, match="sending an answer to acks: MSG_SIZE_TOO_LARGE"):
        send_answers(CONFIG, "acks", [("t1", "ack")])


def test_no_answer_from_the_broker_is_transient(scripted: ScriptedProducer) -> None:
    scripted.silent = True
    for sends in (lambda: sent(b"a"), lambda: send_answers(CONFIG, "acks", [("t1", "ack")])):
        with pytest.raises(TransientError, match="_MSG_TIMED_OUT"):
            sends()


def test_the_refusal_behind_a_fatal_error_is_waited_for_because_messages_may_fail_before_it_is_told() -> None:
    denied, last, polls = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED), LastError(), list[int]()

    class Telling(ScriptedProducer):
        def poll(self, _seconds: float) -> None:
            polls.append(1)
            if len(polls) == 3:
                last(denied)

    fatal = KafkaError(KafkaError._FATAL)
    producer: Any = Telling()
    assert cause_of(TIMED_OUT, last, producer) is TIMED_OUT
    assert (cause_of(fatal, last, producer), len(polls)) == (denied, 3)
    assert (cause_of(fatal, last, producer), len(polls)) == (denied, 3)
