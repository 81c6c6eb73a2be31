"""One module per published result; `leanbayes.reproduce.recipes` imports them when they are asked for.

Modules whose names start with an underscore hold what several recipes share.
"""
