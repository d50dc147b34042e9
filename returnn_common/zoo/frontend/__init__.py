"""Front ends: ``(source, *, in_spatial_dim) -> (out, out_spatial_dim)``."""
