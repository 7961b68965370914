"""Which turns an output table holds, and how an older copy of the table or of the ledger is found by that.

The log entry of each turn that is published in a table carries a transaction id of ledger, pipeline, lane and epoch,
whose version names the turn. The settlements hold the version that the lane has published in each table last. If the
table holds another one, either of the two was set back to an older copy. A new epoch, and an adopted ledger, publish
under another transaction id; so the settlements also hold the last one under an earlier id.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ackline.errors import LedgerError
from ackline.ledger.turns import LIVE, TurnId, turn_in
from ackline.pipeline.arguments import id_of
from ackline.pipeline.outputs import OutputsOfTurn
from ackline.scrub import scrub_address
from ackline.tables.publish import table_of
from ackline.tables.store import LedgerStore


def application_of(ledger_id: str, turn: TurnId) -> str:
    """Returns the transaction id of a lane and epoch in output tables.

    It begins with the ledger's id: a table outside ACKLINE_AUDIT outlives a ledger, and turn 1 of the next ledger is
    another one.
    """
    return f"ackline/{ledger_id}/{turn.pipeline}/{turn.lane}/{turn.epoch}/output"


def has_turn(store: LedgerStore, turn: TurnId, outputs: OutputsOfTurn, name: str) -> bool:
    """Returns whether an output table has the rows of a settled turn.

    Raises LedgerError if the table holds another turn than the one before it: then the ledger or the table is an older
    copy, and rows would be missing or published under a turn that has others.
    """
    held, of_turn = table_of(store, name).transactions(), outputs.tables[name]
    before = Published(of_turn.after, outputs.given_up.get(name, ()), outputs.earlier.get(name))
    if held.get(outputs.application) == outputs.number:
        return True
    newest = store.newest()
    if newest is not None and (newest.turn.epoch, newest.turn.n) > (turn.epoch, turn.n):
        return True  # the caller is late: a later turn is planned only when each table has this one
    # No other turn, and so no reset, is planned until the rows of this one are published or given up.
    check_last_published(turn, name, held, outputs.application, before, give_up_advice(turn, name))
    return False


OLDER_TABLE = "the table is an older copy"
OLDER_LEDGER = "as another ledger has stored it: ACKLINE_AUDIT is an older copy of the ledger"


class Published(NamedTuple):
    """What a lane and epoch have published in an output table last."""

    number: int | None
    """Names the last turn that is published there; None if there is none."""
    given_up: Collection[int] = ()
    """Names later turns that an operator has given up for the table. Another process may have published such a turn at
    that moment, so the table may hold it."""
    earlier: tuple[str, int] | None = None
    """The transaction id and the number under which the lane has published there last in an earlier epoch, or under an
    earlier id of the ledger."""


def check_last_published(
    turn: TurnId, table: str, held: Mapping[str, int], application: str, published: Published, first: str = ""
) -> None:
    """Raises LedgerError if `older_copy` finds one. `first` is what an operator has to do before the lane takes a
    reset, as part of a sentence."""
    why = older_copy(turn, table, held, application, published)
    if why is not None:
        raise LedgerError(
            f"{why}. Restore the newer copy. Without one, {f'first {first}; then ' if first else ''}begin a new epoch, "
            f"in which records that are handled again publish their rows again: {_way_out(turn)}"
        )


def older_copy(turn: TurnId, table: str, held: Mapping[str, int], application: str, published: Published) -> str | None:
    """Returns why an output table or the ledger is an older copy; None if the newest turn of the lane in the table is
    the one that the ledger has published there last.

    `held` are all transaction ids of the table, `application` is that of the lane and epoch. None, too, if the table
    holds nothing of the lane: then a user has made it anew.
    """
    ledger, later = application.split("/")[1], dict[int, int]()
    for of, number in held_of_lane(held, application, turn, published).items():
        if of.split("/")[1] == ledger and (epoch := int(of.split("/")[4])) > turn.epoch:
            later[epoch] = number  # under this id of the ledger, which another copy of it has had too
    if later:
        epoch = max(later)
        return _text(table, f"holds turn {turn_in(later[epoch])} of lane {turn.lane}, epoch {epoch}", OLDER_LEDGER)
    last, expected = held.get(application), published.number
    if last is not None and (last == expected or last in published.given_up):
        return None
    if last is None and not _is_older(held, application, turn, published):
        return None
    of_lane, newest = f"of lane {turn.lane}, epoch {turn.epoch}", expected
    if last is None:
        text = f"holds no turn {of_lane}, but older ones of the lane"
        newest = expected if published.earlier is None else expected or published.earlier[1]
    else:
        text = f"holds turn {turn_in(last)} {of_lane}"
    if newest is not None and (last is None or turn_in(newest) > turn_in(last)):
        return _text(table, text, f"and the ledger has published turn {turn_in(newest)} there: {OLDER_TABLE}")
    return _text(table, text, OLDER_LEDGER)


def _text(table: str, held: str, what: str) -> str:
    return f"the output table {scrub_address(table)} {held}, {what}"


def held_of_lane(held: Mapping[str, int], application: str, turn: TurnId, published: Published) -> dict[str, int]:
    """Returns the transaction ids of a lane among those of a table, under each id of the ledger that is known."""
    ledgers = {of.split("/")[1] for of in (application, *(published.earlier or ())[:1])}
    found = {}
    for of, number in held.items():
        match of.split("/"):
            case ["ackline", ledger, turn.pipeline, turn.lane, _, "output"] if ledger in ledgers:
                found[of] = number
    return found


def _is_older(held: Mapping[str, int], application: str, turn: TurnId, published: Published) -> bool:
    """Returns whether a table without a turn of the lane and epoch is an older copy, and not one that its user has made
    anew: it holds turns of the lane, and lacks some that the ledger has published there."""
    of_lane = held_of_lane(held, application, turn, published)
    if published.number is not None or published.earlier is None:
        return published.number is not None and bool(of_lane)
    return bool(of_lane) and of_lane.get(published.earlier[0], -1) < published.earlier[1]


def give_up_advice(turn: TurnId, table: str) -> str:
    """Returns how an operator gives up the rows that a settled turn has for an output table, as part of a sentence."""
    lane = "" if turn.lane == LIVE else f" --lane {turn.lane}"
    return f"give these rows up with `ackline void {turn.pipeline}{lane} --give-up {scrub_address(table)} --reason …`"


def _way_out(turn: TurnId) -> str:
    if turn.lane == LIVE:
        return f"`ackline reset {turn.pipeline} --to OFFSET --reason …` (`--to floor` goes on where the ledger is)"
    cancel = f"ackline backfill {turn.pipeline} --cancel {id_of(turn.lane)}"
    return f"end the backfill with `{cancel}`, and choose its offsets in another one"
