"""Which weights are quantized, what they become, and how a model is given them.

Every matrix of weights is accounted for: quantized as asked, left because the manifest says so, or the reason why the
model is refused. Nothing is skipped in silence, which is how a file comes out four times the size that was expected.

The formats are torchao's, with the settings of executorch's ``extension/llm/export/quantize.py``: 4w and 8w are
symmetric integers with scales searched by half-quadratic quantization, nvfp4 and mxfp8 block-scaled floats. A matrix is
quantized a few rows at a time: rows do not depend on each other, and temporaries of that size stay in the CPU's cache.
"""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pipeline.errors import ExportError
from pipeline.spec import GROUP_SIZE_CHOOSABLE, UNQUANTIZED, Quantization, WeightFormat

if TYPE_CHECKING:
    from torchao.core.config import AOBaseConfig

CHUNK_WEIGHTS = 1 << 18
"""How many weights are quantized at once: 1 MB of float32, for half the time of a whole matrix at once."""

LEAST_GROUP_SIZE = 32
"""The smallest groups that MLX multiplies integer weights in; a scale of a whole row is written as several of them."""

NVFP4_ROWS = 16
"""executorch's NVFP4 tensors have a multiple of so many rows."""

NVFP4_EMBEDDING_WIDTH = 32
"""MLX dequantizes NVFP4 in runs of so many weights, and a step looks up any number of rows."""

MOST_OFF = 0.5
"""How far, in units of its norm, a quantized matrix may be from what it was. 4w and nvfp4 leave about 0.1; weights that
are larger or smaller than a format's scales can say leave nearly 1. Those of nvfp4 reach from 0.002 to 448."""

_MOST_LISTED = 5
_METADATA = "layers"

_INTEGERS = {"4w": getattr(torch, "int4"), "8w": torch.int8}  # noqa: B009 - torch's stubs lack int4

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One matrix of weights, and what becomes of it.

    ``modules`` are the names of all modules that use it; the first one names it. ``why`` tells what left it as it is.
    """

    modules: tuple[str, ...]
    shape: tuple[int, ...]
    format: WeightFormat
    why: str = ""

    @property
    def name(self) -> str:
        return self.modules[0]


def layers_of(model: Any, quantization: Quantization) -> list[Layer]:
    """What becomes of every matrix of weights in the model, in its own order.

    Unties the model's head when that is asked for. Raises ExportError when a layer cannot be quantized as asked and is
    not listed to be skipped, when a pattern of that list matches nothing, or when there is no tied head to untie.
    """
    if quantization.untie_head:
        _untie_head(model)
    unused = set(quantization.skip)
    layers, problems = [], []
    for modules, module, parameter in _matrices(model):
        matched = {
            pattern for pattern in quantization.skip if any(fnmatch.fnmatchcase(name, pattern) for name in modules)
        }
        unused -= matched
        embedding = isinstance(module, torch.nn.Embedding)
        asked = quantization.embedding if embedding else quantization.linear
        kind = "embedding" if embedding else "linear"
        why = (
            f"quantization.{kind} is none" if not asked.quantized else "listed in quantization.skip" if matched else ""
        )
        form = UNQUANTIZED if why else asked
        layer = Layer(modules=modules, shape=tuple(parameter.shape), format=form, why=why)
        layers.append(layer)
        problem = "" if why else _problem(layer, module, parameter)
        if problem:
            problems.append((layer, problem))
    if problems:
        raise ExportError(_told(problems))
    for kind, form in (("linear", quantization.linear), ("embedding", quantization.embedding)):
        if form.quantized and all(layer.format != form for layer in layers):
            raise ExportError(
                f"quantization.{kind} is {form.scheme}; every layer that it concerns is skipped, or is a head that is "
                "stored as the embedding it is tied to. Choose none for it."
            )
    if unused:
        raise ExportError(
            f"quantization.skip lists {', '.join(map(repr, sorted(unused)))}, which matches no layer of the model; "
            f"expected names such as {layers[-1].name!r}. Correct it, or remove it."
        )
    return layers


def write(model: Any, layers: Sequence[Layer], path: Path) -> None:
    """Quantizes the layers into a safetensors file, whose metadata tells what each of them is."""
    from safetensors.torch import save_file

    save_file(quantize(model, layers), path, {_METADATA: json.dumps([asdict(layer) for layer in layers])})


def give(model: Any, path: Path, *, dequantized: bool = False) -> None:
    """Gives a model, in whatever dtype, the weights that ``write`` left for its checkpoint."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        layers = [
            Layer(
                modules=tuple(layer["modules"]),
                shape=tuple(layer["shape"]),
                format=WeightFormat(**layer["format"]),
                why=layer["why"],
            )
            for layer in json.loads(file.metadata()[_METADATA])
        ]
        apply(model, layers, {name: file.get_tensor(name) for name in file.keys()}, dequantized=dequantized)  # noqa: SIM118 - it is no mapping


def quantize(model: Any, layers: Sequence[Layer]) -> dict[str, torch.Tensor]:
    """The quantized layers' stored tensors, by layer name and torchao's name of the part: ``lm_head.scale``.

    The model is left as it is. Raises ExportError when a layer's weights are not what the format can hold.
    """
    stored: dict[str, torch.Tensor] = {}
    for layer in layers:
        if layer.format.quantized:
            parts, off = _quantized(model.get_submodule(layer.name).weight, layer.format)
            if not off <= MOST_OFF:
                raise ExportError(
                    f"{layer.name} as {layer.format} would be off by {off:.2g} of its norm; expected at most "
                    f"{MOST_OFF}. Its weights are not finite, or larger or smaller than the scales of this format can "
                    "say. Choose another scheme, or list it under quantization.skip."
                )
            stored |= {f"{layer.name}.{part}": data for part, data in parts.items()}
    return stored


def apply(model: Any, layers: Sequence[Layer], stored: Tensors, *, dequantized: bool = False) -> None:
    """Gives the model the quantized weights, as torchao's tensors or, in their own dtype, as what those stand for.

    ``layers`` and ``stored`` are those of the same checkpoint, in whatever dtype it is loaded now. Modules that share
    a layer share it afterwards too; a head that was untied no longer shares the embedding's.
    """
    for layer in layers:
        if layer.format.quantized:
            dtype = model.get_submodule(layer.name).weight.dtype
            parts = {part: stored[f"{layer.name}.{part}"] for part in _parts(layer.format)}
            weight = _restored(layer.format, parts, dtype)
            if dequantized:
                weight = dequantize(weight, dtype)
            parameter = torch.nn.Parameter(weight, requires_grad=False)
            for name in layer.modules:
                model.get_submodule(name).weight = parameter


def dequantize(weight: Any, dtype: torch.dtype) -> torch.Tensor:
    """The numbers that one of torchao's tensors stands for, [out, in], computed in float32 and rounded once."""
    if hasattr(weight, "zero_point"):
        wide: torch.Tensor = weight.to(torch.float32).dequantize()
    else:
        wide = weight.dequantize(output_dtype=torch.float32)
    return wide.to(dtype)


def _matrices(model: Any) -> Iterator[tuple[tuple[str, ...], Any, torch.Tensor]]:
    """Each floating-point parameter of two dimensions or more: names of its modules, the deciding one, and itself.

    An embedding decides for a linear layer that shares its weights.
    """
    users: dict[torch.Tensor, list[tuple[str, Any]]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if parameter.dim() >= 2 and parameter.is_floating_point():
                users.setdefault(parameter, []).append((name, module))
    for parameter, shared in users.items():
        shared.sort(key=lambda user: not isinstance(user[1], torch.nn.Embedding))
        yield tuple(name for name, _ in shared), shared[0][1], parameter


def _untie_head(model: Any) -> None:
    head = model.get_output_embeddings()
    if head is None or head.weight is not model.get_input_embeddings().weight:
        raise ExportError(
            "quantization.untie_head is true; the model's head is not tied to its embedding. Remove untie_head."
        )
    head.weight = torch.nn.Parameter(head.weight.detach(), requires_grad=False)


def _problem(layer: Layer, module: Any, parameter: torch.Tensor) -> str:
    """Why the layer cannot be quantized as asked; empty when it can."""
    if not isinstance(module, torch.nn.Linear | torch.nn.Embedding) or parameter is not module.weight:
        return f"it is a {type(module).__name__}, which no scheme takes"
    rows, width = layer.shape
    if layer.format.scheme == "nvfp4" and rows % NVFP4_ROWS:
        return f"its {rows} rows are not a multiple of {NVFP4_ROWS}"
    group_size = layer.format.group_size or LEAST_GROUP_SIZE
    if layer.format.scheme == "nvfp4" and isinstance(module, torch.nn.Embedding):
        group_size = NVFP4_EMBEDDING_WIDTH
    return f"its width is not a multiple of {group_size}" if width % group_size else ""


def _told(problems: Sequence[tuple[Layer, str]]) -> str:
    listed = "; ".join(
        f"{layer.name} {list(layer.shape)} as {layer.format.scheme}: {problem}"
        for layer, problem in problems[:_MOST_LISTED]
    )
    others = f"; and {len(problems) - _MOST_LISTED} more" if len(problems) > _MOST_LISTED else ""
    common = math.gcd(*(layer.shape[-1] for layer, _ in problems))
    smaller = [
        size for size in (64, 32) if common % size == 0 and any(layer.format.group_size > size for layer, _ in problems)
    ]
    choosable = all(layer.format.scheme in GROUP_SIZE_CHOOSABLE for layer, _ in problems)
    remedy = f"Choose a group size of {smaller[0]}, or list" if smaller and choosable else "List"
    return (
        f"{len(problems)} of the model's layers cannot be quantized as the manifest asks: {listed}{others}. {remedy} "
        "them under quantization.skip to leave them as they are."
    )


def _config(form: WeightFormat) -> AOBaseConfig:
    """torchao's configuration, as executorch's exporter makes it for the same name."""
    # Imported here: they register their handlers, and take seconds.
    if form.scheme == "nvfp4":
        from executorch.extension.llm.export.nvfp4 import ExportableNVFP4Config

        return ExportableNVFP4Config(use_per_tensor_scale=False)
    if form.scheme == "mxfp8":
        from executorch.extension.llm.export.mx import ExportableMXConfig

        return ExportableMXConfig(elem_dtype=torch.float8_e4m3fn, block_size=form.group_size)
    from torchao.quantization.granularity import PerAxis, PerGroup
    from torchao.quantization.quant_api import IntxWeightOnlyConfig
    from torchao.quantization.quantize_.workflows.intx.intx_choose_qparams_algorithm import IntxChooseQParamsAlgorithm

    return IntxWeightOnlyConfig(
        weight_dtype=_INTEGERS[form.scheme],
        granularity=PerGroup(form.group_size) if form.group_size else PerAxis(0),
        intx_choose_qparams_algorithm=IntxChooseQParamsAlgorithm.HQQ_SCALE_ONLY,
    )


def _quantized(weight: torch.Tensor, form: WeightFormat) -> tuple[dict[str, torch.Tensor], float]:
    """The tensors to store, by torchao's names, and how far they are from the weight in units of its norm."""
    from torchao.quantization import quantize_

    config = _config(form)
    rows, width = weight.shape
    # A multiple of the rows that NVFP4 wants.
    at_once = max(NVFP4_ROWS, CHUNK_WEIGHTS // width // NVFP4_ROWS * NVFP4_ROWS)
    parts: dict[str, list[torch.Tensor]] = {part: [] for part in _parts(form)}
    apart = norm = 0.0
    for start in range(0, rows, at_once):
        piece = weight.detach()[start : start + at_once]
        if form.scheme == "nvfp4" and piece.dtype == torch.float16:
            # torchao makes NVFP4 of the other two dtypes alone, and nothing in it depends on which.
            piece = piece.float()
        layer = torch.nn.Linear(width, len(piece), bias=False, device="meta")
        layer.weight = torch.nn.Parameter(piece.contiguous(), requires_grad=False)
        quantize_(layer, config)
        for part, pieces in parts.items():
            pieces.append(getattr(layer.weight, part))
        wide = piece.float()
        apart += float((dequantize(layer.weight, torch.float32) - wide).square().sum())
        norm += float(wide.square().sum())
    off = math.sqrt(apart / norm) if norm else math.sqrt(apart)
    return {part: _joined(pieces) for part, pieces in parts.items()}, off


def _joined(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    # One scale of the whole tensor is 1, and the same in every piece; float8 and uint32 cannot be concatenated as such.
    if pieces[0].dim() == 0:
        return pieces[0]
    return torch.cat([piece.view(torch.uint8) for piece in pieces]).view(pieces[0].dtype).contiguous()


def _parts(form: WeightFormat) -> tuple[str, ...]:
    if form.scheme == "nvfp4":
        return ("qdata", "scale", "per_tensor_scale")
    return ("qdata", "scale") if form.scheme == "mxfp8" else ("qdata", "scale", "zero_point")


def _restored(form: WeightFormat, parts: Tensors, dtype: torch.dtype) -> Any:
    """torchao's tensor of the parts, for a model in ``dtype``."""
    if form.scheme == "nvfp4":
        from executorch.extension.llm.export.nvfp4 import ExportableNVFP4Tensor

        return ExportableNVFP4Tensor(**parts, block_size=form.group_size, orig_dtype=dtype)
    if form.scheme == "mxfp8":
        from executorch.extension.llm.export.mx import ExportableMXTensor

        return ExportableMXTensor(**parts, elem_dtype=torch.float8_e4m3fn, block_size=form.group_size, orig_dtype=dtype)
    from torchao.quantization import IntxUnpackedToInt8Tensor

    return IntxUnpackedToInt8Tensor(
        **parts,
        target_dtype=_INTEGERS[form.scheme],
        block_size=(1, form.group_size or parts["qdata"].shape[-1]),
        dtype=parts["scale"].dtype,
        activation_quantization=None,
    )
