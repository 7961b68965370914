"""When an exact read gives up: not while the client steps through records that nobody may be given."""

import json

from ackline.kafka.fetching import Meter, Patience


def statistics(position: int, records: int = 0, received: int = 0) -> str:
    partition = {"rxmsgs": records, "next_offset": position}
    return json.dumps({
        "brokers": {"a:1/1": {"rxbytes": received}, "a:1/bootstrap": {"rxbytes": 5}},
        "topics": {"orders": {"partitions": {"0": partition, "-1": {"rxmsgs": 0, "next_offset": -1001}}}},
    })  # fmt: skip


def test_a_meter_knows_what_the_client_received() -> None:
    meter = Meter()
    assert (meter.records, meter.bytes, meter.positions) == (0, 0, 0)
    meter(statistics(100, records=7, received=1000))
    assert (meter.records, meter.bytes) == (7, 1005)


def test_silence_ends_patience_and_a_record_renews_it() -> None:
    patience = Patience(1.0, Meter())
    patience.waited(0.9, record=False)
    patience.waited(0.1, record=True)
    patience.waited(0.9, record=False)
    assert not patience.over
    patience.waited(0.2, record=False)
    assert patience.over


def test_moving_through_records_that_are_not_handed_out_is_no_silence() -> None:
    meter = Meter()
    patience = Patience(1.0, meter)
    for position in (100, 200, 300):
        meter(statistics(position))
        patience.waited(1.1, record=False)
        assert not patience.over
    patience.waited(1.1, record=False)
    assert patience.over
