"""The consumer group, from outside: its committed offsets, its live members, and `Group.commit`, which moves its
offsets.

Kafka's OffsetCommit compares nothing and checks no order. `ackline.ledger.commit_rule` and the settle step decide which
offset may be committed, and when. This module guarantees one thing: when `Group.commit` returns, the broker holds what
was committed.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from ackline.errors import AcklineError, FatalError, GroupBusy, GroupTaken, OffsetsPending, TransientError
from ackline.kafka import clients
from ackline.kafka.clients import (
    COORDINATOR_NOT_READY,
    Closing,
    LastError,
    ackline_error,
    kafka_error,
    operations_of,
)
from ackline.kafka.config import brokers
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition

COORDINATOR_TIMEOUT = 30.0
"""Seconds for which a coordinator may be starting or moving before that is an error."""

_REQUEST_TIMEOUT = 10.0
_STABLE_TIMEOUT = 5.0
"""Seconds for which the end of a transaction that holds offsets of the group is waited for, before it is once more for
the time of any request."""
_PENDING = frozenset({"UNSTABLE_OFFSET_COMMIT", "_TIMED_OUT"})
"""How a request for stable offsets fails while a transaction holds some. The client repeats it until it times out."""
_RETRY_SECONDS = 0.2
_BUSY = frozenset({
    "UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP", "ILLEGAL_GENERATION", "FENCED_INSTANCE_ID", "FENCED_MEMBER_EPOCH",
    "STALE_MEMBER_EPOCH", "REBALANCE_IN_PROGRESS", "GROUP_SUBSCRIBED_TO_TOPIC",
})  # fmt: skip
_PROBE = "ackline-probe"
"""The topic of a request that only tests whether the coordinator answers, until a topic is known that the login may
describe. It need not exist."""
_NO_GROUP = frozenset({"GROUP_ID_NOT_FOUND", "_UNKNOWN_GROUP"})
_OTHER_PROTOCOL = re.compile(r"is not a consumer group \((.*)\)")
"""The client's text about a classic group of another protocol type, such as `connect`: that of Kafka Connect's workers,
or `sr`."""
_SHARE_OR_STREAMS = "a share group or a Kafka Streams group (`kafka-groups.sh --list` names its type)"
"""The client can't tell them apart: it has a name for neither type."""
SESSION = timedelta(seconds=45)
"""The default of `session.timeout.ms`. A static member does not leave when it stops: only the end of its session ends
its membership. No request returns when that is."""

T = TypeVar("T")


class Group(Closing):
    """The group `group_id`. Never joins it. Close it, or use it as a context manager.

    Each request waits for a coordinator that is not ready, for at most `timeout` seconds.
    """

    def __init__(self, config: Mapping[str, object], group_id: str, *, timeout: float = COORDINATOR_TIMEOUT) -> None:
        self.group_id = group_id
        self._config = config
        self._timeout = timeout
        self._request_timeout = min(_REQUEST_TIMEOUT, timeout)
        self._last = LastError()
        self._probe = _PROBE
        self._admin = clients.admin(config, error_cb=self._last)
        own = {"group.id": group_id, "error_cb": self._last}
        self._consumer = clients.consumer(config, "read_committed", **own)
        # Under read_uncommitted a client does not wait for offsets that a transaction holds.
        self._prober = clients.consumer(config, "read_uncommitted", **own)

    def close(self) -> None:
        """Closes the consumers, which have joined no group."""
        self._consumer.close()
        self._prober.close()

    def committed(
        self, partitions: Iterable[TopicPartition], *, stable: bool = True
    ) -> dict[TopicPartition, Committed]:
        """Returns what the group has committed; a partition without a commit is absent.

        Raises OffsetsPending if a transaction holds offsets of the group. Without `stable`, which is for what is only
        shown, it returns what was committed before that transaction.

        The consumer sends the request, because `list_consumer_group_offsets` of the admin client crashes the process
        while the coordinator is not ready (confluent-kafka 2.16).
        """
        tps = sorted(set(partitions))
        if not tps:
            return {}
        answer = self._when_coordinator_ready("reading committed offsets", lambda: self._fetch_committed(tps, stable))
        self._probe = tps[0].topic
        return {
            TopicPartition(tp.topic, tp.partition): Committed(tp.offset, tp.metadata or "")
            for tp in answer
            if tp.offset >= 0
        }

    def members(self) -> list[str]:
        """Returns the live members as "client id (host)"; empty also if the group does not exist. A static one is named
        as such, with the time at which its session ends if it has stopped.

        Raises GroupTaken for a share group, a Kafka Streams group, and a group of another protocol.
        """
        return self._when_coordinator_ready("looking for members", self._describe_members)

    def operations(self, probe: str = _PROBE) -> frozenset[str] | None:
        """Returns what the login may do with the group, as `READ`: nothing if it may not describe it, None if not
        known.

        `probe` is a topic that the login may describe: a request for another one shows up as denied in the broker's
        log. Raises GroupTaken as `members` does.
        """
        self._probe = probe
        try:
            return operations_of(self._when_coordinator_ready("asking for rights", self._described))
        except FatalError as error:
            if self._last.denied and not isinstance(error, GroupTaken):
                return frozenset()
            raise

    def check_no_members(self) -> None:
        """Raises GroupBusy, with the members' names, if the group has live members: Kafka then refuses every commit
        from outside."""
        if members := self.members():
            raise self._group_busy(members)

    def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commits all of `offsets`, with their metadata, and reads them back.

        When it returns, the broker has acknowledged each offset and then returned exactly this offset and metadata.
        When it raises, the broker may hold none, some or all of them: read again before you decide.

        It does not compare with what the group held before, and commits a lower offset as readily as a higher one; the
        caller decides by `ackline.ledger.commit_rule.check_commit_allowed`. A commit by others between that check and
        this one is overwritten, since Kafka has no compare-and-set. A commit by others right after this one is noticed
        only if it arrives before the offsets are read back.

        Raises GroupBusy, with the members' names, if the group has live members; TransientError if the coordinator is
        unreachable or if the offsets read back differ; FatalError for what the broker refuses.
        """
        if not offsets:
            return
        for tp, wanted in offsets.items():
            if wanted.offset < 0:
                raise FatalError(f"{wanted.offset} can't be committed for {tp}", tp=tp)
        self.check_no_members()
        self._when_coordinator_ready("committing offsets", lambda: self._alter_offsets(offsets))
        self._check_committed(offsets)

    def _fetch_committed(self, tps: Sequence[TopicPartition], stable: bool) -> list[ClientPartition]:
        if not stable:
            return self._answer(self._prober, tps, self._request_timeout)
        # A coordinator that was not ready at the first request, or is slow, answers the second one.
        for timeout in (min(_STABLE_TIMEOUT, self._request_timeout), self._request_timeout):
            try:
                return self._answer(self._consumer, tps, timeout)
            except KafkaException as raised:
                error = kafka_error(raised)
                if error is None or error.name() not in _PENDING:
                    raise
                self._answer(self._prober, tps, self._request_timeout)  # raises if the coordinator is not ready
        raise self._offsets_pending()

    def _answer(self, consumer: Consumer, tps: Sequence[TopicPartition], timeout: float) -> list[ClientPartition]:
        answer = consumer.committed([ClientPartition(*tp) for tp in tps], timeout=timeout)
        for tp in answer:
            if tp.error is not None:
                raise KafkaException(tp.error)
        return answer

    def _admin_for_coordinator(self) -> AdminClient:
        """Returns a new admin client for one request to the coordinator.

        Sends a request through the consumer first, and raises if the coordinator does not answer it.

        While a broker dies or comes back, an admin request may end the process (librdkafka issue 4605: an assertion
        about `eonce->refcnt`), all the more on an older connection. The consumer's own requests do not.
        """
        try:
            self._prober.committed([ClientPartition(self._probe, 0)], timeout=self._request_timeout)
        except KafkaException as raised:
            error = kafka_error(raised)
            if error is None or error.name() != "TOPIC_AUTHORIZATION_FAILED":
                raise
        self._admin = clients.admin(self._config, error_cb=self._last)
        return self._admin

    def _describe_members(self) -> list[str]:
        described = self._described()
        members = described.members if described is not None else ()
        return sorted(map(_member, members))

    def _described(self) -> Any:
        """Returns the coordinator's description of the group; None, or one in the state DEAD, if it does not exist.

        Raises GroupTaken if it is of another type. The client takes such a group for one that does not exist, so only
        the list of all groups shows it.
        """
        described = self._describe()
        if not _is_absent(described) or not self._is_listed():
            return described
        # Another process may have made the group between the two answers.
        if not _is_absent(described := self._describe()):
            return described
        raise self._group_taken(_SHARE_OR_STREAMS)

    def _is_listed(self) -> bool:
        """Returns whether any broker lists a group of this id, of whatever type. False if one does not answer: a group
        of another type then refuses the commit.

        `list_groups` warns that it is deprecated. What the client names in its place, `list_consumer_groups`, lists no
        group of another type (confluent-kafka 2.16).
        """
        try:
            return bool(self._admin.list_groups(self.group_id, timeout=self._request_timeout))
        except KafkaException:
            return False

    def _describe(self) -> Any:
        admin = self._admin_for_coordinator()
        answer = admin.describe_consumer_groups(
            [self.group_id], request_timeout=self._request_timeout, include_authorized_operations=True
        )
        try:
            return answer[self.group_id].result(self._request_timeout + 1)
        except KafkaException as raised:
            error = kafka_error(raised)
            if error is not None and error.name() in _NO_GROUP:
                return None
            if error is not None and (other := _OTHER_PROTOCOL.search(error.str())):
                raise self._group_taken(f"a group of the protocol {other[1]}") from None
            if error is not None:
                self._last(error)
            raise

    def _alter_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        positions = [ClientPartition(*tp, wanted.offset, metadata=wanted.metadata) for tp, wanted in offsets.items()]
        request = [ConsumerGroupTopicPartitions(self.group_id, positions)]
        admin = self._admin_for_coordinator()
        answers = admin.alter_consumer_group_offsets(request, request_timeout=self._request_timeout)
        # The future succeeds although partitions were refused: each has its own error.
        for tp in answers[self.group_id].result(self._request_timeout + 1).topic_partitions:
            if tp.error is None:
                continue
            if tp.error.name() in _BUSY:  # a member joined after check_no_members
                raise self._group_busy(self.members())
            if tp.error.name() in COORDINATOR_NOT_READY:
                raise KafkaException(tp.error)
            raise self._ackline_error(tp.error, "committing offsets", TopicPartition(tp.topic, tp.partition), tp.offset)

    def _check_committed(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Raises TransientError if the broker does not hold exactly `offsets`."""
        committed = self.committed(offsets)
        for tp, wanted in offsets.items():
            actual = committed.get(tp)
            if actual != wanted:
                what = "nothing" if actual is None else f"offset {actual.offset}"
                why = " with other metadata" if actual is not None and actual.offset == wanted.offset else ""
                raise TransientError(
                    f"{tp}: committed {wanted.offset} for group {self.group_id} at {brokers(self._config)}, but the"
                    f" broker holds {what}{why}; another process moves this group: find it, then run this again",
                    tp=tp, offset=wanted.offset,
                )  # fmt: skip

    def _when_coordinator_ready(self, doing: str, request: Callable[[], T]) -> T:
        """Returns `request()`; repeats it while the coordinator is not ready, for at most `timeout` seconds."""
        retrying = Retrying(
            retry=retry_if_exception(self._is_coordinator_not_ready),
            stop=stop_after_delay(self._timeout),
            wait=wait_fixed(_RETRY_SECONDS),
            reraise=True,
        )
        try:
            return retrying(request)
        except (KafkaException, TimeoutError) as raised:
            error = kafka_error(raised)
            if error is None:
                raise AcklineError(f"{doing} of group {self.group_id}: {raised}") from raised
            raise self._ackline_error(error, doing) from None

    def _is_coordinator_not_ready(self, raised: BaseException) -> bool:
        error = kafka_error(raised)
        if error is None:
            return False
        # Serves the error callbacks, which alone report a refused login: the request only times out.
        self._admin.poll(0)
        # The consumers have no partitions, so they can only get an error: the login may not ask for the coordinator.
        for consumer in (self._consumer, self._prober):
            message = consumer.poll(0)
            if message is not None and (refused := message.error()) is not None:
                self._last(refused)
        return self._last.cause(error).name() in COORDINATOR_NOT_READY

    def _ackline_error(
        self, error: KafkaError, doing: str, tp: TopicPartition | None = None, offset: int | None = None
    ) -> AcklineError:
        of_topic = self._last.cause(error).name() == "TOPIC_AUTHORIZATION_FAILED"
        right = None if of_topic else f"{'Describe' if tp is None else 'Read'} on group {self.group_id}"
        doing = f"{doing} for group {self.group_id}"
        return ackline_error(error, doing, self._config, tp, offset, self._last, right)

    def _offsets_pending(self) -> OffsetsPending:
        return OffsetsPending(
            f"group {self.group_id} at {brokers(self._config)} has offsets in a transaction that has not ended, so what"
            f" it has committed is not known. A producer sends them, as in an exactly-once application:"
            f" `kafka-transactions.sh list` and `describe` name its transaction and since when it is open. It ends with"
            f" its producer, or at that one's transaction.timeout.ms; one that hangs ends with"
            f" `kafka-transactions.sh forceTerminateTransaction` (Kafka 4.1); then run this again"
        )

    def _group_busy(self, members: Iterable[Any]) -> GroupBusy:
        names = ", ".join(members) or "members that just left"
        return GroupBusy(
            f"group {self.group_id} at {brokers(self._config)} has live members: {names}. Kafka takes no commit from"
            " outside meanwhile: stop them, or give the pipeline a group_id of its own; then run this again",
            members=names,
        )

    def _group_taken(self, what: str) -> GroupTaken:
        return GroupTaken(
            f"the id {self.group_id} at {brokers(self._config)} is that of {what}: Kafka takes no commit of a consumer"
            f" there. Give the pipeline a group_id of its own, or delete that group; then run this again"
        )


def _is_absent(described: Any) -> bool:
    return described is None or described.state == ConsumerGroupState.DEAD


def _member(member: Any) -> str:
    """Returns a member as a person reads it."""
    host = member.host.lstrip("/")
    if not member.group_instance_id:
        return f"{member.client_id} ({host})"
    ends = datetime.now(UTC) + SESSION
    return (
        f"{member.client_id} ({host}; a static member: if it has stopped, its session ends by {ends:%H:%M:%S} UTC, with"
        f" the default session.timeout.ms of {SESSION.seconds} s)"
    )
