"""The tables of `ackline status`: what they list of many partitions, and that no number is ever broken."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ackline.answers.explain import MOST_EXPLAINED, _log_of, explain_partitions, held_back
from ackline.answers.overview import summary_of
from ackline.answers.status import (
    OpenTurnObject,
    PartitionStatus,
    open_turn_of,
    status,
    status_and_missing,
    status_object,
)
from ackline.cli.status import _held_lines, open_turn_lines
from ackline.cli.tables import _SELDOM, STATUS_COLUMNS, fitting_table, print_status, steps_table
from ackline.errors import TransientError
from ackline.handler import Durations, StepCounts
from ackline.lane.lease import TurnLease
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.states import State
from ackline.pipeline.warnings import TopicPolicy
from ackline.tables.layout import LEASE_NAME, LeaseFile
from ackline.tables.lease import Lease, ProcessIdentity
from tests.cli.test_tables import lines_of
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_kafka import MemoryCluster
from tests.support.memory_lane import DEAD, FAILS, NOON, OK, TP, MemoryLane

HUGE = 1_234_567_890_123


def printed(table: object, width: int) -> list[str]:
    out = StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().splitlines()


@pytest.fixture(scope="module")
def many() -> list[PartitionStatus]:
    """300 partitions, of which every thirtieth has five failed records and the others one acked record."""
    lane = MemoryLane(partitions=300, max_records_per_run=10_000, dead_letter="none", retry={"initial_delay": "1h"})
    for partition in range(300):
        values = [FAILS] * 5 if partition % 30 == 0 else [OK]
        lane.produce(*values, tp=TopicPartition("orders", partition))
    lane.run()
    return status(lane.adapters())


def test_of_300_partitions_the_worst_twenty_are_listed_and_then_the_totals(many: list[PartitionStatus]) -> None:
    lines = lines_of(lambda out: print_status(out, "lane", many), width=200)
    assert lines[0] == "Pipeline lane, 20 of 300 partitions, the worst ones"
    assert len(lines) == 1 + 1 + 20 + 1
    assert [line.split()[0] for line in lines[2:12]] == [f"orders[{partition}]" for partition in range(0, 300, 30)]
    assert lines[-1].split()[:2] == ["all", "300"]
    by_name = lines_of(lambda out: print_status(out, "lane", many, by_name=True), width=200)
    assert by_name[2:12] != lines[2:12], "sorted by name, the worst ones are among others"


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_table_fits_its_width_and_breaks_no_number(many: list[PartitionStatus], width: int) -> None:
    numbers = {"floor": HUGE, "lag": HUGE, "log_end": 2 * HUGE, "log_start": HUGE}
    huge = [found.model_copy(update={"topic": "a-topic-with-quite-a-long-name"} | numbers) for found in many]
    lines = lines_of(lambda out: print_status(out, "lane", huge), width=width)
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    assert text.count(f"{HUGE:,}") == 3 * 20, "floor, lag and log start of each partition, none of them broken"
    assert text.count(f"{2 * HUGE:,}") == 20


@pytest.mark.parametrize("width", [60, 80])
def test_in_a_narrow_terminal_the_columns_that_do_not_fit_fold_into_a_second_line_of_each_partition(width: int) -> None:
    lane = MemoryLane(partitions=2, retry={"initial_delay": "1h"})
    lane.produce(OK, FAILS, DEAD)
    lane.produce(OK, OK, tp=TopicPartition("orders", 1))
    lane.run()
    lines = lines_of(lambda out: print_status(out, "lane", status(lane.adapters())), width=width)
    assert max(map(len, lines)) <= width
    every = {name: values_of(lines, name) for name in ("orders[0]", "orders[1]", "all 2")}
    assert every["orders[0]"].keys() >= {*STATUS_COLUMNS} - {"seconds", *_SELDOM, ""}, "no column is missing"
    assert [every[name]["acked"] for name in every] == ["1", "2", "3"]
    assert [every[name]["dead"] for name in every] == ["1", "0", "1"]
    assert every["orders[0]"]["next due"] == every["all 2"]["next due"] == "03-01 13:00:00"


def values_of(lines: list[str], partition: str) -> dict[str, str]:
    """What the table shows of a partition: in its row, and in the lines below it."""
    (at,) = [number for number, line in enumerate(lines) if line.startswith(partition)]
    header, row = (re.split(" {2,}", line.strip()) for line in (lines[1], lines[at]))
    below = " ".join(line.strip() for line in takewhile(lambda line: line.startswith("  "), lines[at + 1 :]))
    folded = [
        next(name for name in STATUS_COLUMNS if name and part.startswith(f"{name} ")) for part in below.split(", ")
    ]
    values = [part.removeprefix(f"{name} ") for name, part in zip(folded, below.split(", "), strict=True)]
    return dict(zip(header, row, strict=False)) | dict(zip(folded, values, strict=True))


def test_columns_go_in_the_order_of_their_importance() -> None:
    columns, rows = ("name", "small", "large", "last"), [["orders", 1, HUGE, 7]]
    shown = [
        printed(fitting_table(None, columns, rows, ("name", "large"), width), width)[0].split()
        for width in (60, 35, 28)
    ]
    assert shown == [["name", "small", "large", "last"], ["name", "small", "large"], ["name", "large"]]


def test_a_pipeline_is_as_bad_as_its_worst_partition(many: list[PartitionStatus]) -> None:
    assert summary_of("lane", many, []).state is State.FAILING
    idle = [found for found in many if not found.lag]
    assert summary_of("lane", idle, []).state is State.UP_TO_DATE
    lost = idle[0].model_copy(update={"lag": 5, "first_at_risk": 0, "log_start": 3, "state": State.LOSING})
    found = summary_of("lane", [*many, lost], [])
    assert (found.state, found.problem) == (
        State.LOSING,
        f"{lost.topic}[{lost.partition}]: retention has taken records that were not settled, from offset 0 on",
    )
    gone = summary_of("lane", [*many, idle[1].model_copy(update={"why": "missing", "state": State.STUCK})], [])
    assert (gone.state, gone.problem) == (State.STUCK, f"{idle[1].topic}[{idle[1].partition}]: missing")
    assert summary_of("lane", many, ["payments"]).problem == "payments does not exist"
    summary = summary_of("lane", many, [])
    assert (summary.partitions, summary.lag, summary.pending, summary.dead) == (300, 50, 50, 0)


def test_below_the_table_are_the_records_that_hold_floors_and_the_open_turn() -> None:
    lane = MemoryLane(partitions=8, dead_letter="none", retry={"initial_delay": "1h"})
    for partition in range(8):
        lane.produce(FAILS, OK, tp=TopicPartition("orders", partition))
    lane.run()
    lane.produce(OK)
    lane.plan()
    found, _ = status_and_missing(lane.adapters())
    lines = _held_lines(held_back(lane.adapters(), found), NOON + timedelta(minutes=1))
    assert lines[0] == "Held by:"
    assert lines[1].startswith("  The floor of orders[0] is 0, because offset 0 failed once with ")
    assert lines[1 + MOST_EXPLAINED].startswith("  … and 3 more of these partitions")
    assert lines[-2:] == [
        "Open: turn 2 (lane live, epoch 0) of lane, planned 60 seconds ago by run run of test.",
        "  No process holds its lease.",
    ]


@pytest.fixture
def leased(tmp_path: Path) -> Iterator[MemoryAdapters]:
    """A process that looks at a lane with an open turn, whose lease is on the disk; the test holds the lease."""
    lane = MemoryLane(OK)
    plan, file = lane.plan(), LeaseFile(str(tmp_path))
    leases = TurnLease(file, "run-1", clock=lambda: NOON, renewing=lambda _: nullcontext())
    with leases.held(plan.turn):
        os.utime(tmp_path / LEASE_NAME, (NOON.timestamp(), NOON.timestamp()))
        yield lane.adapters(lease=leases)


def seen_after(adapters: MemoryAdapters, seconds: float) -> tuple[str, Any]:
    """The text and the object of the holder, to a process that looks so many seconds after the last renewal."""
    assert adapters.lease is not None
    later = replace(adapters.lease, clock=lambda: NOON + timedelta(seconds=seconds))
    found = open_turn_of(replace(adapters, lease=later))
    assert found is not None
    return open_turn_lines(found, NOON)[1], OpenTurnObject.of(found).dump()["holder"]


def test_the_open_turn_names_the_process_that_replays_it_and_whether_its_lease_has_lapsed(
    leased: MemoryAdapters,
) -> None:
    host, process = socket.gethostname(), os.getpid()
    who = f"  Replayed by run run-1 on host {host} (process {process}) since 2026-03-01T12:00:00+00:00; "
    assert seen_after(leased, 5) == (
        f"{who}renewed 5 seconds ago.",
        {"run_id": "run-1", "host": host, "process": process, "since": NOON.isoformat(), "unrenewed_seconds": 5.0,
         "state": "active"},
    )  # fmt: skip
    assert seen_after(leased, 60)[1]["state"] == "active"
    text, holder = seen_after(leased, 61)
    assert text == f"{who}lapsed: not renewed for 61 seconds, so the next run goes on with it."
    assert holder["state"] == "lapsed"
    assert seen_after(leased, -3600)[1]["unrenewed_seconds"] == 0, "the clock of the disk is ahead"


def test_a_holder_whose_process_has_ended_is_named_as_such(leased: MemoryAdapters) -> None:
    assert leased.lease is not None
    file = leased.lease.file
    lease = Lease.decode(file.read() or b"")
    file.write(replace(lease, process=str(replace(ProcessIdentity.decode(lease.process), started=1))).encode())
    text, holder = seen_after(leased, 1)
    assert (holder["state"], text.endswith("; its process has ended, so the next run goes on with it.")) == (
        "ended",
        True,
    )


@pytest.mark.parametrize("content", [b"", b"garbage", b"[" * 5000])
def test_a_lease_that_cannot_be_read_or_is_of_another_turn_has_no_holder(
    leased: MemoryAdapters, content: bytes
) -> None:
    assert leased.lease is not None
    file = leased.lease.file
    lease = Lease.decode(file.read() or b"")
    file.write(replace(lease, turn="turn 1 (lane live, epoch 7) of lane").encode())
    assert seen_after(leased, 1)[1] is None
    file.write(content)
    assert seen_after(leased, 1)[1] is None
    file.remove()
    assert seen_after(leased, 1)[1] is None


def test_without_an_open_turn_the_object_has_none() -> None:
    found = open_turn_of(MemoryLane(OK).after_run().adapters())
    assert status_object("lane", [], [], None, found).dump()["open_turn"] is None


def test_retention_may_take_the_record_at_the_floor_once_it_is_as_old_as_the_topic_keeps_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policies = {"orders": TopicPolicy(timedelta(days=1))}
    monkeypatch.setattr(MemoryCluster, "policies", lambda *_: policies)
    lane = MemoryLane(OK, FAILS, OK, dead_letter="none", retry={"initial_delay": "1h"}).after_run()
    (found,) = explain_partitions(lane.adapters(), TP)
    assert found.retention.eta == NOON + timedelta(days=1)
    assert "Retention may take offset 1 from 2026-03-02 12:00:00 UTC (in 24 hours) on." in found.sentence
    policies["orders"] = TopicPolicy(timedelta.max)
    assert explain_partitions(lane.adapters(), TP)[0].retention.eta is None, "beyond the calendar"
    lane.log().expire(2)
    gone = explain_partitions(lane.adapters(), TP)[0].sentence
    assert gone.endswith("The log starts at 2: the next run settles what is gone below it as expired.")


def test_without_the_broker_an_offset_is_explained_from_the_tables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: MemoryCluster) -> str:
        raise TransientError("no broker answers")

    lane = MemoryLane(OK, FAILS).after_run()
    monkeypatch.setattr(MemoryCluster, "reachable", away)
    assert _log_of(lane.adapters(), lane.newest(), TP) is None


def test_the_table_of_steps_fits_into_eighty_columns() -> None:
    figures = StepFigures(
        {"source": StepCounts(execute=Durations(2, 3_000_000, 2_000_000)), "p" * 24: StepCounts(123_456_789)}
    )
    figures.latency, figures.turns = Durations(4, 48_000_000, 20_000_000), 7
    lines = printed(steps_table(figures, 80), 80)
    title = " ".join(line.strip() for line in lines[:2])
    assert title.startswith("Steps, newest 7 turns with records; complete latency 12.0 ms, at most 20.0 ms")
    assert all(len(line.rstrip()) <= 80 for line in lines)
    [source] = [line.split() for line in lines if line.startswith("source")]
    assert source == ["source", "0", "0", "0", "0", "1.5", "2.0"]
    [huge] = [line.split() for line in lines if line.startswith("p" * 24)]
    assert huge == ["p" * 24, "123,456,789", "0", "0", "0", "–", "–"]
