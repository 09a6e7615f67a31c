"""Manifests become ordered steps, and a step with its inputs' digests becomes a key.

Pure: nothing here reads a model, a library or the store. What must be looked up (versions of libraries, digests of
local files, receipts) comes in through arguments.

A key is the hash of everything that can change a step's output: its spec (``pipeline.spec``), the digests of its
inputs, the versions of the libraries that shape it, the platform where results differ by it, and the source of the
modules it runs. Inputs enter by digest, not by their step's key: a step that was run again and left the same bytes
invalidates nothing after it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.manifest import Manifest
from pipeline.spec import BuildSpec, FetchSpec, HubSource, PathSource, QuantizeSpec, SmokeSpec

SCHEME = 1
"""Raise it when what a key means changes."""

FETCH, QUANTIZE, BUILD, VERIFY, SMOKE, BUNDLE = "fetch", "quantize", "build", "verify", "smoke", "bundle"
STEPS = (FETCH, QUANTIZE, BUILD, VERIFY, SMOKE, BUNDLE)

NEEDS: dict[str, tuple[str, ...]] = {
    FETCH: (),
    QUANTIZE: (FETCH,),
    BUILD: (FETCH, QUANTIZE),
    VERIFY: (FETCH, BUILD),
    SMOKE: (FETCH, QUANTIZE, BUILD),
    BUNDLE: (FETCH, QUANTIZE, BUILD, VERIFY, SMOKE),
}
"""Which steps each one comes after. A manifest that quantizes nothing has no step for it."""

LIBRARIES: dict[str, tuple[str, ...]] = {
    FETCH: ("gguf", "safetensors", "tokenizers", "torch", "transformers"),
    QUANTIZE: ("executorch", "torch", "torchao", "transformers"),
    BUILD: ("executorch", "tokenizers", "torch", "torchao", "transformers"),
    VERIFY: (),
    SMOKE: ("mlx", "numpy", "tokenizers", "torch", "transformers"),
    BUNDLE: (),
}

DEQUANTIZING_LIBRARIES = ("executorch", "torchao")
"""What computes the reference of a smoke step whose model is quantized."""

PLATFORM_MATTERS = frozenset({QUANTIZE, BUILD, SMOKE})

Spec = FetchSpec | QuantizeSpec | BuildSpec | SmokeSpec


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the outside contributes to keys: library versions, the platform, and each step's source digest."""

    version: Callable[[str], str]
    platform: str
    source: Callable[[str], str]
    local_files: Callable[[Path], Mapping[str, str]]
    """The files that a local path contributes to a snapshot, each with its sha256."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One piece of planned work of one manifest."""

    name: str
    manifest: Manifest
    spec: Spec | None

    @property
    def title(self) -> str:
        return f"{self.name}:{self.manifest.name}"

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(need for need in NEEDS[self.name] if _has(self.manifest, need))


def steps_of(manifest: Manifest) -> dict[str, Step]:
    """The manifest's steps by name, in the order they run."""
    build = build_spec(manifest)
    specs: dict[str, Spec | None] = {
        FETCH: FetchSpec(source=manifest.model.source),
        QUANTIZE: QuantizeSpec(dtype=manifest.dtype, quantization=manifest.quantization),
        BUILD: build,
        VERIFY: build,
        SMOKE: SmokeSpec(prompts=manifest.smoke),
        BUNDLE: None,
    }
    return {name: Step(name=name, manifest=manifest, spec=specs[name]) for name in STEPS if _has(manifest, name)}


def build_spec(manifest: Manifest) -> BuildSpec:
    """What the manifest's ``.pte`` is made to be."""
    return BuildSpec(
        dtype=manifest.dtype,
        linear=manifest.quantization.linear,
        embedding=manifest.quantization.embedding,
        max_seq_len=manifest.max_seq_len,
        max_context_len=manifest.max_context_len,
        placement=manifest.cache.placement,
        backend=manifest.backend,
        logits=manifest.logits,
    )


def _has(manifest: Manifest, name: str) -> bool:
    return name != QUANTIZE or manifest.quantization.asked


def asked_of(step: Step, inputs: Mapping[str, str], around: Surroundings) -> dict[str, Any]:
    """All that the step's key is hashed from, readable. ``inputs`` maps the files it is given to their sha256."""
    libraries = LIBRARIES[step.name]
    if step.name == SMOKE and step.manifest.quantization.asked:
        libraries = tuple(sorted({*libraries, *DEQUANTIZING_LIBRARIES}))
    spec = asdict(step.spec) if step.spec is not None else {"name": step.manifest.name, "model": step.manifest.model.id}
    files = dict(inputs)
    if isinstance(step.spec, FetchSpec):
        source = step.spec.source
        if isinstance(source, PathSource):
            # A local model is its files; where they lie does not matter.
            spec, files = {"source": "path"}, dict(around.local_files(source.path))
        if isinstance(source, HubSource) or (isinstance(source, PathSource) and source.path.suffix != ".gguf"):
            # Copied as it is; only GGUF is converted.
            libraries = ()
    asked: dict[str, Any] = {
        "scheme": SCHEME,
        "step": step.name,
        "spec": spec,
        "inputs": files,
        "libraries": {name: around.version(name) for name in libraries},
        "source": around.source(step.name),
    }
    if step.name in PLATFORM_MATTERS:
        asked["platform"] = around.platform
    return asked


def key_of(asked: Mapping[str, Any]) -> str:
    """The key: sha256 of the canonical JSON of what was asked."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
