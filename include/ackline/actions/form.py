"""The form of an operator's action: which actions there are, which fields each takes, and what was entered.

`ackline retry | skip | reset | pause | resume | void | adopt-ledger` and the DAG `operate__NAME` are made of this
table. Airflow parses the DAG's file every few seconds, so this module loads neither the tables nor a Kafka client.
"""

from dataclasses import dataclass
from datetime import datetime

from ackline.errors import ConfigError
from ackline.forms.arguments import Destination, PartitionChoice, parse_destination, parse_distance, parse_offsets
from ackline.forms.form import ERROR_CLASS, PARTITIONS, TOPICS, Entered, Field, FieldType
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.turns import LIVE, TurnKind

TO = Field(
    name="to", option="--to", title="To",
    help="An offset, `earliest`, `latest`, `committed`, `floor`, or a time: 2026-01-31T12:00:00Z, `2h ago`.",
)  # fmt: skip
BY = Field(
    name="by", option="--by", title="By", help="So many offsets from the floor, e.g. -100 or +5.",
    pattern="^[+-][0-9]{1,18}$",
)  # fmt: skip
ALL_PARTITIONS = Field(
    name="all_partitions", option="--all-partitions", type=FieldType.FLAG, title="All partitions",
    help="Move several partitions to the same offset.",
)  # fmt: skip
OFFSETS = Field(
    name="offsets", option="--offsets", title="Offsets", help="Only offsets A:B or A-B, without B, or a single A.",
    pattern="^[0-9]{0,19}[:-]?[0-9]{0,19}$",
)  # fmt: skip
GONE = Field(
    name="gone", option="--gone", type=FieldType.FLAG, title="Gone",
    help="Let go of the partitions of --topic that do not exist any more.",
)  # fmt: skip
PAUSE = Field(
    name="pause", option="--pause", type=FieldType.FLAG, title="Pause",
    help="Also pause the partitions that the turn reads.",
)  # fmt: skip
GIVE_UP = Field(
    name="give_up", option="--give-up", type=FieldType.TEXTS, title="Give up", in_dag=False,
    help="Give up the rows that the newest settled turn has for this output table",
)  # fmt: skip
LANE = Field(
    name="lane", option="--lane", title="Lane", help="The lane: live, or that of a backfill.", default=LIVE,
    in_dag=False,
)  # fmt: skip
REASON = Field(name="reason", option="--reason", title="Reason", help="Why, for readers of the audit table.")
CONFIRM = Field(
    name="confirm", option="--yes", type=FieldType.FLAG, title="Confirm", in_command=False,
    help="Do it. Without it the run changes nothing, and its log shows what would change.",
)  # fmt: skip
FIELDS = (REASON, TOPICS, PARTITIONS, TO, BY, ALL_PARTITIONS, OFFSETS, ERROR_CLASS, GONE, PAUSE, GIVE_UP, LANE, CONFIRM)
"""All fields, in the order of the DAG's form."""


@dataclass(frozen=True, slots=True)
class Action:
    """An operator's action: its fields in the order of the command's options, and its help."""

    name: str
    fields: tuple[Field, ...]
    summary: str
    """What it does, in a few words."""
    help: str
    needs_reason: bool = False

    @property
    def kind(self) -> TurnKind | None:
        """The kind of its turn; None for `void` and `adopt-ledger`, which choose no partitions."""
        return next((kind for kind in TurnKind if kind.is_action and kind == self.name), None)


ACTIONS = {
    action.name: action
    for action in (
        Action(
            "retry",
            (TOPICS, PARTITIONS, OFFSETS, ERROR_CLASS, LANE, REASON),
            "pending retries are due now",
            """Make pending retries due now: the next run handles them. It counts as no attempt.

            Example: `ackline retry orders --error-class ConnectionError --yes`
            """,
        ),
        Action(
            "skip",
            (REASON, TO, OFFSETS, ERROR_CLASS, TOPICS, PARTITIONS, ALL_PARTITIONS, GONE),
            "settle without handling",
            """Settle records without handling them: `skipped`. All below an offset, or single pending ones.

            `--to` settles everything below it, pending records too. `--offsets` and `--error-class` settle only pending
            records that they select. `--gone` lets go of partitions that do not exist any more, because their topic was
            deleted or has fewer now: what was pending there, and what the lane had seen and not read, is skipped.

            Examples: `ackline skip orders --partition 3 --to 1042 --reason "poison batch"`,
            `ackline skip orders --offsets 1041 --reason "poison record" --yes`,
            `ackline skip orders --topic orders-fr --gone --reason "the shop is closed"`
            """,
            needs_reason=True,
        ),
        Action(
            "reset",
            (REASON, TO, BY, TOPICS, PARTITIONS, ALL_PARTITIONS),
            "begin a new epoch",
            """Begin a new epoch at an offset: everything from there on is handled again, and nothing is pending.

            What the new epoch does not read is recorded as `skipped`. Partitions that are not chosen begin at their
            floor.

            Examples: `ackline reset orders --to earliest --reason "handler was wrong"`,
            `ackline reset orders --to "2h ago" --reason "replay the outage" --yes`
            """,
            needs_reason=True,
        ),
        Action(
            "pause",
            (TOPICS, PARTITIONS, REASON),
            "stop reading",
            """Read nothing from these partitions until they are resumed. Pending records stay pending.

            `--all`, `--tag` and `--handler` choose several pipelines instead of one. One that fails is named, and the
            others go on; the command ends with 1 then.

            Examples: `ackline pause orders --topic orders --partition 3 --reason "schema change" --yes`,
            `ackline pause --handler handlers.shop --reason "bad deploy" --yes`
            """,
        ),
        Action(
            "resume",
            (TOPICS, PARTITIONS, REASON),
            "resume reading",
            """Resume reading paused partitions.

            `--all`, `--tag` and `--handler` choose several pipelines instead of one.

            Examples: `ackline resume orders --yes`, `ackline resume --tag shop --yes`
            """,
        ),
        Action(
            "void",
            (REASON, LANE, PAUSE, GIVE_UP),
            "close an open turn that no run can carry out",
            """Close the open turn, if it can't be carried out. Nothing of it counts, and its offsets are planned again.

            Use it for a turn that stops every run: a batch that does not decode, a handler that kills the driver, a
            partition that lost its leader, files of outcomes that are lost. At most once, a turn that is handed out
            already is recorded as lost instead. Without `--yes` it asks at a terminal, and changes nothing elsewhere.

            With `--give-up TABLE` it closes no turn. It tries once more to publish the newest settled turn, and gives
            up the rows for that table if that fails: the staged rows are lost, or the table can never be used again.

            Examples: `ackline void orders --reason "batch at offset 1041 does not decode" --pause --yes`,
            `ackline void orders --give-up order_totals --reason "the bucket was deleted"`
            """,
            needs_reason=True,
        ),
        Action(
            "adopt-ledger",
            (REASON,),
            "go on although another ledger has committed the group",
            """Go on with the ledger in ACKLINE_AUDIT, although another ledger of the pipeline has committed the group.

            If ACKLINE_AUDIT holds no ledger, a new one begins at the group's commits, whatever `start` is. If it holds
            one, that one goes on from its own floors with what is pending there; at most once it skips to the commits.

            Example: `ackline adopt-ledger orders --reason "the audit folder is lost" --yes`
            """,
            needs_reason=True,
        ),
    )
}
"""The actions by name."""


ALL = PartitionChoice()
"""Every partition of the lane."""


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """An action that chooses partitions or pending records, as an operator requests it.

    A reset has `to` or `by`: a destination, or a distance from the floor. A skip has `to`, or it is about the pending
    records that `offsets` and `error_class` select, as a retry is, or about partitions that are `gone`.
    `all_partitions` confirms that a single offset is meant for several partitions.
    """

    kind: TurnKind
    partitions: PartitionChoice = ALL
    to: Destination | None = None
    by: int | None = None
    all_partitions: bool = False
    offsets: OffsetRange | None = None
    error_class: str | None = None
    gone: bool = False

    @property
    def is_about_pending(self) -> bool:
        """Whether the action is about single pending records, and moves no partition."""
        by_pending = self.kind is TurnKind.SKIP and (self.offsets is not None or self.error_class is not None)
        return self.kind is TurnKind.RETRY or by_pending


def check_request(request: ActionRequest) -> None:
    """Raises ConfigError for a request that has none or too many of the options that its kind needs."""
    pending = request.offsets is not None or request.error_class is not None
    if request.kind is TurnKind.RESET and (request.to is None) == (request.by is None):
        raise ConfigError("a reset needs either --to or --by", key="--to")
    if request.gone and (request.to is not None or pending or request.all_partitions):
        raise ConfigError("--gone takes no other choice than --topic and --partition", key="--gone")
    if request.gone and not request.partitions.topics:
        raise ConfigError("--gone needs --topic: name the topic that is to be let go", key="--topic")
    if request.kind is TurnKind.SKIP and not request.gone and (request.to is None) == (not pending):
        raise ConfigError(
            "a skip needs either --to, or --offsets or --error-class for single pending records, or --gone", key="--to"
        )


def check_entered(action: Action, entered: Entered, dry_run: bool = False) -> None:
    """Raises ConfigError for a field that the action does not take, for `--pause` where no turn is closed or none is
    resumed, and for a reason that is missing: a dry run, which stores none, needs none."""
    for field in FIELDS:
        value = entered.value(field)
        if value and value != field.empty and field not in (*action.fields, CONFIRM):
            raise entered.wrong(field, f"{action.name} takes no such value; leave it empty")
    if action.needs_reason and not dry_run and not (entered.value(REASON) or "").strip():
        raise entered.wrong(REASON, f"{action.name} needs one: write why, for readers of the audit table")
    if entered.value(PAUSE) and entered.value(GIVE_UP):
        raise entered.wrong(PAUSE, "it can't be combined with --give-up, which closes no turn; leave out --pause")
    if entered.value(PAUSE) and (entered.value(LANE) or LIVE) != LIVE:
        cancel = "`ackline backfill NAME --cancel ID` ends a backfill that is not to go on"
        raise entered.wrong(PAUSE, f"no command resumes a partition of a backfill; leave it out. {cancel}")


def request_of(kind: TurnKind, entered: Entered, now: datetime) -> ActionRequest:
    """Returns what was entered as a request. Raises ConfigError for a value that can't be read, and for a request that
    has none or too many of the options that its kind needs."""
    try:
        topics, partitions = entered.value(TOPICS), entered.value(PARTITIONS)
        chosen = PartitionChoice(tuple(dict.fromkeys(topics or ())), tuple(dict.fromkeys(partitions or ())))
    except ValueError as error:
        raise entered.wrong(TOPICS, str(error)) from None
    request = ActionRequest(
        kind,
        chosen,
        entered.parsed(TO, lambda text: parse_destination(text, now)),
        entered.parsed(BY, parse_distance),
        entered.value(ALL_PARTITIONS),
        entered.parsed(OFFSETS, _offsets),
        entered.value(ERROR_CLASS),  # empty: records without a class, and not any class
        entered.value(GONE),
    )
    check_request(request)
    return request


def _offsets(text: str) -> OffsetRange:
    try:
        return parse_offsets(text)
    except ValueError as error:
        raise ValueError(f"write A:B with 0 <= A <= B, B exclusive ({error})") from None
