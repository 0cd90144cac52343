"""Remote prices: what requests to remote storage, and the bytes that come from it, cost by the list prices.

Users replace them with a file, which has a section for each scheme:

    [s3]
    get = 0.0004       # of 1,000 requests: get, head, list, put, delete
    bytes_in = 0.09    # of 1 GB: bytes_in, bytes_out

What is left out keeps its list price.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping

from ais_loader.errors import InvalidRequest
from ais_loader.wire.remote import SCHEMES

KEYS = ("get", "head", "list", "put", "delete", "bytes_in", "bytes_out")
_REQUESTS = {"get": 0.0004, "head": 0.0004, "list": 0.005, "put": 0.005, "delete": 0.0}
_READ = "2026-11-27"
LIST_PRICES: dict[str, dict[str, float]] = {scheme: dict.fromkeys(KEYS, 0.0) for scheme in SCHEMES} | {
    scheme: _REQUESTS | {"bytes_in": 0.0, "bytes_out": 0.0} for scheme in ("s3", "gs", "az")
}
"""Prices in US dollars: of 1,000 requests of a class, and of 1 GB (10^9 bytes), by scheme."""
ASSUMPTIONS = (
    f"Approximate list prices in US dollars, entered on {_READ} and not checked for your region, where bytes are free: "
    "S3 Standard, Google Cloud Storage Standard, Azure Blob Storage Hot LRS. Replace them with --prices. Not included: "
    "storage, transfer to other regions and the internet (bytes_in), retrieval from colder classes, taxes, discounts. "
    "The parts of a large PUT count as one request."
)


def prices_of(text: str, origin: str) -> dict[str, dict[str, float]]:
    """Return the list prices with those of a file in their place.

    Args:
        text: TOML.
        origin: Name of the file, for messages.

    Raises InvalidRequest.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{origin} is not valid TOML: {error}") from None
    table = {scheme: dict(prices) for scheme, prices in LIST_PRICES.items()}
    for scheme, prices in found.items():
        if scheme not in table or not isinstance(prices, dict):
            raise InvalidRequest(f"{origin}: {scheme!r} is no section; they are {', '.join(table)}")
        for key, price in prices.items():
            is_price = isinstance(price, (int, float)) and not isinstance(price, bool) and 0 <= price < math.inf
            if key not in KEYS or not is_price:
                raise InvalidRequest(f"{origin}: [{scheme}] {key} = {price!r}: need a price for {', '.join(KEYS)}")
            table[scheme][key] = float(price)
    return table


def price_of(requests: Mapping[str, int], bytes_in: int, bytes_out: int, prices: Mapping[str, float]) -> float:
    """Return the price in US dollars of requests by class, and of bytes."""
    of_requests = sum(prices.get(kind, 0.0) * count for kind, count in requests.items()) / 1000
    return of_requests + (prices["bytes_in"] * bytes_in + prices["bytes_out"] * bytes_out) / 10**9
