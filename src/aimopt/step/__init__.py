"""One optimizer step in plain tensor arithmetic: gather the gradients, move the parameters, round the results."""
