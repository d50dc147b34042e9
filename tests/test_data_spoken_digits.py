"""Spoken digits as a dataset: prepared from recordings or synthesised, single or in strings."""

from __future__ import annotations

import os
from pathlib import Path

import numpy
import pytest

from returnn_common import cli, data
from returnn_common.data.archives import read_entries, read_facts, sha256_of
from returnn_common.data.digits import WORDS
from returnn_common.data.paths import VARIABLE
from returnn_common.data.spoken_digits import SINGLE_DIGITS, DigitStrings, prepare_digits

soundfile = pytest.importorskip("soundfile")

PARTS = ("train", "dev", "test")
FEW = DigitStrings(num_strings=(9, 3, 4), lengths=(2, 3), train_lengths=(1, 2))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Three speakers; every recording is noise of another length."""
    folder = tmp_path_factory.mktemp("recordings")
    rng = numpy.random.RandomState(1)
    for speaker in ("ann", "bob", "cleo"):
        for digit in range(10):
            for index in (0, 5, 10):
                audio = rng.uniform(-0.3, 0.3, rng.randint(200, 400))
                soundfile.write(folder / f"{digit}_{speaker}_{index}.wav", audio, 8000)
    return folder


def texts(folder: Path, part: str) -> list[str]:
    return [entry.text for entry in read_entries(folder / f"{part}.zip")]


def test_strings(recordings, tmp_path):
    paths = prepare_digits(recordings, tmp_path, strings=FEW)
    assert paths == [str(tmp_path / f"{part}.zip") for part in PARTS]
    for part, number, lengths in zip(PARTS, FEW.num_strings, [(1, 2), (2, 3), (2, 3)]):
        found = texts(tmp_path, part)
        assert len(found) == number == read_facts(tmp_path / f"{part}.zip")["utterances"]
        assert all(lengths[0] <= len(text.split()) <= lengths[1] for text in found)
        assert {word for text in found for word in text.split()} <= set(WORDS)
        assert read_facts(tmp_path / f"{part}.zip")["speakers"] == 3


def test_single_digits_and_a_speaker_held_out(recordings, tmp_path):
    from dataclasses import replace

    strings = replace(SINGLE_DIGITS, num_strings=(6, 2, 5), hold_out="bob")
    prepare_digits(recordings, tmp_path, strings=strings)
    speakers = {
        part: {entry.file.split("-")[0] for entry in read_entries(tmp_path / f"{part}.zip")}
        for part in PARTS
    }
    assert speakers == {"train": {"ann", "cleo"}, "dev": {"ann", "cleo"}, "test": {"bob"}}
    assert all(text in WORDS for part in PARTS for text in texts(tmp_path, part))


def test_same_bytes_and_only_once(recordings, tmp_path):
    first = prepare_digits(recordings, tmp_path / "a", strings=FEW)
    second = prepare_digits(recordings, tmp_path / "b", strings=FEW)
    assert list(map(sha256_of, first)) == list(map(sha256_of, second))
    os.utime(first[0], (1, 1))
    prepare_digits(recordings, tmp_path / "a", strings=FEW)
    assert os.path.getmtime(first[0]) == 1
    other = DigitStrings(num_strings=(9, 3, 4), seed=2)
    prepare_digits(recordings, tmp_path / "a", strings=other)
    assert os.path.getmtime(first[0]) > 1
    assert list(map(sha256_of, first)) != list(map(sha256_of, second))


def test_dataset(recordings, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    prepare_digits(recordings, strings=FEW)
    dataset = data.SpokenDigits()
    assert dataset.vocab.size == 3 + 16 and list(dataset.eval) == ["test"]
    assert dataset.extern_data["classes"].sparse_dim.dimension == 19
    for part, name in [
        (dataset.train, "train"),
        (dataset.dev, "dev"),
        (dataset.eval["test"], "test"),
    ]:
        found = []
        for batch in part.batches(batch_size=10_000):
            assert numpy.abs(batch["data"]).max() == 1.0
            for row, length in zip(batch["classes"], batch["classes:size1"]):
                found.append(dataset.vocab.decode(row[:length]))
        assert sorted(found) == sorted(texts(tmp_path / "digits", name))


def test_synthetic(tmp_path):
    pytest.importorskip("espeakng_loader")
    strings = DigitStrings(num_strings=(3, 2, 2), lengths=(1, 2), train_lengths=(1, 2))
    first = prepare_digits(to=tmp_path / "a", strings=strings)
    second = prepare_digits(to=tmp_path / "b", strings=strings)
    assert list(map(sha256_of, first)) == list(map(sha256_of, second))
    assert {
        word for part in PARTS for text in texts(tmp_path / "a", part) for word in text.split()
    } <= {*WORDS}
    with pytest.raises(ValueError, match="hold_out='x' needs recordings"):
        prepare_digits(to=tmp_path / "c", strings=DigitStrings(hold_out="x"))


def test_command(recordings, tmp_path, capsys):
    to = tmp_path / "digits"
    argv = ["data", "prepare", "digits", f"--from={recordings}", f"--to={to}", "--single"]
    assert cli.main([*argv, "--num-strings", "6", "2", "3", "--hold-out=ann", "--seed=3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{to}/train.zip: 6 utterances of 2 speakers, 0.00 h"
    assert len(lines) == 3
    assert cli.main([*argv, "--hold-out=anne"]) == 1
    assert "no speaker 'anne'; did you mean 'ann'" in capsys.readouterr().err
    assert cli.main(["data", "check", str(to)]) == 0
