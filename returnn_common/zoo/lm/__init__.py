"""
Language models: ``(label, *, spatial_dim, state) -> (logits, state)``, whole sequences or one step
(``spatial_dim=nn.single_step_dim``).
"""
