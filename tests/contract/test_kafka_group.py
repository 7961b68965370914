"""The group as Kafka holds it: commits from outside that are checked, and coordinators that are not ready."""

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from ackline.commit_rule import Committed
from ackline.errors import FatalError, GroupBusy, TransientError
from ackline.kafka.config import client_config
from ackline.kafka.group import METADATA_LIMIT, Group
from ackline.local.broker import Broker
from ackline.local.ports import free_ports
from ackline.local.processes import wait_until
from ackline.offsets import TopicPartition
from tests.conftest import MakeTopic
from tests.contract.kafka_log import config, fill

MakeGroup = Callable[[], str]


def test_what_is_committed_is_read_back_with_its_metadata(broker: Broker, topic: MakeTopic, group: MakeGroup) -> None:
    name = topic(partitions=3)
    tps = [TopicPartition(name, p) for p in range(3)]
    wanted = {tps[0]: Committed(7, '{"ledger": "é", "n": 1}'), tps[1]: Committed(0, "")}
    with Group(config(broker), group()) as mine:
        assert mine.committed(tps) == {}
        mine.commit(wanted)
        assert mine.committed(tps) == wanted
        mine.commit({tps[0]: Committed(3, "back")})
        mine.commit({})
        assert mine.committed(tps) == {**wanted, tps[0]: Committed(3, "back")}
        assert mine.committed([]) == {}


def test_offset_0_is_not_unset_s31(broker: Broker, topic: MakeTopic, group: MakeGroup) -> None:
    tp = TopicPartition(topic(), 0)
    with Group(config(broker), group()) as mine:
        mine.commit({tp: Committed(0, "zero")})
        assert mine.committed([tp]) == {tp: Committed(0, "zero")}


@pytest.mark.parametrize("metadata", [None, "", "not json", "\x01\x02", "{", "😀" * 10], ids=repr)
def test_metadata_of_others_garbage_or_none_is_read_as_it_is_s31(
    broker: Broker, topic: MakeTopic, group: MakeGroup, metadata: str | None
) -> None:
    tp, name = TopicPartition(topic(), 0), group()
    other = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name})
    offset = ClientPartition(*tp, 5) if metadata is None else ClientPartition(*tp, 5, metadata=metadata)
    other.commit(offsets=[offset], asynchronous=False)
    other.close()
    with Group(config(broker), name) as mine:
        assert mine.committed([tp]) == {tp: Committed(5, metadata or "")}


def test_partitions_that_do_not_exist_have_no_commit_and_take_none(broker: Broker, group: MakeGroup) -> None:
    tp = TopicPartition("nowhere", 0)
    with Group(config(broker), group()) as mine:
        assert mine.committed([tp]) == {}
        with pytest.raises(FatalError, match=r"nowhere\[0\]: UNKNOWN_TOPIC_OR_PART") as raised:
            mine.commit({tp: Committed(1, "")})
        assert raised.value.topic == "nowhere"


def test_one_refused_partition_is_told_although_the_request_succeeds(
    broker: Broker, topic: MakeTopic, group: MakeGroup
) -> None:
    name = topic(partitions=2)
    fine, long = TopicPartition(name, 0), TopicPartition(name, 1)
    with Group(config(broker), group()) as mine:
        mine.commit({fine: Committed(1, "x" * METADATA_LIMIT)})
        with pytest.raises(FatalError, match="OFFSET_METADATA_TOO_LARGE") as raised:
            mine.commit({fine: Committed(2, ""), long: Committed(2, "x" * 5000)})
        assert raised.value.partition == 1
        with pytest.raises(FatalError, match="-1 can't be committed"):
            mine.commit({fine: Committed(-1, "")})


@contextmanager
def member(broker: Broker, topic: str, group: str, protocol: str) -> Iterator[None]:
    """A live member of the group, which polls."""
    consumer = Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": group, "client.id": "somebody", "group.protocol": protocol,
        "enable.auto.commit": False,
    })  # fmt: skip
    joined, ended = threading.Event(), threading.Event()

    def poll() -> None:
        while not ended.is_set():
            consumer.poll(0.1)

    consumer.subscribe([topic], on_assign=lambda *_: joined.set())
    polling = threading.Thread(target=poll)
    polling.start()
    try:
        assert joined.wait(30)
        yield
    finally:
        ended.set()
        polling.join()
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_live_members_takes_no_commit_and_names_them_s37(
    broker: Broker, topic: MakeTopic, group: MakeGroup, protocol: str
) -> None:
    name, who = topic(), group()
    tp = TopicPartition(name, 0)
    fill(broker, name, 10)
    with Group(config(broker), who) as mine:
        mine.commit({tp: Committed(4, "ours")})
        with member(broker, name, who, protocol):
            assert mine.members() == ["somebody (127.0.0.1)"]
            with pytest.raises(GroupBusy, match=rf"{who} .*somebody \(127\.0\.0\.1\).*stop them"):
                mine.commit({tp: Committed(6, "ours")})
            with pytest.raises(GroupBusy, match="somebody"):
                mine._alter({tp: Committed(6, "ours")})  # it joined between the look and the commit
            assert mine.committed([tp]) == {tp: Committed(4, "ours")}
        assert wait_until(lambda: mine.members() == [], 60)
        mine.commit({tp: Committed(6, "ours")})
        assert mine.committed([tp]) == {tp: Committed(6, "ours")}


def test_readers_that_only_assign_are_no_members(broker: Broker, topic: MakeTopic, group: MakeGroup) -> None:
    name, who = topic(), group()
    fill(broker, name, 1)
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": who, "auto.offset.reset": "earliest"})
    reader.assign([ClientPartition(name, 0, 0)])
    assert reader.poll(30) is not None
    with Group(config(broker), who) as mine:
        assert mine.members() == []
        mine.commit({TopicPartition(name, 0): Committed(1, "")})
    reader.close()


def test_a_commit_by_somebody_else_in_between_is_noticed(
    broker: Broker, topic: MakeTopic, group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    tp, who = TopicPartition(topic(), 0), group()
    with Group(config(broker), who) as mine, Group(config(broker), who) as other:
        alter = mine._alter

        def overtaken(offsets: dict[TopicPartition, Committed]) -> None:
            alter(offsets)
            other.commit({tp: Committed(3, "theirs")})

        monkeypatch.setattr(mine, "_alter", overtaken)
        with pytest.raises(TransientError, match=r"committed 9 .*holds offset 3; somebody else moves this group"):
            mine.commit({tp: Committed(9, "ours")})


def test_commits_that_have_vanished_are_absent_s35(broker: Broker, topic: MakeTopic, group: MakeGroup) -> None:
    tp, who = TopicPartition(topic(), 0), group()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with Group(config(broker), who) as mine:
        mine.commit({tp: Committed(9, "ours")})
        admin.delete_consumer_groups([who])[who].result(30)
        assert mine.committed([tp]) == {}
        assert mine.members() == []
        mine.commit({tp: Committed(9, "ours")})
        assert mine.committed([tp]) == {tp: Committed(9, "ours")}


def test_a_broker_that_is_away_is_a_transient_error_that_names_it() -> None:
    away = f"127.0.0.1:{free_ports(1)[0]}"
    tp = TopicPartition("any", 0)
    with Group(client_config({"bootstrap.servers": away}), "g", patience=1) as mine:
        for ask in (lambda: mine.committed([tp]), mine.members, lambda: mine.commit({tp: Committed(1, "")})):
            with pytest.raises(TransientError, match=rf"{away}.*run this again"):
                ask()


def test_nothing_that_may_crash_the_client_is_asked_of_a_coordinator_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The admin client's requests to a coordinator, while the broker bounces, end the process with an assertion."""
    asked: list[str] = []
    for name in ("describe_consumer_groups", "alter_consumer_group_offsets"):
        monkeypatch.setattr(AdminClient, name, lambda *_, name=name, **__: asked.append(name))
    away = f"127.0.0.1:{free_ports(1)[0]}"
    with Group(client_config({"bootstrap.servers": away}), "g", patience=1) as mine:
        monkeypatch.setattr(mine, "refuse_members", lambda: None)
        for ask in (mine.members, lambda: mine.commit({TopicPartition("any", 0): Committed(1, "")})):
            with pytest.raises(TransientError, match=away):
                ask()
    assert asked == []


FIRST_CALLS = """
import sys
from ackline.kafka.config import client_config
from ackline.kafka.group import Group
from ackline.ledger import Committed
from ackline.offsets import TopicPartition

tp = TopicPartition("first", 0)
with Group(client_config({"bootstrap.servers": sys.argv[1]}), sys.argv[2], patience=60) as group:
    for _ in range(3):
        assert sys.argv[3] in ("new", "bounced")
        held = group.committed([tp])
        group.members()
        if sys.argv[3] == "bounced":
            assert held == {tp: Committed(5, "before")}, held
            group.commit({tp: Committed(5, "before")})
print("done")
"""


def test_a_coordinator_that_is_not_ready_is_waited_for_and_crashes_nobody(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A process of its own asks from the moment the broker's port opens: its client may crash, not only raise."""
    with Broker(tmp_path_factory.mktemp("fresh")) as fresh:
        who = f"group-{uuid.uuid4().hex[:8]}"

        def asked_early(how: str) -> None:
            command = [sys.executable, "-c", FIRST_CALLS, fresh.bootstrap, who, how]
            asking = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                fresh.start()
                out, err = asking.communicate(timeout=90)
            finally:
                asking.kill()
                asking.wait()
            assert (asking.returncode, out) == (0, "done\n"), err

        fresh.stop()
        asked_early("new")
        fresh.create_topic("first")
        with Group(config(fresh), who) as mine:
            mine.commit({TopicPartition("first", 0): Committed(5, "before")})
        fresh.kill()
        asked_early("bounced")
