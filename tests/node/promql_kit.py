"""PromQL checker: enough of the language to find out whether a query can mean anything on given metrics.

It knows selectors, functions over ranges, aggregations, arithmetic and comparisons, and follows which labels each step
leaves. `check` raises AssertionError: for a metric or label that is not exported, a counter that is not under rate(), a
gauge that is, quantiles without `le`, operands whose labels do not match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

TARGET_LABELS = frozenset({"instance", "job"})
"""Added by Prometheus itself."""
_RATES = {"rate", "irate", "increase"}
_AGGREGATIONS = {"sum", "max", "min", "avg", "count"}
_TOKEN = re.compile(r'\s*([A-Za-z_:][\w:]*|\d+(?:\.\d+)?|"[^"]*"|=~|!~|!=|==|>=|<=|[(){}\[\],=*/+<>-]|\$\w+)')


@dataclass
class Series:
    """All samples of one name."""

    kind: str
    values: dict[str, set[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Vector:
    """What an expression gives. `raw` is a counter's own value, `buckets` the rates of a histogram's buckets."""

    labels: frozenset[str]
    raw: bool = False
    buckets: bool = False
    scalar: float | None = None


def exported(text: str) -> dict[str, Series]:
    """Every sample name of a scrape, with its labels and their values."""
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = found.setdefault(sample.name, Series(family.type))
            for label, value in sample.labels.items():
                series.values.setdefault(label, set()).add(value)
    return found


def check(expression: str, metrics: dict[str, Series]) -> frozenset[str]:
    """The labels of the result."""
    parser = _Parser(expression, metrics)
    result = parser.expression()
    assert not parser.tokens, f"{parser.tokens[0]!r} where {expression!r} should end"
    assert not result.raw, f"a counter that is not under rate(): {expression}"
    assert not result.buckets, f"buckets, not a quantile of them: {expression}"
    return result.labels


class _Parser:
    def __init__(self, expression: str, metrics: dict[str, Series]) -> None:
        self._metrics = metrics
        self.tokens: list[str] = []
        self.used: set[str] = set()
        at = 0
        while at < len(expression):
            match = _TOKEN.match(expression, at)
            assert match, f"not PromQL at {expression[at:]!r}"
            self.tokens.append(match[1])
            at = match.end()

    def _next(self, wanted: str | None = None) -> str:
        assert self.tokens, f"the query ends where {wanted or 'more'} was due"
        token = self.tokens.pop(0)
        assert wanted is None or token == wanted, f"{token!r} where {wanted!r} was due"
        return token

    def _at(self, *tokens: str) -> bool:
        return bool(self.tokens) and self.tokens[0] in tokens

    def expression(self) -> Vector:
        """Precedence does not matter here: every operator asks the same of its operands."""
        left = self._operand()
        while self._at("+", "-", "*", "/", "==", "!=", ">", "<", ">=", "<="):
            self._next()
            left = self._combined(left, self._operand())
        return left

    @staticmethod
    def _combined(left: Vector, right: Vector) -> Vector:
        for side in (left, right):
            assert not side.raw and not side.buckets, "arithmetic on a counter that is not under rate()"
        if left.scalar is not None:
            return right
        assert right.scalar is not None or left.labels == right.labels, (
            f"one side has the labels {sorted(left.labels)}, the other {sorted(right.labels)}"
        )
        return Vector(left.labels)

    def _operand(self) -> Vector:
        token = self._next()
        if token == "(":
            inner = self.expression()
            self._next(")")
            return inner
        if token[0].isdigit():
            return Vector(frozenset(), scalar=float(token))
        if token in _AGGREGATIONS:
            return self._aggregation()
        if token in _RATES:
            self._next("(")
            name, labels = self._selector(self._next())
            self._next("[")
            assert self._next() == "$__rate_interval", "a rate over a range that does not follow the panel's resolution"
            self._next("]")
            self._next(")")
            assert self._monotonic(name), f"{token}() of the gauge {name}"
            return Vector(labels, buckets=name.endswith("_bucket"))
        if token == "histogram_quantile":
            self._next("(")
            quantile = self._operand().scalar
            assert quantile is not None and 0 < quantile < 1, "a quantile lies between 0 and 1"
            self._next(",")
            buckets = self.expression()
            self._next(")")
            assert buckets.buckets and "le" in buckets.labels, "a quantile of what are not a histogram's buckets by le"
            return Vector(buckets.labels - {"le"})
        assert not self._at("("), f"{token}() is not known here"
        name, labels = self._selector(token)
        return Vector(labels, raw=self._monotonic(name))

    def _aggregation(self) -> Vector:
        self._next("by")
        self._next("(")
        by = set()
        while not self._at(")"):
            by.add(self._next())
            if self._at(","):
                self._next()
        self._next(")")
        self._next("(")
        inner = self.expression()
        self._next(")")
        assert not inner.raw, "an aggregation of a counter that is not under rate()"
        assert by <= inner.labels, f"by {sorted(by - inner.labels)}, but there is only {sorted(inner.labels)}"
        return Vector(frozenset(by), buckets=inner.buckets)

    def _monotonic(self, name: str) -> bool:
        return self._metrics[name].kind in ("counter", "histogram")

    def _selector(self, name: str) -> tuple[str, frozenset[str]]:
        assert name in self._metrics, f"{name} is not exported"
        series = self._metrics[name]
        labels = TARGET_LABELS | series.values.keys()
        if self._at("{"):
            self._next()
            while not self._at("}"):
                label, operator, value = self._next(), self._next(), self._next().strip('"')
                assert label in labels, f"{name} has no label {label}"
                if operator == "=":
                    assert value in series.values.get(label, ()), f"{name} has no {label} {value!r}"
                else:
                    assert operator == "=~" and value == f"${label}", f"{label}{operator}{value}"
                if self._at(","):
                    self._next()
            self._next("}")
        return name, frozenset(labels)


def legend_labels(legend: str) -> Iterable[str]:
    return re.findall(r"{{\s*(\w+)\s*}}", legend)
