"""
Vocabularies: against sentencepiece, against hand calculations, and what RETURNN makes of their options.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from returnn_common import data
from returnn_common.data import vocabularies

ROOT = Path(__file__).parent.parent
TEXT = "HE COULD WAIT NO LONGER"

CODES = "#version: 0.2\nt h\nth e</w>\no n\n"  # the merges t+h, th+e at the end of a word, o+n
LABELS = {"<s>": 0, "</s>": 0, "<unk>": 1, "the": 2, "th@@": 3, "on@@": 4, "e": 5, "t@@": 6}


@pytest.fixture
def subword_files(tmp_path):
    (tmp_path / "codes").write_text(CODES)
    (tmp_path / "vocab").write_text(repr(LABELS))
    return tmp_path / "codes", tmp_path / "vocab"


@pytest.fixture
def lexicon_file(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text(
        ";;; of CMUdict\nHE  HH IY1\nHE(2)  HH IY0\nNO\tN OW1 # a comment\n\nNO  N AA1\nA AH0\n"
    )
    return path


def all_vocabs(subword_files, lexicon_file):
    yield from map(data.bpe, ("en-128", "en-1k", "en-5k"))
    yield data.subword_nmt(*subword_files)
    yield data.characters()
    yield data.utf8_bytes()
    yield data.phonemes(lexicon_file)


def returnn_vocab(opts):
    """:return: what RETURNN's datasets make of these options"""
    from returnn.datasets.util.vocabulary import Vocabulary

    return Vocabulary.create_vocab(**opts)


@pytest.mark.parametrize(("name", "size"), [("en-128", 128), ("en-1k", 1000), ("en-5k", 5000)])
def test_our_bpe_is_what_sentencepiece_says(name, size):
    import sentencepiece

    vocab = data.bpe(name)
    model = sentencepiece.SentencePieceProcessor(model_file=str(ROOT / f"vocabs/{name}.model"))
    assert vocab.size == vocab.blank_index == size == model.vocab_size()
    assert vocab.encode(TEXT) == model.encode(TEXT)
    assert vocab.labels == [model.id_to_piece(i) for i in range(size)]
    assert vocab.labels[:3] == ["<unk>", "<s>", "</s>"]
    assert (vocab.unk_index, vocab.bos_index, vocab.eos_index) == (0, 1, 2)
    assert vocab.decode([1, *model.encode(TEXT), 2]) == TEXT
    assert vocab.to_words(model.encode(TEXT)) == TEXT.split()
    num_bytes = (ROOT / f"vocabs/{name}.model").stat().st_size
    assert num_bytes < 100_000
    assert f"| {size:,} | {num_bytes:,} |" in (ROOT / "vocabs/README.md").read_text()


def test_our_bpe_writes_every_transcript_without_unknown():
    for name in ("en-128", "en-1k", "en-5k"):
        vocab = data.bpe(name)
        text = "AND 'TIS DON'T QUIXOTIC ZWITTERIONS JUMP OVER FRIENDS'"
        assert vocab.unk_index not in vocab.encode(text)
        assert vocab.decode(vocab.encode(text)) == text
        assert set("".join(vocab.labels[3:])) == set("▁'ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def test_text_is_not_normalised():
    vocab = data.bpe("en-128")
    assert vocab.unk_index in vocab.encode("he")  # not upper case
    assert vocab.encode("A  B") != vocab.encode("A\u00a0B")  # and no other space is one


def test_subword_nmt(subword_files):
    vocab = data.subword_nmt(*subword_files)
    assert vocab.size == 7 and vocab.blank_index == 7
    assert (vocab.bos_index, vocab.eos_index, vocab.unk_index) == (0, 0, 1)
    # "the" is merged in full; "then": t h e n -> th e n, and "n" at the end is no label
    assert vocab.encode("the thon") == [2, 3, 1, 1]
    assert vocab.encode("the") == [2]
    assert vocab.decode([0, 2, 3, 5, 4, 5, 0]) == "the the one"
    assert vocab.to_words([3, 5, 2]) == ["the", "the"]


def test_subword_nmt_with_labels_by_line(tmp_path, subword_files):
    (tmp_path / "lines").write_text("<unk>\nthe\nth@@\ne\n")
    vocab = data.subword_nmt(subword_files[0], tmp_path / "lines")
    assert vocab.encode("the") == [1]
    assert (vocab.unk_index, vocab.bos_index, vocab.eos_index) == (0, None, None)


def test_characters():
    vocab = data.characters("ab ")
    assert vocab.labels == ["<unk>", "<s>", "</s>", "a", "b", " "]
    assert vocab.encode("ba xa") == [4, 3, 5, 0, 3]
    assert vocab.decode([1, 4, 3, 5, 3, 2]) == "ba a"
    assert vocab.to_words([4, 3, 5, 3]) == ["ba", "a"]
    assert (vocab.size, vocab.blank_index) == (6, 6)
    assert data.characters().size == 3 + 26 + 2


def test_utf8_bytes():
    vocab = data.utf8_bytes()
    assert vocab.encode("é a") == [0xC3, 0xA9, 0x20, 0x61]
    assert vocab.decode([0, 0xC3, 0xA9, 0x20, 0x61, 0]) == "é a"
    assert vocab.decode([0xC3]) == "\ufffd"  # half a letter: a model may output anything
    assert (vocab.size, vocab.bos_index, vocab.unk_index, vocab.blank_index) == (256, 0, None, 256)


def test_phonemes(lexicon_file):
    vocab = data.phonemes(lexicon_file)
    # "HE(2)" counts as a word of its own, the second "NO" does not count
    assert vocab.labels == ["<unk>", "<s>", "</s>", "AH0", "HH", "IY0", "IY1", "N", "OW1"]
    assert vocab.encode("NO HE") == [7, 8, 4, 6]
    assert vocab.encode("NO WAY") == [7, 8, 0]
    assert vocab.decode([1, 7, 8, 4, 6, 2]) == "N OW1 HH IY1"
    assert vocab.blank_index == vocab.size == 9


def test_returnn_makes_the_same_labels(subword_files, lexicon_file):
    """Its options and, for phonemes, its processing of the text give what `encode` gives."""
    from returnn.datasets.lm import get_post_processor_function

    for vocab in all_vocabs(subword_files, lexicon_file):
        returnn, text = returnn_vocab(vocab.opts), "HE A NO the"
        process = get_post_processor_function(vocab.post_process)
        assert returnn.get_seq(process(text)) == vocab.encode(text)
        assert returnn.num_labels == vocab.size
        assert returnn.bos_label_id == vocab.bos_index
        assert returnn.unknown_label_id == vocab.unk_index


def test_options_are_copies_of_plain_values(subword_files, lexicon_file):
    for vocab in all_vocabs(subword_files, lexicon_file):
        assert eval(repr(vocab.opts)) == vocab.opts  # it can stand in a config
        vocab.opts.clear()
        assert "class" in vocab.opts


def test_pickle_and_hash(subword_files, lexicon_file, tmp_path):
    for vocab in all_vocabs(subword_files, lexicon_file):
        before = pickle.dumps(vocab)
        vocab.encode("HE")
        assert pickle.dumps(vocab) == before  # what was read is not pickled
        again = pickle.loads(before)
        assert again == vocab and hash(again) == hash(vocab)
        assert again.encode("HE A") == vocab.encode("HE A")
        assert again.content_hash == vocab.content_hash
    hashes = [vocab.content_hash for vocab in all_vocabs(subword_files, lexicon_file)]
    assert len(set(hashes)) == len(hashes)


def test_hash_is_of_the_content(tmp_path):
    """Not of the place, and the same in every process."""
    shutil.copy(data.bpe("en-128").path, tmp_path / "copy.model")
    copy = data.sentencepiece(tmp_path / "copy.model")
    assert copy == data.bpe("en-128") != data.bpe("en-1k")
    assert copy.with_sampling(0.2) != copy.with_sampling(0.1) != copy
    code = "from returnn_common import data; print(hash(data.bpe()), hash(data.characters()))"
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
    assert out == {f"{hash(data.bpe())} {hash(data.characters())}\n"}


def test_sampling_reaches_returnn(subword_files):
    vocab = data.bpe("en-1k").with_sampling(0.3)
    assert vocab.opts == data.bpe("en-1k").opts
    returnn = returnn_vocab(vocab.train_opts)
    found = {tuple(returnn.get_seq(TEXT)) for _ in range(20)}
    assert len(found) > 1
    assert {vocab.decode(seq) for seq in found} == {TEXT}
    assert len({tuple(vocab.encode(TEXT)) for _ in range(20)}) == 1

    subword = data.subword_nmt(*subword_files).with_sampling(0.9)
    returnn = returnn_vocab(subword.train_opts)
    found = {tuple(returnn.get_seq("the the the")) for _ in range(20)}
    assert len(found) > 1
    assert {subword.decode(seq) for seq in found} == {"the the the"}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda tmp: data.bpe("en-1kk"),
            ValueError,
            r"no vocabulary 'en-1kk'; did you mean 'en-1k'",
        ),
        (
            lambda tmp: data.sentencepiece(tmp / "a.model").size,
            FileNotFoundError,
            "there is no file .*a.model', expected a SentencePiece model",
        ),
        (
            lambda tmp: data.sentencepiece(tmp / "text").size,
            ValueError,
            "text' is not a SentencePiece model",
        ),
        (
            lambda tmp: data.subword_nmt(tmp / "c", tmp / "text").size,
            FileNotFoundError,
            "expected the codes of subword-nmt",
        ),
        (lambda tmp: data.characters(["a", "bc"]), ValueError, "single characters, got 'bc'"),
        (lambda tmp: data.characters("aba"), ValueError, "'a' is given twice"),
        (lambda tmp: data.phonemes(tmp / "text").size, ValueError, "line 1: expected a word and"),
        (lambda tmp: data.phonemes(tmp / "empty").size, ValueError, "a lexicon without words"),
        (lambda tmp: data.bpe().with_sampling(1.5), ValueError, "alpha is 1.5, expected a prob"),
        (lambda tmp: data.bpe().decode([5, 1000]), ValueError, "1000 is not below the size 1000"),
        (lambda tmp: data.Librispeech(vocab=5), TypeError, "or the name of one, .*got 5"),
    ],
)
def test_errors(make, error, message, tmp_path):
    (tmp_path / "text").write_text("word\n")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(error, match=message):
        make(tmp_path)


def test_folder_of_the_vocabularies(monkeypatch, tmp_path):
    """Inside the package first, then beside it; one error names the folder to copy."""
    package = tmp_path / "site" / "returnn_common"
    monkeypatch.setattr(vocabularies, "__file__", str(package / "data/vocabularies.py"))
    with pytest.raises(FileNotFoundError, match=r"returnn_common/vocabs': copy the folder vocabs/"):
        data.bpe()
    for folder in (package.parent / "vocabs", package / "vocabs"):
        shutil.copytree(ROOT / "vocabs", folder)
        assert Path(data.bpe().path).parent == folder
