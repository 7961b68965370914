"""What must hold in a world, judged from its history alone: design.md's invariants, computed again from the rows.

Nothing here calls the ledger, the planning or the steps. The oracle replays everything that was written, in the order
in which it was, keeps its own account of every offset, and compares what the settlements and the group say with it.
"""

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from ackline.offsets import TopicPartition as At
from ackline.testing.memory import GroupCommit, HandlerCall, MemoryLog, Posted, TableCommit, World
from tests.chaos.account import Place, Rules, Turn, Waiting, broken, rows_of, spread

UNREAD = ("no longer subscribed", "no leader", "paused")


class Oracle:
    """Judges one lane. `check` looks at what is new since it was last called; raises Violation."""

    def __init__(self, world: World, rules: Rules) -> None:
        self.world, self.rules = world, rules
        self.places: dict[At, Place] = {}
        self.turns: dict[int, Turn] = {}
        self.newest = -1
        self._letters: dict[tuple[str, int, int], bool] = {}
        self._strangers: set[tuple[int, str]] = set()
        self._next = 0

    def check(self) -> None:
        """Everything, now."""
        while self._next < len(self.world.history):
            event = self.world.history[self._next]
            self._next += 1
            if isinstance(event, TableCommit):
                self._stored(event)
            elif isinstance(event, GroupCommit):
                self._committed(event)
            elif isinstance(event, Posted):
                self._posted(event)
            else:
                self._called(event)
        for (group, at), held in self.world.held.items():
            if group == self.rules.group and self.is_ours(held.metadata) and held.offset > self.places[at].floor:
                broken("I1", f"the group holds {held.offset} of {at}, the floor is {self.places[at].floor}")

    def check_all_rows(self) -> None:
        """I2 and I4 over every offset there ever was."""
        for at, place in self.places.items():
            for offset in range(place.start, place.complete_to):
                self._check_known(at, place, offset)

    # ---- the tables -----------------------------------------------------------------------------------------------

    def _stored(self, event: TableCommit) -> None:
        kind = event.application.rsplit("/", 1)[-1]
        if kind.startswith("try-"):  # a start, counted: it says nothing about any record
            return
        turn = self.turns.setdefault(event.number, Turn())
        if getattr(turn, kind) is not None:
            broken("I11", f"{kind} {event.number} is stored twice")
        if kind != "plan" and turn.plan is None and event.number:
            broken("I11", f"{kind} {event.number} is stored without a plan")
        late = kind in ("outcomes", "decisions") and turn.settlement is not None and turn.settlement.kind != "void"
        if late and (event.value or turn.settlement.kind == "run"):  # zero rows of an act's turn change nothing
            broken("I11", f"{kind} {event.number} is stored after its settlement")
        setattr(turn, kind, event.value)
        turn.proved_by = event.by if kind == "outcomes" else turn.proved_by
        if kind == "plan":
            self._planned(event.number, event.value)
        elif kind == "settlement":
            self._settled(event.number, turn)
        elif kind == "decisions":
            self._decided(event.number, turn)

    def _planned(self, n: int, plan: Any) -> None:
        if n != self.newest + 1:
            broken("I11", f"plan {n} is stored when turn {self.newest} is settled")
        retries = due = total = 0
        for at, one in plan.partitions.items():
            place = self.places.get(at)
            if place is None:
                if plan.kind != "genesis":
                    broken("I11", f"plan {n} reads {at}, which has not joined the lane")
                continue
            if place.ours_found is None and one.held is not None and self.is_ours(one.held.metadata):
                place.ours_found = self._next
            self._check_fresh(n, at, place, one, plan.settings["max_uncommitted"])
            attempts = spread(one.retries)
            for offset, attempt in attempts.items():
                self._check_retry(n, at, place, offset, attempt, plan.planned_at)
            retries, total = retries + len(attempts), total + len(attempts) + len(one.fresh)
            if plan.kind == "run" and one.why not in UNREAD:
                due += sum(w.due is not None and w.due <= plan.planned_at for w in place.pending.values())
        limit = plan.settings["max_records_per_run"]
        if total > limit:
            broken("I8", f"plan {n} holds {total} offsets, max_records_per_run is {limit}")
        if plan.kind == "run" and retries < min(due, limit - max(limit // 10, 1) if limit > 1 else limit):
            broken("I8", f"plan {n} holds {retries} of {due} due retries")

    def _check_fresh(self, n: int, at: At, place: Place, one: Any, window: int) -> None:
        fresh = one.fresh
        if (one.floor, one.complete_to) != (place.floor, place.complete_to) or fresh.start < place.complete_to:
            broken("I4", f"plan {n} of {at} begins at {fresh.start}; the rows say {place.complete_to}")
        if fresh.end == fresh.start:
            return
        if fresh.end > place.floor + window:
            broken("I8", f"plan {n} of {at} ends at {fresh.end}, floor {place.floor}, max_uncommitted {window}")
        log = self._log(at, place)
        if place.topic_id in self.world.gone:
            return  # created again between two looks of plan: replay asks for the id again, before and after it reads
        if fresh.end > log.readable_end(self.rules.isolation) or place.complete_to < fresh.start != one.log.start:
            broken("I14", f"plan {n} of {at} reads [{fresh.start}, {fresh.end}) of [{log.start}, {log.end})")

    def _check_retry(self, n: int, at: At, place: Place, offset: int, attempt: int, planned_at: datetime) -> None:
        waiting = place.pending.get(offset)
        if waiting is None or waiting.kind != "retry" or waiting.attempts != attempt - 1:
            broken("I5", f"plan {n} wants attempt {attempt} at {at} {offset}, where {waiting} waits")
        if waiting.due is None or waiting.due > planned_at:
            broken("I5", f"plan {n} wants attempt {attempt} at {at} {offset} at {planned_at}, due is {waiting.due}")

    def _decided(self, n: int, turn: Turn) -> None:
        for at, row in rows_of(turn.decisions):
            said = self._letters.get((*at, row.offset), False)
            if row.outcome == "dead" and self.rules.dead_letter_topic is not None and not said:
                broken("I6", f"decisions {n} say dead of {at} {row.offset}, whose letter was not acknowledged")

    def _settled(self, n: int, turn: Turn) -> None:
        settlement = turn.settlement
        if n != self.newest + 1:
            broken("I11", f"settlement {n} is stored when turn {self.newest} is settled")
        if settlement.kind == "run" and (turn.outcomes is None or turn.decisions is None):
            broken("I11", f"settlement {n} is stored without outcomes and decisions: nothing proves it")
        if settlement.kind == "run" and (n, turn.proved_by) in self._strangers:
            broken("S42", f"outcomes {n} of {turn.proved_by} are of a topic that was created again meanwhile")
        self.newest = n
        if settlement.kind != "void":
            self._fold(n, turn)
        for at, one in settlement.partitions.items():
            place = self.places.get(at)
            if place is None:
                place = self.places[at] = Place(one.topic_id, one.state.complete_to, one.state.complete_to)
                place.seen = one.seen
            self._compare(n, at, place, one)
        if missing := self.places.keys() - settlement.partitions.keys():
            broken("I4", f"settlement {n} says nothing of {sorted(missing)}")

    def _compare(self, n: int, at: At, place: Place, one: Any) -> None:
        found = {offset: Waiting(p.kind.value, p.attempts, p.due) for offset, p in spread(one.state.pending).items()}
        if (one.state.complete_to, found) != (place.complete_to, place.pending):
            broken(
                "I4",
                f"settlement {n} of {at}: complete_to {one.state.complete_to}, pending {found}; the rows say "
                f"{place.complete_to}, {place.pending}",
            )
        if place.floor < max(place.floors.values(), default=0) or one.topic_id != place.topic_id:
            broken("I3", f"settlement {n} of {at} lowers the floor to {place.floor}")
        place.floors[n] = place.floor

    def _fold(self, n: int, turn: Turn) -> None:
        """The account after a turn, by its rows."""
        rows: dict[At, list[Any]] = {}
        for at, row in (*rows_of(turn.outcomes), *rows_of(turn.decisions)):
            rows.setdefault(at, []).append(row)
        for at, one in turn.plan.partitions.items() if turn.plan else ():
            if at not in self.places:
                continue
            place, found = self.places[at], rows.pop(at, [])
            self._apply(n, at, place, one, found)
            settled = turn.settlement.partitions[at]
            if dict(settled.counts) != Counter(row.outcome.value for row in found):
                broken("I4", f"settlement {n} of {at} counts {settled.counts} of {found}")
        if rows:
            broken("I4", f"turn {n} has rows of {sorted(rows)}, which it did not plan")

    def _apply(self, n: int, at: At, place: Place, one: Any, rows: Iterable[Any]) -> None:
        retries = spread(one.retries)
        decisions = []
        for row in rows:
            if not row.attempt:
                decisions.append(row)
                continue
            wanted = retries.get(row.offset, 1 if one.fresh.start <= row.offset < one.fresh.end else None)
            if row.attempt != wanted or row.attempt != place.attempts[row.offset] + 1 or row.offset in place.fates:
                made = place.attempts[row.offset]
                broken("I9", f"turn {n} has attempt {row.attempt} at {at} {row.offset}, made were {made}")
            if row.attempt > self.rules.max_retries + 1:
                broken("I5", f"attempt {row.attempt} at {at} {row.offset}")
            if self._log(at, place).ever(row.offset, self.rules.isolation) is None:
                broken("I4", f"turn {n} has a row of {at} {row.offset}, where no record was")
            place.attempts[row.offset] += 1
            place.pending.pop(row.offset, None)
            if row.outcome == "failed":
                place.pending[row.offset] = self._waiting(row)
            else:
                place.fates[row.offset] = row.outcome.value
        for row in decisions:
            self._decide(n, at, place, row)
        before, place.complete_to = place.complete_to, max(place.complete_to, one.fresh.end)
        for offset in range(before, place.complete_to):
            self._check_known(at, place, offset)

    def _decide(self, n: int, at: At, place: Place, row: Any) -> None:
        for offset in range(row.offset, row.offset + 1 if row.end_offset is None else row.end_offset):
            if offset in place.fates or (row.end_offset is None and offset not in place.pending):
                broken("I4", f"turn {n} says {row.outcome} of {at} {offset}: {place.fates.get(offset)}")
            place.pending.pop(offset, None)
            place.fates[offset] = row.outcome.value

    def _waiting(self, row: Any) -> Waiting:
        if row.error_class == "Dead" or row.attempt > self.rules.max_retries:
            return Waiting("dead_letter", row.attempt, None)
        return Waiting("retry", row.attempt, row.handled_at + self.rules.delay(row.attempt))

    def _check_known(self, at: At, place: Place, offset: int) -> None:
        log = self._log(at, place)
        if log.ever(offset, self.rules.isolation) is None or (offset in log.compacted and not place.attempts[offset]):
            return
        if (offset in place.fates) == (offset in place.pending):
            broken("I4", f"{at} {offset}: fate {place.fates.get(offset)}, pending {place.pending.get(offset)}")

    def _log(self, at: At, place: Place) -> MemoryLog:
        log = self.world.log_of(place.topic_id, at)
        assert log is not None
        return log

    # ---- the handler, the letters, the group ----------------------------------------------------------------------

    def _called(self, call: HandlerCall) -> None:
        one = self.turns[call.turn].plan.partitions[call.at]
        if call.topic_id != one.topic_id:
            self._strangers.add((call.turn, call.by))  # created again under the reader: none of it may count
            return
        if call.attempt > self.rules.max_retries + 1:
            broken("I5", f"attempt {call.attempt} at {call.at} {call.offset}")
        wanted = spread(one.retries).get(call.offset, 1 if one.fresh.start <= call.offset < one.fresh.end else None)
        if call.attempt != wanted or call.offset >= call.readable_end:
            broken("I14", f"attempt {call.attempt} at {call.at} {call.offset} is not of plan {call.turn}: {wanted}")

    def _posted(self, letter: Posted) -> None:
        said = letter.said
        at, offset = At(said["ackline.topic"], int(said["ackline.partition"])), int(said["ackline.offset"])
        place = self.places[at]
        record = self._log(at, place).written.get(offset)
        if place.topic_id in self.world.gone and (record is None or record.value != letter.value):
            return  # a stranger's, read while the topic was created again: no record may be dead by it
        if record is None or not (letter.omitted or letter.value == record.value) or letter.key != record.key:
            broken("I6", f"the letter of {at} {offset} holds another record than the topic did")
        if int(said["ackline.timestamp"]) != record.timestamp:
            broken("I6", f"the letter of {at} {offset} says another time")
        self._letters[(*at, offset)] = self._letters.get((*at, offset), False) or letter.acknowledged

    def _committed(self, commit: GroupCommit) -> None:
        for at, held in commit.offsets.items():
            mark = json.loads(held.metadata)
            n = mark["n"]
            if at not in self.places:
                broken("I1", f"{commit.by} commits {held.offset} of {at}, which has not joined the lane")
            place = self.places[at]
            if n > self.newest or held.offset > place.floor:
                broken("I1", f"{commit.by} commits {held.offset} of {at} by turn {n}; turn {self.newest} is settled")
            if held.offset != place.floors[n]:
                broken("I2", f"{commit.by} commits {held.offset} of {at}; the floor of turn {n} was {place.floors[n]}")
            if (mark["epoch"], n) < commit.knew:
                broken("I3", f"{commit.by} commits {at} by turn {n}, and knew {commit.knew}")
            self._check_overwritten(commit, at, n, place)

    def _check_overwritten(self, commit: GroupCommit, at: At, n: int, place: Place) -> None:
        over = commit.read.get(at)
        if over is None:
            return
        if self.is_ours(over.metadata):
            if json.loads(over.metadata)["n"] > n:
                broken("I3", f"{commit.by} commits {at} by turn {n} over {over}")
        elif over.offset != place.seen or (place.ours_found is not None and place.ours_found <= commit.read_at):
            broken("S36", f"{commit.by} commits {at} over {over}, which nobody answered")

    def is_ours(self, metadata: str) -> bool:
        """Whether a commit carries the mark of this ledger."""
        try:
            found = json.loads(metadata)
            return bool(found["ledger"] == self.world.tables.ids.get("settlements"))
        except (ValueError, TypeError, KeyError):
            return False
