# problem: matmul
# expect: correct done

# Single precision from TF32: each operand is split into what TF32 holds and the rest; three products of four are summed.
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <mma.h>

using namespace nvcuda;
using A = wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major>;
using B = wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major>;

template <class Fragment> __device__ void split(Fragment& whole, Fragment& rest) {
    for (int i = 0; i < whole.num_elements; i++) {
        float head = wmma::__float_to_tf32(whole.x[i]);
        rest.x[i] = wmma::__float_to_tf32(whole.x[i] - head);
        whole.x[i] = head;
    }
}

__global__ void matmul_kernel(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ __align__(32) float left[16 * 8], right[8 * 16], out[16 * 16];
    int row = blockIdx.y * 16, col = blockIdx.x * 16, lane = threadIdx.x;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int start = 0; start < k; start += 8) {
        for (int i = lane; i < 128; i += 32) {
            int r = row + i / 8, at = start + i % 8;
            left[i] = r < m && at < k ? a[r * k + at] : 0.0f;
            int down = start + i / 16, across = col + i % 16;
            right[i] = down < k && across < n ? b[down * n + across] : 0.0f;
        }
        __syncwarp();
        A head_a, rest_a;
        B head_b, rest_b;
        wmma::load_matrix_sync(head_a, left, 8);
        wmma::load_matrix_sync(head_b, right, 16);
        split(head_a, rest_a);
        split(head_b, rest_b);
        wmma::mma_sync(sum, rest_a, head_b, sum);
        wmma::mma_sync(sum, head_a, rest_b, sum);
        wmma::mma_sync(sum, head_a, head_b, sum);
        __syncwarp();
    }
    wmma::store_matrix_sync(out, sum, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = lane; i < 256; i += 32) {
        int r = row + i / 16, across = col + i % 16;
        if (r < m && across < n) c[r * n + across] = out[i];
    }
}

torch::Tensor matmul(torch::Tensor a, torch::Tensor b) {
    a = a.contiguous();
    b = b.contiguous();
    int m = a.size(0), k = a.size(1), n = b.size(1);
    auto c = torch::empty({m, n}, a.options());
    dim3 grid((n + 15) / 16, (m + 15) / 16);
    matmul_kernel<<<grid, 32>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), m, n, k);
    return c;
}
"""

cpp_source = "torch::Tensor matmul(torch::Tensor a, torch::Tensor b);"

ops = load_inline(name="matmul_ops", cpp_sources=cpp_source, cuda_sources=cuda_source, functions=["matmul"])


class ModelNew(nn.Module):
    def forward(self, a, b):
        return ops.matmul(a, b)
