"""A program is loaded once, says what it can do, and is instantiated as often as one likes."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.delegate import Program, TensorSpec
from pipeline.errors import DelegateError, PteError
from pipeline.runtime.decoder import Decoder
from tests.delegate import exported
from tests.tiny_models import Artifact

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def program(small: Path) -> Iterator[Program]:
    with Program.load(small) as opened:
        yield opened


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """Two methods, their constants in two files beside the program."""
    path = tmp_path_factory.mktemp("split") / "split.pte"
    sides = exported.write(path, {"forward": "counter", "lookup": "lookup"}, max_data_bytes=96)
    assert len(sides) == 2
    return path, sides


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(DelegateError) as caught:
        action()
    return str(caught.value)


class TestWhatItSays:
    def test_methods_are_those_that_do_something_and_constants_are_what_the_others_publish(
        self, program: Program
    ) -> None:
        assert program.methods == ("forward", "lookup", "outside")
        assert program.constants == {"get_answer": 42}

    def test_a_signature_names_inputs_with_dtypes_and_bounds(self, program: Program) -> None:
        signature = program.signature("lookup")
        assert signature.inputs == (
            TensorSpec("ids", "int64", (6,), (True,)),
            TensorSpec("scale", "bfloat16", (4,), (False,)),
            TensorSpec("", "float32", (2,), (False,)),
        )
        (output,) = signature.outputs
        assert (output.dtype, output.shape, output.dynamic) == ("bfloat16", (6, 4), (True, False))

    def test_a_signature_reads_in_one_line(self, program: Program) -> None:
        assert str(program.signature()) == "(x: float32 [≤8, 4]) -> (aten_mul_tensor: float32 [3])"

    def test_a_published_number_has_the_signature_of_one(self, program: Program) -> None:
        assert str(program.signature("get_answer")) == "() -> (_: int [])"


class TestWhatItRefuses:
    def test_an_unknown_method(self, program: Program) -> None:
        expected = "small.pte has no method 'backward'; it has forward, lookup, outside."
        assert refusal(lambda: program.method("backward")) == expected
        assert refusal(lambda: program.signature("backward")) == expected

    def test_operators_outside_the_delegates_are_listed(self, program: Program) -> None:
        assert refusal(lambda: program.method("outside")) == (
            "small.pte: outside has 2 delegates and operators outside them (aten::_pdist_forward.out); expected one "
            "MLX delegate and nothing else."
        )
        assert str(program.signature("outside")).startswith("(x: float32 [3, 4])")

    def test_a_constant(self, program: Program) -> None:
        assert refusal(lambda: program.method("get_answer")) == (
            "small.pte: get_answer has nothing to execute: it publishes a value, which the program holds."
        )

    def test_a_device_that_is_not_there(self, small: Path) -> None:
        """Not the first GPU, which a machine may have."""
        with Program.load(small, device=mx.Device(mx.gpu, 1000)) as program:
            assert refusal(program.method) == (
                "small.pte: forward is to run on Device(gpu, 1000), which MLX does not have here. Use mx.cpu."
            )
            assert program.method(device=mx.Device(mx.cpu, 0)).device == mx.cpu

    def test_anything_once_closed(self, small: Path) -> None:
        program = Program.load(small)
        method = program.method()
        program.close()
        assert refusal(program.method) == "small.pte is closed. Ask for methods while it is open."
        assert refusal(program.signature) == "small.pte is closed. Ask for methods while it is open."
        assert method(mx.zeros((1, 4)))[0].shape == (3,)

    CALLS = (
        ((np.zeros(3, np.int32),), "takes 3 inputs; 1 were given."),
        (
            (np.zeros(3, np.int32), mx.ones(4, mx.bfloat16), mx.zeros(2)),
            ": input 0 is [3] of mlx.core.int32; expected at most [6] of int64.",
        ),
        (
            (np.zeros((3, 1), np.int64), mx.ones(4, mx.bfloat16), mx.zeros(2)),
            ": input 0 is [3, 1] of mlx.core.int64; expected at most [6] of int64.",
        ),
        (
            ([1, 2], mx.ones(4, mx.bfloat16), mx.zeros(2)),
            ": input 0 is a list; expected an array of MLX, numpy or torch.",
        ),
    )

    @pytest.mark.parametrize(("arrays", "expected"), CALLS)
    def test_arrays_that_do_not_fit(self, program: Program, arrays: tuple[object, ...], expected: str) -> None:
        found = refusal(lambda: program.method("lookup")(*arrays))  # type: ignore[arg-type]
        assert found.removeprefix("small.pte: lookup").lstrip() == expected.lstrip()


class TestCalls:
    @pytest.mark.parametrize("fused", [True, False])
    def test_torch_numpy_and_mlx_arrays_give_what_torch_computes(self, program: Program, fused: bool) -> None:
        ids, scale = torch.tensor([1, 10, 0]), torch.tensor([1.5, -2.0, 0.25, 3.0], dtype=torch.bfloat16)
        expected = exported.module("lookup")(ids, scale, None).float().detach().numpy()
        method = program.method("lookup", fused=fused)
        in_mlx = mx.array(scale.float().numpy()).astype(mx.bfloat16)
        for given in ((ids, scale, torch.zeros(2)), (ids.numpy(), in_mlx, np.zeros(2, np.float32))):
            (found,) = method(*given)
            assert found.dtype == mx.bfloat16
            assert np.array_equal(np.array(found.astype(mx.float32)), expected)


class TestInstances:
    def test_each_has_its_own_buffers_and_reset_forgets_one_of_them(self, program: Program) -> None:
        rows = np.random.default_rng(0).standard_normal((5, 4), np.float32)
        first, second = program.method(), program.method()
        alone = first(rows)[0].tolist()
        twice = first(rows)[0].tolist()
        assert twice != alone
        assert second(rows)[0].tolist() == alone
        first.reset()
        assert first(rows)[0].tolist() == alone
        assert second(rows)[0].tolist() == twice

    @pytest.mark.parametrize("fused", [True, False])
    def test_decoders_of_one_program_share_weights_and_no_history(
        self, artifact: Callable[[str], Artifact], fused: bool
    ) -> None:
        with Program.load(artifact("mixed").pte) as program:
            num_bytes = sum(len(blob) for blob in program.pte.named_data.values())
            first = Decoder(program, fused=fused)
            logits = first.feed([1, 2])
            gc.collect()
            before = mx.get_active_memory()
            second = Decoder(program, fused=fused)
            gc.collect()
            assert mx.get_active_memory() - before < num_bytes / 10, "the second has a copy of the weights"
        first.feed([3])
        assert mx.array_equal(second.feed([1, 2]), logits)
        assert (first.position, second.position) == (3, 2)

    def test_another_method_of_a_program_takes_nothing_twice(self, small: Path) -> None:
        """Fused or not, on whichever instance: one array for each constant in the file."""
        with Program.load(small) as program:
            program.method("lookup")
            gc.collect()
            before = mx.get_active_memory()
            kept = [program.method("lookup", fused=False) for _ in range(3)]
            gc.collect()
            assert mx.get_active_memory() - before < 11 * 4 * 2
            assert kept


class TestSideFiles:
    """Constants in ``.ptd`` files that executorch wrote."""

    def test_they_give_what_the_whole_program_gives(self, split: tuple[Path, list[Path]], program: Program) -> None:
        path, sides = split
        rows = np.random.default_rng(0).standard_normal((5, 4), np.float32)
        with Program.load(path, sides) as loaded:
            assert len(loaded.pte.named_data) == 0
            assert loaded.method()(rows)[0].tolist() == program.method()(rows)[0].tolist()

    def test_without_them_the_first_constant_that_is_missing_is_named(self, split: tuple[Path, list[Path]]) -> None:
        path, _ = split
        with Program.load(path) as loaded:
            assert re.fullmatch(
                r"split\.pte: forward: constant '\w{4}/[\w.]+' is not in split\.pte\. If the program was exported with "
                r"external data, give the \.ptd that belongs to it; if it was not, the file is damaged\.",
                refusal(loaded.method),
            )

    def test_all_that_were_looked_into_are_named(self, split: tuple[Path, list[Path]]) -> None:
        path, sides = split
        found = []
        for side in sides:
            with Program.load(path, [side]) as loaded:
                for name in loaded.methods:
                    with suppress(DelegateError):
                        loaded.method(name)
                        continue
                    found.append(refusal(partial(loaded.method, name)))
        assert found
        assert all(re.search(r" is not in split\.pte or side_\w+\.ptd\. If ", message) for message in found)

    def test_data_given_twice_is_refused(self, split: tuple[Path, list[Path]]) -> None:
        path, sides = split
        found = refusal(lambda: Program.load(path, [*sides, sides[0]]))
        assert re.fullmatch(
            rf"{sides[0].name} and {sides[0].name} both have data named '.+'; expected one\. Give the files that were "
            r"exported together\.",
            found,
        )

    def test_data_of_another_dtype_is_refused(self, split: tuple[Path, list[Path]]) -> None:
        path, sides = split
        with Program.load(path, sides) as loaded:
            for side in loaded._data:
                for key, layout in side.layouts.items():
                    if key.endswith("table.weight"):
                        side.layouts[key] = type(layout)("float16", layout.sizes, True)
            found = refusal(lambda: loaded.method("lookup"))
        assert re.fullmatch(
            r"split\.pte: lookup: constant '\w{4}/table\.weight' is \[11, 4\] of float16 in side_\w+\.ptd; expected "
            r"\[11, 4\] of bfloat16, row-major\. Give the \.ptd that was exported with the program\.",
            found,
        )

    def test_a_file_of_another_kind_is_refused(self, split: tuple[Path, list[Path]]) -> None:
        path, _ = split
        with pytest.raises(PteError, match=r"the mark of a \.ptd"):
            Program.load(path, [path])


def test_the_example_in_the_documentation_runs(
    artifact: Callable[[str], Artifact], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And prints what it says, on an artifact of the same kind."""
    text = (ROOT / "docs" / "delegate.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(artifact("mixed").pte.parent)
    scope: dict[str, object] = {}
    for block in blocks:
        exec(block, scope)
    printed = capsys.readouterr().out
    expected = "".join(f"{line}\n" for line in re.findall(r"^ *print\(.*\)  # (.*)$", "\n".join(blocks), re.MULTILINE))
    assert expected
    assert printed == expected
