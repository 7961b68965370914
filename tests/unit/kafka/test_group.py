"""How the group handles an answer that has an error: as an error, never as an absence or as a commit."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from ackline.errors import AcklineError, GroupBusy
from ackline.kafka.clients import LastError
from ackline.kafka.group import Group
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition

FINE, BAD = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Client:
    """Consumer and admin client of a group. Answers partition `BAD` with each of `errors`, then without an error."""

    def __init__(self, *errors: int) -> None:
        self.errors = [KafkaError(code) for code in errors]
        self.stored: dict[TopicPartition, Committed] = {}
        self.requests = 0

    def _answer(self, partitions: Any) -> Iterator[SimpleNamespace]:
        self.requests += 1
        error = self.errors.pop(0) if self.errors else None
        for partition in partitions:
            tp = TopicPartition(partition.topic, partition.partition)
            offset, metadata = self.stored.get(tp, Committed(-1001, ""))
            yield SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=offset, metadata=metadata,
                                  error=error if tp == BAD else None)  # fmt: skip

    def committed(self, partitions: Any, timeout: float) -> list[SimpleNamespace]:
        return list(self._answer(partitions))

    def alter_consumer_group_offsets(self, requests: Any, request_timeout: float) -> dict[str, Any]:
        (request,) = requests
        answers = list(self._answer(request.topic_partitions))
        for tp, answer in zip(request.topic_partitions, answers, strict=True):
            if answer.error is None:
                self.stored[TopicPartition(tp.topic, tp.partition)] = Committed(tp.offset, tp.metadata)
        return {request.group_id: SimpleNamespace(result=lambda _: SimpleNamespace(topic_partitions=answers))}

    def describe_consumer_groups(self, names: list[str], request_timeout: float) -> dict[str, Any]:
        return {name: SimpleNamespace(result=lambda _: SimpleNamespace(members=[])) for name in names}

    def poll(self, _: float) -> None:
        """Has no callback to serve."""


class ReadyGroup(Group):
    """A group whose coordinator always answers."""

    def _admin_for_coordinator(self) -> AdminClient:
        return self._admin


def group(client: Any, timeout: float = 30.0) -> Group:
    group = object.__new__(ReadyGroup)
    group.group_id, group._config = "g", {"bootstrap.servers": "b:1"}
    group._timeout, group._request_timeout = timeout, 1
    group._last, group._admin, group._consumer = LastError(), client, client
    return group


@pytest.mark.parametrize("code", [
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError.NOT_COORDINATOR
])  # fmt: skip
def test_a_partition_answered_with_an_error_is_not_one_without_a_commit(code: int) -> None:
    client = Client(*[code] * 9)
    client.stored[FINE] = Committed(3, "ours")
    with pytest.raises(AcklineError):
        group(client, timeout=0.0).committed([FINE, BAD])


def test_a_partition_refused_among_others_that_were_committed_raises() -> None:
    client = Client(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AcklineError) as raised:
        group(client).commit({FINE: Committed(1, ""), BAD: Committed(2, "")})
    assert (raised.value.topic, raised.value.partition) == BAD


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP])
def test_a_commit_refused_for_members_names_them_or_says_that_they_just_left(code: int) -> None:
    with pytest.raises(GroupBusy, match="members that just left"):
        group(Client(code)).commit({BAD: Committed(2, "")})


def test_a_commit_to_a_coordinator_that_moves_is_repeated_until_all_is_committed() -> None:
    client = Client(KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE)
    group(client).commit({BAD: Committed(2, "mine")})
    assert client.stored == {BAD: Committed(2, "mine")}
    assert client.requests == 4
