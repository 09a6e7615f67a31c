"""executorch's own op suite of the MLX backend, case by case: its models, its inputs, its export, its tolerances.

To it belong ``test_ops`` and, since only they scan, the cases of the gated delta rule. The suite's last step runs the
backend itself, which only a Mac has. Here our loader and executor take its place, so its cases judge them. What a case
writes goes to a directory of its own, where the suite would use its package's.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import types
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import torch
from torch._export import utils

from pipeline.contract import CacheGeometry
from pipeline.delegate.dtypes import BY_CODE
from pipeline.delegate.executor import MlxMethod
from pipeline.errors import PipelineError
from pipeline.model import serializer
from pipeline.pte import PteFile, parse_mlx_payload
from pipeline.runtime.kv_cache import KVCache
from tests.delegate.compared import gpu_rules
from tests.pte.agreement import assert_read_as_executorch_reads


@dataclass(frozen=True)
class Outcome:
    """The nodes of a case's graph, and what is wrong with what came of it, if anything."""

    nodes: frozenset[str]
    problem: str | None


@cache
def cases() -> dict[str, Any]:
    """Every case by name; where several have the same, all but the first are numbered."""
    _provide_suite()
    with warnings.catch_warnings():
        # The libraries' own deprecations are not ours to fix.
        warnings.simplefilter("ignore")
        from executorch.backends.mlx.custom_kernel_ops.test import test_gated_delta_rule as scans
        from executorch.backends.mlx.test import test_ops, test_utils

    # Transformers has come to ask a configuration for this; the suite's stand-in for one is older.
    test_ops.MockModelConfig.per_layer_config = property(lambda config: [config] * config.num_hidden_layers)
    families = [family for family in vars(scans).values() if hasattr(family, "get_test_configs")]
    named: dict[str, Any] = {}
    for case in (
        *(case for _, case in test_utils.get_all_test_configs()),
        *(case for family in families for case in family.get_test_configs()),
    ):
        alike = sum(known.partition("#")[0] == case.name for known in named)
        named[f"{case.name}#{alike + 1}" if alike else case.name] = case
    return named


def _provide_suite() -> None:
    serializer.provide()
    # Of these modules the suite needs one, which needs none of what their package imports for the others: torchtune.
    parent = importlib.util.find_spec("executorch.extension.llm")
    assert parent is not None
    assert parent.submodule_search_locations is not None
    modules = types.ModuleType("executorch.extension.llm.modules")
    modules.__path__ = [str(Path(where) / "modules") for where in parent.submodule_search_locations]
    sys.modules.setdefault(modules.__name__, modules)


# More than half of the time of a small export goes into listing torch's operators, each time anew. They are listed once
# here, and only here: tests elsewhere may register more.
_operators_of_namespace = cache(utils._collect_all_valid_cia_ops_for_namespace)


@cache
def outcome(name: str) -> Outcome:
    """A case exported, loaded, executed and compared with eager torch."""
    case = cases()[name]
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case.get_test_dir = lambda: Path(directory)
        try:
            with patch.object(utils, "_collect_all_valid_cia_ops_for_namespace", _operators_of_namespace):
                path, _, _ = case.generate_test_files()
        except Exception as error:
            return Outcome(frozenset(), f"cannot be exported: {type(error).__name__}: {error}")
        assert_read_as_executorch_reads(path)
        with PteFile.open(path) as pte:
            payloads = [delegate.payload for delegate in pte.program.methods["forward"].delegates]
            chains = [chain for payload in payloads for chain in parse_mlx_payload(payload).chains]
            nodes = frozenset(node.name for chain in chains for node in chain)
            try:
                return Outcome(nodes, _problem(case, pte, Path(directory)))
            except PipelineError as error:
                return Outcome(nodes, str(error))


def _problem(case: Any, pte: PteFile, directory: Path) -> str | None:
    from executorch.backends.mlx.test.test_utils import compare_outputs, load_tensors_from_bin

    inputs = load_tensors_from_bin(directory / "input.bin")
    expected = load_tensors_from_bin(directory / "expected_output.bin")

    def outputs(fused: bool) -> list[torch.Tensor]:
        method = MlxMethod(pte, cache=_cache(case.kv_cache) if case.kv_cache else None, fused=fused)
        return [to_torch(array) for array in method(*map(to_mlx, inputs))]

    found, plain = outputs(fused=True), outputs(fused=False)
    kinds = [[(tuple(tensor.shape), tensor.dtype) for tensor in tensors] for tensors in (found, expected)]
    if kinds[0] != kinds[1]:
        return f"its outputs are {kinds[0]}; expected {kinds[1]}"
    # Drawn at random, by the suite's word; a test lists them.
    if case.skip_comparison:
        return None
    # A float32 product may be summed in another order.
    exact = [pair for pair in zip(found, plain, strict=True) if pair[0].dtype != torch.float32]
    if not all(_alike(*pair) for pair in exact):
        return "its outputs are others without fusion"
    with gpu_rules():
        by_gpu_rules = outputs(fused=True)
    for tensors in (found, plain, by_gpu_rules):
        same, message = compare_outputs(expected, tensors, rtol=case.rtol, atol=case.atol)
        if not same:
            return str(message)
    return None


def _alike(found: torch.Tensor, plain: torch.Tensor) -> bool:
    """On a CPU nothing is rounded otherwise."""
    return found.dtype == plain.dtype and torch.equal(found.nan_to_num(7.0), plain.nan_to_num(7.0))


def _cache(text: str) -> KVCache:
    """The suite's "capacity, caches, KV heads, head_dim, dtype"."""
    capacity, num_caches, num_kv_heads, head_dim, dtype = map(int, text.split(","))
    geometry = CacheGeometry(num_kv_heads=num_kv_heads, head_dim=head_dim, window=0)
    return KVCache((geometry,) * num_caches, capacity=capacity, max_write=capacity, dtype=BY_CODE[dtype])


def to_mlx(tensor: torch.Tensor) -> mx.array:
    """The same bytes; numpy has no bfloat16."""
    if tensor.dtype == torch.bfloat16:
        return mx.array(tensor.view(torch.uint16).numpy()).view(mx.bfloat16)
    return mx.array(tensor.numpy())


def to_torch(array: mx.array) -> torch.Tensor:
    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(array.view(mx.uint16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
