"""The picture of the steps: in the order of the streams, red where tuples fail, and escaped."""

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
    picture = ET.fromstring(step_picture(FIGURES, topology(STEPS, OUTPUTS), lambda: "#failing"))
    boxes = {
        g.findtext("title"): float(box.attrib["x"]) for g in picture.iter("g") if (box := g.find("rect")) is not None
    }
    assert sorted(boxes, key=lambda name: boxes[str(name)]) == ["source", "price", "total", "→ totals"]
    texts = [text.text for text in picture.iter("text")]
    assert "300 in, 2 ms, 290 out" in texts


def test_what_fails_is_red_and_leads_to_its_records() -> None:
    picture = ET.fromstring(step_picture(FIGURES, topology(STEPS, OUTPUTS), lambda: "#failing"))
    arrows = [path.attrib["class"] for path in picture.iter("path") if "arrow" in path.attrib["class"]]
    assert arrows == ["arrow bad", "arrow", "arrow"]
    assert [link.attrib["aria-label"] for link in picture.iter("a")] == [
        "records that fail, at source", "records that fail, at price",
    ]  # fmt: skip


def test_without_the_pipeline_file_the_steps_are_shown_without_arrows_and_names_are_escaped() -> None:
    figures = StepFigures({"source": StepCounts(1), "<script>x": StepCounts()})
    picture = step_picture(figures, None, lambda: "#failing")
    assert "arrow" not in picture
    assert "<script>" not in picture
