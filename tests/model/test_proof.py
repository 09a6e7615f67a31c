"""A program that is its model is proven so, in every dtype; each way in which it could differ is found and named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from pipeline.contract import CacheGeometry
from pipeline.errors import ExportError
from pipeline.model import proof, quantization
from pipeline.model.attention import IMPLEMENTATION, stepping
from pipeline.model.export import export_forward
from pipeline.model.geometry import geometry_of
from pipeline.model.proof import Feeding, Proof, affordable, feedings, prove, real_tokens
from pipeline.spec import DEFAULT_GROUP_SIZE, Quantization, WeightFormat
from tests.sweep import configs
from tests.tiny_models import MIXED, SLIDING, VOCAB_SIZE, model, save_tokenizer, words_only

pytestmark = pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")

CONTEXT = 100
REAL = range(4, 60)

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "long_factor": [4.0] * 8,
    "short_factor": [1.5] * 8,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


def phi3(first_regime: int) -> dict[str, Any]:
    """Its configuration has the length outside of the rope parameters too, and believes that one."""
    return {"pad_token_id": 0, "rope_parameters": LONGROPE, "original_max_position_embeddings": first_regime}


GEMMA3 = {"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"]}
SHARED_KV = configs.OVERRIDES["gemma3n_text"] | {"sliding_window": 6, "pad_token_id": 0}


@contextmanager
def nothing(ours: Any) -> Iterator[None]:
    yield


Fault = Callable[[Any], Any]
"""A context in which a model is traced, as something that it is not."""


def exported(ours: Any, max_seq_len: int = 8, fault: Fault = nothing) -> Any:
    with fault(ours):
        return export_forward(ours, max_seq_len)


def proven(
    ours: Any,
    *,
    max_seq_len: int = 8,
    max_context_len: int = CONTEXT,
    fault: Fault = nothing,
    program: Any = None,
    publish: Callable[[Sequence[CacheGeometry]], Sequence[CacheGeometry]] = tuple,
) -> Proof:
    program = program or exported(ours, max_seq_len, fault)
    caches = publish(geometry_of(ours))
    return prove(program, ours, caches, real=REAL, max_seq_len=max_seq_len, max_context_len=max_context_len)


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "windows of some layers": ("qwen2", MIXED),
    "windows of all layers": ("mistral", SLIDING),
    "a window beyond the text": ("gemma3_text", GEMMA3),
    "norms of queries and keys": ("qwen3", {}),
    "layers that share K/V": ("gemma3n_text", SHARED_KV),
    "learned positions": ("gpt2", {"n_positions": 128}),
    "positions that count past padding": ("roberta", {"is_decoder": True, "pad_token_id": 3}),
    "YaRN": ("llama", {"rope_parameters": YARN}),
    "longrope in its first regime": ("phi3", phi3(CONTEXT)),
    "dynamic NTK in its first regime": ("llama", {"rope_parameters": DYNAMIC}),
}


@cache
def right(case: str) -> tuple[Any, Any]:
    """A model and the program exported from it, which a proof leaves as they are."""
    model_type, changes = MODELS[case]
    ours = model(model_type, IMPLEMENTATION, **changes)
    return ours, exported(ours)


@pytest.mark.parametrize("case", MODELS)
def test_a_program_that_is_its_model_is_proven_so(case: str) -> None:
    ours, program = right(case)
    found = proven(ours, program=program)
    assert found.distance < proof.TOLERANCE / 10, "nothing but rounding is left"
    assert not found.left_out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_compared_as_closely_and_left_as_it_was(dtype: torch.dtype) -> None:
    ours = model("qwen2", IMPLEMENTATION, **MIXED).to(dtype)
    program = exported(ours)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    graph = str(program.graph)
    assert proven(ours, program=program).distance < proof.TOLERANCE / 10
    for after in (ours.state_dict(), {n.removeprefix("model."): t for n, t in program.state_dict.items()}):
        assert all(after[n].dtype == t.dtype and torch.equal(after[n], t) for n, t in before.items() if n in after)
    assert str(program.graph) == graph
    assert ours.config._attn_implementation == IMPLEMENTATION


@contextmanager
def scaled(ours: Any) -> Iterator[None]:
    attention = ours.model.layers[1].self_attn
    attention.scaling *= 1.02
    yield
    attention.scaling /= 1.02


def positions(change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    """The rotary embedding is told other positions."""

    @contextmanager
    def told(ours: Any) -> Iterator[None]:
        def tell(_: Any, arguments: Any, named: dict[str, Any]) -> Any:
            return arguments, named | {"position_ids": change(named["position_ids"])}

        handle = ours.model.rotary_emb.register_forward_pre_hook(tell, with_kwargs=True)
        yield
        handle.remove()

    return told


def unrolled_for(length: int) -> Fault:
    """Tokens of a step after some are passed over by a layer: a loop over tokens, unrolled when it was traced."""

    @contextmanager
    def unrolled(ours: Any) -> Iterator[None]:
        def shorten(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
            return output * (torch.arange(output.shape[1]) < length)[None, :, None]

        handle = ours.model.layers[0].mlp.register_forward_hook(shorten)
        yield
        handle.remove()

    return unrolled


@contextmanager
def without_attention_factor(ours: Any) -> Iterator[None]:
    rotary = ours.model.rotary_emb
    factor, rotary.attention_scaling = rotary.attention_scaling, 1.0
    assert factor > 1
    yield
    rotary.attention_scaling = factor


EMPTY = "The cache was empty: the traced graph computes something else, for a step of this length at least."
HISTORY = "The steps before were right: it loses history, masks it otherwise, counts positions in the step, or does not"
END = "At the text's beginning it was right: positions so late are not what they are to the model."

FAULTS: dict[str, tuple[str, dict[str, Any], int, Fault, str, int, str]] = {
    "scores are scaled otherwise": ("llama", {}, 8, scaled, "in steps of 3, 3 x 8, 5, 1;", 2, EMPTY),
    "positions restart in every step": (
        "llama",
        {},
        8,
        positions(lambda ids: ids - ids[:, :1]),
        "in steps of 3, 3 x 8, 5, 1;",
        10,
        HISTORY,
    ),
    "a loop was unrolled for three tokens": (
        "llama",
        {},
        8,
        unrolled_for(3),
        "in steps of 3, 3 x 8, 5, 1;",
        10,
        HISTORY,
    ),
    "a step is cut at 32 tokens": ("llama", {}, 40, unrolled_for(32), "in steps of 31, 33, 1;", 63, HISTORY),
    "a step is cut one token before the longest": (
        "llama",
        {},
        71,
        unrolled_for(70),
        "in steps of 71, 1;",
        70,
        EMPTY,
    ),
    "positions end before the context does": (
        "llama",
        {},
        8,
        positions(lambda ids: ids.clamp(max=96)),
        "in steps of 2, 1 from position 97 on;",
        99,
        END,
    ),
    "YaRN lost its attention factor": (
        "llama",
        {"rope_parameters": YARN},
        8,
        without_attention_factor,
        "in steps of 3, 3 x 8, 5, 1;",
        2,
        EMPTY,
    ),
    "longrope is served beyond its first regime": (
        "phi3",
        phi3(80),
        8,
        nothing,
        "in steps of 2, 1 from position 97 on;",
        99,
        END,
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_tracing_changed_is_found_and_named(case: str) -> None:
    model_type, changes, max_seq_len, fault, fed, position, meaning = FAULTS[case]
    with pytest.raises(ExportError) as caught:
        proven(model(model_type, IMPLEMENTATION, **changes), max_seq_len=max_seq_len, fault=fault)
    kind = "real" if position < 36 or position > 90 else "random"
    assert re.match(
        rf"model type '{model_type}': the exported program was fed a text {re.escape(fed)} its logits are [\d.]+ of "
        rf"their spread from those of the model's own eager attention after position {position}, a {kind} token; "
        rf"expected at most 0\.001\. {re.escape(meaning)}",
        str(caught.value),
    ), str(caught.value)
    assert str(caught.value).endswith(" It cannot be exported.")


def test_a_fault_is_found_in_half_precision_too() -> None:
    with pytest.raises(ExportError, match="from those of the model's own eager attention after position 2, a real"):
        proven(model("llama", IMPLEMENTATION).to(torch.bfloat16), fault=scaled)


WINDOWS: dict[str, tuple[str, Callable[[Sequence[CacheGeometry]], Sequence[CacheGeometry]]]] = {
    "lost": ("windows of all layers", lambda caches: [replace(cache, window=0) for cache in caches]),
    "one too narrow": ("windows of all layers", lambda caches: [replace(cache, window=7) for cache in caches]),
    "one too wide": ("windows of all layers", lambda caches: [replace(cache, window=9) for cache in caches]),
    "another layer's": ("windows of some layers", lambda caches: [caches[1], caches[0]]),
    "wide, and lost": ("a window beyond the text", lambda caches: [replace(cache, window=0) for cache in caches]),
    "wide, and one too narrow": (
        "a window beyond the text",
        lambda caches: [replace(caches[0], window=511), caches[1]],
    ),
    "wide, and another layer's": ("a window beyond the text", lambda caches: [caches[1], caches[0]]),
    "invented": ("llama", lambda caches: [caches[0], replace(caches[1], window=4096)]),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_a_window_that_is_published_and_not_the_models_is_found(case: str) -> None:
    name, publish = WINDOWS[case]
    ours, program = right(name)
    with pytest.raises(ExportError, match=re.escape(f"expected at most 0.001. {HISTORY}")):
        proven(ours, program=program, publish=publish)


def test_two_layers_that_write_one_cache_fail_in_the_oracle() -> None:
    ours = model("llama", IMPLEMENTATION)
    program = exported(ours)
    for node in program.graph.nodes:
        if "update_and_attend" in str(node.target):
            node.args = tuple(0 if argument == 1 else argument for argument in node.args)
            node.kwargs = node.kwargs | ({"layer_id": 0} if "layer_id" in node.kwargs else {})
    expected = (
        "model type 'llama': the exported program was fed a text in steps of 3, 3 x 8, 5, 1; it fails: cache 0: it is "
        "written twice in the step at position 0, with different K/V; expected one writer a step, or readers that "
        "repeat its K/V. It cannot be exported."
    )
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        proven(ours, program=program)


def test_a_program_that_takes_one_length_only_fails() -> None:
    ours = model("llama", IMPLEMENTATION)
    program = exported(ours, 1)
    with pytest.raises(ExportError, match=r"was fed a text in steps of 3, 3 x 8, 5, 1; it fails: .*\. It cannot be"):
        proven(ours, program=program)


def chaotic(ours: Any, spreads: float) -> Any:
    """Logits hang on the last places of numbers where the first of them is some spreads above 0."""

    def stir(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        concerned = output[..., :1] > spreads * output.std(-1, keepdim=True)
        return output + torch.where(concerned, 0.1 * torch.sin(1e4 * output), 0.0)

    ours.lm_head.register_forward_hook(stir)
    return ours


def test_a_position_that_hangs_on_rounding_in_the_model_itself_is_excused() -> None:
    assert proven(chaotic(model("llama", IMPLEMENTATION), 2.0)).distance < proof.TOLERANCE


def test_a_fault_is_not_excused_by_such_a_position() -> None:
    with pytest.raises(ExportError, match="from those of the model's own eager attention"):
        proven(chaotic(model("llama", IMPLEMENTATION), 2.0), fault=scaled)


def test_a_model_that_hangs_on_rounding_everywhere_cannot_be_proven() -> None:
    with pytest.raises(ExportError) as caught:
        proven(chaotic(model("llama", IMPLEMENTATION), -10.0))
    assert re.fullmatch(
        r"model type 'llama': at 7\d of 80 positions float32 rounding moves the model's own logits by about 0\.001 of "
        r"their spread or more; expected few\. No comparison can tell whether the exported program is right\. Check "
        r"the checkpoint's weights\.",
        str(caught.value),
    ), str(caught.value)


class Selecting(torch.nn.Module):
    """Logits of the rows of a step that are asked for, or of all."""

    def __init__(self, ours: Any) -> None:
        super().__init__()
        self.model = ours

    def forward(
        self, input_ids: torch.Tensor, cache_position: torch.Tensor, logit_rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        positions = cache_position.unsqueeze(0)
        with stepping(positions):
            logits: torch.Tensor = self.model(input_ids=input_ids, position_ids=positions, use_cache=False).logits
        return logits if logit_rows is None else logits[:, logit_rows]


@pytest.mark.parametrize("selected", [False, True])
def test_a_program_that_gives_more_rows_is_compared_in_all_of_them(selected: bool) -> None:
    ours = model("llama", IMPLEMENTATION)
    length, rows = (torch.export.Dim(name, min=1, max=8) for name in ("seq_len", "num_rows"))
    inputs = {"input_ids": torch.zeros((1, 3), dtype=torch.long), "cache_position": torch.arange(3)}
    shapes: dict[str, Any] = {"input_ids": {1: length}, "cache_position": {0: length}, "logit_rows": None}
    if selected:
        inputs["logit_rows"], shapes["logit_rows"] = torch.arange(2), {0: rows}
    else:
        del shapes["logit_rows"]

    def traced(fault: Fault) -> Any:
        with fault(ours), torch.no_grad():
            return torch.export.export(Selecting(ours), (), inputs, dynamic_shapes=shapes, strict=False)

    assert proven(ours, program=traced(nothing)).distance < proof.TOLERANCE / 10
    with pytest.raises(ExportError, match="after position 0, a real token"):
        proven(ours, program=traced(scaled_first_token))


@contextmanager
def scaled_first_token(ours: Any) -> Iterator[None]:
    """A step of more than one token is wrong in its first row alone."""

    def spoil(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        first = (torch.arange(output.shape[1]) == 0)[None, :, None]
        return output * torch.where(first, 1.1, 1.0)

    handle = ours.lm_head.register_forward_hook(spoil)
    yield
    handle.remove()


def quantized(scheme: str) -> Any:
    ours = model("llama", IMPLEMENTATION, vocab_size=272, intermediate_size=128, tie_word_embeddings=True)
    ours.to(torch.bfloat16).requires_grad_(False)
    form = WeightFormat(scheme=scheme, group_size=DEFAULT_GROUP_SIZE[scheme])
    layers = quantization.layers_of(ours, Quantization(linear=form, embedding=form))
    quantization.apply(ours, layers, quantization.quantize(ours, layers))
    return ours


@pytest.mark.parametrize("scheme", ["4w", "nvfp4"])
def test_quantized_weights_are_compared_as_they_are(scheme: str) -> None:
    ours = quantized(scheme)
    before = list(ours.parameters())
    assert proven(ours).distance < proof.TOLERANCE / 10
    assert all(now is then for now, then in zip(ours.parameters(), before, strict=True))
    with pytest.raises(ExportError, match="after position 2, a real token"):
        proven(ours, fault=scaled)


def lengths(chosen: Sequence[Feeding]) -> set[int]:
    """After how many tokens of a text logits are compared."""
    return {end for feeding in chosen for _, end in feeding.spans}


def single(chosen: Sequence[Feeding]) -> set[int]:
    return {feeding.steps[0] for feeding in chosen}


@pytest.mark.parametrize("max_seq_len", [1, 2, 8, 32, 33, 100, 512])
def test_every_small_model_is_fed_lengths_on_both_sides_of_everything(max_seq_len: int) -> None:
    wanted = feedings(max_seq_len, 2048)
    chosen, left_out = affordable(wanted, 10_000_000)
    assert chosen == wanted
    assert not left_out
    around = {n for multiple in (32, 64) for n in (multiple - 1, multiple, multiple + 1)}
    assert around <= lengths(chosen)
    assert {n for n in (max_seq_len - 1, max_seq_len, max_seq_len + 1) if n} <= lengths(chosen)
    assert {n for n in around if n <= max_seq_len} <= single(chosen)
    assert {n for n in (max_seq_len - 1, max_seq_len) if n} <= single(chosen)
    assert all(step <= max_seq_len for feeding in chosen for step in feeding.steps)
    assert (1,) * proof.MANY_TOKENS in [feeding.steps for feeding in chosen]


@pytest.mark.parametrize("max_context_len", [1, 2, 5, 33, 40, 64])
def test_no_feeding_is_longer_than_the_context(max_context_len: int) -> None:
    for feeding in feedings(min(8, max_context_len), max_context_len):
        assert 0 < feeding.length <= max_context_len
    assert max(lengths(feedings(min(8, max_context_len), max_context_len))) >= min(max_context_len, 33)


def test_a_short_context_is_proven_too() -> None:
    assert proven(model("llama", IMPLEMENTATION), max_seq_len=2, max_context_len=2).distance < proof.TOLERANCE


def test_a_large_model_is_fed_what_it_can_afford_and_that_is_told() -> None:
    wanted = feedings(512, 2048)
    chosen, left_out = affordable(wanted, 134_515_008)
    assert [feeding.steps for feeding in chosen[:4]] == [(3, 29, 1), (31, 33, 1), (1,) * 4, (512, 1)]
    assert left_out
    assert sorted(map(str, (*chosen, *left_out))) == sorted(map(str, wanted))
    assert affordable(wanted, 10**12)[0] == wanted[:1], "the first is always fed"
    told = Proof(fed=tuple(chosen), left_out=(wanted[-1],), num_real_tokens=5, num_random_tokens=6, distance=1e-5)
    assert str(told).startswith(
        "The exported program has the model's own logits, at most 1e-05 of their spread apart, on 5 real and 6 random "
        "tokens fed in steps of 3, 29, 1; in steps of 31, 33, 1; in steps of 4 x 1; in steps of 512, 1"
    )
    assert str(told).endswith(". Left out for their cost: in steps of 2 x 512, 1.")


def test_real_tokens_are_what_the_tokenizer_reads(tmp_path: Any) -> None:
    from transformers import AutoTokenizer

    save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokens = real_tokens(tokenizer)
    assert tokenizer.decode(tokens) == proof.REAL
    assert len(tokens) > 64


def test_a_tokenizer_that_cannot_read_the_text_yields_no_real_tokens() -> None:
    assert real_tokens(words_only()) == []


def test_the_text_is_half_real_half_drawn_and_without_padding() -> None:
    ours = model("roberta", IMPLEMENTATION, is_decoder=True, pad_token_id=3)
    text, num_real = proof._text(ours, [3, 0, VOCAB_SIZE, 7, 8, 9, 10], 2000, VOCAB_SIZE)
    assert num_real == 5
    assert text.shape == (1, 2000)
    assert text[0, :5].tolist() == [0, 7, 8, 9, 10]
    # Padding, the first and the last of a text stand for no text.
    assert set(range(VOCAB_SIZE)) - set(text[0, 5:].tolist()) == {0, 1, 3}
    text, num_real = proof._text(ours, range(4, 60), 7, VOCAB_SIZE)
    assert num_real == 4
    assert text[0, :4].tolist() == [4, 5, 6, 7]
