"""
The whole way on genuine LibriSpeech: prepare, check, read all utterances once through RETURNN. The test folder has
113 of them, in parts that are named as the corpus names them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from returnn_common import cli, data
from returnn_common.data.checking import check
from returnn_common.data.librispeech_preparation import prepare_librispeech
from returnn_common.data.paths import VARIABLE

soundfile = pytest.importorskip("soundfile")

COUNTS = {"train-clean-100": 10, "dev-clean": 1, "test-clean": 1, "test-other": 101}
MINUTES = 15.4


@pytest.fixture(scope="module")
def corpus(shared_data) -> Path:
    folder = shared_data / "librispeech/LibriSpeech"
    if not folder.is_dir():
        pytest.skip(
            f"no folder {folder}: genuine utterances of LibriSpeech in the layout of OpenSLR"
        )
    return folder


@pytest.fixture(scope="module")
def texts(corpus) -> dict[str, str]:
    """:return: by part/name, read from the transcripts with nothing of ours"""
    found = {}
    for path in corpus.rglob("*.trans.txt"):
        for line in path.read_text().splitlines():
            name, text = line.split(" ", 1)
            found[f"{path.parents[2].name}/{name}"] = text
    return found


@pytest.fixture(scope="module")
def common(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("common")
    prepare_librispeech([corpus], folder / "librispeech")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder))
        yield folder


def sequences(part):
    for batch in part.batches(batch_size=16_000 * 40, keys=["data", "classes", "seq_tag"]):
        for i, tag in enumerate(batch["seq_tag"]):
            part_name, name, _ = str(tag).split("/")
            audio = batch["data"][i, : batch["data:size1"][i], 0]
            yield f"{part_name}/{name}", audio, batch["classes"][i, : batch["classes:size1"][i]]


def test_prepared_archives_are_whole(common):
    reports = check(common)
    assert len(reports) == len(COUNTS)
    for part, count in COUNTS.items():
        assert any(f"{part}.zip: {count} utterances" in report for report in reports)


@pytest.mark.parametrize("vocab", ["en-128", "en-1k", "en-5k"])
def test_text_is_the_transcript(vocab, texts):
    vocab = data.bpe(vocab)
    for text in texts.values():
        assert vocab.decode(vocab.encode(text)) == text
        assert vocab.to_words(vocab.encode(text)) == text.split()
        assert vocab.unk_index not in vocab.encode(text)


def test_pieces_per_word_are_those_of_the_readme(texts):
    readme = (Path(__file__).parent.parent / "vocabs/README.md").read_text()
    words = sum(len(text.split()) for text in texts.values())
    for name in ("en-128", "en-1k", "en-5k"):
        pieces = sum(len(data.bpe(name).encode(text)) for text in texts.values())
        (row,) = (line for line in readme.splitlines() if f"`{name}.model`" in line)
        assert row.endswith(f"| {pieces / words:.2f} |")
    assert f"({words:,} words" in readme


def test_every_utterance_once_through_returnn(common, corpus, texts):
    dataset = data.Librispeech(tuple(COUNTS), partition_epoch=1)
    seen, samples = [], 0
    for part in (dataset.train, *dataset.eval.values()):
        for key, audio, labels in sequences(part):
            name = key.split("/")[1]
            path = corpus / key.split("/")[0] / name.replace("-", "/", 1).split("-")[0]
            expected, rate = soundfile.read(path / f"{name}.flac")
            assert rate == 16_000
            expected = (expected / numpy.abs(expected).max()).astype("float32")
            numpy.testing.assert_array_equal(audio, expected)
            assert dataset.vocab.decode(labels) == texts[key]
            seen.append(key)
            samples += len(audio)
    assert sorted(seen) == sorted(texts) and len(seen) == sum(COUNTS.values()) == 113
    assert samples / 16_000 / 60 == pytest.approx(MINUTES, abs=0.1)


def test_zip_and_folder_agree(common, corpus):
    """RETURNN's OggZipDataset on what we made, and its LibriSpeechCorpus on the corpus itself."""
    ours = data.Librispeech(tuple(COUNTS), partition_epoch=1)
    theirs = data.LibrispeechFolder(corpus)
    for name in ("train", "test-other"):
        parts = (d.train if name == "train" else d.eval[name] for d in (ours, theirs))
        found, expected = (
            {key: (audio, labels) for key, audio, labels in sequences(part)} for part in parts
        )
        assert found.keys() == expected.keys() and len(found) > 1
        for key, (audio, labels) in found.items():
            numpy.testing.assert_array_equal(audio, expected[key][0])
            numpy.testing.assert_array_equal(labels, expected[key][1])


@pytest.mark.slow
@pytest.mark.ci
def test_reading_in_processes_gives_the_same(common):
    dataset = data.Librispeech(tuple(COUNTS), partition_epoch=1)
    one, several = (
        list(sequences(part)) for part in (dataset.train, dataset.train.in_processes(2))
    )
    assert [key for key, _, _ in one] == [key for key, _, _ in several]
    for (_, audio, labels), (_, other_audio, other_labels) in zip(one, several, strict=True):
        numpy.testing.assert_array_equal(audio, other_audio)
        numpy.testing.assert_array_equal(labels, other_labels)


def test_statistics(common, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.png"
    assert cli.main(["data", "stats", "--vocab=en-128", f"--plot={plot}"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["test-other"][1:5] == ["101", "0.22", "10", "1914"]
    assert rows["train-clean-100"][1:5] == ["10", "0.04", "1", "434"]
    assert plot.read_bytes()[1:4] == b"PNG"


def test_vocabulary_from_the_prepared_transcripts(common, tmp_path, capsys):
    out = tmp_path / "own.model"
    argv = ["vocab", "train", "--from=librispeech", "--size=100", f"--out={out}"]
    assert cli.main(argv) == 0
    assert "asked for 100 labels, reached 100" in capsys.readouterr().out
    assert data.Librispeech(tuple(COUNTS), vocab=str(out)).vocab.size == 100


@pytest.mark.slow
@pytest.mark.ci
def test_returnn_trains_on_it(common, tmp_path):
    """The options in a config of their own, in a process that knows nothing of this package."""
    from returnn_common import nn, zoo

    dataset = data.Librispeech(tuple(COUNTS), vocab=data.characters(), partition_epoch=2)
    labels = dataset.extern_data["classes"].sparse_dim
    labels_and_blank = nn.FeatureDim("labels_and_blank", labels.dimension + 1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.frontend = zoo.get("logmel", num_filters=20)
            self.output = nn.Linear(self.frontend.out_dim, labels_and_blank)

    def train_step(*, model, extern_data, **_):
        source, targets = extern_data["data"], extern_data["classes"]
        features, spatial_dim = model.frontend(source, in_spatial_dim=source.dims[1])
        nn.ctc_loss(
            logits=model.output(features),
            targets=targets,
            input_spatial_dim=spatial_dim,
            targets_spatial_dim=targets.dims[1],
            blank_index=dataset.vocab.blank_index,
        ).mark_as_loss("ctc")

    text = nn.lower(Model(), train_step, dataset.extern_data).config_text(
        train=dataset.train.opts,
        dev=dataset.dev.opts,
        batch_size=16_000 * 60,
        optimizer={"class": "adam"},
        learning_rate=1e-2,
        num_epochs=2,
        model=str(tmp_path / "net"),
        learning_rate_file=str(tmp_path / "rates"),
        log_verbosity=3,
    )
    (tmp_path / "config").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "returnn", "config"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (tmp_path / "net.002.index").exists()


@pytest.mark.slow
def test_benchmark_runs(corpus, tmp_path):
    """Its figures depend on the machine, but not that it gives them."""
    script = Path(__file__).parent.parent / "benchmarks/data.py"
    command = [
        sys.executable,
        script,
        "--from",
        corpus,
        "--runs=1",
        f"--json={tmp_path / 'figures'}",
    ]
    root = str(script.parent.parent)
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": root})
    figures = json.loads((tmp_path / "figures").read_text())["figures"]
    assert set(figures["ratios"]) == {"one process", "two processes", "encode"}
    assert all(ratio > 0 for ratio in figures["ratios"].values())
