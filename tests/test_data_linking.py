"""The common data folder of a project as a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from returnn_common import cli, data
from returnn_common.data.linking import link
from returnn_common.data.paths import VARIABLE


def test_link(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    shared = tmp_path / "shared/data"
    assert cli.main(["data", "link", str(shared)]) == 0
    assert capsys.readouterr().out == f"data-common is a link to {shared} now\n"
    (shared / "a.txt").write_text("here")
    assert Path(data.get_common_data_path("a.txt")).read_text() == "here"
    assert link("shared/data") == f"data-common is already a link to {shared}"


def test_nothing_is_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    link("one", at="here")
    with pytest.raises(
        ValueError, match=r"'here' exists and is a link to '.*one'; remove it first"
    ):
        link("two", at="here")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="'folder' exists and is no link; remove it first, or set"):
        link("two", at="folder")
    assert sorted(os.listdir(tmp_path)) == ["folder", "here", "one"]
