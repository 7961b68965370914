"""The consumer group: what Kafka holds for it, who is in it, and moving its offsets from outside.

Kafka's OffsetCommit compares nothing and checks no order; what may be committed when is for the settle step
to say. This module promises only that what it says was committed is what the broker holds.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from ackline.commit_rule import Committed
from ackline.errors import AcklineError, FatalError, GroupBusy, TransientError
from ackline.kafka import clients
from ackline.kafka.config import brokers
from ackline.kafka.failures import COORDINATOR, LastError, error_of, failure
from ackline.offsets import TopicPartition

PATIENCE = 30.0
"""Seconds for which a coordinator may be starting or moving before it is an error."""
METADATA_LIMIT = 4095
"""Characters of commit metadata that a broker takes (`offset.metadata.max.bytes` is 4096)."""

_REQUEST = 10.0
_BETWEEN = 0.2
_BUSY = frozenset({
    "UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP", "ILLEGAL_GENERATION", "FENCED_INSTANCE_ID", "FENCED_MEMBER_EPOCH",
    "STALE_MEMBER_EPOCH", "REBALANCE_IN_PROGRESS", "GROUP_SUBSCRIBED_TO_TOPIC",
})  # fmt: skip
_PROBE = "ackline-probe"
"""A topic that need not be there: what is asked about it is who answers."""
_NO_GROUP = frozenset({"GROUP_ID_NOT_FOUND", "_UNKNOWN_GROUP"})

T = TypeVar("T")


class Group:
    """The group `group_id`, seen from outside: nothing here ever joins it. Close it, or use it as a context
    manager."""

    def __init__(self, config: Mapping[str, object], group_id: str, *, patience: float = PATIENCE) -> None:
        self.group_id = group_id
        self._config = config
        self._patience = patience
        self._request = min(_REQUEST, patience)
        self._last = LastError()
        self._admin = clients.admin(config, error_cb=self._last)
        self._consumer = clients.consumer(config, group_id, "read_committed", error_cb=self._last)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._consumer.close()

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """What the group has committed; a partition without a commit is absent.

        Waits for a coordinator that is not ready. `list_consumer_group_offsets` crashes the process then
        (confluent-kafka 2.16), so the consumer asks.
        """
        asked = sorted(set(partitions))
        if not asked:
            return {}
        answer = self._patiently("reading committed offsets", lambda: self._read(asked))
        return {
            TopicPartition(tp.topic, tp.partition): Committed(tp.offset, tp.metadata or "")
            for tp in answer
            if tp.offset >= 0
        }

    def members(self) -> list[str]:
        """The live members, readable: client id and host. Empty too where the group does not exist."""
        return self._patiently("looking for members", self._described)

    def refuse_members(self) -> None:
        """Raise GroupBusy, naming them, where the group has live members: nothing can be committed then."""
        if members := self.members():
            raise self._busy(members)

    def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit all of `offsets` and read them back.

        Raises GroupBusy, naming the members, where the group has any; TransientError where the coordinator is
        away or what was read back differs (somebody else commits, too: look again); FatalError for what the
        broker refuses. Nothing, some or all may have been committed when it raises.
        """
        if not offsets:
            return
        for tp, wanted in offsets.items():
            if wanted.offset < 0:
                raise FatalError(f"{wanted.offset} can't be committed for {tp}", topic=tp.topic, partition=tp.partition)
        self.refuse_members()
        self._patiently("committing offsets", lambda: self._alter(offsets))
        self._compare(offsets)

    def _read(self, asked: Iterable[TopicPartition]) -> list[ClientPartition]:
        answer = self._consumer.committed([ClientPartition(*tp) for tp in asked], timeout=self._request)
        for tp in answer:
            if tp.error is not None:
                raise KafkaException(tp.error)
        return answer

    def _coordinated(self) -> AdminClient:
        """An admin client for one request to the coordinator, which has answered the consumer just now; raises where
        it does not.

        While a broker dies or comes back, such a request may end the process (librdkafka issue 4605: an assertion
        about `eonce->refcnt`), all the more on connections of before; the consumer's own requests do not.
        """
        try:
            self._consumer.committed([ClientPartition(_PROBE, 0)], timeout=self._request)
        except KafkaException as raised:
            error = error_of(raised)
            if error is None or error.name() != "TOPIC_AUTHORIZATION_FAILED":
                raise
        self._admin = clients.admin(self._config, error_cb=self._last)
        return self._admin

    def _described(self) -> list[str]:
        answer = self._coordinated().describe_consumer_groups([self.group_id], request_timeout=self._request)
        try:
            described = answer[self.group_id].result(self._request + 1)
        except KafkaException as raised:
            error = error_of(raised)
            if error is not None and error.name() in _NO_GROUP:
                return []
            raise
        return sorted(f"{member.client_id} ({member.host.lstrip('/')})" for member in described.members)

    def _alter(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        asked = [ClientPartition(*tp, wanted.offset, metadata=wanted.metadata) for tp, wanted in offsets.items()]
        request = [ConsumerGroupTopicPartitions(self.group_id, asked)]
        altering = self._coordinated().alter_consumer_group_offsets(request, request_timeout=self._request)
        answer = altering[self.group_id]
        for tp in answer.result(self._request + 1).topic_partitions:  # its refusals are not raised
            if tp.error is None:
                continue
            if tp.error.name() in _BUSY:
                raise self._busy(self.members())
            if tp.error.name() in COORDINATOR:
                raise KafkaException(tp.error)
            raise self._failed(tp.error, "committing offsets", TopicPartition(tp.topic, tp.partition), tp.offset)

    def _compare(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        held = self.committed(offsets)
        for tp, wanted in offsets.items():
            found = held.get(tp)
            if found != wanted:
                what = "nothing" if found is None else f"offset {found.offset}"
                why = " with other metadata" if found is not None and found.offset == wanted.offset else ""
                raise TransientError(
                    f"{tp}: committed {wanted.offset} for group {self.group_id} at {brokers(self._config)}, but the"
                    f" broker holds {what}{why}; somebody else moves this group: find out who, then run this again",
                    topic=tp.topic, partition=tp.partition, offset=wanted.offset,
                )  # fmt: skip

    def _patiently(self, doing: str, ask: Callable[[], T]) -> T:
        """`ask`, again and again while the coordinator is not ready, for as long as `patience` lasts."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return ask()
            except FutureTimeout:
                error = KafkaError(KafkaError._TIMED_OUT)
            except KafkaException as raised:
                held = error_of(raised)
                if held is None:
                    raise AcklineError(f"{doing} of group {self.group_id}: {raised}") from raised
                error = held
            self._admin.poll(0)
            self._consumer.poll(0)
            if self._last.cause(error).name() not in COORDINATOR or time.monotonic() > deadline:
                raise self._failed(error, doing)
            time.sleep(_BETWEEN)

    def _failed(
        self, error: KafkaError, doing: str, tp: TopicPartition | None = None, offset: int | None = None
    ) -> AcklineError:
        return failure(error, f"{doing} for group {self.group_id}", self._config, tp, offset, self._last)

    def _busy(self, members: Iterable[Any]) -> GroupBusy:
        who = ", ".join(members) or "who just left"
        return GroupBusy(
            f"group {self.group_id} at {brokers(self._config)} has live members: {who}. Kafka takes no commit from"
            " outside meanwhile: stop them, or give the pipeline a group_id of its own; then run this again"
        )
