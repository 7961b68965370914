"""I17: whatever a record holds and a handler emits, raises or returns, the turn settles and no neighbour is touched.

Each example is a lane on real Delta tables: plan, replay, stage, settle, publish and commit. Kafka is in memory, and
the functions of Spark's tasks run in this process.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ackline import Dead, Emit, InFlight, Skip
from ackline.worker.settings import FIRST_UNREADABLE
from tests.worker import disk_handlers
from tests.worker.disk_lane import lane_of

HANDLERS = "tests.worker.disk_handlers"


class Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Huge(Exception):
    def __str__(self) -> str:
        return "x" * 10_000_000


ODD_CLASS = type("a b\nß" * 50, (Exception,), {})
NAMES = st.sampled_from(
    ["", "ß", "SS", "ss", "İ", "i", "K", "k", "\ud800", "\x00", "a\nb", "_topic", "_offset", "value", "id", "ID",
     "a.b", "a b", "n" * 10_000, " ", ",;{}()=", "`", "\u2028", "_anchors", "é", "e\u0301"]
) | st.text(st.characters(), max_size=4)  # fmt: skip
EDGES = [
    datetime.fromisoformat("9999-12-31T23:59:59.999999"), datetime.fromisoformat("0001-01-01T00:00:00"),
    datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
]  # fmt: skip
DEEP: Any = None
for _ in range(3000):
    DEEP = [DEEP]
ODD: list[Any] = [
    2**63, -(2**63) - 1, 10**5000, Decimal("1E+500"), Decimal("1E-500"), Decimal("sNaN"), *EDGES, timedelta(1), {1},
    object(), DEEP, 1j, range(3), EDGES[0].date(), EDGES[0].time(), b"\xff" * 9,
]  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | NAMES | st.binary(max_size=9)
    | st.decimals(allow_nan=True) | st.datetimes()
    | st.integers(0, len(ODD) - 1).map(lambda n: ODD[n])  # no strategy may show them: not each has a repr
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
EMITTED = st.builds(
    lambda value, stream, key: Emit(value, stream, key),
    VALUES | st.dictionaries(NAMES, SCALARS, max_size=4) | st.fixed_dictionaries({"id": SCALARS}),
    st.just("default") | NAMES, VALUES,
)  # fmt: skip
RAISED = st.sampled_from([
    Silent(), Huge(), ODD_CLASS("\ud800"), ValueError("\ud800\x00"), Skip("\ud800"), Dead("\x00" * 9), Skip(Silent()),
    RecursionError(), MemoryError(), GeneratorExit(), StopIteration(1), SystemExit("\ud800"), BaseException("\udfff"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "\ud800"),
])  # fmt: skip
IN_FLIGHT = st.builds(
    InFlight,
    NAMES | st.none() | st.floats() | st.integers()
    | st.sampled_from(["-1s", "9999999999999999d", "0s", "nans", "1h", timedelta.max, timedelta.min, timedelta(-1)]),
)  # fmt: skip


def yields(emitted: list[Any], raised: BaseException | None) -> Callable[[], Any]:
    """A generator's body: yields these, and raises at its end."""

    def run() -> Iterator[Any]:
        yield from emitted
        if raised is not None:
            raise raised

    return run


def returns(value: Any, raised: BaseException | None) -> Callable[[], Any]:
    """A function that raises, or returns a value."""

    def run() -> Any:
        if raised is not None:
            raise raised
        return value

    return run


TABLE = {"from": "source", "table": "inferred"}
DECLARED = {"from": "source", "table": "declared", "columns": {"id": "long"}}
STEP = {"name": "next", "handler": f"{HANDLERS}:step", "input": "source", "group_by": "key"}
RETRIES: dict[str, Any] = {"retry": {"initial_delay": "0s", "period": "0s", "max_retries": 1}}
EMITS = st.builds(yields, st.lists(EMITTED | IN_FLIGHT | VALUES, max_size=3), st.none() | RAISED)
RETURNS = st.builds(returns, VALUES | IN_FLIGHT | EMITTED, st.none() | RAISED)
FILES: dict[str, tuple[dict[str, Any], st.SearchStrategy[Any]]] = {
    "record": ({"handler": f"{HANDLERS}:answer"}, RETURNS),
    "outputs": ({"handler": f"{HANDLERS}:emit", "outputs": [TABLE]}, EMITS),
    "declared": ({"handler": f"{HANDLERS}:emit", "outputs": [DECLARED]}, EMITS),
    "steps": ({"handler": f"{HANDLERS}:emit", "steps": [STEP], "outputs": [{**TABLE, "from": "next"}]}, EMITS),
}
PAYLOAD = st.none() | st.binary(max_size=9) | st.just(b"v" * 2_000_000)
STAMPS = st.sampled_from([-1, -2, 0, 253_402_300_799_999, 253_402_300_800_000, FIRST_UNREADABLE - 1, 1_700_000_000_000])
HEADERS = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.just("twice"), PAYLOAD), max_size=3
)


def check(file: dict[str, Any], drawn: list[Any], answers: list[Any]) -> None:
    """Runs a lane over a record of each drawn one, with an innocent one before and behind each."""
    with lane_of({**RETRIES, **file}) as lane:
        lane.produce(b"{}")
        for key, value, stamp, headers, act in drawn:
            offset = lane.log().append(value, lane.world.now, key=key, headers=headers)
            lane.log().written[offset] = lane.log().written[offset]._replace(timestamp=stamp)
            disk_handlers.ANSWERS[offset] = act
            lane.produce(b"{}")
        for key, value in answers:
            lane.answer_with(key, value)
        for _ in range(3):
            lane.run()
        store, end = lane.adapters().store, 2 * len(drawn) + 1
        rows = DeltaTable(store.outcomes.uri).to_pyarrow_table().to_pylist()
        seen = [(row["offset"], row["attempt"]) for row in rows if row["outcome"] != "in_flight"]
        assert len(seen) == len(set(seen)), "one outcome an attempt"
        assert {row["offset"] for row in rows} == set(range(end)), "each offset has an outcome"
        innocent = set(range(0, end, 2))
        assert {row["offset"] for row in rows if row["outcome"] == "acked"} >= innocent
        flying = [pending[0] for pending in lane.pending()]
        assert lane.floor() == min(flying, default=end)
        for output in file.get("outputs", ()):
            table = DeltaTable(f"{store.root}/lane/outputs/{output['table']}").to_pyarrow_table().to_pylist()
            plain = [row["id"] for row in table if row["_offset"] % 2 == 0]
            assert sorted(plain) == sorted(innocent)


@pytest.mark.parametrize("kind", FILES)
@settings(
    max_examples=4, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)  # fmt: skip
@given(data=st.data())
def test_i17_what_a_record_holds_and_a_handler_does_stops_no_turn(kind: str, data: st.DataObject) -> None:
    file, acts = FILES[kind]
    drawn = data.draw(st.lists(st.tuples(PAYLOAD, PAYLOAD, STAMPS, HEADERS, acts), min_size=4, max_size=8))
    answers = data.draw(st.lists(st.tuples(PAYLOAD, PAYLOAD), max_size=4))
    check(file, drawn, answers)
