"""Draws the pictures of the page as SVG. Pure.

A picture has classes and no colours of its own, so that the page's style sheet gives it those of the theme. Places are
percentages of its width, while heights, texts and marks are pixels. So a picture of any width has texts of the same
size, and labels that do not overlap at the width NARROWEST overlap at no larger one. `markupsafe` escapes every text.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from ackline.ledger.offsets import Int64s, index_of_range
from ackline.ledger.pending import PendingKind
from ackline.ui.partition import PartitionReading

NARROWEST = 320
"""The width in pixels from which on no labels overlap."""
LINE = 16
"""The height in pixels of a line of labels."""
OUTCOME_ORDER = ("acked", "skipped", "failed", "dead", "expired", "dropped", "lost", "compacted")
"""The outcomes in the order in which bars are stacked, from the axis on."""
ROOT_FROM = 50
"""If the largest turn has this many times the offsets of the smallest, bars have a square-root scale."""
SEEN = 2.0
"""The least height of an outcome in a bar, in pixels."""
_COLUMNS = 200
"""The most columns of a picture's log. Of each, the share of its offsets that is pending is shown as a height."""
_LABEL_WIDTH = 7.6
"""About how many pixels a character of a label takes, to keep labels apart. The font is not known."""
_MARK, _BAR = 9, 18
"""The height of the bands of marks above and below the bar, and of the bar."""
_SEEN_IN_LOG = 3
"""The least height of pending offsets in a log, in pixels: one among millions is seen."""
_PLOT = 112
"""The height of the bars of a chart, below which is its axis."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps offsets to the width of a picture."""

    low: int
    high: int

    def share(self, offset: int) -> float:
        """Returns the place of an offset, from 0 to 1; an offset outside the scale is at its nearer end."""
        return (min(max(offset, self.low), self.high) - self.low) / max(1, self.high - self.low)


def _percent(share: float) -> str:
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"


def partition_picture(part: PartitionReading, *, labels: bool = False, low: int | None = None) -> Markup:
    """Returns a picture of a partition's log: what is settled, read and unread, what fails, and where it is committed.

    `low` cuts off what is below an offset. With `labels` the offsets are written below and above. Each mark has a band
    of its own, so marks that meet do not cover each other: above the bar, in it, and below it.
    """
    scale = _scale(part, low)
    start = part.log_start if part.log_start is not None else scale.low
    end = part.log_end if part.log_end is not None else part.complete_to
    above, below = _labels(part, scale, start, end) if labels else ([], [])
    bar = [
        _area(scale, scale.low, end, "log"),
        _area(scale, max(start, scale.low), part.floor, "settled"),
        _area(scale, part.floor, part.complete_to, "read"),
        _area(scale, part.complete_to, end, "unread"),
        _area(scale, part.complete_to, min(start, end), "lost"),
        _area(scale, scale.low, min(start, end), "gone"),
        *_failure_marks(part, scale),
        _mark(scale, part.complete_to, "complete", "M0 -1 l-5 -7 h10 z"),
        _mark(scale, part.floor, "floor", f"M-2.5 0 h2.5 v{_BAR} h-2.5 z"),
    ]
    if part.committed is not None:
        bar.append(_mark(scale, part.committed, "committed", f"M0 {_BAR + 1} l-5 7 h10 z"))
    top = len(above) * LINE + _MARK
    height = top + _BAR + _MARK + len(below) * LINE
    texts = [*_texts(above, LINE - 4), *_texts(below, top + _BAR + _MARK + LINE - 4)]
    return Markup('<svg class="picture" height="{}" role="img" aria-label="{}"><g transform="translate(0 {})">{}</g>{}'
                  "</svg>").format(
        height, _description(part, start, end), top, Markup("").join(bar), Markup("").join(texts)
    )  # fmt: skip


def zoom_start(part: PartitionReading) -> int | None:
    """Returns the offset at which a second, larger picture starts; None if the first shows the unsettled part well."""
    scale = _scale(part, None)
    first = min(part.floor, part.committed if part.committed is not None else part.floor)
    if scale.high <= first or (scale.high - first) * 5 > scale.high - scale.low:
        return None
    return max(scale.low, first - max(1, (scale.high - first) // 12))


def _scale(part: PartitionReading, low: int | None) -> _Scale:
    first = min(part.settled.state.pending.starts.tolist()[:1], default=None)  # below the floor, if it is released
    offsets = [first, part.floor, part.complete_to, part.log_start, part.log_end, part.committed]
    known = [offset for offset in offsets if offset is not None]
    return _Scale(min(known) if low is None else low, max(known))


def _area(scale: _Scale, start: int, end: int, name: str) -> Markup:
    if end <= start or end <= scale.low:
        return Markup("")
    left = scale.share(start)
    # What retention took is a strip below the others: most of it was settled before, and shows as that.
    y, height = (_BAR - 5, 5) if name == "gone" else (0, _BAR)
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
        name, _percent(left), y, _percent(max(0.0015, scale.share(end) - left)), height
    )


def _mark(scale: _Scale, offset: int, name: str, path: str) -> Markup:
    return Markup('<svg class="mark {}" x="{}" overflow="visible"><path d="{}"/></svg>').format(
        name, _percent(scale.share(offset)), path
    )


def _failure_marks(part: PartitionReading, scale: _Scale) -> Iterable[Markup]:
    """Yields bars of the pending offsets from the foot of the log on: the higher, the larger their share of the column.
    Those of several kinds stand on each other, each high enough to be seen (I20)."""
    state, gone = part.settled.state, part.log_start or 0
    runs, copies = state.pending, state.copies
    columns = min(_COLUMNS, max(1, scale.high - scale.low))
    edges = scale.low + np.arange(columns + 1, dtype=np.int64) * (scale.high - scale.low) // columns
    found = {}
    for kind in PendingKind:
        chosen = runs.of_kind(kind)
        # Retention has taken them, and the next turn settles those without a copy.
        lost = (chosen.ends <= gone) & (index_of_range(chosen.starts, copies.ranges) < 0)
        for name, of_name in ((kind.value, ~lost), (f"{kind.value} lost", lost)):
            found[name] = _offsets_between(edges, chosen.starts[of_name], chosen.ends[of_name])
    counts = np.array(list(found.values()))
    # In a full column the high ones give way: the least heights of all kinds together are no higher than the bar.
    present = np.maximum(1, (counts > 0).sum(axis=0))
    least = np.where(counts > 0, np.minimum(_SEEN_IN_LOG, _BAR // present), 0)
    room = np.maximum(least, np.round(counts / np.maximum(1, np.diff(edges)) * _BAR)) - least
    fits = np.minimum(1, (_BAR - least.sum(axis=0)) / np.maximum(1, room.sum(axis=0)))
    heights = least + np.floor(room * fits)
    for name, foot, of_name in zip(found, np.cumsum(heights, axis=0) - heights, heights, strict=True):
        yield from _bars(foot, of_name, found[name], edges, name)


def _offsets_between(edges: Int64s, starts: Int64s, ends: Int64s) -> Int64s:
    """Returns how many offsets of some ranges lie between each two edges. The ranges ascend and do not overlap."""
    if not len(starts):
        return np.zeros(len(edges) - 1, dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(ends - starts)])
    begun = np.searchsorted(starts, edges)
    last = np.maximum(begun - 1, 0)
    below: Int64s = before[begun] - np.where(begun > 0, np.maximum(0, ends[last] - edges), 0)
    return np.diff(below)


def _bars(foot: Any, heights: Any, counts: Int64s, edges: Int64s, name: str) -> Iterable[Markup]:
    """Yields a bar for each stretch of columns with the same height."""
    shapes = np.stack([foot, heights])
    begins = np.concatenate([[0], np.flatnonzero((shapes[:, 1:] != shapes[:, :-1]).any(axis=0)) + 1]).tolist()
    columns = len(heights)
    for begin, stop in pairwise([*begins, columns]):
        if heights[begin]:
            yield Markup(
                '<rect class="pending {}" x="{}" y="{:g}" width="{}" height="{:g}"><title>{:,} of {:,} offsets</title>'
                "</rect>"
            ).format(
                name, _percent(begin / columns), _BAR - foot[begin] - heights[begin],
                _percent((stop - begin) / columns), heights[begin], int(counts[begin:stop].sum()),
                int(edges[stop] - edges[begin]),
            )  # fmt: skip


_Line = list[tuple[float, str, str]]
"""Labels that share a line: where, how they are anchored there, and the text."""


def _labels(part: PartitionReading, scale: _Scale, start: int, end: int) -> tuple[list[_Line], list[_Line]]:
    """Returns the lines of labels: positions of the group above the bar, those of the log and of the reading below it.
    Positions that are equal share one label."""
    above = [(part.floor, "floor")] + ([(part.committed, "committed")] if part.committed is not None else [])
    below = [(start, "log start"), (part.complete_to, "complete to"), (end, "end")]
    return _lines(scale, above), _lines(scale, below)


def _lines(scale: _Scale, positions: Sequence[tuple[int, str]]) -> list[_Line]:
    words: dict[int, list[str]] = {}
    for offset, name in positions:
        words.setdefault(offset, []).append(name)
    lines: list[_Line] = []
    taken: list[list[tuple[float, float]]] = []
    for offset, names in sorted(words.items()):
        if offset < scale.low:
            continue
        share, text = scale.share(offset), f"{' = '.join(names)} {offset:,}"
        # The anchor that leaves most room to the edges. With any of them, labels move apart as the picture grows.
        room = {"start": 1 - share, "end": share, "middle": 2 * min(share, 1 - share)}
        anchor = max(room, key=lambda name: room[name])
        width = len(text) * _LABEL_WIDTH
        left = share * NARROWEST - {"start": 0.0, "end": width, "middle": width / 2}[anchor]
        place = next(
            (n for n, spans in enumerate(taken) if all(left >= b + 8 or left + width + 8 <= a for a, b in spans)),
            len(taken),
        )
        if place == len(taken):
            taken.append([])
            lines.append([])
        taken[place].append((left, left + width))
        lines[place].append((share, anchor, text))
    return lines


def _texts(lines: Sequence[_Line], first: float) -> Iterable[Markup]:
    for number, line in enumerate(lines):
        for share, anchor, text in line:
            yield Markup('<text class="{}" x="{}" y="{}">{}</text>').format(
                anchor, _percent(share), first + number * LINE, text
            )


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
        (round((at - first).total_seconds() / span * 100, 2), round(_PLOT * (1 - value / top), 1))
        for at, value in points
    ]
    line = " ".join(f"{x},{y}" for x, y in places)
    body = Markup('<svg viewBox="0 0 100 {}" preserveAspectRatio="none"><polygon class="area" points="0,{} {} 100,{}"/>'
                  '<polyline class="line" points="{}"/></svg>').format(
        _PLOT, _PLOT, line, _PLOT, line
    )  # fmt: skip
    label = f"{unit} over time, at most {height:,.0f}"
    return _chart(body, top, label, [(0.0, "start", _time(first, last)), (1.0, "end", _time(last, first))])


def bar_chart(turns: Sequence[tuple[str, datetime, Mapping[str, int]]]) -> Markup:
    """Returns a stacked bar of outcomes for each (title, time, outcomes). The times of the first and of the last turn
    are written below their bars."""
    if not turns:
        return Markup("")
    most = max(sum(outcomes.values()) for _, _, outcomes in turns)
    smallest = min((number for _, _, outcomes in turns if (number := sum(outcomes.values()))), default=most)
    top, is_root = _nice(most), most >= ROOT_FROM * smallest
    step = 1 / len(turns)
    wide = min(0.86 * step, 0.08)
    bars = []
    for index, (title, _, outcomes) in enumerate(turns):
        tall = math.sqrt(sum(outcomes.values()) / top) if is_root else sum(outcomes.values()) / top
        parts, y = [], float(_PLOT)
        for name, high in _heights(outcomes, tall * _PLOT).items():
            y -= high
            parts.append(
                Markup('<rect class="outcome {}" x="{}" y="{}" width="{}" height="{}"/>').format(
                    name, _percent((index + 0.5) * step - wide / 2), round(y, 1), _percent(wide), round(high, 1)
                )
            )
        counts = ", ".join(f"{outcomes[name]:,} {name}" for name in OUTCOME_ORDER if outcomes.get(name))
        bars.append(
            Markup("<g><title>{}: {}</title>{}</g>").format(title, counts or "no record", Markup("").join(parts))
        )
    first, last = turns[0][1], turns[-1][1]
    times = [
        (0.5 * step - wide / 2, "start", _time(first, last)),
        (1 - 0.5 * step + wide / 2, "end", _time(last, first)),
    ]
    label = f"outcomes of {len(turns)} turns, at most {most:,} in one" + ", on a square-root scale" * is_root
    return _chart(
        Markup("").join(bars), top, label, times if len(turns) > 1 else [(0.5, "middle", times[0][2])], is_root
    )


def _heights(outcomes: Mapping[str, int], tall: float) -> dict[str, float]:
    """Returns the heights of the outcomes in a bar, which together are its height, in pixels.

    The shares are those of the offsets, whatever the scale of the bars is. An outcome has at least SEEN, so that a few
    failures among millions are seen; the largest one loses as much, so that the bar keeps its height.
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
    body: Markup, top: float, label: str, times: Sequence[tuple[float, str, str]], is_root: bool = False
) -> Markup:
    """Returns a chart: the numbers of the axis, and the plot beside them, which takes the width that is left."""
    shares = (share for share in (0, 0.5, 1) if (top * share).is_integer())  # there is no half offset
    ticks = [(18 + _PLOT * (1 - share), top * (share * share if is_root else share)) for share in shares]
    numbers = Markup("").join(
        Markup('<text class="axis" x="52" y="{}">{}</text>').format(y + 4, short(value)) for y, value in ticks
    )
    lines = Markup("").join(
        Markup('<line class="grid" x1="0" x2="100%" y1="{}" y2="{}"/>').format(y, y) for y, _ in ticks
    )
    note = Markup('<text class="time end" x="100%" y="11">square-root scale</text>') if is_root else ""
    # Beside a few bars the two times may not fit into one line.
    apart = len(times) < 2 or times[1][0] - times[0][0] > 0.85
    below = Markup("").join(
        Markup('<text class="time {}" x="{}" y="{}">{}</text>').format(
            anchor, _percent(share), _PLOT + 36 + (0 if apart else LINE * number), text
        )
        for number, (share, anchor, text) in enumerate(times)
    )
    height = _PLOT + (42 if apart else 42 + LINE)
    return Markup(
        '<div class="chart"><svg width="58" height="{}" aria-hidden="true">{}</svg>'
        '<svg class="plot" height="{}" role="img" aria-label="{}">{}{}<svg y="18" height="{}">{}</svg>{}</svg></div>'
    ).format(height, numbers, height, label, lines, note, _PLOT, body, below)


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
        '<svg class="spark" viewBox="0 0 168 24" preserveAspectRatio="none" role="img" aria-label="outcomes of the '
        'last turns, on a square-root scale">{}</svg>'
    ).format(Markup("").join(bars))


def attempts_bar(attempts: int, most: int) -> Markup:
    """Returns a small bar, as long as a record's share of the `most` attempts in its list."""
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
    return f"{at:%H:%M} UTC" if at.date() == other.date() else f"{at.day} {at:%b %H:%M} UTC"
