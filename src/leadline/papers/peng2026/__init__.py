"""Peng, Liu, Liu and Gore, arXiv:2610.11063: depth in retrieval, by theory and by training, and
four questions beyond the paper.
"""
