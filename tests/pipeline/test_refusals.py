"""No text of pydantic's own reaches a user: each kind of its errors has a sentence of ours, at every key."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core._pydantic_core import list_all_errors

from ackline.pipeline import yaml_file
from ackline.pipeline.pipeline import Pipeline
from ackline.pipeline.refusals import OUR_KINDS, known_keys, nearest_key, refusal
from tests.support.pipeline_files import GOOD

KEYS = sorted(known_keys(Pipeline))
WRONG_VALUES: list[Any] = [
    None, True, 0, -1, 5, 2**70, 1.5, float("nan"), float("inf"), "", "hunter2", "x" * 300, "\0", [], [1], [[]], [None],
    {}, {"hunter2": 1}, {"hunter2": []}, {5: 1}, {"": {}}, {"hunter2": {"x": {}}}, b"x",
    datetime(2026, 1, 1, tzinfo=UTC),
]  # fmt: skip
WORDS_OF_PYDANTIC = ("Input should", "should be", "should have", "valid dict", "instance of", "pydantic",
                     "Extra inputs", "Field required", "Value error", "Keys should", "Unable to")  # fmt: skip


def kinds_of_errors() -> list[Any]:
    return [error for error in list_all_errors() if error["type"] not in OUR_KINDS]


def message(tmp_path: Path, error: ValidationError) -> str:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    return str(refusal(path, yaml_file.read(path)[0], error.errors(include_url=False), Pipeline))


def value_at(key: tuple[str, ...], value: object) -> dict[str, Any]:
    for part in reversed(key):
        value = [{part: value}] if key[:1] == ("streams",) and key[1:2] == (part,) else {part: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("key", KEYS, ids=".".join)
def test_no_wrong_value_of_any_key_shows_a_text_of_pydantic(tmp_path: Path, key: tuple[str, ...]) -> None:
    content = yaml.safe_load(GOOD)
    for wrong in WRONG_VALUES:
        changed = value_at(key, wrong)
        top = {**content.get(key[0], {}), **changed[key[0]]} if key[0] == "kafka" and len(key) > 1 else changed[key[0]]
        try:
            Pipeline.model_validate({**content, key[0]: top})
        except ValidationError as error:
            shown = message(tmp_path, error)
            for problem in error.errors():
                if problem["type"] not in OUR_KINDS:
                    assert problem["msg"] not in shown
            assert not [words for words in WORDS_OF_PYDANTIC if words in shown], shown


@pytest.mark.parametrize("kind", kinds_of_errors(), ids=lambda kind: str(kind["type"]))
def test_every_kind_of_error_has_a_sentence_at_every_key(tmp_path: Path, kind: dict[str, Any]) -> None:
    context = kind.get("example_context") or {}
    for key in KEYS:
        details = InitErrorDetails(type=kind["type"], loc=key, input="hunter2", ctx=context)
        error = ValidationError.from_exception_data("Pipeline", [details])
        shown = message(tmp_path, error)
        assert error.errors()[0]["msg"] not in shown
        assert "write" in shown or "settings.md" in shown or "key" in shown
        assert kind["type"] == "literal_error" or "hunter2" not in shown


def test_the_kinds_of_our_own_errors_are_not_those_of_pydantic_except_for_value_error(tmp_path: Path) -> None:
    assert OUR_KINDS & {error["type"] for error in list_all_errors()} == {"value_error"}
    for kind in OUR_KINDS - {"value_error"}:
        details = InitErrorDetails(type=PydanticCustomError(kind, "write this"), loc=("name",), input=5)
        assert message(tmp_path, ValidationError.from_exception_data("x", [details])).endswith("name: write this")


@pytest.mark.parametrize(
    ("key_path", "nearest"),
    [(("retrys",), "retry"), (("retry", "max_retrys"), "max_retries"), (("kafka", "group"), "group_id"),
     (("max-rate",), "max_rate"), (("bootstrap_servers",), "kafka.bootstrap_servers"),
     (("max_retries",), "retry.max_retries"), (("streams", 0, "handlr"), "handler"), (("retry", "klass"), "class"),
     (("zzz",), None), (("kafka", "properties", "x"), None)],
)  # fmt: skip
def test_an_unknown_key_gets_the_nearest_known_one(key_path: tuple[str | int, ...], nearest: str | None) -> None:
    assert nearest_key(Pipeline, key_path) == nearest
