"""Reading audio: what is read, what is converted, and what is refused."""

from __future__ import annotations

import numpy
import pytest

from returnn_common.data.audio import normalise, read_audio, resample

soundfile = pytest.importorskip("soundfile")


def _sine(rate: int, seconds: float, frequency: float = 200.0) -> numpy.ndarray:
    return numpy.sin(2 * numpy.pi * frequency * numpy.arange(round(rate * seconds)) / rate) * 0.5


def test_reads_what_was_written(tmp_path):
    samples = numpy.array([0, 1, -1, 12345, -32768, 32767], dtype="int16")
    soundfile.write(tmp_path / "a.wav", samples, 8000)
    audio, rate = read_audio(tmp_path / "a.wav")
    assert rate == 8000 and audio.dtype == "float32"
    numpy.testing.assert_array_equal(audio * 2**15, samples)


def test_stereo_is_averaged(tmp_path):
    stereo = numpy.array([[0.5, -0.25], [0.25, 0.25], [0.0, 0.5]])
    soundfile.write(tmp_path / "a.wav", stereo, 8000)
    numpy.testing.assert_allclose(read_audio(tmp_path / "a.wav")[0], [0.125, 0.25, 0.25], atol=1e-4)


def test_other_rate_is_resampled(tmp_path):
    soundfile.write(tmp_path / "a.flac", _sine(22050, 0.5), 22050)
    audio, rate = read_audio(tmp_path / "a.flac", sample_rate=8000)
    assert rate == 8000 and audio.shape == (4000,)
    numpy.testing.assert_allclose(audio[200:-200], _sine(8000, 0.5)[200:-200], atol=5e-3)


@pytest.mark.parametrize(
    "rate, new_rate", [(22050, 8000), (8000, 16000), (16000, 8000), (44100, 8000), (8000, 7000)]
)
def test_resampled_sine_is_the_sine_of_the_new_rate(rate, new_rate):
    audio = resample(_sine(rate, 0.7), rate, new_rate)
    inside = slice(new_rate // 20, -new_rate // 20)
    numpy.testing.assert_allclose(audio[inside], _sine(new_rate, 0.7)[inside], atol=5e-3)


def test_resampling_removes_what_the_new_rate_cannot_carry():
    audio = resample(_sine(16000, 1.0, frequency=6000.0), 16000, 8000)
    assert numpy.abs(audio[400:-400]).max() < 5e-3


def test_resampling_refuses_a_rate_of_zero():
    with pytest.raises(ValueError, match="new_rate is 0, expected a whole number of Hz"):
        resample(numpy.zeros(5), 8000, 0)


def test_normalise_to_a_level_and_never_beyond_full_scale():
    audio = normalise(_sine(8000, 1.0) * 0.01, rms=0.1)
    numpy.testing.assert_allclose(numpy.sqrt(numpy.mean(audio**2)), 0.1, rtol=1e-3)
    click = numpy.zeros(8000)
    click[7] = -0.3
    assert normalise(click).min() == -1.0
    assert not normalise(numpy.zeros(5)).any()


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no audio file .*nothing.wav"):
        read_audio(tmp_path / "nothing.wav")


def test_empty_file(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a.wav' is an empty file \(0 bytes\)"):
        read_audio(tmp_path / "a.wav")


def test_no_samples(tmp_path):
    soundfile.write(tmp_path / "a.wav", numpy.zeros(0), 8000)
    with pytest.raises(ValueError, match="audio file without samples"):
        read_audio(tmp_path / "a.wav")


def test_not_audio(tmp_path):
    (tmp_path / "a.wav").write_text("This is a text about audio.")
    with pytest.raises(ValueError, match="is not audio that libsndfile can read: "):
        read_audio(tmp_path / "a.wav")


def test_not_a_number(tmp_path):
    soundfile.write(tmp_path / "a.wav", numpy.array([0.0, numpy.nan, 0.0]), 8000, subtype="FLOAT")
    with pytest.raises(ValueError, match="not finite numbers"):
        read_audio(tmp_path / "a.wav")


@pytest.mark.parametrize("ending", ["wav", "flac"])
def test_cut_off(tmp_path, ending):
    rng = numpy.random.default_rng(1)
    path = tmp_path / f"a.{ending}"
    soundfile.write(path, rng.uniform(-1, 1, 20000), 8000)
    path.write_bytes(path.read_bytes()[:-9000])
    with pytest.raises(ValueError, match=r"is cut off|is not audio"):
        read_audio(path)
