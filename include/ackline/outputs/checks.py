"""What a run checks of the outputs of a pipeline before it stores anything, and where its tasks stage rows.

It checks tables, topics, and the files of rows that wait for records in flight. Rows are staged below the folder of the
pipeline's live tables.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from ackline.errors import AcklineError, ConfigError, LedgerError
from ackline.lane.adapters import Adapters
from ackline.lane.claim import void_command
from ackline.ledger.offsets import OffsetRange, arrays_of
from ackline.ledger.pending import PendingKind
from ackline.ledger.turns import LIVE, Plan, Settlement, TurnId, TurnKind, is_backfill
from ackline.pipeline.arguments import id_of
from ackline.pipeline.folder import lane_folder
from ackline.pipeline.outputs import (
    Output,
    OutputsOfTurn,
    StagedTable,
    earlier_after,
    given_up_after,
    kept_after,
    published_after,
)
from ackline.scrub import scrub_address
from ackline.tables.errors import folder_errors
from ackline.tables.folder import Folder, prove_conditional_put
from ackline.tables.object_store import is_remote
from ackline.tables.output_table import check_columns, check_place
from ackline.tables.publish import check_staged_columns, table_of
from ackline.tables.published import Published, application_of, check_last_published, older_copy
from ackline.tables.store import LedgerStore

if TYPE_CHECKING:
    from ackline.worker.settings import OutputTargets

T = TypeVar("T")

_STAGING = ".staging"


def staging_root(adapters: Adapters) -> str:
    """Returns the folder below which all lanes of the pipeline stage rows: a path or URI."""
    return f"{lane_folder(adapters.store.root, adapters.pipeline.name, LIVE)}/{_STAGING}"


def folder_name(turn: TurnId) -> str:
    """Returns the name of a turn's folder below the staging root."""
    return f"{quote(turn.lane, safe='')}-{turn.epoch}-{turn.n}"


def staging_folder(adapters: Adapters, turn: TurnId) -> str:
    return f"{staging_root(adapters)}/{folder_name(turn)}"


def check_outputs(adapters: Adapters) -> str:
    """Returns what the outputs of a pipeline are, for `ackline doctor`. Raises what `output_targets` raises."""
    columns = _checked_columns(adapters)
    texts = []
    for output in outputs_of(adapters):
        known = columns.get(output.number)
        text = f"columns {', '.join(known)}" if known else "columns inferred from its rows"
        texts.append(f"topic {output.topic}" if output.table is None else f"table {output.table} ({text})")
    return "; ".join(texts)


def check_outputs_of(adapters: Adapters, plan: Plan, probe: bool = True) -> None:
    """Checks the outputs before the plan of a run is stored, so that a run that can't write leaves no open turn. Raises
    what `output_targets` raises. Without `probe` it writes nothing to find out whether it may write.

    A plan that reads nothing stages no row, and an idle run must not cost requests to each table. The rows that such a
    turn may publish wait since earlier turns, and settle looks at their tables before it stores the settlement.
    """
    if plan.kind is TurnKind.RUN and not plan.empty:
        _checked_columns(adapters, probe)


def output_targets(adapters: Adapters, plan: Plan) -> "OutputTargets | None":
    """Returns where the tasks of a turn write what goes to outputs; None without outputs.

    Opens each table and topic, so that one that can't be used stops the run before a record is handled: another process
    may have stored the plan long ago. Raises ConfigError if a topic is missing, a table has other columns or two
    outputs are one table, and FatalError or TransientError if one can't be reached.
    """
    from ackline.kafka.config import inlined_certificates
    from ackline.worker.settings import OutputTargets

    if not outputs_of(adapters):
        return None
    columns = _checked_columns(adapters)
    has_topics = any(output.topic is not None for output in outputs_of(adapters))
    return OutputTargets(
        plan.turn,
        staging_folder(adapters, plan.turn),
        {number: known for number, known in columns.items() if known is not None},
        {
            output.number: _initial_columns(adapters, output)
            for output in outputs_of(adapters)
            if columns.get(output.number, {}) is None
        },
        inlined_certificates({name: str(value) for name, value in adapters.kafka.items()}) if has_topics else {},
    )


def _checked_columns(adapters: Adapters, probe: bool = True) -> dict[int, dict[str, str] | None]:
    """Returns the columns of each output table, by the number of the output; None if tasks infer them."""
    outputs = [output for output in outputs_of(adapters) if output.table is not None]
    _check_topics(adapters)
    _check_distinct_tables(adapters, outputs)
    columns = {output.number: _columns(adapters, output, probe) for output in outputs}
    if outputs:
        _check_last_published(adapters, outputs)
        _check_kept_columns(adapters, {output.table: columns[output.number] for output in outputs if output.table})
    return columns


def _check_distinct_tables(adapters: Adapters, outputs: Iterable[Output]) -> None:
    """Raises ConfigError if two outputs are one table, for example by its name and by its URI. A table takes a turn
    once, so the rows of the second output would be lost."""
    first: dict[str, Output] = {}
    for output in outputs:
        assert output.table is not None
        other = first.setdefault(place := place_of(adapters.store, output.table), output)
        if other is not output:
            raise ConfigError(
                f"outputs.{other.number}.table ({other.table}) and outputs.{output.number}.table ({output.table}) are "
                f"one table, at {scrub_address(place)}; give one of the outputs both streams: `from: [A, B]`",
                key=f"outputs.{output.number}.table",
            )


def _check_topics(adapters: Adapters) -> None:
    """Raises ConfigError if an output topic does not exist."""
    wanted = sorted({output.topic for output in outputs_of(adapters) if output.topic is not None})
    existing = adapters.cluster.topics(wanted) if wanted else {}
    for topic in wanted:
        if topic not in existing:
            raise ConfigError(
                f"the output topic {topic} of pipeline {adapters.pipeline.name} does not exist; create it, or remove "
                f"the output. Nothing was handled",
                key="outputs",
            )


def outputs_of(adapters: Adapters) -> tuple[Output, ...]:
    topology = adapters.pipeline.topology
    return topology.all_outputs if topology is not None else ()


def _columns(adapters: Adapters, output: Output, probe: bool) -> dict[str, str] | None:
    """Returns the columns of an output table: those of the table or of the file; None if tasks infer them."""
    assert output.table is not None
    table = table_of(adapters.store, output.table)
    if probe:
        prove_conditional_put(table.uri)
    existing = table.columns()
    if existing is not None:
        check_columns(output.table, existing, output.columns)
        return existing
    if probe:
        check_place(table.uri)
    return dict(output.columns) if output.columns is not None else None


def _check_kept_columns(adapters: Adapters, columns: Mapping[str, Mapping[str, str] | None]) -> None:
    """Raises ConfigError if rows wait for records in flight that do not fit the columns that their table has now."""
    newest = adapters.store.newest()
    for staged in kept_after(newest.outputs if newest is not None else ""):
        for known in of_table(adapters.store, columns, staged.table):
            if known is not None:
                check_staged_columns(staged.table, staged.columns, known)


def _initial_columns(adapters: Adapters, output: Output) -> dict[str, str]:
    """Returns the columns that the tasks of a turn begin from when they infer those of a table that does not exist yet:
    the columns of rows that wait for records in flight, because all these rows go to the same table."""
    newest = adapters.store.newest()
    place = place_of(adapters.store, str(output.table))
    waiting = kept_after(newest.outputs if newest is not None else "")
    staged = [table for table in waiting if place_of(adapters.store, table.table) == place]
    return {name: kind for table in staged for name, kind in table.columns.items()}


def last_published(store: LedgerStore, settlement: Settlement, application: str) -> dict[str, Published]:
    """Returns by output table what the lane has published there last, once the turn of a settlement is published.

    `application` is the transaction id of a lane and epoch. If it is not that of the settlement, the numbers are those
    of an earlier epoch, or of an earlier id of the ledger.
    """
    outputs = OutputsOfTurn.decode(settlement.outputs) if settlement.outputs else None
    if outputs is None:
        return {}
    given_up = store.given_up(settlement.turn) if outputs.tables else ()
    earlier, numbers, doubtful = earlier_after(outputs, application, given_up), {}, {}
    if outputs.application == application:
        numbers, doubtful = published_after(outputs, given_up), given_up_after(outputs, given_up)
    names = numbers.keys() | doubtful.keys() | earlier.keys()
    return {name: Published(numbers.get(name), doubtful.get(name, ()), earlier.get(name)) for name in names}


def published_in(store: LedgerStore, published: Mapping[str, Published], name: str) -> Published:
    """Returns what the lane has published in a table last, by whatever name the pipeline file has called the table
    then."""
    found = of_table(store, published, name)
    number = max((last.number for last in found if last.number is not None), default=None)
    given_up = tuple(n for last in found for n in last.given_up if number is None or n > number)
    return Published(number, given_up, _newest_of(last.earlier for last in found))


def _newest_of(earlier: Iterable[tuple[str, int] | None]) -> tuple[str, int] | None:
    """Returns the newest of some transaction ids with their numbers: the last one of the last epoch."""
    known = [(int(application.split("/")[-2]), number, application) for application, number in filter(None, earlier)]
    return (max(known)[2], max(known)[1]) if known else None


def of_table(store: LedgerStore, by_name: Mapping[str, T], name: str) -> list[T]:
    """Returns the values of all names by which pipeline files have called a table."""
    place = place_of(store, name)
    return [value for other, value in by_name.items() if place_of(store, other) == place]


def place_of(store: LedgerStore, table: str) -> str:
    """Returns where an output table is: a path or a URI, the same one for each name of the table."""
    uri = table_of(store, table).uri
    return uri if is_remote(uri) else os.path.realpath(uri)


def _check_last_published(adapters: Adapters, outputs: Iterable[Output]) -> None:
    """Raises LedgerError if the ledger or an output table is an older copy: before a turn is planned that could not be
    published."""
    newest = adapters.store.newest()
    if newest is None or not newest.outputs:
        return
    lane = _OutputsOfLane(adapters.store, newest)
    application = lane.application
    for output in outputs:
        assert output.table is not None
        held, expected = lane.held_and_expected(output.table)
        try:
            check_last_published(newest.turn, output.table, held, application, expected)
        except LedgerError:
            now = adapters.store.newest()
            if now is not None and now.turn == newest.turn:
                plan = adapters.store.open_plan(now)
                first = (
                    f"close {plan.turn}, which is open, with `{void_command(plan.turn)}`" if plan is not None else ""
                )
                check_last_published(newest.turn, output.table, held, application, expected, first)
            return  # another process has published a later turn meanwhile, and this one's plan is refused


class _OutputsOfLane:
    """What a lane has published in each output table, as of its newest settlement."""

    def __init__(self, store: LedgerStore, newest: Settlement) -> None:
        self._store = store
        self._newest = OutputsOfTurn.decode(newest.outputs) if newest.outputs else None
        self.application = application_of(store.ledger_id(), newest.turn)
        self.published = last_published(store, newest, self.application)
        # A run publishes the newest turn before it stores its plan. Until then a table holds the turn before it;
        # afterwards such a table is an older copy.
        self._waiting = self._newest.tables if self._newest is not None else {}
        if self._waiting and store.is_published(newest.turn):
            self._waiting = {}

    def held_and_expected(self, name: str) -> tuple[Mapping[str, int], Published]:
        """Returns all transaction ids of a table, and what the lane expects among them."""
        held, waits = table_of(self._store, name).transactions(), of_table(self._store, self._waiting, name)
        newest = self._newest
        if newest is None or not waits or held.get(self.application) == newest.number:
            return held, published_in(self._store, self.published, name)
        given_up = [number for numbers in of_table(self._store, newest.given_up, name) for number in numbers]
        return held, Published(waits[0].after, given_up, _newest_of(of_table(self._store, newest.earlier, name)))


def older_copies(store: LedgerStore, newest: Settlement) -> dict[str, str]:
    """Returns by output table why the table or the ledger is an older copy; empty if each table that can be read holds
    what the lane of the store has published there last."""
    lane, found = _OutputsOfLane(store, newest), dict[str, str]()
    for name in {place_of(store, name): name for name in lane.published}.values():
        with suppress(AcklineError):  # of a table that can't be read, which is another state
            held, expected = lane.held_and_expected(name)
            if why := older_copy(newest.turn, name, held, lane.application, expected):
                found[name] = why
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


def leaves_in_flight(newest: Settlement, skip: Plan) -> bool:
    """Returns whether a record is in flight after a skip. If none is, the skip drops all rows that wait."""
    for tp, settled in newest.partitions.items():
        in_flight = settled.state.pending.of_kind(PendingKind.IN_FLIGHT)
        if tp in skip.partitions:
            planned = skip.partitions[tp]
            in_flight = in_flight.minus(arrays_of([OffsetRange(0, planned.fresh.start)]))
            in_flight = in_flight.minus(arrays_of(planned.retries))
        if len(in_flight):
            return True
    return False


def check_kept_files(adapters: Adapters, newest: Settlement) -> None:
    """Raises LedgerError if files of rows that wait for records in flight are gone or cut short: before a turn that may
    need them is planned, because an operator action that is planned has to be settled. A reset needs none of them, nor
    does a skip after which no record is in flight."""
    waiting, root = kept_after(newest.outputs), staging_root(adapters)
    with folder_errors(root):
        lost = lost_files(root, waiting)
    if lost:
        raise LedgerError(
            f"{newest.turn}: {len(lost)} of {sum(len(table.files) for table in waiting)} files with rows that wait for "
            f"records in flight are gone or cut short below {root} ({lost[0]}). Restore that folder from a backup. "
            f"Without one, {kept_rows_advice(newest.turn)}"
        )


def lost_files(root: str, tables: Iterable[StagedTable]) -> list[str]:
    """Returns which of these files below the staging root are gone or have another size. Raises OSError."""
    files = [file for table in tables for file in table.files]
    found = Folder(root).filesystem.get_file_info([file.path for file in files]) if files else []
    return [file.path for file, info in zip(files, found, strict=True) if info.size != file.size]


def kept_rows_advice(turn: TurnId) -> str:
    """Returns what to do about a lane whose rows of records in flight are lost, as the end of a sentence."""
    if turn.lane == LIVE:
        return f"read the records in flight again with `ackline reset {turn.pipeline} --to floor --reason …`"
    return (
        f"end the backfill with `ackline backfill {turn.pipeline} --cancel {id_of(turn.lane)}`, and choose its offsets "
        f"again in another one"
    )
