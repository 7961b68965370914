"""The sentence for a partition: what holds its floor, what the record waits for, and what retention takes next."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ackline.ledger.explain import HeldBy, PartitionEvidence, explain_partition, held_by, span
from ackline.ledger.explain_offset import pending_at
from ackline.ledger.fold import PartitionState, Pending, PendingKind
from ackline.ledger.offsets import TopicPartition, ValuedRange

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
IDLE = PartitionEvidence(TopicPartition("orders", 3), 41, None, 10, 41, None, NOON)
RETRY = HeldBy(41, PendingKind.RETRY, 2, NOON + 4 * MINUTE, "HTTPError")


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (
            RETRY,
            "offset 41 failed 2 times with HTTPError and waits for attempt 3, due at 2026-03-01 12:04:00 UTC (in 4 ",
        ),
        (
            replace(RETRY, due=NOON - 5 * MINUTE),
            "due since 2026-03-01 11:55:00 UTC (5 minutes ago): the next run makes",
        ),
        (replace(RETRY, due=NOON), "due since 2026-03-01 12:00:00 UTC"),
        (replace(RETRY, attempts=0, due=None), "offset 41 waits for its first attempt, which the next run makes."),
        (HeldBy(41, PendingKind.DEAD_LETTER, 4, None, "HTTPError"), "no attempt left after 4 attempts with HTTPError"),
        (
            HeldBy(41, PendingKind.IN_FLIGHT, 1, NOON, None),
            "offset 41 is in flight and waits for its answer until 2026",
        ),
    ],
)
def test_the_sentence_names_the_record_that_holds_the_floor_and_what_it_waits_for(held: HeldBy, sentence: str) -> None:
    explained = explain_partition(replace(IDLE, held_by=held, log_end=100))
    assert explained.sentence.startswith("The floor of orders[3] is 41, because offset 41 ")
    assert sentence in explained.sentence
    assert explained.held_by == held


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "Every record of orders[3] below its log end 41 is settled; nothing holds the floor."),
        ({"log_end": 90}, "Nothing is pending in orders[3]; its floor is 41, and [41, 90) is not read yet."),
        ({"log_end": None, "log_start": None}, "The end of its log is not known."),
        ({"log_end": 90, "why": "paused"}, "Runs do not read the partition: paused."),
    ],
)
def test_without_a_pending_record_the_sentence_names_what_is_left_to_read(
    changes: dict[str, object], sentence: str
) -> None:
    assert sentence in explain_partition(replace(IDLE, **changes)).sentence  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"next_expiry": NOON + 50 * MINUTE},
            "Retention may take offset 41 from 2026-03-01 12:50:00 UTC (in 50 minutes)",
        ),
        ({"next_expiry": NOON - MINUTE}, "Retention may take offset 41 at any moment"),
        ({}, "no time is known at which retention takes offset 41"),
        ({"log_start": 60}, "The log starts at 60: the next run settles what is gone below it as expired."),
    ],
)
def test_the_sentence_names_what_retention_takes_next(changes: dict[str, object], sentence: str) -> None:
    explained = explain_partition(replace(IDLE, log_end=90, **changes))  # type: ignore[arg-type]
    assert sentence in explained.sentence
    assert (explained.retention.log_start, explained.retention.eta) == (
        changes.get("log_start", 10),
        changes.get("next_expiry"),
    )


def test_the_lowest_pending_offset_holds_the_floor_and_each_one_is_found() -> None:
    runs = [ValuedRange(s, s + 2, Pending(PendingKind.RETRY, s, None, None)) for s in range(0, 40, 4)]
    state = PartitionState(50, tuple(runs))
    assert [pending_at(state, offset) for offset in range(40)] == [
        runs[offset // 4].value if offset % 4 < 2 else None for offset in range(40)
    ]
    holder = held_by(state)
    assert holder is not None
    assert (holder.offset, held_by(PartitionState(50))) == (0, None)


def test_a_duration_is_shown_in_its_largest_unit() -> None:
    spans = [span(timedelta(seconds=seconds)) for seconds in (1, 90, 130, 7200, 200_000)]
    assert spans == ["1 second", "90 seconds", "2 minutes", "2 hours", "2 days"]
