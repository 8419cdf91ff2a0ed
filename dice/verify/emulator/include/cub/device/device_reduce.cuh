// cub::DeviceReduce and cub::DeviceSegmentedReduce
#pragma once
#include <cub/device/device_storage.cuh>

namespace cub {

namespace details {

// The place and the value of the extreme of at least one, the first among equals.
template <class In, class Better>
KeyValuePair<Count, ValueOf<In>> extreme(In in, Count n, Better better) {
  KeyValuePair<Count, ValueOf<In>> best{0, in[0]};
  for (Count i = 1; i < n; ++i) {
    const ValueOf<In> value = in[i];
    if (better(value, best.value)) best = {i, value};
  }
  return best;
}
struct Above {
  template <class T> bool operator()(const T& a, const T& b) const { return a > b; }
};
struct Below {
  template <class T> bool operator()(const T& a, const T& b) const { return a < b; }
};

template <class Operation, class In, class T>
auto reduced(In in, Count n, Operation operation, T initial) {
  using Accumulator = AccumulatorOf<Operation, T, ValueOf<In>>;
  const auto first = static_cast<Accumulator>(initial);
  return n <= 0 ? first : static_cast<Accumulator>(operation(first, ::dice_emu::fold<Accumulator>(in, n, operation)));
}

// What an old ArgMax puts for a range: KeyValuePair<int, T>. For none, CUB says 1 and the worst of values.
template <class Out, class In, class Better>
void put_pair(Out out, In in, Count n, Better better, ValueOf<In> worst) {
  using Pair = ResultOf<Out, ArgIndexInputIterator<In, int>>;
  KeyValuePair<Count, ValueOf<In>> best{1, worst};
  if (n > 0) best = extreme(in, n, better);
  Pair pair;
  pair.key = static_cast<typename Pair::Key>(best.key);
  pair.value = best.value;
  *out = pair;
}

}  // namespace details

struct DeviceReduce {
  template <class In, class Out, class Operation, class T, class N>
  static cudaError_t Reduce(void* storage, size_t& bytes, In in, Out out, N n, Operation operation, T initial, cudaStream_t stream = nullptr) {
    const size_t needed = details::for_tiles(n, sizeof(details::AccumulatorOf<Operation, T, details::ValueOf<In>>));
    return details::device_wide("DeviceReduceKernel", storage, bytes, needed, stream,
                                [=]() mutable { *out = details::reduced(in, n, operation, initial); }, in, out);
  }
  template <class In, class Out, class N>
  static cudaError_t Sum(void* storage, size_t& bytes, In in, Out out, N n, cudaStream_t stream = nullptr) {
    return Reduce(storage, bytes, in, out, n, ::cuda::std::plus<>(), details::ResultOf<Out, In>{}, stream);
  }
  template <class In, class Out, class N>
  static cudaError_t Min(void* storage, size_t& bytes, In in, Out out, N n, cudaStream_t stream = nullptr) {
    return Reduce(storage, bytes, in, out, n, ::cuda::minimum<>(), details::greatest<details::ValueOf<In>>(), stream);
  }
  template <class In, class Out, class N>
  static cudaError_t Max(void* storage, size_t& bytes, In in, Out out, N n, cudaStream_t stream = nullptr) {
    return Reduce(storage, bytes, in, out, n, ::cuda::maximum<>(), details::smallest<details::ValueOf<In>>(), stream);
  }
  template <class In, class Out, class Index>
  static cudaError_t ArgMin(void* storage, size_t& bytes, In in, Out out, Index index, std::int64_t n, cudaStream_t stream = nullptr) {
    return arg(storage, bytes, in, out, index, n, details::Below(), stream);
  }
  template <class In, class Out, class Index>
  static cudaError_t ArgMax(void* storage, size_t& bytes, In in, Out out, Index index, std::int64_t n, cudaStream_t stream = nullptr) {
    return arg(storage, bytes, in, out, index, n, details::Above(), stream);
  }
  template <class In, class Out>
  static cudaError_t ArgMin(void* storage, size_t& bytes, In in, Out out, int n, cudaStream_t stream = nullptr) {
    return arg(storage, bytes, in, out, n, details::Below(), details::greatest<details::ValueOf<In>>(), stream);
  }
  template <class In, class Out>
  static cudaError_t ArgMax(void* storage, size_t& bytes, In in, Out out, int n, cudaStream_t stream = nullptr) {
    return arg(storage, bytes, in, out, n, details::Above(), details::smallest<details::ValueOf<In>>(), stream);
  }
  template <class In, class Out, class Operation, class Function, class T, class N>
  static cudaError_t TransformReduce(void* storage, size_t& bytes, In in, Out out, N n, Operation operation, Function function, T initial,
                                     cudaStream_t stream = nullptr) {
    return Reduce(storage, bytes, thrust::transform_iterator<Function, In>(in, function), out, n, operation, initial, stream);
  }
  template <class Keys, class Unique, class Values, class Out, class Number, class Operation, class N>
  static cudaError_t ReduceByKey(void* storage, size_t& bytes, Keys keys, Unique unique, Values values, Out out, Number number,
                                 Operation operation, N n, cudaStream_t stream = nullptr) {
    const auto work = [=]() mutable {
      using T = details::ValueOf<Values>;
      const auto equal = [](const auto& a, const auto& b) { return a == b; };
      details::Count found = 0;
      ::dice_emu::runs(keys, n, equal, [&](details::Count first, details::Count end) {
        unique[found] = keys[first];
        out[found++] = ::dice_emu::fold<details::AccumulatorOf<Operation, T, T>>(values + first, end - first, operation);
      });
      *number = found;
    };
    return details::device_wide("DeviceReduceByKeyKernel", storage, bytes, details::for_tiles(n, 32), stream, work, keys, unique, values, out, number);
  }

 private:
  template <class In, class Out, class Index, class Better>
  static cudaError_t arg(void* storage, size_t& bytes, In in, Out out, Index index, details::Count n, Better better, cudaStream_t stream) {
    const auto work = [=]() mutable {
      if (n <= 0) return;
      const auto best = details::extreme(in, n, better);
      *out = best.value;
      *index = best.key;
    };
    return details::device_wide("DeviceReduceKernel", storage, bytes, details::for_tiles(n, 16), stream, work, in, out, index);
  }
  template <class In, class Out, class Better>
  static cudaError_t arg(void* storage, size_t& bytes, In in, Out out, int n, Better better, details::ValueOf<In> worst, cudaStream_t stream) {
    return details::device_wide("DeviceReduceKernel", storage, bytes, details::for_tiles(n, 16), stream,
                                [=]() mutable { details::put_pair(out, in, n, better, worst); }, in, out);
  }
};

// Segment s is [begin[s], end[s]).
struct DeviceSegmentedReduce {
  template <class In, class Out, class Begin, class End, class Operation, class T>
  static cudaError_t Reduce(void* storage, size_t& bytes, In in, Out out, std::int64_t segments, Begin begin, End end, Operation operation,
                            T initial, cudaStream_t stream = nullptr) {
    return each(storage, bytes, in, out, segments, begin, end, stream,
                [=](auto to, auto from, details::Count n) mutable { *to = details::reduced(from, n, operation, initial); });
  }
  template <class In, class Out, class Begin, class End>
  static cudaError_t Sum(void* storage, size_t& bytes, In in, Out out, std::int64_t segments, Begin begin, End end, cudaStream_t stream = nullptr) {
    return Reduce(storage, bytes, in, out, segments, begin, end, ::cuda::std::plus<>(), details::ResultOf<Out, In>{}, stream);
  }
  template <class In, class Out, class Begin, class End>
  static cudaError_t Min(void* storage, size_t& bytes, In in, Out out, std::int64_t segments, Begin begin, End end, cudaStream_t stream = nullptr) {
    return Reduce(storage, bytes, in, out, segments, begin, end, ::cuda::minimum<>(), details::greatest<details::ValueOf<In>>(), stream);
  }
  template <class In, class Out, class Begin, class End>
  static cudaError_t Max(void* storage, size_t& bytes, In in, Out out, std::int64_t segments, Begin begin, End end, cudaStream_t stream = nullptr) {
    return Reduce(storage, bytes, in, out, segments, begin, end, ::cuda::maximum<>(), details::smallest<details::ValueOf<In>>(), stream);
  }
  template <class In, class Out, class Begin, class End>
  static cudaError_t ArgMin(void* storage, size_t& bytes, In in, Out out, std::int64_t segments, Begin begin, End end, cudaStream_t stream = nullptr) {
    return each(storage, bytes, in, out, segments, begin, end, stream, [](auto to, auto from, details::Count n) {
      details::put_pair(to, from, n, details::Below(), details::greatest<details::ValueOf<In>>());
    });
  }
  template <class In, class Out, class Begin, class End>
  static cudaError_t ArgMax(void* storage, size_t& bytes, In in, Out out, std::int64_t segments, Begin begin, End end, cudaStream_t stream = nullptr) {
    return each(storage, bytes, in, out, segments, begin, end, stream, [](auto to, auto from, details::Count n) {
      details::put_pair(to, from, n, details::Above(), details::smallest<details::ValueOf<In>>());
    });
  }

 private:
  template <class In, class Out, class Begin, class End, class Each>
  static cudaError_t each(void* storage, size_t& bytes, In in, Out out, details::Count segments, Begin begin, End end, cudaStream_t stream, Each one) {
    const auto work = [=]() mutable {
      for (details::Count s = 0; s < segments; ++s) one(out + s, in + begin[s], static_cast<details::Count>(end[s]) - begin[s]);
    };
    return details::device_wide("DeviceSegmentedReduceKernel", storage, bytes, 1, stream, work, in, out, begin, end);
  }
};

}  // namespace cub
