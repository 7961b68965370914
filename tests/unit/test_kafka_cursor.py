"""What an event of the log proves about wanted offsets, and when a reader reads on, seeks, or reads for throughput."""

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from ackline.kafka.cursor import DENSE, READ_ON, Cursor, Found, Gone
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome

TP = TopicPartition("orders", 0)
OFFSETS = st.lists(st.integers(0, 300), unique=True, min_size=1).map(sorted)


@given(wanted=OFFSETS, log=OFFSETS)
def test_each_wanted_offset_is_found_or_gone_as_the_log_has_it(wanted: list[int], log: list[int]) -> None:
    """Where every record from the first wanted offset on is delivered, then the end."""
    cursor, said = Cursor(TP, wanted, stop=len(wanted)), list[Found | Gone]()
    for offset in (offset for offset in log if offset >= wanted[0]):
        said += cursor.record(Message(), offset)
    said += cursor.gone_below(301, Outcome.COMPACTED)
    assert [answer.offset for answer in said] == wanted
    assert {answer.offset for answer in said if isinstance(answer, Found)} == set(wanted) & set(log)
    assert cursor.answered


@given(wanted=OFFSETS)
def test_a_record_proves_nothing_about_itself_or_what_follows(wanted: list[int]) -> None:
    cursor = Cursor(TP, wanted, stop=len(wanted))
    said = list(cursor.record(Message(), 150))
    assert [answer.offset for answer in said if isinstance(answer, Gone)] == [o for o in wanted if o < 150]
    assert all(answer.offset == 150 for answer in said if isinstance(answer, Found))


@given(gaps=st.lists(st.sampled_from([1, 20, READ_ON, READ_ON + 1, 5000]), min_size=1, max_size=50))
def test_stretches_cover_all_wanted_offsets_in_order(gaps: list[int]) -> None:
    wanted = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    cursor, covered = Cursor(TP, wanted), list[int]()
    while not cursor.answered:
        assert not cursor.aim()  # too short for throughput
        assert cursor.position == cursor.next == wanted[cursor.at]
        covered += wanted[cursor.at : cursor.stop]
        cursor.at = cursor.stop
    assert covered == wanted


def test_scattered_offsets_make_one_stretch_and_close_ones_their_own() -> None:
    sparse, close = [0, 1000, 2000], range(3000, 3000 + DENSE + 1, READ_ON)
    wanted = [*sparse, *close, 900_000, 950_000]
    cursor, stretches = Cursor(TP, wanted), list[tuple[bool, int]]()
    while not cursor.answered:
        stretches.append((cursor.aim(), cursor.stop - cursor.at))
        cursor.at = cursor.stop
    dense = close[-1] - close[0] >= DENSE
    assert stretches == ([(False, 3), (True, len(close)), (False, 2)] if dense else [(False, len(wanted))])


def test_a_near_offset_is_read_on_to_and_a_far_one_sought() -> None:
    cursor = Cursor(TP, [0, READ_ON + 1, 2 * READ_ON + 3], stop=3)
    list(cursor.record(Message(), 0))
    assert not cursor.far
    list(cursor.record(Message(), READ_ON + 1))
    assert cursor.far
