"""A machine that does to a world whatever a world may do, while runs go on, stop, die and come back late.

Hypothesis chooses what happens; the steps are the real ones; the oracle judges after each rule. When a sequence ends,
the faults stop, and the floor must reach the end within a bounded number of runs (I12).
"""

import sys
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from ackline.ledger import Committed
from ackline.testing.memory import AFTER, BEFORE, READ, MemoryLog
from tests.chaos.stage import GROUP, PROGRAMS, TOPICS, Stage, Stop

SLOTS = 3
"""Processes at once: two that work, and one that sleeps through it."""
SCRIPTS: tuple[Any, ...] = ({}, {}, {"fail": 1}, {"fail": 2}, {"fail": -1}, {"skip": True}, {"dead": True}, None)
WRITES = ("plan", "outcomes", "letter", "decisions", "settlement", "commit")
READS = ("poll", "fetch", "held", "bounds")
stops = st.sampled_from(
    [("", ""), ("", BEFORE), ("", AFTER), *((write, BEFORE) for write in WRITES), *((read, READ) for read in READS)]
)
small = st.integers(0, 7)


words = st.sampled_from(["refused", "unanswered"])


class Turmoil(Stage):
    """The rules. `steps` counts them, of all machines of the class."""

    steps = 0

    # ---- processes ------------------------------------------------------------------------------------------------

    @rule(program=st.sampled_from(["run", "run", "dag"]), fixed=st.booleans())
    def whole_run(self, program: str, fixed: bool) -> None:
        """A run from its beginning to its end, beside those that sleep."""
        self.advance(self.spawn(program, fixed), None)

    @precondition(lambda self: len(self.actors) < SLOTS)
    @rule(program=st.sampled_from(["run", *sorted(PROGRAMS)]), stop=stops, fixed=st.booleans())
    def start(self, program: str, stop: Stop, fixed: bool) -> None:
        """A process that is stopped before long."""
        self.actors.append(self.spawn(program, fixed))
        self.advance(self.actors[-1], stop)

    @precondition(lambda self: self.actors)
    @rule(which=small, stop=stops)
    def step(self, which: int, stop: Stop) -> None:
        """A process goes on for a bit."""
        self.advance(self.actors[which % len(self.actors)], stop)

    @precondition(lambda self: len(self.actors) < SLOTS)
    @rule(
        program=st.sampled_from(["run", "dag", "replay", "settle"]),
        write=st.sampled_from(WRITES),
        then=st.integers(1, 3),
    )
    def overtaken(self, program: str, write: str, then: int) -> None:
        """A process sleeps right before a write while others go on beside it; it may wake later."""
        self.actors.append(self.spawn(program, fixed=False))
        self.advance(self.actors[-1], (write, BEFORE))
        for _ in range(then):
            self.advance(self.spawn("run", fixed=False), None)

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

    # ---- the log --------------------------------------------------------------------------------------------------

    @rule(where=small, scripts=st.lists(st.sampled_from(SCRIPTS), min_size=1, max_size=6))
    def produce(self, where: int, scripts: list[Any]) -> None:
        """Records."""
        self.append(self.log(where), scripts)

    @rule(where=small, scripts=st.lists(st.sampled_from(SCRIPTS), max_size=3), end=st.sampled_from([True, False, None]))
    def transaction(self, where: int, scripts: list[Any], end: bool | None) -> None:
        """Records of a transaction, which is committed, aborted or left open."""
        log = self.log(where)
        self.append(log, scripts, open_=True)
        if end is not None:
            log.decide(end)

    @rule(where=small, far=small, what=st.sampled_from(["gap", "expire", "compact", "compact"]))
    def log_changes(self, where: int, far: int, what: str) -> None:
        """Offsets without a record; retention; compaction of one offset that may be read."""
        log = self.log(where)
        if what == "gap":
            log.gap(far)
        elif what == "expire":
            known = self.oracle.places.get(self.place(where))
            start = max(log.start, known.floor if known else 0) + far
            log.expire(min(start, log.readable_end("read_committed")))
        elif log.start + far < log.readable_end("read_committed"):
            log.compacted.add(log.start + far)

    @rule(far=st.integers(1, 3))
    def retention_wins(self, far: int) -> None:
        """Retention passes the start of what is planned and not read yet."""
        self.advance(self.spawn("plan", fixed=False), None)
        self.oracle.check()
        turn = self.oracle.turns.get(self.oracle.newest + 1)
        for at, one in turn.plan.partitions.items() if turn and turn.plan else ():
            log = self.world.log(at)
            if log is not None and one.fresh:
                log.expire(min(one.fresh.start + far, log.readable_end("read_committed")))

    @rule(where=small, what=st.sampled_from(["leader", "leader", "partition", "subscription", "deleted", "recreated"]))
    def topics_change(self, where: int, what: str) -> None:
        """A leader goes or comes back; a partition more; the file names other topics; a topic is not what it was."""
        at = self.place(where)
        topic = self.world.topics[at.topic]
        if what == "leader":
            topic.logs[at.partition].has_leader ^= True
        elif what == "partition" and len(topic.logs) < 3:
            topic.logs[len(topic.logs)] = MemoryLog()
        elif what == "subscription":
            self.subscribed = list(TOPICS) if len(self.subscribed) == 1 else [TOPICS[where % 2]]
        elif what in ("deleted", "recreated") and where < 2 and not self.recreated:
            self.recreated = True
            self.world.delete_topic(at.topic)
            if what == "recreated":
                self.world.create_topic(at.topic, len(topic.logs))
                for number, log in topic.logs.items():
                    self.append(self.world.topics[at.topic].logs[number], [{}] * log.end)

    # ---- everything else ------------------------------------------------------------------------------------------

    @rule(minutes=st.sampled_from([0.1, 1, 1, 5, 60, -0.5, -60]))
    def clock(self, minutes: float) -> None:
        """Time passes, or a clock is set."""
        self.world.now += timedelta(minutes=minutes)
        self.latest = max(self.latest, self.world.now)

    @rule(where=small, far=st.integers(-2, 9), what=st.sampled_from(["vanish", "move", "garbage", "back", "joins"]))
    def group_changes(self, where: int, far: int, what: str) -> None:
        """The committed offset expires; somebody moves the group, or joins it."""
        at = self.place(where)
        if what == "joins":
            self.world.members = ["consumer-1 (10.0.0.1)"]
        elif what == "vanish":
            self.world.held.pop((GROUP, at), None)
        elif what == "back" and at in self.oracle.places:
            seen = self.oracle.places[at].seen  # what the lane has answered once, and must not take for answered again
            self.world.held[GROUP, at] = Committed(far if seen is None and far > 0 else seen or 0, "")
        else:
            held = self.world.held.get((GROUP, at))
            offset = max(0, (held.offset if held else 0) + far)
            self.world.held[GROUP, at] = Committed(offset, "" if what == "move" else '{"ledger": 5}')

    @rule()
    def group_is_mended(self) -> None:
        """Whoever was in the group leaves; whatever somebody else committed is deleted."""
        self.world.members = []
        self.world.held = {key: one for key, one in self.world.held.items() if self.oracle.is_ours(one.metadata)}

    @rule(words=st.lists(st.sampled_from(["", "lost", "unanswered", "refused", "large"]), max_size=4))
    def letters_fail(self, words: list[str]) -> None:
        """The dead-letter topic times out, refuses, or its answer is lost."""
        self.world.faults.letters.extend(words)

    @rule(where=st.sampled_from(["tables", "commits", "jobs", "outage"]), word=words)
    def parts_fail(self, where: str, word: str) -> None:
        """A table, the coordinator or Spark refuses once, or its answer is lost; the handler fails whatever it gets."""
        if where == "outage":
            self.outage = not self.outage
        else:
            getattr(self.world.faults, where).append(word)

    @rule(window=st.integers(1, 12), most=st.integers(1, 12))
    def settings_change(self, window: int, most: int) -> None:
        """Somebody edits the file."""
        self.settings |= {"max_uncommitted": window, "max_records_per_run": most}

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
