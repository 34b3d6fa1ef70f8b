"""The chat template, from wherever a model folder keeps it, and folders that keep it wrongly."""

import json
from pathlib import Path
from typing import Any

import pytest

from outrider_worker.model import ModelError
from outrider_worker.rpc.describe import chat_template

NAMED = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]


def write_settings(folder: Path, template: Any) -> None:
    settings = {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def test_a_model_without_a_template_has_an_empty_one(tmp_path: Path) -> None:
    assert chat_template(tmp_path) == ""
    write_settings(tmp_path, None)
    assert chat_template(tmp_path) == ""


@pytest.mark.parametrize(("template", "found"), [("é", "é"), (NAMED, "yes"), (NAMED[:1], "")])
def test_the_settings_name_one_or_several(tmp_path: Path, template: Any, found: str) -> None:
    write_settings(tmp_path, template)
    assert chat_template(tmp_path) == found
    (tmp_path / "chat_template.jinja").write_text("of its own", encoding="utf-8")
    assert chat_template(tmp_path) == "of its own"


@pytest.mark.parametrize("text", ["{", "[]", '{"chat_template": 7}', '{"chat_template": [{}]}'])
def test_a_template_that_cannot_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match="no chat template can be read"):
        chat_template(tmp_path)
