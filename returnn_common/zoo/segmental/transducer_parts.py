"""
The parts of a transducer behind its encoder: the predictor, the joint network, and the loss.

Graves, "Sequence Transduction with Recurrent Neural Networks", 2012, https://arxiv.org/abs/1211.3711; the
joint network is that of Graves et al., 2013, https://arxiv.org/abs/1303.5778, section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import nn
from .. import _dims

IMPOSSIBLE = -1e30  # a log-probability, finite so that its gradient is 0


class Predictor(nn.Module):
    """Label embedding and one LSTM, called like a language model."""

    def __init__(self, target_dim: nn.Dim, out_dim: nn.Dim):
        super().__init__()
        self.target_dim, self.out_dim = target_dim, out_dim
        embedding_dim = nn.FeatureDim("embedding", out_dim.dimension)
        self.embedding = nn.Embedding(target_dim, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, out_dim)

    def default_initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.LstmState:
        """:return: the state before the first label, zeros"""
        return self.lstm.default_initial_state(batch_dims=batch_dims)

    def __call__(
        self, label: nn.Tensor, *, spatial_dim: nn.Dim, state: nn.LstmState
    ) -> tuple[nn.Tensor, nn.LstmState]:
        """
        :param label: the labels before, `[B, spatial_dim]`, or `[B]` for one step
        :return: `[B, spatial_dim, out_dim]` and the next state
        """
        return self.lstm(self.embedding(label), spatial_dim=spatial_dim, state=state)


def make_transducer_predictor(
    target_dim: int | nn.Dim = 1001, out_dim: int | nn.Dim = 640
) -> Predictor:
    """
    Label embedding and one LSTM: `(label, *, spatial_dim, state) -> (out, state)`.

    :param target_dim: number of labels, with the one that stands for the begin
    :param out_dim: size of embedding and LSTM; 640 in the Conformer paper
    """
    return Predictor(_dims.as_dim(target_dim, "labels"), _dims.as_dim(out_dim, "predictor"))


class Joint(nn.Module):
    """linear(tanh(linear(encoder) + linear(predictor))) for all pairs of frame and label"""

    def __init__(
        self, encoder_dim: nn.Dim, predictor_dim: nn.Dim, out_dim: nn.Dim, *, joint_dim: nn.Dim
    ):
        super().__init__()
        self.out_dim = out_dim
        self.encoder = nn.Linear(encoder_dim, joint_dim)
        self.predictor = nn.Linear(predictor_dim, joint_dim, with_bias=False)
        self.output = nn.Linear(joint_dim, out_dim)

    def __call__(self, encoder: nn.Tensor, predictor: nn.Tensor) -> nn.Tensor:
        """`[B, T, encoder_dim]` and `[B, U, predictor_dim]` to logits `[B, T, U, out_dim]`"""
        x = nn.combine_bc(self.encoder(encoder), "+", self.predictor(predictor))
        x.feature_dim = self.encoder.out_dim
        return self.output(nn.tanh(x))


def make_transducer_joint(
    encoder_dim: int | nn.Dim = 512,
    predictor_dim: int | nn.Dim = 640,
    out_dim: int | nn.Dim = 1001,
    *,
    joint_dim: int | nn.Dim = 640,
) -> Joint:
    """
    The joint network: `(encoder, predictor) -> logits`.

    :param encoder_dim: features of the encoder output
    :param predictor_dim: features of the predictor output
    :param out_dim: number of labels, with the blank
    :param joint_dim: size of the hidden layer
    """
    return Joint(
        _dims.as_dim(encoder_dim, "encoder"),
        _dims.as_dim(predictor_dim, "predictor"),
        _dims.as_dim(out_dim, "labels_and_blank"),
        joint_dim=_dims.as_dim(joint_dim, "joint"),
    )


def transducer_loss(
    log_probs: nn.Tensor,
    labels: nn.Tensor,
    *,
    spatial_dim: nn.Dim,
    labels_dim: nn.Dim,
    num_labels: nn.Tensor,
    blank_index: int,
) -> nn.Tensor:
    """
    -log p(labels), summed over all alignments with any number of labels in a frame.

    With a_t(u) the log-probability of u labels at frame t before its blank, and E_t(u) that of the
    first u labels all in frame t (equation 16 of Graves, its inner recursion written out):

        a_t(u) = log sum over v <= u of exp(a_{t-1}(v) + blank_{t-1}(v) + E_t(u) - E_t(v))

    RETURNN has no transducer loss that runs without a compiler; this one is made of operations that
    both backends have. It takes memory for frames * labels * labels.

    :param log_probs: `[B, spatial_dim, labels_dim, classes]`, normalised
    :param labels: the next label `[B, labels_dim]` behind 0, 1, ... labels; the last is any
    :param num_labels: `[B]`, one less than the length of `labels_dim`
    :param blank_index: of the classes
    :return: `[B]`
    """
    classes = labels.sparse_dim
    emit = nn.gather(log_probs, indices=labels, axis=classes)
    blank = nn.gather(log_probs, indices=blank_index, axis=classes)
    emitted = nn.cumsum(emit, spatial_dim=labels_dim) - emit
    position = nn.range_over_dim(labels_dim)
    start = nn.where(position == 0, 0.0, IMPOSSIBLE)
    initial = nn.combine_bc(nn.zeros([nn.batch_dim]), "+", start)
    earlier_position, earlier_dim = nn.replace_dim(position, in_dim=labels_dim)
    reached = nn.compare_bc(earlier_position, "<=", position)
    penalty = nn.where(reached, 0.0, IMPOSSIBLE)

    def next_frame(
        frame: tuple[nn.Tensor, nn.Tensor], before: nn.Tensor
    ) -> tuple[nn.Tensor, nn.Tensor]:
        emitted, blank = frame
        earlier, _ = nn.replace_dim(before - emitted, in_dim=labels_dim, out_dim=earlier_dim)
        earlier = nn.combine_bc(earlier, "+", penalty)
        here = emitted + nn.reduce_logsumexp(earlier, axis=earlier_dim)
        after = here + blank
        return after, after

    _, end = nn.scan(next_frame, spatial_dim=spatial_dim, xs=(emitted, blank), initial=initial)
    return -nn.gather(end, indices=num_labels, axis=labels_dim)
