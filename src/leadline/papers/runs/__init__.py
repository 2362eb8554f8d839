"""Published laws of real tables of runs, fitted again to the same tables by their own protocol and
by ours.
"""
