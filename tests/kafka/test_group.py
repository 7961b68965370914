"""How the group handles an answer that has an error: as an error, never as an absence or as a commit.

The group on a real broker: commits from outside are checked, and a coordinator that is not ready is waited for.
"""

import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from ackline.errors import AcklineError, FatalError, GroupBusy, GroupTaken, OffsetsPending, TransientError
from ackline.kafka import group as kafka_group
from ackline.kafka.clients import LastError
from ackline.kafka.cluster import Cluster
from ackline.kafka.exact import ExactReader
from ackline.kafka.group import Group
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition
from ackline.local.broker import Broker
from ackline.local.processes import wait_until
from tests.conftest import MakeTopic
from tests.e2e import wire
from tests.kafka.kafka_log import config, fill
from tests.support.seconds import slowness

FINE, BAD = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Client:
    """Consumer and admin client of a group. Answers partition `BAD` with each of `errors`, then without an error."""

    def __init__(self, *errors: int) -> None:
        self.errors = [KafkaError(code) for code in errors]
        self.stored: dict[TopicPartition, Committed] = {}
        self.requests = 0
        self.described: list[Any] = []
        """The answers to requests for a description; the last one stays."""
        self.listed: Any = ()
        """The groups that the brokers list, or the error of a broker that does not answer."""

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

    def describe_consumer_groups(self, names: list[str], request_timeout: float, **_: bool) -> dict[str, Any]:
        answer = self.described.pop(0) if len(self.described) > 1 else (self.described or [group_of()])[0]
        return {name: SimpleNamespace(result=lambda _: raise_or_return(answer)) for name in names}

    def list_groups(self, name: str, timeout: float) -> Any:
        return raise_or_return(self.listed)

    def poll(self, _: float) -> None:
        """Has no callback to serve."""


def raise_or_return(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def group_of(*members: tuple[str, str | None], state: ConsumerGroupState = ConsumerGroupState.STABLE) -> Any:
    """The description of a group with members of these client ids and instance ids."""
    all_members = [SimpleNamespace(client_id=name, host="/h", group_instance_id=static) for name, static in members]
    return SimpleNamespace(state=state, members=all_members)


ABSENT = group_of(state=ConsumerGroupState.DEAD)


class ReadyGroup(Group):
    """A group whose coordinator always answers."""

    def _admin_for_coordinator(self) -> AdminClient:
        return self._admin


def group(client: Any, timeout: float = 30.0) -> Group:
    group = object.__new__(ReadyGroup)
    group.group_id, group._config = "g", {"bootstrap.servers": "b:1"}
    group._timeout, group._request_timeout = timeout, 1
    group._last, group._admin, group._consumer, group._prober = LastError(), client, client, client
    return group


@pytest.mark.parametrize("code", [
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError.NOT_COORDINATOR
])  # fmt: skip
def test_a_partition_answered_with_an_error_is_not_one_without_a_commit(code: int) -> None:
    client = Client(*[code] * 9)
    client.stored[FINE] = Committed(3, "ours")
    with pytest.raises(AcklineError):
        group(client, timeout=0.0).committed([FINE, BAD])


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP])
def test_a_commit_refused_for_members_names_them_or_says_that_they_just_left(code: int) -> None:
    with pytest.raises(GroupBusy, match="members that just left"):
        group(Client(code)).commit({BAD: Committed(2, "")})


def test_a_commit_to_a_coordinator_that_moves_is_repeated_until_all_is_committed() -> None:
    client = Client(KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE)
    group(client).commit({BAD: Committed(2, "mine")})
    assert client.stored == {BAD: Committed(2, "mine")}
    assert client.requests == 4


def test_a_coordinator_that_answers_within_the_time_of_a_request_is_not_taken_for_one_with_a_transaction() -> None:
    class Slow(Client):
        def committed(self, partitions: Any, timeout: float) -> list[SimpleNamespace]:
            if timeout < 7:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return super().committed(partitions, timeout)

    client = Slow()
    client.stored[FINE] = Committed(3, "ours")
    slow = group(client)
    slow._request_timeout = 10
    assert slow.committed([FINE]) == {FINE: Committed(3, "ours")}


def members_of(listed: Any, *described: Any) -> list[str]:
    client = Client()
    client.described, client.listed = list(described), listed
    return group(client).members()


def test_s37_a_listed_group_that_no_consumer_can_describe_is_of_another_type() -> None:
    """The client takes a share group, and a group of the Streams protocol, for one that does not exist."""
    with pytest.raises(GroupTaken, match=r"the id g at b:1 is that of a share group or .*: Kafka takes no commit"):
        members_of(["g"], ABSENT)
    connect = KafkaException(KafkaError(KafkaError._INVALID_ARG, "GroupId g is not a consumer group (connect)."))
    with pytest.raises(GroupTaken, match="a group of the protocol connect"):
        members_of(["g"], connect)


def test_a_group_that_does_not_exist_or_has_just_been_made_is_of_no_other_type() -> None:
    assert members_of([], ABSENT) == []
    assert members_of(["g"], ABSENT, group_of(("new", None))) == ["new (h)"]
    assert members_of(KafkaException(KafkaError(KafkaError._TIMED_OUT)), ABSENT) == [], "no broker lists its groups"


def test_a_static_member_is_named_with_the_end_of_its_session() -> None:
    before = datetime.now(UTC)
    dynamic, static = members_of(["g"], group_of(("a", None), ("b", "pod-1")))
    assert dynamic == "a (h)"
    wanted = (
        r"b \(h; a static member: if it has stopped, its session ends by (\S+) UTC, .* session.timeout.ms of 45 s\)"
    )
    named = re.fullmatch(wanted, static)
    assert named is not None
    ends = datetime.fromisoformat(f"{before.date()}T{named[1]}+00:00")
    assert (ends - before) % timedelta(days=1) < timedelta(seconds=60)


@pytest.fixture
def tp(topic: MakeTopic) -> TopicPartition:
    """Partition 0 of a topic of three."""
    return TopicPartition(topic(partitions=3), 0)


def test_foreign_metadata_is_read_as_it_is_s31(broker: Broker, our_group: Group, tp: TopicPartition) -> None:
    other = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": our_group.group_id})
    other.commit(offsets=[ClientPartition(*tp, 5)], asynchronous=False)
    assert our_group.committed([tp]) == {tp: Committed(5, "")}
    for metadata in ("", "not json", "\x01\x02", "😀" * 10):
        other.commit(offsets=[ClientPartition(*tp, 5, metadata=metadata)], asynchronous=False)
        assert our_group.committed([tp]) == {tp: Committed(5, metadata)}
    other.close()


def test_one_refused_partition_raises_although_the_request_succeeds(our_group: Group, tp: TopicPartition) -> None:
    long = TopicPartition(tp.topic, 1)
    our_group.commit({tp: Committed(1, "x" * 4095)})  # the broker's offset.metadata.max.bytes is 4096
    with pytest.raises(FatalError, match="OFFSET_METADATA_TOO_LARGE") as raised:
        our_group.commit({tp: Committed(2, ""), long: Committed(2, "x" * 5000)})
    assert raised.value.partition == 1
    with pytest.raises(FatalError, match="-1 can't be committed"):
        our_group.commit({tp: Committed(-1, "")})


def test_a_group_with_live_members_takes_no_commit_and_names_them_s37(
    broker: Broker, our_group: Group, tp: TopicPartition
) -> None:
    """Of the newer protocol. The contract of the log has a member of the classic one."""
    fill(broker, tp.topic, 10)
    our_group.commit({tp: Committed(4, "ours")})
    with wire.member(broker.bootstrap, our_group.group_id, tp.topic, protocol="consumer"):
        assert our_group.members() == ["member (127.0.0.1)"]
        with pytest.raises(GroupBusy, match=rf"{our_group.group_id} .*member \(127\.0\.0\.1\).*stop them"):
            our_group.commit({tp: Committed(6, "ours")})
        with pytest.raises(GroupBusy, match=r"member \(127"):
            our_group._alter_offsets({tp: Committed(6, "ours")})  # it joined between the check and the commit
        assert our_group.committed([tp]) == {tp: Committed(4, "ours")}
    assert wait_until(lambda: our_group.members() == [], 60)
    our_group.commit({tp: Committed(6, "ours")})
    assert our_group.committed([tp]) == {tp: Committed(6, "ours")}


@pytest.mark.parametrize("kind", ["share", "streams"])
def test_a_group_of_another_type_is_named_with_and_without_members_s37(
    broker: Broker, kafka: dict[str, object], tp: TopicPartition, kind: str
) -> None:
    name = f"{kind}-{uuid.uuid4().hex[:8]}"
    with Group(kafka, name) as group:
        requests = (group.members, group.operations, lambda: group.commit({tp: Committed(1, "ours")}))
        assert group.members() == [], "it does not exist yet"
        with wire.member_of_type(broker.bootstrap, kind, name, tp.topic):
            for request in requests:
                with pytest.raises(GroupTaken, match=f"the id {name} .* a share group or a Kafka Streams group"):
                    request()
            fill(broker, tp.topic, 2)
            with ExactReader({**kafka, "group.id": name}, "read_committed") as reader:
                assert len(list(reader.read({tp: range(2)}))) == 2, "a backfill, which commits nothing, still reads"
        with pytest.raises(GroupTaken):
            group.members()
        assert group.committed([tp]) == {}


def test_a_static_member_that_has_closed_is_named_as_such(broker: Broker, our_group: Group, tp: TopicPartition) -> None:
    with wire.member(broker.bootstrap, our_group.group_id, tp.topic, static="pod-1"):
        pass
    with pytest.raises(GroupBusy, match=r"a static member: if it has stopped, its session ends by \d\d:\d\d:\d\d UTC"):
        our_group.commit({tp: Committed(6, "ours")})


def test_readers_that_only_assign_are_no_members(broker: Broker, our_group: Group, tp: TopicPartition) -> None:
    fill(broker, tp.topic, 1)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": our_group.group_id, "auto.offset.reset": "earliest"}
    reader = Consumer(settings)
    reader.assign([ClientPartition(*tp, 0)])
    assert reader.poll(30) is not None
    assert our_group.members() == []
    our_group.commit({tp: Committed(1, "")})
    reader.close()


def test_a_foreign_commit_before_the_read_back_raises(
    kafka: dict[str, object], our_group: Group, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter = our_group._alter_offsets
    with Group(kafka, our_group.group_id) as other:

        def overtaken(offsets: Mapping[TopicPartition, Committed]) -> None:
            alter(offsets)
            other.commit({tp: Committed(3, "theirs")})

        monkeypatch.setattr(our_group, "_alter_offsets", overtaken)
        with pytest.raises(TransientError, match=r"committed 9 .*holds offset 3; another process moves this group"):
            our_group.commit({tp: Committed(9, "ours")})


def test_offsets_in_an_open_transaction_are_named_and_no_probe_waits_for_them(
    broker: Broker, our_group: Group, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it ends, Kafka does not return what the group has committed as stable."""
    monkeypatch.setattr(kafka_group, "_STABLE_TIMEOUT", 1.0)
    monkeypatch.setattr(our_group, "_request_timeout", 3.0)
    our_group.commit({tp: Committed(1, "ours")})
    producer = wire.open_transaction(broker.bootstrap, tp.topic, [])
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": our_group.group_id})
    producer.send_offsets_to_transaction([ClientPartition(*tp, 3)], consumer.consumer_group_metadata(), 30)
    begun = time.monotonic()
    assert (our_group.members(), "READ" in (our_group.operations(tp.topic) or ())) == ([], True)
    assert our_group.committed([tp], stable=False) == {tp: Committed(1, "ours")}
    with pytest.raises(OffsetsPending, match=rf"group {our_group.group_id} at .* `kafka-transactions.sh"):
        our_group.committed([tp])
    assert time.monotonic() - begun < 10 * slowness()
    producer.abort_transaction(30)
    assert our_group.committed([tp]) == {tp: Committed(1, "ours")}
    consumer.close()


def test_commits_that_have_vanished_are_absent_s35(broker: Broker, our_group: Group, tp: TopicPartition) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    our_group.commit({tp: Committed(9, "ours")})
    admin.delete_consumer_groups([our_group.group_id])[our_group.group_id].result(30)
    assert our_group.committed([tp]) == {}
    assert our_group.members() == []
    our_group.commit({tp: Committed(9, "ours")})
    assert our_group.committed([tp]) == {tp: Committed(9, "ours")}


def test_an_unreachable_broker_is_a_transient_error_that_names_it(unreachable: dict[str, object]) -> None:
    tp = TopicPartition("any", 0)
    with Group(unreachable, "g", timeout=1) as group:
        for request in (lambda: group.committed([tp]), group.members, lambda: group.commit({tp: Committed(1, "")})):
            with pytest.raises(TransientError, match=rf"{unreachable['bootstrap.servers']}.*run this again"):
                request()


def test_a_coordinator_that_does_not_answer_gets_no_request_that_may_crash_the_client(
    unreachable: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin request to a coordinator, while the broker bounces, ends the process with an assertion."""
    sent: list[str] = []
    for name in ("describe_consumer_groups", "alter_consumer_group_offsets"):
        monkeypatch.setattr(AdminClient, name, lambda *_, name=name, **__: sent.append(name))
    with Group(unreachable, "g", timeout=1) as group:
        monkeypatch.setattr(group, "check_no_members", lambda: None)
        for request in (group.members, lambda: group.commit({TopicPartition("any", 0): Committed(1, "")})):
            with pytest.raises(TransientError, match=str(unreachable["bootstrap.servers"])):
                request()
    assert sent == []


FIRST_CALLS = """
import sys
from ackline.ledger.commit_rule import Committed
from ackline.kafka.config import client_config
from ackline.kafka.group import Group
from ackline.ledger.offsets import TopicPartition

bootstrap, name, state = sys.argv[1:]
tp = TopicPartition("first", 0)
with Group(client_config({"bootstrap.servers": bootstrap}), name, timeout=60) as group:
    for _ in range(3):
        committed = group.committed([tp])
        group.members()
        if state == "bounced":
            assert committed == {tp: Committed(5, "before")}, committed
            group.commit({tp: Committed(5, "before")})
print("done")
"""


def test_a_coordinator_that_is_not_ready_is_waited_for_and_crashes_no_client(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A process of its own sends requests from the moment the broker's port opens: its client may crash, not only
    raise."""
    fresh, name = Broker(tmp_path_factory.mktemp("fresh")), f"group-{uuid.uuid4().hex[:8]}"

    def start_under_requests(state: str) -> None:
        command = [sys.executable, "-c", FIRST_CALLS, fresh.bootstrap, name, state]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            fresh.start()
            out, err = client.communicate(timeout=90)
        finally:
            client.kill()
            client.wait()
        assert (client.returncode, out) == (0, "done\n"), err

    try:
        start_under_requests("new")
        fresh.create_topic("first")
        with Group(config(fresh), name) as group:
            group.commit({TopicPartition("first", 0): Committed(5, "before")})
        fresh.kill()
        start_under_requests("bounced")
    finally:
        fresh.stop()


def test_readers_of_the_pipeline_s_group_neither_join_it_nor_move_it(broker: Broker, topic: MakeTopic) -> None:
    """They have its id, because a login with the least rights may ask for the coordinator of no other group."""
    tp, group_id = TopicPartition(topic(), 0), f"group-{uuid.uuid4().hex[:8]}"
    fill(broker, tp.topic, 10)
    settings = {**config(broker), "group.id": group_id}
    with Group(settings, group_id) as group, Cluster(settings, "read_committed") as cluster:
        group.commit({tp: Committed(3, "as before")})
        with ExactReader(settings, "read_committed") as reader:
            found = iter(reader.read({tp: range(10)}))
            next(found)
            assert cluster.record_times({tp: 5}).keys() == {tp}
            assert cluster.truncated_at({tp: (10, 0)}) == {}
            assert group.members() == []  # while the readers are at work
            assert len(list(found)) == 9
        assert (group.members(), group.committed([tp])) == ([], {tp: Committed(3, "as before")})
