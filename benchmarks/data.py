"""
How fast datasets read, beside plain soundfile on the same files, and vocabularies encode, beside sentencepiece itself.

All utterances of a folder of LibriSpeech are prepared into a temporary folder and read through ``Librispeech()``: in
this process, and by RETURNN's multi-process reader. What runs in one process is timed in seconds of its processor,
which others on the machine disturb little; several processes by the clock on the wall. All take turns, and the best
run counts.

    python benchmarks/data.py --from LibriSpeech [--runs 5] [--json FILE]

takes about a minute with a quarter of an hour of audio.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _process import warn_if_busy, write_json

BARS = {"one process": 0.7, "two processes": 0.7, "encode": 0.9}
PEERS = {"one process": "soundfile", "two processes": "soundfile, wall", "encode": "sentencepiece"}
READ_AT_LEAST = 0.5  # hours of audio in each measurement, by repeating the files
BATCH_SIZE = 16_000 * 60  # samples
ENCODE_TIMES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n\n")[0])
    parser.add_argument("--from", dest="source", required=True, help="a folder of LibriSpeech")
    parser.add_argument("--runs", type=int, default=5, help="of each; default: %(default)s")
    parser.add_argument("--json", help="write all figures to this file")
    args = parser.parse_args()
    load = warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RETURNN_COMMON_DATA_PATH"] = folder
        figures = measure(Path(args.source), args.runs)
    print_table(figures)
    if args.json:
        write_json(args.json, {"figures": figures, "bars": BARS, "load": load})


def measure(source: Path, num_runs: int) -> dict[str, Any]:
    """:return: the best of each measurement, and ratios"""
    from returnn_common.data.librispeech_preparation import prepare_librispeech

    paths = prepare_librispeech([source])
    files = sorted(str(path) for path in source.rglob("*.flac"))
    reading = reading_measurements([Path(path).stem for path in paths], files)
    encoding = encoding_measurements(paths)
    best = {**take_turns(reading, num_runs), **take_turns(encoding, num_runs)}
    ratios = {name: best[name] / best[peer] for name, peer in PEERS.items()}
    return {"best": best, "ratios": ratios}


def take_turns(measurements: dict[str, Callable[[], float]], num_runs: int) -> dict[str, float]:
    """:return: the highest of each; every round begins with another one"""
    found: dict[str, list[float]] = {name: [] for name in measurements}
    names = list(measurements)
    for run in range(num_runs):
        for name in names[run % len(names) :] + names[: run % len(names)]:
            found[name].append(measurements[name]())
    return {name: max(values) for name, values in found.items()}


# --- reading


def reading_measurements(parts: list[str], files: list[str]) -> dict[str, Callable[[], float]]:
    """:return: each gives hours of audio in a second"""
    from returnn_common import data

    class AllParts(data.Librispeech):
        """everything that there is as training data"""

        def archives(self, part: str) -> list[str]:
            return parts

        def train_opts(self) -> dict[str, Any]:
            return {**super().train_opts(), "repeat_epoch": repeat}

    import soundfile

    hours = sum(soundfile.info(file).duration for file in files) / 3600
    repeat = max(1, round(READ_AT_LEAST / hours))
    train = AllParts(parts, partition_epoch=1).train
    cpu, wall = time.process_time, time.perf_counter
    return {
        "soundfile": lambda: hours_per_second(soundfile_audio(files * repeat), cpu),
        "one process": lambda: hours_per_second(dataset_audio(train), cpu),
        "soundfile, wall": lambda: hours_per_second(soundfile_audio(files * repeat), wall),
        "two processes": lambda: hours_per_second(dataset_audio(train.in_processes(2)), wall),
    }


def soundfile_audio(files: list[str]) -> Iterator[int]:
    """:return: samples of each file"""
    import soundfile

    for file in files:
        audio, _ = soundfile.read(file)
        yield len(audio)


def dataset_audio(part: Any) -> Iterator[int]:
    """:return: samples of each batch, without padding"""
    for batch in part.batches(batch_size=BATCH_SIZE):
        yield int(batch["data:size1"].sum())


def hours_per_second(samples: Iterator[int], clock: Callable[[], float]) -> float:
    """the time begins after the first item, when files are open and processes run"""
    next(samples)
    start = clock()
    total = sum(samples)
    return total / 16_000 / 3600 / (clock() - start)


# --- encoding


def encoding_measurements(paths: list[str]) -> dict[str, Callable[[], float]]:
    """:return: each gives words in a second"""
    import sentencepiece

    from returnn_common import data
    from returnn_common.data.oggzip import read_texts

    texts = [text for path in paths for text in read_texts(path).values()] * ENCODE_TIMES
    words = sum(len(text.split()) for text in texts)
    vocab = data.bpe()
    model = sentencepiece.SentencePieceProcessor(model_file=vocab.path)

    def rate(encode: Callable[[str], list[int]]) -> float:
        start = time.process_time()
        for text in texts:
            encode(text)
        return words / (time.process_time() - start)

    return {"sentencepiece": lambda: rate(model.encode), "encode": lambda: rate(vocab.encode)}


def print_table(figures: dict[str, Any]) -> None:
    print("hours of audio, words per second         ours      peer     ratio      bar")
    for name, bar in BARS.items():
        ours, peer = figures["best"][name], figures["best"][PEERS[name]]
        ratio = figures["ratios"][name]
        verdict = "reached" if ratio >= bar else "MISSED"
        label = f"{name}, beside {PEERS[name]}"
        print(f"{label:37s}{ours:10.4g}{peer:10.4g}{ratio:10.2f}{bar:8.2f}  {verdict}")


if __name__ == "__main__":
    main()
