"""
From the posteriors that RETURNN writes to text, errors and an alignment.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from pathlib import Path
from typing import Any

import numpy
from returnn.forward_iface import ForwardCallbackIface

from ..data.digits import LABELS

BLANK = len(LABELS)


class PosteriorWriter(ForwardCallbackIface):
    """
    Writes the output "log_probs" of every sequence to an HDF file, for RETURNN's torch engine. The TensorFlow engine
    writes the same by itself (``task = "forward"``).
    """

    def __init__(self, path: str = "posteriors.hdf"):
        from returnn.datasets.hdf import SimpleHDFWriter

        self._writer = SimpleHDFWriter(path, dim=BLANK + 1, ndim=2)

    def process_seq(self, *, seq_tag: str, outputs: Any) -> None:
        """RETURNN calls this with "log_probs" `[T, characters and blank]`."""
        log_probs = outputs["log_probs"].raw_tensor
        self._writer.insert_batch(log_probs[None], seq_len=[len(log_probs)], seq_tag=[seq_tag])

    def finish(self) -> None:
        """RETURNN calls this at the end."""
        self._writer.close()


def read_posteriors(path: Path) -> dict[str, numpy.ndarray]:
    """
    :param path: HDF file that RETURNN wrote
    :return: log p(label or blank | frame), `[T, characters and blank]`, by sequence tag
    """
    import h5py

    with h5py.File(path) as file:
        ends = numpy.cumsum(file["seqLengths"][:, 0])
        tags = [tag.decode() if isinstance(tag, bytes) else tag for tag in file["seqTags"]]
        return dict(zip(tags, numpy.split(file["inputs"][:], ends[:-1]), strict=True))


def read_losses(path: Path) -> dict[str, dict[int, float]]:
    """
    :param path: RETURNN's ``learning_rate_file``
    :return: "train" and "dev" -> epoch -> loss
    """
    from returnn.config import Config
    from returnn.learning_rate_control import load_learning_rate_control_from_config

    config = Config({"learning_rate_file": str(path), "learning_rate": 1.0})
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does
        control = load_learning_rate_control_from_config(config)
    curves: dict[str, dict[int, float]] = {"train": {}, "dev": {}}
    for epoch, data in sorted(control.epoch_data.items()):
        for key, loss in (data.error or {}).items():
            part, _, kind = key.partition("_")
            if part in curves and kind.startswith(("score", "loss")):
                curves[part][epoch] = float(loss)
    return curves


def decode_greedy(log_probs: numpy.ndarray) -> str:
    """
    :param log_probs: `[T, characters and blank]`
    :return: the best label of every frame, repetitions and then blanks removed, with single spaces between words
    """
    best = (label for label, _ in itertools.groupby(log_probs.argmax(axis=-1)))
    return " ".join("".join(LABELS[label] for label in best if label != BLANK).split())


def count_errors(references: list[str], hypotheses: list[str]) -> dict[str, float]:
    """:return: `wer` in percent and the counts it is made of"""
    import jiwer

    counts = jiwer.process_words(references, hypotheses)
    return {
        "wer": 100 * counts.wer,
        "substitutions": counts.substitutions,
        "deletions": counts.deletions,
        "insertions": counts.insertions,
        "num_words": counts.hits + counts.substitutions + counts.deletions,
        "num_strings": len(references),
        "string_error_rate": 100 * sum(map(str.__ne__, references, hypotheses)) / len(references),
    }


def align(log_probs: numpy.ndarray, text: str) -> numpy.ndarray:
    """
    The best alignment of CTC (Viterbi): https://www.cs.toronto.edu/~graves/icml_2006.pdf, with maxima for sums.

    :param log_probs: `[T, characters and blank]`
    :param text: characters of `LABELS`
    :return: for each frame a label or blank, `[T]`; without repetitions and blanks it is `text`
    :raises ValueError: if there are too few frames for the text
    """
    states = numpy.full(2 * len(text) + 1, BLANK)  # blanks around all characters
    states[1::2] = [LABELS.index(character) for character in text]
    may_skip = numpy.zeros(len(states), dtype=bool)  # the blank between two different characters
    may_skip[2:] = (states[2:] != BLANK) & (states[2:] != states[:-2])
    score = numpy.full(len(states), -numpy.inf)
    score[:2] = log_probs[0, states[:2]]
    steps = []
    for frame in log_probs[1:]:
        reached = numpy.stack(
            [score, _shifted(score, 1), numpy.where(may_skip, _shifted(score, 2), -numpy.inf)]
        )
        steps.append(reached.argmax(axis=0))  # how many states forward
        score = reached.max(axis=0) + frame[states]
    state = len(states) - 1 if len(states) == 1 or score[-1] >= score[-2] else len(states) - 2
    if score[state] == -numpy.inf:
        raise ValueError(f"{len(log_probs)} frames are too few for {text!r}")
    path = [state]
    for step in reversed(steps):
        path.append(path[-1] - step[path[-1]])
    return states[path[::-1]]


def _shifted(score: numpy.ndarray, number: int) -> numpy.ndarray:
    return numpy.concatenate([numpy.full(number, -numpy.inf), score])[: len(score)]
