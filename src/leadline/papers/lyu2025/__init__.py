"""A Solvable Attention for Neural Scaling Laws (Lyu, Wang, Zhu, ICLR 2025): its figures and its
claims, as far as the public discussion states them.
"""
