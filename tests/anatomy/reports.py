"""Reports by hand, with names that a hostile file might have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.anatomy.accounting import by_dtype, by_layer, weights
from pipeline.anatomy.facts import (
    Argument,
    Bounds,
    CompileSpec,
    DelegatePart,
    FilePart,
    Graph,
    Listing,
    MethodPart,
    Published,
    Quantization,
    Report,
    Segment,
    Share,
    Tensor,
)
from pipeline.pte.flatbuffer import shown

HOSTILE = "<script>alert(1)</script>\x1b[31m\n\"'&\u202e"


def tensor(name: str, size_bytes: int, **changes: Any) -> Tensor:
    given = {
        "name": name,
        "names": (name,),
        "keys": (f"abcd/{name}",),
        "number": None,
        "file": "x.pte",
        "segment": 2,
        "size_bytes": size_bytes,
        "dtype": "bfloat16",
        "shape": (size_bytes // 2,),
        "weight_shape": (size_bytes // 2,),
        "role": "weight",
        "num_weights": size_bytes // 2,
        "quantization": None,
        "of": None,
        "users": {"AddmmNode": 1},
    }
    return Tensor(**{**given, **changes})


def graph(**nodes: int) -> Graph:
    return Graph(
        version=1, num_constants=2, num_inputs=2, num_outputs=1, num_mutable_buffers=0, num_temporaries=4,
        num_values=1, num_chains=2, nodes=nodes, init_nodes={"MultiplyNode": 2},
    )  # fmt: skip


def report(tensors: Sequence[Tensor] = (), name: str = "forward", text: str = "text", **changes: Any) -> Report:
    method = MethodPart(
        name=name,
        inputs=(
            Argument(name=text, kind="tensor", dtype="int64", shape=(1, Bounds(1, 512), Bounds(2, None))),
            Argument(name=None, kind="int", value=7),
        ),
        outputs=(Argument(name="logits", kind="tensor", dtype="bfloat16", shape=(1, 1, 9)),),
        num_values=9,
        planned_bytes=(64, 1000),
        instructions={"delegate_call": 1, "kernel_call": 3},
        operators={f"{name}::add.out": 2, "aten::mul.out": 1},
        delegates=(
            DelegatePart(
                backend="MLXBackend",
                size_bytes=1234,
                segment=1,
                compile_specs=(
                    CompileSpec(key=text, size_bytes=2, text=text, hex=None),
                    CompileSpec(key="raw", size_bytes=99, text=None, hex="ff" * 32),
                ),
                graph=graph(AddmmNode=7, TransposeNode=3),
                unreadable=None,
            ),
            DelegatePart(
                backend=name, size_bytes=5, segment=None, compile_specs=(), graph=None, unreadable="cannot be read"
            ),
        ),
    )
    given = {
        "path": f"/here/{name}.pte",
        "size_bytes": 5000,
        "files": (
            FilePart(
                path=f"{name}.pte",
                kind=".pte",
                size_bytes=5000,
                tables_bytes=100,
                version=0,
                segments=(Segment(index=0, offset=128, size_bytes=4000, holds="named data"),),
                num_keys=3,
                parts=(
                    Share(label="head and tables", size_bytes=100),
                    Share(label="named data", size_bytes=4000, num_tensors=2),
                    Share(label="between them (alignment)", size_bytes=900),
                ),
            ),
        ),
        "others": {text: 17},
        "methods": (method,),
        "constants": (
            Published(name="get_windows", value={"dtype": "int32", "sizes": [6], "values": [0, 0, 0, 512, 0, 0]}),
            Published(name="get_eos_ids", value=[2, 7]),
            Published(name=name, value=text),
            Published(name="scale", value=float("nan")),
            Published(name="big", value={"dtype": "int8", "sizes": [9], "values": [1, 2]}, left_out=7),
        ),
        "tensors": tuple(tensors),
        "weights": weights(tensors),
        "by_dtype": by_dtype(tensors),
        "by_layer": by_layer(tensors),
        "listings": (Listing(title=f"{shown(name)}: main chain", method=name, lines=("%0 = Exp(x)", "y <- %0")),),
    }
    return Report(**{**given, **changes})


def layers(number: int, name: str = "model.layers.{}.proj.weight") -> list[Tensor]:
    """As many layers with a packed weight and its scales, and a head."""
    found = [tensor("model.head.weight", 4096)]
    for place in range(number):
        weight = name.format(place)
        packed = Quantization("affine", 4, 32)
        found += [
            tensor(weight, 1024 + place, role="packed", quantization=packed, dtype="uint32", num_weights=2048),
            tensor(f"{weight}.scales", 128, role="scales", of=weight, num_weights=0),
        ]
    return found
