"""The battery of returnn_common over all entries, and what only this package knows."""

from __future__ import annotations

import numpy
import pytest
import soundfile
from speech_extras.yes_no import prepare

from returnn_common import zoo
from returnn_common.testing import check_plugin


def test_battery():
    reports = check_plugin("speech-extras")
    assert [report.entry for report in reports] == [
        "speech-extras/tdnn",
        "speech-extras/yes_no",
        "speech-extras/words",
    ]


def test_words():
    vocab = zoo.get("words")
    assert vocab.encode("yes no yes") == [1, 0, 1]
    assert vocab.decode([0, 1]) == "no yes"
    with pytest.raises(ValueError, match="different words"):
        zoo.get("words", words=["yes", "yes"])


@pytest.fixture
def recordings(tmp_path):
    """:return: a folder with files of the names that the real ones have, and noise in them"""
    folder = tmp_path / "waves_yesno"
    folder.mkdir()
    rng = numpy.random.RandomState(1)
    for number in range(60):
        name = "_".join(f"{number:08b}")
        soundfile.write(folder / f"{name}.wav", rng.uniform(-0.1, 0.1, 800 + number), 8_000)
    return folder


def test_yes_no(recordings, tmp_path, monkeypatch):
    monkeypatch.setenv("RETURNN_COMMON_DATA_PATH", str(tmp_path))
    dataset = zoo.get("yes_no")
    with pytest.raises(FileNotFoundError, match="speech_extras.yes_no RECORDINGS"):
        dataset.train.batches(batch_size=10_000)
    prepare(recordings)
    assert dataset.vocab.size == 2
    found = {}
    for part in (dataset.train, dataset.dev, dataset.eval["test"]):
        for batch in part.batches(batch_size=10_000, keys=("data", "classes", "seq_tag")):
            lengths = zip(batch["data:size1"], batch["classes"])
            found.update(zip(batch["seq_tag"].tolist(), lengths))
    assert len(found) == 60
    length, labels = found["0_0_1_1_1_0_1_1"]  # the number 59
    assert length == 859
    assert labels.tolist() == [0, 0, 1, 1, 1, 0, 1, 1]
    with pytest.raises(ValueError, match="expected the 60 of OpenSLR 1"):
        prepare(tmp_path)
