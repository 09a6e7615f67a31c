"""Attention over a KV cache that lives outside the graph, as a Transformers attention implementation.

Each attention call of a model loaded with ``attn_implementation=IMPLEMENTATION`` emits one
``kvcache::update_and_attend`` (executorch/extension/llm/cache/update_and_attend.py): it is given this step's queries,
keys and values with their positions, and the runtime owns the history. The op masks by position, causally, and
by the window that the artifact publishes for the call's cache; it can honour nothing else. So every argument that
Transformers passes is accounted for here: passed on, known to change nothing, or refused.

A forward pass runs inside ``stepping``. Positions are the step's, whatever a layer is told: models shift those that
they embed, and some tell their attention none. Caches are numbered in the order of their first write, whatever a
layer calls itself: layers may attend twice, not at all, or read what another one wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.errors import ExportError
from pipeline.model.masks import MaskFunction, window_of

if TYPE_CHECKING:
    import torch

IMPLEMENTATION = "pte_off_graph"

# Arguments that provably change nothing when they carry these values: the step sees only its own K/V, so there is no
# cache to use or to place into, and attention weights that nobody asked for are not returned.
HARMLESS: dict[str, tuple[object, ...]] = {
    "cache": (None,),
    "cache_position": (None,),
    "is_causal": (None, True),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "output_router_logits": (None, False),
    "past_key_value": (None,),
    "past_key_values": (None,),
    "return_dict": (None, True, False),
    "use_cache": (None, False),
}

# Arguments of the whole forward pass that some models hand down to attention, which has no use for any value of them.
# Queries that were dropped because nobody keeps their logits are refused below, by their number.
MEANT_FOR_OTHERS = frozenset({"logits_to_keep"})


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """One call of attention, as the model made it, and the cache that it writes or reads.

    ``layer`` is what the layer that made it calls itself; some have no number.
    """

    layer: int | None
    cache_id: int
    num_kv_heads: int
    head_dim: int
    window: int
    """Positions a query reaches back, itself included; 0 is all of them."""


@dataclass
class Step:
    """One forward pass: its tokens' positions, [1, T], and the K/V that attention wrote in it, by cache id.

    A call that is handed the very tensors of an earlier one reads what that one wrote: they share the cache.
    """

    positions: torch.Tensor
    _given: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    _written: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @property
    def num_caches(self) -> int:
        return len(self._given)

    def write(self, key: torch.Tensor, value: torch.Tensor) -> tuple[int, torch.Tensor, torch.Tensor]:
        """The cache's id, and K and V as it holds them: of one head_dim, the very same tensors for every reader."""
        for cache_id, (given_key, given_value) in enumerate(self._given):
            if given_key is key and given_value is value:
                return (cache_id, *self._written[cache_id])
        head_dim = max(key.shape[-1], value.shape[-1])
        self._given.append((key, value))
        self._written.append((_widened(key, head_dim), _widened(value, head_dim)))
        return (self.num_caches - 1, *self._written[-1])


@dataclass
class Observation:
    """What a model asked for during one forward pass: its attention calls in order, and the masks it was handed."""

    calls: list[AttentionCall] = field(default_factory=list)
    masks: list[tuple[torch.Tensor, MaskFunction]] = field(default_factory=list)

    def hand_out(self, mask: torch.Tensor, mask_function: MaskFunction) -> torch.Tensor:
        """``mask``, a marker: a layer that is passed it attends what ``mask_function`` lets through."""
        self.masks.append((mask, mask_function))
        return mask

    def window_of(self, mask: torch.Tensor) -> int | None:
        """The window of a mask that was handed out here; None for any other tensor."""
        # Judged when a layer uses it: models build masks that none of their layers is passed.
        return next((window_of(mask_function) for marker, mask_function in self.masks if marker is mask), None)


_step: ContextVar[Step | None] = ContextVar("step", default=None)
_observation: ContextVar[Observation | None] = ContextVar("observation", default=None)
_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def stepping(positions: torch.Tensor) -> Iterator[Step]:
    """One forward pass runs inside the block, of tokens at ``positions``, integer [1, T]."""
    token = _step.set(step := Step(positions))
    try:
        yield step
    finally:
        _step.reset(token)


@contextmanager
def observed() -> Iterator[Observation]:
    """Attention inside the block is recorded and answered with zeros: no cache has to be bound."""
    token = _observation.set(observation := Observation())
    try:
        yield observation
    finally:
        _observation.reset(token)


@contextmanager
def silenced() -> Iterator[None]:
    """Attention inside the block is answered with zeros, whatever is asked of it: something else is looked at."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def register() -> None:
    """Makes IMPLEMENTATION known to Transformers, with the custom op it emits."""
    from executorch.extension.llm.cache import update_and_attend  # noqa: F401
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, off_graph_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, off_graph_mask)


def off_graph_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    position_ids: torch.Tensor | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer through the op.

    ``query`` is [1, heads, T, head_dim]; ``key`` and ``value`` are [1, KV heads, T, head_dim], this step's alone;
    both are already rotated. Values may have a head_dim of their own. Returns [1, T, heads, head_dim of the values],
    and no attention weights.

    Raises ExportError for any argument that the op cannot honour.
    """
    import torch

    if _silent.get():
        return _zeros(query, value), None
    step, observation = _step.get(), _observation.get()
    assert step is not None, "attention runs inside of a step"
    model_type = getattr(getattr(module, "config", None), "model_type", type(module).__name__)

    def refuse(what: str, why: str) -> ExportError:
        return ExportError(f"model type '{model_type}': {what}, {why}. It cannot be exported with the off-graph cache.")

    for name, given in others.items():
        if given is None or name in MEANT_FOR_OTHERS:
            continue
        if name not in HARMLESS:
            raise refuse(f"attention passes {name}={_shown(given)}", "which the off-graph cache op cannot apply")
        if not any(given is harmless for harmless in HARMLESS[name]):
            raise refuse(f"attention passes {name}={_shown(given)}", "which the off-graph cache op would ignore")
    if not getattr(module, "is_causal", True):
        raise refuse("an attention module is not causal", "and the off-graph cache op always masks causally")
    if dropout:
        raise refuse(f"attention passes dropout={dropout}", "which the off-graph cache op cannot apply")
    if scaling is None:
        raise refuse(
            "attention passes no scaling", "and head_dim ** -0.5 would be wrong for models that scale otherwise"
        )
    if query.shape[0] != 1:
        raise refuse(f"attention runs on a batch of {query.shape[0]}", "and the off-graph cache holds one sequence")
    if key.shape[-2] != query.shape[-2]:
        raise refuse(
            f"attention has {query.shape[-2]} queries for {key.shape[-2]} keys",
            "and the off-graph cache op takes this step's keys alone",
        )
    if query.shape[-1] != key.shape[-1] or key.shape[1] != value.shape[1]:
        raise refuse(
            f"attention has queries, keys and values of shapes {', '.join(_sizes(x) for x in (query, key, value))}",
            "which belong to no one KV cache",
        )
    window = 0
    if observation is not None:
        if attention_mask is None:
            raise refuse("an attention layer is passed no mask", "and the off-graph cache op always masks causally")
        masked = observation.window_of(attention_mask)
        if masked is None:
            raise refuse("attention passes a mask of its own", "which the off-graph cache op cannot apply")
        if sliding_window is not None and sliding_window != masked:
            raise refuse(
                f"an attention layer declares a window of {sliding_window} and is masked with {masked or 'none'}",
                "and only one of them can be published for its cache",
            )
        window = masked
    elif attention_mask is not None:
        raise refuse("attention passes a mask of its own", "which the off-graph cache op cannot apply")

    # A cache holds K and V with one head_dim. Zeros at the end of queries and keys add nothing to their products, and
    # zeros at the end of values come out as zeros.
    cache_id, held_key, held_value = step.write(key, value)
    head_dim = held_key.shape[-1]
    if observation is not None:
        observation.calls.append(
            AttentionCall(
                layer=getattr(module, "layer_idx", None),
                cache_id=cache_id,
                num_kv_heads=key.shape[1],
                head_dim=head_dim,
                window=window,
            )
        )
        return _zeros(query, value), None

    attended = torch.ops.kvcache.update_and_attend(
        _widened(query, head_dim),
        held_key,
        held_value,
        step.positions[0].reshape(-1, 1),
        layer_id=cache_id,
        scale=float(scaling),
        out_dtype=query.dtype,
    )
    if head_dim != value.shape[-1]:
        attended = attended[..., : value.shape[-1]]
    return attended.transpose(1, 2).contiguous(), None


def off_graph_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *_: object,
    mask_function: MaskFunction,
    attention_mask: torch.Tensor | None = None,
    **__: object,
) -> torch.Tensor | None:
    """No mask tensor enters the graph: the op masks by position.

    While observed, the model is handed a marker in its place, so that each layer's mask can be told and judged: one
    that is neither causal nor a sliding window is refused instead of being lost.
    """
    observation = _observation.get()
    if observation is None or _silent.get():
        return None
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ExportError("the model builds a padding mask for itself; the off-graph cache op cannot apply it.")
    import torch

    return observation.hand_out(torch.zeros(batch_size, 1, q_length, kv_length), mask_function)


def _zeros(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention's result, if it were nothing: [batch, T, heads, head_dim of the values]."""
    batch_size, num_heads, length, _ = query.shape
    return query.new_zeros(batch_size, length, num_heads, value.shape[-1])


def _widened(part: torch.Tensor, head_dim: int) -> torch.Tensor:
    import torch

    missing = head_dim - part.shape[-1]
    return torch.nn.functional.pad(part, (0, missing)) if missing else part


def _sizes(part: torch.Tensor) -> str:
    return str(tuple(part.shape))


def _shown(given: object) -> str:
    shape = getattr(given, "shape", None)
    return f"a tensor of shape {tuple(shape)}" if shape is not None else repr(given)
