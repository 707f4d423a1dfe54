"""Networks of the paper that no light dependency brings."""
