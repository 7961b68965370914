"""The trigger form of the DAG `backfill__NAME`: its fields with their JSON schemas, and its values."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.sdk import Param

from ackline.errors import ConfigError
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE
from ackline.pipeline.arguments import BackfillArguments, id_of, lane_of
from ackline.pipeline.field_types import parse_time
from ackline.pipeline.pipeline import Pipeline

RANGE_PATTERN = r"^[a-zA-Z0-9._-]{1,249}(:[0-9]{1,10}(:[0-9]{1,19}-[0-9]{1,19})?)?$"
TOPIC_PATTERN = r"^[a-zA-Z0-9._-]{1,249}$"
TIME_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{5,15}(Z|[+-][0-9]{2}:[0-9]{2})$"
"""Airflow checks the format `date-time` only where a library is installed that it does not require."""
ID = "[a-z0-9][a-z0-9-]{0,99}"
MOST = {"max_records": 10**12, "max_rate": 10**9, "confirm_offsets": 10**12, "epoch": 10**6}
"""The greatest value of each number."""


def _text(title: str, description: str, **schema: Any) -> Param:
    return Param(None, type=["null", "string"], title=title, description=description, maxLength=500, **schema)


def _number(name: str, title: str, description: str) -> Param:
    return Param(
        None, type=["null", "integer"], minimum=1, maximum=MOST[name], title=title, description=description
    )  # fmt: skip


def backfill_params(pipeline: Pipeline) -> dict[str, Param]:
    """Returns the fields of the form, each with a description and the schema that refuses wrong values."""
    handlers = list(dict.fromkeys([*pipeline.handlers, *pipeline.backfill.handlers]))
    outcomes = [outcome.value for outcome in Outcome if outcome.terminal]
    above = pipeline.backfill.confirm_above
    return {
        "ranges": Param(
            [], type="array", items={"type": "string", "pattern": RANGE_PATTERN}, title="Ranges",
            description="TOPIC, TOPIC:PARTITION or TOPIC:PARTITION:A-B (B exclusive), one on each line.",
        ),
        "all": Param(False, type="boolean", title="All", description="Everything that the logs hold now."),
        "from": _text("From", "Only from this time on: 2026-01-31T12:00:00Z, or `2h ago`."),
        "to": _text("To", "Only before this time: 2026-01-31T12:00:00Z, or `2h ago`."),
        "outcome": _text("Outcome", "Only records that ended so, such as dead.", enum=[None, *outcomes]),
        "error_class": _text("Error class", "Only records whose last attempt failed with it."),
        "run": _text("Run", "Only records that this run settled."),
        "of": Param(
            LIVE, type="string", pattern=f"^({LIVE}|backfill-{ID})$", title="Of lane",
            description="The lane of outcome, error class and run: `live`, or `backfill-ID`.",
        ),
        "id": _text(
            "Id", "The backfill's id: a-z 0-9 -. Alone it resumes that backfill. Empty: made of the DAG run's id.",
            pattern=f"^{ID}$",
        ),
        "epoch": Param(
            None, type=["null", "integer"], minimum=0, maximum=MOST["epoch"], title="Epoch",
            description="Begin this epoch of a settled backfill, to handle its offsets once more. Empty: the newest.",
        ),
        "handler": _text(
            "Handler", "Another handler, from `backfill.handlers` of the pipeline file.", enum=[None, *handlers]
        ),
        "max_records": _number(
            "max_records", "At most so many records",
            "Reads so many offsets and ends, without waiting for retries. Empty: until every offset is settled.",
        ),
        "max_rate": _number("max_rate", "At most so many a second", "Handles at most so many records a second."),
        "dead_letter": _text(
            "Dead letters", "Another topic of dead letters, or none. Empty: as in the file.", pattern=TOPIC_PATTERN
        ),
        "deadline": _text(
            "Deadline", "The run starts nothing after this time, and fails if an offset is not settled by then.",
            format="date-time", pattern=TIME_PATTERN,
        ),
        "reason": _text("Reason", "Why: stored with each turn that this run plans."),
        "confirm": Param(
            False, type="boolean", title="Confirm",
            description="Do it. Without it the run changes nothing, and its log shows what would be read.",
        ),
        "confirm_offsets": _number(
            "confirm_offsets", "Number of offsets",
            f"Needed beside Confirm for more than {above:,} offsets: their number, as the dry run shows it.",
        ),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class BackfillForm:
    """The values of the form of one DAG run."""

    lane: str
    arguments: BackfillArguments
    has_id: bool
    """Whether the form names the id; otherwise it is made of the DAG run's id."""
    confirm: bool
    confirm_offsets: int | None
    max_records: int | None
    max_rate: int | None
    deadline: datetime | None
    reason: str
    epoch: int | None = None
    """The epoch to begin or to go on with; None for the newest."""

    @property
    def id(self) -> str:
        """The id of the backfill."""
        return id_of(self.lane)

    def is_over(self, now: datetime) -> bool:
        """Returns whether the deadline has passed."""
        return self.deadline is not None and now >= self.deadline

    @classmethod
    def of_params(cls, params: Mapping[str, Any], default_id: str) -> "BackfillForm":
        """Returns the form with these values. Raises ConfigError for a value of another type, for a text that is no
        id, and for a deadline that is no time."""
        arguments = BackfillArguments(
            tuple(_texts(params, "ranges")),
            _flag(params, "all"),
            _value(params, "from") or None,
            _value(params, "to") or None,
            _value(params, "outcome") or None,
            _value(params, "error_class"),  # empty: records without a class, and not any class
            _value(params, "run") or None,
            _value(params, "of") or LIVE,
            _value(params, "handler") or None,
            _value(params, "dead_letter") or None,
        )
        backfill_id = _value(params, "id")
        return cls(
            lane=lane_of(backfill_id or default_id),
            arguments=arguments,
            has_id=bool(backfill_id),
            confirm=_flag(params, "confirm"),
            confirm_offsets=_whole(params, "confirm_offsets"),
            max_records=_whole(params, "max_records"),
            max_rate=_whole(params, "max_rate"),
            deadline=_deadline(_value(params, "deadline")),
            reason=_value(params, "reason") or "",
            epoch=_whole(params, "epoch", 0),
        )


def _value(params: Mapping[str, Any], name: str) -> str | None:
    value = params.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{name}: not valid; write a text", key=name)
    return value


def _texts(params: Mapping[str, Any], name: str) -> list[str]:
    values = params.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f'{name}: not valid; write a list, e.g. ["orders:0:10-20"]', key=name)
    return values


def _flag(params: Mapping[str, Any], name: str) -> bool:
    value = params.get(name, False)
    if type(value) is not bool:
        raise ConfigError(f"{name}: not valid; write true or false", key=name)
    return value


def _whole(params: Mapping[str, Any], name: str, least: int = 1) -> int | None:
    value = params.get(name)
    if value is not None and (type(value) is not int or not least <= value <= MOST[name]):
        raise ConfigError(f"{name}: not valid; write a whole number from {least} to {MOST[name]}", key=name)
    return value


def _deadline(text: str | None) -> datetime | None:
    try:
        return parse_time(text) if text else None
    except ValueError as error:
        raise ConfigError(f"deadline: {error}", key="deadline") from None
