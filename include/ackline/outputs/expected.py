"""What each output table is expected to hold, and how an older copy of a table or of the ledger is found by that.

The settlements hold the numbers of the turns that each table may hold as its newest one (`ackline.ledger.published`). A
table is looked at before a run is planned, before its turn is settled, and before the turn is published.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import PurePosixPath

from ackline.errors import AcklineError, LedgerError
from ackline.forms.form import RunRequest
from ackline.lane.ways_out import older_copy_advice, table_gone_advice
from ackline.ledger.published import Numbers, OutputsOfTurn, application_of, copied_from, older_copy
from ackline.ledger.turns import LIVE, Settlement, TurnId, is_backfill
from ackline.outputs.output_table import place_of, table_of
from ackline.scrub import scrub_address
from ackline.tables.store import LedgerStore


def expected_of(store: LedgerStore, newest: Settlement) -> Mapping[str, Numbers]:
    """Returns by place what each output table may hold after the newest turn of a lane."""
    outputs = OutputsOfTurn.decode(newest.outputs)
    # A run publishes the newest turn before it stores its plan. Until then a table may hold the turn before it.
    if not outputs.tables or not store.is_published(newest.turn):
        return outputs.expected
    return outputs.expected_after(store.given_up(newest.turn))


def gone_tables(store: LedgerStore, request: RunRequest, known: Iterable[str]) -> set[str]:
    """Returns the places of the tables that may be made anew although the ledger has published there: an operator has
    stated with a run that they are gone."""
    return {place_of(store, name, known) for name in request.table_gone}


def as_found(
    store: LedgerStore, expected: Mapping[str, Numbers], places: Iterable[str], gone: Collection[str] = ()
) -> dict[str, Numbers]:
    """Returns what output tables may hold, for tables as they are at `places`. A table that was moved there, or is the
    newest copy of another one, may hold what that one may. Nothing is expected of one that is `gone`."""
    found, places = dict(expected), list(places)
    for place in places:
        if place in found and place not in gone:
            continue
        with suppress(AcklineError):  # of a table that can't be read, which is another state
            state = table_of(store, place).state()
            if state is None:
                found.pop(place, None)
            elif place not in found and (of := copied_from(state.transactions, found)):
                # All tables of a turn have its number. One that the file still names has not moved: it is gone.
                away = [each for each in of if each not in places and table_of(store, each).state() is None]
                same_name = [each for each in away if PurePosixPath(each).name == PurePosixPath(place).name]
                moved = same_name[:1] or (away if len(away) == 1 else [])
                found[place] = found[(moved or of)[0]]
                for other in moved:
                    del found[other]
    return found


def unexpected(
    store: LedgerStore, turn: TurnId, place: str, expected: Mapping[str, Numbers], first: str = ""
) -> LedgerError | None:
    """Returns the error to raise if an output table does not hold what is `expected` after a turn; None if it does.
    `first` is what an operator has to do before the lane takes a reset, as part of a sentence."""
    state, numbers = table_of(store, place).state(), expected.get(place, {})
    if state is not None:
        why = _why_older(store, turn, place, state.transactions, expected)
        return older_copy_error(turn, why, first) if why is not None else None
    if any(numbers.values()):
        return table_gone_error(turn, place, first)
    if turn.lane != LIVE and (newest := (live := store.other_lane(LIVE)).newest()) is not None:
        of_live = expected_of(live, newest)
        if any(of_live.get(place_of(store, place, of_live), {}).values()):
            return table_gone_error(newest.turn, place, first)
    return None


def _why_older(
    store: LedgerStore, turn: TurnId, place: str, held: Mapping[str, int], expected: Mapping[str, Numbers]
) -> str | None:
    """Returns why an output table or the ledger is an older copy; None if neither is."""
    numbers = expected.get(place, {})
    why = older_copy(turn, place, held, application_of(store.ledger_id(), turn), numbers)
    if why is None or any(numbers.values()):
        return why
    moved = [other for other in expected if other != place and table_of(store, other).state() is None]
    names = ", ".join(map(scrub_address, moved))
    return f"{why}. Or was it moved from {names}? Then it is an older copy of that table" if moved else why


def table_gone_error(turn: TurnId, place: str, first: str = "") -> LedgerError:
    """Returns the error of an output table in which a lane has published, and which does not exist any more. `first` is
    what an operator has to do before the lane takes the way out, as part of a sentence."""
    return LedgerError(
        f"the output table {scrub_address(place)} does not exist any more, and rows of lane {turn.lane} were published "
        f"there. If its volume is not mounted, mount it; if the table was moved, link it from there. "
        f"{table_gone_advice(turn, place, of_live=turn.lane == LIVE, first=first)}"
    )


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
    expected = expected_of(store, newest)
    for place in expected:
        with suppress(AcklineError):  # of a table that can't be read, which is another state
            state = table_of(store, place).state()
            if state is not None and (why := _why_older(store, newest.turn, place, state.transactions, expected)):
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
