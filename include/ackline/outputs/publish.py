"""Publishes the rows of a settled turn: when, in which order, and whatever process comes to it.

The order, for each turn n: staged files and the manifest of their execution, both on the disk; outcomes n, which name
the execution; decisions n; the files of rows that wait for records in flight (`ackline.outputs.kept_rows`); each output
table that does not exist, without rows, and the final data files in its own schema, which no version names; settlement
n, which names all these files; one log entry a table, which names its files; the group's commit; and only then the
staged files go. So what can fail for the rows of a turn fails before its settlement, while the turn can be voided.

Delta has no commit over several tables, so a crash may leave some of them without turn n. Each process that commits the
group or takes number n + 1 publishes turn n first. The entry carries the transaction id of the lane, whose version
names the turn and what the turn publishes: so a table takes a turn once, and a table or a ledger that is set back to an
older copy is found before the next turn (`ackline.outputs.expected`).
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial

from ackline.delta.append import retry_beside_rivals
from ackline.delta.errors import folder_errors
from ackline.delta.folder import Folder
from ackline.delta.handle import LogState
from ackline.delta.table import Upon
from ackline.errors import AcklineError, FatalError, LedgerError
from ackline.lane.adapters import Adapters
from ackline.lane.ways_out import fails_as_fatal, give_up_advice
from ackline.ledger.published import (
    FinalFile,
    OutputsOfTurn,
    StagedTable,
    TableOfTurn,
    marks_with,
    may_replace,
    older_copy,
)
from ackline.ledger.turns import Settlement, TurnId
from ackline.outputs.expected import gone_tables, older_copy_error, table_gone_error
from ackline.outputs.newest_rows import OlderRows, older_topics_of
from ackline.outputs.output_table import OutputTable, check_staged_columns, location_of, table_of
from ackline.outputs.staged import (
    check_kept_files,
    folder_name,
    lost_files,
    remove_staged,
    rows_kept,
    staged_tables,
    staging_root,
)
from ackline.outputs.written import AttemptOutcomes, entries, write_table
from ackline.scrub import scrub_address
from ackline.tables.store import LedgerStore

log = logging.getLogger(__name__)
_DAY_MS = 86_400_000


def publish_settled(adapters: Adapters, newest: Settlement | None) -> None:
    """Publishes the rows of the newest settled turn, if an output table does not have them yet.

    Then removes what this turn and earlier ones have staged. Any process may do this again: each table takes a turn
    once. Raises LedgerError if staged rows are gone or a table holds another turn than the ledger, ConfigError,
    FatalError or TransientError if a table can't be used; then the lane waits.
    """
    if newest is None:
        return
    outputs = OutputsOfTurn.decode(newest.outputs)
    if outputs.execution is None and not outputs.tables and not outputs.released:
        return  # nothing to publish, and the same rows wait as before the turn
    if _is_unpublished(adapters, newest.turn, outputs):
        for place in sorted(outputs.tables.keys() - adapters.store.given_up(newest.turn)):
            with _advises_give_up(newest.turn, place):
                publish_table(adapters, newest.turn, outputs, place)
        # After all tables, and before the staged rows go. A crash before it costs another look at each table.
        adapters.store.store_published(newest.turn)
    with folder_errors(staging_root(adapters)):
        remove_staged(adapters, newest)


def lacks_rows(adapters: Adapters, newest: Settlement | None) -> bool:
    """Returns whether the newest settled turn has rows for output tables that are not known to be in all of them."""
    return newest is not None and _is_unpublished(adapters, newest.turn, OutputsOfTurn.decode(newest.outputs))


def _is_unpublished(adapters: Adapters, turn: TurnId, outputs: OutputsOfTurn) -> bool:
    return bool(outputs.tables) and not adapters.store.is_published(turn)


@contextmanager
def _advises_give_up(turn: TurnId, table: str) -> Iterator[None]:
    """Adds the way out of a settled turn that can't be published in a table to an error."""
    try:
        with fails_as_fatal(turn, table):
            yield
    except AcklineError as error:
        advice = give_up_advice(turn, table)
        if advice not in str(error):  # of a table that is an older copy: that error says more
            error.add_advice(f"If these rows can never be published, {advice}")
        raise


def check_publishable(adapters: Adapters, newest: Settlement) -> list[str]:
    """Returns the output tables that lack the rows of the newest settled turn, and would get them from the next run.
    Writes nothing. Raises what `publish_settled` would raise, as far as reading shows it, and LedgerError if rows that
    wait for records in flight are gone."""
    outputs, lacking = OutputsOfTurn.decode(newest.outputs), list[str]()
    if _is_unpublished(adapters, newest.turn, outputs):
        for place in sorted(outputs.tables.keys() - adapters.store.given_up(newest.turn)):
            with _advises_give_up(newest.turn, place):
                if not has_turn(adapters, newest.turn, outputs, place):
                    _check_table_publishable(adapters, newest.turn, outputs, place)
                    lacking.append(place)
    check_kept_files(adapters, newest)
    return lacking


def _check_table_publishable(adapters: Adapters, turn: TurnId, outputs: OutputsOfTurn, place: str) -> None:
    table, of_turn = table_of(adapters.store, place), outputs.tables[place]
    existing = table.columns()
    if existing is not None:
        check_staged_columns(place, of_turn.columns, existing)
        if of_turn.files is not None and table.has_files(of_turn.files):
            return
    if _sources(adapters, turn, outputs, place) is None and (existing is not None or of_turn.files is None):
        raise _rows_lost(adapters, turn, place)


def _sources(adapters: Adapters, turn: TurnId, outputs: OutputsOfTurn, place: str) -> list[StagedTable] | None:
    """Returns the staged rows of a settled turn for one table; None if they are gone, or there are none."""
    staged, store = staged_tables(adapters, turn, outputs.execution), adapters.store
    location = location_of(store, place)
    sources = [each for each in (*(staged or ()), *outputs.released) if location_of(store, each.table) == location]
    return sources if staged is not None and sources and not lost_files(staging_root(adapters), sources) else None


def _rows_lost(adapters: Adapters, turn: TurnId, place: str) -> LedgerError:
    return LedgerError(
        f"{turn} is settled, and its rows are not in {scrub_address(place)}; the files with these rows, and its "
        f"staged rows in {staging_root(adapters)}/{folder_name(turn)}, are gone. Restore the folder of one of the two "
        f"from a backup; no other turn is planned until then"
    )


def has_turn(adapters: Adapters, turn: TurnId, outputs: OutputsOfTurn, place: str) -> bool:
    """Returns whether an output table has the rows of a settled turn. Raises LedgerError if the table is gone, or holds
    another turn than the one before it: then the ledger or the table is an older copy, and rows would be missing or
    published under a turn that has others."""
    state, application = table_of(adapters.store, place).state(), outputs.application(place)
    held = state.transactions if state is not None else {}
    if held.get(application) == outputs.number:
        return True
    newest = adapters.store.newest()
    if newest is not None and (newest.turn.epoch, newest.turn.n) > (turn.epoch, turn.n):
        return True  # the caller is late: a later turn is planned only when each table has this one
    expected = outputs.expected_before(place)
    was_there = outputs.tables[place].files is not None or any(expected.values())
    if state is None and was_there and place not in gone_tables(adapters.store, adapters.request, outputs.tables):
        raise table_gone_error(turn, place)
    # No other turn, and so no reset, is planned until the rows of this one are published or given up.
    why = older_copy(turn, place, held, application, expected)
    if why is not None:
        raise older_copy_error(turn, why, give_up_advice(turn, place))
    return False


def publish_table(adapters: Adapters, turn: TurnId, outputs: OutputsOfTurn, place: str) -> None:
    """Publishes the rows of a settled turn in one table, unless the table has them. Raises as `publish_settled`."""
    store, of_turn = adapters.store, outputs.tables[place]
    if has_turn(adapters, turn, outputs, place):
        return
    table, files = table_of(store, place), of_turn.files
    existing = table.columns()
    if existing is not None:
        check_staged_columns(place, of_turn.columns, existing)
    usable = existing is not None and files is not None and table.has_files(files)
    if files is None or not usable or _may_be_vacuumed(files):
        # Of a turn at most once whose rows settle could not write, or a tool has vacuumed the table meanwhile, or may
        # do so right now. What the turn publishes follows from what is stored, so the same rows are written again.
        sources = _sources(adapters, turn, outputs, place)
        if sources is not None:
            root = Folder(staging_root(adapters))
            attempts, kept = AttemptOutcomes.read(store, turn), rows_kept(adapters, place)
            rows = write_table(store, turn, sources, root, attempts, kept)
            files, of_turn = rows.files, replace(rows, lowest=of_turn.lowest)
        elif not usable:
            if existing is None and files is not None:
                log.warning(
                    "%s: the output table %s was removed after settle had filled it", turn, scrub_address(place)
                )
                return  # its user has removed the table, with its rows
            raise _rows_lost(adapters, turn, place)
    # Older rows go in the same entry, so a reader never sees both. The files that this takes are looked at before the
    # lock of the table is held; under it only those that a rival has added meanwhile.
    application = outputs.application(place)
    upon = partial(_upon, table, turn, of_turn, application, _older_rows(store, table, turn, application))
    # The fence: of two processes that publish the turn, one commits. A refused commit removes no file, because the log
    # may name these files: if the answer to the write of an entry is lost, delta-rs repeats the write, which fails
    # because the entry exists. Files that no version names stay until the table is vacuumed.
    with table.errors():
        if existing is not None:
            retry_beside_rivals(lambda: upon(table.state()))
        stored = table.append(entries(files or ()), application, outputs.number, upon=upon)
    if not stored and not has_turn(adapters, turn, outputs, place):
        raise FatalError(f"{turn}: {scrub_address(place)} was changed while its rows were published; run this again")


def _older_rows(store: LedgerStore, table: OutputTable, turn: TurnId, application: str) -> Callable[[], OlderRows]:
    def read() -> OlderRows:
        lane, outcomes = store.settlement(turn).partitions, AttemptOutcomes.read(store, turn)
        handled = outcomes.handled()
        older_topics = older_topics_of(store, {tp.topic: lane[tp].known_topic_id for tp in handled if tp in lane})
        return OlderRows(table, handled, older_topics, turn, application, outcomes.end_of, is_open=False)

    return cache(read)


def _upon(
    table: OutputTable,
    turn: TurnId,
    of_turn: TableOfTurn,
    application: str,
    older: Callable[[], OlderRows],
    state: LogState | None,
) -> Upon:
    """Returns what the entry of a turn has beside its rows, for a version of the table."""
    held = state.transactions if state is not None else {}
    is_new, lowest = state is None or table.is_new(state), of_turn.lowest
    marks = marks_with(held, of_turn, is_new)
    if is_new or lowest is None or not may_replace(held, application, turn, lowest):
        # With `lowest` no other entry may come in between: it may bring older rows.
        return Upon((), marks, exclusive=lowest is not None)
    assert state is not None
    return replace(older().without(state), numbers=marks)


def _may_be_vacuumed(files: Sequence[FinalFile]) -> bool:
    """Returns whether files that no version names are so old that a vacuum may be about to remove them: it first lists
    what is older than some days, and then removes it, although a commit may name it by then."""
    return any(time.time() * 1000 - file.modification_time > _DAY_MS for file in files)
