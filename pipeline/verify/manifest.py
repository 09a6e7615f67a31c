"""PTE4xx: what is published, and what the graph does, against what the artifact was to be.

That is a manifest's word, or else what the bundle's own record says it was built from.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.evidence import BACKEND, QuantizedFormat
from pipeline.pte.flatbuffer import quoted
from pipeline.verify.asked import IN_MLX, Weights
from pipeline.verify.case import Case
from pipeline.verify.findings import Pair
from pipeline.verify.rules import ERROR, Broken, rule

_DELEGATES = {"mlx": BACKEND}


def _as_asked(case: Case, name: str, found: object, asked: object) -> Iterator[Broken]:
    if found is not None and found != asked:
        yield Broken(name, f"{name} says {found} but {case.asker} {asked}")


@rule(
    "PTE401", "dtype-as-asked", ERROR, Pair.PUBLISHED_MANIFEST, "Another activation dtype is published than asked for."
)
def _dtype(case: Case) -> Iterator[Broken]:
    if case.asked is not None:
        yield from _as_asked(case, "get_activation_dtype", case.dtype, case.asked.dtype)


@rule("PTE402", "logits-as-asked", ERROR, Pair.PUBLISHED_MANIFEST, "Another logits mode is published than asked for.")
def _logits(case: Case) -> Iterator[Broken]:
    if case.asked is not None:
        yield from _as_asked(case, "get_logits_to_keep_mode", case.mode, case.asked.logits)


@rule("PTE403", "step-as-asked", ERROR, Pair.PUBLISHED_MANIFEST, "Another largest step is published than asked for.")
def _step(case: Case) -> Iterator[Broken]:
    if case.asked is not None:
        yield from _as_asked(case, case.name_of("get_max_seq_len"), case.step, case.asked.max_seq_len)


@rule(
    "PTE404", "context-as-asked", ERROR, Pair.PUBLISHED_MANIFEST, "Another context length is published than asked for."
)
def _context(case: Case) -> Iterator[Broken]:
    if case.asked is not None:
        yield from _as_asked(case, case.name_of("get_max_context_len"), case.context, case.asked.max_context_len)


@rule(
    "PTE405",
    "backend-as-asked",
    ERROR,
    Pair.GRAPH_MANIFEST,
    "forward calls delegates of another backend than asked for.",
)
def _backend(case: Case) -> Iterator[Broken]:
    if case.asked is None or case.forward is None:
        return
    backend = _DELEGATES.get(case.asked.backend, case.asked.backend)
    others = sorted(set(case.forward.delegates) - {backend})
    if others or not case.forward.delegates:
        listed = ", ".join(map(quoted, others)) or "no delegate"
        yield Broken("forward", f"forward calls {listed} but {case.asker} backend {case.asked.backend}, {backend}")


@rule("PTE406", "placement-as-asked", ERROR, Pair.GRAPH_MANIFEST, "The KV cache lies elsewhere than asked for.")
def _placement(case: Case) -> Iterator[Broken]:
    if case.asked is None or case.graph is None:
        return
    found = "off_graph" if case.graph.attends else "in_graph"
    if found != case.asked.placement:
        where = "outside of it" if case.graph.attends else "nowhere but in it"
        text = f"the graph has its KV cache {where} but {case.asker} cache.placement {case.asked.placement}"
        yield Broken("cache.placement", text)


@rule("PTE407", "linear-as-asked", ERROR, Pair.GRAPH_MANIFEST, "Linear layers are quantized otherwise than asked for.")
def _linear(case: Case) -> Iterator[Broken]:
    if case.asked is not None and case.graph is not None:
        # A head that is tied to the embedding multiplies by weights of the embedding's format.
        admitted = _in_mlx(case.asked.linear) | _in_mlx(case.asked.embedding)
        yield from _weights(case, "linear", "linear layers", case.asked.linear, case.graph.multiplied, admitted)


@rule("PTE408", "embedding-as-asked", ERROR, Pair.GRAPH_MANIFEST, "Embeddings are quantized otherwise than asked for.")
def _embedding(case: Case) -> Iterator[Broken]:
    if case.asked is not None and case.graph is not None:
        admitted = _in_mlx(case.asked.embedding)
        yield from _weights(case, "embedding", "embeddings", case.asked.embedding, case.graph.looked_up, admitted)


def _weights(
    case: Case,
    field: str,
    kind: str,
    form: Weights,
    held: frozenset[QuantizedFormat],
    admitted: frozenset[QuantizedFormat],
) -> Iterator[Broken]:
    """Quantized weights of a kind are there as asked for, and none otherwise.

    Layers that the manifest skips are not told apart: they are left as they are, beside others of their kind.
    """
    for found in sorted(held - admitted):
        yield Broken(
            f"quantization.{field}",
            f"the graph has {kind} with {found.mode} weights of {found.bits} bits in groups of {found.group_size} "
            f"but {case.asker} {form if form.quantized else 'none that are quantized'}",
        )
    if form.quantized and not held & _in_mlx(form):
        yield Broken(f"quantization.{field}", f"the graph has no {kind} as {form} but {case.asker} them")


def _in_mlx(form: Weights) -> frozenset[QuantizedFormat]:
    """What MLX makes of a format; a scale of a whole row is repeated for groups of the largest size that divides it."""
    if not form.quantized:
        return frozenset()
    mode, bits = IN_MLX[form.scheme]
    return frozenset(
        QuantizedFormat(mode, bits, size) for size in ((form.group_size,) if form.group_size else (32, 64, 128))
    )
