"""Computation on selected frames, beside numpy and torch."""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, testing

TIME, IN_DIM, OUT_DIM = nn.SpatialDim("time"), nn.FeatureDim("in", 3), nn.FeatureDim("out", 5)
EXTERN = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, IN_DIM], "float32", feature_dim=IN_DIM),
    "labels": nn.Tensor("labels", [nn.batch_dim, TIME], "int32"),
}
LENGTHS = numpy.array([6, 4, 2], "int32")
# Labels behind the end of a sequence, which select nothing; none at all in the last.
LABELS = numpy.array([[0, 1, 1, 0, 0, 1], [1, 0, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0]], "int32")
DATA = {
    "data": numpy.random.RandomState(1).randn(3, 6, 3).astype("float32"),
    "data:size1": LENGTHS,
    "labels": LABELS,
    "labels:size1": LENGTHS,
}


def sums_step(*, model, extern_data, **_):
    """running sums over the selected frames, and these over all frames"""
    del model
    mask = extern_data["labels"] > 0
    sums, spatial_dim = nn.masked_computation(
        lambda x, dim: nn.cumsum(x, spatial_dim=dim), extern_data["data"], mask, spatial_dim=TIME
    )
    sums.mark_as_output("sums")
    nn.unmask(sums, mask, in_spatial_dim=spatial_dim, spatial_dim=TIME).mark_as_output("all")


def test_running_sums_over_the_selected_frames():
    result = testing.assert_backends_agree(nn.Module, sums_step, EXTERN, DATA, task="forward")
    assert result.lengths["sums"][1].tolist() == [3, 2, 0]
    for i, length in enumerate(LENGTHS):
        mask = LABELS[i, :length] > 0
        frames = DATA["data"][i, :length]
        expected = numpy.cumsum(frames * mask[:, None], axis=0)
        numpy.testing.assert_allclose(result.values["all"][i, :length], expected, atol=1e-6)
        num_selected = mask.sum()
        numpy.testing.assert_allclose(
            result.values["sums"][i, :num_selected], expected[mask], atol=1e-6
        )


class SlowLstm(nn.Module):
    """an LSTM over the frames with a label, and a linear layer on all frames"""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(IN_DIM, OUT_DIM)
        self.linear = nn.Linear(OUT_DIM, IN_DIM)

    def __call__(self, source: nn.Tensor, mask: nn.Tensor) -> nn.Tensor:
        slow, spatial_dim = nn.masked_computation(self._lstm, source, mask, spatial_dim=TIME)
        slow = nn.unmask(slow, mask, in_spatial_dim=spatial_dim, spatial_dim=TIME)
        return self.linear(slow)

    def _lstm(self, source: nn.Tensor, spatial_dim: nn.Dim) -> nn.Tensor:
        state = self.lstm.default_initial_state(batch_dims=[nn.batch_dim])
        return self.lstm(source, spatial_dim=spatial_dim, state=state)[0]


def lstm_step(*, model, extern_data, **_):
    out = model(extern_data["data"], extern_data["labels"] > 0)
    nn.reduce_mean(nn.square(out), axis=IN_DIM).mark_as_loss("square")


def test_lstm_over_labels_learns_alike_on_both_backends():
    labels = LABELS.copy()
    labels[2, 0] = 1  # torch's LSTM takes no empty sequence
    result = testing.assert_backends_agree(SlowLstm, lstm_step, EXTERN, {**DATA, "labels": labels})
    assert abs(result.gradients["lstm.ff_weight"]).max() > 1e-3


def test_it_is_one_layer_with_a_flat_net():
    network = nn.lower(SlowLstm(), lstm_step, EXTERN).network
    (masked,) = [layer for layer in network.values() if layer["class"] == "masked_computation"]
    inner = masked["unit"]["subnetwork"]
    assert inner["output"]["class"] == "copy"
    assert all("subnetwork" not in layer for layer in inner.values())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x, mask: nn.masked_computation(lambda s, _: s, x, x, spatial_dim=TIME),
            "nn.masked_computation: the mask is float32, expected bool",
        ),
        (
            lambda x, mask: nn.masked_computation(lambda s, _: s, x, mask, spatial_dim=OUT_DIM),
            "nn.masked_computation: the source .* has no dim .*out",
        ),
        (
            lambda x, mask: nn.masked_computation(
                lambda s, dim: nn.reduce_sum(s, axis=dim), x, mask, spatial_dim=TIME
            ),
            "the body gives .* expected a tensor with the dim .*time_selected",
        ),
        (
            lambda x, mask: nn.unmask(x, mask, in_spatial_dim=OUT_DIM, spatial_dim=TIME),
            "nn.unmask: the source .* has no dim .*out",
        ),
    ],
)
def test_bad_input(call, message):
    def step(*, model, extern_data, **_):
        call(extern_data["data"], extern_data["labels"] > 0)

    with pytest.raises(ValueError, match=message):
        nn.lower(nn.Module(), step, EXTERN)
