"""A tokenizer's files tell which ids there are and which end a text; whatever is wrong with them is a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.verify import tokenizer_files
from pipeline.verify.tokenizer_files import Absent, Tokenizer, Unreadable, read
from tests.tiny_models import save_tokenizer

VOCAB = {"<s>": 0, "</s>": 1, "a": 2, 'say \\"vocab\\": {': 3, '"vocab": [': 4, "merges": 5, "Ġłódź 🙂": 6}
ADDED = [{"id": 0, "content": "<s>"}, {"id": 1, "content": "</s>"}, {"id": 7, "content": "<|im_end|>"}]
MODEL = {"type": "BPE", "vocab": VOCAB, "merges": [["a", "b"], ['"vocab": {', "c"]]}


def files(directory: Path, **contents: Any) -> Path:
    """The directory, with a tokenizer and its settings; a text is written as it is, ``None`` is left out."""
    given = {
        "tokenizer": {"version": "1.0", "added_tokens": ADDED, "model": MODEL},
        "tokenizer_config": {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}},
    }
    for stem, content in (given | contents).items():
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            (directory / f"{stem}.json").write_text(text, encoding="utf-8")
    return directory


def test_ids_ends_and_starts_are_read(tmp_path: Path) -> None:
    assert read(files(tmp_path)) == Tokenizer(
        ids=frozenset(range(8)),
        last_own=6,
        added={"<s>": 0, "</s>": 1, "<|im_end|>": 7},
        ends={"the tokenizer": (1,)},
        bos=0,
        unknown={},
        template="",
    )


@pytest.mark.parametrize("ensure_ascii", [True, False])
@pytest.mark.parametrize("order", [("added_tokens", "model"), ("model", "added_tokens")])
@pytest.mark.parametrize("indent", [None, 2])
def test_it_does_not_matter_how_the_json_is_written(
    ensure_ascii: bool, order: tuple[str, str], indent: int | None, tmp_path: Path
) -> None:
    content = {"added_tokens": ADDED, "model": MODEL}
    text = json.dumps({key: content[key] for key in order}, ensure_ascii=ensure_ascii, indent=indent)
    found = read(files(tmp_path, tokenizer=text))
    assert (found.ids, found.added["<|im_end|>"]) == (frozenset(range(8)), 7)


def test_a_real_tokenizer_is_read_as_it_knows_itself(tmp_path: Path) -> None:
    from tests.tiny_models import tokenizer

    save_tokenizer(tmp_path)
    found, real = read(tmp_path), tokenizer()
    assert found.ids == frozenset(real.get_vocab().values())
    assert found.added == real.get_added_vocab()
    assert (found.ends, found.bos) == ({"the tokenizer": (real.eos_token_id,)}, real.bos_token_id)
    assert found.template == real.chat_template


@pytest.mark.parametrize(
    "vocab",
    [
        '{\n      "</s>": 1,\n      "<s>": 0,\n      "\\\\": 2\n    }',
        '{\n      "</s>": 1, "<s>": 0,\n      "\\": 2": 2\n    }',
        '{\n"</s>": 1,\n"<s>": 0,\n"x}": 2\n}',
        '{\n      "</s>": 1,\n      "<s>": 0,\n      "x": 2 }',
        '{ "</s>": 1,\n      "<s>": 0,\n      "x": 2\n    }',
        '{\r\n      "</s>": 1,\r\n      "<s>": 0,\r\n      "x": 2\r\n    }',
    ],
)
def test_lines_are_counted_on_where_each_has_one_token_and_nowhere_else(vocab: str, tmp_path: Path) -> None:
    text = '{\n  "model": {\n    "vocab": ' + vocab + ',\n    "merges": []\n  }\n}'
    assert read(files(tmp_path, tokenizer=text)).ids == frozenset(json.loads(vocab).values())


def test_a_unigram_vocabulary_has_the_ids_of_its_order(tmp_path: Path) -> None:
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["</s>", -1.5], ["<s>", -2.0]]}
    found = read(files(tmp_path, tokenizer={"added_tokens": [], "model": model}))
    assert (found.ids, found.ends, found.bos) == (frozenset(range(3)), {"the tokenizer": (1,)}, 2)


def test_older_files_name_the_special_tokens_apart_and_the_newer_prevail(tmp_path: Path) -> None:
    special = {"bos_token": "a", "eos_token": "</s>"}
    found = read(files(tmp_path, tokenizer_config={"bos_token": "<s>"}, special_tokens_map=special))
    assert (found.ends, found.bos) == ({"the tokenizer": (1,)}, 0)


@pytest.mark.parametrize(
    ("ids", "ends"),
    [(2, (2,)), ([1, 2], (1, 2)), (None, None), ("</s>", None), ([1, None], None), ([True], None)],
)
def test_the_generation_config_of_a_model_names_ends_too(ids: Any, ends: Any, tmp_path: Path) -> None:
    found = read(files(tmp_path, generation_config={"eos_token_id": ids}))
    assert found.ends.get("the generation config") == ends


def test_a_named_token_that_is_none_is_unknown(tmp_path: Path) -> None:
    found = read(files(tmp_path, tokenizer_config={"bos_token": "<bos>", "eos_token": None}))
    assert (found.unknown, found.ends, found.bos) == ({"bos": "<bos>"}, {}, None)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ x }}<|im_end|>", "{{ x }}<|im_end|>"),
        ([{"name": "default", "template": "a"}, {"name": "tools", "template": "b"}, 5], "a\nb"),
        (5, ""),
    ],
)
def test_a_template_is_read_from_the_settings(template: Any, expected: str, tmp_path: Path) -> None:
    assert read(files(tmp_path, tokenizer_config={"chat_template": template})).template == expected


def test_a_template_of_its_own_prevails(tmp_path: Path) -> None:
    (files(tmp_path, tokenizer_config={"chat_template": "no"}) / "chat_template.jinja").write_bytes(b"{{ \xff }}")
    assert read(tmp_path).template == "{{ � }}"


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        ({"tokenizer": None}, "tokenizer.json does not exist in "),
        ({"tokenizer": ""}, "tokenizer.json is not a whole JSON object"),
        ({"tokenizer": '{"model": {"vocab": {"a": 1 "b": 2}}}'}, "tokenizer.json is no JSON (Expecting ',' delimiter)"),
        ({"tokenizer": '{"model": {"vocab": {"a": 1}}, "added'}, "tokenizer.json is not a whole JSON object"),
        ({"tokenizer": {"model": {}}}, "tokenizer.json has no vocabulary"),
        (
            {"tokenizer": {"model": {"vocab": {}}}},
            "tokenizer.json has a vocabulary that does not give each token an id",
        ),
        ({"tokenizer": {"model": {"vocab": {"a": -1}}}}, "tokenizer.json has a vocabulary that does not give each"),
        ({"tokenizer": {"model": {"vocab": {"a": True}}}}, "tokenizer.json has a vocabulary that does not give each"),
        ({"tokenizer": {"model": {"vocab": [1, []]}}}, "tokenizer.json has a vocabulary that does not give each"),
        (
            {"tokenizer": {"added_tokens": [{"id": "5", "content": "x"}], "model": MODEL}},
            "tokenizer.json has {'id': '5', 'content': 'x'} among its added tokens; expected a content and an id",
        ),
        ({"tokenizer": '{"model": {"vocab": {"a": ' + "[" * 100_000 + "}"}, "tokenizer.json is no JSON ("),
        ({"tokenizer_config": "{"}, "tokenizer_config.json is no JSON (Expecting property name"),
        ({"tokenizer_config": "[]"}, "tokenizer_config.json is []; expected a JSON object"),
        ({"tokenizer_config": "[" * 100_000}, "tokenizer_config.json is no JSON (maximum recursion depth"),
        ({"generation_config": "null"}, "generation_config.json is None; expected a JSON object"),
    ],
)
def test_what_is_wrong_with_a_file_is_a_reason(contents: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(Unreadable) as caught:
        read(files(tmp_path, **contents))
    assert str(caught.value).startswith(text)


def test_a_file_beyond_all_measure_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (files(tmp_path) / "tokenizer.json").open("r+b") as file:
        file.truncate(tokenizer_files.MAX_BYTES + 1)
    with pytest.raises(Unreadable, match=r"^tokenizer\.json has 67108865 bytes; at most 67108864 are read$"):
        read(tmp_path)
    monkeypatch.setattr(tokenizer_files, "MAX_TOKENS", 3)
    with pytest.raises(Unreadable, match=r"^tokenizer\.json has more than 3 tokens$"):
        read(files(tmp_path, tokenizer_config=None))


def test_a_tokenizer_of_another_kind_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0e")
    for path in (tmp_path, tmp_path / "tokenizer.model"):
        with pytest.raises(Absent, match=r"^tokenizer\.model is no tokenizer\.json, which alone is read$"):
            read(path)


def test_a_file_can_be_named_itself_whatever_it_is_called(tmp_path: Path) -> None:
    files(tmp_path).joinpath("tokenizer.json").rename(tmp_path / "mine.json")
    assert read(tmp_path / "mine.json").ends == {"the tokenizer": (1,)}
