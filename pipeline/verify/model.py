"""PTE6xx: what is published against the model, as the bundle records what was seen of it when it was built."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.verify.case import Case
from pipeline.verify.contracts import cut
from pipeline.verify.findings import Pair
from pipeline.verify.rules import ERROR, WARNING, Broken, rule

KNOWN_EXECUTORCH = ("1.5",)
"""The releases of ExecuTorch whose artifacts are known here."""

COPY_AGAIN = "Copy the bundle again"


@rule(
    "PTE601",
    "record-unreadable",
    ERROR,
    Pair.PUBLISHED_MODEL,
    "A record of the bundle is damaged, or is none that a build writes.",
    COPY_AGAIN,
)
def _unreadable(case: Case) -> Iterator[Broken]:
    for file, what in case.bundle.problems if case.bundle is not None else ():
        yield Broken(file, f"{file} {what}")


@rule(
    "PTE602",
    "caches-of-layers",
    ERROR,
    Pair.PUBLISHED_MODEL,
    "Another number of caches is published than the model's layers write.",
)
def _caches(case: Case) -> Iterator[Broken]:
    num_caches = case.published.get("get_n_caches")
    layers = case.bundle.layers if case.bundle is not None else None
    if layers is not None and num_caches is not None:
        written = {layer.cache for layer in layers}
        if written != set(range(min(num_caches, len(layers) + 1))):
            text = f"get_n_caches is {num_caches} but the model's {len(layers)} layers write {len(written)} caches"
            yield Broken("get_n_caches", f"{text}, as report.json says")


@rule(
    "PTE603",
    "heads-of-layers",
    ERROR,
    Pair.PUBLISHED_MODEL,
    "A cache is published with other KV heads than the model's layer has.",
)
def _heads(case: Case) -> Iterator[Broken]:
    yield from _against_layers(case, "get_kv_heads", "num_kv_heads", "KV heads")


@rule(
    "PTE604",
    "head-dims-of-layers",
    ERROR,
    Pair.PUBLISHED_MODEL,
    "A cache is published with another head_dim than the model's layer has.",
)
def _head_dims(case: Case) -> Iterator[Broken]:
    yield from _against_layers(case, "get_head_dims", "head_dim", "elements a head")


@rule(
    "PTE605",
    "windows-of-layers",
    ERROR,
    Pair.PUBLISHED_MODEL,
    "A cache is published with another window than the model's layer attends with.",
)
def _windows(case: Case) -> Iterator[Broken]:
    yield from _against_layers(case, "get_windows", "window", "positions of window")


def _against_layers(case: Case, name: str, field: str, unit: str) -> Iterator[Broken]:
    entries = case.entries(name)
    layers = case.bundle.layers if case.bundle is not None else None
    if layers is None or entries is None:
        return
    differing: dict[int, Broken] = {}
    for layer in layers:
        expected = getattr(layer, field)
        if field == "window" and case.context is not None and expected >= case.context:
            # No text outgrows it.
            expected = 0
        if layer.cache < len(entries) and entries[layer.cache] != expected:
            text = (
                f"{name} has {entries[layer.cache]} for cache {layer.cache} but layer {layer.layer} of the model has "
            )
            differing.setdefault(layer.cache, Broken(name, f"{text}{expected} {unit}, as report.json says"))
    # A model of the wrong geometry differs in every layer alike.
    yield from list(differing.values())[:3]
    if len(differing) > 3:
        yield Broken(name, f"{name} differs from the model's layers for {cut(sorted(differing)[3:])} too")


@rule(
    "PTE606",
    "bundle-files",
    ERROR,
    Pair.PUBLISHED_MODEL,
    "A file of the bundle is not the one that its build made.",
    COPY_AGAIN,
)
def _files(case: Case) -> Iterator[Broken]:
    for name, expected in case.bundle.sizes.items() if case.bundle is not None else ():
        assert case.bundle is not None
        try:
            found = case.bundle.directory.joinpath(name).stat().st_size
        except OSError:
            yield Broken(name, f"{name} is missing; build.json has it with {expected} bytes")
            continue
        if found != expected:
            yield Broken(name, f"{name} has {found} bytes but build.json has it with {expected}")


@rule(
    "PTE607",
    "executorch-version",
    WARNING,
    Pair.PUBLISHED_MODEL,
    "The artifact was built with a release of ExecuTorch whose artifacts are not known here.",
    "Update pte-pipeline, or try the artifact on its runner",
)
def _executorch(case: Case) -> Iterator[Broken]:
    version = case.bundle.libraries.get("executorch") if case.bundle is not None else None
    if version is not None and not version.startswith(tuple(f"{known}." for known in KNOWN_EXECUTORCH)):
        known = ", ".join(KNOWN_EXECUTORCH)
        yield Broken("executorch", f"build.json says executorch {cut(version)}; known here are {known}")
