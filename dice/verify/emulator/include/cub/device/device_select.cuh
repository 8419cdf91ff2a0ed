// cub::DeviceSelect, cub::DevicePartition and cub::DeviceRunLengthEncode
#pragma once
#include <cub/device/device_storage.cuh>

namespace cub {

namespace details {

// Writes what is `kept`, in order; how many.
template <class In, class Out, class Kept>
Count select(In in, Out out, Count n, Kept kept) {
  Count found = 0;
  for (Count i = 0; i < n; ++i)
    if (kept(i)) out[found++] = static_cast<ValueOf<In>>(in[i]);
  return found;
}

}  // namespace details

struct DeviceSelect {
  template <class In, class Flags, class Out, class Number>
  static cudaError_t Flagged(void* storage, size_t& bytes, In in, Flags flags, Out out, Number number, std::int64_t n, cudaStream_t stream = nullptr) {
    const auto work = [=]() mutable { *number = details::select(in, out, n, [&](details::Count i) { return static_cast<bool>(flags[i]); }); };
    return details::device_wide(kKernel, storage, bytes, details::for_tiles(n, 8), stream, work, in, flags, out, number);
  }
  template <class Data, class Flags, class Number>
  static cudaError_t Flagged(void* storage, size_t& bytes, Data data, Flags flags, Number number, std::int64_t n, cudaStream_t stream = nullptr) {
    return Flagged(storage, bytes, data, flags, data, number, n, stream);
  }
  template <class In, class Out, class Number, class Wanted>
  static cudaError_t If(void* storage, size_t& bytes, In in, Out out, Number number, std::int64_t n, Wanted wanted, cudaStream_t stream = nullptr) {
    const auto work = [=]() mutable { *number = details::select(in, out, n, [&](details::Count i) { return static_cast<bool>(wanted(in[i])); }); };
    return details::device_wide(kKernel, storage, bytes, details::for_tiles(n, 8), stream, work, in, out, number);
  }
  template <class Data, class Number, class Wanted, class = std::enable_if_t<!std::is_integral_v<Wanted>>>
  static cudaError_t If(void* storage, size_t& bytes, Data data, Number number, std::int64_t n, Wanted wanted, cudaStream_t stream = nullptr) {
    return If(storage, bytes, data, data, number, n, wanted, stream);
  }
  template <class In, class Out, class Number>
  static cudaError_t Unique(void* storage, size_t& bytes, In in, Out out, Number number, std::int64_t n, cudaStream_t stream = nullptr) {
    const auto work = [=]() mutable {
      *number = details::select(in, out, n, [&](details::Count i) { return i == 0 || !(in[i] == in[i - 1]); });
    };
    return details::device_wide("DeviceUniqueKernel", storage, bytes, details::for_tiles(n, 8), stream, work, in, out, number);
  }
  template <class Keys, class Values, class KeysOut, class ValuesOut, class Number, class N>
  static cudaError_t UniqueByKey(void* storage, size_t& bytes, Keys keys, Values values, KeysOut keys_out, ValuesOut values_out, Number number, N n,
                                 cudaStream_t stream = nullptr) {
    const auto work = [=]() mutable {
      const auto first = [&](details::Count i) { return i == 0 || !(keys[i] == keys[i - 1]); };
      details::select(values, values_out, n, first);
      *number = details::select(keys, keys_out, n, first);
    };
    return details::device_wide("DeviceUniqueByKeyKernel", storage, bytes, details::for_tiles(n, 8), stream, work, keys, values, keys_out, values_out, number);
  }

 private:
  static constexpr const char* kKernel = "DeviceSelectKernel";
};

// What is selected comes first, in order; the rest behind it, in reverse.
struct DevicePartition {
  template <class In, class Flags, class Out, class Number>
  static cudaError_t Flagged(void* storage, size_t& bytes, In in, Flags flags, Out out, Number number, std::int64_t n, cudaStream_t stream = nullptr) {
    return part(storage, bytes, in, out, number, n, stream, [=](details::Count i) { return static_cast<bool>(flags[i]); }, flags);
  }
  template <class In, class Out, class Number, class Wanted>
  static cudaError_t If(void* storage, size_t& bytes, In in, Out out, Number number, std::int64_t n, Wanted wanted, cudaStream_t stream = nullptr) {
    return part(storage, bytes, in, out, number, n, stream, [=](details::Count i) mutable { return static_cast<bool>(wanted(in[i])); }, in);
  }

 private:
  template <class In, class Out, class Number, class Kept, class Other>
  static cudaError_t part(void* storage, size_t& bytes, In in, Out out, Number number, details::Count n, cudaStream_t stream, Kept kept, Other other) {
    const auto work = [=]() mutable {
      details::Count found = 0, left = 0;
      for (details::Count i = 0; i < n; ++i) out[kept(i) ? found++ : n - 1 - left++] = in[i];
      *number = found;
    };
    return details::device_wide("DevicePartitionKernel", storage, bytes, details::for_tiles(n, 8), stream, work, in, out, number, other);
  }
};

struct DeviceRunLengthEncode {
  template <class In, class Unique, class Lengths, class Number, class N>
  static cudaError_t Encode(void* storage, size_t& bytes, In in, Unique unique, Lengths lengths, Number number, N n, cudaStream_t stream = nullptr) {
    const auto work = [=]() mutable {
      const auto equal = [](const auto& a, const auto& b) { return a == b; };
      details::Count found = 0;
      ::dice_emu::runs(in, n, equal, [&](details::Count first, details::Count end) {
        unique[found] = in[first];
        lengths[found++] = end - first;
      });
      *number = found;
    };
    return details::device_wide("DeviceRleKernel", storage, bytes, details::for_tiles(n, 16), stream, work, in, unique, lengths, number);
  }
};

}  // namespace cub
