"""What must hold in a world, judged from its history alone: design.md's invariants, computed again from the rows.

Nothing here calls the ledger, the planning or the steps. The oracle replays everything that was written, in the order
in which it was, keeps its own account of every offset of every epoch, and compares what the settlements and the group
say with it.
"""

import json
from typing import Any

from ackline.offsets import TopicPartition as At
from ackline.testing.memory import GroupCommit, HandlerCall, Posted, TableCommit, World
from tests.chaos.account import Place, Rules, Turn, broken, spread
from tests.chaos.epoch import LENIENT, Epoch
from tests.chaos.plans import foreign


class Oracle:
    """Judges one lane. `check` looks at what is new since it was last called; raises Violation."""

    def __init__(self, world: World, rules: Rules) -> None:
        self.world, self.rules = world, rules
        self._letters: set[tuple[int, At, int]] = set()
        self.epochs = [Epoch(world, rules, 0, self._letters, self.is_ours)]
        self._next = 0

    @property
    def places(self) -> dict[At, Place]:
        """The partitions, as the newest epoch has them."""
        return self.epochs[-1].places

    @property
    def open(self) -> Turn | None:
        """The turn that is planned and not settled."""
        turn = self.epochs[-1].turns.get(self.epochs[-1].newest + 1)
        return turn if turn is not None and turn.plan is not None else None

    def disturbed(self) -> None:
        """Somebody moves the group now, or joins it: claims may be lost by it."""
        self.epochs[-1].disturbed_at = len(self.world.history)

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
        for (group, tp), committed in self.world.committed.items():
            if group == self.rules.group and self.is_ours(committed.metadata):
                place = self.epochs[json.loads(committed.metadata)["epoch"]].places[tp]
                if committed.offset > max([*place.floors.values(), *place.claims.values()]):
                    broken("I1", f"the group holds {committed.offset} of {tp}, the floor is {place.floor}")

    def check_all_rows(self) -> None:
        """I2 and I4 over every offset there ever was."""
        for epoch in self.epochs:
            epoch.check_all_rows()

    def is_ours(self, metadata: str) -> bool:
        """Whether a commit carries the mark of this ledger."""
        try:
            found = json.loads(metadata)
            return bool(found["ledger"] == self.world.tables.ids.get("settlements"))
        except (ValueError, TypeError, KeyError):
            return False

    def _stored(self, event: TableCommit) -> None:
        number, kind = event.application.split("/")[-2:]
        if kind.startswith("try-"):  # a start, counted: it says nothing about any record
            return
        if int(number) >= len(self.epochs):
            broken("I11", f"{event.application} {event.number} is of an epoch that no reset has opened")
        epoch = self.epochs[int(number)]
        epoch.stored(event, self._next)
        turn = epoch.turns[event.number]
        if kind == "settlement" and turn.settlement.kind == "reset":
            self.epochs.append(epoch.begin_next(turn))

    # ---- the handler, the letters, the group ----------------------------------------------------------------------

    def _called(self, call: HandlerCall) -> None:
        epoch = self.epochs[call.epoch]
        turn = epoch.turns[call.turn]
        one = turn.plan.partitions[call.tp]
        if turn.once:
            self._check_once(call, turn, epoch.places[call.tp])
        if call.topic_id != one.topic_id:
            turn.strangers.add((call.by, call.tp))  # created again under the reader: none of it may count
            return
        if call.attempt > self.rules.most_attempts:
            broken("I5", f"attempt {call.attempt} at {call.tp} {call.offset}")
        wanted = spread(one.retries).get(call.offset, 1 if one.fresh.start <= call.offset < one.fresh.end else None)
        if call.attempt != wanted or call.offset >= call.readable_end:
            broken("I14", f"attempt {call.attempt} at {call.tp} {call.offset} is not of plan {call.turn}: {wanted}")

    def _check_once(self, call: HandlerCall, turn: Turn, place: Place) -> None:
        """At most once: claim, commit, start marker, and only then the handler, once."""
        place.calls[call.topic_id, call.offset] += 1
        if place.calls[call.topic_id, call.offset] > 1:
            broken("I7", f"{call.by} hands out {call.tp} {call.offset} again")
        if turn.by.get("start") != call.by or call.tp not in turn.committed:
            broken("I7", f"{call.by} hands out {call.tp} {call.offset}; claimed, committed, started: {turn.by}")

    def _posted(self, letter: Posted) -> None:
        said = letter.said
        tp, offset = At(said["ackline.topic"], int(said["ackline.partition"])), int(said["ackline.offset"])
        epoch = self.epochs[int(said["ackline.epoch"])]
        if epoch.trips(epoch.turns[int(said["ackline.turn"])]) and not letter.by.endswith(LENIENT):
            broken("S46", f"{letter.by} sends a letter of {tp} {offset}, of a turn that the breaker does not allow")
        place = epoch.places[tp]
        record = epoch.log(tp, place).written.get(offset)
        if place.topic_id in self.world.gone and (record is None or record.value != letter.value):
            return  # a stranger's, read while the topic was created again: no record may be dead by it
        if record is None or not (letter.omitted or letter.value == record.value) or letter.key != record.key:
            broken("I6", f"the letter of {tp} {offset} holds another record than the topic did")
        if int(said["ackline.timestamp"]) != record.timestamp:
            broken("I6", f"the letter of {tp} {offset} says another time")
        if letter.acknowledged:
            self._letters.add((epoch.number, tp, offset))

    def _committed(self, commit: GroupCommit) -> None:
        marks = {
            (json.loads(committed.metadata)["epoch"], json.loads(committed.metadata)["n"])
            for committed in commit.offsets.values()
        }
        for number, n in marks:
            epoch = self.epochs[number]
            for tp, committed in commit.offsets.items():
                place = epoch.places.get(tp)
                allowed = set() if place is None else place.allowed(n)
                if place is None or not allowed:
                    broken(
                        "I1", f"{commit.by} commits {committed.offset} of {tp} by turn {n}; {epoch.newest} is settled"
                    )
                if committed.offset not in allowed:
                    broken("I2", f"{commit.by} commits {committed.offset} of {tp}; the floor of {n} was {allowed}")
                if (number, n) < commit.knew:
                    broken("I3", f"{commit.by} commits {tp} by turn {n} of {number}, and knew {commit.knew}")
                self._check_overwritten(commit, tp, (number, n), place)
                if n in epoch.turns:
                    epoch.turns[n].committed.add(tp)
            self._check_whole(commit, n, epoch)

    def _check_whole(self, commit: GroupCommit, n: int, epoch: Epoch) -> None:
        """Idle and parked partitions are committed again as well: Kafka forgets what nobody commits. But for what has
        become somebody else's."""
        for tp, place in epoch.places.items():
            topic = self.world.topics.get(tp.topic)
            there = topic is not None and topic.topic_id == place.topic_id and place.allowed(n)
            committed = commit.read.get(tp)
            if there and tp not in commit.offsets and (committed is None or self.is_ours(committed.metadata)):
                broken("I12", f"{commit.by} commits turn {n}, and leaves {tp} out")

    def _check_overwritten(self, commit: GroupCommit, tp: At, mark: tuple[int, int], place: Place) -> None:
        over = commit.read.get(tp)
        if over is None:
            return
        if self.is_ours(over.metadata):
            found: Any = json.loads(over.metadata)
            if (found["epoch"], found["n"]) > mark:
                broken("I3", f"{commit.by} commits {tp} by turn {mark} over {over}")
            return
        if self.rules.on_external_reset == "restore" and foreign(self.epochs[-1], over):
            return
        next_found = place.found_at.get(mark[1] + 1)
        if over.offset != place.answers[mark[1]] or (next_found is not None and next_found <= commit.read_at):
            broken("S36", f"{commit.by} commits {tp} by turn {mark} over {over}, which nobody answered")
