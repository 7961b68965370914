"""What each output table is expected to hold, and how an older copy of a table or of the ledger is found by that.

The settlements hold the numbers of the turns that each table may hold as its newest one (`ackline.ledger.published`). A
table is looked at before a run is planned, before its turn is settled, and before the turn is published.
"""

from collections.abc import Mapping
from contextlib import suppress

from ackline.errors import AcklineError, LedgerError
from ackline.lane.ways_out import older_copy_advice
from ackline.ledger.published import Numbers, OutputsOfTurn, application_of, older_copy
from ackline.ledger.turns import Settlement, TurnId, is_backfill
from ackline.outputs.output_table import table_of
from ackline.tables.store import LedgerStore


def expected_of(store: LedgerStore, newest: Settlement) -> Mapping[str, Numbers]:
    """Returns by place what each output table may hold after the newest turn of a lane."""
    outputs = OutputsOfTurn.decode(newest.outputs)
    # A run publishes the newest turn before it stores its plan. Until then a table may hold the turn before it.
    if not outputs.tables or not store.is_published(newest.turn):
        return outputs.expected
    return outputs.expected_after(store.given_up(newest.turn))


def unexpected(store: LedgerStore, turn: TurnId, place: str, expected: Numbers) -> str | None:
    """Returns why an output table or the ledger is an older copy, if the table does not hold what is `expected` after a
    turn; None if it does."""
    held = table_of(store, place).transactions()
    return older_copy(turn, place, held, application_of(store.ledger_id(), turn), expected)


def older_copy_error(turn: TurnId, why: str, first: str = "") -> LedgerError:
    """Returns the error of a table or a ledger that is an older copy. `first` is what an operator has to do before the
    lane takes a reset, as part of a sentence."""
    return LedgerError(
        f"{why}. Restore the newer copy. Without one, {f'first {first}; then ' if first else ''}begin a new epoch, in "
        f"which records that are handled again publish their rows again: {older_copy_advice(turn)}"
    )


def older_copies(store: LedgerStore, newest: Settlement) -> dict[str, str]:
    """Returns by output table why the table or the ledger is an older copy; empty if each table that can be read holds
    what the lane of the store has published there last."""
    found = dict[str, str]()
    for place, expected in expected_of(store, newest).items():
        with suppress(AcklineError):  # of a table that can't be read, which is another state
            if why := unexpected(store, newest.turn, place, expected):
                found[place] = why
    return found


def older_copies_of_backfills(store: LedgerStore) -> dict[str, str]:
    """Returns by backfill lane of the pipeline why an output table or the lane is an older copy, with what to do. No
    run of the live lane looks at them, and a backfill that is settled has no run."""
    found = {}
    for lane in filter(is_backfill, store.lanes()):
        of_lane = store.other_lane(lane)
        newest = of_lane.newest()
        if newest is not None and (why := older_copies(of_lane, newest)):
            found[lane] = (
                f"{'; '.join(why.values())}. Restore the newer copy, or choose its offsets in another backfill"
            )
    return found
