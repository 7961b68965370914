"""What the client answers about a group, taken at its word: an error in it is no absence, and no commit."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from ackline.commit_rule import Committed
from ackline.errors import AcklineError, GroupBusy
from ackline.kafka.failures import LastError
from ackline.kafka.group import Group
from ackline.offsets import TopicPartition

FINE, BAD = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Client:
    """Consumer and admin of a group whose partition `BAD` is answered with each of `errors`, then as any other."""

    def __init__(self, *errors: int, offset: int = 7) -> None:
        self.errors = [KafkaError(code) for code in errors]
        self.offset = offset
        self.held: dict[TopicPartition, Committed] = {}
        self.members: list[Any] = []
        self.asked = 0

    def _answer(self, asked: Any) -> Iterator[SimpleNamespace]:
        self.asked += 1
        error = self.errors.pop(0) if self.errors else None
        for tp in asked:
            tp = TopicPartition(tp.topic, tp.partition)
            found = self.held.get(tp, Committed(-1001, ""))
            mine = error if tp == BAD else None
            yield SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=found.offset,
                                  metadata=found.metadata, error=mine)  # fmt: skip

    def committed(self, asked: Any, timeout: float) -> list[SimpleNamespace]:
        return list(self._answer(asked))

    def alter_consumer_group_offsets(self, requests: Any, request_timeout: float) -> dict[str, Any]:
        (request,) = requests
        answer = list(self._answer(request.topic_partitions))
        for tp, said in zip(request.topic_partitions, answer, strict=True):
            if said.error is None:
                self.held[TopicPartition(tp.topic, tp.partition)] = Committed(tp.offset, tp.metadata)
        return {request.group_id: SimpleNamespace(result=lambda _: SimpleNamespace(topic_partitions=answer))}

    def describe_consumer_groups(self, names: list[str], request_timeout: float) -> dict[str, Any]:
        return {name: SimpleNamespace(result=lambda _: SimpleNamespace(members=self.members)) for name in names}

    def poll(self, _: float) -> None:
        """Nothing is served."""


class Reached(Group):
    """A group whose coordinator is there to be asked."""

    def _coordinated(self) -> AdminClient:
        return self._admin


def group(client: Any, patience: float = 30.0) -> Group:
    made = object.__new__(Reached)
    made.group_id, made._config, made._patience, made._request = "g", {"bootstrap.servers": "b:1"}, patience, 1.0
    made._last, made._admin, made._consumer = LastError(), client, client
    return made


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNSTABLE_OFFSET_COMMIT])
def test_a_partition_answered_with_an_error_is_not_one_without_a_commit(code: int) -> None:
    client = Client(code)
    client.held[FINE] = Committed(3, "ours")
    with pytest.raises(AcklineError):
        group(client, patience=0.0).committed([FINE, BAD])


def test_a_partition_refused_among_others_that_were_taken_is_told() -> None:
    client = Client(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AcklineError) as raised:
        group(client).commit({FINE: Committed(1, ""), BAD: Committed(2, "")})
    assert (raised.value.topic, raised.value.partition) == BAD


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP])
def test_a_commit_refused_for_members_names_them_or_says_that_they_just_left(code: int) -> None:
    with pytest.raises(GroupBusy, match="who just left"):
        group(Client(code)).commit({BAD: Committed(2, "")})


def test_a_coordinator_that_is_moving_is_asked_again_until_it_has_taken_all() -> None:
    client = Client(KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE)
    group(client).commit({BAD: Committed(2, "mine")})
    assert client.held == {BAD: Committed(2, "mine")}
    assert client.asked == 4


def test_a_coordinator_that_stays_away_is_an_error_and_not_an_absence() -> None:
    client = Client(*[KafkaError.NOT_COORDINATOR] * 9)
    with pytest.raises(AcklineError):
        group(client, patience=0.0).committed([BAD])
