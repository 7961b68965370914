"""`ackline void --give-up TABLE`: an operator gives up rows of the newest settled turn that can't be published.

Every step that commits the group or takes a number publishes that turn first. If its staged rows are lost, or a table
can't be used any more, the lane would wait for ever. The writes come in this order, and each may be done again:
1. The rows of each table that can take them after all.
2. A file beside the staged rows, with the tables that lose rows, the reason, the time and the operator.
3. The mark of the turn as published. A crash before it changes nothing for the lane.
"""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ackline.audit.publish_outputs import publish, table_of
from ackline.errors import AcklineError, ConfigError, FatalError, TransientError
from ackline.outputs import OutputsOfTurn
from ackline.scrub import scrub_address
from ackline.spark.shared_folder import SharedFolder, unusable_folder
from ackline.steps.operator_void import commit_or_reason
from ackline.steps.outputs import is_published, mark_as_published, read_manifest
from ackline.steps.parts import Parts
from ackline.steps.staging import folder_name, staging_root
from ackline.turns import TurnId

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnpublishedTurn:
    """The newest settled turn. `rows` has each table that lacks it, with the most rows that the table would get."""

    turn: TurnId
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DroppedOutputs:
    """What became of an unpublished turn. `rows` and `lost` have each table that never gets its rows: `rows` an upper
    bound of the lost rows, `lost` the error. `not_committed` is why the group's offsets were not committed; None if
    they were, or if the lane commits none."""

    turn: TurnId
    rows: Mapping[str, int]
    lost: Mapping[str, str]
    not_committed: str | None = None


def unpublished_turn(parts: Parts, tables: Collection[str]) -> UnpublishedTurn:
    """Returns the newest settled turn with those of `tables` that lack its rows. Stores nothing. Raises ConfigError if
    one of `tables` does not lack them."""
    turn, outputs = _unpublished(parts)
    rows = {name: rows for name, rows in outputs.tables.items() if not _has(parts, name, outputs, turn)}
    if not rows:
        raise _nothing_to_drop(parts)
    for name in tables:
        if name not in rows:
            raise ConfigError(
                f"{scrub_address(name)} is no output table that lacks the rows of {turn}; these lack them: "
                f"{', '.join(rows)}",
                key="--give-up",
            )
    return UnpublishedTurn(turn, {name: rows[name] for name in dict.fromkeys(tables)})


def drop_outputs(parts: Parts, turn: TurnId, tables: Collection[str], reason: str) -> DroppedOutputs:
    """Publishes the settled turn `turn`, gives up the rows of those of `tables` that can't be published, and commits
    the newest floor.

    Raises ConfigError if no table lacks the rows of a turn, FatalError if another turn is the newest, if another table
    can't be published either or the staging folder can't be used, and TransientError if an object store does not
    answer: then no row is given up.
    """
    newest, outputs = _unpublished(parts)
    if newest != turn:
        raise FatalError(
            f"{turn} is not the newest settled turn any more; {newest} is. No rows were given up. Run this again to "
            f"see what that turn lacks"
        )
    root = SharedFolder(staging_root(parts))
    lost: dict[str, str] = {}
    others: dict[str, str] = {}
    try:
        staged = read_manifest(parts, turn, outputs)
        for name, rows in outputs.tables.items():
            of_table = replace(outputs, tables={name: rows})
            try:
                publish(parts.store, turn, of_table, staged, root.uri, folder_name(turn))
            except TransientError:
                raise
            except AcklineError as error:
                if not _has(parts, name, outputs, turn):  # another process may have published it meanwhile
                    (lost if name in tables else others)[name] = str(error)
        if others:
            raise FatalError(
                f"{turn} can't be published to {', '.join(others)} either, so no rows were given up: "
                f"{'; '.join(others.values())}. Mend that, or name it with --give-up too"
            )
        dropped = {name: outputs.tables[name] for name in lost}
        if lost:
            record = {"rows_at_most": dropped, "why": lost, "reason": reason, "actor": parts.actor,
                      "run_id": parts.run_id, "at": parts.now().isoformat()}  # fmt: skip
            root.write_durably(f"{folder_name(turn)}-dropped.json", json.dumps(record, indent=1).encode())
            _logger.warning("%s: %s dropped its rows for %s: %s", turn, parts.actor, ", ".join(lost), reason)
        mark_as_published(root, turn, outputs)
    except OSError as error:
        raise unusable_folder(root.uri, error) from None
    return DroppedOutputs(turn, dropped, lost, commit_or_reason(parts))


def _unpublished(parts: Parts) -> tuple[TurnId, OutputsOfTurn]:
    newest, root = parts.store.newest(), SharedFolder(staging_root(parts))
    outputs = OutputsOfTurn.decode(newest.outputs) if newest is not None and newest.outputs else None
    try:
        if newest is None or outputs is None or not outputs.tables or is_published(root, newest.turn, outputs):
            raise _nothing_to_drop(parts)
    except OSError as error:
        raise unusable_folder(root.uri, error) from None
    return newest.turn, outputs


def _nothing_to_drop(parts: Parts) -> ConfigError:
    return ConfigError(
        f"{parts.pipeline.name}: each output table has the newest settled turn of the lane {parts.store.lane}, so "
        f"there is nothing to give up"
    )


def _has(parts: Parts, name: str, outputs: OutputsOfTurn, turn: TurnId) -> bool:
    try:
        version = table_of(parts.store, name).version_of(outputs.application)
    except TransientError:
        raise
    except AcklineError:  # a table that can't be used
        return False
    return (version or 0) >= turn.n
