"""When an exact read gives up: not while the client steps through records that it does not hand out."""

import json

from ackline.kafka.fetching import StallTimer, Statistics


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
