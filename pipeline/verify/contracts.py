"""The contracts of runners: which there are, which of them an artifact claims, and where it breaks one.

A contract is data: a JSON Schema over the methods that a runner reads, with what a schema cannot say under keys of
ours (``docs/contracts.md``). Those that ship are in ``schemas/contracts/``; ``pipeline.verify.contract_files`` reads a
user's own. Does not know what the methods mean to each other: rules do, and a contract names those it brings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from pipeline import schema
from pipeline.errors import ContractError
from pipeline.verify.findings import Severity
from pipeline.verify.keywords import Violation, violations

FOLDER = "contracts"

ABSENT, ADVISABLE, KIND, TENSOR, RANGE, TOGETHER = "absent", "advisable", "kind", "tensor", "range", "together"
"""The ways in which published values break a contract, as ``Broken.how`` has them."""

_MAX_SHOWN = 60


@dataclass(frozen=True, kw_only=True, eq=False)
class Contract:
    """One generation of what a runner reads.

    ``rules`` are the ids of the rules about more than one value that it brings, ``severities`` those of rules that
    matter more or less to its runner. It is claimed by publishing any of ``claimed_by``, unless one of
    ``not_claimed_by`` is published too. ``advisable`` maps methods that the runner can do without to what that costs.
    ``violations`` finds what published values break in its schema.
    """

    name: str
    version: str | None
    title: str
    schema: Mapping[str, Any]
    rules: frozenset[str] = frozenset()
    severities: Mapping[str, Severity]
    claimed_by: tuple[str, ...] = ()
    not_claimed_by: tuple[str, ...] = ()
    advisable: Mapping[str, str]
    violations: Callable[[Mapping[str, Any], Any], Iterable[Violation]] = violations

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"

    @property
    def methods(self) -> Mapping[str, Any]:
        """What the schema says of each method that it names."""
        named: Mapping[str, Any] = self.schema.get("properties", {})
        return named

    def is_claimed_by(self, constants: Mapping[str, Any]) -> bool:
        """Whether an artifact that publishes these says that it is made for the contract's runner."""
        published = constants.keys()
        return not published.isdisjoint(self.claimed_by) and published.isdisjoint(self.not_claimed_by)


class Broken(NamedTuple):
    """One method of an artifact that breaks a contract; ``subject`` is its name, or the contract's."""

    contract: Contract
    subject: str
    how: str
    text: str


@cache
def known() -> tuple[Contract, ...]:
    """The contracts that ship, by name and version."""
    return tuple(map(_shipped, schema.names(FOLDER)))


def claimed(constants: Mapping[str, Any]) -> tuple[Contract, ...]:
    """Those of the shipped contracts that an artifact claims by what it publishes."""
    return tuple(contract for contract in known() if contract.is_claimed_by(constants))


def find(name_or_path: str) -> Contract:
    """The shipped contract of a name, of its last version or of the one behind an ``@``; or that of a schema's file.

    Raises ContractError when there is none, or when the file is no schema that values can be held to.
    """
    matching = [contract for contract in known() if name_or_path in (contract.name, str(contract))]
    if matching:
        return matching[-1]
    if os.sep in name_or_path or name_or_path.endswith(".json") or os.path.exists(name_or_path):  # noqa: PTH110
        from pipeline.verify import contract_files

        return contract_files.read(name_or_path)
    raise ContractError(
        f"contract {name_or_path!r}: there is no such contract; expected one of {', '.join(map(str, known()))}, or the "
        "path of a JSON schema. Correct the name."
    )


def nearest(constants: Mapping[str, Any]) -> tuple[Contract, list[str]]:
    """The shipped contract of which most methods are published, then fewest missing; and those, for one unclaimed."""

    def missing(contract: Contract) -> list[str]:
        absent = [broken.subject for broken in broken_in(contract, constants) if broken.how == ABSENT]
        return absent or [name for name in contract.claimed_by if name not in constants]

    def nearness(contract: Contract) -> tuple[int, int]:
        return sum(name in constants for name in contract.methods), -len(missing(contract))

    closest = max(known(), key=nearness)
    return closest, missing(closest)


def broken_in(contract: Contract, constants: Mapping[str, Any]) -> list[Broken]:
    """What an artifact breaks in a contract: at most one entry a method, in the order of the contract's methods."""
    found: dict[str, Broken] = {}
    seen: set[tuple[object, ...]] = set()
    for violation in contract.violations(contract.schema, dict(constants)):
        # Every entry of a long list may break the same, and is told of once.
        same = (*violation.path[:1], violation.keyword, violation.path and _how(violation))
        if same in seen:
            continue
        seen.add(same)
        for broken in _told(contract, constants, violation):
            known_one = found.get(broken.subject)
            if known_one is None or _SERIOUSNESS.index(broken.how) < _SERIOUSNESS.index(known_one.how):
                found[broken.subject] = broken
    for name, cost in contract.advisable.items():
        if name not in constants:
            text = f"{name} is missing; expected {_expected(contract, name)}, since {cost}"
            found.setdefault(name, Broken(contract, name, ADVISABLE, text))
    order = {name: index for index, name in enumerate(contract.methods)}
    return sorted(found.values(), key=lambda broken: order.get(broken.subject, len(order)))


def unsound(constants: Mapping[str, Any]) -> set[str]:
    """The methods of shipped contracts that publish what a contract refuses. No rule need expect such values."""
    return {
        name
        for contract in known()
        for name, said in contract.methods.items()
        if name in constants and any(True for _ in violations(said, constants[name]))
    }


_SERIOUSNESS = (ABSENT, TENSOR, KIND, RANGE, TOGETHER)


def _told(contract: Contract, constants: Mapping[str, Any], violation: Violation) -> Iterator[Broken]:
    if violation.missing and not violation.path:
        for name in violation.missing:
            text = f"{name} is missing; expected {_expected(contract, name)}"
            yield Broken(contract, name, ABSENT, text + _former(contract, name, constants))
        return
    if not violation.path:
        text = f"the published methods together break {violation.keyword!r} of the contract's schema"
        yield Broken(contract, str(contract), TOGETHER, text)
        return
    name = str(violation.path[0])
    text = f"{name} is {shown(constants[name])}; expected {_expected(contract, name, violation.keyword)}"
    yield Broken(contract, name, _how(violation), text)


def _how(violation: Violation) -> str:
    _, *inner = violation.path
    if inner[:1] in (["dtype"], ["sizes"]):
        return TENSOR
    return KIND if violation.keyword in ("type", "required") else RANGE


def _expected(contract: Contract, name: str, keyword: str = "type") -> str:
    """What the contract wants of a method, to stand after 'expected'."""
    said = contract.methods.get(name)
    if not isinstance(said, Mapping):
        return "what the contract's schema says of it"
    if "x-expected" in said:
        return str(said["x-expected"])
    return f"{keyword} {cut(said[keyword])}" if keyword in said else "what the contract's schema says of it"


def _former(contract: Contract, name: str, constants: Mapping[str, Any]) -> str:
    said = contract.methods.get(name)
    former = said.get("x-formerly") if isinstance(said, Mapping) else None
    return f" ({former}, its older name, is published)" if former in constants else ""


def shown(value: Any) -> str:
    """A published value, fit for a message."""
    if isinstance(value, dict):
        return f"a tensor of {value['dtype']} {value['sizes']} with {cut(value['values'])}"
    return cut(value)


def cut(value: Any) -> str:
    """Any value, fit for a message."""
    # What does not fit is not spelt out first: a tensor may have a million entries.
    text = repr(value[:_MAX_SHOWN] if isinstance(value, list | tuple | str) else value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _shipped(name: str) -> Contract:
    rules = schema.load(name)
    stem, _, version = name.removeprefix(f"{FOLDER}/").partition("@")
    return of_schema(stem, version, rules)


def of_schema(name: str, version: str | None, rules: Mapping[str, Any]) -> Contract:
    """The contract in a schema whose keys are sound."""
    return Contract(
        name=name,
        version=version,
        title=rules.get("title", name),
        schema=rules,
        rules=frozenset(rules.get("x-rules", ())),
        severities={rule: Severity[level.upper()] for rule, level in rules.get("x-severities", {}).items()},
        claimed_by=tuple(rules.get("x-claimed-by", ())),
        not_claimed_by=tuple(rules.get("x-not-claimed-by", ())),
        advisable=rules.get("x-advisable", {}),
    )
