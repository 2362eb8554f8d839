"""Experiments on a device: the same questions that theory answers, answered by drawing contexts
and training on them.
"""
