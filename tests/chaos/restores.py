"""Restores: the tables, the logs, the group or the pipeline file of a world is set back to an older copy of itself.

An operator stops all processes before the tables or the logs are set back. What was stored in the tables since the copy
never happened then; what the handler did, what the group holds and what the logs have did.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ackline.errors import NewerCommit
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition
from tests.chaos.oracle import Account
from tests.chaos.world_changes import WorldChanges, orders, small
from tests.support.memory import MemoryLog, MemoryTables

COPIES = 4
"""Copies that are kept at the same time; a newer one takes the place of the oldest."""
PARTS = ("tables", "logs", "group", "file")
parts = st.sampled_from([(part,) for part in PARTS] * 2 + list(combinations(PARTS, 2)))


@dataclass(frozen=True, slots=True)
class Copy:
    """What a world was at one moment. `account` is what the oracle knew of the tables then."""

    tables: MemoryTables
    account: Account
    logs: Mapping[TopicPartition, tuple[str, MemoryLog]]
    """Each log, with the id of its topic."""
    committed: Mapping[tuple[str, TopicPartition], Committed]
    settings: Mapping[str, Any]
    subscribed: tuple[str, ...]


def divergence(log: MemoryLog, copy: MemoryLog) -> int:
    """Returns the first offset at which a log and its copy differ; the end of both where they do not."""
    both = min(log.end, copy.end)
    return min((o for o in range(both) if log.written.get(o) != copy.written.get(o)), default=both)


def set_back(log: MemoryLog, copy: MemoryLog) -> int:
    """Sets a log back to a copy of it, under a leader of its own, and returns the first offset that is another now.

    Transactions that the log has ended stay ended, and what was compacted stays so: else offsets that hold a record
    again, and have been passed as gaps, would look like lost ones.
    """
    cut = divergence(log, copy)
    log.elect(cut)
    log.written.update({offset: record for offset, record in copy.written.items() if offset >= cut})
    log.aborted.update(offset for offset in copy.aborted if offset >= cut)
    log.in_transaction += [offset for offset in copy.in_transaction if offset >= cut]
    log.start, log.end = copy.start, copy.end
    return cut


class Restores(WorldChanges):
    """The rules that take copies and set parts of the world back to them."""

    def copy(self) -> Copy:
        self.oracle.check()
        logs = {tp: (self.world.topics[tp.topic].topic_id, deepcopy(self.world.topics[tp.topic].logs[tp.partition]))
                for tp in self.tps()}  # fmt: skip
        copy = Copy(
            self.world.tables.copy(), self.oracle.account(), logs, dict(self.world.committed),
            dict(self.settings), tuple(self.subscribed),
        )  # fmt: skip
        self.copies = [*self.copies, copy][-COPIES:]
        return copy

    @precondition(lambda self: self.config.restores)
    @rule(where=small, records=orders)
    def copy_is_taken(self, where: int, records: list[Any]) -> None:
        """Takes a copy, perhaps while processes are stopped in the middle of a turn."""
        self.append(self.log(where), records)
        self.copy()

    @precondition(lambda self: self.copies)
    @rule(which=small, what=parts, runs=st.integers(0, 2), adopts=st.booleans())
    def restored(self, which: int, what: tuple[str, ...], runs: int, adopts: bool) -> None:
        """Sets parts back to a copy. Then come runs; an operator may adopt what is an older copy now."""
        self.restore(self.copies[which % len(self.copies)], what)
        self.runs_come(runs, adopts)

    def restore(self, copy: Copy, what: tuple[str, ...]) -> None:
        if "tables" in what or "logs" in what:
            for actor in self.actors:
                actor.kill()
            self.actors.clear()
        self.oracle.check()
        if "logs" in what:
            self.restore_logs(copy)
        if "group" in what:
            self.oracle.disturbed()
            self.world.committed = {key: of for key, of in copy.committed.items() if self.world.log(key[1]) is not None}
        if "tables" in what:
            self.world.tables = copy.tables.copy()
            self.oracle.set_back(copy.account)
        if "file" in what:
            self.settings, self.subscribed = dict(copy.settings), list(copy.subscribed)

    def restore_logs(self, copy: Copy) -> None:
        """Sets the logs back of which the copy has the topic that is there now."""
        for tp, (topic_id, log) in copy.logs.items():
            topic = self.world.topics.get(tp.topic)
            if topic is not None and topic.topic_id == topic_id:
                self.oracle.cut(topic_id, tp, set_back(topic.logs[tp.partition], log))

    def runs_come(self, runs: int, adopts: bool) -> None:
        """Lets runs go to their end. If one stops at a newer commit, an operator may adopt the ledger."""
        for _ in range(runs):
            actor = self.spawn("run")
            self.advance(actor, None)
            self.oracle.check()
            if adopts and isinstance(actor.error, NewerCommit):
                self.advance(self.spawn("adopt"), None)
                self.oracle.check()
