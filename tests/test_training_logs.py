"""Logs: what TensorBoard reads, the learning curve, and averages weighted by frames under accumulation."""

from __future__ import annotations

import io
import sys
import time

import numpy
import pytest

from returnn_common import nn, training
from returnn_common.training._learning_curve import learning_curve

BACKENDS = ["tensorflow-net-dict", "torch"]
TIME = nn.SpatialDim("time")
IN, OUT = nn.FeatureDim("in", 3), nn.FeatureDim("out", 2)
EXTERN_DATA = {"data": nn.Tensor("data", [nn.batch_dim, TIME, IN], "float32")}


def make_session(backend="torch", **options):
    model = nn.Linear(IN, OUT)
    return training.Session(model, extern_data=EXTERN_DATA, backend=backend, **options)


# --- averages


def two_losses(*, model, extern_data, **_):
    out = nn.square(model(extern_data["data"]))
    nn.reduce_sum(out, axis=OUT).mark_as_loss("per_frame")
    nn.reduce_sum(out, axis=[TIME, OUT]).mark_as_loss("per_sequence", use_normalized_loss=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_averages_under_accumulation_are_over_all_frames(backend, tmp_path):
    """batches of 2 and 1 sequences, 4 + 1 and 3 frames, together and in turn; with numpy"""
    session = make_session(backend, optimizer={"class": "sgd"}, learning_rate=0.0)
    rng = numpy.random.RandomState(1)
    data = rng.normal(size=(3, 4, 3)).astype("float32")
    lengths = numpy.array([4, 1, 3], dtype="int32")
    batches = [
        {"data": data[rows], "data:size1": lengths[rows]} for rows in (slice(0, 2), slice(2, 3))
    ]
    values = session.parameters
    squares = ((data @ values["weight"] + values["bias"]) ** 2).sum(-1)
    total = (squares * (numpy.arange(4) < lengths[:, None])).sum()
    train = session.step(two_losses)
    log = training.Log(session, tmp_path)
    log.step(train(*batches))
    for batch in batches:
        log.step(train(batch))
    line = log.epoch(both=train(*batches), turns=training.averages(map(train, batches)))
    for part in ("train", "both", "turns"):
        numpy.testing.assert_allclose(line[part]["per_frame"], total / 8, rtol=1e-5)
        numpy.testing.assert_allclose(line[part]["per_sequence"], total / 3, rtol=1e-5)


# --- lines


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_line_on_a_terminal_is_written_over(monkeypatch, tmp_path):
    now, terminal = [10.0], Terminal()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", terminal)
    log = training.Log(make_session(), tmp_path)
    for seconds, loss in ((1.0, 4.0), (0.1, 1.0), (1.0, 1.0)):  # too soon for the second one
        now[0] += seconds
        log.step({"ce": training.Average(loss, 1)})
    log.epoch()
    shown = ["epoch 0, step 0: ce 4", "epoch 0, step 0: ce 2", "epoch 0, step 0: train: ce 2\n"]
    assert terminal.getvalue().replace("\033[K", "").split("\r") == ["", *shown]
    assert terminal.getvalue().count("\033[K") == 3  # nothing of a longer line before is left


# --- TensorBoard


def events(folder):
    import tensorflow as tf

    (file,) = folder.iterdir()
    return list(tf.compat.v1.train.summary_iterator(str(file)))


def scalars(folder):
    """``[(tag, step, value)]``"""
    return [
        (value.tag, event.step, round(value.simple_value, 4))
        for event in events(folder)
        for value in event.summary.value
    ]


def test_tensorboard(tmp_path):
    session = make_session(learning_rate=0.25)
    log = training.Log(session, tmp_path)
    board = training.TensorBoard(session, tmp_path / "board")
    board.write({"train": {"ce": training.Average(6.0, 2)}})
    session.apply({"weight": numpy.ones((3, 2))})
    log.step({"ce": training.Average(4.0, 2)})
    line = log.epoch(dev={"ce": 1.5, "errors": numpy.float32(0.5)})
    board.write(line)
    with pytest.raises(
        TypeError, match="TensorBoard.write: 'probs' of 'dev' is a ndarray, expected"
    ):
        board.write({"train": {"ce": 1.0}, "dev": {"probs": numpy.ones(3)}})
    board.close()
    assert scalars(tmp_path / "board/dev") == [("ce", 1, 1.5), ("errors", 1, 0.5)]
    first, *numbers, last = scalars(tmp_path / "board/train")
    assert first == ("ce", 0, 3.0) and last == ("ce", 1, 2.0)
    assert [tag for tag, *_ in numbers] == ["epoch", "learning_rate", "seconds"]
    assert numbers[1] == ("learning_rate", 1, 0.25)


def test_tensorboard_of_a_continued_run(tmp_path):
    """what the first run wrote behind its checkpoint is to be forgotten"""
    session = make_session()
    for _ in range(3):
        session.apply({"weight": numpy.ones((3, 2))})
    session.save(tmp_path / "checkpoints")
    session = make_session()
    board = training.TensorBoard(session, tmp_path / "board")
    session.resume(tmp_path / "checkpoints")
    session.apply({"weight": numpy.ones((3, 2))})
    session.apply({"weight": numpy.ones((3, 2))})
    board.write({"dev": {"ce": 1.5}})
    board.close()
    found = events(tmp_path / "board/dev")
    starts = [event for event in found if event.session_log.status == event.session_log.START]
    assert [event.step for event in starts] == [4]
    assert scalars(tmp_path / "board/dev") == [("ce", 5, 1.5)]


def test_what_is_not_installed_is_told(monkeypatch):
    for name in ("tensorboardX", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ImportError, match="TensorBoard needs tensorboardX: pip install tensorboardX"
    ):
        training.TensorBoard(make_session())
    with pytest.raises(
        ImportError, match="a learning curve needs matplotlib: pip install matplotlib"
    ):
        learning_curve([{"epoch": 1, "learning_rate": 0.1}])


# --- learning curve


def test_learning_curve():
    """a panel a loss, the same colour for all parts of it, and one for the learning rate"""
    lines = [
        {
            "epoch": epoch,
            "learning_rate": 0.1 / epoch,
            "seconds": 1.0,
            "train": {"ce": 1.0 / epoch, "ctc": 90.0 / epoch},
            "dev": {"ce": abs(epoch - 2.5) if epoch > 1 else float("nan")},
        }
        for epoch in (1, 2, 3, 4)
    ]
    ce, ctc, rate = learning_curve(lines).axes
    assert [panel.get_ylabel() for panel in (ce, ctc, rate)] == ["ce", "ctc", "learning rate"]
    texts = [text.get_text() for text in ce.get_legend().get_texts()]
    assert texts == ["train", "dev, lowest 0.5 in epoch 2"]
    curves = {line.get_label().partition(",")[0]: line for line in ce.lines}
    numpy.testing.assert_allclose(curves["train"].get_xydata(), [[e, 1 / e] for e in (1, 2, 3, 4)])
    assert curves["train"].get_color() == curves["dev"].get_color()
    assert curves["train"].get_linestyle() != curves["dev"].get_linestyle()
    (curve,) = ctc.lines
    numpy.testing.assert_allclose(curve.get_ydata(), [90, 45, 30, 22.5])
    assert curve.get_color() != curves["train"].get_color()
    assert curve.get_linestyle() == curves["train"].get_linestyle()
    (curve,) = rate.lines
    numpy.testing.assert_allclose(curve.get_ydata(), [0.1, 0.05, 0.1 / 3, 0.025])
    assert rate.get_xlim() == (0.5, 4.5)
    with pytest.raises(ValueError, match="the log has none yet: call log.epoch()"):
        learning_curve([])
