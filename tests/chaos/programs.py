"""What processes do in the chaos: runs, single steps, and operators' acts."""

from collections.abc import Callable
from dataclasses import dataclass

from ackline.errors import ConfigError
from ackline.offsets import TopicPartition
from ackline.steps import operator_actions, plan, replay, run, settle
from ackline.testing.memory import World
from ackline.testing.memory_parts import MemoryParts, no_session
from ackline.turns import Settlement, TurnKind

Opened = Callable[[], MemoryParts]
Program = Callable[[Opened], object]


def _whole(parts: Opened) -> None:
    run.run(parts(), no_session)


def _dag(parts: Opened) -> None:
    plan.plan(parts())
    run.replay_on(parts(), no_session)
    settle.settle(parts())


def _marked(parts: Opened) -> None:
    """The DAG with its replay marked as successful by hand."""
    plan.plan(parts())
    settle.settle(parts())


STEPS: dict[str, Program] = {
    "run": _whole,
    "dag": _dag,
    "marked": _marked,
    "plan": lambda parts: plan.plan(parts()),
    "replay": lambda parts: replay.replay(parts(), no_session),
    "settle": lambda parts: settle.settle(parts()),
}


@dataclass(frozen=True, slots=True)
class Act:
    """An operator's act: on one partition (`where`) or on all of them, to `to`: an offset from the log's start, or one
    of the words of the command."""

    kind: str
    where: int = 0
    to: int | str = "floor"
    whole: bool = True

    def program(self, world: World) -> Program:
        """What its process does."""
        kind = TurnKind(self.kind)
        return lambda parts: operator_actions.perform_action(
            parts(), kind, lambda newest: self._targets(world, newest), "a test"
        )

    def _targets(self, world: World, newest: Settlement) -> dict[TopicPartition, int]:
        """As the command chooses them: a reset is of the whole lane, whose other partitions go on where they stand."""
        places = sorted(newest.partitions)
        asked = places if self.whole else places[self.where % max(len(places), 1) :][:1]
        if not asked:
            raise ConfigError("no such partition")
        floors = {tp: one.state.floor for tp, one in newest.partitions.items()}
        targets = {tp: self._target(world, tp, floors[tp]) for tp in asked}
        return floors | targets if self.kind == "reset" else targets

    def _target(self, world: World, tp: TopicPartition, floor: int) -> int:
        log = world.log(tp)
        if self.kind in ("pause", "resume") or self.to == "floor" or log is None:
            return floor
        if isinstance(self.to, int):
            return log.start + self.to
        return log.start if self.to == "earliest" else log.readable_end("read_committed")
