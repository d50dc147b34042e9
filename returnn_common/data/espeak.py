"""
Synthetic speech with eSpeak NG, from the wheel ``espeakng-loader`` (library and voices) through ctypes.

It shows that a pipeline works; it never backs a claim about accuracy on speech.

https://github.com/espeak-ng/espeak-ng, ``speak_lib.h``; https://pypi.org/project/espeakng-loader
"""

from __future__ import annotations

import ctypes
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy

from .audio import normalise, resample
from .digits import SAMPLE_RATE, WORDS
from .oggzip import Utterance

# English accents of eSpeak NG, with variants that change the speaker.
VOICES = ("en-us", "en", "en-us+f2", "en+f4", "en-us+m3", "en+m7", "en-gb-scotland+m2", "en-us+f5")
RATES = (130, 200)  # words a minute; eSpeak's default is 175
PITCHES = (30, 70)  # 0-100; eSpeak's default is 50

_AUDIO_OUTPUT_SYNCHRONOUS, _CHARS_UTF8, _RATE, _PITCH = 2, 1, 1, 3  # of speak_lib.h


class Synthesizer:
    """eSpeak NG. There is one in a process: it keeps its state in global variables."""

    def __init__(self) -> None:
        """
        :raises ImportError: where the wheel is not installed, with the command that installs it
        """
        try:
            import espeakng_loader
        except ImportError as exc:
            raise ImportError(
                "synthetic speech needs eSpeak NG: pip install espeakng-loader"
            ) from exc
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        self.sample_rate: int = self._library.espeak_Initialize(
            _AUDIO_OUTPUT_SYNCHRONOUS, 0, data, 0
        )
        if self.sample_rate <= 0:
            raise ImportError(f"eSpeak NG does not start with its data in {data.decode()!r}")
        self._samples: list[numpy.ndarray] = []
        signature = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
        )
        self._callback = signature(self._receive)  # kept: the library holds only a pointer
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples: Any, num_samples: int, _events: Any) -> int:
        if samples and num_samples:
            self._samples.append(numpy.ctypeslib.as_array(samples, (num_samples,)).copy())
        return 0  # go on

    def __call__(
        self, text: str, *, voice: str = "en-us", rate: int = 175, pitch: int = 50
    ) -> numpy.ndarray:
        """
        :param text: to speak
        :param voice: language of eSpeak NG, with a variant behind "+"
        :param rate: words a minute
        :param pitch: 0-100
        :return: audio float32 ``[T]``, of ``self.sample_rate``
        :raises ValueError: if there is no such voice
        """
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise ValueError(
                f"eSpeak NG has no voice {voice!r}, expected a name such as {VOICES[0]!r} or {VOICES[2]!r}"
            )
        self._library.espeak_SetParameter(_RATE, rate, 0)
        self._library.espeak_SetParameter(_PITCH, pitch, 0)
        self._library.espeak_ng_SetRandSeed(
            ctypes.c_long(1)
        )  # else it draws from the time: one voice has noise
        self._samples.clear()
        content = text.encode()
        self._library.espeak_Synth(content, len(content) + 1, 0, 0, 0, _CHARS_UTF8, None, None)
        return numpy.concatenate(self._samples).astype("float32") / 2**15


def synthetic_strings(num_strings: int, *, lengths: tuple[int, int], seed: int) -> list[Utterance]:
    """
    Synthesise in a process of its own: what eSpeak NG said before changes single samples of what it says next,
    so only a new process says the same every time.

    :param num_strings: how many utterances
    :param lengths: the fewest and the most digits in one
    :param seed: the same seed gives the same texts, voices, rates, pitches and samples
    :return: utterances with the digits as words ("four two"), of `SAMPLE_RATE`, all at one level
    :raises ImportError: where the wheel is not installed, with the command that installs it
    """
    with ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn")
    ) as process:
        return process.submit(_synthesise, num_strings, lengths, seed).result()


def _synthesise(num_strings: int, lengths: tuple[int, int], seed: int) -> list[Utterance]:
    synthesizer, rng = Synthesizer(), numpy.random.default_rng(seed)
    utterances = []
    for i in range(num_strings):
        length = rng.integers(lengths[0], lengths[1] + 1)
        text = " ".join(WORDS[digit] for digit in rng.integers(0, len(WORDS), length))
        rate, pitch = (int(rng.integers(low, high + 1)) for low, high in (RATES, PITCHES))
        audio = synthesizer(text, voice=VOICES[i % len(VOICES)], rate=rate, pitch=pitch)
        audio = normalise(resample(audio, synthesizer.sample_rate, SAMPLE_RATE))
        utterances.append(Utterance(f"synthetic-{i:05d}", audio, text))
    return utterances
