"""
Corpora: reading audio, making utterances, and the archives that RETURNN reads them from.
"""
