"""
Reading audio files, with one clear error for every way in which a file can be unfit, and resampling.

Audio is a numpy array float32 ``[T]``, mono, in [-1, 1]; ``sample_rate`` is in Hz.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy


def read_audio(
    path: str | os.PathLike, *, sample_rate: int | None = None
) -> tuple[numpy.ndarray, int]:
    """
    Read any file that libsndfile knows (wav, flac, ogg, mp3 ...).

    :param path: the file
    :param sample_rate: wanted rate in Hz; a file of another rate is resampled. None keeps the rate of the file.
    :return: (audio float32 ``[T]``, sample rate in Hz). The channels of a stereo file are averaged.
    :raises FileNotFoundError: if there is no such file
    :raises ValueError: if it is empty, has no samples, has samples that are not numbers, or is not (whole) audio
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no audio file {path!r}")
    if os.path.getsize(path) == 0:
        raise ValueError(f"{path!r} is an empty file (0 bytes), expected audio such as wav or flac")
    audio, file_rate = _decode(path)
    audio = audio.mean(axis=1)
    if not len(audio):
        raise ValueError(f"{path!r} is an audio file without samples")
    if not numpy.isfinite(audio).all():
        raise ValueError(f"{path!r} has samples that are not finite numbers")
    if sample_rate is None or sample_rate == file_rate:
        return audio, file_rate
    return resample(audio, file_rate, sample_rate), sample_rate


def _decode(path: str) -> tuple[numpy.ndarray, int]:
    """:return: (audio float32 ``[T, channels]``, sample rate in Hz)"""
    soundfile = import_soundfile()
    try:
        with soundfile.SoundFile(path) as file:
            declared = _declared_frames(path) if file.format == "WAV" else file.frames
            audio = file.read(dtype="float32", always_2d=True)
            rate = file.samplerate
    except soundfile.LibsndfileError as exc:
        raise ValueError(
            f"{path!r} is not audio that libsndfile can read: {exc.error_string}"
        ) from exc
    if declared is not None and len(audio) < declared:
        raise ValueError(
            f"{path!r} is cut off: its header says {declared} samples, it has {len(audio)}"
        )
    return audio, rate


def _declared_frames(path: str) -> int | None:
    """
    :return: the number of samples that the header of a wav file says, for libsndfile reports what is there.
        None where the header leaves it open (a stream)
    """
    with open(path, "rb") as file:
        file.seek(
            12
        )  # "RIFF", size, "WAVE"; then chunks: name, size, content padded to an even size
        block_align = None
        while len(header := file.read(8)) == 8:
            name, size = header[:4], int.from_bytes(header[4:], "little")
            if name == b"data":
                return size // block_align if block_align and size < 2**32 - 1 else None
            content = file.read(size + size % 2)
            if name == b"fmt ":
                block_align = int.from_bytes(content[12:14], "little")
    return None


def resample(audio: numpy.ndarray, rate: int, new_rate: int) -> numpy.ndarray:
    """
    Band-limited resampling in the frequency domain: the spectrum is cut or filled with zeros at the lower of the two
    Nyquist frequencies, the same method as ``scipy.signal.resample``. The audio is first padded with zeros to a length
    for which the ratio of the rates is exact, so time is not stretched.

    :param audio: ``[T]``
    :param rate: its rate in Hz
    :param new_rate: the wanted rate in Hz
    :return: float32 ``[ceil(T * new_rate / rate)]``
    """
    for name, value in (("rate", rate), ("new_rate", new_rate)):
        if not isinstance(value, int) or value <= 0:
            raise ValueError(f"{name} is {value!r}, expected a whole number of Hz above 0")
    if rate == new_rate:
        return numpy.asarray(audio, dtype="float32")
    unit = rate // math.gcd(rate, new_rate)
    # A second of silence around keeps the end from ringing into the beginning.
    padded = math.ceil((len(audio) + rate) / unit) * unit
    new_padded = padded * new_rate // rate
    spectrum = numpy.fft.rfft(numpy.asarray(audio, dtype="float64"), padded)
    new_spectrum = numpy.zeros(new_padded // 2 + 1, dtype=spectrum.dtype)
    shared = min(len(spectrum), len(new_spectrum))
    new_spectrum[:shared] = spectrum[:shared]
    new_audio = numpy.fft.irfft(new_spectrum, new_padded) * (new_rate / rate)
    return new_audio[: math.ceil(len(audio) * new_rate / rate)].astype("float32")


def normalise(audio: numpy.ndarray, *, rms: float = 0.1) -> numpy.ndarray:
    """
    :param audio: ``[T]``
    :param rms: wanted root mean square; 0.1 is -20 dB below full scale
    :return: float32 ``[T]``, scaled to that level, or to a peak of 1 where that is quieter. Silence stays as it is.
    """
    level = float(numpy.sqrt(numpy.mean(numpy.square(audio, dtype="float64"))))
    peak = float(numpy.abs(audio).max(initial=0.0))
    if not level > 0.0:
        return numpy.asarray(audio, dtype="float32")
    return (audio * min(rms / level, 1.0 / peak)).astype("float32")


def import_soundfile() -> Any:
    """
    :return: the module ``soundfile``
    :raises ImportError: where it is not installed, with the command that installs it
    """
    try:
        import soundfile
    except (ImportError, OSError) as exc:
        raise ImportError("audio files need the package soundfile: pip install soundfile") from exc
    return soundfile
