"""A machine that does to a world whatever a world may do, while runs go on, stop, die and come back late.

Hypothesis chooses what happens; the steps are the real ones; the oracle judges after each rule. When a sequence ends,
the faults stop, and the floor must reach the end within a bounded number of runs (I12).
"""

import sys
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from ackline.testing.memory import AFTER, BEFORE, READ
from tests.chaos.programs import STEPS, Act
from tests.chaos.stage import Stop
from tests.chaos.unrest import Unrest, scripts, small

SLOTS = 3
"""Processes at once: two that work, and one that sleeps through it."""
WRITES = ("plan", "outcomes", "letter", "decisions", "settlement", "commit", "claim", "start")
READS = ("poll", "fetch", "held", "bounds")
writes = st.tuples(st.sampled_from(WRITES), st.sampled_from([BEFORE, AFTER]))
stops = st.one_of(
    st.sampled_from([("", ""), ("", BEFORE), ("", AFTER)]), writes, st.sampled_from([(read, READ) for read in READS])
)
acts = st.builds(
    Act,
    st.sampled_from(["pause", "resume", "resume", "skip", "reset"]),
    small,
    st.one_of(st.integers(0, 9), st.sampled_from(["earliest", "latest", "floor"])),
    st.booleans(),
)
programs = st.one_of(st.sampled_from(["run", "run", "dag", *sorted(STEPS)]), st.sampled_from(sorted(STEPS)), acts)
wholes = st.sampled_from(["run", "run", "dag"])


class Turmoil(Unrest):
    """The rules for processes, and what must hold. `steps` counts them, of all machines of the class."""

    steps = 0

    @rule(where=small, records=scripts, minutes=st.sampled_from([0, 0, 1, 5]), program=wholes, fixed=st.booleans())
    def work(self, where: int, records: list[Any], minutes: int, program: str, fixed: bool) -> None:
        """Records come, time passes, and a run goes from its beginning to its end, beside those that sleep."""
        self.append(self.log(where), records)
        self.clock(minutes)
        self.advance(self.spawn(program, fixed), None)

    @rule(runs=st.integers(1, 4), minutes=st.sampled_from([0, 1, 5]))
    def catch_up(self, runs: int, minutes: int) -> None:
        """Runs, one after another."""
        for _ in range(runs):
            self.clock(minutes)
            self.advance(self.spawn("run"), None)

    @rule(act=acts, then=st.booleans())
    def whole_act(self, act: Act, then: bool) -> None:
        """An operator acts; or is refused, where a turn is open."""
        self.advance(self.spawn(act), None)
        if then:
            self.advance(self.spawn("run"), None)

    @precondition(lambda self: self.config.breaker)
    @rule()
    def let_through(self) -> None:
        """A run with --no-breaker."""
        self.advance(self.spawn("run", lenient=True), None)

    @precondition(lambda self: len(self.actors) < SLOTS)
    @rule(where=small, records=scripts, program=programs, stop=stops, fixed=st.booleans())
    def start(self, where: int, records: list[Any], program: str | Act, stop: Stop, fixed: bool) -> None:
        """A process that is stopped before long."""
        self.append(self.log(where), records)
        self.actors.append(self.spawn(program, fixed))
        self.advance(self.actors[-1], stop)

    @rule(where=small, records=scripts, program=programs, stop=writes)
    def crash(self, where: int, records: list[Any], program: str | Act, stop: Stop) -> None:
        """A process is killed right before or right after a write."""
        self.append(self.log(where), records)
        actor = self.spawn(program)
        self.advance(actor, stop)
        actor.kill()

    @precondition(lambda self: self.actors)
    @rule(which=small, stop=stops)
    def step(self, which: int, stop: Stop) -> None:
        """A process goes on for a bit."""
        self.advance(self.actors[which % len(self.actors)], stop)

    @precondition(lambda self: len(self.actors) < SLOTS)
    @rule(
        where=small,
        records=scripts,
        program=st.one_of(wholes, st.sampled_from(["replay", "settle"]), acts),
        write=st.sampled_from(WRITES),
        then=st.lists(st.one_of(wholes, wholes, acts), min_size=1, max_size=3),
    )
    def overtaken(self, where: int, records: list[Any], program: str | Act, write: str, then: list[str | Act]) -> None:
        """A process sleeps right before a write while others go on beside it; it may wake later."""
        self.append(self.log(where), records)
        self.actors.append(self.spawn(program))
        self.advance(self.actors[-1], (write, BEFORE))
        for other in then:
            self.advance(self.spawn(other), None)

    @precondition(lambda self: self.actors)
    @rule(which=small)
    def finish(self, which: int) -> None:
        """A process goes on to its end: perhaps a late one."""
        self.advance(self.actors[which % len(self.actors)], None)

    @precondition(lambda self: self.actors)
    @rule(which=small)
    def kill(self, which: int) -> None:
        """A process is killed where it stands."""
        self.actors.pop(which % len(self.actors)).kill()

    # ---- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        """What the oracle says."""
        type(self).steps += 1
        if hasattr(self, "oracle"):
            self.oracle.check()

    def teardown(self) -> None:
        """I12, where nothing was found before; then the last sleepers wake, and it must hold again."""
        if not hasattr(self, "oracle"):
            return
        try:
            if sys.exc_info()[0] is None:
                self.calm_down()
                self.reach_the_end()
                for actor in list(self.actors):
                    self.advance(actor, None)
                    self.oracle.check()
                self.reach_the_end()
                self.oracle.check_all_rows()
        finally:
            for actor in self.actors:
                actor.kill()
