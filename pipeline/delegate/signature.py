"""What a method takes and returns, for a person to read and a program to ask."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.pte import Method, MlxGraph, TensorMeta, TensorValue, Value
from pipeline.pte.program import BoolValue, DoubleValue, IntValue, NoneValue, StringValue

_PLAIN: dict[type[Value], str] = {
    NoneValue: "None",
    IntValue: "int",
    BoolValue: "bool",
    DoubleValue: "float",
    StringValue: "str",
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. ``shape`` holds sizes, upper bounds where ``dynamic`` is true; sizes 1 and up are taken.

    ``name`` is the exporter's, without the prefix that keeps methods apart; an input that the model does not use has
    none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    dynamic: tuple[bool, ...]

    def __str__(self) -> str:
        sizes = (f"≤{size}" if free else str(size) for size, free in zip(self.shape, self.dynamic, strict=True))
        return f"{self.name or '_'}: {self.dtype} [{', '.join(sizes)}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """A method's inputs and outputs, in the order in which it is called and answers."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"


def signature_of(method: Method, graphs: tuple[MlxGraph | None, ...]) -> Signature:
    """The signature of a method whose delegates have these graphs, None where one is not MLX's.

    Dtypes and bounds are the program's. It says of a tensor that it is dynamic; of which of its dimensions, and by what
    name, only the graph that it is handed to. A plain number is a spec of its Python type and no dimensions.
    """
    seen: dict[int, tuple[str, TensorMeta | None]] = {}
    for call in method.instructions:
        graph = None if call.delegate is None else graphs[call.delegate]
        if graph is not None:
            for value, slot in zip(call.args, (*graph.input_map, *graph.output_map), strict=False):
                if slot.kind == "tensor":
                    seen.setdefault(value, (graph.names.get(slot, ""), graph.meta(slot.idx)))
    return Signature(
        *(
            tuple(_spec(method.values[index], *seen.get(index, ("", None))) for index in indices)
            for indices in (method.input_ids, method.output_ids)
        )
    )


def _spec(value: Value, name: str, meta: TensorMeta | None) -> TensorSpec:
    plain = name.rpartition("/")[2]
    if not isinstance(value, TensorValue):
        return TensorSpec(plain, _PLAIN.get(type(value), "list"), (), ())
    free = [value.dynamic] * len(value.sizes)
    if meta is not None and len(meta.shape) == len(free):
        free = [dynamic and dim.value is None for dynamic, dim in zip(free, meta.shape, strict=True)]
    return TensorSpec(plain, value.dtype, value.sizes, tuple(free))
