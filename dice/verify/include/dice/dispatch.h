// AT_DISPATCH_*: run a lambda with `scalar_t` bound to the C++ type of a run-time ScalarType.
#pragma once
#include <dice/types.h>

#define AT_PRIVATE_CASE_TYPE_USING_HINT(enum_type, HINT, ...)                      \
  case enum_type: {                                                               \
    using HINT [[maybe_unused]] = ::c10::impl::ScalarTypeToCPPTypeT<enum_type>;   \
    return __VA_ARGS__();                                                         \
  }
#define AT_DISPATCH_CASE(enum_type, ...) AT_PRIVATE_CASE_TYPE_USING_HINT(enum_type, scalar_t, __VA_ARGS__)
#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                                                              \
  [&] {                                                                                                  \
    const auto& the_type = TYPE;                                                                         \
    constexpr const char* at_dispatch_name = NAME;                                                       \
    const ::c10::ScalarType dice_type = ::dice::dispatched_type(the_type);                               \
    switch (dice_type) {                                                                                 \
      __VA_ARGS__                                                                                        \
      default:                                                                                           \
        TORCH_CHECK_NOT_IMPLEMENTED(false, '"', at_dispatch_name, "\" not implemented for '", dice_type, "'"); \
    }                                                                                                    \
  }()

namespace dice {
inline c10::ScalarType dispatched_type(c10::ScalarType type) { return type; }
}  // namespace dice

// The sets of types, each listed once. The `_AND*` forms add named types in front.
#define AT_DISPATCH_CASE_FLOATING_TYPES(...)                   \
  AT_DISPATCH_CASE(::c10::ScalarType::Double, __VA_ARGS__)     \
  AT_DISPATCH_CASE(::c10::ScalarType::Float, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(...)          \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__)                 \
  AT_DISPATCH_CASE(::c10::ScalarType::Half, __VA_ARGS__)
#define AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(...)           \
  AT_DISPATCH_CASE(::c10::ScalarType::Half, __VA_ARGS__)       \
  AT_DISPATCH_CASE(::c10::ScalarType::BFloat16, __VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...)                   \
  AT_DISPATCH_CASE(::c10::ScalarType::Byte, __VA_ARGS__)       \
  AT_DISPATCH_CASE(::c10::ScalarType::Char, __VA_ARGS__)       \
  AT_DISPATCH_CASE(::c10::ScalarType::Int, __VA_ARGS__)        \
  AT_DISPATCH_CASE(::c10::ScalarType::Long, __VA_ARGS__)       \
  AT_DISPATCH_CASE(::c10::ScalarType::Short, __VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES(...)                        \
  AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__)                 \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__)

#define DICE_CASES_1(t1, ...) AT_DISPATCH_CASE(t1, __VA_ARGS__)
#define DICE_CASES_2(t1, t2, ...) DICE_CASES_1(t1, __VA_ARGS__) DICE_CASES_1(t2, __VA_ARGS__)
#define DICE_CASES_3(t1, t2, t3, ...) DICE_CASES_2(t1, t2, __VA_ARGS__) DICE_CASES_1(t3, __VA_ARGS__)
#define DICE_CASES_4(t1, t2, t3, t4, ...) DICE_CASES_3(t1, t2, t3, __VA_ARGS__) DICE_CASES_1(t4, __VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(__VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(T1, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) DICE_CASES_1(T1, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(T1, T2, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) DICE_CASES_2(T1, T2, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND3(T1, T2, T3, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) DICE_CASES_3(T1, T2, T3, __VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES_AND(T1, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) DICE_CASES_1(T1, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(T1, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) DICE_CASES_1(T1, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(T1, T2, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) DICE_CASES_2(T1, T2, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND3(T1, T2, T3, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) DICE_CASES_3(T1, T2, T3, __VA_ARGS__))
#define AT_DISPATCH_INDEX_TYPES(TYPE, NAME, ...)                                            \
  AT_DISPATCH_SWITCH(TYPE, NAME,                                                            \
                     AT_PRIVATE_CASE_TYPE_USING_HINT(::c10::ScalarType::Int, index_t, __VA_ARGS__) \
                     AT_PRIVATE_CASE_TYPE_USING_HINT(::c10::ScalarType::Long, index_t, __VA_ARGS__))
