"""I17: whatever a record or an answer holds, and a handler emits, raises or returns, the turn settles and no neighbour
is touched.

Each example is a lane on real Delta tables: plan, replay, stage, settle, publish and commit. The tests take what
`any_values` draws, for each kind of pipeline. The quick test takes the same examples each time, so it needs no database
of examples. The deep one takes others each time, and prints the seed with which its failure is repeated.
"""

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.support.schema_registry import StubRegistry, stub_registry
from tests.support.shop_messages import order
from tests.worker import any_acts as acts
from tests.worker import any_values as values
from tests.worker.any_handlers import Act
from tests.worker.any_lane import Case, Kind, Senders, Turn, failure_of, senders_in_process
from tests.worker.any_values import Strategy

HANDLERS = "tests.worker.any_handlers"
RETRIES: dict[str, Any] = {"retry": {"initial_delay": "0s", "period": "0s", "max_retries": 1}}
ANSWERED: dict[str, Any] = {
    **RETRIES, "ack_topic": "acks", "in_flight": {"timeout": "12s"}, "audit": {"key_hash": True}
}  # fmt: skip
ONCE = [{"guarantee": "at_most_once"}, {"guarantee": "no_guarantee"}]
TABLES: list[dict[str, Any]] = [
    {"from": "source", "table": "inferred"},
    {"from": "source.typed", "table": "declared", "columns": values.COLUMNS},
    {"from": "source.parts", "table": "parts", "columns": values.COLUMNS, "partition_by": ["text", "id", "flag"]},
    {"from": "source.sent", "topic": "sent"},
]
STEPS: list[dict[str, Any]] = [
    {"name": "near", "handler": f"{HANDLERS}:step", "input": "source"},
    {"name": "far", "handler": f"{HANDLERS}:step", "input": ["near", "source.typed"], "group_by": "key"},
    {"name": "all", "handler": f"{HANDLERS}:join", "input": ["far", "source.parts"], "group_by": "key", "join": True},
]
BATCHES = [{**step, "handler": f"{HANDLERS}:{'join_batch' if step.get('join') else 'pass_batch'}"} for step in STEPS]
"""The same steps, an Arrow batch at a time. They hand on whatever they get."""
OF_STEPS: list[dict[str, Any]] = [
    {"from": ["all"], "table": "joined", "columns": values.COLUMNS},
    {"from": ["near.sent", "far.sent"], "table": "loose"},
    {"from": ["source.sent", "all.sent"], "topic": "sent"},
]
STREAMS: list[dict[str, Any]] = [
    {"name": "plain", "handler": f"{HANDLERS}:answer", "filter": f"{HANDLERS}:is_plain"},
    {"name": "keys", "handler": f"{HANDLERS}:answer", "filter": f"{HANDLERS}:wants", "decode": {"key": "utf8"}},
    {"name": "texts", "handler": f"{HANDLERS}:batch_of", "filter": f"{HANDLERS}:wants",
     "decode": {"key": "utf8", "value": "utf8"}},
    {"name": "json", "handler": f"{HANDLERS}:answer", "filter": f"{HANDLERS}:wants",
     "decode": {"key": "utf8", "value": "json"}},
]  # fmt: skip
SCHEMA = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
"""Of the values in the kind `registry`; its keys have a JSON Schema."""

ROWS = values.mostly(values.ROWS, values.VALUES | values.one_of(*values.ODD), 10)


def several(*streams: Strategy[Any]) -> Strategy[Any]:
    """Several emits to the streams of one strategy, or once in a while to any; then perhaps an InFlight."""
    every = st.one_of(*streams)
    lists = [st.lists(values.mostly(of_stream, every | values.VALUES), min_size=1, max_size=3) for of_stream in streams]
    in_flight = values.mostly(st.just([]), st.lists(acts.IN_FLIGHT, min_size=1, max_size=1), 4)
    emitted = st.one_of(*lists, st.lists(values.mostly(every, values.VALUES | acts.IN_FLIGHT), max_size=3))
    return st.tuples(emitted, in_flight).map(lambda parts: parts[0] + parts[1])


SOURCES = several(
    acts.emits(["default"], values.FREE_ROWS),
    acts.emits(["typed", "parts"], ROWS),
    acts.emits(["sent"], values.mostly(values.JSON, values.VALUES, 5)),
)
TREES = several(acts.emits(["default"], ROWS), acts.emits(["typed", "parts", "sent"], ROWS))
ACTS: dict[str, Strategy[Act]] = {
    "record": st.builds(Act, source=acts.RETURNED),
    "waiting": st.builds(Act, source=acts.RETURNED),
    "arrow": st.builds(Act, batch=acts.BATCHES),
    "column": st.builds(Act, word=st.none() | values.ENCODABLE | st.sampled_from(["acked", "failed", "dead"])),
    "streams": st.builds(Act, source=acts.RETURNED, batch=acts.BATCHES, wants=acts.WANTED),
    "registry": st.builds(Act, source=acts.RETURNED),
    "protobuf": st.builds(Act, source=acts.RETURNED),
    "outputs": st.builds(Act, source=st.builds(acts.yields, SOURCES, acts.MAYBE_RAISED)),
    "steps": st.builds(
        Act, source=st.builds(acts.yields, TREES, acts.MAYBE_RAISED), step=acts.of_step(ROWS, join=False),
        join=acts.of_step(ROWS, join=True),
    ),
    "batches": st.builds(Act, source=st.builds(acts.yields, TREES, acts.MAYBE_RAISED)),
}  # fmt: skip
KINDS: dict[str, Kind] = {
    "record": Kind({**ANSWERED, "handler": f"{HANDLERS}:answer"}, [{"dead_letter": "none"}]),
    "waiting": Kind(
        {**ANSWERED, "handler": f"{HANDLERS}:answer_later"}, [{"handler": f"{HANDLERS}:answer", "concurrency": 4}]
    ),
    "arrow": Kind({**RETRIES, "handler": f"{HANDLERS}:batch_of"}, ONCE, batches=True),
    "column": Kind({**RETRIES, "handler": f"{HANDLERS}:column"}, ONCE),
    "streams": Kind({**RETRIES, "handler": None, "streams": STREAMS}, ONCE),
    "registry": Kind({**RETRIES, "handler": f"{HANDLERS}:answer", "decode": {"key": "json_schema", "value": "avro"}}),
    "protobuf": Kind(
        {**RETRIES, "handler": f"{HANDLERS}:answer",
         "decode": {"key": "protobuf", "value": {"protobuf": "tests.support.shop_messages:Order"}}},
        [{"decode": {"key": "protobuf", "value": "protobuf"}}],
    ),
    "outputs": Kind(
        {**ANSWERED, "handler": f"{HANDLERS}:emit", "outputs": TABLES},
        [{"handler": f"{HANDLERS}:emit_later"}],
        outputs={"default": "inferred", "typed": "declared", "parts": "parts"},
    ),
    "steps": Kind(
        {**ANSWERED, "handler": f"{HANDLERS}:emit", "steps": STEPS, "outputs": OF_STEPS},
        [{"tracking": False, "outputs": OF_STEPS[2:]}, {"debug": {"sample": 1.0}}], joined="joined",
    ),
    "batches": Kind(
        {**ANSWERED, "handler": f"{HANDLERS}:emit", "steps": BATCHES, "outputs": OF_STEPS},
        [{"tracking": False, "outputs": OF_STEPS[2:]}, {"debug": {"sample": 1.0}}], joined="joined",
    ),
}  # fmt: skip


def payloads_of(kind: str, framed: bytes | None) -> Strategy[bytes | None]:
    """Keys or values of the records of a kind. `framed` is what a serializer of the registry has written."""
    if framed is None:
        return values.PAYLOADS | values.JSON_TEXTS if kind == "streams" else values.PAYLOADS
    cuts = st.tuples(st.sampled_from([b"", framed[:3], framed[:5], framed, b"\0\0\0\0\x63", b"\1" + framed * 4]))
    return st.tuples(cuts, values.PAYLOADS).map(lambda parts: parts[0][0] + (parts[1] or b"")) | values.PAYLOADS


def lanes_of(kind: str, plain: tuple[bytes | None, bytes | None] = (None, b"{}")) -> Strategy[Any]:
    """What is drawn for one lane: settings beside those of its kind, and its turns."""
    framed = plain if kind in ("registry", "protobuf") else (None, None)
    answers = st.lists(st.tuples(values.MANGLED, values.ANSWERS), min_size=1, max_size=2)
    payloads = [payloads_of(kind, of_plain) for of_plain in framed]
    case = st.builds(Case, *payloads, values.STAMPS, values.HEADERS, ACTS[kind], answers)
    forged = st.lists(st.tuples(values.FORGED, values.ANSWERS), max_size=6)
    turn = st.builds(Turn, st.lists(case, min_size=6, max_size=12), st.booleans(), forged, st.sampled_from([1, 9]))
    options = st.sampled_from([{}, {"tombstones": "deliver"}, *KINDS[kind].options])
    return st.tuples(options, st.lists(turn, min_size=2, max_size=2)).map(values.Drawn)


@pytest.fixture(scope="module")
def registry() -> Iterator[StubRegistry]:
    """A registry without GUIDs of schemas."""
    with stub_registry() as stub:
        yield stub


@pytest.fixture(scope="module")
def senders() -> Iterator[Senders]:
    with senders_in_process() as found:
        yield found


def check(kind: str, data: st.DataObject, registry: StubRegistry, senders: Senders) -> None:
    file: dict[str, Any] = {}
    plain: tuple[bytes | None, bytes | None] = (None, b"{}")
    if kind == "registry":
        file = {"schema_registry": {"url": registry.url}}
        plain = registry.json_schema({"title": "key", "type": "object"}, {}), registry.avro(SCHEMA, {"id": 1})
    if kind == "protobuf":
        file = {"schema_registry": {"url": registry.url}}
        plain = registry.protobuf(order(), field="key"), registry.protobuf(order(), field="value")
    options, turns = data.draw(lanes_of(kind, plain)).values
    failure = failure_of(KINDS[kind], {**file, **options}, plain, turns, senders)
    assert not failure, failure


LANES = {
    "record": 5,
    "waiting": 5,
    "arrow": 5,
    "column": 3,
    "streams": 5,
    "registry": 2,
    "protobuf": 2,
    "outputs": 9,
    "steps": 7,
    "batches": 5,
}
"""How many lanes of each kind the quick test runs: a lane takes about 0.7 s of CPU."""
LANES_A_SEED = 5
SEED, SECONDS = "FUZZ_SEED", "FUZZ_SECONDS"
"""Variables of the environment: the seed to begin with, and how long each kind is drawn for."""


def explore(kind: str, number: int, lanes: int, registry: StubRegistry, senders: Senders) -> None:
    """Runs the lanes of one seed. Looks for a smaller lane that fails only where the environment has set the seed."""
    phases = [Phase.generate, Phase.shrink] if SEED in os.environ else [Phase.generate]

    @seed(number)
    @settings(
        max_examples=lanes, phases=phases, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )  # fmt: skip
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        check(kind, data, registry, senders)

    run()


@pytest.mark.parametrize("kind", KINDS)
def test_i17_what_a_record_holds_and_a_handler_does_stops_no_turn(
    kind: str, registry: StubRegistry, senders: Senders
) -> None:
    explore(kind, 0, LANES[kind], registry, senders)


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_i17_no_random_record_or_handler_stops_a_turn(kind: str, registry: StubRegistry, senders: Senders) -> None:
    number = int(os.environ.get(SEED, random.randrange(10**9)))
    end = time.monotonic() + float(os.environ.get(SECONDS, 600 / len(KINDS)))
    while time.monotonic() < end:
        try:
            explore(kind, number, LANES_A_SEED, registry, senders)
        except AssertionError:
            print(f"repeat it: {SEED}={number} {SECONDS}=1 pytest {__file__} -m deep -k 'random and {kind}'")
            raise
        number += 1
