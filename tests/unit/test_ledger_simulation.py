"""Many turns of a lane under faults, compared after each turn with the naive ledger.

The faults: gaps, a log that grows and expires, handlers that fail, dead letters that are not acknowledged, and a clock
that stands still or jumps. Then the faults stop, and the floor must reach the end of the log (I12).
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.fold import PartitionState, PendingKind
from ackline.ledger.offsets import LogBounds, TopicPartition, count
from ackline.ledger.outcomes import Outcome
from ackline.ledger.planning import Limits
from tests.unit.naive_ledger import NaiveLedger
from tests.unit.pure_lane import Call, Handle, Poll, PureLane, acks
from tests.unit.strategies import REPEATABLE, by_offset

PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)]


@dataclass
class World:
    """A lane, the naive ledger of each of its partitions, and the calls of the handlers."""

    random: Random
    lane: PureLane = field(init=False)
    naive: dict[TopicPartition, NaiveLedger] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    calls: Counter[Call] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        pick = self.random.randint
        logs = {tp: LogBounds(start, start + pick(0, 8)) for tp in PARTITIONS[: pick(1, 3)] for start in [pick(0, 3)]}
        seconds = [timedelta(seconds=pick(0, 20)) for _ in range(3)]
        policy = RetryPolicy(seconds[0], seconds[1], 2.0, seconds[2], pick(0, 3))
        self.lane = PureLane(logs, policy, Limits(pick(1, 12), pick(1, 12)), shuffle=self.random)
        for tp, log in logs.items():
            self.starts[tp] = log.start
            self.naive[tp] = NaiveLedger(log.start)
            self._add_gaps(tp, log.start, log.end)

    def _add_gaps(self, tp: TopicPartition, start: int, end: int) -> None:
        self.lane.gaps |= {(tp, offset) for offset in range(start, end) if self.random.random() < 0.2}

    def handler(self) -> Handle:
        """A handler that fails at random, and always gives the same call the same outcome."""
        results: dict[Call, Outcome] = {}
        outcomes = [Outcome.ACKED, Outcome.ACKED, Outcome.FAILED, Outcome.SKIPPED, Outcome.DEAD, Outcome.DROPPED]
        return lambda call: results.setdefault(call, self.random.choice(outcomes))

    def change(self) -> None:
        """Time passes, the logs grow, expire and are compacted, and dead letters begin or cease to be acknowledged."""
        self.lane.wait(self.random.choice([0, 1, 7, 30, 3_600]))
        self.lane.confirms = self.random.random() < 0.6
        for tp, log in self.lane.logs.items():
            end = log.end + self.random.choice([0, 0, 1, 6])
            self._add_gaps(tp, log.end, end)
            self.lane.grow(end, tp)
            if self.random.random() < 0.15:
                self.lane.expire(self.random.randint(log.start, end), tp)
            if self.random.random() < 0.15 and log.end:
                self.lane.gaps.add((tp, self.random.randint(0, log.end)))

    def turn(self, handle: Handle) -> Poll:
        """Poll once, check the plan, take the same turn in the naive ledgers and compare."""
        before = dict(self.lane.states)
        due = {tp: ledger.due(self.lane.now) for tp, ledger in self.naive.items()}
        read_before = {tp: self._records_above(tp, state.floor) for tp, state in before.items()}
        poll = self.lane.poll(handle)
        self.calls.update(poll.calls)
        read = sum(len(planned.fresh) + count(planned.retries) for planned in poll.planned.values())
        assert read <= self.lane.limits.max_records_per_run
        for tp, planned in poll.planned.items():
            retries = by_offset(planned.retries)
            assert retries.keys() <= due[tp], "I5: a retry before its due time"
            window = self.lane.limits.max_uncommitted
            assert not planned.fresh or read_before[tp] + len(planned.fresh) <= window, "I8: beyond the window"
            self.naive[tp].turn(planned.fresh, retries, poll.rows[tp], self.lane.policy)
            assert self.naive[tp].agrees_with(self.lane.states[tp])
            self._check(tp, before[tp], poll)
        return poll

    def _records_above(self, tp: TopicPartition, floor: int) -> int:
        """How many records at or above `floor` a handler has got."""
        return len({call.offset for call in self.calls if call.tp == tp and call.offset >= floor})

    def _check(self, tp: TopicPartition, before: PartitionState, poll: Poll) -> None:
        state, ledger = self.lane.states[tp], self.naive[tp]
        assert before.floor <= state.floor <= state.complete_to, "I3: a floor went back"
        read = self._records_above(tp, state.floor)
        assert read <= state.uncommitted <= state.complete_to - state.floor, "I8: records above the floor"
        handled = {call.offset for call in self.calls if call.tp == tp}
        for offset in range(self.starts[tp], state.complete_to):
            ends = ledger.ends.get(offset, [])
            if offset in ledger.pending:
                assert not ends, "I4: settled and pending"
            elif not ends:  # without a row it was acked at its first attempt, or it is a gap
                assert (Call(tp, offset, 1) in self.calls) or (tp, offset) in self.lane.gaps, "I2, I4: lost"
            assert len(ends) <= 1, "two terminal outcomes"
        assert not any(call.attempt > self.lane.policy.max_retries + 1 for call in poll.calls), "I5: too many attempts"
        assert all(self.calls[call] == 1 for call in poll.calls), "an attempt was made twice"
        assert all(offset < state.complete_to for offset in handled)

    def recover(self) -> int:
        """Run without faults until the floor is at the end of the log. Returns how many runs it took."""
        self.lane.confirms = True
        for runs in range(500):
            if all(state.floor == self.lane.logs[tp].end for tp, state in self.lane.states.items()):
                return runs
            self.lane.wait(20)  # longer than any delay of the policy
            self.turn(acks)
        pytest.fail("I12: the floor does not reach the end")


@settings(REPEATABLE, max_examples=100)
@given(st.randoms(use_true_random=False))
def test_i1_to_i5_i8_and_i12_hold_under_faults(random: Random) -> None:
    world = World(random)
    for _ in range(random.randint(1, 6)):
        world.turn(world.handler())
        world.change()
    world.recover()


@pytest.mark.parametrize("seed", range(40))
def test_i1_to_i5_i8_and_i12_hold_under_faults_over_many_turns(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(60):
        world.turn(world.handler())
        world.change()
    runs = world.recover()
    left = sum(log.end for log in world.lane.logs.values())
    # Each run settles something or passes over what retention took, so there are far fewer runs than offsets.
    assert runs <= left + 10


def test_each_kind_of_pending_and_each_terminal_outcome_occurs_in_these_worlds() -> None:
    kinds: set[PendingKind] = set()
    ends: set[Outcome] = set()
    for seed in range(10):
        world = World(Random(seed))
        for _ in range(30):
            world.turn(world.handler())
            world.change()
            kinds |= {pending.value.kind for state in world.lane.states.values() for pending in state.pending}
        ends |= {end for ledger in world.naive.values() for outcomes in ledger.ends.values() for end in outcomes}
    assert kinds == {PendingKind.RETRY, PendingKind.DEAD_LETTER}
    assert ends == {
        Outcome.ACKED, Outcome.SKIPPED, Outcome.DROPPED, Outcome.DEAD, Outcome.EXPIRED, Outcome.COMPACTED,
    }  # fmt: skip
