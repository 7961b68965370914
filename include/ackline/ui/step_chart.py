"""Draws the steps of a pipeline as SVG: source, then each step behind those that it takes from, then the outputs. Pure.

The figures are those that settlements store: of each step, and not of each stream. So the numbers of a step stand in
its box, and an arrow is red where the step that it leads to has failures.
"""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from ackline.handler import SOURCE, StepCounts
from ackline.ledger.metrics import StepFigures, mean_and_max
from ackline.pipeline.topology import Topology
from ackline.ui.charts import short

BOX, TALL, GAP, ROW = 180, 66, 64, 88
"""Width and height of a box, the space between two columns, and from row to row."""
SHOWN_NAME = 22
"""The most characters of a name in a box."""


def step_picture(figures: StepFigures, topology: Topology | None, address: Callable[[], str]) -> Markup:
    """Returns the picture. Without a topology, which the pipeline file has, the steps have no arrows.

    `address` returns where a click on a step with failures leads.
    """
    columns = _columns(figures, topology)
    places = {
        name: (8 + x * (BOX + GAP), 8 + y * ROW) for x, names in enumerate(columns) for y, name in enumerate(names)
    }
    failed = {name for name, done in figures.steps.items() if done.failed}
    arrows = [_arrow(places[start], places[end], end in failed) for start, end in _edges(topology) if end in places]
    boxes = [_box(name, places[name], figures.steps.get(name), address) for name in places]
    width = 16 + len(columns) * (BOX + GAP) - GAP
    height = 16 + max(map(len, columns)) * ROW - (ROW - TALL)
    return Markup(
        '<svg class="steps" viewBox="0 0 {} {}" width="{}" height="{}" role="group" aria-label="the steps, from source '
        'to the outputs">{}{}</svg>'
    ).format(width, height, width, height, Markup("").join(arrows), Markup("").join(boxes))


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
    return [*columns, outputs] if outputs else columns


def _arrow(start: tuple[int, int], end: tuple[int, int], is_red: bool) -> Markup:
    x, y, to_x, to_y = start[0] + BOX, start[1] + TALL // 2, end[0], end[1] + TALL // 2
    middle = to_x - GAP // 2
    return Markup('<path class="arrow{}" d="M{} {} H{} V{} H{}"/><path class="tip{}" d="M{} {} l-8 -5 v10 z"/>').format(
        " bad" if is_red else "", x, y, middle, to_y, to_x - 6, " bad" if is_red else "", to_x, to_y
    )


def _box(name: str, place: tuple[int, int], done: StepCounts | None, address: Callable[[], str]) -> Markup:
    x, y = place
    bad = done is not None and done.failed > 0
    shown = name if len(name) <= SHOWN_NAME else f"{name[: SHOWN_NAME - 1]}…"
    lines = [Markup('<text class="name" x="{}" y="{}">{}</text>').format(x + 10, y + 19, shown)]
    if done is not None:
        mean = mean_and_max(done.execute)["mean"]
        time = "" if mean is None else f", {mean:.3g} ms"
        lines.append(
            Markup('<text x="{}" y="{}">{} in{}, {} out</text>').format(
                x + 10, y + 38, short(done.executed), time, short(done.emitted)
            )
        )
        lines.append(
            Markup('<text{} x="{}" y="{}">{} failed</text>').format(
                Markup(' class="bad"') if bad else "", x + 10, y + 56, short(done.failed)
            )
        )
    box = Markup('<g><title>{}</title><rect class="step{}" x="{}" y="{}" width="{}" height="{}" rx="6"/>{}</g>').format(
        name, " bad" if bad else "", x, y, BOX, TALL, Markup("").join(lines)
    )
    if not bad:
        return box
    return Markup('<a href="{}" aria-label="records that fail, at {}">{}</a>').format(address(), name, box)
