// CUB over whole arrays, by its two calls: how much storage, and the work.
#include <cub/cub.cuh>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

template <class Call>
int both(Call call, int lack = 0) {
  size_t bytes = 0;
  if (call(nullptr, bytes) != cudaSuccess || bytes == 0) return -1;
  void* storage = nullptr;
  cudaMalloc(&storage, bytes);
  bytes -= lack;
  const int error = call(storage, bytes);
  cudaDeviceSynchronize();
  cudaFree(storage);
  return error;
}

struct Product {
  template <class T> __host__ __device__ T operator()(const T& a, const T& b) const { return a * b % 1009; }
};
struct Longer {  // what is folded from left to right and not otherwise: the first of a, the last of b
  __host__ __device__ int2 operator()(int2 a, int2 b) const { return make_int2(a.x, b.y); }
};
struct Squared {
  __host__ __device__ long long operator()(int v) const { return 1LL * v * v; }
};
struct IsOdd {
  __host__ __device__ bool operator()(int v) const { return v % 2 != 0; }
};
struct ByLastDigit {
  __host__ __device__ bool operator()(int a, int b) const { return a % 10 < b % 10; }
};

__global__ void writes_ones(float* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = 1;
}

extern "C" {
int h_reductions(const int* x, int* out, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceReduce::Sum(s, b, x, out, n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceReduce::Min(s, b, x, out + 1, n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceReduce::Max(s, b, x, out + 2, n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceReduce::ArgMin(s, b, x, out + 3, out + 4, (int64_t)n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceReduce::ArgMax(s, b, x, out + 5, out + 6, (int64_t)n, (cudaStream_t)0); }) |
         both([=](void* s, size_t& b) { return cub::DeviceReduce::Reduce(s, b, x, out + 7, n, Product(), 5); });
}
int h_pairs(const int* x, int* out, int n) {
  auto* pair = reinterpret_cast<cub::KeyValuePair<int, int>*>(out);
  return both([=](void* s, size_t& b) { return cub::DeviceReduce::ArgMax(s, b, x, pair, n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceReduce::ArgMin(s, b, x, pair + 1, n); });
}
int h_computed(long long* out, int n) {
  auto squares = thrust::make_transform_iterator(thrust::counting_iterator<int>(1), Squared());
  return both([=](void* s, size_t& b) { return cub::DeviceReduce::Sum(s, b, squares, out, n); }) |
         both([=](void* s, size_t& b) {
           return cub::DeviceReduce::TransformReduce(s, b, thrust::counting_iterator<int>(1), out + 1, n, ::cuda::std::plus<>(), Squared(), 0LL);
         });
}
int h_sum(const float* x, float* out, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceReduce::Sum(s, b, x, out, n); });
}
int h_runs(const int* keys, const int* x, int* unique, int* out, int* lengths, int* number, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceReduce::ReduceByKey(s, b, keys, unique, x, out, number, ::cuda::maximum<>(), n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceRunLengthEncode::Encode(s, b, keys, unique, lengths, number + 1, n); });
}
int h_scans(const int* x, int* out, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceScan::InclusiveSum(s, b, x, out, n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceScan::ExclusiveSum(s, b, x, out + n, n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceScan::InclusiveScan(s, b, x, out + 2 * n, ::cuda::maximum<>(), n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceScan::ExclusiveScan(s, b, x, out + 3 * n, Product(), 7, n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceScan::InclusiveSum(s, b, out + 4 * n, n); });
}
int h_order(const int2* x, int2* out, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceScan::InclusiveScan(s, b, x, out, Longer(), n); });
}
int h_cumsum(const float* x, float* out, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceScan::InclusiveSum(s, b, x, out, n); });
}
int h_by_key(const int* keys, const int* x, int* out, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceScan::InclusiveSumByKey(s, b, keys, x, out, n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceScan::ExclusiveSumByKey(s, b, keys, x, out + n, n); });
}
int h_sort(const float* x, float* sorted, float* falling, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceRadixSort::SortKeys(s, b, x, sorted, n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceRadixSort::SortKeysDescending(s, b, x, falling, n); });
}
int h_sort_pairs(const int* x, int* keys, const int* values, int* moved, int n, int begin, int end) {
  return both([=](void* s, size_t& b) { return cub::DeviceRadixSort::SortPairs(s, b, x, keys, values, moved, n, begin, end); }) |
         both([=](void* s, size_t& b) { return cub::DeviceRadixSort::SortPairsDescending(s, b, x, keys + n, values, moved + n, n, begin, end); });
}
int h_double_buffer(unsigned char* keys, short* values, unsigned char* sorted, short* moved, int n) {
  cub::DoubleBuffer<unsigned char> k(keys, keys + n);
  cub::DoubleBuffer<short> v(values, values + n);
  const int error = both([&](void* s, size_t& b) { return cub::DeviceRadixSort::SortPairs(s, b, k, v, n); });
  cudaMemcpy(sorted, k.Current(), n, cudaMemcpyDeviceToDevice);
  cudaMemcpy(moved, v.Current(), n * sizeof(short), cudaMemcpyDeviceToDevice);
  return error;
}
int h_segments(const float* x, float* sums, float* most, float* sorted, float* falling, const int* offsets, int n, int segments) {
  return both([=](void* s, size_t& b) { return cub::DeviceSegmentedReduce::Sum(s, b, x, sums, segments, offsets, offsets + 1); }) |
         both([=](void* s, size_t& b) { return cub::DeviceSegmentedReduce::Max(s, b, x, most, segments, offsets, offsets + 1); }) |
         both([=](void* s, size_t& b) { return cub::DeviceSegmentedRadixSort::SortKeys(s, b, x, sorted, n, segments, offsets, offsets + 1); }) |
         both([=](void* s, size_t& b) { return cub::DeviceSegmentedSort::SortKeysDescending(s, b, x, falling, n, segments, offsets, offsets + 1); });
}
int h_select(const int* x, const char* flags, int* odd, int* flagged, int* unique, int* parted, int* numbers, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceSelect::If(s, b, x, odd, numbers, n, IsOdd()); }) |
         both([=](void* s, size_t& b) { return cub::DeviceSelect::Flagged(s, b, x, flags, flagged, numbers + 1, n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceSelect::Unique(s, b, x, unique, numbers + 2, n); }) |
         both([=](void* s, size_t& b) { return cub::DevicePartition::If(s, b, x, parted, numbers + 3, n, IsOdd()); });
}
int h_halves(const __half* x, __half* out, __half* sorted, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceReduce::Max(s, b, x, out, n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceReduce::Min(s, b, x, out + 1, n); }) |
         both([=](void* s, size_t& b) { return cub::DeviceRadixSort::SortKeys(s, b, x, sorted, n); });
}
int h_histogram(const float* x, int* even, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceHistogram::HistogramEven(s, b, x, even, 6, -1.0f, 4.0f, n); });
}
int h_merge_sort(int* keys, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceMergeSort::StableSortKeys(s, b, keys, n, ByLastDigit()); });
}
int h_too_little_storage(const int* x, int* out, int n) {
  return both([=](void* s, size_t& b) { return cub::DeviceReduce::Sum(s, b, x, out, n); }, 1);
}
// On a stream that nothing waits for, behind a kernel. What is seen before waiting, and after.
int h_stream(float* x, float* out, int n) {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  size_t bytes = 0;
  cub::DeviceReduce::Sum(nullptr, bytes, x, out, n, stream);
  void* storage = nullptr;
  cudaMalloc(&storage, bytes);
  writes_ones<<<1, 32, 0, stream>>>(x, n);
  cub::DeviceReduce::Sum(storage, bytes, x, out, n, stream);
  const int before = out[0];
  cudaStreamSynchronize(stream);
  return before;
}
// which: 0 input, 1 output, 2 storage is the host's; 3 the storage is smaller than was said; 4 n is larger than the input
int h_wrong_memory(int which) {
  float *x, *y, host[4] = {};
  char* storage;
  cudaMalloc(&x, 16);
  cudaMalloc(&y, 16);
  size_t bytes = 0;
  cub::DeviceReduce::Sum(nullptr, bytes, x, y, 4);
  cudaMalloc(&storage, which == 3 ? bytes / 2 : bytes);
  void* own = which == 2 ? (void*)host : storage;
  return cub::DeviceReduce::Sum(own, bytes, which == 0 ? host : x, which == 1 ? host : y, which == 4 ? 9 : 4);
}
}
