"""Artifacts of a few lines: what a good one shows, and changes to it. No file is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pipeline.evidence import Evidence, FileFacts, ForwardFacts, GraphFacts
from pipeline.pte import TensorValue
from pipeline.pte.mlx_shapes import Attend
from pipeline.spec import UNQUANTIZED, BuildSpec
from pipeline.verify import check
from pipeline.verify.asked import Asked
from pipeline.verify.bundle import Bundle, Layer
from pipeline.verify.case import Case
from pipeline.verify.rules import REGISTERED
from pipeline.verify.tokenizer_files import Tokenizer


def int32(*values: int) -> dict[str, Any]:
    return {"dtype": "int32", "sizes": [len(values)], "values": list(values)}


GOOD_CONSTANTS: dict[str, Any] = {
    "get_max_seq_len": 128,
    "get_max_context_len": 1024,
    "get_vocab_size": 1000,
    "get_activation_dtype": 15,
    "get_logits_to_keep_mode": 1,
    "get_n_caches": 3,
    "get_kv_heads": int32(2, 2, 1),
    "get_head_dims": int32(64, 64, 128),
    "get_windows": int32(0, 128, 0),
    "get_eos_ids": [2, 7],
    "get_bos_id": 1,
    "get_max_ctx_len": 1024,
    "get_prefill_chunk_size": 128,
    "of_another_tool": "anything",
}


def attend(layer_id: int | None, heads: int, dim: int, **changes: Any) -> Attend:
    fields: dict[str, Any] = {
        "layer_id": layer_id,
        "scale": 0.125,
        "out_dtype": 15,
        "query": (1, heads * 4, None, dim),
        "key": (1, heads, None, dim),
        "value": (1, heads, "0.1", dim),
    }
    return Attend(**(fields | changes))


ATTENDS = (attend(0, 2, 64), attend(1, 2, 64), attend(2, 1, 128))
GRAPH = GraphFacts(
    attends=ATTENDS,
    logits=(1, None, 1000),
    num_slots=3,
    num_mutable_buffers=0,
    float_dtypes=frozenset({"bfloat16", "float32"}),
)
TOKENS = TensorValue("int64", (1, 128), dynamic=True)
POSITIONS = TensorValue("int64", (128,), dynamic=True)
LOGITS = TensorValue("bfloat16", (1, 1, 1000), dynamic=False)
MANY_LOGITS = TensorValue("bfloat16", (1, 128, 1000), dynamic=True)
SELECTOR = TensorValue("int64", (128,), dynamic=True)
FORWARD = ForwardFacts(
    inputs=(TOKENS, POSITIONS),
    outputs=(LOGITS,),
    delegates=("MLXBackend",),
    others={},
    num_delegate_args=3,
    graph=GRAPH,
)
GOOD = Evidence(where="llama.pte", constants=GOOD_CONSTANTS, methods=("forward", "get_bos_id"), forward=FORWARD)
ASKED = BuildSpec(
    dtype="bf16",
    linear=UNQUANTIZED,
    embedding=UNQUANTIZED,
    max_seq_len=128,
    max_context_len=1024,
    placement="off_graph",
    backend="mlx",
    logits="last",
)


def with_constants(**changes: Any) -> Evidence:
    constants = {name: value for name, value in (GOOD_CONSTANTS | changes).items() if value is not None}
    return dataclasses.replace(GOOD, constants=constants)


def with_forward(**changes: Any) -> Evidence:
    return dataclasses.replace(GOOD, forward=dataclasses.replace(FORWARD, **changes))


def with_graph(**changes: Any) -> Evidence:
    return with_forward(graph=dataclasses.replace(GRAPH, **changes))


def with_mode(mode: str, rows_of: str | None = None, **changes: Any) -> Evidence:
    """An artifact that gives full or selected logits as it should, but for the changes to its forward."""
    code, inputs = {"full": (0, (TOKENS, POSITIONS)), "selected": (2, (TOKENS, POSITIONS, SELECTOR))}[mode]
    graph = dataclasses.replace(GRAPH, rows_of=rows_of, num_slots=len(inputs) + 1)
    given = {"inputs": inputs, "outputs": (MANY_LOGITS,), "graph": graph, "num_delegate_args": len(inputs) + 1}
    forward = dataclasses.replace(FORWARD, **given | changes)  # type: ignore[arg-type]
    constants = GOOD_CONSTANTS | {"get_logits_to_keep_mode": code}
    return dataclasses.replace(GOOD, constants=constants, forward=forward)


def with_file(**changes: Any) -> Evidence:
    return dataclasses.replace(GOOD, file=FileFacts(**changes))


TOKENIZER = Tokenizer(
    ids=frozenset(range(1000)),
    last_own=997,
    added={"<|im_end|>": 2, "<|im_start|>": 998, "<image>": 999},
    ends={"the tokenizer": (2,)},
    bos=1,
    unknown={},
    template="",
)
LAYERS = (
    Layer(layer=0, cache=0, num_kv_heads=2, head_dim=64, window=0),
    Layer(layer=1, cache=1, num_kv_heads=2, head_dim=64, window=128),
    # A window that no text of the context outgrows is published as none.
    Layer(layer=2, cache=2, num_kv_heads=1, head_dim=128, window=4096),
    Layer(layer=3, cache=0, num_kv_heads=2, head_dim=64, window=0),
)
BUNDLE = Bundle(
    directory=Path("somewhere"),
    layers=LAYERS,
    ends={"generation_config": (2, 7), "tokenizer": (2,)},
    asked=Asked.of(ASKED),
    libraries={"executorch": "1.5.1"},
    sizes={},
    problems=(),
)


def case(evidence: Evidence = GOOD, asked: BuildSpec | None = None, **given: Any) -> Case:
    return Case.of(evidence, asked=None if asked is None else Asked.of(asked), **given)


def with_tokenizer(evidence: Evidence = GOOD, **changes: Any) -> Case:
    return case(evidence, tokenizer=TOKENIZER._replace(**changes))


def with_bundle(evidence: Evidence = GOOD, **changes: Any) -> Case:
    return case(evidence, bundle=BUNDLE._replace(**changes))


def in_graph(**changes: Any) -> Evidence:
    """An artifact of another backend that keeps its cache itself, for the generic text runner."""
    forward = {
        "inputs": (TOKENS, POSITIONS),
        "outputs": (TensorValue("float32", (1, 1000), dynamic=False),),
        "delegates": ("XnnpackBackend",) * 25,
        "others": {"llama::custom_sdpa.out": 2},
        "num_delegate_args": 4,
        "graph": None,
    }
    constants = {
        "get_max_seq_len": 128,
        "get_max_context_len": 1024,
        "get_vocab_size": 1000,
        "use_kv_cache": True,
        "enable_dynamic_shape": True,
        "get_eos_ids": [2, 7],
        "get_bos_id": 1,
    }
    for name, value in changes.items():
        (forward if name in forward else constants)[name] = value
    return dataclasses.replace(
        GOOD,
        constants={name: value for name, value in constants.items() if value is not None},
        forward=ForwardFacts(**forward),  # type: ignore[arg-type]
    )


def found(of: Case | Evidence, asked: BuildSpec | None = None) -> list[tuple[str, str, str]]:
    """Each finding's rule, subject, and message."""
    looked_at = of if isinstance(of, Case) else case(of, asked=asked)
    return [(finding.rule.id, finding.subject, finding.message) for finding in check(looked_at)]


def said(rule: str, subject: str, text: str) -> tuple[str, str, str]:
    """The one that says ``text``, with the rule's advice."""
    return (rule, subject, f"{text}. {REGISTERED[rule].advice}.")
