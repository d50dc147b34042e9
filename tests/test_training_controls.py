"""Every so many steps or seconds, newbob, early stopping: against calculation by hand, RETURNN, and over a break."""

from __future__ import annotations

import time

import numpy
import pytest

from returnn_common import nn, training

IN, OUT = nn.FeatureDim("in", 3), nn.FeatureDim("out", 2)
EXTERN_DATA = {"data": nn.Tensor("data", [nn.batch_dim, nn.SpatialDim("time"), IN], "float32")}
GRADIENTS = {"weight": numpy.ones((3, 2))}


def make_session(learning_rate=0.8):
    model = nn.Linear(IN, OUT)
    return training.Session(
        model, extern_data=EXTERN_DATA, backend="torch", learning_rate=learning_rate
    )


def go_on(session, folder):
    """saved, and continued in another session"""
    session.save(folder)
    following = make_session()
    assert following.resume(folder)
    return following


# --- every so many


def test_every_steps():
    session = make_session()
    is_due = training.every_steps(session, 3)
    assert not is_due()
    due = []
    for step in range(1, 10):
        session.apply(GRADIENTS)
        if is_due():
            due.append(step)
    assert due == [3, 6, 9]
    assert not is_due()  # once each


def test_every_steps_where_several_updates_come_together():
    session = make_session()
    is_due, due = training.every_steps(session, 5), []
    for _ in range(6):
        session.apply(GRADIENTS)
        session.apply(GRADIENTS)
        if is_due():
            due.append(session.global_train_step)
    assert due == [6, 10]  # 5 was passed, 10 hit, 12 is before 15


@pytest.mark.parametrize("break_at", range(2, 13, 2))
def test_every_steps_goes_on_over_a_break(break_at, tmp_path):
    session = make_session()
    is_due, due = training.every_steps(session, 5), []
    while session.global_train_step < 12:
        session.apply(GRADIENTS)
        session.apply(GRADIENTS)
        if is_due():
            due.append(session.global_train_step)
        if session.global_train_step == break_at:
            session.save(tmp_path)
            session = make_session()
            is_due = training.every_steps(session, 5)  # before or after it resumes
            assert session.resume(tmp_path)
    assert due == [6, 10]


def test_every_seconds(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    is_due, due = training.every_seconds(10), []
    for second in (105, 110, 111, 119.9, 125, 134, 135):
        now[0] = second
        if is_due():
            due.append(second)
    assert due == [110, 125, 135]


# --- learning rate


def test_newbob_by_hand(tmp_path):
    session = make_session(0.8)
    newbob = training.Newbob(session, min_learning_rate=0.15)
    # (new - old) / new: -0.25, -0.005, 0.01; after the break -0.0101, 0.0
    rates = []
    for score in (5.0, 4.0, 3.98, 4.02):
        rates.append(newbob(score))
    session = go_on(session, tmp_path)
    newbob = training.Newbob(session, min_learning_rate=0.15)
    for score in (4.02 / 1.0101, 4.02 / 1.0101):
        rates.append(newbob(score))
    assert rates == [0.8, 0.8, 0.4, 0.2, 0.2, 0.15]
    assert session.learning_rate == 0.15


def test_newbob_is_that_of_returnn():
    from returnn.config import Config
    from returnn.learning_rate_control import load_learning_rate_control_from_config

    options = {
        "learning_rate": 0.8,
        "newbob_learning_rate_decay": 0.7,
        "newbob_relative_error_threshold": -0.02,
        "min_learning_rate": 0.05,
    }
    control = load_learning_rate_control_from_config(
        Config({"learning_rate_control": "newbob_rel", **options})
    )
    session = make_session(control.get_learning_rate_for_epoch(1))
    newbob = training.Newbob(
        session,
        learning_rate_decay=0.7,
        relative_error_threshold=-0.02,
        min_learning_rate=0.05,
    )
    scores = 3.0 + numpy.cumsum(numpy.random.RandomState(1).uniform(-0.1, 0.06, size=20))
    rates = set()
    for epoch, score in enumerate(scores, 1):
        control.set_epoch_error(epoch, {"dev_score": float(score)})
        rates.add(newbob(score))
        assert session.learning_rate == control.get_learning_rate_for_epoch(epoch + 1)
    assert len(rates) > 4 and min(rates) == 0.05


# --- early stopping


def test_early_stopping_by_hand(tmp_path):
    session = make_session()
    stopping = training.EarlyStopping(session, patience=2, min_delta=0.1)
    # best: 5; 4; 3.95 is not lower by 0.1; 3.85 is; 3.9, 3.85 are not: two in a row
    assert [stopping(score) for score in (5.0, 4.0, 3.95, 3.85, 3.9)] == [False] * 5
    other = training.EarlyStopping(session, patience=1, name="errors")
    assert not other(1.0)
    session = go_on(session, tmp_path / "first")
    stopping = training.EarlyStopping(session, patience=2, min_delta=0.1)
    assert not stopping.done
    assert stopping(3.85) and stopping.done
    assert training.EarlyStopping(session, patience=1, name="errors")(1.0)
    session = go_on(session, tmp_path / "second")  # stopped, and started again
    assert training.EarlyStopping(session, patience=2).done


def test_errors():
    session = make_session()
    with pytest.raises(ValueError, match="every_steps: the number of steps is 0, expected at leas"):
        training.every_steps(session, 0)
    with pytest.raises(ValueError, match="every_seconds: -1 seconds, expected more than 0"):
        training.every_seconds(-1)
    with pytest.raises(ValueError, match="EarlyStopping: patience is 0, expected at least 1"):
        training.EarlyStopping(session, patience=0)
    for control in (training.Newbob(session), training.EarlyStopping(session)):
        name = type(control).__name__
        with pytest.raises(ValueError, match=f"{name}: the score is nan, expected a finite number"):
            control(training.Average(float("nan"), 3))
    assert session.state == {}
    with pytest.raises(ValueError, match="Newbob: the session's learning rate is a function"):
        training.Newbob(make_session(lambda epoch, step: 0.1))
