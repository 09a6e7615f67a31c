"""``pte run`` prints what the model says, reports what it cost, and refuses by name."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main
from pipeline.text.loading import load
from pipeline.text.terminal import visible
from tests.bundles import Bundle
from tests.runtime import in_graph
from tests.tiny_models import Artifact, edit_json, library_warnings_ignored, save_tokenizer, words_only

PROMPTS = [
    "hello",
    "why",
    "What is the capital of France?",
    "a",
    "1 + 1 =",
    "Once upon a time",
    "the quick brown fox",
    "  two spaces",
    "tab\tand\nnewline",
    "UPPER CASE",
    "?",
    "!!!",
    "def f(x):",
    "{}",
    "[1, 2, 3]",
    "to be or not to be",
    "x" * 30,
    "user: system:",
    "</b>",
    "the end",
]


class Typed(io.TextIOWrapper):
    """Standard input with this content, a terminal or not."""

    def __init__(self, content: bytes, is_terminal: bool = False) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process: its exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        # What a build said before.
        capsys.readouterr()
        try:
            code = main(["run", *map(str, arguments)])
        except SystemExit as exit_:
            code = int(str(exit_.code))
        out, err = capsys.readouterr()
        return code, out, err

    return run


Run = Callable[..., tuple[int, str, str]]


def answers(run: Run, *arguments: object) -> list[dict[str, Any]]:
    code, out, err = run(*arguments, "--format", "json")
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def test_twenty_prompts_get_the_tokens_that_transformers_generates(
    run: Run, bundle: Bundle, artifact: Callable[[str], Artifact]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = bundle("talk")
    found = answers(run, directory, "--max-new-tokens", 16, *[part for text in PROMPTS for part in ("-p", text)])
    with library_warnings_ignored():
        model = AutoModelForCausalLM.from_pretrained(artifact("talk").snapshot, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(directory)
    for text, answer in zip(PROMPTS, found, strict=True):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**ids, do_sample=False, max_new_tokens=16, pad_token_id=2)[0, ids["input_ids"].shape[1] :]
        expected = out.tolist()
        ended = expected[-1] == 1
        assert answer["tokens"] == expected[: -1 if ended else None]
        assert (answer["finish_reason"], answer["stopped_by"]) == (("stop", 1) if ended else ("length", None))
        assert answer["text"] == tokenizer.decode(answer["tokens"], clean_up_tokenization_spaces=False)
    assert {answer["finish_reason"] for answer in found} == {"stop", "length"}


def test_the_text_goes_to_standard_output_and_the_reports_to_standard_error(run: Run, bundle: Bundle) -> None:
    (expected,) = answers(run, bundle("talk"), "-p", "hello", "--max-new-tokens", 6)
    code, out, err = run(bundle("talk"), "-p", "hello", "--max-new-tokens", 6)
    assert (code, out) == (0, expected["text"] + "\n")
    summary, layers, memory, *rest = err.splitlines()
    assert summary == "[cache] off-graph seq | capacity=256 initial=512 kv_dtype=Float(fp32) max_write=8"
    assert layers == "        2 layers: 1 flat + 1 ring(window 8)"
    assert memory.startswith("[mem]   after load  : ")
    prompt = expected["stats"]["prompt_tokens"]
    assert rest[0] == f"[cache] after prefill: {prompt} / 256 tokens ({100 * prompt / 256:.1f}%)"
    assert rest[1].startswith("[mem]   after prefill: ")
    assert rest[2].startswith("[cache] after decode : ")
    assert rest[3].startswith("[mem]   after decode : ")
    name, _, content = rest[4].partition(" ")
    assert name == "PyTorchObserver"
    observed = json.loads(content)
    assert observed.keys() == expected["stats"].keys()
    assert observed["generated_tokens"] == len(expected["tokens"])
    assert [line.split()[0] for line in rest[5:]] == ["[load]", "[prefill]", "[decode]"]


def test_times_and_rates_say_the_same(run: Run, bundle: Bundle) -> None:
    (answer,) = answers(run, bundle("talk"), "-p", "hello", "--max-new-tokens", 20)
    stats = answer["stats"]
    moments = ["model_load_start_ms", "model_load_end_ms", "inference_start_ms", "prompt_eval_end_ms"]
    times = [stats[name] for name in (*moments, "inference_end_ms")]
    assert times == sorted(times)
    assert stats["first_token_ms"] == stats["prompt_eval_end_ms"]
    seconds = (stats["inference_end_ms"] - stats["prompt_eval_end_ms"]) / 1000
    assert stats["decode_token_per_sec"] == pytest.approx(len(answer["tokens"]) / seconds, rel=0.1)
    # The last token is not fed unless the end was chosen after it.
    fed = len(answer["tokens"]) - (answer["finish_reason"] == "length")
    assert answer["cache"]["length"] == stats["prompt_tokens"] + fed
    assert answer["memory"]["now"] > 0


def test_quiet_leaves_the_text_alone(run: Run, bundle: Bundle) -> None:
    code, out, err = run(bundle("talk"), "-p", "hello", "--max-new-tokens", 6, "--quiet")
    assert (code, err) == (0, "")
    assert out.endswith("\n")


def test_on_a_terminal_nothing_that_is_printed_drives_it(
    run: Run, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (bundle("talk"), *[part for text in PROMPTS[:6] for part in ("-p", text)], "-q")
    _, plain, _ = run(*arguments)
    controls = {character for character in plain if ord(character) < 0x20 and character not in "\n\t"}
    assert controls
    monkeypatch.setattr("pipeline.cli.output.Output.isatty", lambda self: True)
    _, shown, _ = run(*arguments)
    assert shown == visible(plain)
    assert not controls & set(shown)


def test_standard_input_is_the_prompt_where_none_is_given(
    run: Run, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers(run, bundle("talk"), "-p", "two\nlines", "--max-new-tokens", 4)
    monkeypatch.setattr("sys.stdin", Typed(b"two\nlines\n"))
    found = answers(run, bundle("talk"), "--max-new-tokens", 4)
    assert found[0]["tokens"] == expected[0]["tokens"]
    assert found[0]["prompt"] == "two\nlines"


def test_a_stop_string_ends_the_text_before_it(run: Run, bundle: Bundle) -> None:
    (whole,) = answers(run, bundle("talk"), "-p", "hello", "--max-new-tokens", 10)
    stop = whole["text"][4:6]
    (cut,) = answers(run, bundle("talk"), "-p", "hello", "--max-new-tokens", 10, "--stop", "never", "--stop", stop)
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    assert (cut["finish_reason"], cut["stopped_by"]) == ("stop_string", stop)


def test_a_seed_repeats_a_draw_and_another_draws_anew(run: Run, bundle: Bundle) -> None:
    flags = ("-p", "hello", "--max-new-tokens", 12, "--temperature", 1.5, "--top-k", 50, "--top-p", 0.95)
    drawn = [answers(run, bundle("talk"), *flags, "--seed", seed)[0] for seed in (5, 5, 6)]
    assert drawn[0]["tokens"] == drawn[1]["tokens"] != drawn[2]["tokens"]
    (free,) = answers(run, bundle("talk"), *flags)
    assert answers(run, bundle("talk"), *flags, "--seed", free["seed"])[0]["tokens"] == free["tokens"]


def test_the_cache_is_chosen_on_the_command_line(run: Run, bundle: Bundle) -> None:
    flags = ("--kv-max-capacity", 40, "--kv-initial-capacity", 4, "--kv-storage-dtype", "fp16", "--kv-windows", "0,6")
    (answer,) = answers(run, bundle("talk"), "-p", "hello", "--max-new-tokens", 4, *flags)
    assert answer["cache"] | {"bytes": 0, "length": 0} == {
        "placement": "off_graph",
        "capacity": 40,
        "max_write": 6,
        "length": 0,
        "bytes": 0,
        "initial_capacity": 4,
        "storage": "fp16",
        "windows": [0, 6],
    }


def test_the_capacity_clamps_the_budget_and_says_so(run: Run, bundle: Bundle) -> None:
    code, _, err = run(bundle("talk"), "-p", "hello", "--kv-max-capacity", 30, "--max-new-tokens", 50, "-q")
    assert code == 0
    assert err == "at most 6 new tokens, not 50: the cache holds 30, and the prompt has 24\n"


def test_a_warm_run_answers_the_same(run: Run, bundle: Bundle) -> None:
    flags = (bundle("talk"), "-p", "hello", "--max-new-tokens", 6)
    assert answers(run, *flags, "--warmup")[0]["tokens"] == answers(run, *flags)[0]["tokens"]


def test_templates_and_a_system_change_what_is_fed(run: Run, bundle: Bundle) -> None:
    flags = (bundle("talk"), "-p", "hello", "--max-new-tokens", 1)
    lengths = [
        answers(run, *flags, *more)[0]["stats"]["prompt_tokens"]
        for more in ((), ("--chat", "model"), ("--system", "Be brief."), ("--chat", "none"))
    ]
    assert lengths == [24, 24, 24 + len("system: Be brief.") + 1, 5]


def refused(run: Run, *arguments: object) -> tuple[int, str]:
    code, out, err = run(*arguments)
    assert out == ""
    return code, err


def test_what_cannot_be_run_as_asked_is_refused(run: Run, bundle: Bundle, tmp_path: Path) -> None:
    talk = bundle("talk")
    cases: list[tuple[tuple[object, ...], int, str]] = [
        (
            (talk, "-p", "hello", "--kv-max-capacity", 24),
            1,
            "model.pte: the text has 24 tokens, and the cache holds 24; expected room for at least one more. Shorten "
            "the text, or raise the capacity (--kv-max-capacity), which the artifact's context bounds.\n",
        ),
        (
            (talk, "-p", "hello", "--kv-max-capacity", 257),
            1,
            "the cache is to hold 257 tokens, and the artifact's context is 256. Choose no more, or export it with a "
            "larger max_context_len.\n",
        ),
        (
            (talk, "-p", "hello", "--chat", "llama3"),
            1,
            f"chat template 'llama3': it writes '<|begin_of_text|>', which {talk}/tokenizer.json has not; expected a "
            "tokenizer of that family. Use the model's own template, or none.\n",
        ),
        (
            (talk, "-p", "hello", "--chat", "none", "--system", "x"),
            1,
            "--system: there is no chat template, so nobody to speak as the system; expected a template. Choose one "
            "with --chat, or put the text in the prompt.\n",
        ),
        (
            (talk, "-p", "hello", "--stop", ""),
            1,
            "a stop string is empty; expected some text, since every text begins with an empty one.\n",
        ),
        (
            (talk, "-p", "hello", "--tokenizer", tmp_path / "none.json"),
            1,
            f"{tmp_path}/none.json: it does not exist; expected a tokenizer's file, or a directory with "
            "tokenizer.json, tokenizer.model or *.tiktoken.\n",
        ),
        (
            (tmp_path, "-p", "hello"),
            3,
            f"{tmp_path}: it has no model.pte; expected a bundle, or a .pte. Build it, or correct the path.\n",
        ),
        (
            (tmp_path / "none.pte", "-p", "hello"),
            3,
            f"{tmp_path}/none.pte: there is no such file; expected a .pte. Build it, or correct the path.\n",
        ),
        (
            (talk, "-p", "hello", "--top-p", "0"),
            2,
            "top_p is 0.0; expected a number above 0 and up to 1, which is off.\n",
        ),
        (
            (talk, "-p", "hello", "--temperature", "nan"),
            2,
            "temperature is nan; expected 0 for greedy decoding, or a number from 0.000001 to 1000000.\n",
        ),
    ]
    for arguments, code, message in cases:
        assert refused(run, *arguments) == (code, message)


def test_wrong_flags_are_a_matter_of_usage(run: Run, bundle: Bundle) -> None:
    for flags, message in {
        ("--max-new-tokens", "-1"): "argument --max-new-tokens: '-1' is no whole number of 0 or more",
        ("--max-new-tokens", "many"): "argument --max-new-tokens: 'many' is no whole number of 0 or more",
        ("--kv-max-capacity", "0"): "argument --kv-max-capacity: '0' is no whole number of 1 or more",
        ("--kv-windows", "4,,0"): "argument --kv-windows: the windows are '4,,0', whose field 2 is ''; expected",
        ("--kv-storage-dtype", "fp8"): "argument --kv-storage-dtype: invalid choice: 'fp8'",
        ("--chat", "alpaca"): "argument --chat: invalid choice: 'alpaca'",
        ("--temperature", "warm"): "argument --temperature: invalid float value: 'warm'",
        ("--device", "tpu"): "argument --device: invalid choice: 'tpu'",
    }.items():
        code, out, err = run("bundle", "-p", "hello", *flags)
        assert (code, out) == (2, "")
        assert message in err


@pytest.mark.parametrize("given", [Typed(b"", is_terminal=True), Typed(b""), None], ids=["terminal", "empty", "closed"])
def test_a_run_without_a_prompt_is_refused(run: Run, given: Typed | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", given)
    assert refused(run, "bundle") == (
        2,
        "there is no prompt; expected --prompt TEXT, or a text on standard input.\n",
    )


def test_input_that_is_no_text_is_refused(run: Run, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Typed(b"abc\xff"))
    assert refused(run, bundle("talk")) == (1, "standard input: byte 3 is no UTF-8; expected text.\n")


def test_a_tokenizer_of_another_model_is_refused(run: Run, bundle: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes((bundle("talk") / "tokenizer.json").read_bytes())
    content = json.loads(file.read_text())
    content["model"]["vocab"]["zz"] = 300
    file.write_text(json.dumps(content))
    assert refused(run, bundle("talk"), "-p", "hello", "--tokenizer", file) == (
        1,
        f"{file}: its ids go up to 300, and the model's vocabulary ends at 259; expected no more. Use the tokenizer "
        "that belongs to the model.\n",
    )


def test_a_prompt_that_the_tokenizer_cannot_read_is_refused(run: Run, bundle: Bundle, tmp_path: Path) -> None:
    words_only(chat_template=None).save_pretrained(tmp_path)
    code, err = refused(run, bundle("talk"), "-p", "goodbye", "--tokenizer", tmp_path)
    assert code == 1
    assert err.startswith(f"{tmp_path}/tokenizer.json: the tokenizer cannot read 'goodbye' (")


def test_a_damaged_tokenizer_config_is_refused_by_name(run: Run, bundle: Bundle, tmp_path: Path) -> None:
    for file in bundle("talk").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    edit_json(tmp_path / "tokenizer_config.json", added_tokens_decoder={"1": {}})
    code, err = refused(run, tmp_path, "-p", "hello")
    assert code == 1
    assert err.startswith(f"{tmp_path}/tokenizer_config.json: added_tokens_decoder cannot be read")


def test_a_missing_library_names_the_extra_that_brings_it(
    run: Run, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("mlx.core", "tokenizers", "jinja2"):
        with monkeypatch.context() as patched:
            for name in [name for name in sys.modules if name.startswith("pipeline.session")]:
                patched.delitem(sys.modules, name)
            patched.setitem(sys.modules, library, None)
            code, err = refused(run, bundle("talk"), "-p", "hello")
        assert code == 1
        assert err.startswith(f"{library.partition('.')[0]} cannot be imported (")
        assert err.endswith(
            "expected the libraries that decode a .pte. Install them: pip install 'pte-pipeline[run]'.\n"
        )


def test_an_artifact_with_its_cache_in_its_graph_runs_as_it_was_exported(run: Run, tmp_path: Path) -> None:
    in_graph.write(tmp_path / "model.pte", get_max_seq_len=in_graph.CONTEXT)
    save_tokenizer(tmp_path)
    flags = (tmp_path, "--chat", "none", "-p", "abcdefghi", "-p", "xyz", "--max-new-tokens", 100)
    code, out, err = run(*flags, "--format", "json")
    assert code == 0
    assert "model.pte: it publishes no context length: taken as 32, its get_max_seq_len\n" in err
    for prompt, line in zip(("abcdefghi", "xyz"), out.splitlines(), strict=True):
        answer = json.loads(line)
        expected = in_graph.greedy(load(tmp_path).encode(prompt), in_graph.CONTEXT - len(prompt))
        ended = [*expected, 1].index(1)
        assert answer["tokens"] == expected[:ended]
        assert answer["max_new_tokens"] == in_graph.CONTEXT - len(prompt)
        assert answer["cache"]["placement"] == "in_graph"
    code, out, err = run(*flags, "--kv-max-capacity", 16)
    assert (code, out) == (1, "")
    assert err.startswith("model.pte: its KV cache is in its graph")
    code, _, err = run(*flags)
    assert "[cache] in-graph | capacity=32 max_write=6\n" in err


def test_an_interrupted_run_shows_and_reports_what_there_is(bundle: Bundle) -> None:
    command = [sys.executable, "-m", "pipeline", "run", str(bundle("talk")), "--max-new-tokens", "1000"]
    # With little chance for its end of text, an answer goes on for as long as there is room.
    command += ["--temperature", "30", "--seed", "1", "-p", "hello", "-p", "never said"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        assert process.wait(timeout=120) == 130
    observed = [json.loads(line.partition(" ")[2]) for line in told.splitlines() if line.startswith("PyTorchObserver ")]
    assert len(observed) == 1
    assert 0 < observed[0]["generated_tokens"] < 232


@pytest.mark.parametrize("verb", ["run", "chat"])
def test_help_loads_no_library(verb: str) -> None:
    script = (
        "import sys; from pipeline.cli.main import main\n"
        "try: main([sys.argv[1], '--help'])\n"
        "except SystemExit: sys.exit(sorted({'mlx', 'numpy', 'tokenizers', 'jinja2'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script, verb], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--kv-storage-dtype" in done.stdout


def test_a_reader_that_went_away_ends_the_run(bundle: Bundle) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pipeline", "run", str(bundle("talk")), "-p", "hello", "-p", "why"]
    done = subprocess.run(
        [*command, "--max-new-tokens", "200"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert done.returncode == 0
    # Of the first answer no more was generated than was needed to notice; the second one never began.
    (observed,) = (line for line in done.stderr.splitlines() if line.startswith("PyTorchObserver "))
    assert json.loads(observed.partition(" ")[2])["generated_tokens"] <= 2
