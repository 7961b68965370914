"""`ackline init` finds the shape of records, shows none of their values, and writes files that work as they are."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ackline.forms.scaffold import (
    RecordShape,
    Scaffold,
    ValueKind,
    name_for,
    shape_of,
    text_of_handler,
    text_of_pipeline,
    text_of_test,
)
from ackline.handler import Tier, tier_of
from ackline.pipeline.pipeline import load

ORDER = json.dumps({"id": "o-1", "amount": 5, "items": [], "paid": True, "note": None, "to": {}}).encode()
FIELDS = {"id": "text", "amount": "number", "items": "list", "paid": "boolean", "note": "null", "to": "object"}


@pytest.mark.parametrize(("values", "shape"), [
    ([], RecordShape(ValueKind.NONE, 0)),
    ([None, None], RecordShape(ValueKind.NONE, 2, 2)),
    ([ORDER] * 3, RecordShape(ValueKind.JSON_OBJECT, 3, 0, FIELDS)),
    ([ORDER] * 9 + [None, b"{cut off"], RecordShape(ValueKind.JSON_OBJECT, 11, 1, FIELDS)),
    ([ORDER, b"[1]", b"5", b'"x"'], RecordShape(ValueKind.JSON, 4)),
    ([b"plain", b"text"], RecordShape(ValueKind.TEXT, 2)),
    ([b"\0\0\0\0\x07avro"] * 2, RecordShape(ValueKind.REGISTRY, 2)),
    ([b"\xff\xfe"], RecordShape(ValueKind.BINARY, 1)),
    ([b"[" * 100_000], RecordShape(ValueKind.TEXT, 1)),
])  # fmt: skip
def test_the_shape_is_that_of_most_records(values: list[bytes | None], shape: RecordShape) -> None:
    assert shape_of(values) == shape


def test_a_field_that_one_record_lacks_is_not_required() -> None:
    values = [json.dumps({"id": 1, "note": "x"}).encode()] * 99 + [b'{"id": 2}']
    made = scaffold("orders", shape_of(values))
    assert dict(made.shape.fields) == {"id": "number"}
    assert '"note"' not in text_of_handler(made) + text_of_test(made)


def test_i13_a_key_that_is_data_is_no_field() -> None:
    """Some formats have the customer's id as a key. Such a key is in one record, or is no identifier."""
    values = [json.dumps({f"customer_{number}": 1, "a b": 1, "id": number}).encode() for number in range(20)]
    assert shape_of(values).fields == {"id": "number"}


@given(st.lists(st.none() | st.binary(max_size=30)))
def test_any_bytes_have_a_shape(values: list[bytes | None]) -> None:
    shape = shape_of(values)
    assert (shape.records, shape.nulls) == (len(values), values.count(None))


TOPIC = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in (".", ".."))
WORDS = st.sampled_from(["text", "number", "boolean", "list", "object", "null"])
NAMES = st.from_regex(r"[A-Za-z_]\w{0,39}", fullmatch=True)
SHAPES = st.builds(
    lambda kind, fields: RecordShape(kind, 5, 1, fields if kind is ValueKind.JSON_OBJECT else {}),
    st.sampled_from(ValueKind), st.dictionaries(NAMES, WORDS, max_size=20),
)  # fmt: skip


def scaffold(topic: str, shape: RecordShape, broker: str | None = None, dead: str | None = None) -> Scaffold:
    name = name_for(topic)
    return Scaffold(name, (topic,), f"{name}-replay", broker, dead, shape)


def run_its_test(made: Scaffold) -> list[str]:
    """Runs the generated test against the generated handler; returns the names of what has passed."""
    handler = ModuleType(f"handlers.{made.module}")
    exec(compile(text_of_handler(made), "handler", "exec"), handler.__dict__)  # noqa: S102
    assert tier_of(handler.handle) is Tier.RECORD
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, handler.__name__, handler)
        patch.setattr("ackline.pipeline.folder.make_handlers_importable", lambda: None)
        names: dict[str, object] = {}
        exec(compile(text_of_test(made), "test", "exec"), names)  # noqa: S102
    passed = []
    for name, test in names.items():
        if name.startswith("test_") and callable(test):
            cases: list[tuple[object, ...]] = [(None,), ([],), ({},)] if "another_shape" in name else [()]
            for arguments in cases:
                test(*arguments)
            passed.append(name)
    return passed


@given(TOPIC, SHAPES, st.sampled_from([None, "127.0.0.1:9092"]), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_topic_and_its_records_what_is_written_works(
    tmp_path: Path, topic: str, shape: RecordShape, broker: str | None, has_dead_letters: bool
) -> None:
    dead = f"{topic}.dead" if has_dead_letters and len(topic) < 244 else None
    made = scaffold(topic, shape, broker, dead)
    path = tmp_path / "x.yaml"
    path.write_text(text_of_pipeline(made))
    pipeline = load(path)
    assert (pipeline.name, pipeline.kafka.topics, pipeline.kafka.group_id) == (made.name, [topic], made.group_id)
    assert (pipeline.dead_letter_topic, pipeline.kafka.bootstrap_servers) == (dead, broker)
    assert re.fullmatch(r"[a-z_]\w*", made.module, re.ASCII)
    assert run_its_test(made)[0] == "test_a_record_of_the_usual_shape_is_acked"


@pytest.mark.parametrize(
    ("kind", "decoders"),
    [(ValueKind.JSON_OBJECT, ("bytes", "json")), (ValueKind.TEXT, ("bytes", "utf8")), (ValueKind.BINARY, None),
     (ValueKind.REGISTRY, None)],
)  # fmt: skip
def test_the_values_are_decoded_as_their_shape_suggests(
    tmp_path: Path, kind: ValueKind, decoders: tuple[str, str] | None
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text_of_pipeline(scaffold("orders", RecordShape(kind, 1))))
    translation = load(path).translation
    assert (translation and (translation.streams[0].key, translation.streams[0].value)) == decoders


def test_the_handler_fails_without_a_field_that_each_record_had_and_gives_nothing_up() -> None:
    made = scaffold("orders", RecordShape(ValueKind.JSON_OBJECT, 5, 0, {"id": "text", "items": "list"}))
    assert len(run_its_test(made)) == 2
    assert '"id"' in text_of_handler(made)
    assert "raise Dead" not in text_of_handler(made)


def test_the_file_has_a_breaker(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text_of_pipeline(scaffold("orders", RecordShape(ValueKind.NONE, 0))))
    breaker = load(path).breaker
    assert breaker is not None
    assert (breaker.failure_ratio, breaker.min_records) == (0.5, 100)
