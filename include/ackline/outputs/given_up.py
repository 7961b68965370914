"""What is given up: rows of the newest settled turn, for a table that can't be used any more.

Every step that commits the group or takes a number publishes that turn first. If its staged rows are lost, or a table
can't be used any more, the lane would wait for ever. The writes come in this order, and each may be done again:
1. The rows of each table that can take them after all.
2. A file beside the staged rows, with the tables that lose rows, the reason, the time and the operator.
3. For each of these tables, that its rows are given up. Another process may publish them at this moment, so from now
   on the table may hold the turn or the one before it (`ackline.ledger.published`).
4. The mark of the turn as published. A crash before it changes nothing for the lane.
"""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ackline.delta.errors import folder_errors
from ackline.delta.folder import Folder
from ackline.errors import AcklineError, ConfigError, FatalError, TransientError
from ackline.lane.adapters import Adapters
from ackline.ledger.published import OutputsOfTurn, TableOfTurn
from ackline.ledger.turns import TurnId
from ackline.outputs.output_table import place_of
from ackline.outputs.publish import has_turn, publish_table
from ackline.outputs.staged import folder_name, staging_root
from ackline.scrub import scrub_address

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


def unpublished_turn(adapters: Adapters, tables: Collection[str]) -> UnpublishedTurn:
    """Returns the newest settled turn with those of `tables` that lack its rows. Stores nothing. Raises ConfigError if
    one of `tables` does not lack them."""
    turn, _, lacking = _unpublished(adapters)
    places = {place_of(adapters.store, name, lacking): name for name in tables}
    for place, name in places.items():
        if place not in lacking:
            raise ConfigError(
                f"{scrub_address(name)} is no output table that lacks the rows of {turn}; these lack them: "
                f"{', '.join(lacking)}",
                key="--give-up",
            )
    return UnpublishedTurn(turn, {place: lacking[place].rows for place in places})


def give_up(adapters: Adapters, turn: TurnId, tables: Collection[str], reason: str) -> DroppedOutputs:
    """Publishes the settled turn `turn`, and gives up the rows of those of `tables` that can't be published.

    Raises ConfigError if no table lacks the rows of a turn, FatalError if another turn is the newest, if another table
    can't be published either or the staging folder can't be used, and TransientError if an object store does not
    answer: then no row is given up.
    """
    newest, outputs, lacking = _unpublished(adapters)
    if newest != turn:
        raise FatalError(
            f"{turn} is not the newest settled turn any more; {newest} is. No rows were given up. Run this again to "
            f"see what that turn lacks"
        )
    named = {place_of(adapters.store, name, lacking) for name in tables}
    lost: dict[str, str] = {}
    others: dict[str, str] = {}
    for place in lacking:
        try:
            publish_table(adapters, turn, outputs, place)
        except AcklineError as error:
            # A store that does not answer may never do so again: the operator decides that for the named tables.
            if isinstance(error, TransientError) and place not in named:
                raise
            (lost if place in named else others)[place] = str(error)
    if others:
        raise FatalError(
            f"{turn} can't be published to {', '.join(others)} either, so no rows were given up: "
            f"{'; '.join(others.values())}. Mend that, or name it with --give-up too"
        )
    dropped = {place: lacking[place].rows for place in lost}
    if lost:
        root = Folder(staging_root(adapters))
        record = {"rows_at_most": dropped, "why": lost, "reason": reason, "actor": adapters.actor,
                  "run_id": adapters.run_id, "at": adapters.now().isoformat()}  # fmt: skip
        # For people, and before what decides: the rows are given up by commits of the ledger.
        with folder_errors(root.uri):
            root.write_durably(f"{folder_name(turn)}-dropped.json", json.dumps(record, indent=1).encode())
        _logger.warning("%s: %s dropped its rows for %s: %s", turn, adapters.actor, ", ".join(lost), reason)
    for place in lost:
        adapters.store.store_give_up(turn, place)
    adapters.store.store_published(turn)
    return DroppedOutputs(turn, dropped, lost)


def _unpublished(adapters: Adapters) -> tuple[TurnId, OutputsOfTurn, dict[str, TableOfTurn]]:
    """Returns the newest settled turn, its outputs, and the tables that lack it and are not given up for it."""
    newest, store = adapters.store.newest(), adapters.store
    outputs = OutputsOfTurn.decode(newest.outputs if newest is not None else "")
    if newest is not None and outputs.tables and not store.is_published(newest.turn):
        places = sorted(outputs.tables.keys() - store.given_up(newest.turn))
        lacking = {place: outputs.tables[place] for place in places if not _has(adapters, newest.turn, outputs, place)}
        if lacking:
            return newest.turn, outputs, lacking
    raise ConfigError(
        f"{adapters.pipeline.name}: each output table has the newest settled turn of the lane {store.lane}, so there "
        f"is nothing to give up"
    )


def _has(adapters: Adapters, turn: TurnId, outputs: OutputsOfTurn, place: str) -> bool:
    try:
        return has_turn(adapters, turn, outputs, place)
    except AcklineError:  # a table that can't be used
        return False
