"""
The demo with one speaker held out, for every speaker, beside a nearest neighbour.

The peer is the nearest recording of another speaker, by the Euclidean distance of log-mel features that are stretched
to one length. It gets the single recordings, so it knows where each digit begins and ends; the demo does not.

    python benchmarks/hold_out.py --data DIR --out hold_out

takes about 6 minutes for each speaker on two cores. ``--out`` holds the demo's folder of each fold, and hold_out.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).parent.parent))

from returnn_common import demo
from returnn_common.data.audio import normalise, read_audio
from returnn_common.data.digits import SAMPLE_RATE, Recording, list_recordings, split_recordings
from returnn_common.files import write_text

NUM_FRAMES, NUM_FILTERS, WINDOW, STEP = 32, 40, 200, 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", required=True, help="recordings named as in FSDD")
    parser.add_argument("--out", default="hold_out", help="folder for all results")
    parser.add_argument("--backend", default="tensorflow-net-dict")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    recordings = list_recordings(args.data)
    features = {recording: log_mel(recording) for recording in recordings}
    folds = []
    for speaker in sorted({recording.speaker for recording in recordings}):
        out = Path(args.out) / speaker
        wer = demo.run(
            data=args.data,
            out=str(out),
            backend=args.backend,
            seed=args.seed,
            hold_out=speaker,
            resume=out.exists(),
        )["wer"]
        parts = split_recordings(recordings, hold_out=speaker)
        peer = nearest_neighbour_error(parts["train"], parts["test"], features)
        folds.append(
            {"speaker": speaker, "wer": wer, "nearest_neighbour": peer, "ratio": wer / peer}
        )
    report(folds, Path(args.out) / "hold_out.json")


def report(folds: list[dict], path: Path) -> None:
    """Print a line for each fold and one for their mean, and write them."""
    wer, peer = (
        float(numpy.mean([fold[key] for fold in folds])) for key in ("wer", "nearest_neighbour")
    )
    folds = [
        *folds,
        {"speaker": "mean", "wer": wer, "nearest_neighbour": peer, "ratio": wer / peer},
    ]
    print(f"{'held out':10s} {'demo, WER %':>12s} {'nearest neighbour, %':>21s} {'ratio':>6s}")
    for fold in folds:
        print(
            f"{fold['speaker']:10s} {fold['wer']:12.2f} {fold['nearest_neighbour']:21.2f} {fold['ratio']:6.2f}"
        )
    write_text(path, json.dumps(folds, indent=2) + "\n")


def nearest_neighbour_error(
    train: list[Recording], test: list[Recording], features: dict[Recording, numpy.ndarray]
) -> float:
    """:return: how many of the test recordings get the wrong digit, in percent"""
    references = numpy.stack([features[recording] for recording in train])
    wrong = 0
    for recording in test:
        distances = numpy.square(references - features[recording]).sum(axis=1)
        wrong += train[int(distances.argmin())].digit != recording.digit
    return 100 * wrong / len(test)


def log_mel(recording: Recording) -> numpy.ndarray:
    """:return: features of a recording, stretched to `NUM_FRAMES`, with mean 0 and variance 1, in one row"""
    audio = normalise(read_audio(recording.path, sample_rate=SAMPLE_RATE)[0])
    audio = numpy.pad(audio, (0, max(0, WINDOW - len(audio))))
    frames = numpy.lib.stride_tricks.sliding_window_view(audio, WINDOW)[::STEP] * numpy.hanning(
        WINDOW
    )
    mel = numpy.log(numpy.abs(numpy.fft.rfft(frames, 256)) ** 2 @ mel_filters() + 1e-6)
    at = numpy.linspace(0, len(mel) - 1, NUM_FRAMES)
    mel = numpy.stack([numpy.interp(at, numpy.arange(len(mel)), channel) for channel in mel.T])
    return ((mel - mel.mean()) / mel.std()).ravel()


def mel_filters() -> numpy.ndarray:
    """:return: triangular filters `[129, NUM_FILTERS]`, equally spaced on the mel scale"""
    top = 2595 * numpy.log10(1 + SAMPLE_RATE / 2 / 700)
    edges = 700 * (10 ** (numpy.linspace(0, top, NUM_FILTERS + 2) / 2595) - 1)
    bins = numpy.linspace(0, SAMPLE_RATE / 2, 129)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return numpy.maximum(0, numpy.minimum(rising, falling))


if __name__ == "__main__":
    main()
