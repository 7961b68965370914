"""Random answers from outside, early, late, doubled and forged, while runs die, overtake each other and records come.

The steps are the real ones, over a world in memory. At the end each record is answered until nothing is in flight, and
the independent checker judges the tables.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from ackline import Record
from ackline.errors import FatalError, TransientError
from ackline.ledger.fold import PendingKind
from ackline.ledger.turns import TurnKind
from ackline.verify.check import judge
from tests.chaos.account import Policy, Rules
from tests.chaos.evidence import evidence_of
from tests.support.memory import TableCommit
from tests.support.memory_lane import GROUP, NOON, OK, TP, WAITS, AnsweredLane

STEPS = 60
RETRIES = 2
SECOND = timedelta(seconds=1)
ANSWERS = ["ack", "ack", "ack", "fail", "fail why", "renew 5s", "renew 1m", "nonsense"]
RULES = Rules(
    GROUP, "lane", "read_committed", "fail", Policy(RETRIES, timedelta(), SECOND, SECOND, 0.0), {}, "dead", SECOND, None
)

WITHOUT_LETTERS = replace(RULES, dead_letter_topic=None)


class Killed(BaseException):
    """Ends a process."""


class Walk:
    """One random history. The same seed does the same again."""

    def __init__(self, seed: int, dead_letter: object) -> None:
        self.chance = Random(seed)
        retry = {"initial_delay": "0s", "period": "1s", "max_delay": "1s", "max_retries": RETRIES}
        block = {"max": self.chance.choice([2, 5, 50])}
        window = self.chance.choice([3, 20])
        self.lane = AnsweredLane(in_flight=block, retry=retry, max_uncommitted=window, dead_letter=dead_letter)
        self.lane.early = self.answered_early
        self.seconds, self.runs = 0.0, 0

    def answered_early(self, record: Record) -> None:
        if self.chance.random() < 0.2:
            self.lane.answer(record.offset, self.chance.choice(ANSWERS), record.attempt)

    def step(self) -> None:
        """Lets one thing happen."""
        happening: Callable[[], object] = self.chance.choice(
            [
                *[self.produce, self.wait, self.killed, self.rival, self.act],
                *[self.answer] * 3,
                *[self.run] * 2,
            ]
        )
        happening()

    def produce(self) -> None:
        self.lane.produce(*self.chance.choices([WAITS, WAITS, WAITS, OK, b'{"fail": 1}'], k=self.chance.randint(1, 4)))

    def answer(self) -> None:
        """Answers for any attempt there ever was, ended or not, once or more often."""
        if self.lane.tokens:
            offset, attempt = self.chance.choice(sorted(self.lane.tokens))
            times = self.chance.choice([1, 1, 2, 8])
            self.lane.answer(offset, self.chance.choice(ANSWERS), attempt, times)
        self.lane.answer_with(self.chance.choice(["", "x", None, "WzEs" * 20]), "ack")

    def wait(self) -> None:
        self.seconds += self.chance.choice([0.5, 2, 6, 20])
        self.lane.at(self.seconds)

    def run(self) -> None:
        self.runs += 1
        self.lane.run(self.lane.adapters(f"run-{self.runs}"))

    def killed(self) -> None:
        """A run dies at one of its reads or writes."""
        self.struck(self.die)

    def rival(self) -> None:
        """Another run goes to its end in the middle of this one."""
        self.struck(self.run)

    def struck(self, happening: Callable[[], object]) -> None:
        left = self.chance.randint(1, 60)

        def hook(_operation: str, _when: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                happening()

        self.runs += 1
        # A rival that commits between this run's commit and its read-back makes it a transient error.
        with suppress(Killed, TransientError):
            self.lane.run(self.lane.adapters(f"run-{self.runs}", hook))

    def die(self) -> None:
        raise Killed

    def act(self) -> None:
        """Now and then an operator skips or resets."""
        if self.chance.random() < 0.3 and self.lane.world.tables.settlements:
            kind = self.chance.choice([TurnKind.SKIP, TurnKind.RESET])
            log, floor = self.lane.log(), self.lane.floor()
            target = self.chance.randint(floor if kind is TurnKind.SKIP else 0, max(floor, log.end))
            with suppress(FatalError):  # refused while a turn is open
                self.lane.perform(kind, {TP: target})

    def finish(self) -> None:
        """Answers everything until nothing is left."""
        for _ in range(200):
            for offset, attempt in sorted(self.lane.tokens):
                self.lane.answer(offset, attempt=attempt)
            self.seconds += 3
            self.lane.at(self.seconds)
            self.run()
            if self.lane.floor() == self.lane.log().end:
                return
        raise AssertionError(f"the floor stays at {self.lane.floor()}: {self.lane.state()}")


@pytest.mark.parametrize("seed", range(40))
def test_i1_to_i12_hold_for_any_answers_and_any_kills(seed: int) -> None:
    letters = seed % 4 > 0
    walk = Walk(seed, {"topic": "dead"} if letters else "none")
    for _ in range(STEPS):
        walk.step()
    walk.finish()
    lane = walk.lane
    assert (lane.state().pending_by_kind()[PendingKind.IN_FLIGHT], lane.committed()) == (0, lane.log().end)
    report = judge(evidence_of(lane.world, RULES if letters else WITHOUT_LETTERS), max_retries=RETRIES, settled=True)
    assert report.violations == []
    decided = [e for e in lane.world.history if isinstance(e, TableCommit) and e.application.endswith("/decisions")]
    assert len({(e.application, e.number) for e in decided}) == len(decided)
    assert lane.world.now > NOON
