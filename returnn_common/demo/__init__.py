"""
The demo: train a small conformer-CTC on spoken digit strings, recognise a held-out set, show what came out.

``returnn-common demo`` is `run` with its defaults. The steps are those of any experiment with RETURNN: a corpus on
disk, a config from a model and a step, training, recognition, errors.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import __version__
from ..files import unfinished, write_text
from ..hints import valid_names

BACKENDS = ("tensorflow-net-dict", "torch")
SETTINGS = "settings.json"
FRAME = 0.01  # seconds of a frame of log-mel


def run(
    *,
    data: str | None = None,
    out: str = "demo",
    backend: str = "tensorflow-net-dict",
    resume: bool = False,
    seed: int = 1,
    hold_out: str | None = None,
) -> dict[str, Any]:
    """
    Train, recognise and report; progress goes to the terminal, everything else to the folder.

    :param data: folder of recordings named ``DIGIT_SPEAKER_INDEX.wav`` as in the Free Spoken Digit Dataset;
        None for speech that eSpeak NG synthesises
    :param out: folder for all results; it must be new or empty, unless ``resume``
    :param backend: of RETURNN, "tensorflow-net-dict" or "torch"
    :param resume: continue an interrupted run in ``out``; at most one epoch is repeated
    :param seed: of the corpus and of the training
    :param hold_out: a speaker of the recordings who is only in the test part, with all his recordings
    :return: what is in ``result.json``: ``wer`` in percent, the counts behind it, seconds, versions and settings
    :raises ValueError: for another backend, an unfit ``data`` or ``out``, or other settings than those to resume
    :raises ImportError: where a package of the extra "demo" is missing, with the command that installs it
    :raises ChildProcessError: if RETURNN fails
    """
    _check_backend(backend)
    _check_installed(backend, synthetic=data is None)
    settings = {
        "data": data and os.path.abspath(data),
        "backend": backend,
        "seed": seed,
        "hold_out": hold_out,
    }
    folder = _prepare_folder(Path(out), settings, resume=resume)
    return _Run(folder, settings).all()


class _Run:
    """One run in its folder."""

    def __init__(self, folder: Path, settings: dict[str, Any]):
        from rich.console import Console

        from . import configs

        self.folder, self.settings = folder, settings
        self.recipe = configs.REAL if settings["data"] else configs.SYNTHETIC
        self.console = Console(highlight=False)
        self.seconds: dict[str, float] = {}

    def all(self) -> dict[str, Any]:
        """:return: the result"""
        with self.phase("total"):
            with self.phase("corpus"):
                self.write_corpus()
            with self.phase("training"):
                self.train()
            with self.phase("recognition"):
                posteriors = self.recognise()
            lines = self.transcribe(posteriors)
            self.plot(posteriors, lines)
        return self.report(lines)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Take the time."""
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)

    def write_corpus(self) -> None:
        from ..data.spoken_digits import DigitStrings, prepare_digits

        source = self.settings["data"] or "speech synthesised by eSpeak NG"
        self.console.print(f"Splicing digit strings from {source} ...")
        strings = DigitStrings(
            num_strings=self.recipe.num_strings,
            hold_out=self.settings["hold_out"],
            seed=self.settings["seed"],
        )
        prepare_digits(self.settings["data"], self.folder / "corpus", strings=strings)

    def train(self) -> None:
        from . import checkpoints, configs, process, progress

        self.console.print(
            f"Writing the config for RETURNN's backend {self.settings['backend']} ..."
        )
        text = configs.train_config(
            self.settings["backend"], self.recipe, seed=self.settings["seed"]
        )
        write_text(self.folder / "train.config", text)
        for path in checkpoints.set_aside_incomplete(self.folder / "checkpoints"):
            self.console.print(f"set aside {path}, which an interruption left incomplete")
        with progress.training_progress(self.console, self.recipe.num_epochs) as on_line:
            process.run_returnn(
                self.folder / "train.config", log=self.folder / "train.log", on_line=on_line
            )

    def recognise(self) -> dict[str, Any]:
        """:return: posteriors by sequence tag"""
        from . import configs, process, recognition

        text = configs.recognition_config(self.settings["backend"], self.recipe)
        write_text(self.folder / "recognition.config", text)
        (self.folder / configs.POSTERIORS).unlink(missing_ok=True)
        with self.console.status("Recognising the test part ..."):
            process.run_returnn(
                self.folder / "recognition.config",
                log=self.folder / "recognition.log",
                on_line=lambda line: None,
            )
        return recognition.read_posteriors(self.folder / configs.POSTERIORS)

    def transcribe(self, posteriors: dict[str, Any]) -> list[dict[str, str]]:
        """:return: name, truth and recognised text of each string of the test part; also in a file"""
        from ..data.oggzip import read_texts
        from . import configs, recognition

        lines = [
            {"name": name, "truth": text, "recognised": recognition.decode_greedy(posteriors[name])}
            for name, text in read_texts(self.folder / "corpus" / "test.zip").items()
        ]
        text = "".join("\t".join(line.values()) + "\n" for line in lines)
        write_text(self.folder / "recognised.tsv", "name\ttruth\trecognised\n" + text)
        return lines

    def plot(self, posteriors: dict[str, Any], lines: list[dict[str, str]]) -> None:
        from . import plots, recognition
        from .model import SUBSAMPLING

        plots.plot_learning_curve(
            self.folder / "learning_curve.png",
            recognition.read_losses(self.folder / "learning_rates"),
        )
        line = lines[0]
        log_probs = posteriors[line["name"]]
        plots.plot_posteriors(
            self.folder / "alignment.png",
            log_probs,
            recognition.align(log_probs, line["truth"]),
            frame=FRAME * SUBSAMPLING,
            title=f"{line['name']}: {line['truth']}",
        )

    def report(self, lines: list[dict[str, str]]) -> dict[str, Any]:
        """Print and write the result."""
        from . import configs, recognition

        truth, recognised = ([line[key] for line in lines] for key in ("truth", "recognised"))
        result = {
            **recognition.count_errors(truth, recognised),
            **self.settings,
            "num_parameters": configs.num_parameters(),
            "num_epochs": self.recipe.num_epochs,
            "seconds": self.seconds,
            "cpus": os.cpu_count(),
            "load_average": os.getloadavg()[0],
            "versions": _versions(),
        }
        write_text(self.folder / "result.json", json.dumps(result, indent=2) + "\n")
        self.show(result, lines)
        return result

    def show(self, result: dict[str, Any], lines: list[dict[str, str]]) -> None:
        from rich.table import Table

        table = Table("name", "truth", "recognised", title="Some strings of the test part")
        for line in lines[:: -(-len(lines) // 10)]:  # sorted by name, so all speakers occur
            style = None if line["truth"] == line["recognised"] else "red"
            table.add_row(*line.values(), style=style)
        self.console.print(table)
        self.console.print(
            f"WER {result['wer']:.2f} % ({result['substitutions']} substitutions, {result['deletions']} deletions,"
            f" {result['insertions']} insertions in {result['num_words']} words, {result['num_strings']} strings),"
            f" {self.seconds['total']:.0f} s in all, of which {self.seconds['training']:.0f} s training"
        )
        self.console.print(_WHAT_NEXT.format(folder=self.folder), soft_wrap=True)


_WHAT_NEXT = """\
Written to {folder}/:
  train.config, recognition.config   what RETURNN ran
  train.log, checkpoints/            all that it said, and a checkpoint of every epoch
  learning_curve.png, alignment.png  the losses; CTC posteriors of one string with their alignment
  recognised.tsv, result.json        every string; every figure, versions, seed and time
Next: open train.config, change the network, and run it in that folder:
  cd {folder} && python -m returnn train.config"""


def _check_backend(backend: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"there is no backend {backend!r}{valid_names(backend, BACKENDS)}")


def _check_installed(backend: str, *, synthetic: bool) -> None:
    """Before any work, so that nothing fails after minutes."""
    packages = {
        "jiwer": "jiwer",
        "matplotlib": "matplotlib",
        "rich": "rich",
        "soundfile": "soundfile",
    }
    packages |= {"espeakng_loader": "espeakng-loader"} if synthetic else {}
    packages |= {"torch": "torch"} if backend == "torch" else {}
    missing = [
        package for module, package in packages.items() if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise ImportError(f"the demo needs {', '.join(missing)}: pip install {' '.join(missing)}")


def _prepare_folder(folder: Path, settings: dict[str, Any], *, resume: bool) -> Path:
    """Make the folder, or check that what is in it may be continued."""
    begun = folder / SETTINGS
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is a file; give another folder with --out")
    left = unfinished(folder, SETTINGS)
    is_empty = not folder.exists() or set(folder.iterdir()) <= set(left)
    if not is_empty and not resume:
        raise ValueError(
            f"the folder {str(folder)!r} is not empty; continue the run in it with --resume,"
            f" or give another folder with --out"
        )
    if not is_empty and not begun.exists():
        raise ValueError(f"the folder {str(folder)!r} holds no run of the demo, nothing to resume")
    if not is_empty:
        _check_same(json.loads(begun.read_text(encoding="utf-8")), settings, folder=folder)
        return folder
    for path in left:
        path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    write_text(begun, json.dumps(settings, indent=2) + "\n")
    return folder


def _check_same(begun: dict[str, Any], settings: dict[str, Any], *, folder: Path) -> None:
    for name, value in settings.items():
        if begun.get(name) != value:
            raise ValueError(
                f"the run in {str(folder)!r} was begun with {name}={begun.get(name)!r}, and now it is {value!r};"
                f" resume with the same, or give another folder with --out"
            )


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {
        "returnn_common": __version__,
        "python": platform.python_version(),
    }
    for package in ("returnn", "tensorflow", "torch", "numpy", "soundfile", "jiwer"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions
