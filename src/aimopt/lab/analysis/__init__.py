"""Analysis: from the runs of a study to numbers: values, verdicts, and whether the comparison was fair.

    analysis = analyse_study(study, store.runs())
    analysis.standing("Mine").difference.verdict         "better", "worse", "cannot tell with 5 seeds"
    analysis.audit                                         what a careful reader would ask about
    across_tasks([analysis, other_analysis])               ranks and performance profile over several tasks

It works at any time: without runs, in the middle of a sweep and at its end.
"""
