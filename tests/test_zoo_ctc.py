"""
The CTC model: its loss against torch, greedy decoding against itertools, padding, and bad input.
"""

from __future__ import annotations

import itertools

import numpy
import pytest
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from returnn_common import nn, testing
from returnn_common.zoo.encoder.conformer import make_conformer
from returnn_common.zoo.segmental.ctc import Ctc, make_ctc

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def torch_backend():
    with testing.torch_backend():
        rf.set_random_seed(1)
        rf.init_train_step_run_ctx(train_flag=False, step=0, epoch=1)
        yield


def tiny_model():
    encoder = make_conformer(20, 8, num_layers=1, num_heads=2, subsampling=1)
    return make_ctc(20, 5, encoder=encoder, sample_rate=8000)


def padded(rows, dtype, **dims):
    """:return: the rows in one tensor `[B, T]`, and T"""
    batch_dim, lengths = Dim(len(rows), name="batch"), [len(row) for row in rows]
    sizes = Tensor(
        "size", [batch_dim], "int32", raw_tensor=torch.tensor(lengths, dtype=torch.int32)
    )
    dim = Dim(sizes, name="spatial")
    raw = numpy.zeros([len(rows), max(lengths)], dtype)
    for target, row in zip(raw, rows, strict=True):
        target[: len(row)] = row
    return Tensor("rows", [batch_dim, dim], dtype, raw_tensor=torch.tensor(raw), **dims), dim


def audio(*lengths):
    rng = numpy.random.RandomState(3)
    return [rng.randn(length) * 0.1 for length in lengths]


def log_probs(model, signal):
    """:return: `[T, labels and blank]` of one signal alone"""
    source, dim = padded([signal], "float32")
    out, _ = model.log_probs(source, in_spatial_dim=dim)
    return out.raw_tensor[0].detach()


def with_same_batch(tensor, dim, other):
    """The two inputs of a batch share their batch dim, as extern data do."""
    batch_dim = other.dims[0]
    sizes = Tensor("size", [batch_dim], "int32", raw_tensor=dim.dyn_size)
    dim = Dim(sizes, name="targets_spatial")
    return (
        Tensor(
            "targets",
            [batch_dim, dim],
            tensor.dtype,
            raw_tensor=tensor.raw_tensor,
            sparse_dim=tensor.sparse_dim,
        ),
        dim,
    )


def test_losses_against_torch():
    """Each sequence alone in torch; in one padded batch here, an empty target among them."""
    model = tiny_model()
    signals, labels = audio(4000, 1300, 2500), [[0, 4, 4, 2], [1], []]
    source, source_dim = padded(signals, "float32")
    targets, targets_dim = padded(labels, "int32", sparse_dim=model.target_dim)
    targets, targets_dim = with_same_batch(targets, targets_dim, source)
    losses = model.losses(
        source, in_spatial_dim=source_dim, targets=targets, targets_spatial_dim=targets_dim
    )
    assert list(losses) == ["ctc"]
    assert losses["ctc"].dims == (source.dims[0],)
    for got, signal, label in zip(losses["ctc"].raw_tensor, signals, labels, strict=True):
        scores = log_probs(model, signal)
        expected = torch.nn.functional.ctc_loss(
            scores[:, None],
            torch.tensor([label], dtype=torch.int64),
            [len(scores)],
            [len(label)],
            blank=5,
            reduction="sum",
        )
        numpy.testing.assert_allclose(got.detach(), expected, rtol=1e-5)


def test_decode_greedy():
    model = tiny_model()
    signals = audio(16_000, 1300, 500)
    signals[0] *= numpy.arange(16_000) // 1000 % 3  # so that the frames differ
    source, source_dim = padded(signals, "float32")
    labels, labels_dim = model.decode_greedy(source, in_spatial_dim=source_dim)
    assert labels.sparse_dim == model.target_dim
    raw = labels.copy_transpose([source.dims[0], labels_dim]).raw_tensor
    expected_rows = []
    for signal in signals:
        best = log_probs(model, signal).argmax(-1).tolist()
        expected_rows.append([label for label, _ in itertools.groupby(best) if label != 5])
    assert len(expected_rows[0]) > 3
    got = [row[:n].tolist() for row, n in zip(raw, labels_dim.dyn_size, strict=True)]
    assert got == expected_rows


def test_blank_is_the_last_index():
    model = tiny_model()
    assert (model.blank_index, model.out_dim.dimension) == (5, 6)
    assert (model.in_dim.dimension, model.target_dim.dimension) == (1, 5)


def test_on_features_without_front_end():
    dim, labels_dim = nn.FeatureDim("features", 7), nn.FeatureDim("labels", 3)
    model = Ctc(make_conformer(dim, 8, num_layers=1, num_heads=2), labels_dim)
    rows, time_dim = padded([[0.0] * 9], "float32")
    source = Tensor(
        "features",
        [*rows.dims, dim],
        "float32",
        raw_tensor=torch.ones(1, 9, 7),
        feature_dim=dim,
    )
    out, out_dim = model.log_probs(source, in_spatial_dim=time_dim)
    assert model.in_dim == dim
    assert out.copy_transpose([rows.dims[0], out_dim, model.out_dim]).raw_tensor.shape == (1, 3, 4)


def test_training_augments():
    model = make_ctc(20, 5, encoder=make_conformer(20, 8, num_layers=1, num_heads=2, dropout=0.0))
    source, dim = padded(audio(16_000), "float32")
    rf.init_train_step_run_ctx(train_flag=True, step=0, epoch=1)
    first, second = (model.logits(source, in_spatial_dim=dim)[0].raw_tensor for _ in range(2))
    assert not torch.allclose(first, second)


def test_encoder_of_another_size():
    with pytest.raises(ValueError, match="the encoder takes 20 features, but in_dim is 80"):
        make_ctc(encoder=make_conformer(20, 8, num_layers=1, num_heads=2))
