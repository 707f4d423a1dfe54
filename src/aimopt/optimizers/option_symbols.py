"""The symbols that the paper uses for options of optimizers, for tables and figures."""

SYMBOLS = {"gamma": "γ", "ell_ratio": "ℓ/η", "ell": "ℓ", "delta": "δ", "zeta": "ζ"}
