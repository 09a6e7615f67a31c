"""The nodes of a graph say what its constants are: quantized weights, their scales and biases, or just weights."""

from __future__ import annotations

from typing import Any

from pipeline.anatomy import uses
from pipeline.anatomy.facts import Quantization
from tests.anatomy.graphs import graph, node

W, S, B = ("uint32", (4, 8)), ("float16", (4, 2)), ("float16", ())
NAMES = {
    "a.parametrizations.weight.original0_to_packed": W,
    "a.parametrizations.weight.original1": S,
    "a.parametrizations.weight.original2_to_biases_dummy": B,
}


def matmul(**fields: Any) -> Any:
    given = {"x": "t5", "w": "t0", "scales": "t1", "out": "t6", "biases": "t2", "group_size": 32, "bits": 4}
    return node("QuantizedMatmul", **(given | {"mode": "affine", "transpose": True} | fields))


def test_a_quantized_weight_its_scales_and_biases_are_told_by_the_node_that_reads_them() -> None:
    found = uses.of_constants(graph([matmul()], constants=NAMES))
    assert [(use.role, use.of, use.name) for use in found.values()] == [
        ("packed", None, "a.weight"),
        ("scales", 0, "a.weight.scales"),
        ("biases", 0, "a.weight.biases"),
    ]
    assert found[0].quantization == Quantization("affine", 4, 32)
    assert found[0].nodes == {"QuantizedMatmulNode": 1}


def test_an_embedding_is_followed_through_the_node_that_takes_its_rows() -> None:
    chain = [
        node("Take", x="t0", out="t5", index="t4", axis=0),
        node("Take", x="t1", out="t6", index="t4", axis=0),
        node("Dequantize", w="t5", scales="t6", out="t7", biases=None, group_size=16, bits=4, mode="nvfp4"),
    ]
    found = uses.of_constants(graph(chain, constants=NAMES))
    assert (found[0].quantization, found[1].role) == (Quantization("nvfp4", 4, 16), "scales")


def test_a_slot_that_is_written_again_is_followed_no_more() -> None:
    chain = [
        node("Take", x="t0", out="t5", index="t4", axis=0),
        node("Exp", x="t6", out="t5"),
        node("Dequantize", w="t5", scales="t6", out="t7", biases=None, group_size=16, bits=4, mode="nvfp4"),
    ]
    assert uses.of_constants(graph(chain, constants=NAMES))[0].quantization is None


def test_a_weight_shared_with_a_node_that_reads_it_plain_is_counted_for_both() -> None:
    found = uses.of_constants(graph([matmul(), node("Exp", x="t0", out="t5")], constants=NAMES))
    assert found[0].nodes == {"QuantizedMatmulNode": 1, "ExpNode": 1}


def test_names_that_would_be_the_same_stay_as_they_are() -> None:
    twice = {"a.weight": W, "a.parametrizations.weight.original0": W, "s": S}
    found = uses.of_constants(graph([matmul(w="t1", scales="t2", biases=None)], constants=twice))
    assert [use.name for use in found.values()] == [
        "a.weight",
        "a.parametrizations.weight.original0",
        "a.weight.scales",
    ]


def test_bits_that_cannot_be_are_no_quantization() -> None:
    for bits in (0, -4, 33):
        assert uses.of_constants(graph([matmul(bits=bits)], constants=NAMES))[0].quantization is None
