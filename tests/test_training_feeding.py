"""Batches from iterables of all kinds, prefetching, logs."""

from __future__ import annotations

import json
import threading
import time

import numpy
import pytest

from returnn_common import nn, training

TIME = nn.SpatialDim("time")
FEATURES = nn.FeatureDim("features", 3)
CLASSES = nn.FeatureDim("classes", 5)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "classes": nn.Tensor("classes", [nn.batch_dim, TIME], "int32", sparse_dim=CLASSES),
}
DATA = numpy.arange(24, dtype="float32").reshape(2, 4, 3)
LABELS = numpy.arange(8, dtype="int32").reshape(2, 4) % 5


def only(source):
    (batch,) = training.batches_from(source, EXTERN_DATA)
    return batch


def assert_batch(batch, lengths):
    assert sorted(batch) == ["classes", "classes:size1", "data", "data:size1"]
    for i, length in enumerate(lengths):
        numpy.testing.assert_array_equal(batch["data"][i, :length], DATA[i, :length])
        numpy.testing.assert_array_equal(batch["classes"][i, :length], LABELS[i, :length])
    for name in ("data", "classes"):
        assert batch[f"{name}:size1"].tolist() == lengths
        assert not batch[name][1, lengths[1] :].any()


def test_tuples_and_dicts_of_full_arrays():
    assert_batch(only([(DATA, LABELS)]), [4, 4])
    assert_batch(only([{"classes": LABELS, "data": DATA}]), [4, 4])


def test_given_lengths_hold_for_all_arrays_with_the_dim():
    data = DATA * (numpy.arange(4) < 3)[:, None]
    data[0, 3] = DATA[0, 3]
    labels = LABELS * (numpy.arange(4) < [[4], [3]])
    item = {"data": data, "data:size1": [4, 3], "classes": labels}
    assert_batch(only([item]), [4, 3])


def test_lists_of_sequences_are_padded():
    assert_batch(only([([DATA[0], DATA[1, :2]], [LABELS[0], LABELS[1, :2]])]), [4, 2])


def test_torch_loader():
    import torch

    dataset = torch.utils.data.TensorDataset(torch.tensor(DATA), torch.tensor(LABELS))
    batches = training.batches_from(torch.utils.data.DataLoader(dataset, batch_size=2), EXTERN_DATA)
    for _ in range(2):  # it can be iterated again
        (batch,) = batches
        assert_batch(batch, [4, 4])


def test_tensorflow_dataset():
    import returnn.tf.compat  # switches eager mode off, as a session on layers does  # noqa: F401
    import tensorflow as tf

    with tf.Graph().as_default():
        dataset = tf.data.Dataset.from_tensor_slices({"data": DATA, "classes": LABELS})
        batches = training.batches_from(dataset.repeat(2).batch(2), EXTERN_DATA)
        found = list(batches)
    assert len(found) == 2
    for batch in found:
        assert_batch(batch, [4, 4])


def test_endless_generator():
    def endless():
        while True:
            yield DATA, LABELS

    batches = iter(training.batches_from(endless(), EXTERN_DATA))
    for _ in range(3):
        assert_batch(next(batches), [4, 4])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([(DATA,)], "an item is a tuple of 1, expected a dict, or a tuple of data, classes"),
        ([DATA], "an item is a ndarray, expected a dict"),
        ([{"dat": DATA}], "an item has 'dat'; did you mean 'data'"),
    ],
)
def test_error_of_an_item(source, message):
    with pytest.raises(ValueError, match=message):
        only(source)


def test_no_config_form():
    with pytest.raises(ValueError, match="batches_from has no config form"):
        _ = training.batches_from([], EXTERN_DATA).opts
    with pytest.raises(TypeError, match="int cannot be iterated"):
        training.batches_from(3, EXTERN_DATA)


# --- prefetching


def test_prefetch_gives_the_same_in_the_same_order():
    assert list(training.prefetch(range(100), 3)) == list(range(100))


def test_prefetch_draws_ahead_while_the_loop_computes():
    drawn = []

    def source():
        for number in range(5):
            drawn.append(number)
            yield number

    items = training.prefetch(source(), 2)
    assert next(items) == 0
    deadline = time.monotonic() + 5
    while len(drawn) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert drawn == [0, 1, 2, 3]  # one is used, two are ahead, one waits for a place


def test_prefetch_raises_errors_in_their_place():
    def source():
        yield 1
        raise KeyError("broken")

    items = training.prefetch(source())
    assert next(items) == 1
    with pytest.raises(KeyError, match="broken"):
        next(items)
    with pytest.raises(ValueError, match="size is 0"):
        training.prefetch([], 0)


def test_prefetch_ends_its_thread():
    before = threading.active_count()
    items = training.prefetch(range(10**9), 2)
    next(items)
    assert threading.active_count() == before + 1
    items.close()
    assert threading.active_count() == before


# --- logs


def average(value, frames):
    return training.Average(value * frames, frames)


def test_averages_are_weighted_by_frames():
    result = training.averages([{"ce": average(1.0, 3)}, {"ce": average(2.0, 1)}])
    assert result["ce"] == 1.25 and result["ce"].frames == 4
    with pytest.raises(TypeError, match="'probs' is a ndarray"):
        training.averages([{"probs": DATA}])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.output = nn.Linear(FEATURES, CLASSES)


def test_log(tmp_path, capsys):
    session = training.Session(Model(), extern_data=EXTERN_DATA, backend="torch")
    log = training.Log(session, tmp_path)
    for epoch in session.epochs(2):
        log.step({"ce": average(4.0 / epoch, 1)})
        if epoch == 2:  # killed inside of an epoch, and continued
            session.save(tmp_path / "checkpoints", epoch_is_done=False)
            session = training.Session(Model(), extern_data=EXTERN_DATA, backend="torch")
            session.resume(tmp_path / "checkpoints")
            log = training.Log(session, tmp_path)
        log.step({"ce": average(1.0 / epoch, 2)})
        line = log.epoch(dev={"ce": 0.5})
    lines = [json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == log.lines() and lines[-1] == line
    assert [one["train"]["ce"] for one in lines] == [2.0, 1.0]
    assert lines[0]["dev"] == {"ce": 0.5} and lines[0]["learning_rate"] == 1e-3
    assert "epoch 2, step 0: train: ce 1; dev: ce 0.5\n" in capsys.readouterr().err
    log.epoch(dev={"ce": 0.25})  # again, after a kill: replaces the line
    assert [one["dev"]["ce"] for one in log.lines()] == [0.5, 0.25]
    image = log.plot().read_bytes()
    assert image.startswith(b"\x89PNG") and log.plot().read_bytes() == image
