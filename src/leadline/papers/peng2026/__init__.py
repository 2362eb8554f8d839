"""Peng, Liu, Liu and Gore, arXiv:2610.11063: depth in retrieval, what theory answers of it without
training.
"""
