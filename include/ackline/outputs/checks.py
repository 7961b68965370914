"""What is checked of the outputs of a pipeline before a plan is stored, and what tasks need to write to them."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ackline.delta.folder import prove_conditional_put
from ackline.errors import ConfigError, LedgerError
from ackline.forms.form import EVERYTHING, RunRequest
from ackline.lane.adapters import Adapters
from ackline.lane.commit import Publish
from ackline.lane.ways_out import Way, advises_numbers
from ackline.ledger.published import kept_after
from ackline.ledger.turns import Plan, Settlement, TurnId, TurnKind, check_numbered
from ackline.outputs.expected import as_found, expected_of, gone_tables, unexpected
from ackline.outputs.output_table import (
    check_columns,
    check_place,
    check_staged_columns,
    location_of,
    place_of,
    table_of,
)
from ackline.outputs.staged import check_kept_files, leaves_in_flight, outputs_of, staging_folder
from ackline.pipeline.outputs import Output, Rows, real_table
from ackline.scrub import scrub_address

if TYPE_CHECKING:
    from ackline.worker.settings import OutputTargets


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
    if not plan.empty:
        _checked_columns(adapters, probe, RunRequest.of_plan(plan.settings))


def output_targets(adapters: Adapters, plan: Plan) -> "OutputTargets | None":
    """Returns where the tasks of a turn write what goes to outputs; None without outputs.

    Opens each table and topic, so that one that can't be used stops the run before a record is handled: another process
    may have stored the plan long ago. Raises ConfigError if a topic is missing, a table has other columns or two
    outputs are one table, and FatalError or TransientError if one can't be reached.
    """
    from ackline.kafka.config import inlined_certificates

    if not outputs_of(adapters):
        return None
    if adapters.pipeline.shadow is not None:
        columns = _checked_columns(adapters, request=RunRequest.of_plan(plan.settings))
        return _targets(adapters, plan.turn, staging_folder(adapters, plan.turn), columns, None)
    has_topics = any(output.topic is not None for output in outputs_of(adapters))
    # Tasks of another machine have none of the driver's files.
    kafka = inlined_certificates({name: str(value) for name, value in adapters.kafka.items()}) if has_topics else {}
    columns = _checked_columns(adapters, request=RunRequest.of_plan(plan.settings))
    return _targets(adapters, plan.turn, staging_folder(adapters, plan.turn), columns, kafka)


def targets_to_try(adapters: Adapters, turn: TurnId, folder: str) -> "OutputTargets | None":
    """Returns targets that stage rows in `folder` and send nothing to topics; None without outputs. Writes nothing.
    Raises what `output_targets` raises."""
    if not outputs_of(adapters):
        return None
    return _targets(adapters, turn, folder, _checked_columns(adapters, probe=False), None)


def _targets(
    adapters: Adapters,
    turn: TurnId,
    folder: str,
    columns: Mapping[int, Mapping[str, str] | None],
    producer: Mapping[str, str] | None,
) -> "OutputTargets":
    from ackline.worker.settings import OutputTargets

    return OutputTargets(
        turn,
        folder,
        {number: known for number, known in columns.items() if known is not None},
        {
            output.number: _initial_columns(adapters, output)
            for output in outputs_of(adapters)
            if columns.get(output.number, {}) is None
        },
        producer,
    )


def _checked_columns(
    adapters: Adapters, probe: bool = True, request: RunRequest = EVERYTHING
) -> dict[int, dict[str, str] | None]:
    """Returns the columns of each output table, by the number of the output; None if tasks infer them."""
    outputs = [output for output in outputs_of(adapters) if output.table is not None]
    _check_topics(adapters)
    _check_distinct_tables(adapters, outputs)
    columns = {output.number: _columns(adapters, output, probe) for output in outputs}
    if outputs:
        _check_expected(adapters, outputs, request)
        _check_kept_columns(adapters, {output.table: columns[output.number] for output in outputs if output.table})
    return columns


def _check_distinct_tables(adapters: Adapters, outputs: Iterable[Output]) -> None:
    """Raises ConfigError if two outputs are one table, for example by its name and by its URI. A table takes a turn
    once, so the rows of the second output would be lost."""
    first: dict[str, Output] = {}
    for output in outputs:
        assert output.table is not None
        other = first.setdefault(location := location_of(adapters.store, output.table), output)
        if other is not output:
            raise ConfigError(
                f"outputs.{other.number}.table ({other.table}) and outputs.{output.number}.table ({output.table}) are "
                f"one table, at {scrub_address(location)}; give one of the outputs both streams: `from: [A, B]`",
                key=f"outputs.{output.number}.table",
            )


def _check_topics(adapters: Adapters) -> None:
    """Raises ConfigError if an output topic does not exist."""
    if adapters.pipeline.shadow is not None:
        return  # a shadow sends nothing there
    wanted = sorted({output.topic for output in outputs_of(adapters) if output.topic is not None})
    existing = adapters.cluster.topics(wanted) if wanted else {}
    for topic in wanted:
        if topic not in existing:
            raise ConfigError(
                f"the output topic {topic} of pipeline {adapters.pipeline.name} does not exist; create it, or remove "
                f"the output. Nothing was handled",
                key="outputs",
            )


def _columns(adapters: Adapters, output: Output, probe: bool) -> dict[str, str] | None:
    """Returns the columns of an output table: those of the table or of the file; None if tasks infer them."""
    assert output.table is not None
    table = table_of(adapters.store, output.table)
    if probe:
        prove_conditional_put(table.uri)
    existing = table.columns()
    if existing is None and adapters.pipeline.shadow is not None:
        existing = _columns_beside(adapters, output.table, real_table(output.table, adapters.pipeline.shadow), probe)
    if existing is not None:
        check_columns(output.table, existing, output.columns)
        if (output.rows or table.kept()) is Rows.NEWEST:
            table.check_replaceable(adapters.pipeline.name)
        return existing
    if probe:
        check_place(table.uri)
    return dict(output.columns) if output.columns is not None else None


def _columns_beside(adapters: Adapters, shadow: str, real: str, creates: bool) -> dict[str, str] | None:
    """Returns the columns of the real table, for one of a shadow that does not exist yet; None if neither exists.

    Creates the table of the shadow, without rows, before the first plan of the lane that reads something: so it has the
    columns and partitions that the real one has at that time, and its rows are checked against these. A process that is
    killed right after it leaves an empty table, which the next run of the lane finds.
    """
    table = table_of(adapters.store, real)
    columns = table.columns()
    if columns is not None and creates:
        table_of(adapters.store, shadow, columns, table.partition_by, table.kept()).create()
    return columns


def _check_kept_columns(adapters: Adapters, columns: Mapping[str, Mapping[str, str] | None]) -> None:
    """Raises ConfigError if rows wait for records in flight that do not fit the columns that their table has now."""
    newest, store = adapters.store.newest(), adapters.store
    waiting = kept_after(newest.outputs) if newest is not None else ()
    known = {location_of(store, name): of_table for name, of_table in columns.items()} if waiting else {}
    for staged in waiting:
        if (of_table := known.get(location_of(store, staged.table))) is not None:
            check_staged_columns(staged.table, staged.columns, of_table)


def _initial_columns(adapters: Adapters, output: Output) -> dict[str, str]:
    """Returns the columns that the tasks of a turn begin from when they infer those of a table that does not exist yet:
    the columns of rows that wait for records in flight, because all these rows go to the same table."""
    newest, store = adapters.store.newest(), adapters.store
    location = location_of(store, str(output.table))
    waiting = kept_after(newest.outputs) if newest is not None else ()
    staged = [table for table in waiting if location_of(store, table.table) == location]
    return {name: kind for table in staged for name, kind in table.columns.items()}


def _check_expected(adapters: Adapters, outputs: Iterable[Output], request: RunRequest) -> None:
    """Raises LedgerError if the ledger or an output table is an older copy, or if a table is gone to which the ledger
    has published: before a turn is planned that could not be published."""
    newest, store = adapters.store.newest(), adapters.store
    if newest is None:
        return
    # A lane that has published nothing yet is looked at, too: its table may be newer than this copy of the ledger.
    known = expected_of(store, newest)
    places = [place_of(store, str(output.table), known) for output in outputs]
    expected = as_found(store, known, places, gone_tables(store, request, known))
    for place in places:
        error = unexpected(store, newest.turn, place, expected)
        if error is not None:
            now = store.newest()
            if now is None or now.turn != newest.turn:
                return  # another process has published a later turn meanwhile, and this one's plan is refused
            plan = store.open_plan(now)
            first = f"close {plan.turn}, which is open, with `{Way.VOID.of(plan.turn)}`" if plan is not None else ""
            raise unexpected(store, newest.turn, place, expected, first) or error


def store_plan(adapters: Adapters, newest: Settlement, plan: Plan, publish: Publish) -> bool:
    """Stores the plan after `newest`. Returns False if its number is taken. Raises what `publish` and
    `check_outputs_of` raise, before anything of the turn is stored. The rows of `newest` are published first: a turn
    whose number is taken has been published everywhere, so no two turns of a lane are ever half published."""
    with advises_numbers(plan.turn, plan.kind.opens_epoch):
        check_numbered(plan.turn, plan.kind.opens_epoch)
    publish(adapters, newest)
    try:
        if plan.kind.replays or (plan.kind is TurnKind.SKIP and leaves_in_flight(newest, plan)):
            check_kept_files(adapters, newest)
        check_outputs_of(adapters, plan)
    except LedgerError:
        now = adapters.store.newest()
        if now is not None and (now.turn.epoch, now.turn.n) > (newest.turn.epoch, newest.turn.n):
            return False  # another process has settled a later turn, and removed what this one has looked for
        raise
    return adapters.store.store_plan(plan)
