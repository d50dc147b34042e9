"""
The interface of datasets: options, batches read through RETURNN, errors, copies, pickling and hashes.
"""

from __future__ import annotations

import gzip
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from returnn_common import data
from returnn_common.data.librispeech_preparation import prepare_librispeech
from returnn_common.data.paths import VARIABLE

soundfile = pytest.importorskip("soundfile")

ROOT = Path(__file__).parent.parent
TEXTS = {
    "train-clean-100": {"1-1-0001": "ONE", "1-1-0002": "TWO FOUR", "2-1-0001": "THREE OF THEM"},
    "dev-clean": {"3-1-0001": "FIVE", "3-1-0002": "SIX"},
    "test-other": {"4-1-0001": "SEVEN"},
}
LENGTHS = {"1-1-0001": 3200, "1-1-0002": 4000, "2-1-0001": 6000}
PREPARED = ("train-clean-100", "dev-clean", "test-other")


def write_corpus(folder: Path) -> None:
    for part, texts in TEXTS.items():
        for name, text in texts.items():
            speaker, chapter, _ = name.split("-")
            place = folder / part / speaker / chapter
            place.mkdir(parents=True, exist_ok=True)
            rng = numpy.random.RandomState(len(text))
            audio = rng.uniform(-0.25, 0.25, LENGTHS.get(name, 2000))
            soundfile.write(place / f"{name}.flac", audio, 16_000)
            with open(place / f"{speaker}-{chapter}.trans.txt", "a") as file:
                file.write(f"{name} {text}\n")


@pytest.fixture(scope="module")
def common(tmp_path_factory):
    """:return: a common data folder with a small LibriSpeech; the corpus itself is beside it"""
    folder = tmp_path_factory.mktemp("data")
    write_corpus(folder / "LibriSpeech")
    prepare_librispeech([folder / "LibriSpeech"], folder / "common/librispeech", jobs=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder / "common"))
        yield folder / "common"


@pytest.fixture
def dataset(common):
    return data.Librispeech(PREPARED, vocab=data.characters(), partition_epoch=1)


def sequences(part, **options):
    """:return: audio and text of each sequence by its name, in the order in which they are read"""
    vocab = data.characters()
    found = {}
    for batch in part.batches(batch_size=10_000, keys=["data", "classes", "seq_tag"], **options):
        for i, tag in enumerate(batch["seq_tag"]):
            labels = batch["classes"][i, : batch["classes:size1"][i]]
            audio = batch["data"][i, : batch["data:size1"][i], 0]
            found[str(tag)] = audio, vocab.decode(labels)
    return found


def test_batches(dataset, common):
    found = sequences(dataset.train)
    assert {tag: text for tag, (_, text) in found.items()} == {
        f"train-clean-100/{name}/{name}": text for name, text in TEXTS["train-clean-100"].items()
    }
    for tag, (audio, _) in found.items():
        name = tag.split("/")[1]
        speaker, chapter, _ = name.split("-")
        path = common.parent / f"LibriSpeech/train-clean-100/{speaker}/{chapter}/{name}.flac"
        expected, _ = soundfile.read(path)
        numpy.testing.assert_array_equal(audio, (expected / abs(expected).max()).astype("float32"))


def test_batch_size_counts_padding(dataset):
    """In frames of the longest key: 6000 is alone, 4000 and 3200 make 8000."""
    batches = list(dataset.devtrain.batches(batch_size=8000))
    assert [batch["data"].shape for batch in batches] == [(1, 6000, 1), (2, 4000, 1)]
    assert batches[1]["data:size1"].tolist() == [4000, 3200]
    assert batches[1]["classes:size1"].tolist() == [8, 3]
    assert not batches[1]["data"][1, 3200:].any() and not batches[1]["classes"][1, 3:].any()
    assert batches[1]["data"].dtype == "float32" and batches[1]["classes"].dtype == "int32"
    assert [len(b["data"]) for b in dataset.devtrain.batches(batch_size=1)] == [1, 1, 1]
    two = dataset.devtrain.batches(batch_size=10**9, max_seqs=2)
    assert [len(b["data"]) for b in two] == [2, 1]


def test_bad_batches(dataset):
    with pytest.raises(ValueError, match="no key 'clases'; did you mean 'classes'"):
        next(dataset.train.batches(batch_size=9, keys=["clases"]))
    with pytest.raises(ValueError, match="max_seqs is 0"):
        next(dataset.train.batches(batch_size=9, max_seqs=0))
    with pytest.raises(ValueError, match="batch_size is 0"):
        next(dataset.train.batches(batch_size=0))
    with pytest.raises(ValueError, match="epoch is 0"):
        next(dataset.train.batches(0, batch_size=9))


def test_parts(dataset):
    assert dataset.train.opts["seq_ordering"] == "laplace:.1000"
    assert dataset.dev.opts["seq_ordering"] == "sorted_reverse"
    assert dataset.dev.opts["path"].endswith("librispeech/dev-clean.zip")
    assert list(dataset.eval) == ["dev-clean", "test-other"]
    assert sequences(dataset.eval["test-other"]).keys() == {"test-other/4-1-0001/4-1-0001"}
    audio = {"features": "raw", "peak_normalization": True, "sample_rate": 16_000}
    assert dataset.train.opts["audio"] == audio


def test_partitions_and_epochs(common):
    """Each sequence once in as many epochs as there are partitions; other orders later."""
    dataset = data.Librispeech(PREPARED, vocab=data.characters(), partition_epoch=3)
    epochs = [list(sequences(dataset.train, epoch=epoch)) for epoch in range(1, 13)]
    assert {len(epoch) for epoch in epochs} == {1}
    for start in range(0, 12, 3):
        assert len({tag for epoch in epochs[start : start + 3] for tag in epoch}) == 3
    assert len({str(epochs[start : start + 3]) for start in range(0, 12, 3)}) > 1


def test_partition_is_capped_with_a_warning(common):
    dataset = data.Librispeech(PREPARED)
    with pytest.warns(
        UserWarning, match="partition_epoch=20 is more than the 3 sequences"
    ) as warned:
        assert dataset.train.opts["partition_epoch"] == 3
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="partition_epoch=4 is more than the 3 sequences"):
        assert data.LibrispeechText(partition_epoch=4).train.opts["partition_epoch"] == 3


def test_default_parts_are_those_prepared(common):
    missing = "train-clean-360, train-other-500, dev-other, test-clean"
    with pytest.warns(UserWarning, match=f"not prepared in .*: {missing}$") as warned:
        dataset = data.Librispeech(vocab=data.characters(), partition_epoch=1)
        assert list(dataset.eval) == ["dev-clean", "test-other"]
        assert len(sequences(dataset.train)) == 3
    assert len(warned) == 1


def test_extern_data(dataset):
    extern_data = dataset.extern_data
    assert list(extern_data) == dataset.keys == ["data", "classes"]
    batch, time, feature = extern_data["data"].dims
    assert batch.is_batch_dim() and (time.name, feature.dimension) == ("time", 1)
    assert extern_data["classes"].sparse_dim.dimension == dataset.vocab.size
    assert dataset.extern_data["data"].dims == extern_data["data"].dims
    extern_data.clear()
    assert dataset.extern_data


def test_a_training_config_takes_the_options(dataset):
    """They are plain values, and making a config does not change the dataset."""
    from returnn_common import nn

    dim = dataset.extern_data["classes"].sparse_dim
    before = dataset.train.opts

    def step(*, model, extern_data, **_):
        nn.reduce_mean(nn.square(model(extern_data["data"])), axis=dim).mark_as_loss()

    lowered = nn.lower(
        nn.Linear(dataset.extern_data["data"].feature_dim, dim), step, dataset.extern_data
    )
    text = lowered.config_text(train=dataset.train.opts, dev=dataset.dev.opts)
    assert dataset.vocab.opts["class"] in text
    assert dataset.train.opts == before
    dataset.train.opts["audio"].clear()
    assert dataset.train.opts == before == eval(repr(before))


def test_custom_dataset_is_short(common):
    class ShortFirst(data.Librispeech):
        def train_opts(self):
            return {**super().train_opts(), "epoch_wise_filter": {(1, 1): {"max_mean_len": 22}}}

        def audio_opts(self):
            return {**super().audio_opts(), "peak_normalization": False}

    dataset = ShortFirst(PREPARED, vocab=data.characters(), partition_epoch=1)
    assert {text for _, text in sequences(dataset.train, epoch=1).values()} == {"ONE", "TWO FOUR"}
    assert len(sequences(dataset.train, epoch=2)) == 3
    assert max(abs(audio).max() for audio, _ in sequences(dataset.train).values()) < 0.3


def test_several_archives_in_one_part(common):
    class Everything(data.Librispeech):
        def archives(self, part):
            return list(PREPARED)

    dataset = Everything(PREPARED, vocab=data.characters(), partition_epoch=1)
    assert {tag: text for tag, (_, text) in sequences(dataset.train).items()} == {
        f"{part}/{name}/{name}": text for part in PREPARED for name, text in TEXTS[part].items()
    }


def test_sampling_only_in_training(common):
    vocab = data.bpe("en-1k").with_sampling(0.5)
    dataset = data.Librispeech(PREPARED, vocab=vocab, partition_epoch=1)
    assert dataset.train.opts["targets"]["enable_sampling"]
    assert dataset.dev.opts["targets"] == vocab.opts
    read = set()
    for epoch in range(1, 6):
        for batch in dataset.train.batches(epoch, batch_size=1, keys=["classes"]):
            read.add(tuple(batch["classes"][0]))
    assert {vocab.decode(labels) for labels in read} == set(TEXTS["train-clean-100"].values())
    assert len(read) > 3  # of a text several ways


def test_phonemes_are_made_in_returnn(common, tmp_path):
    (tmp_path / "lexicon").write_text("ONE W AH1 N\nTWO T UW1\n")
    vocab = data.phonemes(tmp_path / "lexicon")
    dataset = data.Librispeech(PREPARED, vocab=vocab, partition_epoch=1)
    batches = dataset.train.batches(batch_size=1, keys=["classes"])
    found = sorted(vocab.decode(batch["classes"][0]) for batch in batches)
    assert found == ["<unk> <unk> <unk>", "T UW1 <unk>", "W AH1 N"]


def test_text_for_language_models(common):
    text = data.LibrispeechText(vocab=data.bpe("en-128"))
    assert text.keys == list(text.extern_data) == ["data"]
    for part, wanted in [(text.train, "train-clean-100"), (text.dev, "dev-clean")]:
        rows = [
            batch["data"][0, : batch["data:size1"][0]].tolist()
            for batch in part.batches(batch_size=1)
        ]
        assert all(row[-1] == text.vocab.eos_index and row.count(row[-1]) == 1 for row in rows)
        assert {text.vocab.decode(row) for row in rows} == set(TEXTS[wanted].values())
    assert list(text.eval) == ["dev-clean", "test-other"]
    by_character = data.LibrispeechText(vocab=data.characters())
    batch = next(by_character.dev.batches(batch_size=1))
    assert batch["data"][0].tolist() == [*data.characters().encode("FIVE"), 2]


def test_text_of_the_books_joins_the_training_data(common):
    path = common / "librispeech/librispeech-lm-norm.txt.gz"
    with gzip.open(path, "wt") as file:
        file.write("EIGHT NINE\n\nTEN\n")
    try:
        text = data.LibrispeechText(vocab=data.characters())
        rows = [batch["data"][0] for batch in text.train.batches(batch_size=1)]
        expected = {*TEXTS["train-clean-100"].values(), "EIGHT NINE", "TEN"}
        assert {text.vocab.decode(row) for row in rows} == expected
    finally:
        path.unlink()


def test_more_streams_from_hdf(dataset, tmp_path):
    pytest.importorskip("h5py")
    from returnn.datasets.hdf import SimpleHDFWriter

    lengths = {tag: len(audio) // 1000 for tag, (audio, _) in sequences(dataset.train).items()}
    writer = SimpleHDFWriter(str(tmp_path / "a.hdf"), dim=9, ndim=1)
    for tag, length in lengths.items():
        labels = numpy.full([1, length], length, dtype="int32")
        writer.insert_batch(labels, seq_len=[length], seq_tag=[tag])
    writer.close()
    part = dataset.train.with_hdf(alignment=str(tmp_path / "a.hdf"))
    batches = list(part.batches(batch_size=1, keys=["data", "alignment", "seq_tag"]))
    assert part.keys == ("data", "classes", "alignment")
    assert [str(batch["seq_tag"][0]) for batch in batches] == list(lengths)
    for batch in batches:
        length = lengths[str(batch["seq_tag"][0])]
        assert batch["alignment"].tolist() == [[length] * length]


def test_missing_data_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    command = f"data prepare librispeech --from DIR_OR_TAR --to {tmp_path}/librispeech"
    for get in [
        lambda: data.Librispeech().train,
        lambda: data.Librispeech(["dev-clean"]).dev.opts,
        lambda: data.Librispeech(["dev-clean"]).train,
        lambda: data.LibrispeechText().train,
    ]:
        with pytest.raises(FileNotFoundError, match=command):
            get()
    with pytest.raises(FileNotFoundError, match=r"train.zip'; .*data prepare digits --to"):
        _ = data.SpokenDigits().train


def test_archive_cut_short_is_told(common, monkeypatch, tmp_path):
    import shutil

    shutil.copytree(common, tmp_path / "copy")
    path = tmp_path / "copy/librispeech/dev-clean.zip"
    path.write_bytes(path.read_bytes()[:-100])
    monkeypatch.setenv(VARIABLE, str(tmp_path / "copy"))
    with pytest.raises(ValueError, match="it is cut short or changed; prepare it again"):
        _ = data.Librispeech(PREPARED).dev


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: data.Librispeech(["dev-claen"]), "no part 'dev-claen'; did you mean 'dev-clean'"),
        (lambda: data.Librispeech(partition_epoch=0), "partition_epoch is 0, expected a number"),
        (lambda: data.LibrispeechText(partition_epoch=0), "partition_epoch is 0, expected"),
        (lambda: data.Librispeech(vocab="en-2k"), "no vocabulary 'en-2k'"),
        (
            lambda: data.get_common_data_path("/abs"),
            "path is '/abs', expected one below the common",
        ),
        (lambda: data.get_common_data_path("a/../../b"), "below the common folder"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_misspelt_name():
    with pytest.raises(AttributeError, match="'Librispech'; did you mean 'Librispeech'"):
        _ = data.Librispech
    assert {"Librispeech", "bpe", "get_common_data_path"} <= set(dir(data))


def test_common_data_path(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert data.get_common_data_path("librispeech/dev.zip") == "data-common/librispeech/dev.zip"
    assert data.get_common_data_path() == "data-common"
    monkeypatch.setenv(VARIABLE, "/data/all")
    assert data.get_common_data_path("librispeech//dev.zip") == "/data/all/librispeech/dev.zip"


def test_pickle_equality_and_hash(common):
    for make in (
        lambda: data.Librispeech(PREPARED, partition_epoch=1),
        lambda: data.LibrispeechText(),
        lambda: data.SpokenDigits(),
    ):
        dataset = make()
        before = pickle.dumps(dataset)
        _ = dataset.extern_data
        if not isinstance(dataset, data.SpokenDigits):
            assert pickle.loads(pickle.dumps(dataset.train)) == dataset.train
        assert pickle.dumps(dataset) == before
        again = pickle.loads(before)
        assert again == dataset == make() and hash(again) == hash(dataset)
    assert data.Librispeech(PREPARED) != data.Librispeech(PREPARED, partition_epoch=1)
    assert hash(data.Librispeech(PREPARED)) != hash(data.Librispeech(PREPARED[:2]))


def test_hash_is_the_same_in_every_process_and_nothing_is_imported():
    code = (
        "import sys\n"
        "from returnn_common import data\n"
        "print(hash(data.Librispeech()), hash(data.SpokenDigits()))\n"
        "assert not {'tensorflow', 'torch'} & set(sys.modules)\n"
        "data.Librispeech().extern_data\n"
        "assert not {'tensorflow', 'torch'} & set(sys.modules)\n"
    )
    out = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert out == {f"{hash(data.Librispeech())} {hash(data.SpokenDigits())}\n"}


def test_nothing_is_looked_up_while_a_dataset_is_made(monkeypatch):
    monkeypatch.setattr(os, "stat", lambda *args, **options: pytest.fail("looked at a file"))
    data.Librispeech(PREPARED, vocab=data.characters())
    data.get_common_data_path("librispeech")


def test_zip_and_folder_agree(dataset, common):
    folder = data.LibrispeechFolder(common.parent / "LibriSpeech", vocab=data.characters())
    for ours, theirs in [
        (dataset.train, folder.train),
        (dataset.dev, folder.dev),
        (dataset.eval["test-other"], folder.eval["test-other"]),
    ]:
        expected, found = sequences(theirs), sequences(ours)
        assert found.keys() == expected.keys()
        for tag, (audio, text) in found.items():
            assert text == expected[tag][1]
            numpy.testing.assert_array_equal(audio, expected[tag][0])
