"""A body as one Python function: a line for each step, locals for slots.

Beside what MLX itself does to record an operation, a step then costs one call: no slot is looked up, no dictionary of
arguments made. A local is deleted after its last reader. Operators whose parameters MLX takes in the same order are
called there directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from pipeline.delegate import dtypes
from pipeline.delegate.body import Body, Ref, Step
from pipeline.delegate.ops.elementwise import BINARY, UNARY
from pipeline.delegate.plan import FAILURES, INT32_MAX, INT32_MIN, Operator
from pipeline.errors import CacheError, DelegateError
from pipeline.pte import Tid, Vid

Direct = tuple[Callable[..., Any], tuple[str, ...]]

DIRECT: dict[str, Direct] = {
    **{name: (function, ("x",)) for name, function in UNARY.items()},
    **{name: (function, ("a", "b")) for name, function in BINARY.items()},
    "ExpandDimsNode": (mx.expand_dims, ("x", "axis")),
    "LayerNormNode": (mx.fast.layer_norm, ("x", "weight", "bias", "eps")),
    "RMSNormNode": (mx.fast.rms_norm, ("x", "weight", "eps")),
    "ReshapeNode": (mx.reshape, ("x", "shape")),
    "TransposeNode": (mx.transpose, ("x", "perm")),
}
"""The function in ``mlx.core`` (or the operator itself) and the node's fields in the order of its parameters."""


class StraightLine:
    """Call it with the body's inputs in order; it returns the results in order, not evaluated.

    An operator that MLX refuses is a DelegateError that names the instruction.
    """

    def __init__(self, body: Body, operators: Mapping[str, Operator]) -> None:
        self._places: dict[int, str] = {}
        self._scope: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self.body = body
        source = "\n".join(self._lines(operators))
        code = compile(source, f"<{len(body.steps)} steps>", "exec")
        exec(code, self._scope)
        self._function: Callable[..., list[mx.array]] = self._scope["run"]

    def __call__(self, *arrays: mx.array) -> list[mx.array]:
        try:
            return self._function(*arrays)
        except (CacheError, DelegateError):
            raise
        except FAILURES as error:
            raise DelegateError(f"{self._place(error)} failed: {error}") from error

    def _place(self, error: BaseException) -> str:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self._function.__code__:
            trace = trace.tb_next
        return "the graph" if trace is None else self._places[trace.tb_lineno]

    def _lines(self, operators: Mapping[str, Operator]) -> list[str]:
        body = self.body
        for ref, value in body.constants.items():
            self._scope[_local(ref)] = value
        last_reader = {ref: index for index, step in enumerate(body.steps) for ref in (*step.outs, *step.reads())}
        kept = {*body.results, *body.constants}
        lines = [f"def run({', '.join(map(_local, body.inputs))}):"]
        for index, step in enumerate(body.steps):
            lines.append("    " + self._line(step, operators))
            self._places[len(lines)] = step.place
            dead = sorted(
                {_local(ref) for ref in (*step.outs, *step.reads()) if last_reader[ref] == index and ref not in kept}
            )
            if dead:
                lines.append(f"    del {', '.join(dead)}")
        lines.append(f"    return [{', '.join(map(_local, body.results))}]")
        return lines

    def _line(self, step: Step, operators: Mapping[str, Operator]) -> str:
        if step.name == "AddmmNode" and step.fields["bias"] is None:
            call = self._call(mx.matmul, [step.fields["mat1"], step.fields["mat2"]], {})
        elif step.name == "AsTypeNode":
            call = self._call(mx.array.astype, [step.fields["x"], dtypes.of_code(step.fields["scalar_type"])], {})
        elif step.name in DIRECT:
            function, names = DIRECT[step.name]
            call = self._call(function, [step.fields[name] for name in names], {})
        else:
            call = self._call(operators[step.name], [], step.fields)
        if step.several:
            call = self._call(_exactly, [], {"place": step.place, "count": len(step.outs)}, call)
        if any(isinstance(ref, Vid) for ref in step.outs):
            call = self._call(_int32, [], {"place": step.place}, call)
        return f"{', '.join(map(_local, step.outs))}{',' * step.several} = {call}"

    def _call(self, function: Operator, positional: list[Any], named: dict[str, Any], *first: str) -> str:
        arguments = [*first, *map(self._written, positional)]
        arguments += [f"{name}={self._written(value)}" for name, value in named.items()]
        return f"{self._bound(function)}({', '.join(arguments)})"

    def _written(self, field: Any) -> str:
        if isinstance(field, Tid | Vid):
            return _local(field)
        if isinstance(field, tuple):
            return f"({''.join(f'{self._written(item)}, ' for item in field)})"
        return repr(field) if field is None or isinstance(field, bool | int) else self._bound(field)

    def _bound(self, value: Any) -> str:
        """A name in the function's scope. The value may be nothing that can be written down: a NaN, a function."""
        name = self._names.setdefault(id(value), f"k{len(self._names)}")
        self._scope[name] = value
        return name


def _local(ref: Ref) -> str:
    return f"{'t' if isinstance(ref, Tid) else 'v'}{ref.idx}"


def _exactly(results: Any, place: str, count: int) -> Any:
    if len(results) != count:
        raise DelegateError(f"{place} made {len(results)} results; expected {count}.")
    return results


def _int32(value: int, place: str) -> int:
    if not INT32_MIN <= value <= INT32_MAX:
        raise DelegateError(f"{place} computed {value}, which is no int32.")
    return value
