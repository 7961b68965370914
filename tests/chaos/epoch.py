"""One epoch of a lane, judged: what its turns store is replayed in order, into an account of every offset.

Nothing here calls the ledger, the planning or the steps; what a settlement says is compared with what the rows say.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from ackline.offsets import TopicPartition as At
from ackline.testing.memory import MemoryLog, TableCommit, World
from tests.chaos import plans
from tests.chaos.account import Place, Rules, Turn, Waiting, broken, rows_of, spread

LENIENT = "-lenient"
"""How the names of processes end that run with --no-breaker."""


class Epoch:
    """The account of one epoch. `letters` are the acknowledged dead letters of all epochs: (epoch, place, offset)."""

    def __init__(
        self, world: World, rules: Rules, number: int, letters: set[tuple[int, At, int]], is_ours: Callable[[str], bool]
    ) -> None:
        self.world, self.rules, self.number, self.is_ours = world, rules, number, is_ours
        self.places: dict[At, Place] = {}
        self.turns: dict[int, Turn] = {}
        self.newest = -1
        self.closed = False
        self.disturbed_at = -1
        """How long the history was when somebody last moved the group or joined it."""
        self._letters = letters

    def stored(self, event: TableCommit, index: int) -> None:
        """Judge a commit to a table and take it into the account; `index` is its place in the history."""
        n, kind = event.number, event.application.rsplit("/", 1)[-1]
        turn = self.turns.setdefault(n, Turn())
        if kind in turn.by:
            broken("I11", f"{kind} {n} is stored twice")
        if kind != "plan" and turn.plan is None and n:
            broken("I11", f"{kind} {n} is stored without a plan")
        late = kind in ("outcomes", "decisions") and turn.settlement is not None and turn.settlement.kind != "void"
        if late and (event.value or turn.settlement.kind == "run"):  # zero rows of an act's turn change nothing
            broken("I11", f"{kind} {n} is stored after its settlement")
        setattr(turn, kind, event.value)
        turn.by[kind] = event.by
        if kind == "start" and (said := self.world.tables.notes.get((event.application, n))):
            turn.started = datetime.fromisoformat(said)
        judge = getattr(self, f"_{kind}", None)
        if judge is not None:
            judge(n, turn, index)

    def begin_next(self, reset: Turn) -> "Epoch":
        """The epoch that a settled reset opens: at its targets, or where the partitions stand."""
        after = Epoch(self.world, self.rules, self.number + 1, self._letters, self.is_ours)
        after.newest, self.closed = 0, True
        for tp, place in self.places.items():
            one = reset.plan.partitions.get(tp)
            start = place.floor if one is None else one.fresh.start
            # a reset takes a topic over that was created again
            new = after.places[tp] = Place(one.topic_id if one else place.topic_id, start, start, place.paused)
            new.floors[0], new.answers[0] = start, place.answers[self.newest]
        return after

    def check_all_rows(self) -> None:
        """I2 and I4 over every offset there ever was."""
        for tp, place in self.places.items():
            for offset in range(place.start, place.complete_to):
                self._check_known(tp, place, offset)

    # ---- what is stored before the settlement ---------------------------------------------------------------------

    def _plan(self, n: int, turn: Turn, index: int) -> None:
        if n != self.newest + 1 or self.closed:
            broken("I11", f"plan {n} of epoch {self.number} is stored when turn {self.newest} is settled")
        plans.check(self, n, turn.plan)
        turn.planned_at = index
        for tp, place in self.places.items():
            one = turn.plan.partitions.get(tp)
            committed = None if one is None else one.committed
            place.answers[n] = place.answers[n - 1]
            if committed is not None and self.is_ours(committed.metadata):
                place.answers[n], place.found_at[n] = None, index
            elif committed is not None and turn.plan.kind in plans.MOVES:
                place.answers[n] = committed.offset

    def _claim(self, n: int, turn: Turn, _: int) -> None:
        if n != self.newest + 1 or not turn.once:
            broken("I11", f"claim {n} is stored when turn {self.newest} is settled")
        for tp, place in self.places.items():
            fresh = turn.plan.partitions[tp].fresh
            place.claims[n] = fresh.end if fresh else place.floor

    def _start(self, n: int, turn: Turn, _: int) -> None:
        if not turn.claim and "claim" not in turn.by:
            broken("I7", f"start marker {n} is stored without a claim")

    def _outcomes(self, n: int, turn: Turn, _: int) -> None:
        """`lost` is said of claimed turns only, and not while whoever has started one may still report."""
        guarantee = turn.plan.settings["guarantee"]
        for tp, row in rows_of(turn.outcomes):
            wrong = "dropped" if guarantee == "at_least_once" else "failed"
            if row.outcome == wrong or (row.outcome == "lost" and "claim" not in turn.by):
                broken("I4", f"outcomes {n} say {row.outcome} of {tp} {row.offset} under {guarantee}")
            starter = turn.by.get("start", turn.by["outcomes"])
            early = row.handled_at < (turn.started or turn.plan.planned_at) + self.rules.lost_after
            excused = not early or self.disturbed_at >= turn.planned_at or self._gone(turn)
            if row.outcome == "lost" and starter != turn.by["outcomes"] and not excused:
                broken("I7", f"{turn.by['outcomes']} says lost of turn {n}, which {starter} may still report")

    def _decisions(self, n: int, turn: Turn, _: int) -> None:
        if self.trips(turn) and not turn.by["decisions"].endswith(LENIENT):
            broken("S46", f"decisions {n} are stored, and the breaker allows no such turn: {turn.failures()}")
        for tp, row in rows_of(turn.decisions):
            said = (self.number, tp, row.offset) in self._letters
            if row.outcome == "dead" and self.rules.dead_letter_topic is not None and not said:
                broken("I6", f"decisions {n} say dead of {tp} {row.offset}, whose letter was not acknowledged")

    def trips(self, turn: Turn) -> bool:
        """Whether too many of a turn's new records failed."""
        if self.rules.breaker is None or turn.plan.kind != "run" or "claim" in turn.by:
            return False
        ratio, least = self.rules.breaker
        bad, tried = turn.failures()
        return tried >= least and bad > ratio * tried

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
            self._fold(n, turn)
        for tp, one in settlement.partitions.items():
            if tp not in self.places:
                plans.check_start(self, tp, one, turn)
                place = self.places[tp] = Place(one.topic_id, one.state.complete_to, one.state.complete_to)
                committed = one.committed if turn.plan is None else turn.plan.partitions[tp].committed
                place.answers[n] = None if committed is None or self.is_ours(committed.metadata) else committed.offset
            self._compare(n, tp, self.places[tp], one)
        if missing := self.places.keys() - settlement.partitions.keys():
            broken("I4", f"settlement {n} says nothing of {sorted(missing)}")

    def _check_void(self, n: int, turn: Turn) -> None:
        if turn.plan.kind != "run" or "claim" in turn.by:
            broken("I7", f"turn {n}, {turn.plan.kind}, is void, and claimed ones and acts never are")
        tripped = self.trips(turn) and not turn.by["settlement"].endswith(LENIENT)
        if not tripped and not self._gone(turn):
            broken("I11", f"turn {n} is void, and nothing kept it from being carried out")

    def _gone(self, turn: Turn) -> bool:
        """Whether something that is planned is no longer in the log."""
        for tp, one in turn.plan.partitions.items():
            log, topic = self.world.log(tp), self.world.topics.get(tp.topic)
            if one.fresh or one.retries:
                if log is None or topic is None or topic.topic_id != one.topic_id:
                    return True
                if one.fresh and (
                    log.start > one.fresh.start or log.readable_end(self.rules.isolation) < one.fresh.end
                ):
                    return True
        return False

    def _compare(self, n: int, tp: At, place: Place, one: Any) -> None:
        found = {offset: Waiting(p.kind.value, p.attempts, p.due) for offset, p in spread(one.state.pending).items()}
        for offset, mine in place.pending.items():
            theirs = found.get(offset)
            if theirs and mine.latest and mine.due and theirs.due and mine.due <= theirs.due <= mine.latest:
                place.pending[offset] = mine._replace(due=theirs.due, latest=None)  # jitter, decided once
        if (one.state.complete_to, found) != (place.complete_to, place.pending):
            broken(
                "I4",
                f"settlement {n} of {tp}: complete_to {one.state.complete_to}, pending {found}; the rows say "
                f"{place.complete_to}, {place.pending}",
            )
        if place.floor < max([*place.floors.values(), *place.claims.values()], default=0):
            broken("I3", f"settlement {n} of {tp} lowers the floor to {place.floor}")
        plan = self.turns[n].plan  # a reset's names the topics of the epoch that it opens
        taken = plan.partitions.get(tp) if plan is not None and plan.kind == "reset" else None
        if one.topic_id not in (place.topic_id, taken.topic_id if taken else None):
            broken("S42", f"settlement {n} of {tp} is about topic {one.topic_id}, which is not {place.topic_id}")
        if one.paused != place.paused:
            broken("I4", f"settlement {n} of {tp} says paused {one.paused}, the acts say {place.paused}")
        if one.acknowledged_foreign_offset != place.answers[n]:
            broken(
                "S36",
                f"settlement {n} of {tp} has answered {one.acknowledged_foreign_offset}; its plans say {place.answers[n]}",
            )
        place.floors[n] = place.floor

    def _fold(self, n: int, turn: Turn) -> None:
        """The account after a turn, by its rows."""
        rows: dict[At, list[Any]] = {}
        for tp, row in (*rows_of(turn.outcomes), *rows_of(turn.decisions)):
            rows.setdefault(tp, []).append(row)
        for tp, one in turn.plan.partitions.items() if turn.plan else ():
            if tp not in self.places:
                continue
            place, found = self.places[tp], rows.pop(tp, [])
            if (turn.by.get("outcomes", ""), tp) in turn.strangers and any(row.attempt for row in found):
                broken("S42", f"outcomes {n} of {tp} are of a topic that was created again meanwhile")
            self._apply(n, tp, place, turn.plan.kind, one, found)
            settled = turn.settlement.partitions[tp]
            if dict(settled.counts) != Counter(row.outcome.value for row in found):
                broken("I4", f"settlement {n} of {tp} counts {settled.counts} of {found}")
        if rows:
            broken("I4", f"turn {n} has rows of {sorted(rows)}, which it did not plan")

    def _apply(self, n: int, tp: At, place: Place, kind: str, one: Any, rows: Iterable[Any]) -> None:
        if kind in ("pause", "resume"):
            place.paused = kind == "pause"
        retries = spread(one.retries)
        decisions = [row for row in rows if not row.attempt]
        for row in rows:
            if row.attempt:
                wanted = retries.get(row.offset, 1 if one.fresh.start <= row.offset < one.fresh.end else None)
                self._attempted(n, tp, place, row, wanted)
        for row in decisions:
            self._decide(n, tp, place, row)
        if kind in ("run", "skip"):
            before, place.complete_to = place.complete_to, max(place.complete_to, one.fresh.end)
            for offset in range(before, place.complete_to):
                self._check_known(tp, place, offset)
        if kind == "skip" and place.floor < one.fresh.end:
            broken("I4", f"skip {n} of {tp} to {one.fresh.end} leaves the floor at {place.floor}")

    def _attempted(self, n: int, tp: At, place: Place, row: Any, wanted: int | None) -> None:
        made = place.attempts[row.offset]
        if row.attempt != wanted or row.attempt != made + 1 or row.offset in place.fates:
            broken("I9", f"turn {n} has attempt {row.attempt} at {tp} {row.offset}, made were {made}")
        if row.attempt > self.rules.most_attempts:
            broken("I5", f"attempt {row.attempt} at {tp} {row.offset}")
        if self.log(tp, place).ever(row.offset, self.rules.isolation) is None:
            broken("I4", f"turn {n} has a row of {tp} {row.offset}, where no record was")
        place.attempts[row.offset] += 1
        place.pending.pop(row.offset, None)
        if row.outcome == "failed":
            place.pending[row.offset] = self._waiting(row)
        else:
            place.fates[row.offset] = row.outcome.value

    def _decide(self, n: int, tp: At, place: Place, row: Any) -> None:
        for offset in range(row.offset, row.offset + 1 if row.end_offset is None else row.end_offset):
            if offset in place.fates or (row.end_offset is None and offset not in place.pending):
                broken("I4", f"turn {n} says {row.outcome} of {tp} {offset}: {place.fates.get(offset)}")
            place.pending.pop(offset, None)
            place.fates[offset] = row.outcome.value

    def _waiting(self, row: Any) -> Waiting:
        policy = self.rules.policy_of(row.error_class)
        if row.error_class == "Dead" or policy is None or row.attempt > policy.max_retries:
            return Waiting("dead_letter", row.attempt, None)
        delay = policy.delay(row.attempt)
        due, latest = row.handled_at + delay, row.handled_at + delay * (1 + policy.jitter)
        return Waiting("retry", row.attempt, due, latest if policy.jitter else None)

    def _check_known(self, tp: At, place: Place, offset: int) -> None:
        log = self.log(tp, place)
        if log.ever(offset, self.rules.isolation) is None or (offset in log.compacted and not place.attempts[offset]):
            return
        if (offset in place.fates) == (offset in place.pending):
            broken("I4", f"{tp} {offset}: fate {place.fates.get(offset)}, pending {place.pending.get(offset)}")

    def log(self, tp: At, place: Place) -> MemoryLog:
        """The log that a place is of, also after its deletion."""
        log = self.world.log_of(place.topic_id, tp)
        assert log is not None
        return log
