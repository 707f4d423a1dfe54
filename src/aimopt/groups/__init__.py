"""Parameter groups: which parameters are decayed, which are matrices, and one optimizer for both.

    split = groups.split(model)                      print(split.explain()) shows each decision and its reason
    optimizer = groups.combine(
        Muon(split.matrices, lr=0.02, weight_decay=0.01),
        RADAR(split.rest(weight_decay=0.01), lr=1e-3),
    )                                                one param_groups, one state_dict
    groups.layerwise(optimizer, model, decay=0.75)   smaller learning rates near the input
    print(groups.explain(optimizer))                 what each parameter got in the end

`rules.py` decides for one parameter, `splitting.py` for a model; `combining.py` makes one optimizer of several, and
`depth.py` finds the depth of a parameter by the names of its modules.
"""

from aimopt.groups.combining import combine, explain
from aimopt.groups.depth import layerwise
from aimopt.groups.rules import Treatment, as_matrix, as_rest
from aimopt.groups.splitting import Decision, Split, split

__all__ = ["Decision", "Split", "Treatment", "as_matrix", "as_rest", "combine", "explain", "layerwise", "split"]
