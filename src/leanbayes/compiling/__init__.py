"""What is compiled is rewritten first, where kernels of our own do better than the compiler."""

from leanbayes.compiling.backend import compiled, falls_back, first_line, is_compile_error, is_recorded

__all__ = ["compiled", "falls_back", "first_line", "is_compile_error", "is_recorded"]
