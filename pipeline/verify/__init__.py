"""Does a ``.pte`` publish the truth? Its values against contracts, each other, its graph, and what lies beside it.

====================  ==================================================================
``findings``          what a report consists of
``contracts``         what runners read: the contracts that ship, which one a file claims
``keywords``          the keywords of JSON Schema that those use
``contract_files``    a user's own contract
``rules``             the register of rules
``published``         PTE1xx and PTE2xx: the values, and the values against each other
``graph``             PTE3xx: against ``forward`` and its graph
``manifest``          PTE4xx: against what was asked for
``tokenizer``         PTE5xx: against the tokenizer, which ``tokenizer_files`` reads
``model``             PTE6xx: against the model, of which ``bundle`` reads what is recorded
``file``              PTE7xx: the file itself
``case``              what a rule looks at
====================  ==================================================================

Runs nothing. What a file cannot show is not checked: windows leave no trace in a graph, the logits mode none beyond
the logits' shape, and K/V shapes are compared where they follow from the graph (the summary says when some do not).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pipeline.evidence import BACKEND, Evidence, heads_and_dim
from pipeline.pte import PteFile
from pipeline.pte.flatbuffer import quoted

# Importing the rules' modules registers their rules.
from pipeline.verify import bundle, contracts, file, graph, manifest, model, published, tokenizer, tokenizer_files
from pipeline.verify.asked import Asked
from pipeline.verify.bundle import ARTIFACT
from pipeline.verify.case import Case
from pipeline.verify.contracts import Contract
from pipeline.verify.findings import Finding, Pair, Report, Rule, Severity
from pipeline.verify.rules import REGISTERED, Registered
from pipeline.verify.tokenizer_files import Absent, Tokenizer, Unreadable

if TYPE_CHECKING:
    from pipeline.spec import BuildSpec

__all__ = [
    "RULES",
    "Contract",
    "Finding",
    "Pair",
    "Question",
    "Report",
    "Rule",
    "Severity",
    "contracts",
    "examine",
    "summary",
]

RULE_MODULES = (published, graph, manifest, tokenizer, model, file)
"""Where the rules are."""

RULES: Mapping[str, Rule] = MappingProxyType({id_: REGISTERED[id_].rule for id_ in sorted(REGISTERED)})
"""Every rule, by id and in the order of the ids."""

_OF_A_CONTRACT = ("PTE2", "PTE3")
"""The groups of rules that a file is held to where a contract brings them; those of the others always apply."""

_FOR_EVERY_FILE = ("PTE321",)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a file is held to.

    ``contracts`` are those of its runners; ``None`` are all that it claims. ``asked`` is what a manifest asks for, and
    ``tokenizer`` a tokenizer's directory or ``tokenizer.json``; ``None`` is what lies beside a bundle's ``model.pte``.
    """

    contracts: tuple[Contract, ...] | None = None
    asked: BuildSpec | None = None
    tokenizer: Path | None = None


def examine(path: Path, question: Question = Question()) -> Report:
    """Everything that is found about a ``.pte``, or about the ``model.pte`` of a bundle's directory.

    Raises PteError when the file cannot be read.
    """
    # Unlike Path's, it takes whatever the system says against a path for a no.
    artifact = path / ARTIFACT if os.path.isdir(path) else path  # noqa: PTH112
    with PteFile.open(artifact) as pte:
        evidence = Evidence.of(pte)
        size_bytes = pte.size_bytes
    beside = artifact.parent if artifact.name == ARTIFACT else None
    found, problem, reason = _tokenizer(question.tokenizer, beside)
    recorded = bundle.read(beside) if beside is not None else None
    case = Case.of(
        evidence,
        held_to=question.contracts,
        asked=None if question.asked is None else Asked.of(question.asked),
        tokenizer=found,
        tokenizer_problem=problem,
        bundle=recorded,
    )
    return Report(
        file=str(artifact),
        size_bytes=size_bytes,
        contracts=tuple(map(str, case.held_to)),
        compared=_compared(case, reason),
        summary=summary(case),
        findings=check(case),
    )


def check(case: Case) -> tuple[Finding, ...]:
    """Every rule that is broken in a case, in the order of their ids. What several contracts say is told once."""
    found: dict[tuple[str, str, str], tuple[Registered, list[str], list[Severity]]] = {}
    brought = {id_: [contract for contract in case.held_to if id_ in contract.rules] for id_ in RULES}
    by_name = {str(contract): contract for contract in case.held_to}
    for id_ in RULES:
        registered = REGISTERED[id_]
        if id_.startswith(_OF_A_CONTRACT) and id_ not in _FOR_EVERY_FILE and not brought[id_]:
            continue
        for broken in registered.find(case):
            asking = [by_name[broken.contract]] if broken.contract is not None else brought[id_]
            _, names, levels = found.setdefault((id_, broken.subject, broken.text), (registered, [], []))
            names += map(str, asking)
            levels += [contract.severities.get(id_, registered.rule.severity) for contract in asking]
    return tuple(
        Finding(
            rule=replace(registered.rule, severity=max(levels, default=registered.rule.severity)),
            subject=subject,
            message=f"{text}. {registered.advice}.",
            contract=", ".join(names) or None,
        )
        for (_, subject, text), (registered, names, levels) in found.items()
    )


def _tokenizer(given: Path | None, beside: Path | None) -> tuple[Tokenizer | None, Unreadable | None, str | None]:
    """The tokenizer; or what is wrong with it, and why it is not compared."""
    if given is None and (beside is None or not tokenizer_files.lies_in(beside)):
        return None, None, "no tokenizer was given, and no tokenizer.json lies beside a bundle's model.pte"
    place = given if given is not None else beside
    assert place is not None, "a tokenizer was given, or lies beside"
    try:
        return tokenizer_files.read(place), None, None
    except Unreadable as problem:
        return None, problem, str(problem)
    except Absent as reason:
        return None, None, str(reason)


def _compared(case: Case, tokenizer_reason: str | None) -> dict[Pair, str | None]:
    asked = "no manifest was given, and no build.json of a bundle says what was asked for"
    graph_reason = None
    if case.forward is None:
        graph_reason = "there is no method 'forward'"
    elif case.graph is None:
        graph_reason = (
            f"forward's signature is compared, its graph is not: it calls {_delegates(case)}, and one {BACKEND} alone "
            "is looked into"
        )
    layers = "no report.json of a build lies beside it and says what layers the model has"
    return {
        Pair.PUBLISHED: None,
        Pair.PUBLISHED_GRAPH: graph_reason,
        Pair.PUBLISHED_MANIFEST: None if case.asked is not None else asked,
        Pair.GRAPH_MANIFEST: graph_reason if case.asked is not None else asked,
        Pair.PUBLISHED_TOKENIZER: tokenizer_reason,
        Pair.PUBLISHED_MODEL: None if case.bundle is not None and case.bundle.layers is not None else layers,
        Pair.FILE: None,
    }


def _delegates(case: Case) -> str:
    delegates = case.forward.delegates if case.forward is not None else ()
    counts = {name: delegates.count(name) for name in dict.fromkeys(delegates)}
    told = [quoted(name) + (f" ({count} times)" if count > 1 else "") for name, count in counts.items()]
    return ", ".join(told[:3]) or "no delegate"


def summary(case: Case) -> str:
    """What is published in a few words, as far as it is sound."""
    said = case.published
    words = []
    if "get_n_caches" in said:
        words.append(f"{said['get_n_caches']} caches")
    if "get_vocab_size" in said:
        words.append(f"vocab {said['get_vocab_size']}")
    if case.dtype is not None:
        words.append(case.dtype)
    if case.step is not None:
        words.append(f"steps of {case.step}" + (f" in {case.context} tokens" if case.context is not None else ""))
    if case.mode is not None:
        words.append(f"{case.mode} logits")
    if case.forward is not None and case.graph is None:
        words.append(f"calls {_delegates(case)}")
    unknown = sum(heads_and_dim(attend.key) is None for attend in case.graph.attends) if case.graph else 0
    if unknown:
        words.append(f"K/V shapes of {unknown} caches do not follow from the graph")
    return ", ".join(words)
