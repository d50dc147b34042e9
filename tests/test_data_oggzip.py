"""Archives for RETURNN's OggZipDataset: the same bytes, whole or not at all, and read back as written."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile

import numpy
import pytest

from returnn_common.data.digits import LABELS
from returnn_common.data.oggzip import Utterance, ogg_zip_opts, write_ogg_zip

soundfile = pytest.importorskip("soundfile")


def _utterances() -> list[Utterance]:
    rng = numpy.random.default_rng(1)
    texts = {"b": "four two", "a": "nine", "c": "seven one zero"}
    return [
        Utterance(name, rng.uniform(-0.5, 0.5, 400 * len(text)), text)
        for name, text in texts.items()
    ]


def test_same_bytes_in_any_order_and_process(tmp_path):
    utterances = _utterances()
    write_ogg_zip(tmp_path / "train.zip", utterances, sample_rate=8000)
    content = (tmp_path / "train.zip").read_bytes()
    write_ogg_zip(tmp_path / "train.zip", utterances[::-1], sample_rate=8000)
    assert (tmp_path / "train.zip").read_bytes() == content
    assert os.listdir(tmp_path) == ["train.zip"]

    code = (
        "import sys, runpy; module = runpy.run_path(sys.argv[1])\n"
        "module['write_ogg_zip'](sys.argv[2], module['_utterances'](), sample_rate=8000)"
    )
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "train.zip"
    env = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, __file__, str(other)], env=env, check=True)
    assert other.read_bytes() == content


def test_read_back_through_returnn(tmp_path):
    from returnn.datasets.basic import init_dataset

    utterances = {utterance.name: utterance for utterance in _utterances()}
    path = write_ogg_zip(tmp_path / "train.zip", utterances.values(), sample_rate=8000)
    dataset = init_dataset(ogg_zip_opts(path, labels=LABELS, seq_ordering="default"))
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(0, 3)
    assert dataset.num_seqs == 3
    for i, name in enumerate("abc"):
        assert dataset.get_tag(i) == name
        with zipfile.ZipFile(path) as archive:
            audio, rate = soundfile.read(io.BytesIO(archive.read(f"train/{name}.flac")))
        data = dataset.get_data(i, "data")
        assert rate == 8000 and data.dtype == "float32" and data.shape == (len(audio), 1)
        numpy.testing.assert_array_equal(data[:, 0], audio)
        numpy.testing.assert_array_equal(
            data[:, 0] * 2**15, numpy.round(utterances[name].audio * 2**15)
        )
        assert "".join(LABELS[c] for c in dataset.get_data(i, "classes")) == utterances[name].text


def test_refuses(tmp_path):
    first, second, _ = _utterances()
    for path, utterances, message in [
        ("train.tar", [first], "expected a name that ends in .zip, such as 'train.zip'"),
        ("train.zip", [], "at least one utterance"),
        ("train.zip", [first, second, first], "two utterances are named 'b'"),
        ("train.zip", [first._replace(name="../b")], "expected a name without slashes"),
    ]:
        with pytest.raises(ValueError, match=message):
            write_ogg_zip(tmp_path / path, utterances, sample_rate=8000)
    assert os.listdir(tmp_path) == []


def test_failure_leaves_the_old_archive(tmp_path):
    path = write_ogg_zip(tmp_path / "train.zip", _utterances(), sample_rate=8000)
    content = (tmp_path / "train.zip").read_bytes()
    with pytest.raises(TypeError):
        write_ogg_zip(
            path, [Utterance("a", numpy.array(["not", "audio"]), "one")], sample_rate=8000
        )
    assert (tmp_path / "train.zip").read_bytes() == content
    assert os.listdir(tmp_path) == ["train.zip"]
