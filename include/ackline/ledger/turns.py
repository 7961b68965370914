"""Turns as values: the plan that begins a turn and the settlement that ends it. Pure.

The plan step stores a `Plan` in the table `plans`, one row a topic-partition. The settle step stores a `Settlement` in
the table `settlements`, one row a topic-partition; the newest settlement is the state of the lane. `ackline.tables`
writes and reads the rows.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self

from ackline.errors import FatalError
from ackline.ledger.commit_rule import Committed
from ackline.ledger.copies import Rescued
from ackline.ledger.fold import PartitionState
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, ValuedRanges
from ackline.ledger.pending import RetryRuns
from ackline.stored import Stored, decode, encode


class TurnId(NamedTuple):
    """The identity of a turn. Run ids, DAG runs and users are attributes of a turn, and never identify it."""

    pipeline: str
    lane: str
    epoch: int
    n: int

    def __str__(self) -> str:
        return f"turn {self.n} (lane {self.lane}, epoch {self.epoch}) of {self.pipeline}"


class PauseAct(NamedTuple):
    """When, by whom and why partitions were paused."""

    at: datetime
    actor: str
    reason: str

    def __str__(self) -> str:
        text = f"since {self.at:%Y-%m-%d %H:%M} UTC by {self.actor or 'unknown'}"
        return f"{text}: {self.reason}" if self.reason else text


IDENTITY_BITS = 24
_TURN_BITS, MOST_EPOCHS = 27, 1 << 12


def number_of(turn: TurnId, identity: int) -> int:
    """Returns the version of a transaction id that names a turn and, in its low IDENTITY_BITS bits, an execution of the
    turn or what the turn publishes. The versions of later turns are higher, over all epochs of a lane. Raises as
    `check_numbered` does."""
    check_numbered(turn)
    return ((turn.epoch << _TURN_BITS) | turn.n) << IDENTITY_BITS | identity


def turn_in(number: int) -> tuple[int, int]:
    """Returns the epoch and the n of the turn that `number_of` has made a number of."""
    return divmod(number >> IDENTITY_BITS, 1 << _TURN_BITS)


def check_numbered(turn: TurnId, opens_epoch: bool = False) -> None:
    """Raises FatalError if no number is left for a turn, or for the epoch that it opens: a version has 63 bits."""
    if turn.epoch + opens_epoch >= MOST_EPOCHS:
        what = f"a lane has at most {MOST_EPOCHS:,} epochs"
    elif turn.n >= 1 << _TURN_BITS and not opens_epoch:
        what = f"an epoch has at most {(1 << _TURN_BITS) - 1:,} turns"
    else:
        return
    raise FatalError(f"{turn} can't be taken: {what}")


LIVE = "live"
"""The name of the lane that commits the group's offsets."""
BACKFILL = "backfill-"
"""How the name of a backfill lane begins. Such a lane reads what its genesis has stored, and commits nothing."""


def is_backfill(lane: str) -> bool:
    """Returns whether a lane is a backfill lane."""
    return lane.startswith(BACKFILL)


class Traits(NamedTuple):
    """What a kind of turn is like: a row of the table in `TurnKind`."""

    replays: bool = False
    """Whether replay hands its records out before settle. Settle alone carries out a turn of any other kind."""
    may_be_void: bool = False
    """Whether it may be closed as void. A turn of any other kind is always settled."""
    is_action: bool = False
    """Whether an operator asks for it. Runs take a skip or a reset without an operator, too."""
    moves_floor: bool = False
    """Whether it settles records as `skipped`, and so may move a floor."""
    opens_epoch: bool = False
    """Whether a new epoch of the lane begins after it, with nothing pending, in the logs as they are then."""
    pauses: bool | None = None
    """Whether its partitions are paused after it; None if they stay as they are."""


class TurnKind(StrEnum):
    """What a turn does, and its traits. A settlement has the kind of its plan, or `void`."""

    RUN = "run", Traits(replays=True, may_be_void=True)
    """Reads records and calls the handler."""
    GENESIS = "genesis", Traits()
    """Lets partitions join the lane, each at a start that is decided once."""
    SKIP = "skip", Traits(may_be_void=True, is_action=True, moves_floor=True)
    """Settles everything below a given offset as `skipped`, pending offsets included; or given pending offsets."""
    RETRY = "retry", Traits(is_action=True)
    """Makes given pending retries due now. It counts as no attempt."""
    RESET = "reset", Traits(is_action=True, moves_floor=True, opens_epoch=True)
    """Begins a new epoch of the lane at given offsets, with nothing pending."""
    PAUSE = "pause", Traits(is_action=True, pauses=True)
    """Stops reading the given partitions; their floors are still committed."""
    RESUME = "resume", Traits(is_action=True, pauses=False)
    """Reads paused partitions again."""
    VOID = "void", Traits()
    """Closes a plan that can't be carried out: no state changes, and no row of the turn counts."""

    def __new__(cls, word: str, _: Traits) -> Self:
        kind = str.__new__(cls, word)
        kind._value_ = word
        return kind

    def __init__(self, _: str, traits: Traits) -> None:
        self.replays, self.may_be_void, self.is_action, self.moves_floor, self.opens_epoch, self.pauses = traits


@dataclass(frozen=True, slots=True)
class AckPosition(Stored):
    """How far a lane has read its ack topic. Offsets of another topic of the same name mean nothing."""

    topic: str
    topic_id: str
    next: Mapping[int, int] = field(default_factory=dict)
    """By partition, the first offset that is not read yet. A partition that is missing here is read from its start."""
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    """By partition, the leader epoch under which everything below `next` was read; not where the broker gives none, and
    not in a position of an earlier version."""

    def as_json(self) -> dict[str, Any]:
        """Returns the position for the settings of a plan."""
        return decode(self.encode(), dict[str, Any])


@dataclass(frozen=True, slots=True)
class AnswerReport:
    """What settle has made of the answers of a turn, and where the next turn reads on."""

    position: AckPosition = AckPosition("", "")
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many answers were applied or ignored, by `ackline.ledger.answers`' words; zeros are left out."""
    warnings: tuple[str, ...] = ()
    """Answers that the ack topic has lost or hides, in words."""

    def after_turn_without_answers(self) -> "AnswerReport":
        """Returns the report of a next turn that reads no answers."""
        return AnswerReport(self.position)

    def encode(self) -> str:
        """Returns the report as the text that the tables hold: its fields beside those of the position."""
        return encode({**asdict(self.position), "counts": self.counts, "warnings": self.warnings})

    @classmethod
    def decode(cls, text: str | None) -> "AnswerReport | None":
        """Returns the report in a text of the tables; None without a text. Raises DamagedError for any other text."""
        return None if text is None else replace(decode(text, cls), position=AckPosition.decode(text))


ACK_POSITION = "ack_position"
"""The key of a plan's settings that holds its `ack_position`."""

VOIDED_BY_OPERATOR = "voided by an operator"
"""The evidence of a void settlement that an operator has requested. A run whose turn it closes plans no other turn."""

LOST_BY_OPERATOR = "recorded as lost by an operator"
"""The evidence of a settlement whose claimed turn an operator has recorded as lost. A run whose turn it closes plans no
other turn."""


_LET_GO = "gone/"
"""What the topic id of a partition begins with that an operator has let go. No id of Kafka has a slash."""


def let_go_id(topic_id: str) -> str:
    """Returns what stands in place of the topic id of a partition that an operator lets go. It equals no topic's id, so
    nothing is read or committed for the partition, until it is there again and begins as a new one."""
    return f"{_LET_GO}{topic_id.removeprefix(_LET_GO)}"


@dataclass(frozen=True, slots=True)
class SettledPartition:
    """One topic-partition after a turn: a row of `settlements`."""

    topic_id: str
    """The id of the topic that the offsets are of; `let_go_id` of it, once an operator has let the partition go."""
    old_floor: int
    """The floor before the turn."""
    state: PartitionState
    """The state after the turn."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many offsets got each outcome in the turn; see `ackline.ledger.metrics.CountsByOutcome`."""
    gaps: int | None = 0
    """How many offsets of the fresh range held no record; None if that is not known."""
    acknowledged_foreign_offset: int | None = None
    """The foreign committed offset that a genesis or an operator action has taken notice of, so that the floor may
    be committed over it; None if there is none. See `ackline.ledger.commit_rule`."""
    committed: Committed | None = None
    """What Kafka held for the group just before the settlement was stored."""
    evidence: str = ""
    """What the settlement rests on, in words."""
    paused: bool = False
    """Whether an operator has paused the partition."""
    metrics: Mapping[str, float] | None = None
    """What `ackline.ledger.metrics.partition_metrics` computed; None in rows of a version that stored none."""
    totals: Mapping[str, int] | None = None
    """What `ackline.ledger.metrics.totals_after` computed; None in rows of a version that stored none."""
    leader_epoch: int | None = None
    """The epoch of the leader whose log has all that is settled or pending below `complete_to`; None if not known."""
    ranges: tuple[OffsetRange, ...] | None = None
    """In the genesis of a backfill lane: the ranges that the lane reads whole. Offsets that were chosen by their
    outcome are pending there instead. None in every other settlement."""

    @property
    def let_go(self) -> bool:
        """Whether an operator has let the partition go, because its topic does not have it any more."""
        return self.topic_id.startswith(_LET_GO)

    @property
    def known_topic_id(self) -> str:
        """The id of the topic that the offsets are of, also of a partition that was let go."""
        return self.topic_id.removeprefix(_LET_GO)

    @property
    def rescued(self) -> Rescued:
        """The copies of the pending records."""
        return Rescued(self.known_topic_id, self.state.copies)

    @property
    def unsettled(self) -> int:
        """How many offsets between the floor and the log end, as the plan saw it, hold the lane back."""
        return int((self.metrics or {}).get("lag", self.state.complete_to - self.state.floor))


def worst_partitions(badness: Mapping[TopicPartition, int], limit: int) -> list[TopicPartition]:
    """Returns the partitions with the highest numbers, at most `limit` of them, sorted by topic and number."""
    return sorted(sorted(badness, key=lambda tp: (-badness[tp], tp))[:limit])


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Settlement:
    """The end of a turn: the state of every partition of the lane after it."""

    turn: TurnId
    kind: TurnKind
    run_id: str
    """The run that settled the turn."""
    settled_at: datetime
    partitions: Mapping[TopicPartition, SettledPartition]
    actor: str = ""
    """Who started that run: `airflow`, or the user of the command."""
    reason: str = ""
    """The plan's reason; of a turn that is void, or that an operator has recorded as lost, why it was closed."""
    arguments: str = ""
    """In the genesis of a backfill lane: the arguments as they were written, as JSON. Otherwise empty."""
    answers: AnswerReport | None = None
    """What became of the answers from outside, and how far they are read; None if no turn has had an ack topic."""
    outputs: str = ""
    """The `ackline.ledger.published.OutputsOfTurn` that the turn publishes, encoded; empty if it has no rows for
    tables, and none wait for records in flight."""
    steps: StepFigures | None = None
    """What the steps did in the turn; None with neither `steps` nor `outputs`, or if the Delta log has expired the
    report of the tasks."""
    code: str = ""
    """The code that replayed the turn; that of its plan if no task has reported any. Empty if it is not known, and in
    an action."""

    @property
    def closed_by_operator(self) -> bool:
        """Whether an operator has closed the turn with `ackline void`: as void, or as lost."""
        # Only of these kinds: the evidence of an operator action is the operator's own text.
        mark = {TurnKind.VOID: VOIDED_BY_OPERATOR, TurnKind.RUN: LOST_BY_OPERATOR}.get(self.kind)
        return mark is not None and any(settled.evidence == mark for settled in self.partitions.values())


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """What a turn is to do with one topic-partition: a row of `plans`."""

    topic_id: str
    """The id of the topic that the offsets are of."""
    fresh: OffsetRange
    """The offsets to read for the first time. Empty in a genesis, at the start of the partition, and in an operator
    action, at the offset that it moves the partition to."""
    retries: ValuedRanges[int]
    """The due retries; the value is the number of the attempt to be made. In an operator action, the pending offsets
    that it has chosen, each with its next attempt; empty if the action moves the partition."""
    floor: int
    """The floor that the turn starts from."""
    complete_to: int
    """The `complete_to` that the turn starts from."""
    log: LogBounds
    """The readable log when the turn was planned; empty, at `complete_to`, if nothing was reported of it."""
    why: str | None = None
    """Why a run reads nothing here; in a genesis, why the partition starts where it does. Otherwise None."""
    committed: Committed | None = None
    """What Kafka held for the group when the turn was planned."""
    acknowledged_foreign_offset: int | None = None
    """As in `SettledPartition`; None once the plan found that the committed offset was this ledger's own."""

    @property
    def empty(self) -> bool:
        """Whether the turn reads nothing of this partition."""
        return not self.fresh and not self.retries


@dataclass(frozen=True, slots=True)
class Plan:
    """The beginning of a turn. Once it is stored, every run carries out this plan and no other until it is settled."""

    turn: TurnId
    kind: TurnKind
    run_id: str
    """The run that stored the plan; another run may settle it."""
    planned_at: datetime
    partitions: Mapping[TopicPartition, PlannedPartition]
    isolation: str
    """Kafka's `isolation.level` of the turn."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the pipeline that the turn keeps to, whatever the file becomes meanwhile."""
    actor: str = ""
    """Who started the run: `airflow`, or the user of the command."""
    reason: str = ""
    """Why the turn was taken, such as the reason an operator gave; empty in a run of the live lane."""
    code: str = ""
    """The code of the process that stored the plan of a run, such as a git commit; see `ackline.lane.code`. Another
    process may replay the plan by other code, so the settlement has a `code` of its own. Empty if it is not known."""

    @property
    def ack_position(self) -> AckPosition | None:
        """From where the turn reads its answers from outside; None if it has no ack topic."""
        stored = self.settings.get(ACK_POSITION)
        return None if stored is None else AckPosition.decode(encode(stored))

    @property
    def singles(self) -> dict[TopicPartition, int]:
        """The partitions in which the turn makes first attempts at single offsets, as a backfill by outcome does and a
        turn with what was held back, each with the end of these offsets."""
        return {
            tp: planned.fresh.start
            for tp, planned in self.partitions.items()
            if bool((RetryRuns.of(planned.retries).attempts == 1).any())
        }

    @property
    def empty(self) -> bool:
        """Whether the turn reads nothing at all; then replay starts no Spark."""
        return not self.kind.replays or all(planned.empty for planned in self.partitions.values())


class MarkerKind(StrEnum):
    """What a marker of an open at-most-once turn means."""

    START = "start"
    """The process that stored it is the only one that hands the plan's records out."""
    WAIVER = "waiver"
    """The turn is never claimed: it is void, and its records are planned again."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A mark on an open turn: a row of `plans` without a topic, which is no part of the plan."""

    kind: MarkerKind
    run_id: str
    """The run that stored it."""
    at: datetime
    actor: str = ""
    reason: str = ""
    """Of a waiver, why the turn is void."""
    by_operator: bool = False
    """Whether an operator has waived the turn."""
    pause: bool = False
    """Whether the void settlement pauses the partitions of the plan."""


@dataclass(frozen=True, slots=True)
class OperatorLoss:
    """What is stored with the lost ranges of a claimed turn, if an operator has recorded them."""

    reason: str
    pause: bool
    """Whether the settlement pauses the partitions of the plan."""
