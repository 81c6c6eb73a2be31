"""Where the time of a step goes: kinds of work by name, and sums that are those of the profiler."""

import pytest
import torch

from leanbayes.bench import Plan, bench
from leanbayes.bench.profiling import OTHER, STEPS, kind_of, profile
from leanbayes.bench.tables import contender_table, line_of, profile_table

PLAN = Plan(repeats=1, methods=("rank1",), peers=False, parts=("profile",))


@pytest.mark.parametrize(
    "name, kind",
    [
        ("triton_poi_fused_convolution_native_batch_norm_backward_5", "fused by the compiler"),
        ("sm90_xmma_wgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "convolutions"),
        ("_draw_tied", "kernels of leanbayes"),
        ("gradient_of_norm", "kernels of leanbayes"),
        ("_kernel", "kernels of leanbayes"),
        ("aten::mkldnn_convolution", "convolutions"),
        ("nvjet_tst_128x64_64x6_1x2_h_bz_coopA_NNT", "products"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>", "products"),
        ("aten::addmm", "products"),
        ("void at::native::distribution_elementwise_grid_stride_kernel<float, 4, normal_>", "random numbers"),
        ("aten::normal_", "random numbers"),
        ("void at::native::multi_tensor_apply_kernel<FusedSgdMathFunctor>", "optimiser"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "norms"),
        ("aten::native_batch_norm", "norms"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("aten::copy_", "copies"),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>", OTHER),
        ("aten::sum", OTHER),
    ],
)
def test_work_is_known_by_its_name(name, kind):
    assert kind_of(name) == kind


def test_a_profile_counts_what_ran():
    # The product takes a thousand times as long, lest other work on the machine turns it round.
    a, b = torch.randn(1000, 1000), torch.randn(10)
    found = profile(lambda: (a @ a, b + b), torch.device("cpu"))
    assert found["kinds"].keys() >= {"products", OTHER}
    assert found["busy"] == pytest.approx(sum(found["kinds"].values()))
    # Two operations a call, and those that they call.
    assert found["launches"] >= 2 and found["launches"] * STEPS == pytest.approx(round(found["launches"] * STEPS))
    assert found["kinds"]["products"] > found["kinds"][OTHER]


def test_a_profile_stands_beside_that_of_the_plain_network(network, tmp_path):
    result = bench("tiny", PLAN, tmp_path)
    plain, row = result["rows"]
    assert [one["status"] for one in result["rows"]] == ["done", "done"]
    assert plain["ratio"] == 1 and row["ratio"] == pytest.approx(row["busy"] / plain["busy"])
    assert row["plain_kinds"] == plain["kinds"] and "products" in row["kinds"]
    assert "work of a step" in line_of(row)
    lines = profile_table(result, "eager").splitlines()
    assert lines[0].endswith("| all work | waiting | launches |") and len(lines) == 4
    assert lines[2].startswith("| plain network |") and f"| {1000 * plain['busy']:.2f} |" in lines[2]
    assert f"| {1000 * (row['busy'] - plain['busy']):+.2f} |" in lines[3]
    assert profile_table(result, "captured") == ""
    assert "work of a step" not in contender_table(result)
