"""Protobuf messages: the class that a pipeline file may name for them, and what a handler gets of a message.

Nothing of Protobuf is imported before a pipeline decodes with it.
"""

import inspect
from typing import TYPE_CHECKING, Any

from ackline.errors import ConfigError
from ackline.handler import Record, imported_for
from ackline.pipeline.streams import Decode, Undecodable

if TYPE_CHECKING:
    from google.protobuf.message import Message


def load_message_class(path: str, key: str) -> "type[Message]":
    """Imports the message class that the pipeline file names at `key` as `module:Class`.

    Raises ConfigError if it does not import or is no class of Protobuf messages, and if Protobuf is not installed.
    """
    found: object = imported_for(key, path)
    try:
        from google.protobuf.message import Message
    except ImportError as error:
        advice = "pip install 'ackline[schema-registry]'"
        raise ConfigError(f"{key} {path} needs Protobuf, which does not import: {error}; {advice}", key=key) from error
    # The base class of all messages has no descriptor, and parses nothing.
    if inspect.isclass(found) and issubclass(found, Message) and getattr(found, "DESCRIPTOR", None) is not None:
        return found
    raise ConfigError(
        f"{key} {path} is no class of Protobuf messages ({type(found).__name__}); name one that protoc has generated, "
        f"such as handlers.orders_pb2:Order",
        key=key,
    )


def message_decoder(path: str, field: str) -> Decode:
    """Returns the decoder of bare messages of a class, without the id of a schema before them. `field`, `key` or
    `value`, is for error texts. Raises what `load_message_class` raises."""
    parse = load_message_class(path, f"decode.{field}").FromString

    def decode(data: bytes, record: Record) -> Any:
        try:
            return content_of(parse(data))
        except Exception as error:  # the bytes also cause TypeError, ValueError and RecursionError
            raise Undecodable(f"the {field} is no message of {path}: {type(error).__name__}") from None

    return decode


def content_of(message: "Message") -> Any:
    """Returns what `json_format.MessageToDict` returns with `preserving_proto_field_name`: a dict, or for a message
    with a JSON form of its own, such as a Timestamp, that form. Raises what MessageToDict raises."""
    from google.protobuf.json_format import MessageToDict

    # An Any may hold a message of the schema itself, whose types are in no pool but its own.
    return MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=message.DESCRIPTOR.file.pool)
