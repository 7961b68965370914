"""Reads topics and logs from the brokers: topic ids, partitions, leaders, log bounds, and the time of a record.

It also finds truncated logs: it requests from each leader where an older leader's epoch ends (KIP-320,
OffsetForLeaderEpoch). A follower that lags and is elected all the same has a shorter log. New records then take the
offsets of the lost ones, so the log's end shows nothing. The leader epoch does: a log agrees with the log of the leader
of epoch E below an offset if no later epoch begins below that offset. The admin client has no such request. A consumer
sends it for a position that is assigned with a leader epoch, and reports a record or the end of the log if the log
agrees.

Two truncations stay unnoticed. First, one whose records retention has taken since, up to the offset: no record is left
that it could hide. Second, a log exchanged for one that never had epoch E, in which an epoch before E goes on beyond
the offset: that takes two elections in a row of a replica that was not in sync, of different replicas.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from ackline.errors import AcklineError, ConfigError, FatalError, MissingRights, TransientError
from ackline.kafka import clients
from ackline.kafka.clients import (
    NOT_FOUND,
    Closing,
    LastError,
    ackline_error,
    is_login_failure,
    is_transient,
    kafka_error,
    operations_of,
)
from ackline.kafka.config import brokers, login_text, mask_secrets
from ackline.ledger.offsets import LogBounds, TopicPartition
from ackline.ledger.outcomes import timestamp_of
from ackline.pipeline.warnings import TopicPolicy

READ_UNCOMMITTED = "read_uncommitted"
"""The isolation level under which a reader also gets the records of open and aborted transactions."""
REQUEST_TIMEOUT = 30.0
"""Seconds that a request to the cluster may take."""
CONNECT_TIMEOUT = 5.0
"""Seconds within which `Cluster.reachable` returns or raises."""
ADMIN_TIMEOUT = 5.0
"""Seconds to wait for an admin client's answer before a new client repeats the request. A client keeps waiting for
brokers that are down: for a leader, or for the broker that it takes for the controller."""
TIMEOUT = 30.0
"""Seconds within which all leaders have to answer where their epochs end."""
LEADER_TIMEOUT = 20.0
"""Seconds for which leaders may be moving before that is an error. The controller misses a dead broker after 9 s."""

_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__remote_log_metadata"})
"""Kafka's own topics. Their records are for brokers to read."""
_DENIED = "TOPIC_AUTHORIZATION_FAILED"
_RETRY_SECONDS = 0.2
_NO_LEADER = NOT_FOUND | {"LEADER_NOT_AVAILABLE"}
_LEADER_MOVING = frozenset({
    "NOT_LEADER_FOR_PARTITION", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE", "_TIMED_OUT", "_TIMED_OUT_QUEUE",
})  # fmt: skip
_NO_RECORD = frozenset({"_PARTITION_EOF", "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
Positions = Mapping[TopicPartition, tuple[int, int]]
"""Offset and leader epoch: the log of the leader of that epoch had everything below the offset."""
_Offsets = dict[TopicPartition, Any]
T = TypeVar("T")


def milliseconds_of(time: datetime) -> int:
    """Returns the lowest timestamp of a record that is at or after `time`: a request to Kafka and a comparison with
    records mean the same."""
    return max(0, ceil(time.timestamp() * 1000))  # to Kafka, a negative timestamp is not a time


class _LeaderMoving(TransientError):
    """The client's view of brokers and leaders is out of date, or a partition has no leader."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic's id, which changes when the topic is deleted and created again, and whether each partition has a
    leader."""

    topic_id: str
    partitions: Mapping[int, bool]


class Cluster(Closing):
    """Reads from one cluster. The constructor uses no network. Close it, or use it as a context manager."""

    def __init__(self, config: Mapping[str, object], isolation: str) -> None:
        self._config = config
        self._isolation = isolation
        self._last = LastError()
        self._admin = clients.admin(config, error_cb=self._last)
        self._readers: dict[str, Consumer] = {}
        self._connected = False

    def close(self) -> None:
        """Closes the connections. May be called repeatedly."""
        while self._readers:
            self._readers.popitem()[1].close()

    def reachable(self) -> str:
        """Returns the cluster's id. Raises TransientError within `CONNECT_TIMEOUT` seconds if no broker answers."""
        answer = self._admin.describe_cluster(request_timeout=CONNECT_TIMEOUT)
        try:
            cluster_id = str(self._result(answer, "connecting to the cluster", CONNECT_TIMEOUT).cluster_id)
        except _LeaderMoving as unanswered:  # the time-out of a request: no leader has to do with this one
            detail = f": {cause}" if (cause := self._last.connection) else ""
            raise TransientError(
                f"no broker answers at {brokers(self._config)}{mask_secrets(detail, self._config)}; check that it is "
                f"up and can be reached from here, then run this again"
            ) from unanswered
        self._connected = True
        return cluster_id

    def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Returns those topics of `names` that exist, in one request. Raises ConfigError for a name that Kafka does not
        allow."""
        unique = sorted(set(names))

        def describe() -> dict[str, TopicInfo]:
            answers = self._admin.describe_topics(TopicCollection(unique), request_timeout=ADMIN_TIMEOUT)
            topics: dict[str, TopicInfo] = {}
            for name, answer in answers.items():
                right = f"Describe on topic {name}"
                described = self._result(
                    answer, f"describing topic {name}", ADMIN_TIMEOUT, absent=NOT_FOUND, right=right
                )
                if described is not None:
                    leaders = {p.id: p.leader is not None and p.leader.id >= 0 for p in described.partitions}
                    topics[name] = TopicInfo(str(described.topic_id), dict(sorted(leaders.items())))
            return topics

        return self._while_leaders_move(describe) if unique else {}

    def operations(self, names: Iterable[str]) -> dict[str, frozenset[str] | None]:
        """Returns what the login may do with each topic of `names`, as `READ` or `WRITE`, in one request. An empty set
        if it may not describe the topic; None if the topic does not exist or the broker returns no rights."""
        unique = sorted(set(names))

        def describe() -> dict[str, frozenset[str] | None]:
            answers = self._admin.describe_topics(
                TopicCollection(unique), request_timeout=ADMIN_TIMEOUT, include_authorized_operations=True
            )
            found: dict[str, frozenset[str] | None] = {}
            for name, answer in answers.items():
                absent = NOT_FOUND | {_DENIED}
                described = self._result(answer, f"describing topic {name}", ADMIN_TIMEOUT, absent=absent)
                raised = answer.exception(0)
                refused = kafka_error(raised) if raised is not None else None
                denied = refused is not None and refused.name() == _DENIED
                found[name] = frozenset() if denied else operations_of(described)
            return found

        return self._while_leaders_move(describe) if unique else {}

    def policies(self, names: Iterable[str]) -> dict[str, TopicPolicy]:
        """Returns the retention and compaction of each topic of `names` that exists, in one request.

        Raises MissingRights if this user has no right to DescribeConfigs, TransientError if no broker answers in time.
        Looks for the right first: the right is optional, and the request would show up as denied in the broker's log.
        """
        unique = sorted(set(names))
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in unique]
        if not resources:
            return {}
        for name, operations in self.operations(unique).items():
            if operations and "DESCRIBE_CONFIGS" not in operations:
                raise MissingRights(
                    f"{login_text(self._config)} lacks DescribeConfigs on topic {name} (at {brokers(self._config)}); "
                    f"grant it to be warned of its retention and compaction"
                )
        policies: dict[str, TopicPolicy] = {}
        for resource, answer in self._admin.describe_configs(resources, request_timeout=CONNECT_TIMEOUT).items():
            doing = f"reading the settings of topic {resource.name}"
            settings = self._result(answer, doing, CONNECT_TIMEOUT, absent=NOT_FOUND)
            if settings is not None:
                policies[resource.name] = TopicPolicy.of({name: entry.value for name, entry in settings.items()})
        return policies

    def names(self) -> list[str]:
        """Returns the names of all topics but Kafka's own, sorted; for subscriptions by pattern."""
        with clients.as_ackline_errors("listing the topics", self._config, self._last):
            topics = self._admin.list_topics(timeout=REQUEST_TIMEOUT).topics
        return sorted(topics.keys() - _INTERNAL)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """Returns the bounds of each partition, in at most three requests to each leader however many partitions there
        are.

        Waits for leaders that are moving. Raises FatalError for a partition that does not exist, TransientError for one
        that stays without a leader and if no broker answers.
        """
        tps = sorted(set(partitions))
        starts, written, ends = self._while_leaders_move(lambda: self._starts_and_ends(tps))
        bounds: dict[TopicPartition, LogBounds] = {}
        for tp in tps:
            start, end, leader_epoch = int(starts[tp].offset), int(ends[tp].offset), ends[tp].leader_epoch
            known = leader_epoch if leader_epoch is not None and leader_epoch >= 0 else None
            end = max(start, end)
            bounds[tp] = LogBounds(start, end, known, max(0, int(written[tp].offset) - end) if written else 0)
        return bounds

    def _starts_and_ends(self, tps: Sequence[TopicPartition]) -> tuple[_Offsets, _Offsets, _Offsets]:
        """Returns the log starts, the high watermarks, and the readable ends. Under `read_uncommitted`, which reads up
        to the high watermarks, these are empty.

        The order matters. An end that is read later is never below its start. What is written by then, and not readable
        later, is in or behind an open transaction.
        """
        starts = self._offsets(tps, _EARLIEST)
        reads_all = self._isolation == READ_UNCOMMITTED
        return starts, {} if reads_all else self._offsets(tps, _LATEST, READ_UNCOMMITTED), self._offsets(tps, _LATEST)

    def offsets_at(self, partitions: Iterable[TopicPartition], time: datetime) -> dict[TopicPartition, int | None]:
        """Returns the first offset of each partition whose record is stamped at or after `time`, or None if there is no
        such record.

        Raises as `bounds` does.
        """
        return self.offsets_since(partitions, milliseconds_of(time))

    def offsets_since(
        self, partitions: Iterable[TopicPartition], milliseconds: int
    ) -> dict[TopicPartition, int | None]:
        """Returns the first offset of each partition whose record has the timestamp `milliseconds` or a greater one;
        None if there is no such record. The number need not be a time.

        Raises as `bounds` does.
        """
        tps = sorted(set(partitions))
        listed = self._while_leaders_move(lambda: self._offsets(tps, OffsetSpec.for_timestamp(milliseconds)))
        return {tp: int(listed[tp].offset) if int(listed[tp].offset) >= 0 else None for tp in tps}

    def truncated_at(self, positions: Positions, timeout: float = TIMEOUT) -> dict[TopicPartition, int | None]:
        """Returns the partitions whose log no longer holds all that the leader of the epoch had below the offset, each
        with the offset below which the log still agrees, or None if that is unknown.

        Costs a request and a fetch for each partition: call it only where the leader epoch has changed. Raises
        TransientError if leaders don't answer within `timeout` seconds.
        """
        if not positions:
            return {}
        last = LastError()
        # Uncommitted records answer as well, and need no wait for a transaction's end.
        reader = clients.consumer(self._config, READ_UNCOMMITTED, **clients.SPARSE_FETCH, error_cb=last)
        try:
            with clients.as_ackline_errors(_DOING, self._config, last):
                return _query_leaders(reader, self._config, positions, timeout, last)
        finally:
            reader.close()

    def record_times(
        self, offsets: Mapping[TopicPartition, int], isolation: str | None = None, *, timeout: float = 5.0
    ) -> dict[TopicPartition, datetime]:
        """Returns for each partition the timestamp of the first record at or after its offset, in one pass that fetches
        a few kilobytes of each. A partition is absent without such a record, if the record's timestamp is no time, and
        without an answer within `timeout` seconds. `isolation` is that of the cluster by default."""
        level = isolation or self._isolation
        if level not in self._readers:
            self._readers[level] = clients.consumer(self._config, level, **clients.SPARSE_FETCH)
        reader, waiting = self._readers[level], dict(offsets)
        times: dict[TopicPartition, datetime] = {}
        deadline = time.monotonic() + timeout
        with clients.as_ackline_errors("reading the time of a record", self._config, self._last):
            reader.assign([ClientPartition(tp.topic, tp.partition, offset) for tp, offset in waiting.items()])
            while waiting and (left := deadline - time.monotonic()) > 0:
                message = reader.poll(left)
                if message is None:
                    continue
                tp, error = TopicPartition(str(message.topic()), int(message.partition() or 0)), message.error()
                if tp not in waiting or (error is not None and error.name() not in _NO_RECORD):
                    continue
                del waiting[tp]
                reader.incremental_unassign([ClientPartition(*tp)])
                kind, milliseconds = message.timestamp()
                time_of_record = timestamp_of(milliseconds) if error is None and kind else None
                if time_of_record is not None:
                    times[tp] = time_of_record
            reader.unassign()
        return times

    def _while_leaders_move(self, request: Callable[[], T]) -> T:
        """Returns `request()`; repeats it while leaders are moving, for at most `LEADER_TIMEOUT` seconds."""
        retrying = Retrying(
            retry=retry_if_exception_type(_LeaderMoving),
            stop=stop_after_delay(LEADER_TIMEOUT),
            wait=wait_fixed(_RETRY_SECONDS),
            before_sleep=lambda _: self._reconnect(),  # raises if no broker answers: then no election is under way
            reraise=True,
        )
        return retrying(request)

    def _reconnect(self) -> None:
        """Replaces the admin client by a new one with a connection. The old one would keep its outdated leaders."""
        self._admin, self._connected = clients.admin(self._config, error_cb=self._last), False
        self.reachable()

    def _offsets(self, tps: Sequence[TopicPartition], spec: OffsetSpec, isolation: str | None = None) -> _Offsets:
        if not tps:
            return {}
        if not self._connected:
            self.reachable()  # without a connection, list_offsets may wait 1 to 3 s before it tries again
        level = IsolationLevel[(isolation or self._isolation).upper()]
        doing = "reading the log bounds"
        with clients.as_ackline_errors(doing, self._config, self._last):
            answers = self._admin.list_offsets(
                {ClientPartition(*tp): spec for tp in tps}, isolation_level=level, request_timeout=ADMIN_TIMEOUT
            )
        offsets: _Offsets = {}
        for listed, answer in answers.items():
            tp = TopicPartition(listed.topic, listed.partition)
            offsets[tp] = self._result(answer, doing, REQUEST_TIMEOUT, tp, absent=_NO_LEADER)
            # A leader that is down gives no error: after the whole time-out, its answer has no offset.
            if offsets[tp] is None or offsets[tp].offset == OFFSET_INVALID:
                raise self._no_leader_error(tp)
        return offsets

    def _no_leader_error(self, tp: TopicPartition) -> AcklineError:
        """Returns why `tp` has no known leader. list_offsets answers alike for a partition that does not exist, for one
        without a leader, and while the broker is unreachable; for the last this raises TransientError."""
        self._reconnect()
        info = self.topics([tp.topic]).get(tp.topic)
        here = brokers(self._config)
        if info is None or tp.partition not in info.partitions:
            return FatalError(
                f"{tp} does not exist at {here}; check the topic's name and its partitions, or create it", tp=tp
            )
        return _LeaderMoving(f"{tp} has no leader at {here}; check that its brokers are up, then run this again", tp=tp)

    def _result(
        self, answer: "Future[Any]", doing: str, timeout: float, tp: TopicPartition | None = None,
        absent: frozenset[str] = frozenset(), right: str | None = None,
    ) -> Any:  # fmt: skip
        """The answer to an admin request, for which the login needs `right`; None if its error is one of `absent`."""
        try:
            return answer.result(timeout + 1)
        except (KafkaException, TimeoutError) as raised:
            error = kafka_error(raised)
            if error is not None and error.name() in absent:
                return None
            failed = self._ackline_error(error, doing, tp, right)
            unanswered = error is not None and self._last.cause(error) is error  # and not for want of a login
            if error is not None and unanswered and error.name() in _LEADER_MOVING and type(failed) is TransientError:
                raise _LeaderMoving(str(failed), tp=tp) from raised
            raise failed from raised

    def _ackline_error(
        self, error: KafkaError | None, doing: str, tp: TopicPartition | None, right: str | None = None
    ) -> AcklineError:
        # Serves the error callback, which alone reports a refused login: the request only times out.
        self._admin.poll(0)
        known = error if error is not None else KafkaError(KafkaError._TIMED_OUT)
        if known.name() == "TOPIC_EXCEPTION":
            return ConfigError(f"{doing}: Kafka does not allow this name; correct it")
        return ackline_error(known, doing, self._config, tp, last=self._last, right=right)


_DOING = "reading where leader epochs end"
_END = re.compile(r"broker end offset is (\d+)")
_ANSWERS = frozenset({"_PARTITION_EOF", "_AUTO_OFFSET_RESET", "_LOG_TRUNCATION", "OFFSET_OUT_OF_RANGE"})
_OUT_OF_RANGE = KafkaError(KafkaError.OFFSET_OUT_OF_RANGE).str()


def _query_leaders(
    reader: Consumer, config: Mapping[str, object], positions: Positions, timeout: float, last: LastError
) -> dict[TopicPartition, int | None]:
    reader.assign([ClientPartition(*tp, offset, leader_epoch=epoch) for tp, (offset, epoch) in positions.items()])
    waiting, truncated = set(positions), dict[TopicPartition, int | None]()
    deadline = time.monotonic() + timeout
    # Not a retry: each poll returns the next answer of any partition, and the client itself repeats its requests.
    while waiting:
        if (left := deadline - time.monotonic()) <= 0:
            tp = min(waiting)
            raise TransientError(
                f"{tp}: its leader gave no answer where an older leader's log ended (at {brokers(config)}); check that "
                f"the partition has a leader, then run this again",
                tp=tp,
            )
        message = reader.poll(left)
        if message is None:
            continue
        tp, error = TopicPartition(str(message.topic()), int(message.partition() or 0)), message.error()
        if tp not in waiting:
            if error is not None and is_login_failure(error):
                raise ackline_error(error, _DOING, config, last=last)
            continue
        if error is not None and error.name() not in _ANSWERS:
            if not is_transient(error):
                raise ackline_error(error, "reading where its leader epoch ends", config, tp, positions[tp][0], last)
            continue
        waiting.discard(tp)
        reader.incremental_unassign([ClientPartition(*tp)])
        # A position that agrees with the log, but is below the log start, is not truncated; a position beyond the log's
        # end never agrees. librdkafka reports both cases as `_AUTO_OFFSET_RESET`; only the text differs.
        if error is not None and error.name() != "_PARTITION_EOF" and _OUT_OF_RANGE not in error.str():
            end = _END.search(error.str())
            truncated[tp] = int(end[1]) if end else None
    return truncated
