"""What several verbs take is read alike."""

from __future__ import annotations

import pytest

from pipeline.cli.main import main


@pytest.mark.parametrize(
    "arguments",
    [("diff", "", "a.pte"), ("diff", "a.pte", ""), ("inspect", ""), ("run", ""), ("chat", ""), ("serve", "")],
    ids=str,
)
def test_an_empty_path_is_not_the_working_directory(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "an empty path; expected an artifact or a bundle's directory" in capsys.readouterr().err
