"""Attention reaches the op with everything it needs, and whatever the op cannot honour is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.contract import CacheGeometry
from pipeline.errors import ExportError
from pipeline.model import attention
from pipeline.model.attention import (
    AttentionCall,
    Observation,
    observed,
    off_graph_attention,
    off_graph_mask,
    silenced,
    stepping,
)
from tests.model.conftest import History, history

CLOSING = ". It cannot be exported with the off-graph cache."


def layer(**changes: Any) -> Any:
    """An attention module, as far as the implementation looks at it."""
    return SimpleNamespace(**{"config": SimpleNamespace(model_type="toy"), "is_causal": True} | changes)


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


Q, K, V = drawn(1, 4, 3, 8, seed=1), drawn(1, 2, 3, 8, seed=2), drawn(1, 2, 3, 8, seed=3)


POSITIONS = torch.tensor([[0, 1, 2]])


def arguments(**changes: Any) -> dict[str, Any]:
    return {"query": Q, "key": K, "value": V, "attention_mask": None, "scaling": 0.3} | changes


def attend(*calls: dict[str, Any], module: Any = None) -> torch.Tensor:
    """The last result of some calls in one step."""
    with stepping(POSITIONS):
        for changes in calls or ({},):
            result, weights = off_graph_attention(module or layer(), **arguments(**changes))
            assert weights is None
    return result


def mask_of(observation: Observation, mask_function: Any) -> torch.Tensor:
    """A mask handed to a model that is observed."""
    mask = off_graph_mask(1, 3, 3, mask_function=mask_function)
    assert mask is not None
    assert observation.masks[-1][0] is mask
    return mask


def sliding(window: int) -> Any:
    from transformers.masking_utils import sliding_window_causal_mask_function

    return sliding_window_causal_mask_function(window)


def causal(*at: Any) -> Any:
    from transformers.masking_utils import causal_mask_function

    return causal_mask_function(*at)


def dense(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> np.ndarray:
    """Causal attention over one step, [1, T, heads, head_dim of the values]."""
    k, v = (tensor.repeat_interleave(query.shape[1] // tensor.shape[1], dim=1) for tensor in (key, value))
    scores = (query @ k.transpose(2, 3) * scaling).masked_fill(~torch.ones(3, 3, dtype=torch.bool).tril(), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).numpy()


GEOMETRY = CacheGeometry(num_kv_heads=2, head_dim=8, window=0)


@pytest.fixture
def cache() -> Iterator[History]:
    with history([GEOMETRY] * 3) as installed:
        yield installed


def test_the_op_gets_the_positions_of_the_step_and_the_scale(cache: History) -> None:
    """Whatever positions the layer is told: a model may shift those that it embeds."""
    result = attend({"position_ids": POSITIONS + 2})
    np.testing.assert_allclose(result.numpy(), dense(Q, K, V, 0.3), atol=1e-6)
    assert cache.calls == [(0, [0, 1, 2])]


def test_caches_are_numbered_by_their_first_write_whatever_layers_call_themselves(cache: History) -> None:
    attend({}, {"key": K + 0}, {"value": V + 0}, module=layer(layer_idx=7))
    assert [cache_id for cache_id, _ in cache.calls] == [0, 1, 2]


def test_a_reader_of_the_very_tensors_of_an_earlier_call_reads_its_cache() -> None:
    with history([GEOMETRY]) as cache, stepping(POSITIONS) as step:
        off_graph_attention(layer(), **arguments())
        cache.layers[0] = None  # this one appends whatever it is given; the oracle knows a repeat
        off_graph_attention(layer(), **arguments(query=Q + 1))
        assert step.num_caches == 1
    assert [cache_id for cache_id, _ in cache.calls] == [0, 0]


def test_every_step_numbers_its_caches_anew(cache: History) -> None:
    attend({}, {"key": K + 0})
    cache.layers = [None] * 3
    attend({}, {"key": K + 0})
    assert [cache_id for cache_id, _ in cache.calls] == [0, 1, 0, 1]


@pytest.mark.parametrize(("key_dim", "value_dim"), [(8, 5), (5, 8)])
def test_keys_and_values_of_two_sizes_share_a_cache_of_the_larger(key_dim: int, value_dim: int) -> None:
    query, key, value = Q[..., :key_dim], K[..., :key_dim], V[..., :value_dim]
    with history([GEOMETRY]):
        result = attend({"query": query, "key": key, "value": value})
    assert result.is_contiguous()
    np.testing.assert_allclose(result.numpy(), dense(query, key, value, 0.3), atol=1e-6)


def test_a_reader_is_handed_the_widened_tensors_of_its_donor() -> None:
    narrow = V[..., :5]
    with stepping(POSITIONS) as step:
        first, second = step.write(K, narrow), step.write(K, narrow)
    assert first[0] == second[0] == 0
    assert all(one is other for one, other in zip(first[1:], second[1:], strict=True))
    assert first[2].shape == K.shape


def test_the_result_has_the_dtype_of_the_query(cache: History) -> None:
    assert attend({"query": Q.bfloat16(), "key": K.bfloat16(), "value": V.bfloat16()}).dtype == torch.bfloat16


def test_harmless_arguments_pass(cache: History) -> None:
    attend(
        {
            "dropout": 0.0,
            "use_cache": False,
            "output_attentions": False,
            "output_router_logits": False,
            "is_causal": True,
            "cache_position": None,
            "past_key_values": None,
            "softcap": None,
            "anything_else": None,
        }
    )


@pytest.mark.parametrize("logits_to_keep", [0, 1, torch.tensor([-1])])
def test_what_is_meant_for_the_head_is_no_matter_of_attention(cache: History, logits_to_keep: Any) -> None:
    attend({"logits_to_keep": logits_to_keep})


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "softcap": ({"softcap": 50.0}, {}, "attention passes softcap=50.0, which the off-graph cache op cannot apply"),
    "head_mask": (
        {"head_mask": torch.ones(4)},
        {},
        "attention passes head_mask=a tensor of shape (4,), which the off-graph cache op cannot apply",
    ),
    "sinks": (
        {"s_aux": torch.ones(4)},
        {},
        "attention passes s_aux=a tensor of shape (4,), which the off-graph cache op cannot apply",
    ),
    "an unknown keyword": (
        {"temperature": 2},
        {},
        "attention passes temperature=2, which the off-graph cache op cannot apply",
    ),
    "an unknown flag that is off": (
        {"temperature": False},
        {},
        "attention passes temperature=False, which the off-graph cache op cannot apply",
    ),
    "a known keyword that asks for something": (
        {"output_attentions": True},
        {},
        "attention passes output_attentions=True, which the off-graph cache op would ignore",
    ),
    "a step that is not causal": (
        {"is_causal": False},
        {},
        "attention passes is_causal=False, which the off-graph cache op would ignore",
    ),
    "a cache": (
        {"past_key_values": "cache"},
        {},
        "attention passes past_key_values='cache', which the off-graph cache op would ignore",
    ),
    "a module that is not causal": (
        {},
        {"is_causal": False},
        "an attention module is not causal, and the off-graph cache op always masks causally",
    ),
    "a mask": (
        {"attention_mask": torch.zeros(1, 1, 3, 3)},
        {},
        "attention passes a mask of its own, which the off-graph cache op cannot apply",
    ),
    "dropout": ({"dropout": 0.1}, {}, "attention passes dropout=0.1, which the off-graph cache op cannot apply"),
    "no scaling": (
        {"scaling": None},
        {},
        "attention passes no scaling, and head_dim ** -0.5 would be wrong for models that scale otherwise",
    ),
    "a batch of two": (
        {"query": Q.repeat(2, 1, 1, 1), "key": K.repeat(2, 1, 1, 1), "value": V.repeat(2, 1, 1, 1)},
        {},
        "attention runs on a batch of 2, and the off-graph cache holds one sequence",
    ),
    "fewer keys than queries": (
        {"key": K[:, :, :2], "value": V[:, :, :2]},
        {},
        "attention has 3 queries for 2 keys, and the off-graph cache op takes this step's keys alone",
    ),
    "queries that do not fit the keys": (
        {"query": Q[..., :4]},
        {},
        "attention has queries, keys and values of shapes (1, 4, 3, 4), (1, 2, 3, 8), (1, 2, 3, 8), which belong to no "
        "one KV cache",
    ),
    "other heads for keys than for values": (
        {"value": V[:, :1]},
        {},
        "attention has queries, keys and values of shapes (1, 4, 3, 8), (1, 2, 3, 8), (1, 1, 3, 8), which belong to no "
        "one KV cache",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("while_observed", [True, False])
def test_what_the_op_cannot_honour_is_refused(case: str, while_observed: bool) -> None:
    changes, module, expected = REFUSED[case]
    message = "^" + re.escape(f"model type 'toy': {expected}{CLOSING}") + "$"
    with ExitStack() as stack:
        if while_observed:
            observation = stack.enter_context(observed())
            changes = {"attention_mask": mask_of(observation, causal)} | changes
        stack.enter_context(pytest.raises(ExportError, match=message))
        attend(changes, module=layer(**module))


def test_a_module_without_a_configuration_is_named_by_its_class() -> None:
    with pytest.raises(ExportError, match=r"^model type 'SimpleNamespace': attention passes softcap=1\.0"):
        attend({"softcap": 1.0}, module=SimpleNamespace())


def test_observed_calls_are_recorded_and_answered_without_a_cache() -> None:
    with observed() as observation:
        narrow, full = mask_of(observation, sliding(16)), mask_of(observation, causal)
        result = attend(
            {"attention_mask": narrow, "sliding_window": 16},
            {"attention_mask": narrow, "value": V[..., :5], "sliding_window": None},
            {"attention_mask": full},
        )
    assert result.shape == (1, 3, 4, 8)
    assert not result.any()
    assert observation.calls == [
        AttentionCall(layer=None, cache_id=0, num_kv_heads=2, head_dim=8, window=16),
        AttentionCall(layer=None, cache_id=1, num_kv_heads=2, head_dim=8, window=16),
        AttentionCall(layer=None, cache_id=0, num_kv_heads=2, head_dim=8, window=0),
    ]


@pytest.mark.parametrize(
    ("declared", "mask_function", "shown"), [(16, causal, "none"), (16, sliding(8), "8"), (0, sliding(8), "8")]
)
def test_a_layer_that_declares_another_window_than_its_mask_is_refused(
    declared: int, mask_function: Any, shown: str
) -> None:
    expected = (
        f"model type 'toy': an attention layer declares a window of {declared} and is masked with {shown}, and only "
        f"one of them can be published for its cache{CLOSING}"
    )
    with observed() as observation, pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        attend({"attention_mask": mask_of(observation, mask_function), "sliding_window": declared})


def test_a_layer_that_is_passed_no_mask_is_refused_while_observed() -> None:
    expected = (
        "model type 'toy': an attention layer is passed no mask, and the off-graph cache op always masks causally"
        f"{CLOSING}"
    )
    with observed(), pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        attend()


def test_a_mask_that_no_layer_is_passed_is_not_judged() -> None:
    with observed() as observation:
        mask_of(observation, lambda b, h, q, k: q >= 0)
        attend({"attention_mask": mask_of(observation, causal)})
    assert [call.window for call in observation.calls] == [0]


def test_a_mask_that_a_layer_is_passed_is_judged() -> None:
    with observed() as observation, pytest.raises(ExportError, match=r"^the model's attention mask is not causal"):
        attend({"attention_mask": mask_of(observation, lambda b, h, q, k: q >= 0)})


def test_silenced_attention_answers_anything_with_zeros_and_no_mask() -> None:
    with observed() as observation, silenced():
        result, _ = off_graph_attention(layer(), **arguments(softcap=1.0, value=V[..., :5]))
        assert off_graph_mask(1, 3, 3, mask_function=causal) is None
    assert result.shape == (1, 3, 4, 5)
    assert not result.any()
    assert observation.calls == []


def test_observation_ends_with_its_block(cache: History) -> None:
    with observed() as outer:
        pass
    attend()
    assert off_graph_mask(1, 3, 3, mask_function=causal) is None
    assert outer.calls == []
    assert cache.calls == [(0, [0, 1, 2])]


def test_attention_outside_of_a_step_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="inside of a step"):
        off_graph_attention(layer(), **arguments())


def test_a_padding_mask_is_refused() -> None:
    expected = "the model builds a padding mask for itself; the off-graph cache op cannot apply it."
    with observed(), pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        off_graph_mask(1, 3, 3, mask_function=causal, attention_mask=torch.tensor([[1, 1, 0]]))


def test_a_padding_mask_that_pads_nothing_passes() -> None:
    with observed():
        assert off_graph_mask(1, 3, 3, mask_function=causal, attention_mask=torch.ones(1, 3)) is not None


def test_registering_twice_is_the_same_as_once() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for _ in range(2):
        attention.register()
    assert ALL_ATTENTION_FUNCTIONS[attention.IMPLEMENTATION] is off_graph_attention
    assert ALL_MASK_ATTENTION_FUNCTIONS[attention.IMPLEMENTATION] is off_graph_mask
