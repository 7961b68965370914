"""`ackline pause | resume | skip | reset`: operators' acts, each a turn of its own, audited like any other."""

from collections.abc import Callable
from typing import Annotated

import typer

from ackline.cli import show
from ackline.cli.options import Json, Name, Now, offset_of, opened
from ackline.errors import ConfigError
from ackline.offsets import TopicPartition
from ackline.steps import action_plans, operator_actions
from ackline.steps.parts import Parts
from ackline.steps.status import status
from ackline.turns import Settlement, TurnKind

Topic = Annotated[str | None, typer.Option(help="Only this topic.", show_default=False)]
Partition = Annotated[int | None, typer.Option(help="Only this partition.", min=0, show_default=False)]
Reason = Annotated[str, typer.Option(help="Why, for those who read the audit later.")]
To = Annotated[str, typer.Option("--to", help="An offset, or `earliest`, `latest` or `floor`.", show_default=False)]


def pause(
    name: Name,
    topic: Topic = None,
    partition: Partition = None,
    reason: Reason = "",
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Read nothing of these partitions until they are resumed; what is pending there stays pending.

    Example: `ackline pause orders --topic orders --partition 3 --reason "schema change"`
    """
    _act(name, TurnKind.PAUSE, topic, partition, reason, now, as_json)


def resume(
    name: Name,
    topic: Topic = None,
    partition: Partition = None,
    reason: Reason = "",
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Read paused partitions again.

    Example: `ackline resume orders`
    """
    _act(name, TurnKind.RESUME, topic, partition, reason, now, as_json)


def skip(
    name: Name,
    to: To,
    topic: Topic = None,
    partition: Partition = None,
    reason: Reason = "",
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Settle everything below an offset unhandled, pending records included: `skipped`, as ranges.

    Example: `ackline skip orders --topic orders --partition 3 --to 1042 --reason "poison batch"`
    """
    _act(name, TurnKind.SKIP, topic, partition, reason, now, as_json, to)


def reset(
    name: Name,
    to: To,
    topic: Topic = None,
    partition: Partition = None,
    reason: Reason = "",
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Begin a new epoch at an offset: everything from there is handled again, nothing is pending.

    Example: `ackline reset orders --to earliest --reason "handler was wrong"`
    """
    _act(name, TurnKind.RESET, topic, partition, reason, now, as_json, to)


def add_to(app: typer.Typer) -> None:
    """Make these commands known."""
    for command in (pause, resume, skip, reset):
        app.command()(command)


def _act(
    name: str,
    kind: TurnKind,
    topic: str | None,
    partition: int | None,
    reason: str,
    now: str | None,
    as_json: bool,
    to: str | None = None,
) -> None:
    with opened(name, now) as parts:
        settled = operator_actions.perform_action(parts, kind, _chooser(parts, kind, topic, partition, to), reason)
        after = status(parts)
    if as_json:
        show.print_json({"pipeline": name, "turn": settled.settlement and settled.settlement.turn.n})
    else:
        show.console().print(show.status_table(name, after))


def _chooser(
    parts: Parts, kind: TurnKind, topic: str | None, partition: int | None, to: str | None
) -> Callable[[Settlement], action_plans.Targets]:
    asked_for = (("topic", topic), ("partition", partition))

    def choose(newest: Settlement) -> action_plans.Targets:
        asked = [tp for tp in newest.partitions if topic in (None, tp.topic) and partition in (None, tp.partition)]
        if not asked:
            which = " and ".join(f"--{key} {value}" for key, value in asked_for if value is not None)
            raise ConfigError(f"{parts.pipeline.name} has no partition yet" + (f" of {which}" if which else ""))
        if kind is TurnKind.RESET:  # a topic created again may have fewer: the others stay where they are
            asked = parts.there(asked) or asked
        return {tp: _offset(parts, newest, tp, to) for tp in asked}

    return choose


def _offset(parts: Parts, newest: Settlement, tp: TopicPartition, to: str | None) -> int:
    if to is None or to == "floor":
        return newest.partitions[tp].state.floor
    if to in ("earliest", "latest"):
        bounds = parts.cluster.bounds([tp])[tp]
        return bounds.start if to == "earliest" else bounds.end
    try:
        return offset_of(to)
    except ValueError:
        raise ConfigError(f"--to {to}: give an offset, or earliest, latest or floor", key="--to") from None
