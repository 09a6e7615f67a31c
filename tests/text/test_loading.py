"""A tokenizer of any format reads text as its own library does; what is no tokenizer, or a foreign one, is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

from pipeline.errors import TextError
from pipeline.text.loading import load
from tests.text.made import MAKERS, SPECIALS, TEXTS, Made, byte_level, opened, ranked, with_bos
from tests.tiny_models import edit_json, words_only

HUGGING_FACE = sorted(set(MAKERS) - {"llama3", "sentencepiece"})


def copied(made: Made, directory: Path) -> Path:
    for file in made.directory.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    return directory


def refused(path: Path) -> str:
    with pytest.raises(TextError) as caught:
        load(path)
    return str(caught.value).replace(str(path), "HERE")


@pytest.mark.parametrize("name", MAKERS)
def test_text_is_encoded_and_decoded_as_the_library_does(made: Callable[[str], Made], name: str) -> None:
    reference = made(name)
    tokenizer = opened(reference.directory)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text)
        assert tokenizer.decode(ids) == reference.decode(ids)
    assert tokenizer.vocab_size == reference.vocab_size


@pytest.mark.parametrize("name", HUGGING_FACE)
@pytest.mark.parametrize("config", [{}, {"add_bos_token": True}, {"add_bos_token": False}], ids=str)
@pytest.mark.parametrize("post_processor", [False, True], ids=["", "post-processor"])
def test_text_and_what_is_put_before_it_are_those_of_transformers(
    made: Callable[[str], Made], tmp_path: Path, name: str, config: dict[str, Any], post_processor: bool
) -> None:
    directory = copied(made(name), tmp_path)
    if post_processor:
        with_bos(Tokenizer.from_file(str(directory / "tokenizer.json"))).save(str(directory / "tokenizer.json"))
    edit_json(directory / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", **config)
    theirs = AutoTokenizer.from_pretrained(directory)
    ours = load(directory)
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.controls == set(theirs.all_special_tokens) | {
        token.content for token in theirs.added_tokens_decoder.values() if token.special
    }
    for text in [*TEXTS, "<s>a<|im_end|> b<unk>"]:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
        # The end of a text is put behind it as well; a prompt goes on.
        whole = theirs.encode(text)
        assert [*ours.prefix, *ours.encode(text)] == whole[: len(whole) - (whole[-1:] == [ours.eos_id])]


def test_pieces_that_only_the_configuration_has_are_added_as_transformers_adds_them(
    made: Callable[[str], Made], tmp_path: Path
) -> None:
    directory = copied(made("byte-level"), tmp_path)
    size = made("byte-level").vocab_size
    added = {"content": "<|tool|>", "special": True, "lstrip": False, "rstrip": False, "single_word": False}
    edit_json(
        directory / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        added_tokens_decoder={str(size): added | {"normalized": False}},
        eos_token={"content": "<|im_end|>", "__type": "AddedToken"},
    )
    ours, theirs = load(directory), AutoTokenizer.from_pretrained(directory)
    text = "a<|tool|>b<|im_end|>"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.id_of("<|tool|>") == size
    assert ours.eos_id == theirs.eos_token_id == ours.id_of("<|im_end|>")
    edit_json(directory / "tokenizer_config.json", added_tokens_decoder={str(size + 7): added})
    assert refused(directory) == (
        f"HERE/tokenizer.json: tokenizer_config.json says that '<|tool|>' is token {size + 7}, and here it is {size}; "
        "expected the same. The two files belong to different tokenizers."
    )


def test_pieces_that_the_configuration_names_are_special_though_the_file_does_not_say_so(
    made: Callable[[str], Made], tmp_path: Path
) -> None:
    directory = copied(made("byte-level"), tmp_path)
    edit_json(directory / "tokenizer.json", added_tokens=[])
    edit_json(directory / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    ours, theirs = load(directory), AutoTokenizer.from_pretrained(directory)
    text = "a</s>b<|im_end|>"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.controls == {"<s>", "</s>", "<unk>"}


def test_a_length_that_a_tokenizer_was_trained_with_cuts_and_fills_no_text(
    made: Callable[[str], Made], tmp_path: Path
) -> None:
    directory = copied(made("byte-level"), tmp_path)
    library = Tokenizer.from_file(str(directory / "tokenizer.json"))
    library.enable_truncation(3)
    library.enable_padding(length=50)
    library.save(str(directory / "tokenizer.json"))
    assert load(directory).encode(TEXTS[3]) == made("byte-level").encode(TEXTS[3])


def test_names_come_from_the_older_file_where_the_newer_has_none(made: Callable[[str], Made], tmp_path: Path) -> None:
    directory = copied(made("byte-level"), tmp_path)
    (directory / "tokenizer_config.json").unlink()
    assert load(directory).eos_id is None
    (directory / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    assert load(directory).eos_id == SPECIALS.index("<|im_end|>")


def test_llama_3s_own_file_has_the_special_tokens_that_executorch_gives_it(made: Callable[[str], Made]) -> None:
    from pytorch_tokenizers.constants import LLAMA_SPECIAL_TOKENS

    tokenizer = opened(made("llama3").directory)
    assert tokenizer.specials == {piece: 128_000 + index for index, piece in enumerate(LLAMA_SPECIAL_TOKENS)}
    assert [tokenizer.id_of(piece) for piece in ("<|begin_of_text|>", "<|eot_id|>", "nothing at all")] == [
        128_000,
        128_009,
        None,
    ]
    assert tokenizer.prefix == (tokenizer.bos_id,) == (128_000,)


def test_a_sentencepiece_model_finds_its_control_pieces_in_a_text(made: Callable[[str], Made]) -> None:
    tokenizer = opened(made("sentencepiece").directory)
    text = "<bos><start_of_turn>user\nWhat is the capital?<end_of_turn>\n"
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.id_of("<bos>")
    assert ids.count(tokenizer.id_of("<end_of_turn>") or -1) == 1
    assert tokenizer.decode(ids) == text.removeprefix("<bos>")
    # Between pieces no text begins, so that no space is put there.
    assert tokenizer.decode(tokenizer.encode("the<bos>capital")) == "thecapital"
    assert tokenizer.id_of("no such piece") is None


@pytest.mark.parametrize("name", ["byte-fallback-spaced", "sentencepiece", "metaspace", "byte-level"])
def test_a_text_that_goes_on_has_no_space_put_before_it(made: Callable[[str], Made], name: str) -> None:
    tokenizer = opened(made(name).directory)
    before = tokenizer.encode("What is the capital of ")
    assert tokenizer.decode([*before, *tokenizer.encode_on("Poland")]) == "What is the capital of Poland"


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_by_itself_is_opened_too(made: Callable[[str], Made], name: str) -> None:
    directory = made(name).directory
    (file,) = (file for file in directory.iterdir() if file.name in ("tokenizer.json", "tokenizer.model"))
    assert load(file).encode(TEXTS[3]) == load(directory).encode(TEXTS[3])


def test_a_tokenizer_is_opened_without_transformers_or_torch(made: Callable[[str], Made]) -> None:
    script = (
        "import sys; from pathlib import Path; from pipeline.text.loading import load; load(Path(sys.argv[1]));"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'transformers', 'torch', 'numpy', 'mlx'}))"
    )
    command = [sys.executable, "-c", script, str(made("byte-level").directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_what_is_no_tokenizer_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    assert refused(tmp_path / "absent") == (
        "HERE: it does not exist; expected a tokenizer's file, or a directory with tokenizer.json, tokenizer.model or "
        "*.tiktoken."
    )
    assert refused(tmp_path) == (
        "HERE: it has no tokenizer; expected tokenizer.json, tokenizer.model or *.tiktoken in it."
    )
    (tmp_path / "vocab.json").write_text("{}")
    assert refused(tmp_path) == (
        "HERE: its tokenizer is vocab.json, of an older format; expected tokenizer.json, tokenizer.model or "
        "*.tiktoken. Load it with Transformers' AutoTokenizer and save it: that writes tokenizer.json."
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is neither a tokenizer.json nor a tiktoken file nor a SentencePiece model; expected one of those."),
        (b"version https://git-lfs", "it is neither a tokenizer.json nor a tiktoken file nor a SentencePiece model"),
        (b'{"version": "1.0"', "it is no tokenizer.json ("),
        (b"{}", "it is no tokenizer.json ("),
        (b"\x0a\x0e\x0a\x05<unk>", "it is no SentencePiece model. Fetch the tokenizer's files anew."),
        (b"QQ== 0\nQg== 1\n", "it ranks 2 pieces; expected Llama 3's 128000. A tiktoken file does not say how its"),
        (b"QQ== 0\nQg== 2\n", "2 pieces have ranks other than 0 to 1; expected each once. Fetch the file anew."),
        (b"QQ== 0\nQ 1\n", "2: the line is b'Q 1'; expected a piece in base64 and its rank. Fetch the file anew."),
        (b"QQ== 0\nlost\n", "2: the line is b'lost'; expected a piece in base64 and its rank. Fetch the file anew."),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "tokenizer.model"
    file.write_bytes(content)
    assert refused(file).removeprefix("HERE:").lstrip().startswith(message)


def test_a_tiktoken_file_of_another_family_is_not_read_as_llama_3s(tmp_path: Path) -> None:
    (tmp_path / "qwen.tiktoken").write_bytes(ranked(70_000))
    assert refused(tmp_path) == (
        "HERE/qwen.tiktoken: it ranks 70000 pieces; expected Llama 3's 128000. A tiktoken file does not say how its "
        "family splits text, nor its special tokens. Use the model's tokenizer.json."
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "tokenizer_config.json: it holds a list; expected an object of named fields."),
        ('{"a":\n}', "tokenizer_config.json:2: it is no JSON (Expecting value). Fetch the tokenizer's files anew."),
        (
            '{"added_tokens_decoder": {"x": {}}}',
            'tokenizer_config.json: added_tokens_decoder cannot be read (ValueError("invalid literal for int() with '
            "base 10: 'x'\")); expected ids, each with its content. Fetch the tokenizer's files anew.",
        ),
        ('{"added_tokens_decoder": [1]}', "tokenizer_config.json: added_tokens_decoder cannot be read (AttributeError"),
    ],
)
def test_a_damaged_description_is_refused(
    made: Callable[[str], Made], tmp_path: Path, content: str, message: str
) -> None:
    directory = copied(made("byte-level"), tmp_path)
    (directory / "tokenizer_config.json").write_text(content)
    assert refused(directory).startswith(f"HERE/{message}")


def test_text_that_a_tokenizer_has_no_tokens_for_is_an_error(tmp_path: Path) -> None:
    words_only().save_pretrained(tmp_path)
    tokenizer = load(tmp_path)
    assert tokenizer.encode("hello") == [2]
    with pytest.raises(TextError) as caught:
        tokenizer.encode("goodbye " * 10)
    message = str(caught.value).replace(str(tmp_path), "HERE")
    assert message.startswith(
        "HERE/tokenizer.json: the tokenizer cannot read 'goodbye goodbye goodbye goodbye goodbye …' ("
    )
    assert message.endswith("). Put it in words that it has.")


def test_a_tokenizer_of_more_tokens_than_the_model_has_is_told_or_refused(
    made: Callable[[str], Made], tmp_path: Path
) -> None:
    size = made("byte-level").vocab_size
    tokenizer = opened(made("byte-level").directory)
    assert tokenizer.told(size) == tokenizer.told(size + 100) == []
    # The last two ids are <think> and </think>, which no ordinary text needs.
    assert tokenizer.told(size - 2) == [
        "the model has no token for the tokenizer's '<think>', '</think>': a text with such a piece is refused"
    ]
    with pytest.raises(TextError) as caught:
        tokenizer.told(size - 3)
    assert str(caught.value) == (
        f"{tokenizer.where}: its ids go up to {size - 1}, and the model's vocabulary ends at {size - 4}; expected no "
        "more. Use the tokenizer that belongs to the model."
    )
    library = Tokenizer(models.WordLevel({"a": 0}, "a"))
    library.add_tokens([f"<{index}>" for index in range(5)])
    library.save(str(tmp_path / "tokenizer.json"))
    assert load(tmp_path).told(1) == [
        "the model has no token for the tokenizer's '<0>', '<1>', '<2>' and 2 more: a text with such a piece is refused"
    ]


def test_a_special_piece_can_be_read_as_ordinary_text(made: Callable[[str], Made]) -> None:
    for name, piece in [
        ("byte-level", "<|im_end|>"),
        ("byte-fallback", "<|im_end|>"),
        ("byte-fallback-spaced", "<think>"),
        ("sentencepiece", "<end_of_turn>"),
        ("sentencepiece", "<bos>"),
        ("llama3", "<|eot_id|>"),
    ]:
        tokenizer = opened(made(name).directory)
        ids = tokenizer.encode_literally(piece)
        assert tokenizer.specials[piece] not in ids
        assert tokenizer.decode([*tokenizer.encode("a"), *ids]) == f"a{piece}"


def test_a_special_piece_that_any_text_yields_is_refused(tmp_path: Path) -> None:
    byte_level(tmp_path)
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.add_special_tokens(["a"])
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TextError) as caught:
        load(tmp_path).encode_literally("a")
    assert str(caught.value).endswith(
        ": a message contains 'a', which this tokenizer reads as a special token in any text; expected a message "
        "without it. Take it out, or allow markup in messages."
    )
