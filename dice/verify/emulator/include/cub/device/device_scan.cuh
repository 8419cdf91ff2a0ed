// cub::DeviceScan
#pragma once
#include <cub/device/device_storage.cuh>

namespace cub {

struct DeviceScan {
  template <class In, class Out, class Operation, class T, class N>
  static cudaError_t ExclusiveScan(void* storage, size_t& bytes, In in, Out out, Operation operation, T initial, N n, cudaStream_t stream = nullptr) {
    using Accumulator = details::AccumulatorOf<Operation, T, details::ValueOf<In>>;
    return scan<Accumulator>(storage, bytes, in, out, operation, std::optional<Accumulator>(static_cast<Accumulator>(initial)), false, n, stream);
  }
  template <class Data, class Operation, class T, class N, class = std::enable_if_t<std::is_integral_v<N>>>
  static cudaError_t ExclusiveScan(void* storage, size_t& bytes, Data data, Operation operation, T initial, N n, cudaStream_t stream = nullptr) {
    return ExclusiveScan(storage, bytes, data, data, operation, initial, n, stream);
  }
  template <class In, class Out, class N>
  static cudaError_t ExclusiveSum(void* storage, size_t& bytes, In in, Out out, N n, cudaStream_t stream = nullptr) {
    return ExclusiveScan(storage, bytes, in, out, ::cuda::std::plus<>(), details::ValueOf<In>{}, n, stream);
  }
  template <class Data, class N, class = std::enable_if_t<std::is_integral_v<N>>>
  static cudaError_t ExclusiveSum(void* storage, size_t& bytes, Data data, N n, cudaStream_t stream = nullptr) {
    return ExclusiveSum(storage, bytes, data, data, n, stream);
  }
  template <class In, class Out, class Operation, class N>
  static cudaError_t InclusiveScan(void* storage, size_t& bytes, In in, Out out, Operation operation, N n, cudaStream_t stream = nullptr) {
    using T = details::ValueOf<In>;
    using Accumulator = details::AccumulatorOf<Operation, T, T>;
    return scan<Accumulator>(storage, bytes, in, out, operation, std::optional<Accumulator>(), true, n, stream);
  }
  template <class Data, class Operation, class N, class = std::enable_if_t<std::is_integral_v<N>>>
  static cudaError_t InclusiveScan(void* storage, size_t& bytes, Data data, Operation operation, N n, cudaStream_t stream = nullptr) {
    return InclusiveScan(storage, bytes, data, data, operation, n, stream);
  }
  template <class In, class Out, class Operation, class T, class N>
  static cudaError_t InclusiveScanInit(void* storage, size_t& bytes, In in, Out out, Operation operation, T initial, N n, cudaStream_t stream = nullptr) {
    using Accumulator = details::AccumulatorOf<Operation, T, details::ValueOf<In>>;
    return scan<Accumulator>(storage, bytes, in, out, operation, std::optional<Accumulator>(static_cast<Accumulator>(initial)), true, n, stream);
  }
  template <class In, class Out, class N>
  static cudaError_t InclusiveSum(void* storage, size_t& bytes, In in, Out out, N n, cudaStream_t stream = nullptr) {
    return InclusiveScan(storage, bytes, in, out, ::cuda::std::plus<>(), n, stream);
  }
  template <class Data, class N, class = std::enable_if_t<std::is_integral_v<N>>>
  static cudaError_t InclusiveSum(void* storage, size_t& bytes, Data data, N n, cudaStream_t stream = nullptr) {
    return InclusiveSum(storage, bytes, data, data, n, stream);
  }

  // Anew for each run of equal keys.
  template <class Keys, class In, class Out, class Operation, class T, class N, class Equal = std::equal_to<>>
  static cudaError_t ExclusiveScanByKey(void* storage, size_t& bytes, Keys keys, In in, Out out, Operation operation, T initial, N n,
                                        Equal equal = {}, cudaStream_t stream = nullptr) {
    using Accumulator = details::AccumulatorOf<Operation, T, details::ValueOf<In>>;
    return by_key<Accumulator>(storage, bytes, keys, in, out, operation, std::optional<Accumulator>(static_cast<Accumulator>(initial)), false, n, equal, stream);
  }
  template <class Keys, class In, class Out, class Operation, class N, class Equal = std::equal_to<>>
  static cudaError_t InclusiveScanByKey(void* storage, size_t& bytes, Keys keys, In in, Out out, Operation operation, N n, Equal equal = {},
                                        cudaStream_t stream = nullptr) {
    using T = details::ValueOf<In>;
    using Accumulator = details::AccumulatorOf<Operation, T, T>;
    return by_key<Accumulator>(storage, bytes, keys, in, out, operation, std::optional<Accumulator>(), true, n, equal, stream);
  }
  template <class Keys, class In, class Out, class N, class Equal = std::equal_to<>>
  static cudaError_t ExclusiveSumByKey(void* storage, size_t& bytes, Keys keys, In in, Out out, N n, Equal equal = {}, cudaStream_t stream = nullptr) {
    return ExclusiveScanByKey(storage, bytes, keys, in, out, ::cuda::std::plus<>(), details::ValueOf<In>{}, n, equal, stream);
  }
  template <class Keys, class In, class Out, class N, class Equal = std::equal_to<>>
  static cudaError_t InclusiveSumByKey(void* storage, size_t& bytes, Keys keys, In in, Out out, N n, Equal equal = {}, cudaStream_t stream = nullptr) {
    return InclusiveScanByKey(storage, bytes, keys, in, out, ::cuda::std::plus<>(), n, equal, stream);
  }

 private:
  template <class T, class In, class Out, class Operation>
  static cudaError_t scan(void* storage, size_t& bytes, In in, Out out, Operation operation, std::optional<T> before, bool inclusive,
                          details::Count n, cudaStream_t stream) {
    const auto work = [=]() mutable { ::dice_emu::scan<T>(in, out, n, operation, before, inclusive); };
    return details::device_wide("DeviceScanKernel", storage, bytes, details::for_tiles(n, 2 * sizeof(T)), stream, work, in, out);
  }
  template <class T, class Keys, class In, class Out, class Operation, class Equal>
  static cudaError_t by_key(void* storage, size_t& bytes, Keys keys, In in, Out out, Operation operation, std::optional<T> before,
                            bool inclusive, details::Count n, Equal equal, cudaStream_t stream) {
    const auto work = [=]() mutable {
      ::dice_emu::runs(keys, n, equal, [&](details::Count first, details::Count end) {
        ::dice_emu::scan<T>(in + first, out + first, end - first, operation, before, inclusive);
      });
    };
    return details::device_wide("DeviceScanByKeyKernel", storage, bytes, details::for_tiles(n, 2 * sizeof(T)), stream, work, keys, in, out);
  }
};

}  // namespace cub
