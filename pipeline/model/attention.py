"""Attention over a KV cache that lives outside the graph, as a Transformers attention implementation.

Each attention layer of a model loaded with ``attn_implementation=IMPLEMENTATION`` emits one
``kvcache::update_and_attend`` (executorch/extension/llm/cache/update_and_attend.py): it is given this step's queries,
keys and values with their positions, and the runtime owns the history. The op masks by position, causally, and
by the window that the artifact publishes for the layer's cache; it can honour nothing else. So every argument that
Transformers passes is accounted for here: passed on, known to change nothing, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.errors import ExportError

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

_FAR = 1 << 40
"""A position beyond any window, from which a mask function is asked how far back it reaches."""


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """One attention layer's call, as the model made it."""

    layer_idx: int
    num_kv_heads: int
    head_dim: int
    window: int
    """Positions a query reaches back, itself included; 0 is all of them."""


@dataclass
class Observation:
    """What a model asked for during one forward pass: its attention calls in order, and its masks' windows."""

    calls: list[AttentionCall] = field(default_factory=list)
    mask_windows: set[int] = field(default_factory=set)


_observation: ContextVar[Observation | None] = ContextVar("observation", default=None)


@contextmanager
def observed() -> Iterator[Observation]:
    """Attention inside the block is recorded and answered with zeros: no cache has to be bound."""
    observation = Observation()
    token = _observation.set(observation)
    try:
        yield observation
    finally:
        _observation.reset(token)


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
    both are already rotated. Returns [1, T, heads, head_dim], and no attention weights.

    Raises ExportError for any argument that the op cannot honour.
    """
    import torch

    model_type = getattr(getattr(module, "config", None), "model_type", type(module).__name__)

    def refuse(what: str, why: str) -> ExportError:
        return ExportError(f"model type '{model_type}': {what}, {why}. It cannot be exported with the off-graph cache.")

    for name, given in others.items():
        if given is None:
            continue
        if name not in HARMLESS:
            raise refuse(f"attention passes {name}={_shown(given)}", "which the off-graph cache op cannot apply")
        if not any(given is harmless for harmless in HARMLESS[name]):
            raise refuse(f"attention passes {name}={_shown(given)}", "which the off-graph cache op would ignore")
    if not getattr(module, "is_causal", True):
        raise refuse("an attention module is not causal", "and the off-graph cache op always masks causally")
    if attention_mask is not None:
        raise refuse("attention passes a mask of its own", "which the off-graph cache op cannot apply")
    if dropout:
        raise refuse(f"attention passes dropout={dropout}", "which the off-graph cache op cannot apply")
    if scaling is None:
        raise refuse(
            "attention passes no scaling", "and head_dim ** -0.5 would be wrong for models that scale otherwise"
        )
    if position_ids is None:
        raise refuse("attention is not given position_ids", "without which tokens cannot be placed in the cache")
    if position_ids.shape[0] != 1 or query.shape[0] != 1:
        raise refuse(f"attention runs on a batch of {query.shape[0]}", "and the off-graph cache holds one sequence")
    layer_idx = getattr(module, "layer_idx", None)
    if not isinstance(layer_idx, int):
        raise refuse("an attention module has no layer_idx", "so its cache cannot be told from the others")
    if getattr(module, "is_kv_shared_layer", False):
        raise refuse(f"layer {layer_idx} shares another layer's K/V", "which this version does not address yet")
    if key.shape[-2] != query.shape[-2]:
        raise refuse(
            f"layer {layer_idx} attends {key.shape[-2]} keys with {query.shape[-2]} queries",
            "and the off-graph cache op takes this step's keys alone",
        )
    if value.shape[-1] != key.shape[-1] or query.shape[-1] != key.shape[-1]:
        raise refuse(
            f"layer {layer_idx} has head_dim {key.shape[-1]} for keys and {value.shape[-1]} for values",
            "and a cache holds both with one head_dim",
        )

    observation = _observation.get()
    if observation is not None:
        observation.calls.append(
            AttentionCall(
                layer_idx=layer_idx,
                num_kv_heads=key.shape[1],
                head_dim=key.shape[-1],
                window=int(sliding_window or 0),
            )
        )
        return torch.zeros_like(query).transpose(1, 2), None

    attended = torch.ops.kvcache.update_and_attend(
        query,
        key,
        value,
        position_ids[0].reshape(-1, 1),
        layer_id=layer_idx,
        scale=float(scaling),
        out_dtype=query.dtype,
    )
    return attended.transpose(1, 2).contiguous(), None


def off_graph_mask(
    *_: object, mask_function: Callable[..., Any], attention_mask: torch.Tensor | None = None, **__: object
) -> None:
    """No mask tensor enters the graph: the op masks by position.

    While observed, the model's own mask function is asked what it lets through, so that a mask which is neither
    causal nor a sliding window is refused instead of being lost.
    """
    observation = _observation.get()
    if observation is None:
        return
    if attention_mask is not None:
        raise ExportError("the model builds a padding mask for itself; the off-graph cache op cannot apply it.")
    observation.mask_windows.add(_window_of(mask_function))


def _window_of(mask_function: Callable[..., Any]) -> int:
    """The window of a causal mask function (batch, head, query, key) -> bool; 0 when it is unbounded."""
    import torch

    def attends(query: int, key: int) -> bool:
        # Transformers' mask functions call tensor methods on their indices.
        return bool(mask_function(*(torch.tensor(index) for index in (0, 0, query, key))))

    def reach(query: int) -> int:
        """How many positions, itself included, the query attends; 0 stands for all, -1 for no unbroken run."""
        ages = [0, *(1 << power for power in range(_FAR.bit_length())), query]
        attended = [attends(query, query - age) for age in ages]
        if all(attended):
            return 0
        edge = attended.index(False)
        if any(attended[edge:]):
            return -1
        farthest_attended, nearest_refused = ages[edge - 1], ages[edge]
        while nearest_refused - farthest_attended > 1:
            middle = (nearest_refused + farthest_attended) // 2
            if attends(query, query - middle):
                farthest_attended = middle
            else:
                nearest_refused = middle
        return farthest_attended + 1

    # Chunked attention starts at a multiple of the chunk, so its reach changes from one query to the next.
    queries = (_FAR, _FAR + 1, _FAR + 4097)
    try:
        causal = all(attends(q, q) and not attends(q, q + 1) for q in queries)
        windows = {reach(q) for q in queries} if causal else set()
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise ExportError(
            "the model's attention mask depends on the tokens, not on positions alone; the off-graph cache op masks "
            f"by position. ({type(error).__name__}: {error})"
        ) from error
    if not causal:
        raise ExportError("the model's attention mask is not causal; the off-graph cache op always masks causally.")
    if len(windows) != 1 or -1 in windows:
        raise ExportError(
            "the model's attention mask reaches back by different lengths from different positions, or with gaps "
            "(chunked attention, attention sinks); the off-graph cache op knows full and sliding-window attention."
        )
    return windows.pop()


def _shown(given: object) -> str:
    shape = getattr(given, "shape", None)
    return f"a tensor of shape {tuple(shape)}" if shape is not None else repr(given)
