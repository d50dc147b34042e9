"""Augmentation of features: ``(source, *, spatial_dim) -> source``, in training only."""
