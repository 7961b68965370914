"""The picture of the steps: in the order of the streams, with figures at the arrows, red where tuples fail, escaped."""

import re
import xml.etree.ElementTree as ET

from ackline.handler import Durations, StepCounts
from ackline.ledger.metrics import StepFigures
from ackline.pipeline.outputs import OutputBlock
from ackline.pipeline.topology import StepBlock, topology
from ackline.ui.step_chart import step_picture

STEPS = [
    StepBlock.model_validate({"name": "price", "handler": "a:b", "input": ["source"]}),
    StepBlock.model_validate({"name": "total", "handler": "a:c", "input": ["price"]}),
]
OUTPUTS = [OutputBlock.model_validate({"from": ["total"], "table": "totals"})]
FIGURES = StepFigures(
    {
        "source": StepCounts(100, 300, 90, 10),
        "price": StepCounts(300, 290, 290, 10, Durations(300, 600_000_000, 9_000_000)),
        "total": StepCounts(290, 90, 290, 0),
    }
)


def test_each_step_is_behind_those_that_it_takes_from_and_outputs_are_last() -> None:
    picture = ET.fromstring(step_picture(FIGURES, topology(STEPS, OUTPUTS), lambda step: f"?step={step}"))
    boxes = {
        g.findtext("title"): float(box.attrib["x"]) for g in picture.iter("g") if (box := g.find("rect")) is not None
    }
    assert sorted(boxes, key=lambda name: boxes[str(name)]) == ["source", "price", "total", "→ totals"]


def test_tuples_times_and_failures_stand_at_the_arrow_into_their_step() -> None:
    picture = ET.fromstring(step_picture(FIGURES, topology(STEPS, OUTPUTS), lambda step: f"?step={step}"))
    boxes = {
        str(g.findtext("title")): float(box.attrib["x"])
        for g in picture.iter("g")
        if (box := g.find("rect")) is not None
    }
    texts: dict[str, list[str]] = {name: [] for name in boxes}
    for text in picture.iter("text"):
        if "end" in text.attrib.get("class", ""):
            name = min(boxes, key=lambda name: abs(boxes[name] - float(text.attrib["x"])))
            assert boxes[name] - float(text.attrib["x"]) == 12, "left of the box, at its arrow"
            texts[name].append(str(text.text))
    assert texts == {
        "source": ["100 records", "10 failed"],
        "price": ["300 tuples", "2 ms a call", "10 failed"],
        "total": ["290 tuples"],
        "→ totals": ["90 tuples"],
    }
    assert [text.text for text in picture.iter("text") if "bad" in text.attrib.get("class", "")] == ["10 failed"] * 2


def test_an_arrow_that_passes_by_a_step_runs_below_it() -> None:
    steps = [STEPS[0], StepBlock.model_validate({"name": "total", "handler": "a:c", "input": ["price", "source.head"]})]
    picture = ET.fromstring(step_picture(FIGURES, topology(steps, ()), lambda step: ""))
    boxes = list(picture.iter("rect"))
    lowest = max(float(box.attrib["y"]) + float(box.attrib["height"]) for box in boxes)
    paths = [path.attrib["d"] for path in picture.iter("path") if "arrow" in path.attrib["class"]]
    depths = [max(float(y) for y in re.findall(r"V([0-9.]+)", path)) for path in paths]
    assert sum(depth > lowest for depth in depths) == 1


def test_what_fails_is_red_and_leads_to_its_records() -> None:
    picture = ET.fromstring(step_picture(FIGURES, topology(STEPS, OUTPUTS), lambda step: f"?step={step}"))
    arrows = [path.attrib["class"] for path in picture.iter("path") if "arrow" in path.attrib["class"]]
    assert arrows == ["arrow bad", "arrow", "arrow", "arrow bad"], "the last one leads into source"
    assert [link.attrib["href"] for link in picture.iter("a")] == ["?step=source", "?step=price"]


def test_without_the_pipeline_file_the_steps_are_shown_without_arrows_and_names_are_escaped() -> None:
    figures = StepFigures({"source": StepCounts(1), "<script>x": StepCounts()})
    picture = step_picture(figures, None, lambda step: f"?step={step}")
    assert picture.count('class="arrow') == 2, "one into each step"
    assert "<script>" not in picture
