"""Training vocabularies: the same bytes, what is read, and small or empty texts."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from returnn_common import cli, data
from returnn_common.data.vocab_training import count_words, size_of, train_vocab, upper_case

ROOT = Path(__file__).parent.parent
COUNTS = {"THE": 50, "THEN": 9, "OTHER": 7, "ON": 3, "TONE": 2}


def test_same_bytes_in_any_order_and_process(tmp_path):
    model = train_vocab(COUNTS, 14)
    assert model == train_vocab(dict(reversed(COUNTS.items())), 14)
    code = (
        "import sys; from returnn_common.data.vocab_training import train_vocab\n"
        f"sys.stdout.buffer.write(train_vocab({COUNTS}, 14))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "77"}
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, check=True
    ).stdout
    assert out == model
    assert str(ROOT).encode() not in model


def test_merges_are_those_of_bpe(tmp_path):
    """By hand: 3 special labels, 7 characters, and between them merges of the most frequent pairs."""
    (tmp_path / "m.model").write_bytes(train_vocab(COUNTS, 14))
    labels = data.sentencepiece(tmp_path / "m.model").labels
    # T+H and H+E occur 66 times each, then the whole THE 66 times, ▁+THE 59 times
    assert labels[:3] == ["<unk>", "<s>", "</s>"]
    assert labels[3] in ("TH", "HE") and labels[4:6] == ["THE", "▁THE"]
    assert sorted(labels[-7:]) == sorted("▁THENOR")


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_small_text_gives_a_smaller_vocabulary(model_type):
    assert 9 <= size_of(train_vocab(COUNTS, 1000, model_type=model_type)) < 40


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "counts",
    [
        {"A": 1},
        {"\U0001f600": 3, "\xe9": 1},
        {"A" * 5000: 1},
        {"\u2581": 3, "<unk>": 2, "<s>": 1, "\x00": 1},
        {"AB": 10**12, "AC": 10**12},
        {chr(0x4E00 + i): 1 for i in range(300)},
    ],
    ids=["one", "emoji", "long", "special", "often", "chinese"],
)
def test_no_text_is_a_crash(counts, model_type):
    assert 4 <= size_of(train_vocab(counts, 1000, model_type=model_type)) <= 1000


def test_unigram_sampling_reaches_returnn(tmp_path):
    from returnn.datasets.util.vocabulary import Vocabulary

    (tmp_path / "u.model").write_bytes(train_vocab(COUNTS, 30, model_type="unigram"))
    vocab = data.sentencepiece(tmp_path / "u.model").with_sampling(0.2)
    returnn = Vocabulary.create_vocab(**vocab.train_opts)
    found = {tuple(returnn.get_seq("OTHER TONE THEN")) for _ in range(30)}
    assert len(found) > 1
    assert {vocab.decode(labels) for labels in found} == {"OTHER TONE THEN"}


@pytest.mark.parametrize(
    ("counts", "size", "options", "message"),
    [
        ({}, 100, {}, "needs words, got none"),
        (COUNTS, 9, {}, "the size is 9, expected at least 10: one for each character"),
        ({"A": 0}, 100, {}, "needs words, got none"),
        ({"A B": 1}, 100, {}, "expected words without spaces, got 'A B'"),
        (COUNTS, 100, {"model_type": "bpee"}, "no model type 'bpee'; did you mean 'bpe'"),
    ],
)
def test_refuses(counts, size, options, message):
    with pytest.raises(ValueError, match=message):
        train_vocab(counts, size, **options)


def test_counts_of_every_kind_of_source(tmp_path):
    (tmp_path / "text.txt").write_text("the one the\ntwo\n")
    (tmp_path / "a.trans.txt").write_text("1-2-0003 THE ONE\n1-2-0004 THE\n")
    (tmp_path / "counts.tsv").write_text("the\t5\none\t3\n")
    with gzip.open(tmp_path / "text.gz", "wt") as file:
        file.write("the one\nthe\n")
    assert count_words(tmp_path / "text.txt") == {"the": 2, "one": 1, "two": 1}
    assert count_words(tmp_path / "a.trans.txt") == {"THE": 2, "ONE": 1}
    assert count_words(tmp_path / "counts.tsv") == {"the": 5, "one": 3}
    assert count_words(tmp_path / "text.gz") == {"the": 2, "one": 1}
    assert upper_case({"the": 2, "The": 3, "a": 1}) == {"THE": 5, "A": 1}


def test_bad_sources(tmp_path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for source, message in [
        (tmp_path / "empty", "has no word"),
        (tmp_path / "binary", "is not text in UTF-8"),
        ("librispech", "no file, folder or corpus 'librispech'; did you mean 'librispeech'"),
    ]:
        with pytest.raises(ValueError, match=message):
            count_words(source)


def test_command(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("the then other\n" * 3)
    out = tmp_path / "new.model"
    argv = ["vocab", "train", f"--from={tmp_path / 'text.txt'}", f"--out={out}", "--upper"]
    assert cli.main([*argv, "--size=500"]) == 0
    printed = capsys.readouterr().out
    vocab = data.sentencepiece(out)
    assert f"asked for 500 labels, reached {vocab.size}" in printed
    assert "the text is too small" in printed
    assert vocab.decode(vocab.encode("THE OTHER")) == "THE OTHER"
    content = out.read_bytes()
    assert cli.main([*argv, "--size=500"]) == 0
    assert out.read_bytes() == content
    capsys.readouterr()
    assert cli.main([*argv, "--size=12"]) == 0
    assert "12 labels" in capsys.readouterr().out
    assert cli.main([*argv, "--size=2"]) == 1
    assert "the size is 2, expected at least" in capsys.readouterr().err
    assert data.sentencepiece(out).size == 12  # the old file is still there


def test_script_reproduces_our_vocabularies(tmp_path):
    """To the byte, with the same releases of wordfreq and sentencepiece."""
    pytest.importorskip("wordfreq")
    readme = (ROOT / "vocabs/README.md").read_text()
    for name in ("wordfreq", "sentencepiece"):
        if f"{name} {metadata.version(name)}" not in readme:
            pytest.skip(f"another {name} than the one in vocabs/README.md")
    command = [sys.executable, str(ROOT / "vocabs/make.py"), "--to", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    ours = {path.name: path.read_bytes() for path in (ROOT / "vocabs").glob("*.model")}
    assert made == ours and len(ours) == 3
