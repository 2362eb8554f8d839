"""From a law and a budget to the best sizes."""

from leadline.planning.optimum import Optimum, Plan, plan, power_law_optimum

__all__ = ["Optimum", "Plan", "plan", "power_law_optimum"]
