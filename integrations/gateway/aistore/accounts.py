"""Who a request comes from: a key of the key file, or a token of the store, as `Authorization: Bearer`."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping

from ais_loader import errors
from ais_loader.objects.client import Client

from ..clients import MAX_ACCESS_KEY, Account, Clients
from .request import AISError

_BEARER = "bearer "


def client_for(
    headers: Mapping[str, str], keys: Mapping[str, Account] | None, clients: Clients
) -> tuple[Client | Callable[[], Client], str]:
    """Return the client for a request, and its access key.

    For a token of the store that is not known, the client is a function that opens and checks it, which waits.

    Args:
        keys: Accounts by access keys. None: everything is open.

    Raises AISError with 401.
    """
    if keys is None:
        return clients.of(None), ""
    given = headers.get("authorization", "")
    if given[: len(_BEARER)].lower() != _BEARER:
        raise AISError(401, "need Authorization: Bearer ACCESS_KEY:SECRET_KEY, or a token of the store")
    token = given[len(_BEARER) :].strip()
    account = _account(token, keys)
    if account is not None:
        return clients.of(account), account.access_key
    if ":" in token or not token:
        raise AISError(401, "the access key or its secret key is not valid")
    known = clients.of_token(token)
    return (known if known is not None else lambda: _open(token, clients)), ""


def _account(token: str, keys: Mapping[str, Account]) -> Account | None:
    # An access key may have colons itself. Each is tried, so that their number has to be limited.
    for at, letter in enumerate(token[: MAX_ACCESS_KEY + 1]):
        account = keys.get(token[:at]) if letter == ":" else None
        if account is not None:
            given = token[at + 1 :].encode("utf-8", "replace")
            if hmac.compare_digest(given, account.secret_key.encode()):
                return account
    return None


def _open(token: str, clients: Clients) -> Client:
    try:
        return clients.open_token(token)
    except (errors.AccessDenied, errors.InvalidRequest):
        raise AISError(401, "the store does not accept this token") from None
