"""A rehearsal of decoding, in eager mode: does the model keep to what the off-graph cache gives it?

A model may keep more than K and V from token to token, or count positions by itself. Where it puts things that it
keeps is looked at first, since that names the cause; then a short text is fed in different ways, and the last logits
must not tell which. What comes out is no judgement of the model's answers: smoke compares those.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pipeline.contract import CacheGeometry
from pipeline.errors import ExportError
from pipeline.model.attention import silenced, stepping
from pipeline.model.float32 import in_float32
from pipeline.model.forward import OffGraphForward, failures_explained
from pipeline.model.oracle import OracleCache, active
from pipeline.model.rope import in_first_regime

LENGTH = 8
STEPS = (3, 4, 1)

TOLERANCE = 1e-3
"""Of the logits' spread, in float32. Rounding, which depends on how many rows a product has, left at most 2e-5 over
every model type, tiny, and over 30 layers of SmolLM2-135M; the least loss that was seen, a scale of the queries that
counts from the step's first token, left 2e-2. In bf16 and fp16 rounding alone leaves up to 0.24 over those 30 layers:
no tolerance would tell it from a loss, so weights are widened to float32 for the rehearsal."""


def rehearse(model: Any, caches: Sequence[CacheGeometry], *, max_context_len: int) -> None:
    """Feeds a few tokens in one step, in several, and in one whose positions the model counts itself.

    Raises ExportError when the model keeps other numbers than K and V, when the last token's logits differ between
    those ways, or when the model fails at the last position of the context. Takes three passes of eight tokens in
    float32, and twice the memory of bf16 weights meanwhile.
    """
    _refuse_kept_state(model)
    forward = OffGraphForward(model)
    text = _text(model)
    with torch.no_grad(), failures_explained(model), in_float32(model):
        whole = _stepped(forward, caches, text, (LENGTH,))
        in_steps = _stepped(forward, caches, text, STEPS)
        counted = _counted_by_the_model(model, caches, text)
    for what, logits in (
        ("come in three steps instead of one: it keeps something that the off-graph cache does not hold", in_steps),
        ("are given positions instead of being counted by the model: it embeds positions in a way of its own", counted),
    ):
        off = float((logits - whole).abs().max() / whole.std())
        if not off <= TOLERANCE:
            raise ExportError(
                f"model type '{_model_type(model)}': its logits differ by {off:.2g} of their spread when {LENGTH} "
                f"tokens {what}. It cannot be exported with the off-graph cache."
            )
    _check_last_position(forward, text[:, :1], max_context_len)


def _check_last_position(forward: OffGraphForward, token: torch.Tensor, max_context_len: int) -> None:
    """A table of positions may end before the context does, which a runtime would not notice."""
    try:
        with torch.no_grad(), silenced(), failures_explained(forward.model):
            forward(token, torch.tensor([max_context_len - 1]))
    except ExportError as error:
        raise ExportError(
            f"max_context_len is {max_context_len}; the model does not reach position {max_context_len - 1}. Lower "
            f"max_context_len. ({error})"
        ) from error


def _refuse_kept_state(model: Any) -> None:
    """Raises ExportError when a forward pass leaves numbers behind other than K and V, in its cache or its modules."""
    tokens = torch.arange(LENGTH)[None]
    before = [(tensor, tensor._version) for _, tensor in _kept_by_modules(model)]
    # Beyond its first regime the rotary embedding keeps frequencies; no artifact gets there.
    with silenced(), stepping(tokens), torch.no_grad(), failures_explained(model), in_first_regime(model):
        output = model(input_ids=tokens, position_ids=tokens, use_cache=True)
    # A tensor's version counts the writes in place.
    untouched = {(id(tensor), version) for tensor, version in before}
    for where, tensor in itertools.chain(_kept_by_caches(output), _kept_by_modules(model)):
        if (id(tensor), tensor._version) not in untouched:
            raise ExportError(
                f"model type '{_model_type(model)}': {where} is kept from one step to the next, and the off-graph "
                "cache holds K and V alone. It cannot be exported with the off-graph cache."
            )


_Kept = tuple[str, torch.Tensor]
"""Where a tensor is kept, and the tensor."""


def _kept_by_modules(model: Any) -> Iterator[_Kept]:
    for name, module in model.named_modules():
        yield from _numbers_in(f"'{name}'", vars(module) | module._buffers, {"_parameters", "_buffers", "_modules"})


def _kept_by_caches(output: Any) -> Iterator[_Kept]:
    for cache in output.values():
        layers = getattr(cache, "layers", None)
        if layers is None:
            continue
        yield from _numbers_in("its cache", vars(cache), {"layers"})
        for index, layer in enumerate(layers):
            yield from _numbers_in(f"layer {index} of its cache", vars(layer), {"keys", "values"})


def _numbers_in(where: str, attributes: dict[str, Any], but: set[str]) -> Iterator[_Kept]:
    for name, kept in attributes.items():
        if name not in but:
            for tensor in _tensors_in(kept):
                yield f"{name} in {where}", tensor


def _tensors_in(kept: Any) -> Iterator[torch.Tensor]:
    """Floating-point ones; counters are found by their effect."""
    if isinstance(kept, torch.Tensor):
        if kept.is_floating_point() and not isinstance(kept, torch.nn.Parameter):
            yield kept
    elif isinstance(kept, dict | list | tuple):
        for item in kept.values() if isinstance(kept, dict) else kept:
            yield from _tensors_in(item)


def padding_ids(model: Any) -> set[int]:
    """Token ids that are padding to a part of the model, which some models do not count."""
    config = model.config.get_text_config()
    padding = {getattr(config, "pad_token_id", None), *(getattr(m, "padding_idx", None) for m in model.modules())}
    return {token for token in padding if token is not None}


def _text(model: Any) -> torch.Tensor:
    """Token ids [1, LENGTH], none of them padding."""
    padding = padding_ids(model)
    return torch.tensor([[token for token in range(LENGTH + len(padding)) if token not in padding][:LENGTH]])


def _stepped(
    forward: OffGraphForward, caches: Sequence[CacheGeometry], text: torch.Tensor, steps: Sequence[int]
) -> torch.Tensor:
    """Logits of the last token, [vocab]."""
    start = 0
    with active(OracleCache(caches, capacity=LENGTH)):
        for length in steps:
            positions = torch.arange(start, start + length)
            logits = forward(text[:, positions], positions)
            if logits.shape[1] != 1:
                raise ExportError(
                    f"model type '{_model_type(forward.model)}': it returns {logits.shape[1]} rows of logits and was "
                    "asked for the last one alone (logits_to_keep=1). It cannot be exported."
                )
            start += length
    row: torch.Tensor = logits[0, 0].float()
    return row


def _counted_by_the_model(model: Any, caches: Sequence[CacheGeometry], text: torch.Tensor) -> torch.Tensor:
    with active(OracleCache(caches, capacity=LENGTH)), stepping(torch.arange(LENGTH)[None]):
        logits = model(input_ids=text, use_cache=False).logits
    row: torch.Tensor = logits[0, -1].float()
    return row


def _model_type(model: Any) -> str:
    return str(model.config.get_text_config().model_type)
