// Thrust: by a policy, by iterators of the device's memory, on a stream, on the host, and inside kernels.
#include <cuda_runtime.h>
#include <thrust/binary_search.h>
#include <thrust/copy.h>
#include <thrust/count.h>
#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/extrema.h>
#include <thrust/fill.h>
#include <thrust/for_each.h>
#include <thrust/functional.h>
#include <thrust/gather.h>
#include <thrust/host_vector.h>
#include <thrust/inner_product.h>
#include <thrust/iterator/constant_iterator.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/discard_iterator.h>
#include <thrust/iterator/permutation_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/logical.h>
#include <thrust/partition.h>
#include <thrust/reduce.h>
#include <thrust/remove.h>
#include <thrust/replace.h>
#include <thrust/reverse.h>
#include <thrust/scan.h>
#include <thrust/scatter.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/transform.h>
#include <thrust/transform_reduce.h>
#include <thrust/tuple.h>
#include <thrust/unique.h>

struct Square {
  __host__ __device__ int operator()(int v) const { return v * v; }
};
struct Above {
  int limit;
  __host__ __device__ bool operator()(int v) const { return v > limit; }
};
struct Saxpy {
  int a;
  __host__ __device__ int operator()(int x, int y) const { return a * x + y; }
};
struct AddPair {
  template <class T> __host__ __device__ void operator()(T t) const { thrust::get<2>(t) = thrust::get<0>(t) + thrust::get<1>(t); }
};
__global__ void sums_rows(const int* x, int* out, int n) {
  out[threadIdx.x] = thrust::reduce(thrust::seq, x + threadIdx.x * n, x + (threadIdx.x + 1) * n);
}

extern "C" {
int h_reductions(const int* x, long long* out, int n) {
  thrust::device_ptr<const int> first(x), last = first + n;
  out[0] = thrust::reduce(first, last);
  out[1] = thrust::reduce(thrust::device, x, x + n, -7, thrust::maximum<int>());
  out[2] = thrust::transform_reduce(first, last, Square(), 0, thrust::plus<int>());
  out[3] = thrust::max_element(first, last) - first;
  out[4] = thrust::min_element(thrust::device, x, x + n) - x;
  out[5] = thrust::count_if(thrust::cuda::par, x, x + n, Above{100});
  out[6] = thrust::count(first, last, 3);
  out[7] = thrust::inner_product(first, last, first, 10);
  out[8] = thrust::find(first, last, 3) - first;
  out[9] = thrust::any_of(first, last, Above{1000}) * 2 + thrust::all_of(first, last, Above{-1000});
  out[10] = *thrust::max_element(first, last);
  out[11] = thrust::lower_bound(thrust::device, thrust::counting_iterator<int>(5), thrust::counting_iterator<int>(90), 30) - thrust::counting_iterator<int>(5);
  out[12] = thrust::reduce(thrust::constant_iterator<int>(4), thrust::constant_iterator<int>(4) + 6);
  return cudaGetLastError();
}
int h_orders(int* keys, int* values, int* falling, int n) {
  thrust::sort_by_key(thrust::device, keys, keys + n, values);
  thrust::device_ptr<int> f = thrust::device_pointer_cast(falling);
  thrust::sort(f, f + n, thrust::greater<int>());
  return cudaGetLastError();
}
int h_mappings(const int* x, int* out, int n) {
  thrust::device_ptr<const int> first(x);
  thrust::device_ptr<int> o(out);
  thrust::transform(first, first + n, o, Square());
  thrust::transform(thrust::device, x, x + n, x, out + n, Saxpy{3});
  thrust::inclusive_scan(first, first + n, o + 2 * n);
  thrust::exclusive_scan(thrust::device, x, x + n, out + 3 * n, 5, thrust::plus<int>());
  thrust::sequence(o + 4 * n, o + 5 * n, 10, 2);
  thrust::fill(thrust::device, out + 5 * n, out + 6 * n, 9);
  thrust::gather(thrust::device, out + 4 * n, out + 4 * n, x, out);  // nothing
  thrust::copy(thrust::device, x, x + n, out + 6 * n);
  thrust::reverse(o + 6 * n, o + 7 * n);
  auto zipped = thrust::make_zip_iterator(thrust::make_tuple(first, o + 5 * n, o + 7 * n));
  thrust::for_each(zipped, zipped + n, AddPair());
  thrust::counting_iterator<int> index(0);
  thrust::for_each(thrust::device, index, index + n, [=] __device__(int i) { out[8 * n + i] = x[n - 1 - i]; });
  return cudaGetLastError();
}
int h_selections(const int* x, int* out, int* numbers, int n) {
  thrust::device_ptr<const int> first(x);
  thrust::device_ptr<int> o(out);
  numbers[0] = thrust::copy_if(first, first + n, o, Above{0}) - o;
  thrust::copy(first, first + n, o + n);
  numbers[1] = thrust::unique(o + n, o + 2 * n) - (o + n);
  thrust::copy(first, first + n, o + 2 * n);
  numbers[2] = thrust::remove_if(thrust::device, out + 2 * n, out + 3 * n, Above{0}) - (out + 2 * n);
  auto ends = thrust::reduce_by_key(first, first + n, thrust::constant_iterator<int>(1), thrust::make_discard_iterator(), o + 3 * n);
  numbers[3] = ends.second - (o + 3 * n);
  return cudaGetLastError();
}
int h_vectors(const int* x, int* out, int n) {
  thrust::host_vector<int> host(x, x + n);
  thrust::device_vector<int> device = host;
  thrust::device_vector<int> twice(n, 3), copied;
  device[1] = 77;
  thrust::transform(device.begin(), device.end(), twice.begin(), twice.begin(), thrust::multiplies<int>());
  twice.resize(n + 2, 5);
  thrust::sort(twice.begin(), twice.end());
  copied = twice;
  thrust::copy(copied.begin(), copied.end(), out);
  host = device;
  const int* raw = thrust::raw_pointer_cast(twice.data());
  cudaMemcpy(out + n + 2, raw, sizeof(int), cudaMemcpyDeviceToHost);
  return host[1] + device[0] + thrust::reduce(host.begin(), host.end());
}
int h_in_kernels(const int* x, int* out, int rows, int n) {
  sums_rows<<<1, rows>>>(x, out, n);
  return cudaDeviceSynchronize();
}
// On a stream of its own: without waiting; then with.
int h_streams(int* x, int n) {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  thrust::fill(thrust::cuda::par_nosync.on(stream), x, x + n, 4);
  const int before = x[0];
  thrust::transform(thrust::cuda::par.on(stream), x, x + n, x, Square());
  return before * 100 + x[n - 1];
}
// A pointer without a policy is the host's.
int h_no_policy(int which) {
  int* x;
  cudaMalloc(&x, 40);
  int host[10];
  if (which == 0) thrust::fill(thrust::device, host, host + 10, 1);
  if (which == 1) thrust::fill(thrust::device, x, x + 13, 1);
  thrust::fill(host, host + 10, 3);
  return host[9];
}
}
