"""
Functions that a config text defines for its ``eval`` layers, as source text.

They run inside RETURNN, without this package, so they import what they need themselves.
"""

from __future__ import annotations

FUNCTIONS = {
    "rel_pos_scores": '''
def rel_pos_scores(source, order, rows, heads, **_):
    """attention scores with relative positions (https://arxiv.org/abs/1901.02860, section 3.3), not yet scaled"""
    import tensorflow as tf

    names = list(order)
    x = {
        name: source(i, as_data=True, auto_convert=False).copy_compatible_to_dims_raw(order[name])
        for i, name in enumerate(names)
    }
    if "u" in x:  # biases of content and position, [heads, feature] -> [heads, 1, feature]
        x["u"], x["v"] = (b[..., None, :] if "i" not in b.shape else b for b in (x["u"], x["v"]))
    content = tf.einsum(f"{rows}qd,{rows}kd->{rows}qk", x["q"] + x.get("u", 0.0), x["k"])
    position = tf.einsum(f"{rows}qd,{heads}pd->{rows}qp", x["q"] + x.get("v", 0.0), x["p"])
    shape = tf.shape(position)
    outer, num_query, num_distances = shape[:-2], shape[-2], shape[-1]
    position = tf.pad(position, [(0, 0)] * (position.shape.ndims - 1) + [(1, 0)])
    position = tf.reshape(position, tf.concat([outer, [num_distances + 1, num_query]], axis=0))[..., 1:, :]
    position = tf.reshape(position, tf.concat([outer, [num_query, num_distances]], axis=0))
    return content + position[..., : tf.shape(content)[-1]]
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
    num_frames, num_labels = (tf.cast(dim.dyn_size, tf.int32) for dim in (time_dim, labels_dim))
    if tf.config.list_physical_devices("GPU"):
        repeats = tf.logical_and(labels[:, 1:] == labels[:, :-1], tf.sequence_mask(num_labels - 1, tf.shape(labels)[1] - 1))
        fits = num_labels + tf.reduce_sum(tf.cast(repeats, tf.int32), axis=1) <= num_frames
        loss = tf.nn.ctc_loss(labels, logits, num_labels, num_frames, blank_index=blank)
        return tf.where(fits, loss, tf.zeros_like(loss))
    num_classes = class_dim.dimension
    if blank != num_classes - 1:  # the op wants the blank last
        logits = tf.concat([logits[..., :blank], logits[..., blank + 1 :], logits[..., blank : blank + 1]], axis=-1)
        labels = tf.where(labels > blank, labels - 1, labels)
    labels = tf.pad(labels, [(0, 0), (0, 1)])  # at least one column
    at = tf.where(tf.sequence_mask(tf.maximum(num_labels, 1), tf.shape(labels)[1]))
    loss = tf.raw_ops.CTCLoss(
        inputs=logits,
        labels_indices=at,
        labels_values=tf.gather_nd(labels, at),
        sequence_length=num_frames,
        ignore_longer_outputs_than_inputs=True,
    )[0]
    frame_mask = tf.sequence_mask(num_frames, tf.shape(logits)[0], dtype=logits.dtype)
    all_blank = -tf.reduce_sum(tf.transpose(tf.nn.log_softmax(logits)[..., -1]) * frame_mask, axis=1)
    return tf.where(num_labels > 0, loss, all_blank)
''',
}
