"""Draws the steps of a pipeline as SVG: source, then each step behind those that it takes from, then the outputs. Pure.

The figures are those that settlements store: of each step, and not of each stream. All arrows into a step meet before
it. The labels there are its tuples, the time of a call, and how many tuples failed. An arrow into an output has a
number of tuples if it is the only one out of its step. Failures are red.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from markupsafe import Markup

from ackline.handler import SOURCE, StepCounts
from ackline.ledger.metrics import StepFigures, mean_and_max
from ackline.pipeline.topology import Topology
from ackline.ui.charts import short

BOX, TALL, GAP, ROW = 150, 50, 150, 92
"""Width and height of a box, the space before a column, and from row to row; in pixels."""
SHOWN_NAME = 17
"""The most characters of a name in a box."""
_AWAY, _CHANNEL = 14, 12
"""How far behind a box its arrows turn, and the distance of arrows that pass below a column, in pixels."""

Place = tuple[int, int]


def step_picture(figures: StepFigures, topology: Topology | None, address: Callable[[str], str]) -> Markup:
    """Returns the picture of the steps; without the pipeline file's topology, there are no arrows between them.

    `address` returns where a click on a step with failures leads.
    """
    columns = _columns(figures, topology)
    column_of = {name: x for x, names in enumerate(columns) for name in names}
    places = {
        name: (GAP + x * (BOX + GAP), 22 + y * ROW) for x, names in enumerate(columns) for y, name in enumerate(names)
    }
    edges = [(start, end) for start, end in _edges(topology) if start in places and end in places]
    failed = {name for name, done in figures.steps.items() if done.failed}
    bottom = 22 + max(map(len, columns)) * ROW - (ROW - TALL)
    arrows, passing = [], 0
    for start, end in edges:
        channel = None
        if column_of[end] - column_of[start] > 1:
            channel, passing = bottom + _CHANNEL * (passing + 2), passing + 1
        arrows.append(_arrow(places[start], places[end], end in failed, channel))
    arrows += [
        _arrow((places[name][0] - GAP - BOX + 8, places[name][1]), places[name], name in failed, None)
        for name in figures.steps
        if not any(end == name for _, end in edges)
    ]
    arrows += [_tip(places[end], end in failed) for end in dict.fromkeys([end for _, end in edges] + [*figures.steps])]
    leaving = Counter(start for start, _ in edges)
    labels = [_labels(name, places[name], done) for name, done in figures.steps.items() if name in places]
    labels += [
        _tuples(places[end], short(figures.steps[start].emitted))
        for start, end in edges
        if end not in figures.steps and leaving[start] == 1 and start in figures.steps
    ]
    boxes = [_box(name, places[name], figures.steps.get(name), address) for name in places]
    width, height = len(columns) * (BOX + GAP) + 2, bottom + 18 + _CHANNEL * (passing + 1 if passing else 0)
    return Markup(
        '<svg class="steps" viewBox="0 0 {} {}" width="{}" height="{}" role="group" aria-label="the steps, from source '
        'to the outputs">{}{}{}</svg>'
    ).format(width, height, width, height, *(Markup("").join(parts) for parts in (arrows, labels, boxes)))


def _edges(topology: Topology | None) -> Sequence[tuple[str, str]]:
    if topology is None:
        return ()
    steps = [(stream.step, step.name) for step in topology.steps for stream in step.inputs]
    outputs = [(stream.step, _output_name(output)) for stream, taken in topology.outputs.items() for output in taken]
    return tuple(dict.fromkeys(steps + outputs))


def _output_name(output: object) -> str:
    return f"→ {getattr(output, 'table', None) or getattr(output, 'topic', None)}"


def _columns(figures: StepFigures, topology: Topology | None) -> list[list[str]]:
    """Returns the names of each column: a step is behind all that it takes from, and outputs are last."""
    if topology is None:
        return [[name] for name in figures.steps]
    depth = {SOURCE: 0}
    for step in topology.steps:
        depth[step.name] = 1 + max(depth.get(stream.step, 0) for stream in step.inputs)
    columns: list[list[str]] = [[] for _ in range(1 + max(depth.values()))]
    for name, column in depth.items():
        columns[column].append(name)
    outputs = [_output_name(output) for output in topology.all_outputs]
    return [*columns, list(dict.fromkeys(outputs))] if outputs else columns


def _arrow(start: Place, end: Place, is_red: bool, channel: int | None) -> Markup:
    """Returns the arrow from a box to another; `channel` is the height at which it passes below the boxes between."""
    x, y, to_x, to_y = start[0] + BOX, start[1] + TALL // 2, end[0], end[1] + TALL // 2
    turns = f"H{x + _AWAY} V{to_y}"
    if channel is not None:
        turns = f"H{x + _AWAY // 2} V{channel} H{to_x - GAP + _AWAY} V{to_y}"
    red = " bad" if is_red else ""
    return Markup('<path class="arrow{}" d="M{} {} {} H{}"/>').format(red, x, y, turns, to_x - 6)


def _tip(place: Place, is_red: bool) -> Markup:
    """Returns the arrow head at the left edge of a box, where all arrows into the box end."""
    x, y = place[0], place[1] + TALL // 2
    return Markup('<path class="tip{}" d="M{} {} l-8 -5 v10 z"/>').format(" bad" if is_red else "", x, y)


def _labels(name: str, place: Place, done: StepCounts) -> Markup:
    """Returns the labels at the arrow into a step: tuples above it, the time of a call and failures below it."""
    x, y = place[0] - 12, place[1] + TALL // 2
    mean = mean_and_max(done.execute)["mean"]
    below = [("", f"{mean:.3g} ms a call")] if mean is not None else []
    below += [(" bad", f"{short(done.failed)} failed")] if done.failed else []
    lines = Markup("").join(
        Markup('<text class="end{}" x="{}" y="{}">{}</text>').format(red, x, y + 16 + 16 * number, text)
        for number, (red, text) in enumerate(below)
    )
    return _tuples(place, short(done.executed), "records" if name == SOURCE else "tuples") + lines


def _tuples(place: Place, number: str, what: str = "tuples") -> Markup:
    return Markup('<text class="end" x="{}" y="{}">{} {}</text>').format(
        place[0] - 12, place[1] + TALL // 2 - 7, number, what
    )


def _box(name: str, place: Place, done: StepCounts | None, address: Callable[[str], str]) -> Markup:
    x, y = place
    bad = " bad" if done is not None and done.failed > 0 else ""
    shown = name if len(name) <= SHOWN_NAME else f"{name[: SHOWN_NAME - 1]}…"
    emits = "" if done is None else Markup('<text x="{}" y="{}">emits {}</text>').format(
        x + 10, y + 39, short(done.emitted)
    )  # fmt: skip
    box = Markup(
        '<g><title>{}</title><rect class="step{}" x="{}" y="{}" width="{}" height="{}" rx="6"/>'
        '<text class="name" x="{}" y="{}">{}</text>{}</g>'
    ).format(name, bad, x, y, BOX, TALL, x + 10, y + (30 if done is None else 20), shown, emits)
    if not bad:
        return box
    return Markup('<a href="{}" aria-description="the records that failed there">{}</a>').format(address(name), box)
