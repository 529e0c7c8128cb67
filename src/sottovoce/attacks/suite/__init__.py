"""The attack suite: a file for each attack, which enters `ATTACKS` there."""
