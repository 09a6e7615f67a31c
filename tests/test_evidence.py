"""Evidence is read off the file as it is, whatever order things come in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.evidence import Evidence, _sized_axes, heads_and_dim
from pipeline.pte import PteFile, parse_mlx_payload
from tests.tiny_models import Artifact


def test_the_delegates_arguments_say_which_input_is_which(tiny_pte: Any) -> None:
    """A graph may take positions before tokens although the method takes tokens first."""
    with PteFile.open(tiny_pte.path) as pte:
        method = pte.program.methods["forward"]
    graph = parse_mlx_payload(method.delegates[0].payload)
    tokens, positions, logits = method.instructions[0].args
    first, second = (slot.idx for slot in graph.input_map)
    assert _sized_axes(method, graph, (tokens, positions, logits)) == [("token", (first, 1)), ("token", (second, 0))]
    assert _sized_axes(method, graph, (positions, tokens, logits)) == [("token", (second, 1)), ("token", (first, 0))]


def test_a_lowered_file_shows_all_of_its_contract(tiny_pte: Any) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        evidence = Evidence.of(pte)
    assert evidence.where == str(tiny_pte.path)
    assert set(evidence.methods) == {"forward", *tiny_pte.constants}
    assert evidence.forward is not None
    graph = evidence.forward.graph
    assert graph is not None
    assert (evidence.forward.delegates, evidence.forward.others) == (("MLXBackend",), {})
    assert (graph.num_slots, graph.num_mutable_buffers, graph.float_dtypes) == (3, 0, {"float32"})
    assert [(attend.layer_id, heads_and_dim(attend.key)) for attend in graph.attends] == [(0, (2, 8)), (1, (2, 8))]
    assert (graph.absent_data, graph.short_data) == ((), ())
    file = evidence.file
    assert (file.program_version, file.unused_data) == (0, ())
    assert file.segment_starts
    assert not [start for start in file.segment_starts if start % 128]


@pytest.mark.parametrize(("name", "rows_of"), [("mixed", None), ("full", "token"), ("selected", "selected row")])
def test_a_graph_shows_what_its_rows_of_logits_belong_to(
    artifact: Callable[[str], Artifact], name: str, rows_of: str | None
) -> None:
    with PteFile.open(artifact(name).pte) as pte:
        forward = Evidence.of(pte).forward
    assert forward is not None
    assert forward.graph is not None
    assert forward.graph.rows_of == rows_of


def test_the_graph_of_another_backend_is_not_looked_into(tiny_pte: Any) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        method = pte.program.methods["forward"]
        delegates = (dataclasses.replace(method.delegates[0], id="XnnpackBackend"),)
        pte.program.methods["forward"] = dataclasses.replace(method, delegates=delegates)
        forward = Evidence.of(pte).forward
    assert forward is not None
    assert (forward.delegates, forward.graph) == (("XnnpackBackend",), None)


def test_heads_that_do_not_follow_are_none() -> None:
    assert heads_and_dim((1, 2, None, 8)) == (2, 8)
    for unknown in (None, (1, 2, 8), (1, None, 3, 8), (1, 2, 3, "0.1")):
        assert heads_and_dim(unknown) is None
