"""The form of a backfill: its fields, and what was entered.

`ackline backfill`, `ackline dead --redrive` and the DAG `backfill__NAME` are made of these fields. Airflow parses the
DAG's file every few seconds, so this module loads neither the tables nor a Kafka client.
"""

from dataclasses import dataclass
from datetime import datetime

from ackline.forms.arguments import MOST_CHARACTERS, BackfillArguments, id_of, lane_of, promotion_of, written_range
from ackline.forms.form import ERROR_CLASS, Entered, Field, FieldType
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE
from ackline.pipeline.field_types import parse_time
from ackline.pipeline.pipeline import Pipeline

_ID = "[a-z0-9][a-z0-9-]{0,99}"
RANGES = Field(
    name="ranges", option="RANGE", type=FieldType.TEXTS, title="Ranges",
    help="TOPIC, TOPIC:PARTITION or TOPIC:PARTITION:A-B, B exclusive",
    pattern=r"^[a-zA-Z0-9._-]{1,249}(:[0-9]{1,10}(:[0-9]{1,19}[:-][0-9]{1,19})?)?$",
)  # fmt: skip
ALL = Field(
    name="all", option="--all", type=FieldType.FLAG, title="All", help="Everything that the logs hold now."
)  # fmt: skip
FROM = Field(
    name="from", option="--from", also="--since", title="From",
    help="Only from this time on: 2026-01-31T12:00:00Z, or `2h ago`."
)  # fmt: skip
TO = Field(
    name="to", option="--to", title="To", help="Only before this time: 2026-01-31T12:00:00Z, or `2h ago`."
)  # fmt: skip
OUTCOME = Field(
    name="outcome", option="--outcome", title="Outcome", help="Only records that ended so, e.g. dead.",
    choices=tuple(outcome.value for outcome in Outcome if outcome.terminal),
)  # fmt: skip
RUN = Field(name="run", option="--run", title="Run", help="Only records that this run settled.")
CODE = Field(
    name="code", option="--code", title="Code",
    help="Only records that a turn with this code settled: `ackline history` shows it.",
)  # fmt: skip
OF = Field(
    name="of", option="--of", title="Of lane", default=LIVE, pattern=f"^({LIVE}|backfill-{_ID})$",
    help="The lane of outcome, error class, run and code: `live`, or `backfill-ID`.",
)  # fmt: skip
ID = Field(
    name="id", option="--id", title="Id", pattern=f"^{_ID}$",
    help="The backfill's id: a-z 0-9 -. Alone it resumes that backfill.",
)  # fmt: skip
EPOCH = Field(
    name="epoch", option="--epoch", type=FieldType.NUMBER, title="Epoch", maximum=10**6,
    help="Begin this epoch of a settled backfill, to handle its offsets once more.",
)  # fmt: skip
HANDLER = Field(
    name="handler", option="--handler", title="Handler",
    help="Another handler, from `backfill.handlers` of the pipeline file.",
)  # fmt: skip
WHERE = Field(
    name="where", option="--where", title="Where",
    help="Handle only records that match, e.g. value.currency = 'XTS'. The rest is skipped as Unmatched.",
)  # fmt: skip
MAX_RECORDS = Field(
    name="max_records", option="--max-records", type=FieldType.NUMBER, title="At most so many records", minimum=1,
    maximum=10**12, help="Read at most so many offsets now.",
)  # fmt: skip
MAX_RATE = Field(
    name="max_rate", option="--max-rate", type=FieldType.NUMBER, title="At most so many a second", minimum=1,
    maximum=10**9, help="Handle at most so many records a second.",
)  # fmt: skip
DEAD_LETTER = Field(
    name="dead_letter", option="--dead-letter", title="Dead letters", pattern=r"^[a-zA-Z0-9._-]{1,249}$",
    help="Another topic of dead letters, from `backfill.dead_letters` of the pipeline file, or none.",
)  # fmt: skip
WITH_RELATED = Field(
    name="with_related", option="--with-related", type=FieldType.FLAG, title="With related",
    help="Also the other records of output rows that are of several: such a row is replaced with all of them.",
)  # fmt: skip
SHADOW = Field(
    name="shadow", option="--shadow", type=FieldType.FLAG, title="Shadow",
    help="Rows go to tables NAME__ID beside the real ones; topics and dead letters get nothing.",
)  # fmt: skip
PROMOTE = Field(
    name="promote", option="--promote", type=FieldType.FLAG, title="Promote",
    help="Begin the backfill ID-promoted: what the settled shadow ID has handled, for real.",
)  # fmt: skip
DEADLINE = Field(
    name="deadline", option="", title="Deadline", format="date-time", in_command=False,
    # Airflow checks the format `date-time` only where a library is installed that it does not require.
    pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{5,15}(Z|[+-][0-9]{2}:[0-9]{2})$",
    help="The run starts nothing after this time, and fails if an offset is not settled by then.",
)  # fmt: skip
REASON = Field(
    name="reason", option="--reason", title="Reason", help="Why: stored with each turn that this run plans."
)  # fmt: skip
CONFIRM = Field(
    name="confirm", option="--yes", type=FieldType.FLAG, title="Confirm", in_command=False,
    help="Do it. Without it the run changes nothing, and its log shows what would be read.",
)  # fmt: skip
CONFIRM_OFFSETS = Field(
    name="confirm_offsets", option="", type=FieldType.NUMBER, title="Number of offsets", minimum=1, maximum=10**12,
    in_command=False, help="Needed beside Confirm for more offsets than `backfill.confirm_above`: their number.",
)  # fmt: skip
FIELDS = (
    RANGES, ALL, FROM, TO, OUTCOME, ERROR_CLASS, RUN, CODE, OF, WHERE, ID, EPOCH, HANDLER, MAX_RECORDS, MAX_RATE,
    DEAD_LETTER, WITH_RELATED, SHADOW, PROMOTE, DEADLINE, REASON, CONFIRM, CONFIRM_OFFSETS,
)  # fmt: skip
"""All fields, in the order of both forms."""


def allowed_handlers(pipeline: Pipeline) -> tuple[str, ...]:
    """Returns the handlers that a backfill may call."""
    return tuple(dict.fromkeys([*pipeline.handlers, *pipeline.backfill.handlers]))


def allowed_dead_letters(pipeline: Pipeline) -> tuple[str, ...]:
    """Returns the topics to which a backfill may send its dead letters, and `none`."""
    own = pipeline.dead_letter_topic
    return tuple(dict.fromkeys([*([own] if own else []), *pipeline.backfill.dead_letters, "none"]))


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """What was entered for one lane, beside whether it may be changed."""

    lane: str
    arguments: BackfillArguments
    has_id: bool
    """Whether the id was entered; otherwise it was made for this run, and the lane may be a new one."""
    max_records: int | None = None
    max_rate: int | None = None
    reason: str = ""
    epoch: int = 0
    """The epoch to begin, if the lane has not begun it yet."""
    deadline: datetime | None = None
    confirm_offsets: int | None = None
    promotes: str | None = None
    """The lane of the shadow that is to be promoted; None for another request."""
    id_label: str = ID.option
    """What errors call the field of the id."""

    @property
    def id(self) -> str:
        """The id of the backfill."""
        return id_of(self.lane)

    def is_over(self, now: datetime) -> bool:
        """Returns whether the deadline has passed."""
        return self.deadline is not None and now >= self.deadline


def request_of(entered: Entered, default_id: str) -> BackfillRequest:
    """Returns what was entered. Without an id the lane has `default_id`.

    Raises ConfigError for a value of another type, for a text that is no id, and for a deadline that is no time.
    """
    for field in FIELDS:
        entered.value(field)
    arguments = BackfillArguments(
        tuple(map(written_range, entered.value(RANGES) or ())),
        entered.value(ALL),
        entered.text(FROM),
        entered.text(TO),
        entered.text(OUTCOME),
        entered.value(ERROR_CLASS),  # empty: records without a class, and not any class
        entered.text(RUN),
        entered.text(CODE),
        entered.text(OF) or LIVE,
        entered.text(HANDLER),
        entered.text(DEAD_LETTER),
        shadow=entered.value(SHADOW),
        where=entered.text(WHERE),
        with_related=entered.value(WITH_RELATED) or False,
    )
    given_id = entered.text(ID)
    promotes = _shadow_to_promote(entered, given_id)
    backfill_id = given_id if given_id is not None else default_id
    if arguments.shadow and len(promotion_of(backfill_id)) > MOST_CHARACTERS:
        least = MOST_CHARACTERS - len(promotion_of(""))
        raise entered.wrong(ID, f"a shadow has an id of {least} characters at most: its promotion has a longer one")
    return BackfillRequest(
        lane_of(promotion_of(backfill_id) if promotes is not None else backfill_id),
        arguments,
        given_id is not None,
        entered.value(MAX_RECORDS),
        entered.value(MAX_RATE),
        entered.value(REASON) or "",
        entered.value(EPOCH) or 0,
        entered.parsed(DEADLINE, parse_time),
        entered.value(CONFIRM_OFFSETS),
        promotes,
        entered.label(ID),
    )


def _shadow_to_promote(entered: Entered, given_id: str | None) -> str | None:
    """Returns the lane of the shadow that is to be promoted; None if none is. Raises ConfigError without its id."""
    if not entered.value(PROMOTE):
        return None
    if given_id is None:
        raise entered.wrong(PROMOTE, f"give the id of the shadow by {entered.label(ID)}")
    return lane_of(given_id)
