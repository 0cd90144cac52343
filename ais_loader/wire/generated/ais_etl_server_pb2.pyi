from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ServerInput(_message.Message):
    __slots__ = ("path", "args", "file", "put_url", "put_token", "data", "last")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    PUT_URL_FIELD_NUMBER: _ClassVar[int]
    PUT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    path: str
    args: str
    file: str
    put_url: str
    put_token: str
    data: bytes
    last: bool
    def __init__(self, path: _Optional[str] = ..., args: _Optional[str] = ..., file: _Optional[str] = ..., put_url: _Optional[str] = ..., put_token: _Optional[str] = ..., data: _Optional[bytes] = ..., last: bool = ...) -> None: ...

class ServerOutput(_message.Message):
    __slots__ = ("data", "last", "error", "receipt", "put_failed")
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    PUT_FAILED_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    last: bool
    error: str
    receipt: str
    put_failed: bool
    def __init__(self, data: _Optional[bytes] = ..., last: bool = ..., error: _Optional[str] = ..., receipt: _Optional[str] = ..., put_failed: bool = ...) -> None: ...
