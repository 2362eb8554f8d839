"""Theory of Scaling Laws for In-Context Regression: Depth, Width, Context and Time
(Bordelon, Letey, Pehlevan, arXiv:2510.01098): its figures and its claims.
"""
