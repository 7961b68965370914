"""What a world does of itself: its log, its topics, its group, its clock, its parts and its file change."""

import json
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from ackline.commit_rule import Committed
from ackline.offsets import TopicPartition
from ackline.testing.memory import MemoryLog
from tests.chaos.config import GROUP, GUARANTEES, NAME, TOPICS
from tests.chaos.stage import Stage

FAILS: tuple[Any, ...] = ({"fail": 1}, {"fail": 2}, {"fail": -1}, {"fail": 1, "as": "KeyError"})
SCRIPTS: tuple[Any, ...] = (
    *({}, {}, {"skip": True}, {"dead": True}, None, *FAILS),
    {"fail": 2, "as": "TimeoutError"},
)
small = st.integers(0, 7)
scripts = st.lists(st.sampled_from(SCRIPTS), max_size=5)
words = st.sampled_from(["refused", "unanswered"])
mostly = st.sampled_from([True, True, True, False])


class Unrest(Stage):
    """The rules by which nothing runs, and everything changes."""

    # ---- the log --------------------------------------------------------------------------------------------------

    @rule(where=small, scripts=scripts, end=st.sampled_from([True, False, None]))
    def transaction(self, where: int, scripts: list[Any], end: bool | None) -> None:
        """Records of a transaction, which is committed, aborted or left open."""
        log = self.log(where)
        self.append(log, scripts, open_=True)
        if end is not None:
            log.decide(end)

    @rule(where=small, far=small, what=st.sampled_from(["gap", "expire", "compact", "compact"]))
    def log_changes(self, where: int, far: int, what: str) -> None:
        """Offsets without a record; retention; compaction of one offset that may be read, or waits."""
        log = self.log(where)
        if what == "gap":
            log.gap(far)
        elif what == "expire":
            known = self.oracle.places.get(self.place(where))
            start = max(log.start, known.floor if known else 0) + far
            log.expire(min(start, log.readable_end("read_committed")))
        else:
            place = self.oracle.places.get(self.place(where))
            pending = sorted(place.pending) if place else []
            offset = pending[far % len(pending)] if pending else log.start + far
            if offset < log.readable_end("read_committed"):
                log.compacted.add(offset)

    @rule(far=st.integers(1, 3))
    def retention_wins(self, far: int) -> None:
        """Retention passes the start of what is planned and not read yet."""
        self.advance(self.spawn("plan"), None)
        self.oracle.check()
        turn = self.oracle.open
        for tp, one in turn.plan.partitions.items() if turn else ():
            log = self.world.log(tp)
            if log is not None and one.fresh:
                log.expire(min(one.fresh.start + far, log.readable_end("read_committed")))

    @rule(
        where=small,
        what=st.sampled_from(["leader", "partition", "topic", "parked"] * 3 + ["deleted", "recreated"]),
    )
    def topics_change(self, where: int, what: str) -> None:
        """A leader goes or comes back; a partition or topic more; the file names other topics; a topic is not what it
        was."""
        tp = self.place(where)
        topic = self.world.topics[tp.topic]
        if what == "leader":
            topic.logs[tp.partition].has_leader ^= True
        elif what == "partition" and len(topic.logs) < 3:
            topic.logs[len(topic.logs)] = MemoryLog()
        elif what == "topic" and TOPICS[-1] not in self.world.topics:
            self.append(self.world.create_topic(TOPICS[-1]).logs[0], [{}] * where)
        elif what == "parked":
            parked = TOPICS[where % len(TOPICS)]
            self.subscribed = [name for name in TOPICS if name != parked or len(self.subscribed) < len(TOPICS)]
        elif what in ("deleted", "recreated") and where < 2 and not self.recreated:
            self.recreated = tp.topic
            self.world.delete_topic(tp.topic)
            if what == "recreated":
                self.world.create_topic(tp.topic, len(topic.logs))
                for number, log in topic.logs.items():
                    self.append(self.world.topics[tp.topic].logs[number], [{}] * log.end)

    # ---- the group ------------------------------------------------------------------------------------------------

    @rule(
        where=small,
        far=st.integers(-4, 9),
        what=st.sampled_from(["vanish", "move", "garbage", "back", "joins", "copy", "newer"]),
        planned=st.booleans(),
        runs=st.integers(0, 2),
        mended=mostly,
    )
    def group_changes(self, where: int, far: int, what: str, planned: bool, runs: int, mended: bool) -> None:
        """The committed offset expires; somebody moves the group, perhaps back to where it was, or joins it; another
        ledger of this pipeline commits. Runs meet that, perhaps with a turn open; mostly it is mended then."""
        tp = self.place(where)
        if planned:
            self.advance(self.spawn("plan"), None)
            self.oracle.check()
        committed = self.world.committed.get((GROUP, tp))
        self.oracle.disturbed()
        if what == "joins":
            self.world.members = ["consumer-1 (10.0.0.1)"]
        elif what == "vanish":
            self.world.committed.pop((GROUP, tp), None)
        elif what in ("copy", "newer"):
            self.another_commits(tp, what == "newer")
        elif what == "back" and tp in self.oracle.places:
            answered = [one for one in self.oracle.places[tp].answers.values() if one is not None]
            # what the lane has answered once, and must not take for answered again
            self.world.committed[GROUP, tp] = Committed(answered[far % len(answered)] if answered else max(far, 0), "")
        else:
            offset = max(0, (committed.offset if committed else 0) + far)
            self.world.committed[GROUP, tp] = Committed(offset, "" if what == "move" else '{"ledger": 5}')
        for _ in range(runs):
            self.advance(self.spawn("run"), None)
        if mended:
            self.group_is_mended()

    def another_commits(self, tp: TopicPartition, newer: bool) -> None:
        """Somebody runs the pipeline on another ledger, or on a copy of this one that is ahead of it."""
        ledger, place = self.world.tables.ids.get("settlements"), self.oracle.places.get(tp)
        if place is not None and ledger is not None:
            epoch, n = len(self.oracle.epochs) - 1, self.oracle.epochs[-1].newest + 3
            mark = {"ledger": ledger if newer else "lost", "pipeline": NAME, "epoch": epoch, "n": n}
            self.world.committed[GROUP, tp] = Committed(min(place.floors.values()), json.dumps(mark))

    def group_is_mended(self) -> None:
        """Whoever was in the group leaves; whatever somebody else committed is deleted."""
        self.world.members = []
        newest = (len(self.oracle.epochs) - 1, self.oracle.epochs[-1].newest)
        for key, committed in list(self.world.committed.items()):
            mark = json.loads(committed.metadata) if self.oracle.is_ours(committed.metadata) else None
            if mark is None or (mark["epoch"], mark["n"] - 1) > newest:  # a claim is ahead by one
                del self.world.committed[key]

    @rule()
    def operators_mend(self) -> None:
        """Leaders come back, the group is ours again, the file names all topics, transactions end."""
        self.group_is_mended()
        self.subscribed = [topic for topic in TOPICS if topic in self.world.topics and topic != self.recreated]
        self.settings["guarantee"] = self.guarantee_under_way()
        for log in self.logs():
            log.has_leader = True
            log.decide(commit=True)

    # ---- everything else ------------------------------------------------------------------------------------------

    @rule(minutes=st.sampled_from([0.1, 1, 5, 60, -0.5, -60]))
    def clock(self, minutes: float) -> None:
        """Time passes, or a clock is set."""
        self.world.now += timedelta(minutes=minutes)
        self.latest = max(self.latest, self.world.now)

    @rule(
        letters=st.lists(st.sampled_from(["", "lost", "unanswered", "refused", "large"]), max_size=4),
        where=st.sampled_from(["", "tables", "commits", "jobs", "outage"]),
        word=words,
    )
    def parts_fail(self, letters: list[str], where: str, word: str) -> None:
        """The dead-letter topic times out, refuses, or its answer is lost; a table, the coordinator or Spark refuses
        once, or its answer is lost; the handler fails whatever it gets."""
        self.world.faults.letters.extend(letters)
        if where == "outage":
            self.outage = not self.outage
        elif where:
            getattr(self.world.faults, where).append(word)

    @rule(window=st.integers(1, 12), most=st.integers(1, 12), guarantee=st.sampled_from(["", "", "", *GUARANTEES]))
    def settings_change(self, window: int, most: int, guarantee: str) -> None:
        """Somebody edits the file: limits at any time, the guarantee where it should wait until nothing is pending."""
        self.settings |= {"max_uncommitted": window, "max_records_per_run": most}
        if guarantee:
            self.settings["guarantee"] = guarantee
