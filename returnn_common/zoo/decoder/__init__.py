"""
Decoders: ``(label, *, spatial_dim, state, encoder) -> (logits, state)``, whole sequences or one step
(``spatial_dim=nn.single_step_dim``). ``encoder`` is what ``transform_encoder`` makes of the output of
an encoder, once for all steps.
"""
