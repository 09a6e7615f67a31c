"""Prefill and greedy decode, side by side with mlx-lm on the same machine, in one process.

    pip install --no-deps --target /tmp/peer mlx-lm
    python benchmarks/decode.py model.pte --snapshot DIRECTORY --peer /tmp/peer

The peer loads the snapshot that the ``.pte`` was built from, in the artifact's dtype, quantized to its bits and group
sizes. Both take the same prompt and continue it by turns of a few tokens, each with the next token prepared while one
is computed; ours through ``Decoder.greedy``. Printed: milliseconds of each, the best of all turns, and how many times
the peer's speed ours is. The host's time is that of recording one token's graph, which is then dropped.

With ``--random`` the peer has random weights of the shapes in the snapshot's config.json, which is all that is read
then; the time does not depend on their values.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from pipeline.contract import SCALAR_TYPE
from pipeline.delegate.dtypes import BY_CODE
from pipeline.pte import PteFile, parse_mlx_payload
from pipeline.runtime.decoder import Decoder


class Peer:
    """mlx-lm's Llama with its own cache, greedy as its ``generate_step`` is, without the log-probabilities."""

    def __init__(self, library: Path, snapshot: Path, packing: dict[str, int], dtype: mx.Dtype, random: bool) -> None:
        # The package's own __init__ imports Transformers, which a model does not need.
        package = types.ModuleType("mlx_lm")
        package.__path__ = [str(library / "mlx_lm")]
        sys.modules["mlx_lm"] = package
        from mlx_lm.models import cache, llama

        self._new_cache = cache.make_prompt_cache
        config = json.loads((snapshot / "config.json").read_text())
        if "rope_parameters" in config:
            config["rope_theta"] = config["rope_parameters"]["rope_theta"]
        self.model = llama.Model(llama.ModelArgs.from_dict(config))
        if not random:
            weights = {k: v for file in snapshot.glob("*.safetensors") for k, v in mx.load(str(file)).items()}
            self.model.load_weights(list(self.model.sanitize(weights).items()), strict=False)
        self.model.set_dtype(dtype)
        if packing:
            nn.quantize(self.model, class_predicate=lambda path, module: self._packing(module, packing))
        mx.eval(self.model.parameters())

    @staticmethod
    def _packing(module: nn.Module, packing: dict[str, int]) -> bool | dict[str, int]:
        if isinstance(module, nn.Embedding):
            return {"bits": packing["head_bits"], "group_size": packing["head_group"]}
        return isinstance(module, nn.Linear) and {"bits": packing["bits"], "group_size": packing["group"]}

    def prefill(self, ids: list[int]) -> mx.array:
        """The last token's logits; as in ``generate_step``, the head is spared the others."""
        self.cache = self._new_cache(self.model)
        hidden = self.model.model(mx.array([ids]), cache=self.cache)[:, -1]
        logits = self.model.model.embed_tokens.as_linear(hidden)
        mx.eval(logits, [layer.state for layer in self.cache])
        return logits[0]

    def step(self, token: mx.array) -> mx.array:
        return mx.argmax(self.model(token[None, None], cache=self.cache)[0, -1])

    def tokens(self, logits: mx.array) -> Generator[Any, None, None]:
        token = mx.argmax(logits)
        while True:
            following = self.step(token)
            mx.async_eval(following)
            yield token.item()
            token = following


def main() -> None:
    """Prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("artifact", type=Path)
    arguments.add_argument("--snapshot", type=Path, required=True)
    arguments.add_argument("--peer", type=Path, required=True)
    arguments.add_argument("--contexts", type=int, nargs="+", default=[64, 512])
    arguments.add_argument("--turns", type=int, default=5)
    arguments.add_argument("--tokens", type=int, default=16, help="of each turn")
    arguments.add_argument("--random", action="store_true")
    arguments.add_argument("--plain", action="store_true", help="add ours without fusion")
    args = arguments.parse_args()
    began = time.perf_counter()
    opened = PteFile.open(args.artifact)
    decoder = Decoder(opened)
    print(f"loaded in {time.perf_counter() - began:.2f} s on {mx.default_device()}")
    dtype = BY_CODE[SCALAR_TYPE[decoder.contract.dtype]]
    peer = Peer(args.peer, args.snapshot, _packing(opened), dtype, args.random)
    decoders = {"ours": decoder, **({"unfused": Decoder(opened, fused=False)} if args.plain else {})}
    for each in decoders.values():
        each.contract = replace(each.contract, eos_ids=frozenset())
    print(f"{'ms, best of turns':20}" + "".join(f"{name:>10}" for name in (*decoders, "mlx-lm")) + "     speed")
    for context in args.contexts:
        prompt = [(7 * index) % 997 + 3 for index in range(context)]
        prefills = [partial(_prefilled, each, prompt) for each in decoders.values()]
        _print(f"prefill of {context}", _best_of([*prefills, partial(peer.prefill, prompt)], args.turns))
        for each in decoders.values():
            each.clear()
        texts: list[Generator[Any, None, None]] = [each.greedy(prompt, 10**6) for each in decoders.values()]
        texts.append(peer.tokens(peer.prefill(prompt)))
        # The first turn, which prefills, is the slowest.
        seconds = _best_of([partial(_continued, text, args.tokens) for text in texts], args.turns + 1)
        _print(f"a token from {context}", [each / args.tokens for each in seconds])
        for text in texts:
            text.close()
    hosts = [partial(_recorded, each) for each in decoders.values()]
    _print("host, one token", _best_of([*hosts, lambda: peer.step(mx.array(5))], 40))


def _packing(opened: PteFile) -> dict[str, int]:
    """Bits and group sizes of the linears and of the head, which the embedding is tied to; empty if not quantized."""
    graph = parse_mlx_payload(opened.program.methods["forward"].delegates[0].payload)
    packed = [node.fields for node in graph.chains[graph.main_chain] if node.name == "QuantizedMatmulNode"]
    if not packed:
        return {}
    first, last = packed[0], packed[-1]
    linear = {"bits": first["bits"], "group": first["group_size"]}
    return {**linear, "head_bits": last["bits"], "head_group": last["group_size"]}


def _prefilled(decoder: Decoder, prompt: list[int]) -> None:
    decoder.clear()
    list(decoder.prefill(prompt))


def _continued(text: Generator[Any, None, None], num_tokens: int) -> None:
    for _ in range(num_tokens):
        next(text)


def _recorded(decoder: Decoder) -> None:
    """One step as ``Decoder.greedy`` begins it, dropped."""
    step = decoder._begun(mx.array([[5]], mx.int64), [0])
    mx.argmax(step.outputs[0][0, -1])
    step.abandon()


def _best_of(actions: list[Callable[[], Any]], turns: int) -> list[float]:
    """Seconds of each action's fastest turn; they take turns, so that what else the machine does hits all alike."""
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(turns):
        for action, row in zip(actions, seconds, strict=True):
            began = time.perf_counter()
            action()
            row.append(time.perf_counter() - began)
    return [min(row) for row in seconds]


def _print(what: str, seconds: list[float]) -> None:
    print(f"{what:20}" + "".join(f"{1000 * each:10.2f}" for each in seconds) + f"{seconds[-1] / seconds[0]:8.2f} x")


if __name__ == "__main__":
    main()
