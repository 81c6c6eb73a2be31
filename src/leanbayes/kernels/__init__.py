"""Fused operations: one folder each, with a reference in plain torch that defines it and a Triton kernel.

Layers call the functions of these folders; which of the two runs is decided by `_dispatch.fused`. Nothing needs Triton.
"""
