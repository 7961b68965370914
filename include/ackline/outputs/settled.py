"""What settlement n holds of outputs: what the turn publishes, and which rows wait for records in flight after it.

Rows wait from the turn of their attempt until the turn that acks it, which publishes them, or the one that fails it,
which drops them. What is kept after turn n follows from what was kept before, what the execution of outcomes n has
staged, and the rows of outcomes n and decisions n. All of that is stored and never changes, so each process that
settles the turn finds the same rows; and only the files count that settlement n names.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from hashlib import sha256

from ackline.delta.append import retry_beside_rivals
from ackline.delta.errors import folder_errors, storage_errors, unusable_folder
from ackline.delta.folder import Folder
from ackline.errors import AcklineError, ConfigError, FatalError
from ackline.forms.form import RunRequest
from ackline.lane.adapters import Adapters
from ackline.lane.ways_out import advises_void, fails_as_fatal, kept_rows_advice
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome, OutcomeColumns
from ackline.ledger.pending import NOTHING_PENDING, PendingKind, PendingRuns
from ackline.ledger.published import (
    Numbers,
    OutputsOfTurn,
    StagedTable,
    TableOfTurn,
    application_of,
    expected_of_held,
    expected_with,
    has_rows_of_several,
    kept_after,
    may_replace,
    partition_key,
)
from ackline.ledger.turns import IDENTITY_BITS, Plan, SettledPartition, Settlement, TurnKind, number_of
from ackline.outputs.expected import as_found, expected_of, gone_tables, unexpected
from ackline.outputs.kept_rows import KeptRows, check_readable, keep_rows
from ackline.outputs.newest_rows import OlderRows, older_topics_of
from ackline.outputs.output_table import check_staged_columns, location_of, place_of, table_of
from ackline.outputs.staged import (
    folder_name,
    leaves_in_flight,
    lost_files,
    outputs_of,
    rows_gone,
    rows_kept,
    staged_tables,
    staging_root,
)
from ackline.outputs.written import AttemptOutcomes, write_table
from ackline.pipeline.outputs import Rows
from ackline.pipeline.pipeline import TurnSettings, claims
from ackline.scrub import scrub_address
from ackline.stored import DamagedError
from ackline.tables.turn_outcomes import TurnOutcomes

log = logging.getLogger(__name__)
Partitions = Mapping[TopicPartition, SettledPartition]


def settled_outputs(
    adapters: Adapters, plan: Plan, before: Settlement, settled: Partitions, outcomes: TurnOutcomes, lost: bool = False
) -> str:
    """Returns what settlement n holds of outputs, encoded. `settled` are its partitions; `lost` is whether an operator
    has recorded the turn as lost, whatever it had staged.

    Call it after decisions n are stored. The files that the result names are on the disk when this returns, and each
    output table that gets rows exists. Raises LedgerError if staged rows are gone or a table holds another turn than
    the ledger, ConfigError if rows do not fit their table any more, FatalError or TransientError if the staging folder
    or a table can't be used. Under `at_most_once` a reported turn can't be voided, so there this does not raise because
    of a table: publishing writes its rows, and `ackline void --give-up` is the way out.
    """
    try:
        return _settled_outputs(adapters, plan, before, settled, outcomes, lost)
    except AcklineError:
        # Another process may have settled and published the turn meanwhile. Then it has removed the staged rows, and
        # the settlement of this process is refused, whatever it holds.
        if adapters.store.is_settled(plan.turn):
            return ""
        raise


def _settled_outputs(
    adapters: Adapters, plan: Plan, before: Settlement, settled: Partitions, outcomes: TurnOutcomes, lost: bool
) -> str:
    application = application_of(adapters.store.ledger_id(), plan.turn)
    execution = None if lost else _execution(adapters, plan)
    expected = dict(expected_of(adapters.store, before))
    if plan.kind.opens_epoch:
        expected = {place: _held(adapters, place, numbers, application) for place, numbers in expected.items()}
    gone = gone_tables(adapters.store, RunRequest.of_plan(plan.settings), expected)
    expected = as_found(adapters.store, expected, gone, gone)
    waits = bool(kept_after(before.outputs))  # also for an output that the file has no more
    lowest = _lowest_settled(plan, before) if waits or outputs_of(adapters) else {}
    if execution is None and not waits and not lowest:
        return OutputsOfTurn(expected).encode()
    of_turn = _staged_tables(adapters, plan, execution)
    attempts = cache(lambda: AttemptOutcomes.read(adapters.store, plan.turn))
    kept = _kept_after_turn(adapters, plan, before, settled, of_turn or (), outcomes, attempts)
    tables = {}
    by_place = _sources(adapters, of_turn, kept, expected)
    expected = as_found(adapters.store, expected, by_place)
    for place, sources in by_place.items():
        table = _written(adapters, plan, place, sources, attempts, expected)
        if table.rows or table.files is None:
            tables[place] = table
    tables |= _replacing(adapters, plan, lowest, tables, expected, attempts)
    # Two processes that settle the turn from the same rows publish the same under the same number.
    what = [execution, [file.path for table in kept.released for file in table.files],
            sorted((place, table.rows) for place, table in tables.items())]  # fmt: skip
    identity = int.from_bytes(sha256(json.dumps(what).encode()).digest()[: IDENTITY_BITS // 8])
    number = number_of(plan.turn, identity) if tables else 0
    expected |= {place: expected_with(expected.get(place, {}), application, number) for place in tables}
    return OutputsOfTurn(expected, number, execution, tables, kept.kept, kept.released).encode()


def _held(adapters: Adapters, place: str, expected: Numbers, application: str) -> Numbers:
    """Returns what a lane expects of a table after a reset: what it holds. A reset is what an operator does about a
    table that is an older copy. Of a table that can't be read, the lane expects what it has expected so far."""
    try:
        return expected_of_held(expected, application, table_of(adapters.store, place).transactions())
    except AcklineError:
        return expected


def check_staged_rows(adapters: Adapters, plan: Plan) -> None:
    """Checks what outcomes n name before the first dead letter is sent: an operator may void a turn that is refused
    here, and a letter of a void turn announces a record as dead that the next turn handles again. Raises as
    `settled_outputs` does."""
    if claims(plan):
        return
    for staged in _staged_tables(adapters, plan, _execution(adapters, plan)) or ():
        with advises_void(plan.turn, (ConfigError, FatalError)):
            existing = table_of(adapters.store, staged.table).columns()
            check_staged_columns(staged.table, staged.columns, staged.columns if existing is None else existing)


def _execution(adapters: Adapters, plan: Plan) -> int | None:
    staged = not plan.empty and TurnSettings(plan.settings).has_outputs
    return adapters.store.execution_of(plan.turn) if staged else None


def _staged_tables(adapters: Adapters, plan: Plan, execution: int | None) -> list[StagedTable] | None:
    """Returns what the execution of the turn has staged, with paths below the staging root. Raises LedgerError if a
    staged file is gone or cut short: before the settlement, because an open turn can be voided and its offsets planned
    again. Returns None instead for a turn at most once whose manifest is gone."""
    staged, root = staged_tables(adapters, plan.turn, execution), staging_root(adapters)
    if claims(plan):
        return staged
    with folder_errors(root):
        lost = ["the manifest of the turn"] if staged is None else lost_files(root, staged)
    if lost:
        raise rows_gone(plan.turn, root, lost[0])
    return staged


def _sources(
    adapters: Adapters, of_turn: Sequence[StagedTable] | None, kept: KeptRows, known: Iterable[str]
) -> dict[str, list[StagedTable]]:
    """Returns by place the staged rows among which the turn may have acked some. Without the manifest of the turn,
    these are rows of unknown number for each table of the pipeline file."""
    if of_turn is None:
        names = {output.table for output in outputs_of(adapters) if output.table is not None}
    else:
        names = {staged.table for staged in of_turn}
    # A table takes a turn once. Rows may wait for it under another name than the pipeline file has for it today.
    store = adapters.store
    places = {location_of(store, name): place_of(store, name, known) for name in (*kept.acked, *names)}
    sources: dict[str, list[StagedTable]] = {place: [] for place in sorted(places.values())}
    for staged in (*(of_turn or ()), *kept.released):
        if (place := places.get(location_of(store, staged.table))) is not None:
            sources[place].append(staged)
    return sources


def _written(
    adapters: Adapters,
    plan: Plan,
    place: str,
    sources: Sequence[StagedTable],
    attempts: Callable[[], AttemptOutcomes],
    expected: Mapping[str, Numbers],
) -> TableOfTurn:
    """Returns the rows of the turn in one table, written to its final files."""
    root = staging_root(adapters)
    try:
        if not sources:
            raise rows_gone(plan.turn, root, "the manifest of the turn")
        with advises_void(plan.turn, (ConfigError, FatalError)), fails_as_fatal(plan.turn, place):
            if error := unexpected(adapters.store, plan.turn, place, expected):
                raise error
            kept = rows_kept(adapters, place)
            return write_table(adapters.store, plan.turn, sources, Folder(root), attempts(), kept)
    except AcklineError as error:
        if not claims(plan):
            raise
        log.warning("%s: the rows for the output table %s wait: %s", plan.turn, scrub_address(place), error)
        return TableOfTurn(sum(file.rows for staged in sources for file in staged.files), None)


def _lowest_settled(plan: Plan, before: Settlement) -> dict[str, int]:
    """Returns an offset of each topic-partition below which the turn settles no record: it reads none, and none is in
    flight."""
    if not plan.kind.replays:
        return {}
    lowest = dict[str, int]()
    for tp, planned in plan.partitions.items():
        read = [planned.fresh] * bool(planned.fresh) + list(planned.retries[:1])
        if read:
            lowest[partition_key(*tp)] = min(part.start for part in read)
    for tp, partition in before.partitions.items():
        for start in _in_flight(partition).starts[:1].tolist():
            lowest[partition_key(*tp)] = min(start, lowest.get(partition_key(*tp), start))
    return lowest


def _replacing(
    adapters: Adapters,
    plan: Plan,
    lowest: Mapping[str, int],
    written: Mapping[str, TableOfTurn],
    expected: Mapping[str, Numbers],
    attempts: Callable[[], AttemptOutcomes],
) -> dict[str, TableOfTurn]:
    """Returns the tables in which the turn replaces older rows, those of `written` and others.

    A record that is handled again may have emitted to other outputs before, or emit nothing now, so each table of the
    pipeline is looked at. A table without rows of the turn gets an entry only if it may hold older ones.
    """
    store, found = adapters.store, dict[str, TableOfTurn]()
    names = [output.table for output in outputs_of(adapters) if output.table is not None] if lowest else []
    for place in sorted({*written, *(place_of(store, name, expected) for name in names)} if lowest else ()):
        of_turn = written.get(place)
        try:
            with advises_void(plan.turn, (ConfigError, FatalError)), fails_as_fatal(plan.turn, place):
                if rows_kept(adapters, place) is not Rows.NEWEST:
                    continue
                if of_turn is None and _holds_older(adapters, plan, place, lowest, attempts):
                    if error := unexpected(store, plan.turn, place, expected):
                        raise error
                    of_turn = TableOfTurn(0, [], table_of(store, place).columns() or {})
                elif of_turn is not None and of_turn.files is not None:
                    _holds_older(adapters, plan, place, lowest, attempts)  # whether they can be replaced
        except AcklineError as error:
            if not claims(plan):
                raise
            log.warning("%s: older rows in the output table %s wait: %s", plan.turn, scrub_address(place), error)
            of_turn = of_turn or TableOfTurn(0, [])
        if of_turn is not None:
            found[place] = replace(of_turn, lowest=lowest)
    return found


def _holds_older(
    adapters: Adapters, plan: Plan, place: str, lowest: Mapping[str, int], attempts: Callable[[], AttemptOutcomes]
) -> bool:
    """Returns whether a table may hold rows that the turn replaces. Raises ConfigError if they can't be removed, and
    LedgerError if a row is of records beside those that the turn has handled."""
    table, application = table_of(adapters.store, place), application_of(adapters.store.ledger_id(), plan.turn)
    state = table.state()
    if state is None or not may_replace(state.transactions, application, plan.turn, lowest):
        return False
    with table.errors():
        if retry_beside_rivals(lambda: table.is_new(table.state() or state)):
            return False
    table.check_replaceable(adapters.pipeline.name)
    topic_ids = {tp.topic: planned.topic_id for tp, planned in plan.partitions.items()}
    older_topics, outcomes = older_topics_of(adapters.store, topic_ids), attempts()
    older = OlderRows(table, outcomes.handled(), older_topics, plan.turn, application, outcomes.end_of)
    with table.errors():
        if not has_rows_of_several(state.transactions):
            return older.at_newest(older.may_exist)
        found = older.at_newest(older.find)
    if found.related:
        raise older.partly_handled(found.related)
    return found.rows > 0


def _kept_after_turn(
    adapters: Adapters,
    plan: Plan,
    before: Settlement,
    settled: Partitions,
    of_turn: Sequence[StagedTable],
    outcomes: TurnOutcomes,
    attempts: Callable[[], AttemptOutcomes],
) -> KeptRows:
    waiting = kept_after(before.outputs)
    # The new epoch of a reset hands out what was in flight again, under other attempts. A skip after which nothing is
    # in flight acks nothing. Both drop what waits, so neither reads the files, which may be lost.
    if plan.kind.opens_epoch or (plan.kind is TurnKind.SKIP and not any(map(_in_flight, settled.values()))):
        return KeptRows([], list(waiting))
    begins = bool(of_turn) and _any_in_flight(outcomes)
    if not begins and not (waiting and _any_ended(before.partitions, settled)):
        return KeptRows(list(waiting))
    root, folder = staging_root(adapters), folder_name(plan.turn)
    with _kept_rows_errors(plan, root):
        return keep_rows(Folder(root), folder, waiting, of_turn if begins else (), attempts())


def _kept_rows_errors(plan: Plan, root: str) -> AbstractContextManager[None]:
    """Raises LedgerError, with the ways out, for kept rows that an open turn needs and that are gone or damaged."""

    def error_of(error: BaseException) -> AcklineError:
        if isinstance(error, FileNotFoundError | DamagedError):
            return rows_gone(plan.turn, root, str(error), f", and then {kept_rows_advice(plan.turn)}")
        return unusable_folder(root, error)

    return storage_errors(root, error_of)


def check_open_skip(adapters: Adapters, plan: Plan, before: Settlement) -> None:
    """Raises LedgerError if an open skip can't be settled, because rows that wait for records in flight are gone or
    damaged. Reads them all and writes nothing."""
    if kept_after(before.outputs) and leaves_in_flight(before, plan):
        root = staging_root(adapters)
        with _kept_rows_errors(plan, root):
            check_readable(Folder(root), kept_after(before.outputs))


def _any_in_flight(outcomes: TurnOutcomes) -> bool:
    """Returns whether an attempt of the turn was in flight when replay stored its outcome."""
    columns = map(OutcomeColumns.of, outcomes.rows.values())
    return any(len(rows.where(~rows.answered).with_outcome(Outcome.IN_FLIGHT)) for rows in columns)


def _any_ended(before: Partitions, settled: Partitions) -> bool:
    """Returns whether a record that was in flight before the turn is not any more. A turn that ends none and hands no
    record on does not read the files of kept rows."""
    for tp, partition in before.items():
        still = _in_flight(settled.get(tp))
        if len(_in_flight(partition).minus((still.starts, still.ends))):
            return True
    return False


def _in_flight(partition: SettledPartition | None) -> PendingRuns:
    return partition.state.pending.of_kind(PendingKind.IN_FLIGHT) if partition else NOTHING_PENDING
