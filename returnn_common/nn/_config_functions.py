"""
Functions that a config text defines for its ``eval`` layers, as source text.

They run inside RETURNN, without this package, so they import what they need themselves.
"""

from __future__ import annotations

FUNCTIONS = {
    "distance_encoding": '''
def distance_encoding(source, self, **_):
    """sinusoids of the distances 1-T .. T-1 (https://arxiv.org/abs/1901.02860), [2*T-1, feature]"""
    import math
    import tensorflow as tf

    num_features = self.output.dims[-1].dimension
    distance = source(0, auto_convert=False)
    distance -= tf.cast(tf.shape(distance)[0] // 2, tf.float32)
    rate = tf.exp(tf.range(num_features // 2, dtype=tf.float32) * (-2.0 * math.log(1e4) / num_features))
    angle = distance[:, None] * rate
    return tf.sin(tf.concat([angle, angle + math.pi / 2], axis=-1))
''',
    "rel_pos_scores": '''
def rel_pos_scores(source, self, split=(), **_):
    """
    Attention scores with relative positions (https://arxiv.org/abs/1901.02860, section 3.3), not yet scaled:
    (q + u) k for all pairs, plus (q + v) p for all distances, where row i is shifted to start at distance -i.
    The encoding p of the distances comes per head, or all in one, to be split into the dims ``split``.
    """
    import tensorflow as tf

    q, k, p, *biases = (source(i, as_data=True, auto_convert=False) for i in range(len(self.sources)))
    letters = {}

    def axes(dims):
        return "".join(letters.setdefault(dim, chr(ord("a") + len(letters))) for dim in dims)

    def with_bias(bias):
        return q.placeholder + tf.reshape(bias.placeholder, [d.dimension if d in bias.dims else 1 for d in q.dims])

    q_u, q_v = (with_bias(bias) for bias in biases) if biases else (q.placeholder, q.placeholder)
    *outer, query_dim, key_dim = self.output.dims
    p_dims = [p.dims[0], *split] if split else list(p.dims)
    p = tf.reshape(p.placeholder, [-1, *(dim.dimension for dim in split)]) if split else p.placeholder
    (distance_dim,) = set(p_dims) - set(q.dims)
    content = tf.einsum(f"{axes(q.dims)},{axes(k.dims)}->{axes(self.output.dims)}", q_u, k.placeholder)
    to = axes([*outer, query_dim, distance_dim])
    position = tf.einsum(f"{axes(q.dims)},{axes(p_dims)}->{to}", q_v, p)
    *sizes, num_queries, num_keys = tf.unstack(tf.shape(content))
    num_distances = num_queries + num_keys - 1
    none = [0] * len(outer)
    position = tf.pad(position, [(0, 0)] * len(outer) + [(0, 0), (1, 0)])
    position = tf.reshape(position, [*sizes, num_distances + 1, num_queries])
    position = tf.slice(position, [*none, 1, 0], [-1] * len(none) + [-1, -1])
    position = tf.reshape(position, [*sizes, num_queries, num_distances])
    return content + tf.slice(position, [*none, 0, 0], [-1] * len(none) + [-1, num_keys])
''',
    "current_epoch": '''
def current_epoch(self, **_):
    """the epoch, int32; RETURNN's loop tells it the network, not the graph, so it is asked for in every step"""
    import numpy
    import tensorflow as tf

    network = self.network.get_root_network()
    epoch = tf.numpy_function(lambda: numpy.int32(network.get_run_opts()["epoch"]), [], tf.int32)
    epoch.set_shape([])
    return epoch
''',
    "einsum": '''
def einsum(source, self, **_):
    """the product of two tensors, summed over all dims that the result lacks"""
    import tensorflow as tf

    a, b = (source(i, as_data=True, auto_convert=False) for i in (0, 1))
    letters = {}

    def axes(dims):
        return "".join(letters.setdefault(dim, chr(ord("a") + len(letters))) for dim in dims)

    return tf.einsum(f"{axes(a.dims)},{axes(b.dims)}->{axes(self.output.dims)}", a.placeholder, b.placeholder)
''',
    "ctc_loss": '''
def ctc_loss(source, time_dim, labels_dim, class_dim, blank, **_):
    """
    CTC loss per sequence (https://doi.org/10.1145/1143844.1143891); 0 where the labels do not fit into the frames.
    On CPU TensorFlow's CTCLoss op, with a guard for empty labels; on GPU, where that op has no kernel, tf.nn.ctc_loss.
    """
    import tensorflow as tf
    from returnn.tensor import batch_dim

    logits = source(0, as_data=True, auto_convert=False).copy_compatible_to_dims_raw([time_dim, batch_dim, class_dim])
    labels = source(1, as_data=True, auto_convert=False).copy_compatible_to_dims_raw([batch_dim, labels_dim])
    labels = tf.cast(labels, tf.int32)
    labels = tf.pad(labels, [(0, 0), (0, 1)])  # at least one column
    num_frames, num_labels = (tf.cast(dim.dyn_size, tf.int32) for dim in (time_dim, labels_dim))
    inside = tf.sequence_mask(num_labels - 1, tf.shape(labels)[1] - 1)
    repeats = tf.logical_and(tf.equal(labels[:, 1:], labels[:, :-1]), inside)
    fits = num_labels + tf.reduce_sum(tf.cast(repeats, tf.int32), axis=1) <= num_frames
    empty = tf.equal(num_labels, 0)
    num_labels = tf.where(tf.logical_or(empty, tf.logical_not(fits)), 1, num_labels)  # these get their loss below
    if tf.config.list_physical_devices("GPU"):
        loss = tf.nn.ctc_loss(labels, logits, num_labels, num_frames, blank_index=blank)
        blank_log_probs = tf.nn.log_softmax(logits)[..., blank]
    else:
        if blank != class_dim.dimension - 1:  # the op wants the blank last
            logits = tf.concat([logits[..., :blank], logits[..., blank + 1 :], logits[..., blank : blank + 1]], axis=-1)
            labels = tf.where(labels > blank, labels - 1, labels)
        at = tf.where(tf.sequence_mask(num_labels, tf.shape(labels)[1]))
        loss = tf.raw_ops.CTCLoss(
            inputs=logits,
            labels_indices=at,
            labels_values=tf.gather_nd(labels, at),
            sequence_length=num_frames,
            ignore_longer_outputs_than_inputs=True,
        )[0]
        blank_log_probs = tf.nn.log_softmax(logits)[..., -1]
    frame_mask = tf.sequence_mask(num_frames, tf.shape(logits)[0], dtype=logits.dtype)
    all_blank = -tf.reduce_sum(tf.transpose(blank_log_probs) * frame_mask, axis=1)
    return tf.where(empty, all_blank, tf.where(fits, loss, tf.zeros_like(loss)))
''',
    "mel_filterbank": '''
def mel_filterbank(source, self, sampling_rate, fft_length, f_min, f_max, bin_dim, **_):
    """
    Triangular filters, equally spaced on the mel scale 1125 ln(1 + f / 700), on a power spectrum
    (Huang, Acero, Hon, "Spoken Language Processing", 2001, equation 6.141).
    """
    import numpy
    import tensorflow as tf

    *outer, mel_dim = self.output.dims
    mel = numpy.linspace(*(1125 * numpy.log(1 + f / 700) for f in (f_min, f_max)), mel_dim.dimension + 2)
    center = fft_length / sampling_rate * 700 * (numpy.exp(mel / 1125) - 1)  # in bins
    bins = numpy.arange(bin_dim.dimension)[:, None]
    rising = (bins - center[:-2]) / (center[1:-1] - center[:-2])
    falling = (center[2:] - bins) / (center[2:] - center[1:-1])
    filters = numpy.maximum(0, numpy.minimum(rising, falling)).astype("float32")
    power = source(0, as_data=True, auto_convert=False).copy_compatible_to_dims_raw([*outer, bin_dim])
    return tf.tensordot(power, filters, axes=1)
''',
    "select_frames": '''
def select_frames(source, self, **_):
    """the frames of source 0 where the mask (source 1) is true, padded to the longest"""
    import tensorflow as tf

    x, mask, index = (source(i, as_data=True, auto_convert=False) for i in range(3))
    batch_dim, out_dim, *rest = self.output.dims
    (time_dim,) = set(mask.dims) - {batch_dim}
    frames = x.copy_compatible_to_dims_raw([batch_dim, time_dim, *rest])
    mask = mask.copy_compatible_to_dims_raw([batch_dim, time_dim])
    num_frames = tf.shape(mask)[1]
    early = tf.cast(num_frames - tf.range(num_frames), tf.float32)  # the largest are the first frames kept
    order = tf.math.top_k(tf.where(mask, early[None, :], 0.0), k=num_frames).indices
    return tf.gather(frames, order[:, : tf.shape(index.placeholder)[0]], batch_dims=1)
''',
    "check_length": '''
def check_length(source, self, axis, max_length, **_):
    """the source itself; an error where a sequence is longer"""
    import tensorflow as tf

    x = source(0, auto_convert=False)
    longest = tf.reduce_max(axis.dyn_size)
    message = f"{axis.name}: a sequence is longer than the max_length {max_length}"
    with tf.control_dependencies([tf.debugging.assert_less_equal(longest, max_length, message=message)]):
        return tf.identity(x)
''',
    "lstm_unit": '''
def lstm_unit():
    """RETURNN's own kernel on a GPU; on a CPU, where a compiler would be needed for that, pure TensorFlow"""
    import tensorflow as tf

    return "NativeLSTM2" if tf.config.list_physical_devices("GPU") else "StandardLSTM"
''',
    "lstm_state": '''
def lstm_state(source, self, key, **_):
    """the last state (h or c) of an LSTM with further dims, which the rec layer has merged into the batch"""
    import tensorflow as tf

    output = source(0, as_data=True, auto_convert=False).placeholder
    return tf.reshape(self.sources[0].get_last_hidden_state(key=key), tf.shape(output)[1:])
''',
    "lstm_parameter": '''
def lstm_parameter(base_layer, name, shape, **_):
    """
    A parameter of RETURNN's LSTM units made of those in the map of reuse_params, whose gates are i, f, g, o.
    NativeLSTM2 has W [in, 4*out], W_re [out, 4*out] and b, gates g, i, f, o;
    StandardLSTM has kernel [in+out, 4*out] and bias, gates i, g, f, o.
    """
    import tensorflow as tf

    given = {key: reuse.layer_output.output for key, reuse in base_layer.reuse_params.param_map.items()}
    name = name.rpartition("/")[-1]
    parts = {"W": ["ff_weight"], "W_re": ["rec_weight"], "kernel": ["ff_weight", "rec_weight"]}.get(name, ["bias"])
    if parts[0] not in given:
        return tf.zeros(shape)
    gates_first = tf.concat([given[part].placeholder for part in parts], axis=-1)
    i, f, g, o = tf.split(gates_first, 4, axis=0)
    gates = [i, g, f, o] if name in ("kernel", "bias") else [g, i, f, o]
    return tf.transpose(tf.concat(gates, axis=0))
''',
}
