"""An encoder, a dataset and a vocabulary for returnn_common."""
