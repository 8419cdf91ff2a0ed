// Casters: C++ values to and from Python, with pybind11's rules about what fits.
#pragma once
#include <dice/tensor.h>

#if !defined(DICE_DEVICE_PASS)

namespace dice {

Object utf8(std::string_view text);

// Bodies of what is declared here are in support.cpp.
bool load_integer(PyObject* object, bool is_signed, uint64_t& bits);
bool load_real(PyObject* object, double& out);

template <class Number>
constexpr bool is_plain_integer = std::is_integral_v<Number> && !std::is_same_v<Number, bool> && !std::is_same_v<Number, char>;

template <class Number>
struct Caster<Number, std::enable_if_t<is_plain_integer<Number>>> {
  static const char* name() { return "int"; }
  static bool load(PyObject* object, std::optional<Number>& out) {
    using Wide = std::conditional_t<std::is_signed_v<Number>, int64_t, uint64_t>;
    uint64_t bits = 0;
    if (!load_integer(object, std::is_signed_v<Number>, bits)) return false;
    const Wide wide = static_cast<Wide>(bits);
    out = static_cast<Number>(wide);
    return static_cast<Wide>(*out) == wide;
  }
  static Object cast(Number value) {
    if constexpr (std::is_signed_v<Number>) return checked(PyLong_FromLongLong(value));
    else return checked(PyLong_FromUnsignedLongLong(value));
  }
};

template <class Number>
struct Caster<Number, std::enable_if_t<std::is_floating_point_v<Number>>> {
  static const char* name() { return "float"; }
  static bool load(PyObject* object, std::optional<Number>& out) {
    double real = 0;
    if (!load_real(object, real)) return false;
    out = static_cast<Number>(real);
    return true;
  }
  static Object cast(Number value) { return checked(PyFloat_FromDouble(static_cast<double>(value))); }
};

#define DICE_DECLARED_CASTER(type, python_name, parameter)           \
  template <>                                                        \
  struct Caster<type> {                                              \
    static const char* name() { return python_name; }                \
    static bool load(PyObject* object, std::optional<type>& out);    \
    static Object cast(parameter value);                             \
  };
DICE_DECLARED_CASTER(bool, "bool", bool)
DICE_DECLARED_CASTER(std::string, "str", const std::string&)
DICE_DECLARED_CASTER(at::Tensor, "torch.Tensor", const at::Tensor&)
DICE_DECLARED_CASTER(c10::Scalar, "Number", const c10::Scalar&)
DICE_DECLARED_CASTER(c10::Device, "torch.device", c10::Device)  // crosses as type * 256 + index + 1
#undef DICE_DECLARED_CASTER

template <>
struct Caster<const char*> {
  static Object cast(const char* value) { return utf8(value); }
};
template <>
struct Caster<std::nullopt_t> {
  static Object cast(std::nullopt_t) { return Object::borrow(none()); }
};

// Values that Python sees as objects of torch: dtype, device, layout, memory_format.
bool load_torch_value(const char* kind, PyObject* object, int64_t& out);
Object cast_torch_value(const char* kind, int64_t value);
#define DICE_TORCH_VALUE(type, kind)                                                \
  template <>                                                                       \
  struct Caster<type> {                                                             \
    static const char* name() { return "torch." kind; }                             \
    static bool load(PyObject* object, std::optional<type>& out) {                  \
      int64_t number = 0;                                                           \
      if (!load_torch_value(kind, object, number)) return false;                    \
      out = static_cast<type>(number);                                              \
      return true;                                                                  \
    }                                                                               \
    static Object cast(type value) { return cast_torch_value(kind, static_cast<int64_t>(value)); } \
  };
DICE_TORCH_VALUE(c10::ScalarType, "dtype")
DICE_TORCH_VALUE(c10::Layout, "layout")
DICE_TORCH_VALUE(c10::MemoryFormat, "memory_format")
#undef DICE_TORCH_VALUE
template <>
struct Caster<caffe2::TypeMeta> {
  static Object cast(caffe2::TypeMeta type) { return Caster<c10::ScalarType>::cast(type.toScalarType()); }
};
template <>
struct Caster<c10::DeviceType> {
  static Object cast(c10::DeviceType type) { return Caster<c10::Device>::cast(type); }
};

template <class Item>
struct Caster<std::optional<Item>> {
  static const char* name() { return Caster<Item>::name(); }
  static bool load(PyObject* object, std::optional<std::optional<Item>>& out) {
    out.emplace();
    return object == none() || Caster<Item>::load(object, *out);
  }
  static Object cast(const std::optional<Item>& value) { return value ? Caster<Item>::cast(*value) : Object::borrow(none()); }
};

template <class Items>
Object cast_list(const Items& items) {
  Object list = checked(PyList_New(static_cast<ptrdiff_t>(items.size())));
  ptrdiff_t index = 0;
  for (const auto& item : items) PyList_SetItem(list.get(), index++, to_python(static_cast<const typename Items::value_type&>(item)).release());
  return list;
}
// Loads every item of a list or tuple with `accept(index, item)`.
template <class Item, class Accept>
bool load_items(PyObject* object, Accept accept) {
  if (!is_list(object) && !is_tuple(object)) return false;
  const ptrdiff_t size = PySequence_Size(object);
  for (ptrdiff_t index = 0; index < size; ++index) {
    const Object element = checked(PySequence_GetItem(object, index));
    std::optional<Item> item;
    if (!Caster<Item>::load(element.get(), item)) return false;
    accept(static_cast<size_t>(index), std::move(*item));
  }
  return true;
}
template <class Item>
struct Caster<std::vector<Item>> {
  static const char* name() { return "list"; }
  static bool load(PyObject* object, std::optional<std::vector<Item>>& out) {
    out.emplace();
    return load_items<Item>(object, [&](size_t, Item&& item) { out->push_back(std::move(item)); });
  }
  static Object cast(const std::vector<Item>& items) { return cast_list(items); }
};
template <class Item, size_t count>
struct Caster<std::array<Item, count>> {
  static const char* name() { return "list"; }
  static bool load(PyObject* object, std::optional<std::array<Item, count>>& out) {
    if ((!is_list(object) && !is_tuple(object)) || PySequence_Size(object) != static_cast<ptrdiff_t>(count)) return false;
    out.emplace();
    return load_items<Item>(object, [&](size_t index, Item&& item) { (*out)[index] = std::move(item); });
  }
  static Object cast(const std::array<Item, count>& items) { return cast_list(items); }
};
template <class Item>
struct Caster<c10::ArrayRef<Item>> {
  static const char* name() { return "list"; }
  static Object cast(c10::ArrayRef<Item> items) { return cast_list(items); }
};

template <class Tuple, size_t... index>
Object cast_tuple(const Tuple& values, std::index_sequence<index...>) {
  Object tuple = checked(PyTuple_New(sizeof...(index)));
  (PyTuple_SetItem(tuple.get(), index, to_python(std::get<index>(values)).release()), ...);
  return tuple;
}
template <class Tuple, size_t... index>
bool load_tuple(PyObject* object, std::optional<Tuple>& out, std::index_sequence<index...>) {
  if ((!is_list(object) && !is_tuple(object)) || PySequence_Size(object) != static_cast<ptrdiff_t>(sizeof...(index))) return false;
  std::tuple<std::optional<std::tuple_element_t<index, Tuple>>...> items;
  const bool fits = (Caster<std::tuple_element_t<index, Tuple>>::load(checked(PySequence_GetItem(object, index)).get(), std::get<index>(items)) && ...);
  if (fits) out.emplace(std::move(*std::get<index>(items))...);
  return fits;
}
template <class... Items>
struct Caster<std::tuple<Items...>> {
  static const char* name() { return "tuple"; }
  static bool load(PyObject* object, std::optional<std::tuple<Items...>>& out) { return load_tuple(object, out, std::index_sequence_for<Items...>()); }
  static Object cast(const std::tuple<Items...>& values) { return cast_tuple(values, std::index_sequence_for<Items...>()); }
};
template <class First, class Second>
struct Caster<std::pair<First, Second>> {
  static const char* name() { return "tuple"; }
  static bool load(PyObject* object, std::optional<std::pair<First, Second>>& out) { return load_tuple(object, out, std::make_index_sequence<2>()); }
  static Object cast(const std::pair<First, Second>& values) { return cast_tuple(values, std::make_index_sequence<2>()); }
};

template <class Value>
Value from_python(PyObject* object) {
  std::optional<Value> value;
  TORCH_CHECK(Caster<Value>::load(object, value), "PyTorch returned a value of an unexpected type");
  return std::move(*value);
}

}  // namespace dice

#endif  // !DICE_DEVICE_PASS
