"""Programs on GPUs: Triton source printed from them, and its launch."""
