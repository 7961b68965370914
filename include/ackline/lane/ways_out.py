"""What a lane stands still for, and each command that ends it. No other module spells these commands.

An error has the command between backquotes, in a sentence that says when to use it; status, explain, doctor and the
page show it (`command_of`). tests/project/test_command_lines.py parses each `Way` as the command `ackline` does.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Union

from ackline.errors import AcklineError, FatalError, RangeGone, TopicChanged, command_of
from ackline.forms.arguments import id_of
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE, MOST_EPOCHS, TurnId
from ackline.scrub import scrub_address

if TYPE_CHECKING:
    from ackline.tables.store import LedgerStore


class LaneName(NamedTuple):
    """A lane by its name alone."""

    pipeline: str
    lane: str


Lane = Union[TurnId, LaneName, "LedgerStore"]
"""What names a lane."""


class Way(StrEnum):
    """The commands. `…` stands for the operator's reason."""

    RUN = "run {name}"
    TABLE_GONE = "run {name} --table-gone {table}"
    GO_ON = "backfill {name} --id {id}"
    VOID = "void {name}{lane} --reason …"
    GIVE_UP = "void {name}{lane} --give-up {table} --reason …"
    RESET = "reset {name}{where} --to {to} --reason …"
    SKIP = "skip {name}{where} --to {to} --reason …"
    SKIP_PENDING = "skip {name}{where} --offsets {to} --reason …"
    LET_GO = "skip {name}{where} --gone --reason …"
    RESUME = "resume {name}"
    ADOPT_LEDGER = "adopt-ledger {name} --reason …"
    CANCEL = "backfill {name} --cancel {id}"

    def of(self, lane: Lane, *where: str | int, to: str | int = "floor", table: str = "") -> str:
        """Returns the command for a lane. `where` is a topic, or topic and partition; without it, it is about all."""
        return f"ackline {self}".format(
            name=lane.pipeline,
            lane="" if lane.lane == LIVE else f" --lane {lane.lane}",
            id=id_of(lane.lane),
            where="".join(map(" {} {}".format, ("--topic", "--partition"), where)),
            to=to,
            table=scrub_address(table),
        )


def run(lane: Lane) -> str:
    """Returns the command that takes turns of a lane."""
    return (Way.RUN if lane.lane == LIVE else Way.GO_ON).of(lane)


_PAUSED = "Paused"


@dataclass(frozen=True, slots=True)
class StandsStill:
    """What a lane stands still for. `reason` is the class of the error with which a run stops, or a state of the lane;
    `sentence` says what happened and what to do; `command` is the command that ends it. A `partial` one keeps a part of
    the lane back, and the rest goes on. The fields are keys of JSON."""

    reason: str
    sentence: str
    command: str | None
    partial: bool = False

    @classmethod
    def of(cls, error: AcklineError, pipeline: str) -> "StandsStill":
        """Returns that each run of the lane stops with this error."""
        return cls(error.kind, str(error), command_of(error, pipeline))

    @property
    def stops_runs(self) -> bool:
        """Whether each run stops, so that nothing of the lane is handled. A run of a paused lane ends well."""
        return not self.partial and not self.is_pause

    @property
    def is_pause(self) -> bool:
        """Whether an operator has paused it."""
        return self.reason == _PAUSED

    @property
    def line(self) -> str:
        """The line that a person reads first."""
        what = "A part of the lane" if self.partial else "The lane"
        return f"{what} stands still ({self.reason}): {self.sentence.rstrip('.')}."


def unpublished_rows(turn: TurnId, tables: Iterable[str]) -> StandsStill:
    """Returns that a settled turn has rows for output tables that are not in them, and that the next run publishes."""
    sentence = f"{turn} is settled, and its rows are not yet in {', '.join(tables)}; the group is not committed before"
    return StandsStill("Unpublished", f"{sentence}. Publish them with `{run(turn)}`", run(turn))


def paused_partitions(lane: Lane, since: str = "", some: str | None = None) -> StandsStill:
    """Returns that partitions are paused, `since` a time, by an operator and for a reason: all of the lane, or `some`,
    which is the sentence then."""
    command = Way.RESUME.of(lane)
    sentence = f"{some or f'all its partitions are paused{since}, so a run reads nothing'}. Once that is over, go on"
    return StandsStill(_PAUSED, f"{sentence} with `{command}`", command, partial=some is not None)


def void_advice(turn: TurnId) -> str:
    """Returns the sentence that names the way out of an open turn."""
    return f"If the turn can't be carried out, close it with `{Way.VOID.of(turn)}`"


@contextmanager
def advises_void(
    turn: TurnId, errors: type[AcklineError] | tuple[type[AcklineError], ...] = FatalError
) -> Iterator[None]:
    """Adds `void_advice` to an error of these classes, because the same turn would meet it again.

    Adds nothing to RangeGone and TopicChanged, for which the step closes the turn itself.
    """
    try:
        yield
    except (RangeGone, TopicChanged):
        raise
    except errors as error:
        if Way.VOID.of(turn) not in str(error):
            error.add_advice(void_advice(turn))
        raise


@contextmanager
def fails_as_fatal(turn: TurnId, table: str) -> Iterator[None]:
    """Raises FatalError in place of an error that Ackline has no class for, so that its way out is named, too. It names
    the class alone: the text may hold a part of a row."""
    try:
        yield
    except AcklineError:
        raise
    except Exception as error:
        raise FatalError(f"{turn}: the output table {scrub_address(table)}: {type(error).__name__}") from error


def give_up_advice(turn: TurnId, table: str) -> str:
    """Returns how an operator gives up the rows that a settled turn has for an output table, as part of a sentence."""
    return f"give these rows up with `{Way.GIVE_UP.of(turn, table=table)}`"


def start_over(lane: Lane) -> str:
    """Returns the way out that leaves nothing of a lane pending, as part of a sentence."""
    if lane.lane != LIVE:
        return f"end the backfill with `{Way.CANCEL.of(lane)}`"
    return f"begin a new epoch with `{Way.RESET.of(lane)}`"


def kept_rows_advice(lane: Lane) -> str:
    """Returns what to do about a lane whose rows of records in flight are lost, as the end of a sentence."""
    if lane.lane != LIVE:
        return f"{start_over(lane)}, and choose its offsets again in another one"
    return f"read the records in flight again with `{Way.RESET.of(lane)}`"


def related_advice(turn: TurnId, all_in_turn: bool) -> str:
    """Returns the sentences that name the ways out of an open turn that acks some records of an output row and not the
    others. `all_in_turn` is whether it has read these others."""
    again = f"close the turn with `{Way.VOID.of(turn)}`, and the next run handles all of it again"
    others = f"close the turn with `{Way.VOID.of(turn)}`; then "
    if turn.lane != LIVE:
        others += f"{start_over(turn)}, and choose all these records in another one, with `--with-related`"
    else:
        reset = Way.RESET.of(turn, to="OFFSET")
        others += f"begin a new epoch at the lowest of these records with `{reset}`, and with a `max_records_per_run` "
        others += "that lets one turn read all of them"
    kept = "To keep older rows beside the new ones, write `rows: all` for the output"
    first = f"Once the others can be acked, {again}. If not, " if all_in_turn else ""
    return f"{first}{others if first else others[0].upper() + others[1:]}. {kept}"


@contextmanager
def advises_numbers(turn: TurnId, opens_epoch: bool) -> Iterator[None]:
    """Adds to the error of `ledger.turns.check_numbered` how a lane goes on that has no number left for a turn, or for
    the epoch that it opens."""
    try:
        yield
    except FatalError as error:
        way = f"Begin a new epoch with `{Way.RESET.of(turn)}`"
        if opens_epoch or turn.epoch >= MOST_EPOCHS:
            way = f"Point ACKLINE_AUDIT at an empty folder, and take over with `{Way.ADOPT_LEDGER.of(turn)}`"
        error.add_advice("Choose the offsets in another backfill" if turn.lane != LIVE else way)
        raise


def older_copy_advice(lane: Lane) -> str:
    """Returns how a lane goes on with an older copy of an output table or of the ledger, as the end of a sentence."""
    if lane.lane != LIVE:
        return f"{start_over(lane)}, and choose its offsets in another one"
    return f"`{Way.RESET.of(lane, to='OFFSET')}` (`--to floor` goes on where the ledger is)"


def table_gone_advice(lane: Lane, table: str, of_live: bool, first: str = "") -> str:
    """Returns the sentence that names the way out of a lane whose output table does not exist any more. `of_live` is
    whether the live lane has published there; `first` is what has to be done before, as part of a sentence."""
    way = f"make it anew with `{Way.TABLE_GONE.of(lane, table=table)}`"
    if not of_live:
        way = f"{start_over(lane)}, and choose its offsets in another one"
    return f"If it is gone for good, {f'first {first}; then ' if first else ''}{way}"


def reset_advice(lane: Lane, tp: TopicPartition, to: str | int) -> str:
    """Returns the sentence that names the reset by which a lane goes on in a log that was cut."""
    command = Way.RESET.of(lane, *tp, to=to)
    what = "a new epoch, in which everything from there on is handled, again or for the first time"
    return f"Go on with `{command}`: {what}"


def lost_copies_advice(lane: Lane, tp: TopicPartition, first: int, end: int) -> str:
    """Returns the sentence that names the way out of a lane whose rescued records are gone, and their copies too."""
    way = Way.CANCEL.of(lane) if lane.lane != LIVE else Way.SKIP_PENDING.of(lane, *tp, to=f"{first}:{end}")
    what = "ends the backfill" if lane.lane != LIVE else "records them as skipped"
    return f"Bring the rescue topic back, or go on with `{way}`, which {what}"


def ledger_advice(store: "LedgerStore") -> str:
    """Returns the sentences that name the audit folder and the ways out of a commit by another ledger."""
    return (
        f"ACKLINE_AUDIT is {scrub_address(store.root)}: set it to the folder of that ledger, or restore that folder "
        f"from a backup if it is an older copy. If that ledger is lost, or was a wrong one, go on with "
        f"`{Way.ADOPT_LEDGER.of(store)}`"
    )
