"""How a backfill is begun or resumed, and what is shown of it: JSON for a program, and text.

The command and the DAG `backfill__NAME` do these steps, each with its own confirmation between `prepare` and
`begin_prepared`.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ackline.actions.objects import JsonObject, PartitionObject, RangeObject, Time
from ackline.backfill.choose import Choice, choose_offsets
from ackline.backfill.form import DEAD_LETTER, HANDLER, ID, BackfillRequest, allowed_dead_letters, allowed_handlers
from ackline.backfill.promote import check_goes_on, check_is_promoted, promoted_arguments, promoted_choice
from ackline.backfill.run import Backfill, account_of_choice, begin, check_epoch_before_is_settled, find_backfill
from ackline.errors import AcklineError, ConfigError, counted
from ackline.forms.arguments import BackfillArguments, check_same, id_of, lane_of
from ackline.lane.adapters import Adapters
from ackline.lane.log_checks import listed
from ackline.lane.rights import check_rights_to_read
from ackline.lane.ways_out import LaneName, run
from ackline.ledger.account import UNREAD, Account
from ackline.ledger.offsets import OffsetRange, TopicPartition, count
from ackline.outputs.lane_rows import versions_of_tables
from ackline.outputs.output_table import table_of
from ackline.pipeline.keys import DeadLetterBlock
from ackline.pipeline.outputs import real_table, shadow_table
from ackline.pipeline.pipeline import Pipeline
from ackline.scrub import scrub_address
from ackline.tables.store import LedgerStore

_LOST_VERSION = "a version that is not in its log any more"
MOST_RANGES = 20
"""How many ranges a person is shown."""


class AskedObject(JsonObject):
    """What a lane was asked to read."""

    offsets: int
    ranges: tuple[RangeObject, ...]


class VersionsObject(JsonObject):
    """The versions of an output table before the first turn of a lane and after the last one; null for one that the log
    of the table does not hold any more."""

    before: int | None
    after: int | None


class AccountObject(JsonObject):
    """The account of a lane: what was asked, and what has become of each offset."""

    left_out = frozenset({"tables"})
    id: str
    lane: str
    epoch: int
    settled: bool
    asked: AskedObject
    outcomes: dict[str, int]
    gaps: int
    pending: dict[str, int]
    next_due: Time | None
    tables: dict[str, VersionsObject] | None = None
    """By output table in which the lane has published; only in the report of a lane."""


class GoneObject(RangeObject):
    """Offsets that were chosen and can't be read any more."""

    why: str


class OpenEndObject(PartitionObject):
    """A partition without a record at or after `--to`: it is read up to its log end."""

    end: int


class PreparedObject(AccountObject):
    """A lane before anything of it is read, and what its choice has found; nothing for a lane that has begun."""

    left_out = AccountObject.left_out | {"replaced", "of_epochs", "notes", "shadow_tables"}
    dry_run: bool
    gone: tuple[GoneObject, ...] = ()
    open_end: tuple[OpenEndObject, ...] = ()
    acked_before: int | None = None
    """How many of the offsets an earlier backfill has acked."""
    replaced: dict[str, int] | None = None
    """How many rows of which output table are of these offsets, and go where they are handled again; None if none."""
    of_epochs: dict[str, int] | None = None
    """How many of the offsets were chosen by an outcome of which epoch; None if they were not chosen by outcome."""
    notes: tuple[str, ...] | None = None
    """Sentences about a choice by time in logs that are out of order, or too long to be looked at whole."""
    shadow_tables: tuple[str, ...] | None = None
    """The tables that get the rows of a shadow; None for another lane."""


class BackfillObject(AccountObject):
    """A lane as `ackline backfill --list` prints it."""

    left_out = frozenset({"promotes", "promoted_by"})
    began_at: Time
    actor: str
    reason: str
    arguments: str
    promotes: str | None = None
    """The id of the shadow that the lane promotes."""
    promoted_by: str | None = None
    """The id of the backfill that promotes this shadow."""


def report_of(adapters: Adapters, backfill: Backfill) -> tuple[AccountObject, str]:
    """Returns the account of a lane as an object and for a person, with the versions of the output tables before and
    after its turns: an engine that travels in time reads what a table held then."""
    turn = backfill.newest.turn
    tables = {scrub_address(place): of_table for place, of_table in versions_of_tables(adapters.store).items()}
    lines = [account_text(turn.pipeline, turn.lane, backfill.account, adapters.now())]
    for table, (before, after) in tables.items():
        versions = [_LOST_VERSION if version is None else f"version {version}" for version in (before, after)]
        lines.append(f"Output table {table}: {versions[0]} before the first turn, {versions[1]} after the last one.")
    lines += _shadow_tables_left(adapters, backfill)
    body = _account(turn.lane, turn.epoch, backfill.account)
    objects = {table: VersionsObject(**of_table._asdict()) for table, of_table in tables.items()}
    return AccountObject(**body, tables=objects or None), "\n".join(lines)


def _shadow_tables_left(adapters: Adapters, backfill: Backfill) -> list[str]:
    """Returns where the tables of a settled shadow are, for a person, with what removes them; of the shadow that the
    lane promotes, too. Nothing for another lane, and once they are gone."""
    arguments = backfill.arguments
    shadow = id_of(backfill.newest.turn.lane) if arguments.shadow else arguments.promotes
    if shadow is None or not backfill.account.settled:
        return []
    left = []
    for output in adapters.pipeline.outputs or ():
        # The settings of a shadow name its own tables; those of the file and of a promotion the real ones.
        is_own = adapters.pipeline.shadow is not None or output.table is None
        name = output.table if is_own else shadow_table(str(output.table), shadow)
        with suppress(AcklineError):  # of a table that can't be read, which `ackline doctor` shows
            if name is not None and (table := table_of(adapters.store, name)).state() is not None:
                left.append(scrub_address(table.uri))
    what = f"Tables of the shadow {shadow} stay until you remove their folders: {', '.join(left)}. Only"
    return [f"{what} `ackline diff --rows` needs them."] if left else []


def _account(lane: str, epoch: int, account: Account) -> dict[str, Any]:
    asked = [RangeObject(**_range(tp, part)) for tp, ranges in sorted(account.asked.items()) for part in ranges]
    return {
        "id": id_of(lane),
        "lane": lane,
        "epoch": epoch,
        "settled": account.settled,
        "asked": AskedObject(offsets=account.offsets, ranges=tuple(asked)),
        "outcomes": dict(account.outcomes),
        "gaps": account.gaps,
        "pending": {str(kind): number for kind, number in account.pending.items()},
        "next_due": account.next_due,
    }


def _range(tp: TopicPartition, part: OffsetRange) -> dict[str, Any]:
    return {**tp._asdict(), "start": part.start, "end": part.end}


def prepared_object(lane: str, epoch: int, account: Account, choice: Choice | None, dry_run: bool) -> PreparedObject:
    """Returns a lane that has begun, or with `choice` what it would begin with, as an object."""
    if choice is None:
        return PreparedObject(**_account(lane, epoch, account), dry_run=dry_run)
    gone = sorted(choice.gone, key=lambda gone: (gone.tp, gone.offsets))
    ends = sorted(choice.open_ends.items())
    return PreparedObject(
        **_account(lane, epoch, account),
        dry_run=dry_run,
        gone=tuple(GoneObject(**_range(each.tp, each.offsets), why=each.why) for each in gone),
        open_end=tuple(OpenEndObject(topic=tp.topic, partition=tp.partition, end=end) for tp, end in ends),
        acked_before=choice.acked_before(),
        replaced=dict(choice.replaced()) or None,
        of_epochs={str(epoch): number for epoch, number in choice.of_epochs.items()} or None,
        notes=choice.notes or None,
    )


def backfill_object(backfill: Backfill, promoted_by: str | None = None) -> BackfillObject:
    """Returns a lane as `--list` prints it; `promoted_by` is the id of the backfill that promotes this shadow."""
    turn, genesis = backfill.genesis.turn, backfill.genesis
    return BackfillObject(
        **_account(turn.lane, turn.epoch, backfill.account),
        began_at=genesis.settled_at,
        actor=genesis.actor,
        reason=genesis.reason,
        arguments=backfill.arguments.shown(),
        promotes=backfill.arguments.promotes,
        promoted_by=promoted_by,
    )


def choice_text(name: str, backfill_id: str, choice: Choice, confirm_above: int) -> str:
    """Returns what a new backfill would do, for a person."""
    if not choice.partitions:
        nothing = f"Nothing matches: backfill {backfill_id} of {name} would read no offset."
        return "\n".join([nothing, *_gone(choice), *choice.notes])
    what = f"{counted(choice.offsets, 'offset')} of {counted(len(choice.partitions), 'partition')}"
    lines = [f"Backfill {backfill_id} of {name} would read {what} again:"]
    lines += _ranges({tp: chosen.every for tp, chosen in choice.partitions.items()})
    if choice.of_epochs and (len(choice.of_epochs) > 1 or max(choice.of_epochs)):
        numbers = ", ".join(f"{number:,} by that of epoch {epoch}" for epoch, number in choice.of_epochs.items())
        lines.append(f"Chosen by the newest outcome that each offset has: {numbers}.")
    for tp, end in sorted(choice.open_ends.items()):
        lines.append(f"{tp} has no record at or after --to yet: it is read up to its log end, {end}.")
    lines += [*_gone(choice), *choice.notes]
    if acked := choice.acked_before():
        lines.append(f"{acked:,} of them {'was' if acked == 1 else 'were'} acked by an earlier backfill.")
    for table, number in choice.replaced().items():
        lines.append(f"{counted(number, 'row')} of the output table {table} would be replaced.")
    if choice.replaced():
        lines.append("Rows of records that fail, die or do not match stay as they are.")
    for table, related in choice.related().items():
        named = [f"{tp}@{offset}" for tp, offsets in related.items() for offset in offsets]
        lines.append(
            f"Rows of the output table {table} are of {listed(named)}, too, which {'is' if len(named) == 1 else 'are'} "
            f"not chosen: a turn that acks a part of a row's records stops. Add `--with-related`."
        )
    if choice.offsets > confirm_above:
        lines.append(f"This is more than `backfill.confirm_above` ({confirm_above:,}).")
    return "\n".join(lines)


def _gone(choice: Choice) -> list[str]:
    by_reason: dict[str, list[OffsetRange]] = {}
    for gone in choice.gone:
        by_reason.setdefault(f"{gone.tp}, {gone.why}", []).append(gone.offsets)
    return [
        f"{counted(count(ranges), 'offset')} can't be read any more ({reason}): {_joined(ranges)}."
        for reason, ranges in sorted(by_reason.items())
    ]


def _joined(ranges: list[OffsetRange]) -> str:
    more = f" and {len(ranges) - MOST_RANGES:,} more ranges" if len(ranges) > MOST_RANGES else ""
    return ", ".join(map(str, ranges[:MOST_RANGES])) + more


def _ranges(asked: Mapping[TopicPartition, Iterable[OffsetRange]]) -> list[str]:
    lines = [f"  {tp} {part}" for tp, ranges in sorted(asked.items()) for part in ranges]
    more = [f"  and {len(lines) - MOST_RANGES:,} more ranges"] if len(lines) > MOST_RANGES else []
    return lines[:MOST_RANGES] + more


def account_text(name: str, lane: str, account: Account, now: datetime) -> str:
    """Returns the account of a lane for a person, and when to come back if it is not settled."""
    outcomes = [f"{number:,} {word}" for word, number in sorted(account.outcomes.items())]
    gaps = [counted(account.gaps, "gap")] if account.gaps else []
    words = {UNREAD: "unread", "retry": "waiting for a retry", "dead_letter": "waiting for a dead letter",
             "held_back": "held back"}  # fmt: skip
    pending = [f"{number:,} {words.get(kind, kind)}" for kind, number in account.pending.items() if number]
    what = ", ".join([*outcomes, *gaps, *pending]) or "nothing"
    text = f"Backfill {id_of(lane)} of {name}: {counted(account.offsets, 'offset')} asked = {what}."
    if account.settled:
        return f"{text} It is settled."
    due = account.next_due
    when = f"at {due.isoformat(timespec='seconds')}" if due is not None and due > now else "now"
    return f"{text} Go on {when} with `{run(LaneName(name, lane))} --yes`."


def backfill_pipeline(
    pipeline: Pipeline, lane: str, arguments: BackfillArguments, max_rate: int | None = None
) -> Pipeline:
    """Returns the settings of a backfill lane.

    Each outcome becomes a row, because the account of the lane and `ackline diff` count rows. What retention took is
    recorded: it was shown before the backfill began. Another handler takes the place of the file's `handler` and
    `streams`, and keeps its `decode` and `filter`. Raises ConfigError for a handler or a dead-letter topic that the
    file does not list, because a user who may start a backfill could else have records copied to any topic, for a
    dead-letter topic that the pipeline reads, and for a `--where` that is no expression over its records.
    """
    changes: dict[str, object] = {"record_outcomes": True, "on_expired": "record", "max_offset_behind": None}
    if max_rate is not None:
        changes["max_rate"] = max_rate
    if arguments.handler is not None:
        _check_listed(pipeline, HANDLER.option, arguments.handler, allowed_handlers(pipeline))
        changes |= {"handler": arguments.handler, "streams": None}
    if arguments.dead_letter is not None:
        topic = arguments.dead_letter
        if topic != "none" and pipeline.kafka.subscribes_to_topic(topic):
            raise ConfigError(
                f"--dead-letter {topic}: the pipeline reads this topic, so it would read its dead letters again; name "
                f"another topic",
                key="--dead-letter",
            )
        _check_listed(pipeline, DEAD_LETTER.option, topic, allowed_dead_letters(pipeline))
        changes["dead_letter"] = "none" if topic == "none" else DeadLetterBlock(topic=topic)
    of_lane = pipeline.model_copy(update=changes)
    if arguments.where is not None:
        # Not a part of the plan: the lane stores it once, and each process that carries out a turn reads it from there.
        of_lane = of_lane.with_where(arguments.where)
    return _shadow_of(of_lane, id_of(lane)) if arguments.shadow else of_lane


def _shadow_of(pipeline: Pipeline, backfill_id: str) -> Pipeline:
    """Raises ConfigError if a table of the shadow is an output table of the file."""
    shadow = pipeline.as_shadow(backfill_id)
    real = {output.table for output in pipeline.outputs or ()} - {None}
    for output in shadow.outputs or ():
        if output.table in real:
            raise ConfigError(
                f"{ID.option} {backfill_id}: the rows of this shadow would go to {scrub_address(str(output.table))}, "
                f"which is an output table of {pipeline.name}; give another id",
                key=ID.option,
            )
    return shadow


def _check_listed(pipeline: Pipeline, option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"{option} {value} is not allowed: add it to `backfill{option.replace('--', '.').replace('-', '_')}s` of "
            f"pipeline {pipeline.name}; allowed are {', '.join(allowed)}",
            key=option,
        )


@dataclass(frozen=True, slots=True)
class PreparedBackfill:
    """A lane that has begun the epoch that is wanted, or what a new lane or epoch would read."""

    request: BackfillRequest
    epoch: int
    account: Account
    stored: Backfill | None
    choice: Choice | None
    text: str
    """What it is, or would be, for a person."""
    shadow_tables: tuple[str, ...] | None = None
    """The tables that get the rows of a shadow; None for another lane."""

    def body(self, dry_run: bool) -> PreparedObject:
        """Returns it as an object."""
        body = prepared_object(self.request.lane, self.epoch, self.account, self.choice, dry_run)
        return body.model_copy(update={"shadow_tables": self.shadow_tables})


def lane_arguments(store: LedgerStore, request: BackfillRequest) -> BackfillArguments:
    """Returns the arguments of the lane of `store`, or those of the request for a new one.

    Raises ConfigError where the two differ, for an id alone that no lane has, for arguments that choose nothing, and
    for a shadow that can't be promoted because it is none.
    """
    name, stored = store.pipeline, find_backfill(store)
    asked = request.arguments if request.promotes is None else promoted_arguments(store, request)
    if stored is not None:
        if request.promotes is not None and stored.arguments.promotes is None:
            raise ConfigError(
                f"--promote: backfill {request.id} of {name} exists and promotes nothing, so this shadow can't be "
                f"promoted; begin another shadow under another id. Nothing was stored",
                key="--promote",
            )
        if asked.given:
            check_same(request.id, stored.arguments, asked)
        return stored.arguments
    if request.promotes is not None:
        return asked
    if request.has_id and not request.arguments.given:
        raise ConfigError(
            f"{request.id_label} {request.id}: {name} has no such backfill; `ackline backfill {name} --list` lists "
            f"them. Give ranges, from, outcome or all to begin it",
            key=request.id_label,
        )
    request.arguments.check()
    return request.arguments


def prepare(adapters: Adapters, request: BackfillRequest, arguments: BackfillArguments) -> PreparedBackfill:
    """Returns the lane as it is, or what it would begin with. Stores nothing.

    Raises FatalError for an epoch whose predecessor is not settled, ConfigError for a promotion that was cancelled, or
    of another epoch of its shadow, and MissingRights, with each right that the login lacks to read the choice and to
    send what becomes of it: a lane that has begun could not go on.
    """
    name, stored = adapters.pipeline.name, find_backfill(adapters.store)
    if stored is not None and request.epoch <= stored.newest.turn.epoch:
        check_is_promoted(adapters.store, request, stored)
        check_promotion_goes_on(adapters, stored)
        text = account_text(name, request.lane, stored.account, adapters.now())
        tables = shadow_tables(adapters.pipeline)
        return PreparedBackfill(request, stored.newest.turn.epoch, stored.account, stored, None, text, tables)
    check_epoch_before_is_settled(adapters.store, request.epoch)
    choice = _choice(adapters, arguments)
    check_rights_to_read(adapters, {tp.topic for tp in choice.partitions})
    if stored is None:
        _check_shadow_is_new(adapters)
    text = choice_text(name, request.id, choice, adapters.pipeline.backfill.confirm_above)
    if arguments.where is not None and choice.partitions:
        text += f"\nRecords that match: {arguments.where}. The others are skipped, as Unmatched."
    text = "\n".join([text, *shadow_lines(adapters.pipeline)])
    account, tables = account_of_choice(choice), shadow_tables(adapters.pipeline)
    return PreparedBackfill(request, request.epoch, account, None, choice, text, tables)


def check_promotion_goes_on(adapters: Adapters, backfill: Backfill) -> None:
    """Raises ConfigError if the backfill is a promotion that is not settled, and code or settings have changed since
    its shadow ran: then the rest would not do what the diff has shown."""
    if backfill.arguments.promotes is not None and not backfill.account.settled:
        check_goes_on(adapters, backfill, _of_shadow(adapters, backfill.arguments, backfill.arguments.promotes))


def _of_shadow(adapters: Adapters, arguments: BackfillArguments, shadow_id: str) -> Pipeline:
    """Returns the settings of the shadow that a lane promotes, as they are by the file now. Those of the lane itself
    name the real tables."""
    shadow = replace(arguments, shadow=True, promotes=None)
    return backfill_pipeline(adapters.pipeline, lane_of(shadow_id), shadow)


def _choice(adapters: Adapters, arguments: BackfillArguments) -> Choice:
    if arguments.promotes is None:
        return choose_offsets(adapters, arguments)
    return promoted_choice(adapters, arguments, _of_shadow(adapters, arguments, arguments.promotes))


def shadow_tables(pipeline: Pipeline) -> tuple[str, ...] | None:
    """Returns the tables that get the rows of a shadow; None for another lane."""
    if pipeline.shadow is None:
        return None
    return tuple(scrub_address(output.table) for output in pipeline.outputs or () if output.table)


def shadow_lines(pipeline: Pipeline) -> list[str]:
    """Returns where the rows of a shadow go and what gets nothing, for a person; nothing for another lane."""
    if pipeline.shadow is None:
        return []
    tables = [output.table for output in pipeline.outputs or () if output.table]
    beside = [f"{scrub_address(each)} beside {scrub_address(real_table(each, pipeline.shadow))}" for each in tables]
    rows = f"rows go to {', '.join(beside)}" if tables else "the pipeline has no output table"
    nothing = ["dead letters", *(f"topic {output.topic}" for output in pipeline.outputs or () if output.topic)]
    return [f"It is a shadow: {rows}; nothing is sent to {', '.join(nothing)}."]


def _check_shadow_is_new(adapters: Adapters) -> None:
    """Raises ConfigError if a table of a shadow that has not begun exists: its rows are not of this shadow."""
    shadow = adapters.pipeline.shadow
    for output in (adapters.pipeline.outputs or ()) if shadow is not None else ():
        if output.table is not None and table_of(adapters.store, output.table).state() is not None:
            raise ConfigError(
                f"{ID.option} {shadow}: the table {scrub_address(output.table)} exists, and this shadow has not begun; "
                f"give another id, or remove that table. Nothing was stored",
                key=ID.option,
            )


def begin_prepared(adapters: Adapters, prepared: PreparedBackfill, arguments: BackfillArguments) -> None:
    """Stores the genesis of what was prepared. Raises ConfigError if another process has begun the same id meanwhile
    with other arguments: its choice stands."""
    assert prepared.choice is not None
    request = prepared.request
    words = [f"promotes {lane_of(arguments.promotes)}"] if arguments.promotes is not None else []
    reason = ": ".join([*words, *filter(None, [request.reason])])
    genesis = begin(adapters, arguments, prepared.choice, reason, request.epoch)
    check_same(request.id, BackfillArguments.decode(genesis.arguments), arguments)
