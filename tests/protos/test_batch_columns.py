"""Every field of a BatchRequest has its place, and parts of a request say together what the whole said."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.transport.cluster.routing import Columns
from ais_loader.wire.batch_columns import (
    ANSWERING,
    ENTRY_COLUMNS,
    PER_REQUEST,
    SHARED,
    add_entries,
    carry_over,
    entry_values,
)
from ais_loader.wire.generated import ais_batch_pb2 as pb
from tests.table import table

FIELDS = pb.BatchRequest.DESCRIPTOR.fields


def filled() -> pb.BatchRequest:
    """A request of three entries in which every field is set."""
    request = pb.BatchRequest()
    for field in FIELDS:
        value: object = True if field.type == FieldDescriptor.TYPE_BOOL else 2
        if field.type == FieldDescriptor.TYPE_STRING:
            value = f"some {field.name}"
        if field.name == "transform":
            request.transform.add().stage.add(name="upper", args='{"n": 1}')
        elif field.message_type is not None:
            getattr(request, field.name).update({"epoch": "3"})
        elif field.name in ENTRY_COLUMNS or field.name == "bucket":
            getattr(request, field.name).extend([value] * 3)
        else:
            setattr(request, field.name, value)
    assert len(request.ListFields()) == len(FIELDS)
    return request


def test_every_field_is_in_one_group() -> None:
    groups = [*ENTRY_COLUMNS, *SHARED, *ANSWERING, *PER_REQUEST]
    assert sorted(groups) == sorted(field.name for field in FIELDS)


@table("fields", [SHARED, ANSWERING, (*SHARED, *ANSWERING), PER_REQUEST])
def test_what_is_carried_over_is_what_was_named(fields: tuple[str, ...]) -> None:
    request, part = filled(), pb.BatchRequest()
    carry_over(request, part, fields)
    assert {field.name for field, _ in part.ListFields()} == set(fields)
    assert all(getattr(part, name) == getattr(request, name) for name in fields)


def test_a_part_of_a_merged_batch_has_nothing_of_another_request() -> None:
    part = Columns(filled()).select([1])
    assert not {field.name for field, _ in part.ListFields()} & set(PER_REQUEST)


@given(st.data())
def test_parts_have_each_entry_once_with_all_its_columns(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    request = pb.BatchRequest(bucket=["a", "b"], name=[f"k{at}" for at in range(n)])
    for column, values in (
        ("bucket_index", [at % 2 for at in range(n)]),
        ("member", [f"m{at}" for at in range(n)]),
        ("start", range(n)),
        ("length", [-1] * n),
        ("version", [str(at) for at in range(n)]),
    ):
        if data.draw(st.booleans()):
            getattr(request, column).extend(values)
    order = data.draw(st.permutations(range(n)))
    cut = data.draw(st.integers(0, n))
    whole = pb.BatchRequest()
    for positions in (order[:cut], order[cut:]):
        add_entries(whole, entry_values(Columns(request).select(positions)), range(len(positions)))
    for column in ENTRY_COLUMNS:
        values = getattr(request, column)
        assert list(getattr(whole, column)) == [values[at] for at in order if values]
