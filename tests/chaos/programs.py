"""What the processes of the state machine run: whole runs, single steps, and operator actions."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ackline.actions import actions, adopt_ledger, void
from ackline.backfill import run as backfill
from ackline.backfill.choose import choose_offsets
from ackline.backfill.perform import backfill_pipeline
from ackline.errors import ConfigError
from ackline.forms.arguments import BackfillArguments
from ackline.lane.plans import Targets
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.pending import PendingKind, PendingRuns
from ackline.ledger.turns import Settlement, TurnKind
from ackline.steps import plan, replay, run, settle
from tests.support.memory import World
from tests.support.memory_adapters import MemoryAdapters, memory_adapters, no_session

Opened = Callable[[], MemoryAdapters]
Program = Callable[[Opened], object]


def _whole(adapters: Opened) -> None:
    run.run(adapters(), no_session)


def _dag(adapters: Opened) -> None:
    plan.plan(adapters())
    run.replay_until_records(adapters(), no_session)
    settle.settle(adapters())


def _marked(adapters: Opened) -> None:
    """The DAG, whose replay was marked as successful by hand."""
    plan.plan(adapters())
    settle.settle(adapters())


def _void(adapters: Opened, pause: bool = False) -> None:
    """`ackline void`: closes the turn that is open when it looks."""
    opened = adapters()
    turn = void.open_turn(opened).plan.turn
    void.void_open_turn(opened, turn, "a test", pause)


STEPS: dict[str, Program] = {
    "run": _whole,
    "dag": _dag,
    "marked": _marked,
    "plan": lambda adapters: plan.plan(adapters()),
    "replay": lambda adapters: replay.replay(adapters(), no_session),
    "settle": lambda adapters: settle.settle(adapters()),
    "void": _void,
    "adopt": lambda adapters: adopt_ledger.adopt_ledger(adapters(), "a test"),
    "voidpause": lambda adapters: _void(adapters, pause=True),
}


@dataclass(frozen=True, slots=True)
class Backfill:
    """A process that begins or resumes a backfill lane, or cancels it.

    The lane begins with `length` offsets of partition number `where` from `start` above the log start on, or with the
    offsets that have the `outcome`. A process reads at most `most` offsets. With `again` it begins a new epoch of a
    lane that is settled, with offsets chosen anew.
    """

    lane: str = "backfill-a"
    where: int = 0
    start: int = 0
    length: int = 3
    outcome: str | None = None
    most: int | None = None
    cancels: bool = False
    again: bool = False

    kind = "backfill"

    def program(self, world: World) -> Program:
        def work(opened: Opened) -> None:
            adapters = backfill_adapters(world, opened(), self.lane)
            if adapters.store.newest() is None and not (self.cancels or self._begin(world, adapters)):
                return
            if self.again and (found := backfill.find_backfill(adapters.store)) and found.account.settled:
                self._begin(world, adapters, found.newest.turn.epoch + 1)
            if self.cancels:
                if adapters.store.newest() is not None:
                    backfill.cancel(adapters, "a test")
            else:
                backfill.run_backfill(adapters, no_session, self.most)

        return work

    def _begin(self, world: World, adapters: MemoryAdapters, epoch: int = 0) -> bool:
        tps = [tp for tp in world.partitions() if adapters.is_subscribed(tp)]
        log = world.log(tps[self.where % len(tps)]) if tps else None
        if log is None:
            return False
        tp, end = tps[self.where % len(tps)], log.readable_end(adapters.pipeline.kafka.isolation)
        first = max(0, min(log.start + self.start - 1, end - 1))
        ranges = (f"{tp.topic}:{tp.partition}:{first}-{min(end, first + self.length)}",) if first < end else ()
        arguments = BackfillArguments(() if self.outcome else ranges, outcome=self.outcome)
        if not arguments.given:
            return False
        choice = choose_offsets(adapters, arguments)
        if choice.partitions:
            backfill.begin(adapters, arguments, choice, epoch=epoch)
        return bool(choice.partitions)


def backfill_adapters(world: World, adapters: MemoryAdapters, lane: str) -> MemoryAdapters:
    """Returns the adapters of a backfill lane, for the process that has these adapters of the live lane."""
    pipeline = backfill_pipeline(adapters.pipeline, lane, BackfillArguments())
    opened = memory_adapters(world, pipeline, adapters.run_id, adapters.hook, adapters.fixed_now, lane)
    return replace(opened, no_breaker=adapters.no_breaker)


@dataclass(frozen=True, slots=True)
class Action:
    """An operator action on all partitions (`whole`), or on one of them.

    `where` is the number of that partition. `to` is a distance from the log start, or a word of the command; "pending"
    stands for the pending offsets, or only the first one if not `whole`.
    """

    kind: str
    where: int = 0
    to: int | str = "floor"
    whole: bool = True

    def program(self, world: World) -> Program:
        kind = TurnKind[self.kind.upper()]
        return lambda adapters: actions.perform_action(
            adapters(), kind, lambda newest: self._targets(world, newest), "a test"
        )

    def _pending(self, newest: Settlement, chosen: list[TopicPartition]) -> Targets:
        pending = {tp: PendingRuns.of(newest.partitions[tp].state.pending) for tp in chosen}
        if self.kind == "retry":
            pending = {tp: runs.of_kind(PendingKind.RETRY) for tp, runs in pending.items()}
        if not self.whole:
            pending = {tp: runs.within((runs.starts[:1], runs.starts[:1] + 1)) for tp, runs in pending.items()}
        return {tp: runs for tp, runs in pending.items() if len(runs)}

    def _targets(self, world: World, newest: Settlement) -> Targets:
        tps = sorted(newest.partitions)
        chosen = tps if self.whole else tps[self.where % max(len(tps), 1) :][:1]
        if not chosen:
            raise ConfigError("no such partition")
        if self.to == "pending" or self.kind == "retry":
            return self._pending(newest, chosen)
        floors = {tp: settled.state.floor for tp, settled in newest.partitions.items()}
        return {tp: self._target(world, tp, floors[tp]) for tp in chosen}

    def _target(self, world: World, tp: TopicPartition, floor: int) -> int:
        log = world.log(tp)
        if self.kind in ("pause", "resume") or self.to == "floor" or log is None:
            return floor
        if isinstance(self.to, int):
            return log.start + self.to
        return log.start if self.to == "earliest" else log.readable_end("read_committed")
