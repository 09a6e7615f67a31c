"""The KV caches a model needs, read off the attention calls it really makes.

One eager forward pass over a few tokens is observed; what each layer passes to attention is the geometry, and the
configuration is the second witness. Knows nothing of how caches are stored.
"""

from __future__ import annotations

from typing import Any

from pipeline.contract import CacheGeometry
from pipeline.errors import ExportError
from pipeline.model.attention import AttentionCall, Observation, observed


def geometry_of(model: Any) -> tuple[CacheGeometry, ...]:
    """The caches in the order of their ids, which are the model's layer indices.

    Raises ExportError when the model's attention does not go through the registered implementation once per layer,
    or when the calls and the configuration disagree.
    """
    import torch

    config = model.config.get_text_config()
    _refuse_traced_once_rope(config)
    tokens = torch.zeros((1, 3), dtype=torch.long)
    with observed() as observation, torch.no_grad():
        try:
            model(input_ids=tokens, position_ids=torch.arange(3).unsqueeze(0), use_cache=False)
        except ExportError:
            raise
        except Exception as error:
            # A model's own code can fail in any way when its attention gets no mask.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise ExportError(
                f"model type '{config.model_type}': its forward fails, given positions and no mask: {reason}. It "
                "cannot be exported with the off-graph cache."
            ) from error
    return _checked(observation, config)


def _checked(observation: Observation, config: Any) -> tuple[CacheGeometry, ...]:
    name = f"model type '{config.model_type}'"
    calls: list[AttentionCall] = observation.calls
    ids = [call.layer_idx for call in calls]
    num_layers = config.num_hidden_layers
    if ids != list(range(num_layers)):
        raise ExportError(
            f"{name}: {len(ids)} attention calls with layer indices {_shortened(ids)} reach the off-graph cache; "
            f"expected one for each of the {num_layers} layers. Layers of another kind keep state that would not "
            "survive a step."
        )
    windows = {call.window for call in calls if call.window}
    masked = {window for window in observation.mask_windows if window}
    if windows != masked:
        raise ExportError(
            f"{name}: its masks have windows {sorted(masked)}, its attention layers declare {sorted(windows)}; "
            "expected the same. A window that a layer does not declare cannot be published for its cache."
        )
    layer_types = getattr(config, "layer_types", None)
    for call in calls:
        declared = layer_types[call.layer_idx] if layer_types else None
        if declared is not None and (declared == "sliding_attention") != bool(call.window):
            raise ExportError(
                f"{name}: layer {call.layer_idx} is '{declared}' in the configuration and attends with window "
                f"{call.window}; expected both to say the same."
            )
    return tuple(
        CacheGeometry(num_kv_heads=call.num_kv_heads, head_dim=call.head_dim, window=call.window) for call in calls
    )


def _refuse_traced_once_rope(config: Any) -> None:
    """Rotary tables that change regime with the sequence's length cannot be traced once."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    for rope in nested:
        if rope.get("rope_type") in {"dynamic", "longrope"}:
            raise ExportError(
                f"model type '{config.model_type}': rope_type '{rope['rope_type']}' changes the rotary frequencies "
                "with the length of the sequence; a graph traced once would be wrong beyond the first regime. It is "
                "refused."
            )


def _shortened(ids: list[int]) -> str:
    return str(ids) if len(ids) <= 12 else f"[{', '.join(map(str, ids[:10]))}, …]"
