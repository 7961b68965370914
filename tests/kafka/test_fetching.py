"""When an exact read gives up: not while the client steps through records that it does not hand out.

What an event of the log proves about wanted offsets, and when a reader reads on, seeks, or reads for throughput.
"""

import json

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from ackline.kafka.fetching import DENSE_SPAN, SEEK_DISTANCE, Cursor, Found, Gone, StallTimer, Statistics
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome


def report(position: int, records: int = 0, received: int = 0) -> str:
    partition = {"rxmsgs": records, "next_offset": position}
    return json.dumps({
        "brokers": {"a:1/1": {"rxbytes": received}, "a:1/bootstrap": {"rxbytes": 5}},
        "topics": {"orders": {"partitions": {"0": partition, "-1": {"rxmsgs": 0, "next_offset": -1001}}}},
    })  # fmt: skip


def test_statistics_add_up_what_the_client_received() -> None:
    statistics = Statistics()
    assert (statistics.records, statistics.bytes, statistics.positions) == (0, 0, 0)
    statistics(report(100, records=7, received=1000))
    assert (statistics.records, statistics.bytes) == (7, 1005)


def test_a_read_stalls_after_the_time_out_and_a_record_starts_it_anew() -> None:
    stall = StallTimer(1.0, Statistics())
    for seconds, got_record in ((0.9, False), (0.1, True), (0.9, False)):
        stall.add(seconds, got_record=got_record)
        assert not stall.is_stalled()
    stall.add(0.2, got_record=False)
    assert stall.is_stalled()


def test_moving_through_records_that_are_not_handed_out_is_progress() -> None:
    statistics = Statistics()
    stall = StallTimer(1.0, statistics)
    for position, stalled in ((100, False), (200, False), (300, False), (300, True)):
        statistics(report(position))
        stall.add(1.1, got_record=False)
        assert stall.is_stalled() == stalled


TP = TopicPartition("orders", 0)
OFFSETS = st.lists(st.integers(0, 300), unique=True, min_size=1).map(sorted)


@given(wanted=OFFSETS, log=OFFSETS)
def test_each_wanted_offset_is_found_or_gone_as_the_log_has_it(wanted: list[int], log: list[int]) -> None:
    """The cursor gets every record from the first wanted offset on, then the end."""
    cursor, answers = Cursor(TP, wanted, stop=len(wanted)), list[Found | Gone]()
    for offset in (offset for offset in log if offset >= wanted[0]):
        answers += cursor.on_record(Message(), offset)
    answers += cursor.gone_below(301, Outcome.COMPACTED)
    assert [answer.offset for answer in answers] == wanted
    assert {answer.offset for answer in answers if isinstance(answer, Found)} == set(wanted) & set(log)
    assert cursor.all_answered


@given(wanted=OFFSETS)
def test_a_record_proves_nothing_about_itself_or_what_follows(wanted: list[int]) -> None:
    answers = list(Cursor(TP, wanted, stop=len(wanted)).on_record(Message(), 150))
    assert [answer.offset for answer in answers if isinstance(answer, Gone)] == [o for o in wanted if o < 150]
    assert all(answer.offset == 150 for answer in answers if isinstance(answer, Found))


@given(gaps=st.lists(st.sampled_from([1, 20, SEEK_DISTANCE, SEEK_DISTANCE + 1, 5000]), min_size=1, max_size=50))
def test_stretches_cover_all_wanted_offsets_in_order(gaps: list[int]) -> None:
    wanted = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    cursor, covered = Cursor(TP, wanted), list[int]()
    while not cursor.all_answered:
        assert not cursor.choose_stretch()  # too short for throughput
        assert cursor.position == cursor.next == wanted[cursor.index]
        covered += wanted[cursor.index : cursor.stop]
        cursor.index = cursor.stop
    assert covered == wanted


def test_scattered_offsets_make_one_stretch_and_close_ones_their_own() -> None:
    close = range(3000, 3000 + DENSE_SPAN + SEEK_DISTANCE, SEEK_DISTANCE)
    cursor, stretches = Cursor(TP, [0, 1000, 2000, *close, 900_000, 950_000]), list[tuple[bool, int]]()
    while not cursor.all_answered:
        stretches.append((cursor.choose_stretch(), cursor.stop - cursor.index))
        cursor.index = cursor.stop
    assert stretches == [(False, 3), (True, len(close)), (False, 2)]


def test_a_near_offset_is_read_on_to_and_a_far_one_sought() -> None:
    cursor = Cursor(TP, [0, SEEK_DISTANCE + 1, 2 * SEEK_DISTANCE + 3], stop=3)
    list(cursor.on_record(Message(), 0))
    assert not cursor.must_seek
    list(cursor.on_record(Message(), SEEK_DISTANCE + 1))
    assert cursor.must_seek
