"""PTE1xx: what each contract says of the published values. PTE2xx: what the values say of each other."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.verify import contracts
from pipeline.verify.case import OLDER_NAMES, PER_CACHE, Case
from pipeline.verify.findings import Pair
from pipeline.verify.rules import ERROR, WARNING, Broken, rule


def _broken(case: Case, how: str) -> Iterator[Broken]:
    for broken in case.broken:
        if broken.how == how:
            yield Broken(broken.subject, broken.text, str(broken.contract))


@rule("PTE101", "method-absent", ERROR, Pair.PUBLISHED, "A method that the contract requires is not published.")
def _absent(case: Case) -> Iterator[Broken]:
    return _broken(case, contracts.ABSENT)


@rule("PTE102", "wrong-kind", ERROR, Pair.PUBLISHED, "A published value is of another kind than its runner reads.")
def _kind(case: Case) -> Iterator[Broken]:
    return _broken(case, contracts.KIND)


@rule("PTE103", "wrong-tensor", ERROR, Pair.PUBLISHED, "A published tensor is of another dtype or rank than is read.")
def _tensor(case: Case) -> Iterator[Broken]:
    return _broken(case, contracts.TENSOR)


@rule(
    "PTE104", "out-of-range", ERROR, Pair.PUBLISHED, "A published value is out of range, or a code that is not known."
)
def _range(case: Case) -> Iterator[Broken]:
    return _broken(case, contracts.RANGE)


@rule(
    "PTE105",
    "no-contract",
    ERROR,
    Pair.PUBLISHED,
    "The artifact claims the contract of no runner that is known.",
    "Publish what its runner reads, or hold the artifact to a contract of your own",
)
def _no_contract(case: Case) -> Iterator[Broken]:
    if not case.claimed or case.held_to:
        return
    closest, missing = contracts.nearest(case.evidence.constants)
    some = any(name in case.evidence.constants for name in closest.methods)
    published = "some of what a runner reads" if some else "nothing that a runner of language models reads"
    yield Broken(
        "the published methods",
        f"the artifact publishes {published} and claims no contract; the nearest is {closest}, for which it lacks "
        f"{', '.join(missing)}",
    )


@rule(
    "PTE106",
    "method-advisable",
    WARNING,
    Pair.PUBLISHED,
    "A method is not published that the contract's runner can do without, at a cost.",
)
def _advisable(case: Case) -> Iterator[Broken]:
    return _broken(case, contracts.ADVISABLE)


@rule("PTE107", "schema-broken", ERROR, Pair.PUBLISHED, "The published methods together break the contract's schema.")
def _together(case: Case) -> Iterator[Broken]:
    return _broken(case, contracts.TOGETHER)


@rule("PTE201", "older-name-differs", ERROR, Pair.PUBLISHED, "Two names of one value are published with two values.")
def _older_names(case: Case) -> Iterator[Broken]:
    for new, old in OLDER_NAMES.items():
        values = [case.published.get(name) for name in (old, new)]
        if None not in values and values[0] != values[1]:
            yield Broken(old, f"{old} is {values[0]} but {new} is {values[1]}; they are two names of one value")


@rule("PTE202", "step-beyond-context", ERROR, Pair.PUBLISHED, "The largest step is longer than the context.")
def _step_in_context(case: Case) -> Iterator[Broken]:
    step, context = case.step, case.context
    if step is not None and context is not None and step > context:
        name, of_context = case.name_of("get_max_seq_len"), case.name_of("get_max_context_len")
        yield Broken(name, f"{name} is {step} but {of_context} is {context}; a step must fit the context")


@rule("PTE203", "cache-lengths", ERROR, Pair.PUBLISHED, "A per-cache value has not one entry for each cache.")
def _lengths(case: Case) -> Iterator[Broken]:
    num_caches = case.published.get("get_n_caches")
    for name in PER_CACHE:
        entries = case.entries(name)
        if num_caches is not None and entries is not None and len(entries) != num_caches:
            text = f"{name} has {len(entries)} entries but get_n_caches is {num_caches}; they describe the same caches"
            yield Broken(name, text)


@rule("PTE204", "token-beyond-vocabulary", ERROR, Pair.PUBLISHED, "A token id lies beyond the published vocabulary.")
def _token_ids(case: Case) -> Iterator[Broken]:
    vocab = case.published.get("get_vocab_size")
    bos = case.published.get("get_bos_id")
    for name, ids in (("get_eos_ids", case.stop_ids or ()), ("get_bos_id", () if bos is None else (bos,))):
        for token in ids:
            if vocab is not None and token >= vocab:
                yield Broken(name, f"{name} has {token} but get_vocab_size is {vocab}; a token id must be below it")


@rule("PTE205", "step-beyond-window", ERROR, Pair.PUBLISHED, "The largest step is longer than the narrowest window.")
def _step_in_window(case: Case) -> Iterator[Broken]:
    step = case.step
    windows = [window for window in case.entries("get_windows") or () if window > 0]
    if step is not None and windows and step > min(windows):
        name = case.name_of("get_max_seq_len")
        text = f"{name} is {step} but get_windows has {min(windows)}; a step must fit the narrowest window"
        yield Broken(name, text)
