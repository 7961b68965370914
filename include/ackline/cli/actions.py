"""`ackline pause | resume | skip | reset`: operator actions. Each is a turn, stored and audited as a run is."""

from collections.abc import Callable
from typing import Annotated

import typer

from ackline.arguments import parse_offset
from ackline.cli import json_output, tables
from ackline.cli.options import Json, Name, Now, opened
from ackline.errors import ConfigError
from ackline.offsets import TopicPartition
from ackline.steps import action_plans, operator_actions
from ackline.steps.parts import Parts
from ackline.steps.status import status
from ackline.turns import Settlement, TurnKind

Topic = Annotated[str | None, typer.Option(help="Only this topic.", show_default=False)]
Partition = Annotated[int | None, typer.Option(help="Only this partition.", min=0, show_default=False)]
Reason = Annotated[str, typer.Option(help="Why, for readers of the audit table.")]
To = Annotated[str, typer.Option("--to", help="An offset, or `earliest`, `latest` or `floor`.", show_default=False)]


def pause(
    name: Name,
    topic: Topic = None,
    partition: Partition = None,
    reason: Reason = "",
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Read nothing from these partitions until they are resumed. Pending records stay pending.

    Example: `ackline pause orders --topic orders --partition 3 --reason "schema change"`
    """
    _perform(name, TurnKind.PAUSE, topic, partition, reason, now, as_json)


def resume(
    name: Name,
    topic: Topic = None,
    partition: Partition = None,
    reason: Reason = "",
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Resume reading paused partitions.

    Example: `ackline resume orders`
    """
    _perform(name, TurnKind.RESUME, topic, partition, reason, now, as_json)


def skip(
    name: Name,
    to: To,
    topic: Topic = None,
    partition: Partition = None,
    reason: Reason = "",
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Settle everything below an offset without handling it, pending records too: `skipped`, as ranges.

    Example: `ackline skip orders --topic orders --partition 3 --to 1042 --reason "poison batch"`
    """
    _perform(name, TurnKind.SKIP, topic, partition, reason, now, as_json, to)


def reset(
    name: Name,
    to: To,
    topic: Topic = None,
    partition: Partition = None,
    reason: Reason = "",
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Begin a new epoch at an offset: everything from there on is handled again, and nothing is pending.

    Example: `ackline reset orders --to earliest --reason "handler was wrong"`
    """
    _perform(name, TurnKind.RESET, topic, partition, reason, now, as_json, to)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (pause, resume, skip, reset):
        app.command()(command)


def _perform(
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
        settled = operator_actions.perform_action(parts, kind, _targets(parts, kind, topic, partition, to), reason)
        after = status(parts)
    if as_json:
        json_output.print_json({"pipeline": name, "turn": settled.settlement and settled.settlement.turn.n})
    else:
        tables.console().print(tables.status_table(name, after))


def _targets(
    parts: Parts, kind: TurnKind, topic: str | None, partition: int | None, to: str | None
) -> Callable[[Settlement], action_plans.Targets]:
    options = (("topic", topic), ("partition", partition))

    def choose(newest: Settlement) -> action_plans.Targets:
        chosen = [tp for tp in newest.partitions if topic in (None, tp.topic) and partition in (None, tp.partition)]
        if not chosen:
            which = " and ".join(f"--{key} {value}" for key, value in options if value is not None)
            raise ConfigError(f"{parts.pipeline.name} has no partition" + (f" with {which}" if which else " yet"))
        if kind is TurnKind.RESET:  # a topic created again may lack partitions, which stay at their floor
            chosen = parts.existing_partitions(chosen) or chosen
        return {tp: _offset(parts, newest, tp, to) for tp in chosen}

    return choose


def _offset(parts: Parts, newest: Settlement, tp: TopicPartition, to: str | None) -> int:
    if to is None or to == "floor":
        return newest.partitions[tp].state.floor
    if to in ("earliest", "latest"):
        bounds = parts.cluster.bounds([tp])[tp]
        return bounds.start if to == "earliest" else bounds.end
    try:
        return parse_offset(to)
    except ValueError:
        raise ConfigError(f"--to {to}: give an offset, or earliest, latest or floor", key="--to") from None
