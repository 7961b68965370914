"""Messages of a class that the pipeline file names, without a schema registry."""

from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from ackline.handler import Record
from ackline.pipeline.messages import message_decoder
from ackline.pipeline.streams import Undecodable
from tests.ledger.strategies import REPEATABLE
from tests.support.shop_messages import DECODED, Label, order

RECORD = Record("orders", 0, 0, None, None, None, (), 1)
DECODE = message_decoder("tests.support.shop_messages:Order", "value")


def test_a_message_is_what_message_to_dict_makes_of_it_with_the_names_of_the_file() -> None:
    assert DECODE(order().SerializeToString(), RECORD) == DECODED
    assert MessageToDict(order(), preserving_proto_field_name=True) == DECODED
    assert DECODE(b"", RECORD) == {}, "without bytes each field has its default"
    label = message_decoder("tests.support.shop_messages:Label", "key")
    assert label(Label(text="top").SerializeToString(), RECORD) == {"text": "top"}
    time = message_decoder("google.protobuf.timestamp_pb2:Timestamp", "key")
    assert time(b"\x08\x00", RECORD) == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "data",
    [
        order().SerializeToString()[:-1],
        b"Alice",
        b"\x12\x07\x0a\x05Al\xffce",  # a name that is not UTF-8
        order(placed_at=None).SerializeToString() + b"\x42\x0b\x08" + b"\x80" * 9 + b"\x01",  # a time before the year 1
    ],
)
def test_s44_bytes_that_are_no_message_of_the_class_are_undecodable_and_not_quoted(data: bytes) -> None:
    with pytest.raises(Undecodable, match=r"the value is no message of .*:Order: ") as raised:
        DECODE(data, RECORD)
    assert "Al" not in str(raised.value)


@REPEATABLE
@given(st.binary() | st.binary().map(lambda more: order().SerializeToString() + more))
def test_i17_any_bytes_are_decoded_or_undecodable_and_nothing_else(data: bytes) -> None:
    with suppress(Undecodable):
        decoded: Any = DECODE(data, RECORD)
        assert isinstance(decoded, dict)
