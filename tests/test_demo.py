"""The parts of the demo, and the demo itself on a little synthetic speech."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest

from returnn_common import demo
from returnn_common.data.digits import LABELS
from returnn_common.demo import checkpoints, configs, plots, process, progress, recognition
from returnn_common.files import unfinished, whole_file

BLANK = len(LABELS)
ROOT = Path(__file__).parent.parent


def _log_probs(num_frames: int, seed: int = 1) -> numpy.ndarray:
    scores = numpy.random.default_rng(seed).normal(size=(num_frames, BLANK + 1))
    return scores - numpy.log(numpy.exp(scores).sum(axis=-1, keepdims=True))


def _one_hot(text: str) -> numpy.ndarray:
    """Log-probabilities with their maximum at these labels, "_" for blank."""
    labels = [BLANK if character == "_" else LABELS.index(character) for character in text]
    return numpy.log(0.9 * numpy.eye(BLANK + 1)[labels] + 1e-3)


def _collapse(path) -> str:
    return "".join(LABELS[k] for k, _ in itertools.groupby(path) if k != BLANK)


@pytest.mark.parametrize(
    "frames, text",
    [("tt_w_oo_", "two"), ("s_ee_", "se"), ("_s_e_e", "see"), ("_ _on ne _", "on ne"), ("___", "")],
)
def test_greedy(frames, text):
    assert recognition.decode_greedy(_one_hot(frames)) == text


def test_errors_are_counted_by_word():
    counts = recognition.count_errors(
        ["one two three", "four five", "six"], ["one too three", "five", "six six"]
    )
    assert counts == {
        "wer": pytest.approx(50.0),
        "substitutions": 1,
        "deletions": 1,
        "insertions": 1,
        "num_words": 6,
        "num_strings": 3,
        "string_error_rate": 100.0,
    }


@pytest.mark.parametrize("text, num_frames", [("n", 1), ("no", 4), ("ee", 4), ("tee", 5), ("", 3)])
def test_alignment_is_the_best_of_all_paths(text, num_frames):
    log_probs = _log_probs(num_frames)
    alphabet = sorted({LABELS.index(character) for character in text} | {BLANK})
    paths = [p for p in itertools.product(alphabet, repeat=num_frames) if _collapse(p) == text]
    best = max(paths, key=lambda path: sum(log_probs[t, k] for t, k in enumerate(path)))
    numpy.testing.assert_array_equal(recognition.align(log_probs, text), best)


def test_alignment_needs_enough_frames():
    assert _collapse(recognition.align(_log_probs(5), "thee")) == "thee"
    with pytest.raises(ValueError, match="4 frames are too few for 'thee'"):
        recognition.align(_log_probs(4), "thee")


def test_log_lines_of_both_engines():
    tensorflow = (
        "train epoch 2, step 37, cost:ctc 2.5, loss 220.38818, 0.409 sec/step, elapsed 0:00:11,"
        " exp. remaining 0:00:12, complete 47.50%"
    )
    torch = (
        "ep 2 train, step 37, ctc 2.500, num_seqs 7, max_size:time 25781, 1.740 sec/step, elapsed"
        " 0:00:49, exp. remaining 0:00:57, complete 47.50%"
    )
    assert process.parse_step(tensorflow) == process.parse_step(torch) == (2, 37, 2.5, 0.475)
    assert process.parse_step("ep 2 dev eval, step 14, ctc 2.323, complete 50.00%") is None


@pytest.mark.parametrize("dev", ["dev: score 1.25 error None", "Epoch 1 evaluation: dev: 1.250"])
def test_progress_says_the_losses_of_an_epoch(dev):
    rich_console = pytest.importorskip("rich.console")
    console = rich_console.Console(record=True, width=120, file=io.StringIO())
    with progress.training_progress(console, 7) as on_line:
        for step, loss in enumerate([2.0, 4.0]):
            on_line(f"train epoch 1, step {step}, cost:ctc {loss}, loss 1, complete 50.00%\n")
        on_line(dev + "\n")
    assert "epoch  1/7  loss per character: train 3.000, dev 1.250" in console.export_text()


def test_a_failing_returnn_says_why_and_where(tmp_path):
    config = tmp_path / "broken.config"
    config.write_text("#!returnn.py\nraise ValueError('this config is broken')\n")
    lines = []
    with pytest.raises(
        ChildProcessError, match=r"exit code 1\) with .*broken.config.*\n.* is in .*a.log"
    ) as error:
        process.run_returnn(config, log=tmp_path / "a.log", on_line=lines.append)
    assert "this config is broken" in "".join(lines)
    assert "\x1b" not in str(error.value)
    assert (tmp_path / "a.log").read_text() == "".join(lines)


def test_learning_rates_rise_and_fall():
    recipe = configs.Recipe({}, num_epochs=8, partition_epoch=1, learning_rate=0.6, warmup=0.25)
    assert recipe.learning_rates() == [
        0.3,
        0.6,
        0.5142857,
        0.4285714,
        0.3428571,
        0.2571429,
        0.1714286,
        0.0857143,
    ]


def test_figures(tmp_path):
    pytest.importorskip("matplotlib")
    plots.plot_learning_curve(
        tmp_path / "a.png", {"train": {1: 3.0, 2: 1.0}, "dev": {1: 2.0, 2: 1.5}}
    )
    log_probs = _log_probs(30)
    alignment = recognition.align(log_probs, "two one")
    plots.plot_posteriors(tmp_path / "b.png", log_probs, alignment, frame=0.03, title="two one")
    assert sorted(os.listdir(tmp_path)) == ["a.png", "b.png"]
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in ("a.png", "b.png"))


def test_unknown_backend(tmp_path):
    with pytest.raises(ValueError, match="there is no backend 'pytorch'; did you mean 'torch'"):
        demo.run(out=str(tmp_path), backend="pytorch")


def test_missing_packages_are_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(ImportError, match="pip install jiwer espeakng-loader"):
        demo.run(out=str(tmp_path / "demo"))
    assert not (tmp_path / "demo").exists()


def test_output_folder(tmp_path):
    pytest.importorskip("jiwer")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; continue .* with --resume, or .* --out"):
        demo.run(data=str(tmp_path), out=str(tmp_path))
    with pytest.raises(ValueError, match="holds no run of the demo"):
        demo.run(data=str(tmp_path), out=str(tmp_path), resume=True)
    with pytest.raises(ValueError, match="is a file; give another folder"):
        demo.run(data=str(tmp_path), out=str(tmp_path / "notes.txt"))
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_kill_before_the_settings_are_written_leaves_no_run(tmp_path):
    settings = {"seed": 1}
    with whole_file(tmp_path / demo.SETTINGS) as begun:
        begun.write_text("{")
        (left,) = unfinished(tmp_path, demo.SETTINGS)
        assert left == begun
        assert demo._prepare_folder(tmp_path, settings, resume=False) == tmp_path
        assert os.listdir(tmp_path) == [demo.SETTINGS]
        begun.write_text(json.dumps(settings))
    assert json.loads((tmp_path / demo.SETTINGS).read_text()) == settings


def test_resume_needs_the_same_settings(tmp_path):
    pytest.importorskip("jiwer")
    settings = {"data": None, "backend": "torch", "seed": 1, "hold_out": None}
    (tmp_path / demo.SETTINGS).write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="was begun with seed=1, and now it is 2"):
        demo.run(out=str(tmp_path), backend="torch", seed=2, resume=True)


def test_holding_out_needs_recordings(tmp_path):
    with pytest.raises(ValueError, match="hold_out='theo' needs recordings"):
        demo.run(out=str(tmp_path / "demo"), hold_out="theo")


def _tensorflow_checkpoints(folder: Path, epochs) -> None:
    tf = pytest.importorskip("tensorflow")
    folder.mkdir(exist_ok=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("a", initializer=numpy.arange(3000.0))
        session.run(variable.initializer)
        saver = tf.compat.v1.train.Saver(max_to_keep=None)
        for epoch in epochs:
            saver.save(session, str(folder / f"net.{epoch:03d}"))


def _torch_checkpoints(folder: Path, epochs) -> None:
    torch = pytest.importorskip("torch")
    folder.mkdir(exist_ok=True)
    for epoch in epochs:
        for end in ("pt", "opt.pt"):
            torch.save({"a": torch.arange(3000.0)}, folder / f"net.{epoch:03d}.{end}")


WRITERS = {"tensorflow": _tensorflow_checkpoints, "torch": _torch_checkpoints}
FILES = {"tensorflow": ["index", "data-00000-of-00001"], "torch": ["pt", "opt.pt"]}
KEPT = {
    "tensorflow": [None, 0.999],
    "torch": [None, 0, 0.5, 0.999],
}  # part of a file; None: no file
INTERRUPTIONS = [
    (engine, end, kept) for engine in FILES for end in FILES[engine] for kept in KEPT[engine]
]


@pytest.mark.parametrize("engine, end, kept", INTERRUPTIONS)
def test_an_interrupted_save_is_set_aside(tmp_path, engine, end, kept):
    folder = tmp_path / "checkpoints"
    WRITERS[engine](folder, [1, 2])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    victim = folder / f"net.002.{end}"
    content = victim.read_bytes()
    victim.unlink()
    if kept is not None:
        victim.write_bytes(content[: int(kept * len(content))])
    moved = checkpoints.set_aside_incomplete(folder)
    assert moved and all(path.parent.name == "incomplete" and path.exists() for path in moved)
    assert all(path.name.startswith("net.002.") for path in moved)
    assert checkpoints.epochs(folder) == [1]
    for name, content in before.items():
        if name.startswith("net.001."):
            assert (folder / name).read_bytes() == content


@pytest.mark.parametrize("engine", ["tensorflow", "torch"])
def test_complete_checkpoints_stay(tmp_path, engine):
    folder = tmp_path / "checkpoints"
    WRITERS[engine](folder, [1, 2])
    before = sorted(os.listdir(folder))
    assert checkpoints.set_aside_incomplete(folder) == []
    assert sorted(os.listdir(folder)) == before


def test_files_of_a_writer_at_work_are_set_aside(tmp_path):
    _torch_checkpoints(tmp_path, [1])
    (tmp_path / "net.002.pt.tmp_write").write_bytes(b"half a checkp")
    (tmp_path / "incomplete").mkdir()
    (tmp_path / "incomplete" / "net.002.pt.tmp_write").write_bytes(b"of an earlier time")
    (moved,) = checkpoints.set_aside_incomplete(tmp_path)
    assert moved == tmp_path / "incomplete" / "net.002.pt.tmp_write.1"
    assert moved.read_bytes() == b"half a checkp"
    assert checkpoints.set_aside_incomplete(tmp_path / "no folder yet") == []


_SMALL_DEMO = """
import sys

from returnn_common import demo
from returnn_common.demo import configs

if __name__ == "__main__":
    size = (40, 5, 5)
    configs.SYNTHETIC = configs.Recipe(size, num_epochs=3, partition_epoch=1)
    demo.run(out=sys.argv[1], backend=sys.argv[2], resume="--resume" in sys.argv)
"""


def _small_demo(folder: Path, *args: str) -> subprocess.Popen:
    script = folder / "small_demo.py"
    script.write_text(_SMALL_DEMO)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    with (folder / "terminal.txt").open("a") as terminal:
        command = [sys.executable, str(script), str(folder / "demo"), *args]
        return subprocess.Popen(command, env=env, stdout=terminal, stderr=terminal)


def _wait_for(condition, process: subprocess.Popen, what: str) -> None:
    while not condition():
        assert process.poll() is None, f"the demo ended before {what}"
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("backend", demo.BACKENDS)
def test_resume_after_kill_9(tmp_path, backend):
    """Kill -9 while the corpus is written, and inside the save of epoch 2; then everything goes on."""
    for package in ("espeakng_loader", "jiwer", "matplotlib", "rich", "soundfile"):
        pytest.importorskip(package)
    out = tmp_path / "demo"
    running = _small_demo(tmp_path, backend)
    _wait_for((out / "corpus" / "train.zip").exists, running, "the corpus was written")
    running.send_signal(signal.SIGKILL)
    running.wait()

    running = _small_demo(tmp_path, backend, "--resume")
    _wait_for(lambda: list((out / "checkpoints").glob("net.002.*")), running, "epoch 2 was saved")
    running.send_signal(signal.SIGKILL)
    running.wait()
    first = {path.name: path.read_bytes() for path in (out / "checkpoints").glob("net.001.*")}
    log_size = (out / "train.log").stat().st_size

    running = _small_demo(tmp_path, backend, "--resume")
    assert running.wait() == 0, (tmp_path / "terminal.txt").read_text()
    assert checkpoints.epochs(out / "checkpoints") == [1, 2, 3]
    kept = [name for name in first if not name.endswith(".opt.pt")]  # RETURNN keeps two of these
    assert kept and all((out / "checkpoints" / name).read_bytes() == first[name] for name in kept)
    steps = map(process.parse_step, (out / "train.log").read_text()[log_size:].splitlines())
    assert min(step.epoch for step in steps if step) >= 2
    assert json.loads((out / "result.json").read_text())["num_words"] > 10


@pytest.mark.slow
@pytest.mark.ci
def test_synthetic_speech_from_nothing(tmp_path):
    """The main job, as a newcomer runs it."""
    for package in ("espeakng_loader", "jiwer", "matplotlib", "rich", "soundfile"):
        pytest.importorskip(package)
    result = demo.run(out=str(tmp_path / "demo"))
    assert result["wer"] <= 10.0
    assert result == json.loads((tmp_path / "demo" / "result.json").read_text())
    files = {path.name for path in (tmp_path / "demo").iterdir()}
    assert files >= {
        "train.config",
        "recognition.config",
        "train.log",
        "learning_curve.png",
        "alignment.png",
        "recognised.tsv",
        "checkpoints",
    }


@pytest.mark.slow
@pytest.mark.parametrize("backend", demo.BACKENDS)
def test_real_recordings(tmp_path, backend):
    data = os.environ.get("FSDD")
    if not data:
        pytest.skip("set FSDD to the folder of the Free Spoken Digit Dataset")
    result = demo.run(data=data, out=str(tmp_path / "demo"), backend=backend)
    assert result["num_strings"] == 200 and result["num_words"] > 900
    assert result["wer"] <= 4.0
    if backend == "tensorflow-net-dict":
        assert result["seconds"]["total"] <= 360
