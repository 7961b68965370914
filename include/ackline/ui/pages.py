"""Renders the views as HTML by Jinja2, which escapes every text that comes from outside. No view holds a payload.

Style sheet and script are part of each page, and the policy allows these two texts alone by their hashes: nothing that
a record, an error or an operator wrote can run or load anything.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ackline.audit.history import TurnTotals
from ackline.ledger.explain import (
    OffsetExplanation,
    explain_partition,
    moment_text,
    span,
    story_text,
)
from ackline.ledger.metrics import StepFigures, mean_and_max
from ackline.ledger.offsets import TopicPartition, ValuedRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import PendingKind
from ackline.ledger.states import NEW_FAILED, NEW_RECORDS, State
from ackline.pipeline.topology import Topology
from ackline.ui import charts
from ackline.ui.failing import MOST_RECORDS, FailingRecord, Failure, FailureEverywhere
from ackline.ui.filters import Filters, Listed
from ackline.ui.links import Addresses, ReadyAction, dead_command
from ackline.ui.partition import PartitionReading, worst_first
from ackline.ui.readings import LAST_TURNS, LaneReading, TurnReading
from ackline.ui.step_chart import step_picture

PARTITIONS_A_PAGE = 20
TURNS_LISTED = 20
PENDING_RUNS = 50
"""How many ranges of pending offsets the view of a partition lists."""
NO_CLASS = {
    PendingKind.IN_FLIGHT.value: "in flight, waiting for an answer",
    PendingKind.HELD_BACK.value: "held back by a lower offset",
}
"""What stands for an error class where there is none."""
SHOWN_TEXT = 500
"""The most characters of a text from outside that a page shows."""
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_VISIBLE = {code: f"\\u{code:04x}" for code in _DIRECTIONS}
"""Characters that turn the direction of writing are shown as escapes, so that a text can't disguise another."""
_FOLDER = Path(__file__).parent
_STYLE, _SCRIPT = ((_FOLDER / "static" / name).read_text() for name in ("page.css", "page.js"))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
)
"""The Content-Security-Policy of every view."""


def index(
    readings: Sequence[LaneReading | tuple[str, str]], addresses: Addresses, now: datetime, listed: Listed = Listed()
) -> str:
    """Returns the view of all pipelines, the worst first: (name, error) of those that can't be read,
    those that are losing, stuck or failing, those with dead records of the last day, and the others. Only those in the
    state of `listed` are in the list; the counts by state are of all of them."""
    lanes = [reading for reading in readings if isinstance(reading, LaneReading)]

    def place(lane: LaneReading) -> tuple[int, bool, int, int, str]:
        state = lane.state
        return (min(state.rank, State.UNKNOWN.rank), not lane.dead, state.rank, -(lane.lag or 0), lane.name)

    lanes.sort(key=place)
    count = Counter(lane.state for lane in lanes)
    broken = [reading for reading in readings if isinstance(reading, tuple)]
    return _render(
        "index.html", "Pipelines", addresses, refresh=True, now=now, listed=listed,
        readings=[lane for lane in lanes if listed.filters.shows(lane.state)],
        broken=broken if listed.filters.shows(State.UNKNOWN) else [],
        states=[(state, count[state]) for state in State if count[state]], unreadable=len(broken),
        dead=sum(lane.dead for lane in lanes), sparkline=_sparkline,
    )  # fmt: skip


def _sparkline(lane: LaneReading) -> Markup:
    return _drawn(tuple(tuple(sorted(turn.outcomes.items())) for turn in lane.turns if turn.turn.n))


@lru_cache(maxsize=1024)  # most lanes have no new turn since the last view
def _drawn(turns: tuple[tuple[tuple[str, int], ...], ...]) -> Markup:
    return charts.sparkline([dict(turn) for turn in turns])


def all_failures(
    groups: Sequence[FailureEverywhere], broken: Sequence[tuple[str, str]], addresses: Addresses, now: datetime,
    listed: Listed = Listed(),
) -> str:  # fmt: skip
    """Returns the view of the failing records of several pipelines, by error class and place. `broken` are (name,
    error) of those that can't be read."""
    return _render(
        "all_failures.html", "Failures", addresses, refresh=True, groups=groups, broken=broken, now=now, listed=listed,
        records=sum(group.records for group in groups),
    )  # fmt: skip


def pipeline(
    reading: LaneReading, lanes: Sequence[str], failures: Sequence[Failure], actions: Sequence[ReadyAction],
    addresses: Addresses, start: int = 0, steps: StepFigures | None = None,
    topology: Topology | None = None,
) -> str:  # fmt: skip
    """Returns the view of a lane, with PARTITIONS_A_PAGE partitions from number `start` on, the worst first. `steps` is
    what its steps did; None without steps."""
    in_flight = [group.since for group in failures if group.kind == PendingKind.IN_FLIGHT.value and group.since]
    partitions = worst_first(reading.partitions)[start : start + PARTITIONS_A_PAGE]
    end = start + PARTITIONS_A_PAGE
    return _render(
        "pipeline.html", reading.name, addresses, refresh=True, reading=reading, lanes=lanes, partitions=partitions,
        step_picture=step_picture(steps, topology, lambda step: addresses.step_failures(reading, step))
        if steps else None,
        oldest_in_flight=min(in_flight, default=None), attempts_bar=charts.attempts_bar,
        most=max((group.attempts for group in failures), default=0),
        failures=failures, no_class=NO_CLASS, actions=actions, picture=charts.partition_picture, steps=steps,
        milliseconds=mean_and_max, no_filters=Filters(),
        turns=list(reversed(reading.turns))[:TURNS_LISTED],
        more=addresses.pipeline(reading.name, reading.lane, end) if end < len(reading.partitions) else None,
        first=addresses.pipeline(reading.name, reading.lane) if start else None,
        # Without the first genesis, which handles nothing.
        outcome_chart=charts.bar_chart([_bar(turn) for turn in reading.turns if turn.turn.n]),
        lag_chart=charts.line_chart(
            [(turn.settled_at, turn.metrics["lag"]) for turn in reading.turns if "lag" in turn.metrics], "offsets"
        ),
    )  # fmt: skip


def _bar(turn: TurnTotals) -> tuple[str, datetime, Mapping[str, int]]:
    return f"turn {turn.turn.n}, {turn.settled_at:%Y-%m-%d %H:%M:%S} UTC", turn.settled_at, turn.outcomes


def partition(
    reading: LaneReading, part: PartitionReading, actions: Sequence[ReadyAction], addresses: Addresses
) -> str:
    """Returns the view of one partition."""
    reached, first = part.signals.retention_at, part.settled.state.first_without_copy
    pace = None
    if reached is not None and reached > reading.now:  # the sentence states what is gone already
        pace = f"Retention may take offset {first} at {moment_text(reached, reading.now)}."
    pending = part.settled.state.pending
    return _render(
        "partition.html", f"{part.tp} · {reading.name}", addresses, refresh=True, reading=reading, part=part,
        picture=charts.partition_picture, zoom=charts.zoom_start(part),
        sentence=explain_partition(part.evidence).sentence, pace=pace, runs=list(pending[:PENDING_RUNS]),
        actions=actions, more_runs=len(pending) if len(pending) > PENDING_RUNS else None,
    )  # fmt: skip


def failing(
    reading: LaneReading, kind: str, error_class: str, records: Sequence[FailingRecord], actions: Sequence[ReadyAction],
    addresses: Addresses, group: Failure | None = None, step: str = "",
) -> str:  # fmt: skip
    """Returns the view of the records that fail with an error class, of which `group` counts all; with `step`, of the
    newest attempts that failed in it."""
    failed = [one for one in records if one.at is not None]
    name = f"failed in {step}" if step else error_class or NO_CLASS.get(kind, "no error class")
    return _render(
        "failures.html", f"{name} · {reading.name}", addresses, refresh=True, name=name, group=group, step=step,
        reading=reading, kind=kind, error_class=error_class, records=records, actions=actions, limit=MOST_RECORDS,
        last=max(failed, key=lambda one: one.at or reading.now) if failed else None,
        most=max((one.attempts for one in records), default=0), attempts_bar=charts.attempts_bar,
    )  # fmt: skip


def record(
    reading: LaneReading, tp: TopicPartition, offset: int, explained: OffsetExplanation | None,
    actions: Sequence[ReadyAction], addresses: Addresses, letter_topic: str | None = None,
) -> str:  # fmt: skip
    """Returns the view of a record. `letter_topic` is the topic of the dead letters of the turn that gave it up."""
    is_dead = explained is not None and explained.state == Outcome.DEAD.value
    decided = [event for event in explained.events if event.outcome is Outcome.DEAD] if explained is not None else []
    return _render(
        "record.html", f"{tp} {offset} · {reading.name}", addresses, refresh=True, reading=reading, tp=tp,
        offset=offset, record=explained, actions=actions,
        is_dead=is_dead, letter_topic=letter_topic, place=decided[-1].letter if decided else None,
        letter=dead_command(reading.name, reading.lane, tp, offset),
    )  # fmt: skip


def turn(reading: TurnReading, addresses: Addresses) -> str:
    """Returns the view of a turn, with the 100 partitions that have the most offsets."""
    planned = reading.plan.partitions if reading.plan else {}
    settled = reading.settlement.partitions if reading.settlement else {}
    size = {tp: sum(settled[tp].counts.values()) if tp in settled else 0 for tp in {*planned, *settled}}
    shown = sorted(sorted(size, key=lambda tp: (-size[tp], tp))[:100])
    return _render(
        "turn.html", f"Turn {reading.turn.n} · {reading.turn.pipeline}", addresses,
        refresh=reading.settlement is None, reading=reading, name=reading.turn.pipeline,
        rows=[(tp, planned.get(tp), settled.get(tp)) for tp in shown], hidden=len(size) - len(shown),
    )  # fmt: skip


def run(reading: LaneReading, run_id: str, turns: Sequence[TurnTotals], addresses: Addresses) -> str:
    """Returns the view of a run: the turns that it settled."""
    return _render(
        "run.html", f"Run {run_id} · {reading.name}", addresses, reading=reading, run_id=run_id, turns=turns,
        limit=LAST_TURNS,
    )  # fmt: skip


def problem(title: str, text: str) -> str:
    """Returns the page that shows an error."""
    return _environment.get_template("problem.html").render(
        title=title, text=text, refresh=False, script=Markup(_SCRIPT), style=Markup(_STYLE)
    )


def _render(template: str, title: str, addresses: Addresses, refresh: bool = False, **values: Any) -> str:
    return _environment.get_template(template).render(
        title=title, url=addresses, refresh=refresh, script=Markup(_SCRIPT), style=Markup(_STYLE), **values
    )


def _finalize(value: object) -> object:
    """Returns the text that a template writes for a value. Markup, which the page itself has made, stays as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return value.translate(_VISIBLE)
    return "" if value is None else value


def _cut(text: str | None) -> str:
    """Returns at most SHOWN_TEXT characters of a text from outside."""
    return "" if text is None else text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}…"


def _count(number: float | None) -> str:
    return "unknown" if number is None else f"{int(number):,}"


def _in_order(counts: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    known = [name for name in charts.OUTCOME_ORDER if counts.get(name)]
    others = sorted(name for name, number in counts.items() if number and name not in charts.OUTCOME_ORDER)
    return [(name, counts[name]) for name in known + others]


def _new_failed(metrics: Mapping[str, float]) -> str:
    """Returns the share of a turn's new records that failed, with their number."""
    new = metrics[NEW_RECORDS]
    return f"{metrics.get(NEW_FAILED, 0) / new:.1%} of {_count(new)}"


def _offsets(ranges: Iterable[ValuedRange[Any]]) -> int:
    return sum(len(part) for part in ranges)


def _from_now(time: datetime, now: datetime | None = None) -> str:
    away = time - (now or datetime.now(UTC))
    return f"in {span(away)}" if away > timedelta() else f"{span(-away)} ago"


_environment = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_finalize,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "story": story_text,
    "count": _count,
    "cut": _cut,
    "duration": lambda seconds: span(timedelta(seconds=seconds)),
    "from_now": _from_now,
    "in_order": _in_order,
    "letter": lambda place: " offset ".join(place.rsplit(" ", 1)),
    "moment": lambda time: f"{time:%Y-%m-%d %H:%M:%S} UTC",
    "new_failed": _new_failed,
    "offsets": _offsets,
}
