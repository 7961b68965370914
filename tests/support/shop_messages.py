"""Message classes of a shop, as protoc would generate them from three files that import each other."""

from datetime import UTC, datetime
from typing import Any

from google.protobuf import text_format, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

MONEY = """
name: "shop/money.proto" package: "shop" syntax: "proto3"
message_type { name: "Money"
  field { name: "currency" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "units" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL } }
"""
CUSTOMER = """
name: "shop/customer.proto" package: "shop" syntax: "proto3" dependency: "shop/money.proto"
message_type { name: "Customer"
  field { name: "full_name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "credit" number: 2 type: TYPE_MESSAGE type_name: ".shop.Money" label: LABEL_OPTIONAL } }
"""
ORDER = """
name: "shop/order.proto" package: "shop" syntax: "proto3"
dependency: "shop/customer.proto" dependency: "shop/money.proto" dependency: "google/protobuf/timestamp.proto"
message_type { name: "Line"
  field { name: "sku" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "count" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL } }
message_type { name: "Order"
  field { name: "order_id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "customer" number: 2 type: TYPE_MESSAGE type_name: ".shop.Customer" label: LABEL_OPTIONAL }
  field { name: "total" number: 3 type: TYPE_MESSAGE type_name: ".shop.Money" label: LABEL_OPTIONAL }
  field { name: "lines" number: 4 type: TYPE_MESSAGE type_name: ".shop.Line" label: LABEL_REPEATED }
  field { name: "by_shelf" number: 5 type: TYPE_MESSAGE type_name: ".shop.Order.ByShelfEntry" label: LABEL_REPEATED }
  field { name: "status" number: 6 type: TYPE_ENUM type_name: ".shop.Status" label: LABEL_OPTIONAL }
  field { name: "seal" number: 7 type: TYPE_BYTES label: LABEL_OPTIONAL }
  field { name: "placed_at" number: 8 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  nested_type { name: "ByShelfEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL } }
  nested_type { name: "Parcel"
    nested_type { name: "Label" field { name: "text" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } } } }
enum_type { name: "Status" value { name: "OPEN" number: 0 } value { name: "CANCELLED" number: 1 } }
"""

POOL = DescriptorPool()
POOL.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
for _text in (MONEY, CUSTOMER, ORDER):
    POOL.Add(text_format.Parse(_text, FileDescriptorProto()))


def _message(name: str) -> Any:
    return GetMessageClass(POOL.FindMessageTypeByName(f"shop.{name}"))


Line, Money, Customer, Order = map(_message, ("Line", "Money", "Customer", "Order"))
Label = _message("Order.Parcel.Label")


def order(**fields: Any) -> Any:
    """An order of Alice's with a value in each field, but for `fields`."""
    filled: dict[str, Any] = {
        "order_id": 123_456_789_012,
        "customer": Customer(full_name="Alice", credit=Money(currency="EUR", units=5)),
        "total": Money(currency="XTS", units=7),
        "lines": [Line(sku="tea", count=2), Line(sku="pot")],
        "by_shelf": {"left": 1},
        "status": 1,
        "seal": b"\0\xff",
        "placed_at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    }
    return Order(**{**filled, **fields})


DECODED = {
    "order_id": "123456789012",
    "customer": {"full_name": "Alice", "credit": {"currency": "EUR", "units": "5"}},
    "total": {"currency": "XTS", "units": "7"},
    "lines": [{"sku": "tea", "count": 2}, {"sku": "pot"}],
    "by_shelf": {"left": 1},
    "status": "CANCELLED",
    "seal": "AP8=",
    "placed_at": "2023-11-14T22:13:20Z",
}
"""What a handler gets of `order()`."""
