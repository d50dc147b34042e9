"""Digit recordings: names, the split by index, held-out speakers, splicing."""

from __future__ import annotations

from collections import Counter

import numpy
import pytest

from returnn_common.data.digits import (
    LABELS,
    WORDS,
    Recording,
    draw_strings,
    list_recordings,
    splice,
    split_recordings,
    spoken_strings,
)

soundfile = pytest.importorskip("soundfile")


def _recordings(speakers=("ann", "bob", "cleo"), indices=range(12)) -> list[Recording]:
    return [
        Recording(d, s, i, f"{d}_{s}_{i}.wav") for s in speakers for d in range(10) for i in indices
    ]


def _write_corpus(folder, speakers=("ann", "bob"), indices=(0, 5, 10)):
    """Every recording is a constant of its own, so that what is spliced can be read off the samples."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, recording in enumerate(_recordings(speakers, indices)):
        soundfile.write(folder / recording.path, numpy.full(50 + number, (number + 1) / 128), 8000)


def test_labels_are_the_characters_of_the_words():
    assert "".join(LABELS) == " efghinorstuvwxz"
    assert all(set(word) <= set(LABELS) for word in WORDS)


@pytest.mark.parametrize("sub_folder", ["", "recordings"])
def test_list_recordings(tmp_path, sub_folder):
    _write_corpus(tmp_path / sub_folder)
    (tmp_path / sub_folder / "README.md").write_text("not a recording")
    recordings = list_recordings(tmp_path)
    assert len(recordings) == 2 * 10 * 3 and recordings == sorted(recordings)
    first, last = ((rec.digit, rec.speaker, rec.index) for rec in (recordings[0], recordings[-1]))
    assert first == (0, "ann", 0) and last == (9, "bob", 10)


def test_list_recordings_refuses(tmp_path):
    with pytest.raises(ValueError, match=r"no folder .*nowhere"):
        list_recordings(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no wav file in .*7_jackson_32.wav"):
        list_recordings(tmp_path)
    (tmp_path / "seven_jackson_32.wav").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"'seven_jackson_32.wav' .* is not named DIGIT_SPEAKER_INDEX.wav"
    ):
        list_recordings(tmp_path)


def test_split_is_by_index():
    parts = split_recordings(_recordings())
    indices = {part: {recording.index for recording in members} for part, members in parts.items()}
    assert indices == {"test": {0, 1, 2, 3, 4}, "dev": {5, 6, 7, 8, 9}, "train": {10, 11}}
    assert sum(map(len, parts.values())) == len(_recordings())


def test_held_out_speaker_is_nowhere_but_in_test():
    parts = split_recordings(_recordings(), hold_out="bob")
    assert {recording.speaker for part in ("train", "dev") for recording in parts[part]} == {
        "ann",
        "cleo",
    }
    assert {recording.speaker for recording in parts["test"]} == {"bob"}
    assert len(parts["test"]) == 10 * 12


def test_split_refuses():
    with pytest.raises(ValueError, match="there is no speaker 'bop'; did you mean 'bob'"):
        split_recordings(_recordings(), hold_out="bop")
    with pytest.raises(ValueError, match="no recording for dev"):
        split_recordings(_recordings(indices=(0, 10)))


def test_strings_are_of_one_speaker_and_deal_out_all_recordings():
    strings = draw_strings(_recordings(), 90, lengths=(3, 7), rng=numpy.random.default_rng(1))
    assert {len(string) for string in strings} == {3, 4, 5, 6, 7}
    assert all(len({recording.speaker for recording in string}) == 1 for string in strings)
    assert Counter(string[0].speaker for string in strings) == {"ann": 30, "bob": 30, "cleo": 30}
    uses = Counter(recording for string in strings for recording in string)
    assert len(uses) == 360 and max(uses.values()) - min(uses.values()) <= 1


def test_splice():
    pieces = [
        numpy.full(7, 0.5, "float32"),
        numpy.full(5, -0.25, "float32"),
        numpy.full(3, 0.5, "float32"),
    ]
    spliced = splice(pieces, gap=(0.5, 0.5), sample_rate=8, rng=numpy.random.default_rng(1))
    expected = numpy.concatenate([pieces[0], numpy.zeros(4), pieces[1], numpy.zeros(4), pieces[2]])
    expected *= 0.1 / numpy.sqrt(numpy.mean(expected**2))  # an RMS of -20 dB
    numpy.testing.assert_allclose(spliced, expected, rtol=1e-6)


def test_spoken_strings_say_what_their_text_says(tmp_path):
    _write_corpus(tmp_path)
    recordings = list_recordings(tmp_path)
    by_number = {round(soundfile.read(rec.path)[0][0] * 128): rec for rec in recordings}
    utterances = spoken_strings(recordings, 20, lengths=(1, 4), gap=(0.01, 0.02), seed=3)
    for utterance in utterances:
        values = utterance.audio[numpy.flatnonzero(numpy.diff(utterance.audio, prepend=0.0))]
        values = values[values > 0]  # one for each recording, times one unknown gain
        words = utterance.text.split()
        assert len(values) == len(words)
        speaker = utterance.name.split("-")[0]
        numbers = [
            [n for n, rec in by_number.items() if (rec.speaker, WORDS[rec.digit]) == (speaker, w)]
            for w in words
        ]
        gains = [
            {round(float(v / n * 128), 2) for n in candidates}
            for v, candidates in zip(values, numbers, strict=True)
        ]
        assert any(
            all(min(abs(g / first - 1) for g in others) < 0.02 for others in gains)
            for first in gains[0]
        )


def test_spoken_strings_depend_on_the_seed_alone(tmp_path):
    _write_corpus(tmp_path)
    recordings = list_recordings(tmp_path)
    first, again, other = (
        spoken_strings(recordings, 6, lengths=(1, 4), seed=seed) for seed in (1, 1, 2)
    )
    assert [utterance.text for utterance in first] == [utterance.text for utterance in again]
    assert all((a.audio == b.audio).all() for a, b in zip(first, again, strict=True))
    assert [utterance.text for utterance in first] != [utterance.text for utterance in other]
