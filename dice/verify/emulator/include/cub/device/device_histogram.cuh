// cub::DeviceHistogram of one channel
#pragma once
#include <cub/device/device_storage.cuh>

namespace cub {

struct DeviceHistogram {
  // Of `levels` - 1 bins of one width, upper bounds not included. What is in none is not counted.
  template <class Samples, class Counter, class Level, class N>
  static cudaError_t HistogramEven(void* storage, size_t& bytes, Samples samples, Counter* histogram, int levels, Level lower, Level upper, N n,
                                   cudaStream_t stream = nullptr) {
    const auto work = [=]() mutable {
      for (int bin = 0; bin < levels - 1; ++bin) histogram[bin] = 0;
      for (details::Count i = 0; i < n; ++i) {
        const auto sample = static_cast<Level>(samples[i]);
        if (!(sample >= lower && sample < upper)) continue;
        int bin;
        if constexpr (std::is_integral_v<Level>) {
          bin = static_cast<int>(static_cast<unsigned long long>(sample - lower) * static_cast<unsigned long long>(levels - 1) /
                                 static_cast<unsigned long long>(upper - lower));
        } else {
          bin = static_cast<int>((sample - lower) * (static_cast<Level>(levels - 1) / (upper - lower)));
        }
        histogram[bin < levels - 1 ? bin : levels - 2] += 1;
      }
    };
    return run(storage, bytes, samples, histogram, levels, work, stream);
  }
  // Bin i holds what is from bounds[i] on and below bounds[i + 1].
  template <class Samples, class Counter, class Level, class N>
  static cudaError_t HistogramRange(void* storage, size_t& bytes, Samples samples, Counter* histogram, int levels, const Level* bounds, N n,
                                    cudaStream_t stream = nullptr) {
    const auto work = [=]() mutable {
      for (int bin = 0; bin < levels - 1; ++bin) histogram[bin] = 0;
      for (details::Count i = 0; i < n; ++i) {
        const auto place = std::upper_bound(bounds, bounds + levels, static_cast<Level>(samples[i])) - bounds;
        if (place > 0 && place < levels) histogram[place - 1] += 1;
      }
    };
    return run(storage, bytes, samples, histogram, levels, work, stream);
  }

 private:
  template <class Samples, class Counter, class Work>
  static cudaError_t run(void* storage, size_t& bytes, Samples samples, Counter* histogram, int levels, const Work& work, cudaStream_t stream) {
    if (levels < 2) return cudaErrorInvalidValue;
    return details::device_wide("DeviceHistogramSweepKernel", storage, bytes, 1023, stream, work, samples, histogram);
  }
};

}  // namespace cub
