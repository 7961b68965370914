"""The state machine of the chaos tests: the world changes at random while runs go on, stop, die and come back late.

Hypothesis chooses the rules; the steps are the real ones; the oracle judges after each rule. At the end the faults
stop, the floor must reach the log end within a bounded number of runs (I12), and the checker judges the tables.
"""

import sys
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from ackline.ledger.commit_rule import Committed
from tests.chaos.config import GROUP
from tests.chaos.programs import STEPS, Action, Backfill
from tests.chaos.restores import Restores, parts
from tests.chaos.stage import Stop
from tests.chaos.world_changes import FAILS, orders, small
from tests.support.memory import AFTER, BEFORE, READ

SLOTS = 3
"""Processes that may be stopped at the same time."""
WRITES = ("plan", "outcomes", "letter", "decisions", "settlement", "commit", "claim", "start")
READS = ("poll", "fetch", "committed", "bounds")
writes = st.tuples(st.sampled_from(WRITES), st.sampled_from([BEFORE, AFTER]))
stops = st.one_of(
    st.sampled_from([("", ""), ("", BEFORE), ("", AFTER)]), writes, st.sampled_from([(read, READ) for read in READS])
)
moves = st.builds(
    Action,
    st.sampled_from(["pause", "resume", "resume", "skip", "reset"]),
    small,
    st.one_of(st.integers(0, 9), st.sampled_from(["earliest", "latest", "floor"])),
    st.booleans(),
)
of_pending = st.builds(Action, st.sampled_from(["skip", "retry"]), small, st.just("pending"), st.booleans())
actions = st.one_of(moves, moves, moves, of_pending)
"""Moves in both directions, and now and then an action on pending records."""
backfills = st.builds(
    Backfill,
    st.sampled_from(["backfill-a", "backfill-b", "backfill-c"]),
    small,
    st.integers(0, 9),
    st.integers(1, 9),
    st.sampled_from([None, None, "dead", "acked", "skipped", "expired"]),
    st.sampled_from([None, None, 1, 3]),
    st.sampled_from([False] * 9 + [True]),
    st.sampled_from([False] * 3 + [True]),
)
"""Three lanes: the first process of a lane begins it, the others resume it or, now and then, cancel it or begin a new
epoch of it."""
programs = st.one_of(
    st.sampled_from(["run", "run", "dag", *sorted(STEPS)]), st.sampled_from(sorted(STEPS)), actions, backfills
)
wholes = st.sampled_from(["run", "run", "dag"])
voids = st.sampled_from(["void", "void", "voidpause"])


class ChaosMachine(Restores):
    """The rules for processes, and what must hold. `steps` counts the steps of all machines of the class."""

    steps = 0

    @rule(where=small, records=orders, minutes=st.sampled_from([0, 0, 1, 5]), program=wholes, fixed=st.booleans())
    def work(self, where: int, records: list[Any], minutes: int, program: str, fixed: bool) -> None:
        """Produces records, lets time pass, and lets a run go to its end, beside processes that are stopped."""
        self.append(self.log(where), records)
        self.clock(minutes)
        self.advance(self.spawn(program, fixed), None)

    @rule(runs=st.integers(1, 4), minutes=st.sampled_from([0, 1, 5]))
    def catch_up(self, runs: int, minutes: int) -> None:
        for _ in range(runs):
            self.clock(minutes)
            self.advance(self.spawn("run"), None)

    @rule(action=actions, then=st.booleans())
    def whole_action(self, action: Action, then: bool) -> None:
        """Lets an operator action go to its end; it may be refused because a turn is open."""
        self.whole_runs(action, *["run"] * then)

    @rule(program=backfills)
    def whole_backfill(self, program: Backfill) -> None:
        self.advance(self.spawn(program), None)

    @precondition(lambda self: self.config.breaker)
    @rule()
    def let_through(self) -> None:
        """Lets a run with --no-breaker go to its end."""
        self.advance(self.spawn("run", lenient=True), None)

    @precondition(lambda self: len(self.actors) < SLOTS)
    @rule(where=small, records=orders, program=programs, stop=stops, fixed=st.booleans())
    def start(self, where: int, records: list[Any], program: str | Action | Backfill, stop: Stop, fixed: bool) -> None:
        self.append(self.log(where), records)
        self.actors.append(self.spawn(program, fixed))
        self.advance(self.actors[-1], stop)

    @rule(where=small, records=orders, program=programs, stop=writes)
    def crash(self, where: int, records: list[Any], program: str | Action | Backfill, stop: Stop) -> None:
        """Starts a process and kills it right before or right after a write."""
        self.append(self.log(where), records)
        actor = self.spawn(program)
        self.advance(actor, stop)
        actor.kill()

    @precondition(lambda self: self.actors)
    @rule(which=small, stop=stops)
    def step(self, which: int, stop: Stop) -> None:
        self.advance(self.actors[which % len(self.actors)], stop)

    @precondition(lambda self: len(self.actors) < SLOTS)
    @rule(
        where=small,
        records=orders,
        program=st.one_of(wholes, st.sampled_from(["replay", "settle"]), actions),
        write=st.sampled_from(WRITES),
        then=st.lists(st.one_of(wholes, wholes, actions, voids), min_size=1, max_size=3),
    )
    def overtaken(
        self, where: int, records: list[Any], program: str | Action | Backfill, write: str, then: list[str | Action]
    ) -> None:
        """Stops a process right before a write while others go to their end; it may go on later."""
        self.append(self.log(where), records)
        self.actors.append(self.spawn(program))
        self.advance(self.actors[-1], (write, BEFORE))
        self.whole_runs(*then)

    def whole_runs(self, *programs: str | Action) -> None:
        """Lets processes go to their ends, one after the other."""
        for program in programs:
            self.advance(self.spawn(program), None)

    @rule(program=voids, then=st.booleans())
    def operator_voids(self, program: str, then: bool) -> None:
        self.whole_runs(program, *["run"] * then)

    @precondition(lambda self: len(self.actors) < SLOTS - 1)
    @rule(where=small, records=orders, far=st.integers(0, 2), other=st.one_of(wholes, voids), stop=writes)
    def gone_before_claim(self, where: int, records: list[Any], far: int, other: str, stop: Stop) -> None:
        """Stops a driver right before its claim. Then a part of the range expires, which another process meets, and
        the driver goes on while that one is stopped."""
        self.append(self.log(where), records)
        self.advance(self.spawn("plan"), None)
        first = self.spawn("replay")
        self.actors.append(first)
        self.advance(first, ("claim", BEFORE))
        self.expire_planned(far, where)
        second = self.spawn(other)
        self.actors.append(second)
        self.advance(second, stop)
        for actor in (first, second):
            if not actor.over:
                self.advance(actor, None)
                self.oracle.check()

    @precondition(lambda self: self.config.restores)
    @rule(
        where=small,
        records=orders,
        program=programs,
        stop=st.one_of(st.none(), writes),
        then=st.lists(st.one_of(wholes, wholes, actions, voids), min_size=1, max_size=3),
        more=orders,
        what=parts,
        runs=st.integers(0, 3),
        adopts=st.sampled_from([True, True, True, False]),
    )
    def goes_on_and_is_set_back(
        self,
        where: int,
        records: list[Any],
        program: str | Action | Backfill,
        stop: Stop | None,
        then: list[str | Action],
        more: list[Any],
        what: tuple[str, ...],
        runs: int,
        adopts: bool,
    ) -> None:
        """Takes a copy after a process, or in the middle of it; lets that process and others go to their ends; and sets
        parts back to the copy."""
        self.append(self.log(where), records)
        first = self.spawn(program)
        self.advance(first, stop)
        copy = self.copy()
        if not first.over:
            self.advance(first, None)
        self.append(self.log(where), more)
        self.whole_runs(*then)
        self.restore(copy, what)
        self.runs_come(runs, adopts)

    @rule(
        where=small,
        records=st.lists(st.sampled_from(FAILS), min_size=1, max_size=3),
        more=orders,
        how=st.sampled_from(["skip", "reset", "moved", "moved"]),
        far=st.integers(-2, 4),
    )
    def passed_over(self, where: int, records: list[Any], more: list[Any], how: str, far: int) -> None:
        """Lets records fail, and moves the lane over some of them: by an action, or by a run that follows the group."""
        log, tp = self.log(where), self.tp(where)
        self.append(log, records)
        self.advance(self.spawn("run"), None)
        self.append(log, more)
        target = max(log.start, log.end - len(more) + far)
        if how == "moved":
            self.oracle.disturbed()
            self.world.committed[GROUP, tp] = Committed(target, "")
            self.advance(self.spawn("run"), None)
        else:
            self.advance(self.spawn(Action(how, self.tps().index(tp), target - log.start, whole=False)), None)
        self.advance(self.spawn("run"), None)

    @precondition(lambda self: self.actors)
    @rule(which=small)
    def finish(self, which: int) -> None:
        self.advance(self.actors[which % len(self.actors)], None)

    @precondition(lambda self: self.actors)
    @rule(which=small)
    def kill(self, which: int) -> None:
        self.actors.pop(which % len(self.actors)).kill()

    # ---- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        """Lets the oracle judge what is new."""
        type(self).steps += 1
        if hasattr(self, "oracle"):
            self.oracle.check()

    def teardown(self) -> None:
        """Holds I12 before and after the stopped processes go on to their end; then the checker judges the tables."""
        if not hasattr(self, "oracle"):
            return
        try:
            if sys.exc_info()[0] is None:
                self.stop_faults()
                self.reach_the_end()
                for actor in list(self.actors):
                    self.advance(actor, None)
                    self.oracle.check()
                self.reach_the_end()
                self.oracle.check_tables()
                self.end_backfills()
        finally:
            for actor in self.actors:
                actor.kill()
