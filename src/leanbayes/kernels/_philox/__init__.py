"""Philox 4x32: random numbers as a function of a key and a position, the same in plain torch and in a kernel.

Numbers of a key are counted from 0: counter c gives the four numbers of positions ``4 c`` to ``4 c + 3``.
"""

from leanbayes.kernels._philox.reference import philox_normal_reference, philox_uniform_reference
from leanbayes.kernels._philox.triton import normal4, uniform4

__all__ = ["normal4", "philox_normal_reference", "philox_uniform_reference", "uniform4"]
