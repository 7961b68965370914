"""Random trees against a naive model that keeps whole trees: branches, joins, failures, and rows that get lost."""

from collections.abc import Iterator
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.handler import InFlight, Record
from ackline.ledger.answers import TokenSigner
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.turns import TurnId
from ackline.pipeline.topology import Topology
from ackline.worker.call import use_in_flight_settings
from ackline.worker.outcomes import RowOutcome
from ackline.worker.settings import ReplaySettings
from tests.trees.model import Model, source, step_blocks, step_handler
from tests.trees.stages import Lab, SentTuple, steps_of

SIGNER = TokenSigner(b"key", "ledger", TurnId("shop", "live", 0, 1), {})
SETTINGS = ReplaySettings(None, False, Outcome.FAILED, None, tokens=SIGNER, in_flight_timeout=None)


topologies = step_blocks().map(lambda blocks: steps_of(*blocks))


def lab_of(topology: Topology, seed: int) -> Lab:
    """A lab whose handlers follow the orders in the values of their tuples."""
    steps = sorted(topology.steps, key=lambda step: step.number)
    return Lab(topology, source, [step_handler(step.name, step.join) for step in steps], Random(seed))


def word_of(outcome: RowOutcome | None) -> str:
    if outcome is None:
        return "ack"
    if outcome.outcome is not Outcome.FAILED:
        return "skip" if outcome.outcome is Outcome.SKIPPED else outcome.outcome.value
    return "dead" if outcome.error_class == ErrorClass.DEAD else "fail"


@settings(max_examples=300)
@given(topologies, st.integers(0, 1 << 30), st.integers(1, 6))
def test_the_acker_finds_what_a_model_that_keeps_whole_trees_finds(topology: Topology, seed: int, records: int) -> None:
    values = {offset: f"{seed}-{offset}" for offset in range(records)}
    lab, model = lab_of(topology, seed), Model(topology)
    expected = model.run(values)
    found = lab.run(dict(values))
    assert {offset: word_of(found.get(offset)) for offset in expected} == {
        offset: min(words) for offset, words in expected.items()
    }
    assert {name: counts.executed for name, counts in lab.counts.items() if counts.executed} == model.executed


def source_in_flight(record: Record) -> Iterator[Any]:
    """The handler of the model, which also answers InFlight for every other record."""
    yield from source(record)
    if record.offset % 2:
        yield InFlight()


@settings(max_examples=200)
@given(topologies, st.integers(0, 1 << 30), st.integers(1, 6))
def test_a_record_in_flight_waits_unless_its_tree_has_failed(topology: Topology, seed: int, records: int) -> None:
    values = {offset: f"{seed}-{offset}" for offset in range(records)}
    lab, model = lab_of(topology, seed), Model(topology)
    lab.source = source_in_flight
    use_in_flight_settings(SETTINGS)
    expected = model.run(values)
    found = lab.run(dict(values))
    for offset, words in expected.items():
        outcome, word = found.get(offset), min(words)
        if offset % 2 == 0 or word in ("fail", "dead"):
            assert word_of(outcome) == word
            continue
        assert outcome is not None
        of_skip = ErrorClass.SKIP if word == "skip" else None
        assert (outcome.outcome, outcome.error_class, outcome.due) == (Outcome.IN_FLIGHT, of_skip, None)


@settings(max_examples=200)
@given(topologies, st.integers(0, 1 << 30))
def test_s63_repeated_and_reordered_events_change_nothing(topology: Topology, seed: int) -> None:
    lab = lab_of(topology, seed)
    found = lab.run({offset: f"{seed}-{offset}" for offset in range(4)})
    lab.events += lab.random.choices(lab.events, k=5) if lab.events else []
    lab.random.shuffle(lab.events)
    assert lab.outcomes() == found


@settings(max_examples=200)
@given(topologies, st.integers(0, 1 << 30))
def test_s62_a_record_of_which_a_tuple_got_lost_is_never_acked(topology: Topology, seed: int) -> None:
    lab = lab_of(topology, seed)
    lost: list[SentTuple] = []

    def lose(sent: SentTuple) -> bool:
        if lab.random.random() < 0.2:
            lost.append(sent)
            return True
        return False

    lab.lose = lose
    found = lab.run({offset: f"{seed}-{offset}" for offset in range(4)})
    for offset in {root.offset for sent in lost for root, _ in sent.edges}:
        assert found[offset] is not None


@settings(max_examples=200)
@given(topologies, st.integers(0, 1 << 30))
def test_an_event_that_got_lost_never_acks_a_record_that_was_not(topology: Topology, seed: int) -> None:
    lab = lab_of(topology, seed)
    before = lab.run({offset: f"{seed}-{offset}" for offset in range(4)})
    if not lab.events:
        return
    gone = lab.random.randrange(len(lab.events))
    root = lab.events.pop(gone)[0]
    after = lab.outcomes()
    assert {offset: outcome for offset, outcome in after.items() if offset != root.offset} == {
        offset: outcome for offset, outcome in before.items() if offset != root.offset
    }
