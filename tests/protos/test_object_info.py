"""What is known of an object stays the same from a record to the message, and from that to the caller."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import Stored, info_of, stored_of

U64 = st.integers(0, (1 << 64) - 1)
TEXT = st.text(max_size=20)
STORED = st.builds(Stored, U64, TEXT, st.integers(0, (1 << 32) - 1), U64, st.dictionaries(TEXT, TEXT, max_size=3))


@given(TEXT, TEXT, STORED)
def test_a_message_says_all_that_was_said(bucket: str, name: str, stored: Stored) -> None:
    message = pb.ObjectInfo.FromString(info_of(bucket, name, stored).SerializeToString())
    assert (message.bucket, message.name) == (bucket, name)
    assert stored_of(message) == stored


def test_no_field_is_left_out() -> None:
    stored = Stored(1, "2", 3, 4, {"a": "b"})
    message = info_of("bucket", "name", stored)
    assert {field.name for field, _ in message.ListFields()} == set(pb.ObjectInfo.DESCRIPTOR.fields_by_name)
    assert [field.name for field in fields(ObjectInfo)] == ["bucket", "name", *Stored._fields]
