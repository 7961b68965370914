"""The parts in memory and the real ones pass the same tests, so that the doubles behave like what they stand for.

The ledger store is on real Delta tables too; group, cluster and exact reader are at a real broker too.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import Consumer
from deltalake.transaction import AddAction

from ackline.audit.store import LedgerStore
from ackline.commit_rule import Committed
from ackline.errors import FatalError, GroupBusy, LedgerError
from ackline.kafka.cluster import Cluster
from ackline.kafka.cursor import Gone
from ackline.kafka.exact import ExactReader
from ackline.kafka.group import Group
from ackline.ledger import OutcomeRow, PartitionState, Pending, PendingKind
from ackline.local.broker import Broker
from ackline.metrics import FetchTimes, TurnReport
from ackline.offsets import LogBounds, OffsetRange, TopicPartition, ValuedRange
from ackline.outcome import Outcome
from ackline.testing.memory import World
from ackline.testing.memory_kafka import MemoryCluster, MemoryGroup, MemoryReader
from ackline.testing.memory_store import MemoryStore, OutcomesFile
from ackline.turns import LIVE, OperatorLoss, Plan, PlannedPartition, SettledPartition, Settlement, TurnId, TurnKind
from tests.conftest import MakeTopic
from tests.contract import kafka_log, lane_rows
from tests.contract.lane_rows import NOON, TP, TP1, plan, settlement, turn

# ---- the ledger store ---------------------------------------------------------------------------------------------

Rows = list[tuple[int, int, str]]


@dataclass(frozen=True)
class Tables:
    """Tables of either kind. `store` returns a new store, as each process has one; `written` writes an outcome file."""

    store: Callable[[], LedgerStore]
    written: Callable[[TurnId, Rows, TopicPartition], Any]


def in_memory() -> Tables:
    world = World(NOON)

    def written(of: TurnId, rows: Rows, tp: TopicPartition) -> Any:
        path = world.new_id("file")
        values = tuple(OutcomeRow(offset, attempt, Outcome(word), NOON) for offset, attempt, word in rows)
        world.tables.files[path] = OutcomesFile(of, {tp: values})
        return AddAction(path, 1, {}, 0, True, "{}")

    return Tables(lambda: MemoryStore(world, "orders", LIVE), written)


def on_disk(root: Path) -> Tables:
    def store() -> LedgerStore:
        return LedgerStore(str(root), "orders", LIVE)

    return Tables(store, lambda of, rows, tp: lane_rows.written(store(), of, rows, tp))


@pytest.fixture(params=["memory", "delta"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    """Tables that do not exist yet."""
    return in_memory() if request.param == "memory" else on_disk(tmp_path / "audit")


def test_a_lane_that_has_not_begun_has_nothing(tables: Tables) -> None:
    store = tables.store()
    assert (store.newest(), store.ledger_id()) == (None, "")
    assert not store.has_outcomes(turn(1))
    assert not store.has_decisions(turn(1))
    outcomes = store.outcomes_of(turn(1))
    assert (outcomes.rows, outcomes.counts, outcomes.attempted_fresh) == ({}, {}, {})
    for read in (store.plan, store.settlement):
        with pytest.raises(LedgerError):
            read(turn(1))


def test_s32_a_lane_may_begin_without_a_partition(tables: Tables) -> None:
    store = tables.store()
    first = Settlement(turn(0), TurnKind.GENESIS, "run", NOON, {})
    assert store.store_settlement(first, subscription={"topics": ["orders"]})
    newest = tables.store().newest()
    assert newest is not None
    assert (newest.turn, newest.kind, newest.partitions) == (turn(0), TurnKind.GENESIS, {})
    assert store.open_plan(newest) is None
    assert not store.store_settlement(settlement(0), subscription={"topics": ["others"]})
    assert tables.store().first_subscription(turn(0)) == {"topics": ["orders"]}


def test_what_a_first_genesis_of_an_earlier_version_was_made_for_is_not_known(tables: Tables) -> None:
    store = tables.store()
    assert store.store_settlement(settlement(0))
    assert store.first_subscription(turn(0)) is None


def test_s7_i11_a_number_that_is_taken_is_refused_and_adds_no_row(tables: Tables) -> None:
    """Each kind of commit has numbers of its own, which all processes share."""
    first, second = tables.store(), tables.store()
    assert first.store_settlement(settlement(0))
    assert first.open_plan(settlement(0)) is None
    assert first.store_plan(plan(1, "first"))
    assert second.open_plan(settlement(0)) == plan(1, "first")
    assert not first.has_outcomes(turn(1))
    assert second.store_outcomes(turn(1), [tables.written(turn(1), [(0, 1, "failed")], TP)])
    assert not second.has_decisions(turn(1))
    assert first.store_decisions(plan(1), "first", {TP: [OutcomeRow(3, 0, Outcome.DEAD, NOON)]})
    assert second.store_settlement(settlement(1, "second"), plan(1))
    before = first.outcomes_of(turn(1))
    assert before.counts == {TP: {"failed": 1, "dead": 1}}

    assert not second.store_plan(plan(1, "second"))
    assert not first.store_outcomes(turn(1), [tables.written(turn(1), [(0, 1, "acked")], TP)])
    assert not second.store_decisions(plan(1), "second", {TP: [OutcomeRow(0, 0, Outcome.DEAD, NOON)]})
    for n in (0, 1):
        assert not first.store_settlement(settlement(n, "first"), plan(n) if n else None)
    assert first.outcomes_of(turn(1)) == before
    assert (first.plan(turn(1)), first.newest()) == (plan(1, "first"), settlement(1, "second"))
    assert first.settlement(turn(1)) == settlement(1, "second")
    assert first.open_plan(settlement(1, "second")) is None
    assert first.ledger_id() == second.ledger_id() != ""


def test_a_plan_reads_back_as_it_was_stored(tables: Tables) -> None:
    """Ordered by topic-partition; equal neighbours among the retries are joined."""
    retries = (ValuedRange(2, 3, 2), ValuedRange(3, 5, 2), ValuedRange(7, 8, 3))
    reads = PlannedPartition(
        "Zq1", OffsetRange(10, 20), retries, 2, 10, LogBounds(1, 30, 7), None, Committed(2, '{"n": "é"}'), 3
    )
    partitions = {
        TP1: PlannedPartition("Zq1", OffsetRange(9, 9), (), 9, 9, LogBounds(2, 9), "nothing new", Committed(0, "")),
        TopicPartition("new", 11): PlannedPartition("Yx", OffsetRange(0, 0), (), 0, 0, LogBounds(0, 0), "no leader"),
        TP: reads,
    }
    settings = {"retry": {"period": "60s"}, "kafka": {"topics": ["é", "'"]}}
    stored = Plan(turn(1), TurnKind.RUN, "run", NOON, partitions, "read_uncommitted", settings, "ann", "why not")
    store = tables.store()
    assert store.store_plan(stored)
    joined = replace(reads, retries=(ValuedRange(2, 5, 2), ValuedRange(7, 8, 3)))
    assert store.plan(turn(1)) == replace(stored, partitions={**partitions, TP: joined})
    assert list(store.plan(turn(1)).partitions) == sorted(partitions)


def test_a_settlement_reads_back_as_it_was_stored(tables: Tables) -> None:
    pending = (
        ValuedRange(0, 2, Pending(PendingKind.RETRY, 3, NOON + timedelta(microseconds=1), "ValueError")),
        ValuedRange(5, 6, Pending(PendingKind.DEAD_LETTER, 4, None, None)),
        ValuedRange(8, 9, Pending(PendingKind.RETRY, 1, datetime.max.replace(tzinfo=UTC), None)),
    )
    # Touching ranges of equal value stay two: each value is of its whole range.
    gaps = (ValuedRange(1, 4, 2), ValuedRange(4, 9, 2), ValuedRange(2**40, 2**62, 2**50))
    state, counts = PartitionState(2**62, pending, gaps), {"acked": 7, "failed": 2}
    partitions = {
        TP: SettledPartition("Zq1", 0, state, counts, 3, 40, Committed(4, "{}"), "outcomes 1", leader_epoch=7),
        TP1: SettledPartition("Zq1", 9, PartitionState(9), paused=True, leader_epoch=0),
    }
    stored = Settlement(turn(1), TurnKind.VOID, "run", NOON, partitions, "ann", "range gone")
    store = tables.store()
    assert store.store_settlement(stored, plan(1))
    assert store.settlement(turn(1)) == stored


def test_a_report_goes_with_the_outcomes_of_who_won_and_is_there_for_all(tables: Tables) -> None:
    first, second = tables.store(), tables.store()
    assert first.report_of(turn(1)) is None
    report = TurnReport(
        {TP: {"acked": 3}, TP1: {"dropped": 1}}, {TP: FetchTimes(2, 0.5, 0.25), TP1: FetchTimes()}, False
    )
    assert first.store_outcomes(turn(1), [], report)
    assert not second.store_outcomes(turn(1), [], TurnReport())
    assert second.store_decisions(plan(1), "run", {})
    assert (first.report_of(turn(1)), second.report_of(turn(1))) == (report, report)
    assert second.store_outcomes(turn(2), [])
    assert first.report_of(turn(2)) is None
    assert first.report_of(turn(1, epoch=1)) is None
    assert first.store_lost(plan(3), "run", {TP: [OutcomeRow(0, 0, Outcome.LOST, NOON, None, 3)]})
    assert first.report_of(turn(3)) == TurnReport()


@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("pause", [False, True])
def test_an_operators_mark_is_stored_with_the_lost_ranges_and_with_these_only(
    pause: bool, reported: bool, tables: Tables
) -> None:
    first, second, loss = tables.store(), tables.store(), OperatorLoss("the driver hangs", pause)
    rows = {TP: [OutcomeRow(0, 0, Outcome.LOST, NOON, None, 3, loss.reason)]}
    assert first.operator_loss(turn(1)) is None
    if reported:
        assert first.store_outcomes(turn(1), [])
        assert not second.store_lost(plan(1), "run", rows, loss)
        assert first.operator_loss(turn(1)) is None
        assert second.replace_by_lost(plan(1), "run", rows, loss)
    else:
        assert second.store_lost(plan(1), "run", rows, loss)
    assert (first.operator_loss(turn(1)), second.operator_loss(turn(1))) == (loss, loss)
    assert first.store_lost(plan(2), "run", rows)
    assert first.operator_loss(turn(2)) is None


def test_figures_and_totals_come_back_and_may_be_missing(tables: Tables) -> None:
    store, state = tables.store(), PartitionState(5)
    rows = {
        TP: SettledPartition("id", 0, state, gaps=None, metrics={"lag": 3.0, "due": 0.0}, totals={"acked": 2}),
        TP1: SettledPartition("id", 0, state, metrics={}, totals={}),
        TopicPartition("payments", 0): SettledPartition("id", 0, state),
    }
    assert store.store_settlement(Settlement(turn(0), TurnKind.GENESIS, "run", NOON, rows))
    assert tables.store().settlement(turn(0)).partitions == rows


def test_zero_rows_are_a_proof_and_a_later_number_proves_no_gap(tables: Tables) -> None:
    store = tables.store()
    assert store.store_outcomes(turn(2), [])
    assert not store.store_outcomes(turn(1), [])
    assert store.has_outcomes(turn(2))
    found = store.outcomes_of(turn(2))
    assert (found.rows, found.counts, found.attempted_fresh) == ({}, {}, {})
    assert not store.has_outcomes(turn(3))
    assert not store.has_decisions(turn(2))


def test_an_epoch_is_opened_by_the_last_turn_of_the_one_before(tables: Tables) -> None:
    store = tables.store()
    for n in range(3):
        store.store_settlement(settlement(n))
    assert store.reset_into(1) == turn(2)


def test_starts_of_a_plan_are_counted_whoever_makes_them(tables: Tables) -> None:
    first, second = tables.store(), tables.store()
    first.store_settlement(settlement(0))
    first.store_plan(plan(1))
    assert [store.count_start(plan(1)) for store in (first, second, first, second, second)] == [1, 2, 3, 4, 4]
    assert second.open_plan(settlement(0)) == plan(1)
    assert not first.has_outcomes(turn(1))
    assert first.store_settlement(settlement(1), plan(1))
    assert [second.count_start(plan(2)), first.count_start(plan(2))] == [1, 2]
    assert first.count_start(plan(1)) == 4
    assert tables.store().count_start(plan(2)) == 3


def test_s53_who_looked_before_others_went_on_finds_no_plan(tables: Tables) -> None:
    first, late = tables.store(), tables.store()
    first.store_settlement(settlement(0))
    before = late.newest()
    assert before is not None
    first.store_plan(plan(2))
    with pytest.raises(LedgerError, match="a commit of the tables is missing"):
        late.open_plan(before)
    first.store_settlement(settlement(1), plan(1))
    assert late.open_plan(before) is None
    assert not late.store_plan(plan(1, "late"))


def test_a_turns_outcomes_are_counted_and_those_that_did_not_succeed_at_once_are_read(tables: Tables) -> None:
    store = tables.store()
    store.store_outcomes(
        turn(1),
        [
            tables.written(turn(1), [(offset, 1, "acked") for offset in range(5)], TP),
            tables.written(turn(1), [(5, 1, "failed")], TP),
            tables.written(turn(1), [(2, 2, "acked")], TP1),
            tables.written(turn(1), [(9, 1, "skipped")], TP1),
        ],
    )
    decided = OutcomeRow(7, 0, Outcome.EXPIRED, NOON, None, 9)
    store.store_decisions(plan(1), "run", {TP: [decided]})
    store.store_outcomes(turn(2), [tables.written(turn(2), [(100, 1, "failed")], TP)])
    outcomes = store.outcomes_of(turn(1))
    assert outcomes.counts == {TP: {"acked": 5, "failed": 1, "expired": 2}, TP1: {"acked": 1, "skipped": 1}}
    assert outcomes.attempted_fresh == {TP: 6, TP1: 1}
    assert sorted(outcomes.rows[TP]) == [OutcomeRow(5, 1, Outcome.FAILED, NOON), decided]
    assert list(outcomes.rows[TP1]) == [OutcomeRow(2, 2, Outcome.ACKED, NOON)]


# ---- the group, the cluster, the exact reader -----------------------------------------------------------------------


class Log(Protocol):
    """One partition of a topic and one consumer group, of either kind."""

    tp: TopicPartition

    def group(self) -> AbstractContextManager[Group]: ...
    def cluster(self) -> AbstractContextManager[Cluster]: ...
    def reader(self) -> AbstractContextManager[ExactReader]: ...
    def produce(self, values: Sequence[bytes]) -> None: ...
    def abort(self, values: Sequence[bytes]) -> None: ...
    def expire(self, before: int) -> None: ...
    def member(self) -> AbstractContextManager[object]: ...


class LogInMemory:
    """The log and the group of a world."""

    def __init__(self) -> None:
        self.tp = TopicPartition("orders", 0)
        self._world = World(NOON)
        self._log = self._world.create_topic("orders").logs[0]

    def group(self) -> AbstractContextManager[Group]:
        return nullcontext(MemoryGroup(self._world, "group"))

    def cluster(self) -> AbstractContextManager[Cluster]:
        return nullcontext(MemoryCluster(self._world, "read_committed"))

    def reader(self) -> AbstractContextManager[ExactReader]:
        return nullcontext(MemoryReader(self._world, "read_committed"))

    def produce(self, values: Sequence[bytes]) -> None:
        for value in values:
            self._log.append(value, NOON)

    def abort(self, values: Sequence[bytes]) -> None:
        for value in values:
            self._log.append(value, NOON, open_=True)
        self._log.end_transaction(commit=False)

    def expire(self, before: int) -> None:
        self._log.expire(before)

    @contextmanager
    def member(self) -> Iterator[object]:
        self._world.members.append("contract (127.0.0.1)")
        yield None
        self._world.members.clear()


class LogOfABroker:
    """A log and a group of the broker of the tests."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.tp = TopicPartition(topic, 0)
        self._broker, self._group = broker, f"group-{uuid.uuid4().hex[:10]}"

    def group(self) -> AbstractContextManager[Group]:
        return Group(kafka_log.config(self._broker), self._group)

    def cluster(self) -> AbstractContextManager[Cluster]:
        return Cluster(kafka_log.config(self._broker), "read_committed")

    def reader(self) -> AbstractContextManager[ExactReader]:
        return ExactReader(kafka_log.config(self._broker), "read_committed")

    def produce(self, values: Sequence[bytes]) -> None:
        kafka_log.put(self._broker, self.tp.topic, [(None, value) for value in values])

    def abort(self, values: Sequence[bytes]) -> None:
        kafka_log.aborted(self._broker, self.tp.topic, values)

    def expire(self, before: int) -> None:
        kafka_log.delete_before(self._broker, self.tp.topic, before)

    @contextmanager
    def member(self) -> Iterator[object]:
        consumer = Consumer(
            {"bootstrap.servers": self._broker.bootstrap, "group.id": self._group, "client.id": "contract"}
        )
        joined = threading.Event()
        consumer.subscribe([self.tp.topic], on_assign=lambda *_: joined.set())
        try:
            for _ in range(600):
                consumer.poll(0.1)
                if joined.is_set():
                    break
            assert joined.is_set()
            yield None
        finally:
            consumer.close()


@pytest.fixture(params=["memory", "broker"])
def log(request: pytest.FixtureRequest) -> Log:
    """A log without records, and a group without commits."""
    if request.param == "memory":
        return LogInMemory()
    make: MakeTopic = request.getfixturevalue("topic")
    return LogOfABroker(request.getfixturevalue("broker"), make())


def test_s31_what_was_committed_is_read_back_and_offset_0_is_not_unset(log: Log) -> None:
    with log.group() as group, log.group() as other:
        assert group.committed([log.tp]) == {}
        group.commit({log.tp: Committed(0, '{"n": 1}')})
        assert other.committed([log.tp]) == {log.tp: Committed(0, '{"n": 1}')}
        other.commit({log.tp: Committed(5, "")})
        assert group.committed([log.tp]) == {log.tp: Committed(5, "")}


def test_what_is_not_there_has_no_commit_and_takes_none(log: Log) -> None:
    nowhere = TopicPartition("nowhere", 0)
    with log.group() as group:
        assert group.committed([nowhere]) == {}
        for offsets in ({nowhere: Committed(1, "")}, {log.tp: Committed(-1, "")}):
            with pytest.raises(FatalError):
                group.commit(offsets)


def test_s37_a_live_member_is_named_and_nothing_is_committed(log: Log) -> None:
    with log.group() as group:
        with log.member():
            assert len(group.members()) == 1
            with pytest.raises(GroupBusy, match="contract"):
                group.commit({log.tp: Committed(1, "")})
        assert group.committed([log.tp]) == {}
        group.commit({log.tp: Committed(1, "")})


def test_s40_s41_s43_each_wanted_offset_is_found_or_provably_gone(log: Log) -> None:
    log.produce([b"%d" % n for n in range(4)])
    log.abort([b"x", b"y"])
    log.produce([b"last"])
    log.expire(2)
    with log.cluster() as cluster, log.reader() as reader:
        bounds = cluster.bounds([log.tp])[log.tp]
        assert (bounds.start, bounds.end) == (2, 8)
        answers = list(reader.read({log.tp: [0, 1, 2, 3, 4, 6, 7]}))
        gone = {answer.offset: answer.outcome for answer in answers if isinstance(answer, Gone)}
        assert gone == dict.fromkeys((0, 1), Outcome.EXPIRED) | dict.fromkeys((4, 6), Outcome.COMPACTED)
        values = {answer.offset: answer.message.value() for answer in answers if not isinstance(answer, Gone)}
        assert values == {2: b"2", 3: b"3", 7: b"last"}
        with pytest.raises(FatalError, match="the log ends at 8"):
            list(reader.read({log.tp: [8]}))


def test_a_topic_is_known_by_its_id_and_its_partitions_by_their_leaders(log: Log) -> None:
    with log.cluster() as cluster:
        topics = cluster.topics([log.tp.topic, "nowhere"])
        assert list(topics) == [log.tp.topic]
        assert topics[log.tp.topic].topic_id
        assert dict(topics[log.tp.topic].partitions) == {0: True}
        assert log.tp.topic in cluster.names()
        log.produce([b"a"])
        assert (cluster.written_ends([log.tp]), cluster.written_ends([])) == ({log.tp: 1}, {})
        with pytest.raises(FatalError):
            cluster.bounds([TopicPartition("nowhere", 0)])
