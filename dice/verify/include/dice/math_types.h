// Types to compute and to accumulate in: at::opmath_type and at::acc_type.
#pragma once
#include <dice/types.h>

namespace at {

template <class Value> struct OpMathType { using type = Value; };
template <> struct OpMathType<c10::Half> { using type = float; };
template <> struct OpMathType<c10::BFloat16> { using type = float; };
template <class Value> using opmath_type = typename OpMathType<Value>::type;

template <class Value, bool is_cuda> struct AccumulateType {
  using type = std::conditional_t<std::is_same_v<Value, bool>, bool, std::conditional_t<std::is_integral_v<Value>, int64_t, double>>;
};
template <> struct AccumulateType<float, true> { using type = float; };
template <> struct AccumulateType<c10::Half, true> { using type = float; };
template <> struct AccumulateType<c10::BFloat16, true> { using type = float; };
template <> struct AccumulateType<c10::Half, false> { using type = float; };
template <> struct AccumulateType<c10::BFloat16, false> { using type = float; };
template <class Value, bool is_cuda> using acc_type = typename AccumulateType<Value, is_cuda>::type;

}  // namespace at
