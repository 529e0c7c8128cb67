"""What a researcher writes in Python: from a file to a table of compared systems.

`data` loads and splits, `systems` names what can be fitted, `fitting` fits, recommends, evaluates,
attacks and compares. All of it stands on experiments and runs: there is no second runner here.
"""
