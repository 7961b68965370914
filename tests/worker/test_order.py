"""No record overtakes a lower one of its key, or of its partition; and no key waits for another one."""

import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from ackline import Record
from ackline.handler import Tier, tier_of
from ackline.ledger.answers import TokenSigner
from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRange
from ackline.ledger.order import NO_KEY, WHOLE_PARTITION, Order, Waiting
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnId
from ackline.pipeline.properties import key_hash
from ackline.pipeline.streams import Stream, Translation
from ackline.worker import streams
from ackline.worker.files import Chunk, OutcomeTarget
from ackline.worker.records import GoneOffsets, Records
from ackline.worker.run import RateLimit, TaskRun
from ackline.worker.settings import KafkaSettings, ReplayJob, ReplaySettings, TaskSettings
from ackline.worker.streams import Streams, gets_batches, load_functions_of_job
from ackline.worker.tasks import (
    FRESH,
    Batch,
    UnreadableRecords,
    assign_reads,
    batches_of_reader,
    handle_batches,
    split_for_tasks,
)
from tests.worker import disk_handlers, ordered_handlers
from tests.worker.disk_lane import DiskLane
from tests.worker.isolation.killers import FOLDER
from tests.worker.isolation.lab import calls as calls_of_killers

TP, OTHER = TopicPartition("orders", 3), TopicPartition("orders", 4)
TURN = TurnId("shop", "live", 0, 1)
SECRET = b"a secret of the tests"
HANDLERS = "tests.worker.ordered_handlers"
SECONDS = 20
hashed = key_hash(SECRET)


class Stored(NamedTuple):
    outcome: Outcome
    attempt: int
    message: str | None
    key_hash: int | None


@dataclass
class Kept:
    """In place of the files of a task: the row of each offset."""

    rows: dict[int, Stored]
    counts: dict[Any, int]

    def add(self, tp: TopicPartition, outcome: Outcome, chunk: Chunk) -> None:
        count = len(chunk.offsets)
        hashes = [None] * count if chunk.key_hashes is None else pa.array(chunk.key_hashes).to_pylist()
        columns = chunk.offsets.tolist(), chunk.attempts.tolist(), chunk.messages or [None] * count, hashes
        for offset, attempt, message, of_key in zip(*columns, strict=True):
            assert offset not in self.rows
            self.rows[offset] = Stored(outcome, attempt, message, of_key)
        if count:
            self.counts[tp, outcome] = self.counts.get((tp, outcome), 0) + count

    def close(self) -> Sequence[Any]:
        return ()

    def discard(self) -> None:
        """There is nothing to remove."""


class Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    attempt: int = 1
    kind: str = "record"


def records_of(rows: Sequence[Row]) -> Records:
    return Records(
        TP,
        np.array([row.offset for row in rows], np.int64),
        np.full(len(rows), 1_600_000_000_000_000),
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
        None,
        np.array([row.attempt for row in rows], np.int32),
    )


def batches_of(rows: Sequence[Row], draw: random.Random) -> Iterator[Batch]:
    """The rows as an exact read yields them: none of another kind in a batch."""
    start = 0
    while start < len(rows):
        kind, end = rows[start].kind, start + draw.randrange(1, 20)
        part = list(rows[start:end])
        part = part[: next((n for n, row in enumerate(part) if row.kind != kind), len(part))]
        start += len(part)
        if kind == "gone":
            yield GoneOffsets(TP, [row.offset for row in part], Outcome.COMPACTED)
        else:
            yield records_of(part) if kind == "record" else UnreadableRecords(records_of(part))


def settings_of(handler: str | Translation, order: Order, **settings: Any) -> ReplaySettings:
    defaults: dict[str, Any] = {
        "deliver_tombstones": False, "on_failure": Outcome.FAILED, "now": None, "key_hash_secret": SECRET,
        "tokens": TokenSigner(b"k" * 16, "ledger", TURN, {TP: "id"}),
    }  # fmt: skip
    path = handler if isinstance(handler, str) and ":" in handler else f"{HANDLERS}:{handler}"
    named = {"handler": None, "translation": handler} if isinstance(handler, Translation) else {"handler": path}
    return ReplaySettings(**(defaults | named | settings), order=order)


@contextmanager
def task_of(settings: ReplaySettings, waiting: Waiting | None = None, **more: Any) -> Iterator[tuple[TaskRun, Kept]]:
    streams._load_once.cache_clear()
    loaded = load_functions_of_job(settings)

    tier = Tier.RECORD if isinstance(loaded, Streams) else tier_of(loaded)
    task = TaskSettings(
        OutcomeTarget("/nowhere", TURN, date(2024, 1, 1), "run"), settings, tier, TP.topic,
        waiting={} if waiting is None else {TP: waiting}, gets_batches=gets_batches(loaded), **more,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        kept = Kept({}, {})
        patch.setattr("ackline.worker.run.OutcomeFiles", lambda *_, **__: kept)
        with TaskRun(task) as run:
            yield run, kept


def handled(
    settings: ReplaySettings, batches: Iterator[Batch] | Sequence[Batch], waiting: Waiting | None = None, **more: Any
) -> Kept:
    with task_of(settings, waiting, **more) as (run, kept):
        assert list(handle_batches(run, batches)) == []
        list(run.finish())
    return kept


def expected(
    rows: Sequence[Row], waiting: Waiting, settings: ReplaySettings, words: Mapping[bytes, Outcome]
) -> tuple[dict[int, Outcome], dict[int, set[int]]]:
    """What becomes of each offset, one after the other; and by offset what holds a later record of its key back."""
    behind = {key: {offset} for key, offset in waiting.behind.items()}
    found: dict[int, Outcome] = {}
    holders: dict[int, set[int]] = {}
    for row in rows:
        if settings.order is Order.PARTITION:
            key = WHOLE_PARTITION
        elif row.key is None:
            key = NO_KEY
        else:
            key = WHOLE_PARTITION if waiting.whole else hashed(row.key)
        if row.kind == "gone":
            found[row.offset] = Outcome.COMPACTED
            continue
        if row.value is None and row.kind == "record" and not settings.deliver_tombstones:
            found[row.offset] = Outcome.SKIPPED
            continue
        holders[row.offset] = {each for each in behind.get(key, ()) if each < row.offset}
        if holders[row.offset]:
            found[row.offset] = Outcome.HELD_BACK
            continue
        outcome = Outcome.FAILED if row.kind == "unreadable" else words.get(row.value or b"", Outcome.ACKED)
        if key != NO_KEY and (
            outcome is Outcome.IN_FLIGHT or (outcome is Outcome.FAILED and settings.on_failure is Outcome.FAILED)
        ):
            behind.setdefault(key, set()).add(row.offset)
        found[row.offset] = settings.on_failure if outcome is Outcome.FAILED else outcome
    return found, holders


FAILED = dict.fromkeys((b"fail", b"dead"), Outcome.FAILED)
OF_RECORDS = FAILED | {b"skip": Outcome.SKIPPED, b"flight": Outcome.IN_FLIGHT}
OF_BATCHES = OF_RECORDS | {b"flight": Outcome.FAILED}
OF_FILTER = {b"other": Outcome.SKIPPED, b"broken": Outcome.FAILED}
ONE = Stream("one", f"{HANDLERS}:handle", f"{HANDLERS}:wants_one")
LATER = Stream("later", f"{HANDLERS}:handle_later", f"{HANDLERS}:wants_batch")
BATCH = Stream("batch", f"{HANDLERS}:handle_batch", f"{HANDLERS}:wants_batch")
MODES: list[tuple[str, Any, int | None, Mapping[bytes, Outcome]]] = [
    ("one by one", "handle", None, OF_RECORDS),
    ("threads", "handle", 8, OF_RECORDS),
    ("asynchronous", "handle_later", 8, OF_RECORDS),
    ("one asynchronous", "handle_later", 1, OF_RECORDS),
    ("batches", "handle_batch", None, OF_BATCHES),
    ("streams", Translation((ONE,)), None, OF_RECORDS | {b"other": Outcome.SKIPPED}),
    ("streams of both kinds", Translation((LATER, ONE)), 8, OF_RECORDS | OF_FILTER),
    ("streams with batches", Translation((BATCH, ONE)), None, OF_RECORDS | OF_FILTER),
]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("mode", "handler", "concurrency", "words"), MODES, ids=[mode for mode, *_ in MODES])
def test_s81_outcomes_are_those_of_one_call_after_the_other_and_no_call_overtakes_one_of_its_key(
    mode: str, handler: Any, concurrency: int | None, words: Mapping[bytes, Outcome], seed: int, monkeypatch: Any
) -> None:
    draw = random.Random(f"{mode} {seed}")
    monkeypatch.setattr("ackline.worker.under_way._PORTION", draw.choice([3, 7, 500]))
    if draw.random() < 0.3:
        monkeypatch.setattr("ackline.worker.under_way._MOST_ROWS", 20)
    common = [b"ack"] * draw.choice([4, 30]) + [b"skip", b"other", b"broken"]
    values = [*common, b"fail", b"dead", b"flight", None]
    keys = [None, *(bytes([97 + n]) for n in range(draw.choice([1, 4, 40])))]
    kinds = ["record"] * 20 + ["gone", "unreadable"]
    rows = [
        Row(offset, draw.choice(keys), draw.choice(values), draw.randrange(1, 4), draw.choice(kinds))
        for offset in sorted(draw.sample(range(300), 120))
    ]
    order = draw.choice([Order.KEY, Order.KEY, Order.PARTITION])
    whole = order is Order.PARTITION or draw.random() < 0.2
    of_keys = [WHOLE_PARTITION] if whole else [hashed(key) for key in keys if key is not None]
    waiting = Waiting(whole, {key: draw.randrange(300) for key in of_keys if draw.random() < 0.3})
    again = draw.random() < 0.7
    settings = settings_of(
        handler, order, concurrency=concurrency, deliver_tombstones=draw.random() < 0.5,
        on_failure=Outcome.FAILED if again else Outcome.DROPPED,
    )  # fmt: skip
    if "batches" in mode or not again:  # where nothing is in flight
        settings = replace(settings, tokens=None)
        rows = [row._replace(value=b"fail" if row.value == b"flight" else row.value) for row in rows]
    ordered_handlers.CALLS.clear()
    kept = handled(settings, batches_of(rows, draw), waiting, rate=10_000.0 if draw.random() < 0.2 else None)

    outcomes, holders = expected(rows, waiting, settings, words)
    assert {offset: row.outcome for offset, row in sorted(kept.rows.items())} == outcomes
    by_offset = {row.offset: row for row in rows}
    of_row = {row.offset: row for row in rows}
    for offset, stored in kept.rows.items():
        row = of_row[offset]
        if row.kind != "gone":
            assert stored.key_hash == (None if row.key is None else hashed(row.key))
            assert stored.attempt == (0 if stored.outcome is Outcome.HELD_BACK else row.attempt)
        if stored.outcome is Outcome.HELD_BACK:
            name = "partition" if whole else "same key"
            assert stored.message in {f"behind offset {each} of the {name}" for each in holders[offset]}

    calls = sorted(ordered_handlers.CALLS, key=lambda call: call[1])
    assert len({offset for offset, *_ in calls}) == len(calls)
    assert {offset for offset, *_ in calls} <= {
        offset for offset, outcome in outcomes.items() if outcome is not Outcome.HELD_BACK
    }
    last: dict[Any, tuple[int, int]] = {}
    for offset, begin, end in calls:
        row = by_offset[offset]
        key = "all" if order is Order.PARTITION else row.key if row.key is None or not whole else "all keys"
        if key is not None:
            before, ended = last.get(key, (-1, -1))
            assert before < offset, "calls of a key begin in the order of offsets"
            assert ended < begin, "and none before the one before it has ended"
            last[key] = offset, end


@pytest.mark.parametrize("key", [b"hot", None])
def test_a_key_with_a_slow_call_keeps_no_other_key_waiting(key: bytes | None, code: Any) -> None:
    """And chained rows count against no limit: with four calls, a hundred records of the slow key come first."""
    last = threading.Event()

    def handle(record: Record) -> None:
        if record.offset == 0:
            assert last.wait(SECONDS)
        elif record.offset == 199:
            last.set()

    code.handle = handle
    rows = [Row(offset, b"hot", b"x") for offset in range(100)]
    rows += [Row(offset, b"%d" % offset if key else None, b"x") for offset in range(100, 200)]
    kept = handled(settings_of(f"{code.__name__}:handle", Order.KEY, concurrency=4, tokens=None), [records_of(rows)])
    assert {row.outcome for row in kept.rows.values()} == {Outcome.ACKED}


def test_what_waits_in_a_chain_is_bounded_by_the_bytes_that_are_kept(
    code: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key, and payloads of which few fit: the task takes more records only as those before them are done."""
    monkeypatch.setattr("ackline.worker.under_way._PORTION", 10)
    monkeypatch.setattr("ackline.worker.under_way._MOST_BYTES", 50_000)
    most = [0]

    def handle(record: Record) -> None:
        most[0] = max(most[0], run._call._bytes)  # type: ignore[union-attr]

    code.handle = handle
    with task_of(settings_of(f"{code.__name__}:handle", Order.KEY, concurrency=4, tokens=None)) as (run, kept):
        rows = [Row(offset, b"k", b"x" * 1000) for offset in range(1000)]
        list(handle_batches(run, [records_of(rows[start : start + 100]) for start in range(0, 1000, 100)]))
        list(run.finish())
    assert len(kept.rows) == 1000
    assert most[0] <= 50_000 + 11_000


def test_with_a_rate_limit_a_record_waits_for_its_key_before_more_are_counted(
    code: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call begins in a later second than the one that it was counted for, because an earlier call of its key took
    long: the task goes on to count records only once the key is free."""
    counted, seen = list[int](), list[int]()
    second = threading.Event()

    def handle(record: Record) -> None:
        if record.offset == 0:
            second.wait(0.1)
        seen.append(len(counted))

    def wait(_: RateLimit, records: int) -> None:
        counted.append(records)
        if len(counted) > 2:
            second.set()

    code.handle = handle
    monkeypatch.setattr(RateLimit, "wait", wait)
    settings = settings_of(f"{code.__name__}:handle", Order.KEY, concurrency=4, tokens=None)
    handled(settings, [records_of([Row(offset, b"k", b"x")]) for offset in range(4)], rate=1_000_000.0)
    assert seen[0] == 2, "the second record was counted, and no more, when the first call ended"


def test_each_different_key_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []

    def counting(key: bytes) -> int:
        made.append(key)
        return hashed(key)

    monkeypatch.setattr("ackline.worker.run.key_hash", lambda _: counting)
    rows = [Row(offset, b"%d" % (offset % 3), b"ack") for offset in range(100)]
    kept = handled(settings_of("handle", Order.KEY), [records_of(rows)])
    assert sorted(made) == [b"0", b"1", b"2"]
    assert kept.rows[5].key_hash == hashed(b"2")


def test_held_back_records_are_no_calls(code: Any) -> None:
    code.handle = lambda record: ordered_handlers.handle(record)
    rows = [Row(0, b"k", b"fail"), Row(1, b"k", b"ack"), Row(2, b"j", b"ack"), Row(3, b"j", b"ack")]
    for concurrency in (None, 2):
        settings = settings_of(f"{code.__name__}:handle", Order.KEY, concurrency=concurrency, tokens=None)
        with task_of(settings, Waiting(False, {hashed(b"j"): 2})) as (run, kept):
            list(handle_batches(run, [records_of(rows)]))
            [manifest] = run.finish()
        assert sum(each or 0 for each in manifest.column("calls").to_pylist()) == 2
        assert kept.counts == {(TP, Outcome.ACKED): 1, (TP, Outcome.FAILED): 1, (TP, Outcome.HELD_BACK): 2}


@pytest.mark.parametrize("concurrency", [None, 3])
def test_after_a_death_what_comes_behind_the_culprit_is_held_back(
    concurrency: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that a call kills: followers of its key get no call, those of other keys do."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    words = [b"ok", b"kill", b"ok", b"fail", b"ok", b"ok", b"ok", b"ok"]
    keys = [b"a", b"a", b"b", b"b", b"a", b"b", b"c", None]
    rows = [Row(offset, key, word, 2) for offset, (key, word) in enumerate(zip(keys, words, strict=True))]
    (tmp_path / "met").touch()
    settings = settings_of(
        "tests.worker.isolation.killers_that_wait:meet", Order.KEY, concurrency=concurrency, isolated=True, tokens=None
    )
    more = [*rows[6:], Row(8, b"a", b"ok"), Row(9, b"c", b"ok")]
    kept = handled(settings, [records_of(rows[:6]), records_of(more)])
    failed, held, acked = Outcome.FAILED, Outcome.HELD_BACK, Outcome.ACKED
    found = [kept.rows[offset].outcome for offset in range(10)]
    assert found == [acked, failed, acked, failed, held, held, acked, acked, held, acked]
    assert kept.rows[4].message == kept.rows[8].message == "behind offset 1 of the same key"
    calls = calls_of_killers(tmp_path)
    assert {4, 5, 8}.isdisjoint(calls)


def job_of(order: Order, fresh: Mapping[TopicPartition, tuple[int, int]], retries: Any, **more: Any) -> ReplayJob:
    target = OutcomeTarget("/nowhere", TURN, date(2024, 1, 1), "run")
    ranges = {tp: OffsetRange(*ends) for tp, ends in fresh.items()}
    return ReplayJob(target, settings_of("handle", order), KafkaSettings({}, "read_committed"), ranges, retries, **more)


def test_a_partition_with_retries_is_read_exactly_as_a_whole() -> None:
    retries, fresh = {TP: (ValuedRange(3, 5, 2),)}, {TP: (100, 900), OTHER: (0, 50)}
    for order in (Order.KEY, Order.PARTITION):
        job = assign_reads(job_of(order, fresh, retries))
        assert job.fresh == {OTHER: OffsetRange(0, 50)}
        assert job.retries == {TP: (ValuedRange(3, 5, 2), ValuedRange(100, 900, FRESH))}
        partly = assign_reads(job_of(order, fresh, {}, exact_from={TP: 400, OTHER: 50}))
        assert partly.fresh == {OTHER: OffsetRange(0, 50)}
        assert partly.retries == {TP: (ValuedRange(100, 900, FRESH),)}
    assert assign_reads(job_of(Order.NONE, fresh, retries)).fresh == {
        tp: OffsetRange(*ends) for tp, ends in fresh.items()
    }


def test_a_partition_that_stays_whole_has_one_part_and_small_ones_share_parts() -> None:
    def parts(sizes: Sequence[int], whole: bool) -> list[list[int]]:
        retries = {
            TopicPartition("t", n): (ValuedRange(0, size // 2, 2), ValuedRange(size, size + size - size // 2, FRESH))
            for n, size in enumerate(sizes)
        }
        made = split_for_tasks(retries, 4, whole)
        joined = {tp: tuple(each for part in made for each in part.get(tp, ())) for tp in retries}
        assert not whole or joined == retries
        return [[tp.partition for tp in part] for part in made]

    assert parts([1_000_000, 400], True) == [[0], [1]]
    assert parts([400] * 10, True) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert len(parts([1_000_000, 400], False)) > 10


def test_a_long_range_is_read_in_sections_so_that_few_of_its_offsets_are_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ackline.worker.tasks._MAX_OFFSETS_PER_TASK", 1000)
    asked: list[tuple[TopicPartition, int, int, int]] = []

    class Reader:
        def read(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> Iterator[Any]:
            for tp, offsets in wanted.items():
                asked.append((tp, offsets[0], offsets[-1], len(offsets)))
                for offset in offsets:
                    message = SimpleNamespace(
                        offset=lambda offset=offset: offset, timestamp=lambda: (1, 5), key=lambda: b"k",
                        value=lambda: b"v",
                    )  # fmt: skip
                    yield SimpleNamespace(topic_partition=tp, offset=offset, message=message, headers=[])

    retries = {TP: (ValuedRange(7, 9, 2), ValuedRange(100, 2600, FRESH)), OTHER: (ValuedRange(0, 10, FRESH),)}
    found = list(batches_of_reader(Reader(), retries))  # type: ignore[arg-type]
    offsets = np.concatenate([each.offsets for each in found if isinstance(each, Records) and each.tp == TP])
    assert offsets.tolist() == [7, 8, *range(100, 2600)]
    assert max(count for *_, count in asked) <= 1000


def test_s81_followers_of_a_head_that_fails_twice_are_called_once_after_it_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane with tables on disk: planned, replayed by the tasks, and settled, turn by turn."""
    calls = Counter[int]()

    def called(offset: int) -> None:
        calls[offset] += 1
        if offset == 0 and calls[0] < 3:
            raise ValueError("not yet")

    monkeypatch.setattr(disk_handlers, "ANSWERS", {offset: partial(called, offset) for offset in range(20)})
    lane = DiskLane(tmp_path, handler="tests.worker.disk_handlers:answer", order="partition", retry={"max_retries": 5})
    lane.produce(*[b"x"] * 20)
    made = []
    for _ in range(4):
        lane.run()
        lane.world.now += timedelta(hours=1)
        made.append(calls.total())
    assert made == [1, 2, 3, 22]
    assert calls == {0: 3, **dict.fromkeys(range(1, 20), 1)}
