"""The rules by which a world changes without a process: its logs, topics, group, clock, faults and pipeline file."""

import json
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition
from tests.chaos.config import GROUP, GUARANTEES, NAME, TOPICS
from tests.chaos.stage import Stage
from tests.support.memory import MemoryLog

FAILS: tuple[Any, ...] = ({"fail": 1}, {"fail": 2}, {"fail": -1}, {"fail": 1, "as": "KeyError"})
ORDERS: tuple[Any, ...] = (
    *({}, {}, {"skip": True}, {"dead": True}, None, *FAILS),
    {"fail": 2, "as": "TimeoutError"},
    *({"wait": ""}, {"wait": "30s"}, {"wait": "4m"}, {"wait": "", "fail": 1}),
    *({"wait": "", "early": "ack"}, {"wait": "", "early": "fail"}, {"wait": "30s", "early": "renew 5m"}),
)
small = st.integers(0, 7)
orders = st.lists(st.sampled_from(ORDERS), max_size=5)
words = st.sampled_from(["refused", "unanswered"])
mostly = st.sampled_from([True, True, True, False])


class WorldChanges(Stage):
    # ---- the log --------------------------------------------------------------------------------------------------

    @rule(where=small, records=orders, commit=st.sampled_from([True, False, None]))
    def transaction(self, where: int, records: list[Any], commit: bool | None) -> None:
        """Produces records in a transaction, which is committed, aborted or left open."""
        log = self.log(where)
        self.append(log, records, open_=True)
        if commit is not None:
            log.end_transaction(commit)

    @rule(where=small, far=small, what=st.sampled_from(["gap", "expire", "compact", "compact"]))
    def log_changes(self, where: int, far: int, what: str) -> None:
        """Adds offsets without a record, lets records expire, or compacts an offset that is pending or may be read."""
        log, account = self.log(where), self.oracle.partitions.get(self.tp(where))
        if what == "gap":
            log.add_gap(far)
        elif what == "expire":
            start = max(log.start, account.floor if account else 0) + far
            log.expire(min(start, log.readable_end("read_committed")))
        else:
            pending = sorted(account.pending) if account else []
            offset = pending[far % len(pending)] if pending else log.start + far
            if offset < log.readable_end("read_committed"):
                log.compacted.add(offset)

    @rule(far=st.integers(1, 3))
    def retention_wins(self, far: int) -> None:
        """Lets the start of each planned range expire before it is read."""
        self.advance(self.spawn("plan"), None)
        self.expire_planned(far)

    def expire_planned(self, far: int, only: int | None = None) -> None:
        """Lets the first `far` offsets of each planned range expire, or of one of them."""
        self.oracle.check()
        turn = self.oracle.open
        for tp, planned in turn.plan.partitions.items() if turn else ():
            log = self.world.log(tp)
            chosen = only is None or tp == self.tp(only)
            if log is not None and planned.fresh and chosen:
                log.expire(min(planned.fresh.start + far, log.readable_end("read_committed")))

    @rule(where=small, what=st.sampled_from(["leader", "partition", "topic", "parked"] * 3 + ["deleted", "recreated"]))
    def topics_change(self, where: int, what: str) -> None:
        """Takes or returns a leader, adds a partition or a topic, changes the topics of the file, or deletes a topic
        and perhaps creates it again."""
        tp = self.tp(where)
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
        """Moves the group from outside, perhaps back to an earlier offset, or lets its commit expire, a consumer join
        it, or another ledger commit. Then come runs, perhaps with a turn open; mostly the group is mended then."""
        tp = self.tp(where)
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
        elif what == "back" and tp in self.oracle.partitions:
            # The lane has acknowledged such an offset once; the acknowledgement must not hold for this commit.
            offsets = [offset for offset in self.oracle.partitions[tp].acknowledged.values() if offset is not None]
            self.world.committed[GROUP, tp] = Committed(offsets[far % len(offsets)] if offsets else max(far, 0), "")
        else:
            offset = max(0, (committed.offset if committed else 0) + far)
            self.world.committed[GROUP, tp] = Committed(offset, "" if what == "move" else '{"ledger": 5}')
        for _ in range(runs):
            self.advance(self.spawn("run"), None)
        if mended:
            self.group_is_mended()

    @rule(where=small, newer=st.booleans(), runs=st.integers(0, 1))
    def another_ledger_is_adopted(self, where: int, newer: bool, runs: int) -> None:
        """Lets another ledger commit, or a copy of this one that is ahead, and an operator adopt this ledger."""
        self.oracle.disturbed()
        self.another_commits(self.tp(where), newer)
        for program in ["run"] * runs + ["adopt"]:
            self.advance(self.spawn(program), None)

    def another_commits(self, tp: TopicPartition, newer: bool) -> None:
        """Commits for this pipeline by another ledger, or by a copy of this one that is ahead of it."""
        ledger, account = self.world.tables.ids.get("settlements"), self.oracle.partitions.get(tp)
        if account is not None and ledger is not None:
            epoch, n = len(self.oracle.epochs) - 1, self.oracle.epochs[-1].newest + 3
            metadata = {"ledger": ledger if newer else "lost", "pipeline": NAME, "epoch": epoch, "n": n}
            self.world.committed[GROUP, tp] = Committed(min(account.floors.values()), json.dumps(metadata))

    def group_is_mended(self) -> None:
        """Removes members from the group, and commits that are not of this lane."""
        self.oracle.commits_are_gone()
        self.world.members = []
        newest = (len(self.oracle.epochs) - 1, self.oracle.epochs[-1].newest)
        for key, committed in list(self.world.committed.items()):
            ours = json.loads(committed.metadata) if self.oracle.is_ours(committed.metadata) else None
            if ours is None or (ours["epoch"], ours["n"] - 1) > newest:  # a claim is ahead by one
                del self.world.committed[key]

    @rule()
    def operators_mend(self) -> None:
        """Returns all leaders, mends the group, names all topics in the file, and ends transactions."""
        self.group_is_mended()
        self.subscribed = [topic for topic in TOPICS if topic in self.world.topics and topic != self.recreated]
        self.settings["guarantee"] = self.guarantee_under_way()
        for log in self.logs():
            log.has_leader = True
            log.end_transaction(commit=True)
        self.outside.mend()

    # ---- everything else ------------------------------------------------------------------------------------------

    @rule(minutes=st.sampled_from([0.1, 1, 5, 60, -0.5, -60]))
    def clock(self, minutes: float) -> None:
        """Moves the clock, also backwards."""
        self.world.now += timedelta(minutes=minutes)
        self.latest = max(self.latest, self.world.now)

    @rule(
        letters=st.lists(st.sampled_from(["", "lost", "unanswered", "refused", "large"]), max_size=4),
        where=st.sampled_from(["", "tables", "commits", "jobs", "outage"]),
        word=words,
    )
    def parts_fail(self, letters: list[str], where: str, word: str) -> None:
        """Queues faults of dead letters, and one of a table, of a commit or of Spark; or begins or ends an outage."""
        self.world.faults.letters.extend(letters)
        if where == "outage":
            self.outage = not self.outage
        elif where:
            getattr(self.world.faults, where).append(word)

    @rule(window=st.integers(1, 12), most=st.integers(1, 12), guarantee=st.sampled_from(["", "", "", *GUARANTEES]))
    def settings_change(self, window: int, most: int, guarantee: str) -> None:
        """Changes the limits, and perhaps the guarantee, also while something is pending."""
        self.settings |= {"max_uncommitted": window, "max_records_per_run": most}
        if guarantee and not self.config.has_answers:  # records in flight are refused under the others
            self.settings["guarantee"] = guarantee
