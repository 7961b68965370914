"""Judges a world in memory by its history: every write, in the order in which it was made.

`Oracle.check` holds the rules that only a history shows: the order of writes, what was due, readable or claimed when a
plan was stored, which process made a write and what it had seen before, and each commit of the group when it is made.
A rule on what tables, commits and handler calls hold in the end is stated once, in `ackline.verify`:
`Oracle.check_tables` turns the world into evidence, and the independent checker judges it. The tables are append-only,
so one judgement at the end of a world finds what any moment before has stored. It takes about as long as ten steps.

The checker has no retry policy, so the oracle also holds the due time and the kind of each pending offset. It takes the
floors that may be committed from the settlements; the checker proves that the rows make these floors. Nothing here
calls the ledger, the planning or the steps.
"""

import json
from dataclasses import dataclass
from typing import NamedTuple

from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE
from ackline.verify.check import judge
from tests.chaos import answers
from tests.chaos.account import Cut, OfAllEpochs, PartitionAccount, Rules, Turn, Violation, broken, spread
from tests.chaos.epoch import LENIENT, Epoch
from tests.chaos.evidence import evidence_of
from tests.chaos.outside import Outside
from tests.chaos.plans import foreign
from tests.support.memory import ArrivedLetter, GroupCommit, HandlerCall, TableCommit, World


def ledger_of(metadata: str) -> str | None:
    """Returns the id of the ledger that the metadata of a commit names; None if they name none."""
    try:
        return str(json.loads(metadata)["ledger"])
    except (ValueError, TypeError, KeyError):
        return None


class Lost(NamedTuple):
    """A part of the history that happened for no table, because these were set back to an older copy. `newest` is the
    newest turn, as (epoch, n), that the copy has settled."""

    part: range
    newest: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Account:
    """What the oracle knows of the tables at one moment. `at` is the length of the history then."""

    epochs: list[Epoch]
    lost: list[Lost]
    at: int


class Oracle:
    """Judges one lane: `check` judges what was written since its last call. Raises Violation."""

    def __init__(self, world: World, rules: Rules, outside: Outside | None = None) -> None:
        self.world, self.rules, self.outside = world, rules, outside
        self.epochs = [Epoch(world, rules, 0, self.is_ours, OfAllEpochs())]
        self._next = 0
        self._lost: list[Lost] = []
        self._made: dict[tuple[TopicPartition, Committed], int] = {}
        """When each commit was made last, as a place in the history."""
        self._passed: dict[tuple[str, TopicPartition], int] = {}
        """Up to where a newer copy of the tables has committed the group, by topic id: at most once, a run of this one
        may not hand that out again (I7)."""

    @property
    def partitions(self) -> dict[TopicPartition, PartitionAccount]:
        return self.epochs[-1].partitions

    @property
    def of_all(self) -> OfAllEpochs:
        return self.epochs[-1].of_all

    @property
    def open(self) -> Turn | None:
        """The turn that is planned and not settled; None if there is none."""
        turn = self.epochs[-1].turns.get(self.epochs[-1].newest + 1)
        return turn if turn is not None and turn.plan is not None else None

    def disturbed(self) -> None:
        """Notes that the group is moved or joined from outside now: claimed records may be lost by it."""
        self.epochs[-1].disturbed_at = len(self.world.history)
        self.commits_are_gone()

    def commits_are_gone(self) -> None:
        """Notes that the group may not show any more what a newer copy of the tables has committed."""
        self._passed.clear()

    # ---- copies ---------------------------------------------------------------------------------------------------

    def account(self) -> "Account":
        of_all = self.of_all.copy()
        return Account([epoch.copy(of_all) for epoch in self.epochs], list(self._lost), len(self.world.history))

    def set_back(self, account: "Account") -> None:
        """Notes that the tables are set back to the copy of which this is the account."""
        self.commits_are_gone()
        newest = (len(account.epochs) - 1, account.epochs[-1].newest)
        of_all = account.epochs[-1].of_all.copy()
        self.epochs = [epoch.copy(of_all) for epoch in account.epochs]
        self._lost = [*account.lost, Lost(range(account.at, len(self.world.history)), newest)]
        for cut in of_all.cuts:
            if cut.since >= account.at:
                self._apply(cut)
        for tp, of in self.partitions.items():
            committed = self.world.committed.get((self.rules.group, tp))
            metadata = json.loads(committed.metadata) if committed and self.is_ours(committed.metadata) else None
            if committed is not None and metadata and (metadata["epoch"], metadata["n"]) > newest:
                self._passed[of.topic_id, tp] = committed.offset

    def cut(self, topic_id: str, tp: TopicPartition, at: int) -> None:
        """Notes that a log holds other records from an offset on."""
        self.of_all.cuts.append(Cut(len(self.world.history), topic_id, tp, at))
        self._apply(self.of_all.cuts[-1])

    def _apply(self, cut: Cut) -> None:
        account = self.partitions.get(cut.tp)
        self._passed.pop((cut.topic_id, cut.tp), None)
        if account is not None and account.topic_id == cut.topic_id and account.complete_to > cut.at:
            account.cut = cut.at if account.cut is None else min(account.cut, cut.at)
            self.of_all.coverage.cut(cut.topic_id, cut.tp, cut.at)

    # ---- the history ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        while self._next < len(self.world.history):
            event = self.world.history[self._next]
            self._next += 1
            if self._is_of_backfill(event):
                continue
            if isinstance(event, TableCommit):
                self._stored(event)
            elif isinstance(event, GroupCommit):
                self._committed(event)
            elif isinstance(event, ArrivedLetter):
                self._letter_arrived(event)
            elif isinstance(event, HandlerCall):
                self._called(event)

    def _is_of_backfill(self, event: object) -> bool:
        """Returns whether an event is of a backfill lane, which the checker judges at the end. Such a lane may not
        commit (S70)."""
        if isinstance(event, GroupCommit):
            if event.run_id.startswith("backfill"):
                broken("S70", f"{event.run_id} commits {event.offsets}")
            return False
        if isinstance(event, TableCommit):
            return event.application.split("/")[2] != LIVE
        if isinstance(event, ArrivedLetter):
            return event.headers["ackline.lane"] != LIVE
        return isinstance(event, HandlerCall) and event.lane != LIVE

    def check_tables(self, lane: str = LIVE) -> None:
        if not any(turn.lane == lane for turn in self.world.tables.settlements):
            return  # there is no such lane yet
        evidence = evidence_of(self.world, self.rules, lane, self._unlike(lane), [lost.part for lost in self._lost])
        if violations := judge(evidence, max_retries=self.rules.max_retries).violations:
            raise Violation("\n".join(violations))

    def _unlike(self, lane: str) -> set[TopicPartition]:
        """Returns the partitions whose log is not the one that the lane has read, and those of which that is not
        known."""
        if lane != LIVE:
            return {cut.tp for cut in self.of_all.cuts}
        return {tp for tp, account in self.partitions.items() if account.cut is not None}

    def is_ours(self, metadata: str) -> bool:
        """Returns whether the metadata of a commit names this ledger, by the id that it had at the event that is
        judged: adopting an older copy of a ledger gives it another id."""
        return ledger_of(metadata) == self.ledger()

    def ledger(self) -> str:
        """Returns the id that the ledger had at the event that is judged; "" before it had one."""
        later = [ledger for at, ledger in self.world.tables.replaced_ids if at >= self._next]
        return (later or [self.world.tables.ids.get("settlements", "")])[0]

    def _stored(self, event: TableCommit) -> None:
        number, part = event.application.split("/")[-2:]
        if part.startswith("try-"):
            return  # a counted start of a plan; it is about no record
        if int(number) >= len(self.epochs):
            broken("I11", f"{event.application} {event.number} is of an epoch that no reset has opened")
        epoch = self.epochs[int(number)]
        if part == "settlement" and self.outside is not None:
            answers.check(epoch, event.value, self.outside, self.ledger())  # by the state before the turn
        epoch.stored(event, self._next)
        turn = epoch.turns[event.number]
        if part == "settlement" and turn.settlement.kind == "reset":
            self.commits_are_gone()  # an operator has decided where the lane goes on
            self.epochs.append(epoch.begin_next(turn))

    # ---- the handler, the letters, the group ----------------------------------------------------------------------

    def _called(self, call: HandlerCall) -> None:
        """Each call, also one that is never reported, is of a planned attempt at a readable record."""
        turn = self.epochs[call.epoch].turns[call.turn]
        planned = turn.plan.partitions[call.tp]
        # At most once: claim, commit, start marker, and only then the handler.
        if turn.once and (turn.stored_by.get("start") != call.run_id or call.tp not in turn.committed):
            parts = f"claimed, committed, started: {turn.stored_by}"
            broken("I7", f"{call.run_id} hands out {call.tp} {call.offset}; {parts}")
        if turn.once:
            self._check_called_once(call)
            if call.offset < self._passed.get((call.topic_id, call.tp), 0):
                broken("I7", f"{call.run_id} hands out {call.tp} {call.offset}, which a newer copy has committed over")
        turn.handed_out.add((call.tp, call.offset))
        turn.calls.append((call.run_id, call.tp, call.offset))
        is_other = call.offset >= self.of_all.cut_since(turn.planned_at, call.topic_id, call.tp)
        if call.topic_id != planned.topic_id or is_other:
            turn.misread.add((call.run_id, call.tp))  # the topic was created again while it was read: no row may count
            return
        fresh = planned.fresh
        attempt = spread(planned.retries).get(call.offset, 1 if fresh.start <= call.offset < fresh.end else None)
        if call.attempt != attempt or call.offset >= call.readable_end:
            broken("I14", f"attempt {call.attempt} at {call.tp} {call.offset}; plan {call.turn} has attempt {attempt}")

    def _check_called_once(self, call: HandlerCall) -> None:
        """I7: in an epoch, no turn at most once hands out an offset that a turn before it, or it itself, has handed
        out. Turns on another topic of the same name are not compared."""
        for n, turn in self.epochs[call.epoch].turns.items():
            same_topic = turn.plan is not None and call.tp in turn.plan.partitions
            same_topic = same_topic and turn.plan.partitions[call.tp].topic_id == call.topic_id
            if same_topic and turn.once and (call.tp, call.offset) in turn.handed_out:
                broken(
                    "I7", f"{call.run_id} hands out {call.tp} {call.offset} in turn {call.turn}; turn {n} has already"
                )

    def _letter_arrived(self, letter: ArrivedLetter) -> None:
        headers = {name.removeprefix("ackline."): value for name, value in letter.headers.items()}
        tp, offset = TopicPartition(headers["topic"], int(headers["partition"])), int(headers["offset"])
        epoch = self.epochs[int(headers["epoch"])]
        if epoch.trips(epoch.turns[int(headers["turn"])]) and not letter.run_id.endswith(LENIENT):
            broken("S46", f"{letter.run_id} sends a letter of {tp} {offset}, of a turn that the breaker does not allow")
        topic_id = epoch.partitions[tp].topic_id
        log = self.world.log_of(topic_id, tp)
        assert log is not None
        record = log.written.get(offset)
        if record is None or record.key != letter.key or not (letter.value_omitted or record.value == letter.value):
            if topic_id in self.world.deleted_topics:
                return  # read while the topic was created again: it must not make a record dead
            broken("I6", f"the letter of {tp} {offset} is of another record")
        if int(headers["timestamp"]) != record.timestamp:
            broken("I6", f"the letter of {tp} {offset} has another timestamp than the record")
        if letter.acknowledged:
            self.of_all.letters.add((epoch.number, tp, offset))

    def _committed(self, commit: GroupCommit) -> None:
        turns = set()
        for tp, committed in commit.offsets.items():
            metadata = json.loads(committed.metadata)
            number, n = turn = metadata["epoch"], metadata["n"]
            turns.add(turn)
            epoch = self.epochs[number]
            account = epoch.partitions.get(tp)
            allowed = set() if account is None else account.allowed_commits(n)
            what = f"{commit.run_id} commits {committed.offset} of {tp} for turn {n} of epoch {number}"
            if account is None or not allowed:
                broken("I1", f"{what}; {epoch.newest} is settled")
            if committed.offset not in allowed:
                broken("I2", f"{what}, which allows {allowed}")
            if turn < commit.newest_settlement:
                broken("I3", f"{what}, and had seen settlement {commit.newest_settlement}")
            self._check_overwritten(commit, tp, turn, account)
            self._made[tp, committed] = self._next - 1
            if n in epoch.turns:
                epoch.turns[n].committed.add(tp)
        for number, n in turns:
            self._check_complete(commit, n, self.epochs[number])

    def _check_complete(self, commit: GroupCommit, n: int, epoch: Epoch) -> None:
        """Idle and parked partitions are committed too, because Kafka removes old commits. Partitions with a foreign
        commit are not."""
        for tp, account in epoch.partitions.items():
            topic = self.world.topics.get(tp.topic)
            exists = topic is not None and topic.topic_id == account.topic_id and account.allowed_commits(n)
            committed = commit.last_read.get(tp)
            if exists and tp not in commit.offsets and (committed is None or self.is_ours(committed.metadata)):
                broken("I12", f"{commit.run_id} commits turn {n}, and leaves {tp} out")

    def _check_overwritten(
        self, commit: GroupCommit, tp: TopicPartition, turn: tuple[int, int], account: PartitionAccount
    ) -> None:
        """A commit overwrites no newer commit of this ledger, and only foreign commits that are acknowledged."""
        before = commit.last_read.get(tp)
        if before is None:
            return
        # A process that has read the group before the ledger got another id commits under the old one.
        if ledger_of(before.metadata) == ledger_of(commit.offsets[tp].metadata):
            metadata = json.loads(before.metadata)
            if (metadata["epoch"], metadata["n"]) > turn:
                broken("I3", f"{commit.run_id} commits {tp} for {turn} over {before}")
            made = self._made.get((tp, before), -1)
            if any(made in lost.part and (metadata["epoch"], metadata["n"]) > lost.newest for lost in self._lost):
                broken("I3", f"{commit.run_id} commits {tp} for {turn} over {before}, of a newer copy of the ledger")
            return
        if self.rules.on_external_reset == "restore" and foreign(self.epochs[-1], before):
            return
        found_at = account.own_commit_found.get(turn[1] + 1)
        if before.offset != account.acknowledged[turn[1]] or (found_at is not None and found_at <= commit.read_at):
            broken("S36", f"{commit.run_id} commits {tp} for {turn} over {before}, which no turn has acknowledged")
