"""What the brokers know of topics and logs: ids, partitions, leaders, bounds, and the time of a record."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from ackline.errors import AcklineError, ConfigError, FatalError, TransientError
from ackline.kafka import clients
from ackline.kafka.config import brokers
from ackline.kafka.failures import MISSING, LastError, error_of, failure
from ackline.kafka.truncation import Positions, cut_logs
from ackline.offsets import LogBounds, TopicPartition
from ackline.setting_warnings import TopicPolicy

REQUEST = 30.0
"""Seconds a request to the cluster may take."""
REACHABLE = 5.0
"""Seconds within which `Cluster.reachable` answers."""
LISTING = 5.0
"""Seconds for an answer before a new client is asked: one goes on waiting for the brokers it knows that are down, be it
a leader, or the one that it takes for the controller."""
SETTLING = 20.0
"""Seconds for which leaders may be moving before that is an error: a broker that dies is missed after 9."""

_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own topics: what lies in them is for brokers to read."""
_BETWEEN = 0.2
_NO_LEADER = MISSING | {"LEADER_NOT_AVAILABLE"}
_MOVED = frozenset({"NOT_LEADER_FOR_PARTITION", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE",
                    "REPLICA_NOT_AVAILABLE", "_TIMED_OUT", "_TIMED_OUT_QUEUE"})  # fmt: skip
_ANSWERS = frozenset({"_PARTITION_EOF", "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_Offsets = dict[TopicPartition, Any]
T = TypeVar("T")


class _LeaderMoved(TransientError):
    """What this client knows of brokers and leaders is out of date, or nobody leads."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic: its id, new whenever it is deleted and created again, and for each partition whether it has a
    leader."""

    topic_id: str
    partitions: Mapping[int, bool]


class Cluster:
    """One connection to a cluster, for questions. Made without a network; close it, or use it as a context
    manager."""

    def __init__(self, config: Mapping[str, object], isolation: str) -> None:
        self._config = config
        self._isolation = isolation
        self._last = LastError()
        self._admin = clients.admin(config, error_cb=self._last)
        self._reader: Consumer | None = None
        self._connected = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def reachable(self) -> str:
        """The cluster's id; raises TransientError within `REACHABLE` seconds where no broker answers."""
        doing = "asking the brokers who they are"
        answer = self._admin.describe_cluster(request_timeout=REACHABLE)
        cluster_id = str(self._result(answer, doing, REACHABLE).cluster_id)
        self._connected = True
        return cluster_id

    def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """The topics that exist of those named, in one request. Raises ConfigError for names Kafka
        refuses."""
        asked = sorted(set(names))
        return self._with_leaders(lambda: self._described(asked)) if asked else {}

    def _described(self, asked: list[str]) -> dict[str, TopicInfo]:
        answers = self._admin.describe_topics(TopicCollection(asked), request_timeout=LISTING)
        found: dict[str, TopicInfo] = {}
        for name, answer in answers.items():
            described = self._result(answer, f"describing topic {name}", LISTING, absent=MISSING)
            if described is not None:
                leaders = {p.id: p.leader is not None and p.leader.id >= 0 for p in described.partitions}
                found[name] = TopicInfo(str(described.topic_id), dict(sorted(leaders.items())))
        return found

    def policies(self, names: Iterable[str]) -> dict[str, TopicPolicy]:
        """How each topic that exists of those named forgets records, in one request.

        Raises FatalError where this user may not ask (DescribeConfigs), TransientError where nobody answers in time.
        """
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(set(names))]
        if not asked:
            return {}
        found: dict[str, TopicPolicy] = {}
        for resource, answer in self._admin.describe_configs(asked, request_timeout=REACHABLE).items():
            doing = f"asking for the settings of topic {resource.name}"
            settings = self._result(answer, doing, REACHABLE, absent=MISSING)
            if settings is not None:
                found[resource.name] = TopicPolicy.of({name: entry.value for name, entry in settings.items()})
        return found

    def names(self) -> list[str]:
        """The names of all topics but Kafka's own, sorted; for subscriptions by pattern."""
        with clients.mapped("listing the topics", self._config, self._last):
            topics = self._admin.list_topics(timeout=REQUEST).topics
        return sorted(topics.keys() - _INTERNAL)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """The bounds of each partition, in two requests to each leader however many partitions there are.

        Waits for leaders that are moving. Raises FatalError for a partition that does not exist, TransientError for
        one that stays without a leader and where no broker answers.
        """
        asked = sorted(set(partitions))
        if not asked:
            return {}
        # Starts first: an end read later is never below its start.
        starts, ends = self._with_leaders(lambda: (self._offsets(asked, _EARLIEST), self._offsets(asked, _LATEST)))
        bounds: dict[TopicPartition, LogBounds] = {}
        for tp in asked:
            start, end, epoch = int(starts[tp].offset), int(ends[tp].offset), ends[tp].leader_epoch
            known = epoch if epoch is not None and epoch >= 0 else None
            bounds[tp] = LogBounds(start, max(start, end), known)
        return bounds

    def written_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the log of each partition ends, whatever the isolation: open transactions included.

        Raises as `bounds` does.
        """
        asked = sorted(set(partitions))
        if not asked:
            return {}
        found = self._with_leaders(lambda: self._offsets(asked, _LATEST, "read_uncommitted"))
        return {tp: int(found[tp].offset) for tp in asked}

    def offsets_at(self, partitions: Iterable[TopicPartition], time: datetime) -> dict[TopicPartition, int | None]:
        """The first offset of each partition whose record is stamped at or after `time`; None where there is none.

        Raises as `bounds` does.
        """
        asked = sorted(set(partitions))
        if not asked:
            return {}
        milliseconds = max(0, ceil(time.timestamp() * 1000))  # below 0 Kafka means something else than a time
        found = self._with_leaders(lambda: self._offsets(asked, OffsetSpec.for_timestamp(milliseconds)))
        return {tp: int(found[tp].offset) if int(found[tp].offset) >= 0 else None for tp in asked}

    def cut(self, positions: Positions) -> dict[TopicPartition, int | None]:
        """Those partitions whose log no longer holds all that the leader of an epoch had below an offset, and below
        which offset it does (None: not known); see `ackline.kafka.truncation`. Ask only where the epoch has changed.

        Raises TransientError where leaders don't answer in time.
        """
        return cut_logs(self._config, positions) if positions else {}

    def record_time(self, tp: TopicPartition, offset: int, *, timeout: float = 5.0) -> datetime | None:
        """When the first record at or after `offset` was stamped; None where there is none, or no answer in
        time."""
        return self.record_times({tp: offset}, timeout=timeout).get(tp)

    def record_times(
        self, offsets: Mapping[TopicPartition, int], *, timeout: float = 5.0
    ) -> dict[TopicPartition, datetime]:
        """`record_time` of many partitions at once, in one pass of a few kilobytes each; absent where it is
        None."""
        if self._reader is None:
            self._reader = clients.consumer(self._config, "ackline-times", self._isolation, **clients.SPARSE)
        reader, waiting = self._reader, dict(offsets)
        times: dict[TopicPartition, datetime] = {}
        deadline = time.monotonic() + timeout
        with clients.mapped("reading the time of a record", self._config, self._last):
            reader.assign([ClientPartition(tp.topic, tp.partition, offset) for tp, offset in waiting.items()])
            while waiting and (left := deadline - time.monotonic()) > 0:
                message = reader.poll(left)
                if message is None:
                    continue
                tp, error = TopicPartition(str(message.topic()), int(message.partition() or 0)), message.error()
                if tp not in waiting or (error is not None and error.name() not in _ANSWERS):
                    continue
                del waiting[tp]
                reader.incremental_unassign([ClientPartition(*tp)])
                kind, milliseconds = message.timestamp()
                if error is None and kind and milliseconds >= 0:
                    times[tp] = datetime.fromtimestamp(milliseconds / 1000, UTC)
            reader.unassign()
        return times

    def _with_leaders(self, ask: Callable[[], T]) -> T:
        """`ask`, again and again while leaders are moving, for as long as `SETTLING`."""
        deadline = time.monotonic() + SETTLING
        while True:
            try:
                return ask()
            except _LeaderMoved:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_BETWEEN)
                self._renew()
                self.reachable()  # else it is no leader that moves

    def _offsets(self, asked: Iterable[TopicPartition], spec: OffsetSpec, isolation: str | None = None) -> _Offsets:
        if not self._connected:
            self.reachable()  # list_offsets on a client without a connection may wait 1 to 3 s before it tries again
        level = IsolationLevel[(isolation or self._isolation).upper()]
        doing = "reading the log bounds"
        with clients.mapped(doing, self._config, self._last):
            answers = self._admin.list_offsets(
                {ClientPartition(*tp): spec for tp in asked}, isolation_level=level, request_timeout=LISTING
            )
        found: _Offsets = {}
        for listed, answer in answers.items():
            tp = TopicPartition(listed.topic, listed.partition)
            found[tp] = self._result(answer, doing, REQUEST, tp, absent=_NO_LEADER)
            # A leader that is down gives no error: the answer holds no offset, after the whole time-out.
            if found[tp] is None or found[tp].offset == OFFSET_INVALID:
                raise self._leaderless(tp)
        return found

    def _renew(self) -> None:
        """Start with a new client: this one keeps asking the leaders it knows."""
        self._admin, self._connected = clients.admin(self._config, error_cb=self._last), False

    def _leaderless(self, tp: TopicPartition) -> AcklineError:
        """Why no leader is known: list_offsets says the same of a missing topic and of a broker that is away."""
        self._renew()
        self.reachable()
        info = self.topics([tp.topic]).get(tp.topic)
        here = brokers(self._config)
        if info is None or tp.partition not in info.partitions:
            return FatalError(
                f"{tp} does not exist at {here}; check the topic's name and its partitions, or create it",
                topic=tp.topic, partition=tp.partition,
            )  # fmt: skip
        return _LeaderMoved(
            f"{tp} has no leader at {here}; check that its brokers are up, then run this again",
            topic=tp.topic, partition=tp.partition,
        )  # fmt: skip

    def _result(
        self, answer: "Future[Any]", doing: str, timeout: float, tp: TopicPartition | None = None,
        absent: frozenset[str] = frozenset(),
    ) -> Any:  # fmt: skip
        """The answer to an admin request; None where its error is one of `absent`."""
        try:
            return answer.result(timeout + 1)
        except KafkaException as raised:
            error = error_of(raised)
            if error is not None and error.name() in absent:
                return None
            failed = self._failed(error, doing, tp)
            if error is not None and error.name() in _MOVED and isinstance(failed, TransientError):
                raise _LeaderMoved(str(failed), topic=failed.topic, partition=failed.partition) from raised
            raise failed from raised
        except FutureTimeout as raised:
            failed = self._failed(None, doing, tp)
            if isinstance(failed, TransientError):
                raise _LeaderMoved(str(failed), topic=failed.topic, partition=failed.partition) from raised
            raise failed from raised

    def _failed(self, error: KafkaError | None, doing: str, tp: TopicPartition | None) -> AcklineError:
        self._admin.poll(0)  # serves the error callback: a refused login shows there, the request only times out
        known = error if error is not None else KafkaError(KafkaError._TIMED_OUT)
        if known.name() == "TOPIC_EXCEPTION":
            return ConfigError(f"{doing}: Kafka does not allow this name")
        return failure(known, doing, self._config, tp, last=self._last)
