"""Judges one epoch of a lane: what its turns store, in which order, and what each settlement takes from it.

Nothing here calls the ledger, the planning or the steps.
"""

from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

from ackline.ledger.offsets import TopicPartition
from tests.chaos import plans
from tests.chaos.account import TERMINAL, OfAllEpochs, PartitionAccount, Rules, Turn, Waiting, broken, rows_of, spread
from tests.chaos.evidence import existing
from tests.support.memory import TableCommit, World

LENIENT = "-lenient"
"""The end of the run ids of processes that run with --no-breaker."""
OPERATOR_VOIDS = ("void", "voidpause")
"""The beginning of the run ids of processes in which an operator closes an open turn."""


def is_operator_void(run_id: str) -> bool:
    return run_id.split("-")[0] in OPERATOR_VOIDS


class Epoch:
    def __init__(
        self,
        world: World,
        rules: Rules,
        number: int,
        is_ours: Callable[[str], bool],
        of_all: OfAllEpochs,
    ) -> None:
        self.world, self.rules, self.number, self.is_ours = world, rules, number, is_ours
        self.partitions: dict[TopicPartition, PartitionAccount] = {}
        self.turns: dict[int, Turn] = {}
        self.newest = -1
        """The newest turn that is settled."""
        self.ack_position: dict[str, Any] | None = None
        """Up to where the turns have read the ack topic, as the tables have it; None if no turn has read it."""
        self.ack_read_at = 0
        """The length of the history before the last turn has read the ack topic."""
        self.closed = False
        self.disturbed_at = -1
        """The length of the history when the group was last moved or joined from outside."""
        self.of_all = of_all

    def copy(self, of_all: OfAllEpochs) -> "Epoch":
        copied = copy(self)
        copied.partitions, copied.of_all = deepcopy(self.partitions), of_all
        copied.turns = {n: turn.copy() for n, turn in self.turns.items()}
        return copied

    def stored(self, event: TableCommit, index: int) -> None:
        """Judges a commit to a table and adds it to the account; `index` is its place in the history."""
        n, part = event.number, event.application.rsplit("/", 1)[-1]
        turn = self.turns.setdefault(n, Turn())
        if part == "claim" and event.value:  # the same number: a turn is claimed or waived, never both
            part = "waiver"
        if part in turn.stored_by:
            broken("I11", f"{part} {n} is stored twice")
        if part != "plan" and turn.plan is None and n:
            broken("I11", f"{part} {n} is stored without a plan")
        late = part in ("outcomes", "decisions") and turn.settlement is not None and turn.settlement.kind != "void"
        if late and (event.value or turn.settlement.kind == "run"):  # zero rows of an action's turn change nothing
            broken("I11", f"{part} {n} is stored after its settlement")
        setattr(turn, part, event.value)
        turn.stored_by[part] = event.run_id
        if part == "start":
            turn.started = event.value.at
        if part == "decisions":
            turn.answers = self.world.tables.notes.get((event.application, n))
        elif part == "outcomes":
            turn.outcomes_at = index
        judge = getattr(self, f"_{part}", None)
        if judge is not None:
            judge(n, turn, index)

    def begin_next(self, reset: Turn) -> "Epoch":
        """Returns the epoch that a settled reset opens. It starts at the targets of the reset, and elsewhere at the
        floor."""
        after = Epoch(self.world, self.rules, self.number + 1, self.is_ours, self.of_all)
        after.newest, self.closed = 0, True
        after.ack_position, after.ack_read_at = self.ack_position, self.ack_read_at
        for tp, account in self.partitions.items():
            planned = reset.plan.partitions.get(tp)
            start = account.floor if planned is None else planned.fresh.start
            # A reset also takes over a topic that was created again.
            topic_id = planned.topic_id if planned else account.topic_id
            new = after.partitions[tp] = PartitionAccount(topic_id, start, account.paused)
            new.floors[0], new.acknowledged[0] = start, account.acknowledged[self.newest]
            # Only a reset that has looked at the log begins in it.
            new.cut = account.cut if planned is None or planned.log.leader_epoch is None else None
            self.of_all.coverage.begin(topic_id, tp, start)
        after.check_nothing_is_left_over(f"reset {self.newest} of epoch {self.number}")
        return after

    def check_nothing_is_left_over(self, what: str) -> None:
        """I15, after what has moved the floors or has begun this epoch."""
        for tp, account in self.partitions.items():
            log = self.world.log_of(account.topic_id, tp)
            if log is not None:
                offsets = existing(log, self.rules.isolation)
                self.of_all.coverage.check(account.topic_id, tp, account.floor, offsets, what)

    # ---- what is stored before the settlement ---------------------------------------------------------------------

    def _plan(self, n: int, turn: Turn, index: int) -> None:
        if n != self.newest + 1 or self.closed:
            broken("I11", f"plan {n} of epoch {self.number} is stored when turn {self.newest} is settled")
        plans.check(self, n, turn.plan)
        turn.planned_at = index
        for tp, account in self.partitions.items():
            planned = turn.plan.partitions.get(tp)
            committed = None if planned is None else planned.committed
            account.acknowledged[n] = account.acknowledged[n - 1]
            adopts = turn.plan.kind == "skip" and turn.stored_by["plan"].startswith("adopt")
            if committed is not None and adopts and planned is not None:
                account.acknowledged[n] = committed.offset  # also one of a newer copy of this ledger
            elif committed is not None and self.is_ours(committed.metadata):
                account.acknowledged[n], account.own_commit_found[n] = None, index
            elif committed is not None and turn.plan.kind in plans.MOVES and not plans.is_about_pending(planned):
                account.acknowledged[n] = committed.offset

    def _claim(self, n: int, turn: Turn, _: int) -> None:
        if n != self.newest + 1 or not turn.once:
            broken("I11", f"claim {n} is stored when turn {self.newest} is settled")
        if turn.waiver is not None:
            broken("I7", f"claim {n} is stored, and turn {n} was waived")
        for tp, account in self.partitions.items():
            fresh = turn.plan.partitions[tp].fresh
            account.claims[n] = fresh.end if fresh else account.floor

    def _waiver(self, n: int, turn: Turn, _: int) -> None:
        process = turn.stored_by["waiver"]
        if n != self.newest + 1 or not turn.once or turn.claim is not None:
            broken("I7", f"waiver {n} is stored when turn {self.newest} is settled: {turn.stored_by}")
        if not is_operator_void(process) and not self._gone(turn):
            broken("I11", f"{process} waives turn {n}, and nothing keeps it from being carried out")

    def _start(self, n: int, turn: Turn, _: int) -> None:
        if "claim" not in turn.stored_by:
            broken("I7", f"start marker {n} is stored without a claim")

    def _outcomes(self, n: int, turn: Turn, _: int) -> None:
        """Only records of claimed turns may be `lost`, and not while the process that has started may still report."""
        guarantee = turn.plan.settings["guarantee"]
        process = turn.stored_by["outcomes"]
        for tp, row in rows_of(turn.outcomes):
            wrong = "dropped" if guarantee == "at_least_once" else "failed"
            if row.outcome == wrong or (row.outcome == "lost" and "claim" not in turn.stored_by):
                broken("I4", f"outcomes {n} have {row.outcome} for {tp} {row.offset} under {guarantee}")
            starter = turn.stored_by.get("start", process)
            early = row.handled_at < (turn.started or turn.plan.planned_at) + self.rules.lost_after
            excused = not early or self.disturbed_at >= turn.planned_at or self._gone(turn)
            excused |= is_operator_void(process)
            if row.outcome == "lost" and starter != process and not excused:
                broken("I7", f"{process} stores turn {n} as lost, which {starter} may still report")

    def _decisions(self, n: int, turn: Turn, _: int) -> None:
        if self.trips(turn) and not turn.stored_by["decisions"].endswith(LENIENT):
            broken("S46", f"decisions {n} are stored, and the breaker allows no such turn: {turn.failures()}")
        for tp, row in rows_of(turn.decisions):
            acknowledged = (self.number, tp, row.offset) in self.of_all.letters
            if row.outcome == "dead" and self.rules.dead_letter_topic is not None and not acknowledged:
                broken("I6", f"decisions {n} have dead for {tp} {row.offset}, whose letter was not acknowledged")

    def trips(self, turn: Turn) -> bool:
        """Returns whether too many fresh records of a turn have failed (S46)."""
        if self.rules.breaker is None or turn.plan.kind != "run" or "claim" in turn.stored_by:
            return False
        ratio, least = self.rules.breaker
        failed, attempted = turn.failures()
        return attempted >= least and failed > ratio * attempted

    # ---- the settlement -------------------------------------------------------------------------------------------

    def _settlement(self, n: int, turn: Turn, _: int) -> None:
        settlement = turn.settlement
        if n != self.newest + 1 or self.closed:
            broken("I11", f"settlement {n} of epoch {self.number} is stored when turn {self.newest} is settled")
        if settlement.kind == "run" and (turn.outcomes is None or turn.decisions is None):
            broken("I11", f"settlement {n} is stored without outcomes and decisions: nothing proves it")
        if turn.plan is not None and settlement.kind not in (turn.plan.kind, "void"):
            broken("I11", f"settlement {n} is a {settlement.kind}, its plan a {turn.plan.kind}")
        self.newest = n
        if settlement.kind == "void":
            self._check_void(n, turn)
        else:
            self._take_rows(n, turn)
        for tp, settled in settlement.partitions.items():
            if tp not in self.partitions:
                plans.check_start(self, tp, settled, turn)
                account = self.partitions[tp] = PartitionAccount(settled.topic_id, settled.state.complete_to)
                committed = settled.committed if turn.plan is None else turn.plan.partitions[tp].committed
                foreign = committed is not None and not self.is_ours(committed.metadata)
                account.acknowledged[n] = committed.offset if foreign else None
                self.of_all.coverage.begin(account.topic_id, tp, account.complete_to)
            self._take_state(n, tp, self.partitions[tp], settled)
            self._check_columns(n, tp, self.partitions[tp], settled)
        self.check_nothing_is_left_over(f"{settlement.kind} {n} of epoch {self.number}")

    def _check_void(self, n: int, turn: Turn) -> None:
        if turn.plan.kind != "run" or "claim" in turn.stored_by:
            broken("I7", f"turn {n}, {turn.plan.kind}, is void, and claimed turns and actions never are")
        if turn.once and any(not planned.empty for planned in turn.plan.partitions.values()) and turn.waiver is None:
            broken("I7", f"turn {n} is void, and was not waived: a driver may still claim it")
        tripped = self.trips(turn) and not turn.stored_by["settlement"].endswith(LENIENT)
        by_operator = is_operator_void(turn.stored_by.get("waiver", turn.stored_by["settlement"]))
        if by_operator != turn.settlement.closed_by_operator:
            broken("I11", f"settlement {n} is an operator's void: {turn.settlement.closed_by_operator}")
        if not by_operator and not tripped and not turn.waiver and not self._gone(turn):
            broken("I11", f"turn {n} is void, and nothing kept it from being carried out")
        if turn.stored_by.get("waiver", turn.stored_by["settlement"]).startswith("voidpause"):
            for tp, planned in turn.plan.partitions.items():
                self.partitions[tp].paused |= not planned.empty

    def _gone(self, turn: Turn) -> bool:
        """Returns whether the log has lost a part of what is planned."""
        for tp, planned in turn.plan.partitions.items():
            log, topic, fresh = self.world.log(tp), self.world.topics.get(tp.topic), planned.fresh
            if fresh or planned.retries:
                if log is None or topic is None or topic.topic_id != planned.topic_id:
                    return True
                if fresh and (log.start > fresh.start or log.readable_end(self.rules.isolation) < fresh.end):
                    return True
                if self.of_all.cut_since(turn.planned_at, planned.topic_id, tp) < fresh.end:
                    return True
        return False

    def _take_rows(self, n: int, turn: Turn) -> None:
        """Adds the rows of a turn to the account: from now on they count."""
        self._check_operator_loss(n, turn)
        if turn.order != "none":
            plans.check_calls_in_order(self, n, turn)
        for tp, row in rows_of(turn.outcomes):
            if (turn.stored_by["outcomes"], tp) in turn.misread and row.attempt:
                broken("S42", f"outcomes {n} of {tp} are of a topic that was created again meanwhile")
            self._take_attempt(tp, row)
        for tp, row in rows_of(turn.decisions):
            if row.answer is not None:
                self._take_attempt(tp, row)
        for tp, row in (*rows_of(turn.outcomes), *rows_of(turn.decisions)):
            if tp in self.partitions:
                self.of_all.coverage.add(self.partitions[tp].topic_id, tp, row)
                self.partitions[tp].settled.update(range(row.offset, row.end) if row.outcome in TERMINAL else ())
        if turn.plan is not None and turn.plan.kind in ("pause", "resume"):
            for tp in turn.plan.partitions:
                self.partitions[tp].paused = turn.plan.kind == "pause"

    def _take_attempt(self, tp: TopicPartition, row: Any) -> None:
        if tp in self.partitions and row.outcome == "failed":
            self.partitions[tp].failures[row.offset] = self.rules.after_failure(row)
        elif tp in self.partitions and row.outcome == "in_flight":
            self.partitions[tp].failures[row.offset] = Waiting("in_flight", row.attempt, row.due)
        elif tp in self.partitions and row.outcome == "held_back":
            before = self.partitions[tp].failures.get(row.offset)
            since = row.handled_at
            if before is not None and before.kind == "held_back" and before.due is not None:
                since = min(before.due, since)  # it has waited all the time
            made = before.attempts if before is not None else 0
            self.partitions[tp].failures[row.offset] = Waiting("held_back", made, since)

    def _check_operator_loss(self, n: int, turn: Turn) -> None:
        """A turn that an operator has recorded as lost is closed by the operator, and paused if that was ordered."""
        process = turn.stored_by.get("outcomes", "")
        by_operator = is_operator_void(process) and turn.outcomes is not None
        if by_operator != turn.settlement.closed_by_operator:
            broken("I11", f"settlement {n}, of outcomes by {process}, has the mark of an operator: {not by_operator}")
        if by_operator and process.startswith("voidpause"):
            for tp, planned in turn.plan.partitions.items():
                self.partitions[tp].paused |= not planned.empty

    def _take_state(self, n: int, tp: TopicPartition, account: PartitionAccount, settled: Any) -> None:
        """Takes the state of a partition from a settlement. Which offsets are pending, the checker judges."""
        state, plan = settled.state, self.turns[n].plan
        account.complete_to = state.complete_to
        if plan is not None and plan.kind == "retry" and tp in plan.partitions:
            for offset in spread(plan.partitions[tp].retries):
                account.failures[offset] = account.pending[offset].due_by(plan.planned_at)
        account.pending = {
            offset: Waiting(pending.kind.value, pending.attempts, pending.due)
            for offset, pending in spread(state.pending).items()
        }
        for offset, pending in account.pending.items():
            failure = account.failures.get(offset)
            if failure is None or not failure.allows(pending):
                broken("I5", f"settlement {n} of {tp}: {offset} is pending as {pending}, its last failure is {failure}")
            account.failures[offset] = pending  # jitter is decided once
        if account.floor < max(account.claims.values(), default=0):
            broken("I3", f"settlement {n} of {tp} lowers the floor to {account.floor}, below a claim")
        if plan is not None and plan.kind in plans.MOVES and tp in plan.partitions:
            target = plan.partitions[tp].fresh.end
            if account.floor < target:
                broken("I4", f"{plan.kind} {n} of {tp} to {target} leaves the floor at {account.floor}")
        account.floors[n] = account.floor

    def _check_columns(self, n: int, tp: TopicPartition, account: PartitionAccount, settled: Any) -> None:
        plan = self.turns[n].plan  # a reset's has the topics of the epoch that it opens
        reset = plan.partitions.get(tp) if plan is not None and plan.kind == "reset" else None
        if settled.topic_id not in (account.topic_id, reset.topic_id if reset else None):
            broken("S42", f"settlement {n} of {tp} is about topic {settled.topic_id}, which is not {account.topic_id}")
        if settled.paused != account.paused:
            broken("I4", f"settlement {n} of {tp} has paused {settled.paused}, by the actions it is {account.paused}")
        if settled.acknowledged_foreign_offset != account.acknowledged[n]:
            broken(
                "S36",
                f"settlement {n} of {tp} has acknowledged {settled.acknowledged_foreign_offset}; "
                f"by its plans it is {account.acknowledged[n]}",
            )
