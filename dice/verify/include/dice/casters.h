// Casters: C++ values to and from Python, with pybind11's rules about what fits.
#pragma once
#include <dice/tensor.h>

#if !defined(DICE_DEVICE_PASS)

namespace dice {

inline Object utf8(std::string_view text) { return checked(PyUnicode_FromStringAndSize(text.data(), static_cast<ptrdiff_t>(text.size()))); }

template <class Number>
struct Caster<Number, std::enable_if_t<std::is_integral_v<Number> && !std::is_same_v<Number, bool> && !std::is_same_v<Number, char>>> {
  static const char* name() { return "int"; }
  static bool load(PyObject* object, std::optional<Number>& out) {
    if (is_float(object)) return false;
    Object integer(PyNumber_Index(object));
    if (!integer) {
      PyErr_Clear();
      if (!PyNumber_Check(object)) return false;
      integer = Object(PyNumber_Long(object));
    }
    if (!integer) return PyErr_Clear(), false;
    using Wide = std::conditional_t<std::is_signed_v<Number>, long long, unsigned long long>;
    Wide wide;
    if constexpr (std::is_signed_v<Number>) wide = PyLong_AsLongLong(integer.get());
    else wide = PyLong_AsUnsignedLongLong(integer.get());
    if (PyErr_Occurred() != nullptr) return PyErr_Clear(), false;
    if (wide < static_cast<Wide>(std::numeric_limits<Number>::min()) || wide > static_cast<Wide>(std::numeric_limits<Number>::max())) return false;
    out = static_cast<Number>(wide);
    return true;
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
    if (is_unicode(object)) return false;
    const double value = PyFloat_AsDouble(object);
    if (PyErr_Occurred() == nullptr) return out = static_cast<Number>(value), true;
    PyErr_Clear();
    if (!PyNumber_Check(object)) return false;
    const Object number(PyNumber_Float(object));
    if (!number) return PyErr_Clear(), false;
    out = static_cast<Number>(PyFloat_AsDouble(number.get()));
    return true;
  }
  static Object cast(Number value) { return checked(PyFloat_FromDouble(static_cast<double>(value))); }
};

template <>
struct Caster<bool> {
  static const char* name() { return "bool"; }
  static bool load(PyObject* object, std::optional<bool>& out) {
    const int truth = PyObject_IsTrue(object);
    if (truth < 0) return PyErr_Clear(), false;
    out = truth == 1;
    return true;
  }
  static Object cast(bool value) { return checked(PyBool_FromLong(value)); }
};

template <>
struct Caster<std::string> {
  static const char* name() { return "str"; }
  static bool load(PyObject* object, std::optional<std::string>& out) {
    if (!is_unicode(object)) return false;
    ptrdiff_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(object, &size);
    if (data == nullptr) return PyErr_Clear(), false;
    out.emplace(data, static_cast<size_t>(size));
    return true;
  }
  static Object cast(const std::string& value) { return utf8(value); }
};
template <>
struct Caster<const char*> {
  static Object cast(const char* value) { return utf8(value); }
};
template <>
struct Caster<std::nullopt_t> {
  static Object cast(std::nullopt_t) { return Object::borrow(none()); }
};

template <>
struct Caster<at::Tensor> {
  static const char* name() { return "torch.Tensor"; }
  static bool load(PyObject* object, std::optional<at::Tensor>& out) {
    const Object capsule(PyObject_CallFunctionObjArgs(runtime.unwrap, object, nullptr));
    if (!capsule) return PyErr_Clear(), false;
    out = at::Tensor::steal(static_cast<AtenTensorHandle>(PyCapsule_GetPointer(capsule.get(), nullptr)));
    return true;
  }
  static Object cast(const at::Tensor& tensor) {
    if (!tensor.defined()) return Object::borrow(none());
    AtenTensorHandle handle = nullptr;
    TORCH_CHECK(aoti_torch_new_tensor_handle(tensor.handle(), &handle) == 0, "cannot hand a tensor to Python");
    const Object capsule = checked(PyCapsule_New(handle, nullptr, nullptr));
    Object object(PyObject_CallFunctionObjArgs(runtime.wrap, capsule.get(), nullptr));
    if (runtime.wrap_steals == nullptr) aoti_torch_delete_tensor_object(handle);
    return checked(object.release());
  }
};

// Values that Python sees as objects of torch: dtype, device, layout, memory_format.
inline bool load_torch_value(const char* kind, PyObject* object, int64_t& out) {
  const Object number = checked(PyObject_CallFunctionObjArgs(runtime.value_to_int, utf8(kind).get(), object, nullptr));
  if (number.get() == none()) return false;
  out = PyLong_AsLongLong(number.get());
  return true;
}
inline Object cast_torch_value(const char* kind, int64_t value) {
  return checked(PyObject_CallFunctionObjArgs(runtime.int_to_value, utf8(kind).get(), Caster<int64_t>::cast(value).get(), nullptr));
}
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
// A device crosses as type * 256 + index + 1.
template <>
struct Caster<c10::Device> {
  static const char* name() { return "torch.device"; }
  static bool load(PyObject* object, std::optional<c10::Device>& out) {
    int64_t number = 0;
    if (!load_torch_value("device", object, number)) return false;
    out = c10::Device(static_cast<c10::DeviceType>(number / 256), static_cast<c10::DeviceIndex>(number % 256 - 1));
    return true;
  }
  static Object cast(c10::Device device) { return cast_torch_value("device", static_cast<int64_t>(device.type()) * 256 + device.index() + 1); }
};
template <>
struct Caster<c10::DeviceType> {
  static Object cast(c10::DeviceType type) { return Caster<c10::Device>::cast(type); }
};

template <>
struct Caster<c10::Scalar> {
  static const char* name() { return "Number"; }
  static bool load(PyObject* object, std::optional<c10::Scalar>& out) {
    std::optional<int64_t> integer;
    std::optional<double> real;
    if (is_long(object) && Caster<int64_t>::load(object, integer)) return out = c10::Scalar(*integer), true;
    if (!Caster<double>::load(object, real)) return false;
    out = c10::Scalar(*real);
    return true;
  }
  static Object cast(const c10::Scalar& value) {
    if (value.isBoolean()) return Caster<bool>::cast(value.toBool());
    return value.isFloatingPoint() ? Caster<double>::cast(value.toDouble()) : Caster<int64_t>::cast(value.toLong());
  }
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
