"""Draws the pictures of the page as SVG. Pure.

A picture has classes and no colours of its own, so that the page's style sheet gives it those of the theme. Every text
is escaped by `markupsafe.Markup.format`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from markupsafe import Markup

from ackline.ledger.offsets import Int64s
from ackline.ledger.pending import PendingKind
from ackline.ui.health import PartitionReading

WIDTH = 1000
"""The width of a partition's picture in its own units; the page scales it."""
CHART_WIDTH = 600
"""The width of a chart. The page shows two side by side, so it is smaller: labels stay readable."""
OUTCOME_ORDER = ("acked", "skipped", "failed", "dead", "expired", "dropped", "lost", "compacted")
"""The outcomes in the order in which bars are stacked, from the axis on."""
ROOT_FROM = 50
"""From this ratio of the largest turn to the smallest one on, bars have a square-root scale, and the chart says so."""
SEEN = 2.0
"""The least height of an outcome in a bar."""
_PAD = 8
_LABEL_WIDTH = 7.6
"""About how wide a character of a label is, to keep labels apart."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps offsets to the width of a picture."""

    low: int
    high: int

    def x(self, offset: int) -> float:
        """Returns where an offset is drawn; one outside the scale is drawn at its nearer end."""
        share = (min(max(offset, self.low), self.high) - self.low) / max(1, self.high - self.low)
        return round(_PAD + share * (WIDTH - 2 * _PAD), 1)


def partition_picture(part: PartitionReading, *, labels: bool = False, low: int | None = None) -> Markup:
    """Returns the log of a partition to scale: what is settled, read and unread, what fails, and where it is committed.

    `low` cuts off what is below an offset. With `labels` the offsets are written below and above.
    """
    scale = _scale(part, low)
    start = part.log_start if part.log_start is not None else scale.low
    end = part.log_end if part.log_end is not None else part.complete_to
    bar = [
        _area(scale, scale.low, end, "log"),
        _area(scale, max(start, scale.low), part.floor, "settled"),
        _area(scale, part.floor, part.complete_to, "read"),
        _area(scale, part.complete_to, end, "unread"),
        _area(scale, part.complete_to, min(start, end), "lost"),
        _area(scale, scale.low, min(start, end), "gone"),
        *_failure_marks(part, scale),
    ]
    # Above the bar, on the whole of it, and below it: marks that meet do not cover each other.
    marks = [_mark(scale, part.complete_to, "complete"), _mark(scale, part.floor, "floor")]
    if part.committed is not None:
        marks.append(_mark(scale, part.committed, "committed"))
    texts = _labels(part, scale, start, end) if labels else []
    height = 84 if labels else 26
    top = 27 if labels else 4
    return Markup('<svg class="picture" viewBox="0 0 {} {}" role="img" aria-label="{}"><g transform="translate(0 {})">'
                  "{}{}</g>{}</svg>").format(
        WIDTH, height, _description(part, start, end), top, Markup("").join(bar), Markup("").join(marks),
        Markup("").join(texts),
    )  # fmt: skip


def zoom_start(part: PartitionReading) -> int | None:
    """Returns where a second, larger picture is to start; None if the first one shows the unsettled part well."""
    scale = _scale(part, None)
    first = min(part.floor, part.committed if part.committed is not None else part.floor)
    if scale.high <= first or (scale.high - first) * 5 > scale.high - scale.low:
        return None
    return max(scale.low, first - max(1, (scale.high - first) // 12))


def _scale(part: PartitionReading, low: int | None) -> _Scale:
    offsets = [part.floor, part.complete_to, part.log_start, part.log_end, part.committed]
    known = [offset for offset in offsets if offset is not None]
    return _Scale(min(known) if low is None else low, max(known))


def _area(scale: _Scale, start: int, end: int, name: str) -> Markup:
    if end <= start or end <= scale.low:
        return Markup("")
    x = scale.x(start)
    width = max(1.0, round(scale.x(end) - x, 1))
    # What retention took is a strip below the others: most of it was settled before, and shows as that.
    y, height = (14, 6) if name == "gone" else (0, 18)
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(name, x, y, width, height)


def _mark(scale: _Scale, offset: int, name: str) -> Markup:
    x = scale.x(offset)
    if name == "committed":
        return Markup('<path class="committed" d="M{} 14 l-6 10 h12 z"/>').format(x)
    if name == "complete":
        return Markup('<path class="mark complete" d="M{} 5 l-5 -8 h10 z"/>').format(x)
    return Markup('<rect class="mark {}" x="{}" y="-3" width="2.5" height="24"/>').format(name, round(x - 1.2, 1))


def _failure_marks(part: PartitionReading, scale: _Scale) -> Iterable[Markup]:
    """Yields a mark for each column of the picture that holds a pending offset: at most one per two units."""
    runs = part.settled.state.pending
    for kind in PendingKind:
        chosen = runs.of_kind(kind)
        lost = chosen.ends <= (part.log_start or 0)  # retention has taken them, and the next turn settles them
        yield from _marks(scale, chosen.starts[~lost], chosen.ends[~lost], kind.value)
        yield from _marks(scale, chosen.starts[lost], chosen.ends[lost], f"{kind.value} lost")


def _marks(scale: _Scale, starts: Int64s, ends: Int64s, name: str) -> Iterable[Markup]:
    span, columns = max(1, scale.high - scale.low), WIDTH // 2
    first = np.clip((starts - scale.low) * columns // span, 0, columns - 1)
    last = np.clip((ends - 1 - scale.low) * columns // span, 0, columns - 1)
    edges = np.zeros(columns + 1, dtype=np.int64)
    np.add.at(edges, first, 1)
    np.add.at(edges, last + 1, -1)
    filled = np.concatenate([[False], np.cumsum(edges)[:columns] > 0, [False]])
    begins, stops = np.flatnonzero(filled[1:] & ~filled[:-1]), np.flatnonzero(~filled[1:] & filled[:-1])
    for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True):
        x = _PAD + begin * (WIDTH - 2 * _PAD) / columns
        width = max(2.5, (stop - begin) * (WIDTH - 2 * _PAD) / columns)
        yield Markup('<rect class="pending {}" x="{}" y="2" width="{}" height="14"/>').format(
            name, round(x, 1), round(width, 1)
        )


def _labels(part: PartitionReading, scale: _Scale, start: int, end: int) -> list[Markup]:
    """Returns the labels: positions of the group above the bar, those of the log and of the reading below it. Positions
    that are equal share one label."""
    words = {part.floor: ["floor"]}
    if part.committed is not None:
        words.setdefault(part.committed, []).append("committed")
    above = [(offset, f"{' = '.join(names)} {offset:,}") for offset, names in words.items()]
    words = {}
    for offset, name in ((start, "log start"), (part.complete_to, "complete to"), (end, "end")):
        words.setdefault(offset, []).append(name)
    below = [(offset, f"{' = '.join(names)} {offset:,}") for offset, names in words.items()]
    return [*_row(scale, above, [14]), *_row(scale, below, [63, 79])]


def _row(scale: _Scale, labels: Sequence[tuple[int, str]], lines: Sequence[int]) -> list[Markup]:
    """Returns labels at their offsets, moved into the picture; one that would overlap goes to the next line."""
    taken = dict.fromkeys(lines, -1e9)
    texts = []
    for offset, text in sorted(label for label in labels if label[0] >= scale.low):
        width, x = len(text) * _LABEL_WIDTH, scale.x(offset)
        left = min(max(x - width / 2, 2), WIDTH - width - 2)
        line = next((y for y in lines if taken[y] < left), lines[-1])
        if taken[line] >= left:  # all lines are full here: it follows the label of the last line
            left = taken[line]
        taken[line] = left + width + 10
        # The font is not known, so a label at an end of the picture is anchored there.
        at, anchor = (WIDTH - 2.0, "end") if left + width >= WIDTH - 2 else (left + width / 2, "middle")
        at, anchor = (2.0, "start") if left <= 2 else (at, anchor)
        texts.append(Markup('<text class="{}" x="{}" y="{}">{}</text>').format(anchor, round(at, 1), line, text))
    return texts


def _description(part: PartitionReading, start: int, end: int) -> str:
    committed = "nothing committed" if part.committed is None else f"committed {part.committed:,}"
    return (
        f"{part.tp}: log {start:,} to {end:,}, {committed}, floor {part.floor:,}, complete to {part.complete_to:,}, "
        f"{part.pending:,} pending"
    )


def line_chart(points: Sequence[tuple[datetime, float]], unit: str) -> Markup:
    """Returns a line of values over time, from zero on. Needs two points; with fewer it is empty."""
    if len(points) < 2:
        return Markup("")
    height, top = max(value for _, value in points) or 1.0, _nice(max(value for _, value in points))
    first, last = points[0][0], points[-1][0]
    span = max(1.0, (last - first).total_seconds())
    places = [
        (round(58 + (at - first).total_seconds() / span * (CHART_WIDTH - 70), 1), round(130 - value / top * 112, 1))
        for at, value in points
    ]
    line = " ".join(f"{x},{y}" for x, y in places)
    area = f"{places[0][0]},130 {line} {places[-1][0]},130"
    body = Markup('<polygon class="area" points="{}"/><polyline class="line" points="{}"/>').format(area, line)
    return _chart(body, top, first, last, f"{unit} over time, at most {height:,.0f}", f"{unit}")


def bar_chart(turns: Sequence[tuple[str, datetime, Mapping[str, int]]]) -> Markup:
    """Returns a stacked bar of outcomes for each (title, time, outcomes)."""
    if not turns:
        return Markup("")
    most = max(sum(outcomes.values()) for _, _, outcomes in turns)
    smallest = min((number for _, _, outcomes in turns if (number := sum(outcomes.values()))), default=most)
    top, is_root = _nice(most), most >= ROOT_FROM * smallest
    step = (CHART_WIDTH - 70) / max(12, len(turns))
    bars = []
    for index, (title, _, outcomes) in enumerate(turns):
        tall = math.sqrt(sum(outcomes.values()) / top) if is_root else sum(outcomes.values()) / top
        parts, y = [], 130.0
        for name, high in _heights(outcomes, tall * 112).items():
            y -= high
            parts.append(
                Markup('<rect class="outcome {}" x="{}" y="{}" width="{}" height="{}"/>').format(
                    name, round(58 + index * step, 1), round(y, 1), round(max(2.0, step - 3), 1), round(high, 1)
                )
            )
        counts = ", ".join(f"{outcomes[name]:,} {name}" for name in OUTCOME_ORDER if outcomes.get(name))
        bars.append(
            Markup("<g><title>{}: {}</title>{}</g>").format(title, counts or "no record", Markup("").join(parts))
        )
    label = f"outcomes of {len(turns)} turns, at most {most:,} in one"
    return _chart(Markup("").join(bars), top, turns[0][1], turns[-1][1], label, "offsets", is_root=is_root)


def _heights(outcomes: Mapping[str, int], tall: float) -> dict[str, float]:
    """Returns the heights of the outcomes in a bar, which together are its height.

    The shares are those of the offsets, whatever the scale of the bars is. An outcome has at least SEEN, so that a few
    failures among millions are seen; the largest one gives that away, so that the bar still ends at its axis.
    """
    present = {name: outcomes[name] for name in OUTCOME_ORDER if outcomes.get(name)}
    if not present:
        return {}
    total, tall = sum(present.values()), max(tall, SEEN * len(present))
    heights = {name: max(SEEN, number / total * tall) for name, number in present.items()}
    largest = max(heights, key=lambda name: heights[name])
    heights[largest] = max(SEEN, heights[largest] - (sum(heights.values()) - tall))
    return heights


def _chart(
    body: Markup, top: float, first: datetime, last: datetime, label: str, unit: str, is_root: bool = False
) -> Markup:
    lines = Markup("").join(
        Markup('<line class="grid" x1="58" x2="{}" y1="{}" y2="{}"/><text class="axis" x="52" y="{}">{}</text>').format(
            CHART_WIDTH - 12,
            130 - share * 112,
            130 - share * 112,
            134 - share * 112,
            short(top * (share * share if is_root else share)),
        )
        for share in (0, 0.5, 1)
    )
    note = Markup('<text class="time middle" x="320" y="150">square-root scale</text>') if is_root else ""
    times = Markup('<text class="time" x="58" y="150">{}</text><text class="time end" x="{}" y="150">{}</text>').format(
        _time(first, last), CHART_WIDTH - 12, _time(last, first)
    )
    return Markup(
        '<svg class="chart" viewBox="0 0 {} 156" role="img" aria-label="{}">{}{}{}{}<title>{}</title></svg>'
    ).format(CHART_WIDTH, label, lines, body, times, note, unit)


def sparkline(turns: Iterable[Mapping[str, int]]) -> Markup:
    """Returns small bars of the turns' offsets on a square-root scale: acked and skipped, and above that what failed
    and what ended without success, each tall enough to be seen."""
    totals = [
        {
            "acked": turn.get("acked", 0) + turn.get("skipped", 0),
            "failed": turn.get("failed", 0),
            "dead": sum(number for name, number in turn.items() if name not in ("acked", "skipped", "failed")),
        }
        for turn in turns
    ]
    most = max((sum(total.values()) for total in totals), default=0)
    if not most:
        return Markup('<span class="muted">no records yet</span>')
    bars = []
    for index, total in enumerate(totals[-24:]):
        y = 24.0
        for name, high in _heights(total, math.sqrt(sum(total.values()) / most) * 22).items():
            y -= high
            bars.append(
                Markup('<rect class="outcome {}" x="{}" y="{}" width="5" height="{}"/>').format(
                    name, index * 7, round(y, 1), round(high, 1)
                )
            )
    return Markup(
        '<svg class="spark" viewBox="0 0 168 24" role="img" aria-label="outcomes of the last turns, on a square-root '
        'scale">{}</svg>'
    ).format(Markup("").join(bars))


def attempts_bar(attempts: int, most: int) -> Markup:
    """Returns a small bar of a record's attempts, beside the `most` of its list."""
    width = round(max(SEEN, 40 * attempts / max(1, most)), 1)
    return Markup(
        '<svg class="attempts" viewBox="0 0 40 8" aria-hidden="true"><rect class="outcome failed" '
        'width="{}" height="8"/></svg>'
    ).format(width)


def _nice(value: float) -> float:
    """Returns the next 1, 2 or 5 times a power of ten at or above a value."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    return next((power * step for step in (1, 2, 5, 10) if power * step >= value), 1.0)


def short(value: float) -> str:
    """Returns a number in few characters: 1,250,000 as 1.25M."""
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g}{suffix}"
    return f"{value:.4g}"


def _time(at: datetime, other: datetime) -> str:
    if at.date() == other.date():
        return f"{at:%H:%M:%S} UTC"
    return f"{at:%Y-%m-%d %H:%M} UTC"
