// The bodies that every extension shares: compiled once for each toolchain and linked into all of them.
#define DICE_SUPPORT
#include <torch/extension.h>

namespace c10 {

Device::Device(const std::string& name) : type_(DeviceType::CPU), index_(-1) {
  const size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  TORCH_CHECK(kind == "cpu" || kind == "cuda" || kind == "meta", "Invalid device string: '", name, "'");
  type_ = kind == "cpu" ? DeviceType::CPU : kind == "cuda" ? DeviceType::CUDA : DeviceType::Meta;
  if (colon != std::string::npos) index_ = static_cast<DeviceIndex>(std::atoi(name.c_str() + colon + 1));
}

}  // namespace c10

std::string caffe2::TypeMeta::name() const {
  switch (type_) {
    case c10::ScalarType::Byte: return "unsigned char";
    case c10::ScalarType::Char: return "signed char";
    case c10::ScalarType::Short: return "short int";
    case c10::ScalarType::Int: return "int";
    case c10::ScalarType::Long: return "long int";
    case c10::ScalarType::Half: return "c10::Half";
    case c10::ScalarType::Float: return "float";
    case c10::ScalarType::Double: return "double";
    case c10::ScalarType::Bool: return "bool";
    case c10::ScalarType::BFloat16: return "c10::BFloat16";
    default: return c10::toString(type_);
  }
}

namespace dice {

Object utf8(std::string_view text) {
  return checked(PyUnicode_FromStringAndSize(text.data(), static_cast<ptrdiff_t>(text.size())));
}

bool Caster<bool>::load(PyObject* object, std::optional<bool>& out) {
  const int truth = PyObject_IsTrue(object);
  if (truth < 0) return PyErr_Clear(), false;
  out = truth == 1;
  return true;
}
Object Caster<bool>::cast(bool value) { return checked(PyBool_FromLong(value)); }

bool Caster<std::string>::load(PyObject* object, std::optional<std::string>& out) {
  if (!is_unicode(object)) return false;
  ptrdiff_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) return PyErr_Clear(), false;
  out.emplace(data, static_cast<size_t>(size));
  return true;
}
Object Caster<std::string>::cast(const std::string& value) { return utf8(value); }

bool load_integer(PyObject* object, bool is_signed, uint64_t& bits) {
  if (is_float(object)) return false;
  Object integer(PyNumber_Index(object));
  if (!integer) {
    PyErr_Clear();
    if (!PyNumber_Check(object)) return false;
    integer = Object(PyNumber_Long(object));
  }
  if (!integer) return PyErr_Clear(), false;
  bits = is_signed ? static_cast<uint64_t>(PyLong_AsLongLong(integer.get())) : PyLong_AsUnsignedLongLong(integer.get());
  if (PyErr_Occurred() != nullptr) return PyErr_Clear(), false;
  return true;
}
bool load_real(PyObject* object, double& out) {
  if (is_unicode(object)) return false;
  out = PyFloat_AsDouble(object);
  if (PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  if (!PyNumber_Check(object)) return false;
  const Object number(PyNumber_Float(object));
  if (!number) return PyErr_Clear(), false;
  out = PyFloat_AsDouble(number.get());
  return true;
}

bool Caster<at::Tensor>::load(PyObject* object, std::optional<at::Tensor>& out) {
  const Object capsule(PyObject_CallFunctionObjArgs(runtime.unwrap, object, nullptr));
  if (!capsule) return PyErr_Clear(), false;
  out = at::Tensor::steal(static_cast<AtenTensorHandle>(PyCapsule_GetPointer(capsule.get(), nullptr)));
  return true;
}
Object Caster<at::Tensor>::cast(const at::Tensor& tensor) {
  if (!tensor.defined()) return Object::borrow(none());
  AtenTensorHandle handle = nullptr;
  TORCH_CHECK(aoti_torch_new_tensor_handle(tensor.handle(), &handle) == 0, "cannot hand a tensor to Python");
  const Object capsule = checked(PyCapsule_New(handle, nullptr, nullptr));
  Object object(PyObject_CallFunctionObjArgs(runtime.wrap, capsule.get(), nullptr));
  if (runtime.wrap_steals == nullptr) aoti_torch_delete_tensor_object(handle);
  return checked(object.release());
}

bool load_torch_value(const char* kind, PyObject* object, int64_t& out) {
  const Object number = checked(PyObject_CallFunctionObjArgs(runtime.value_to_int, utf8(kind).get(), object, nullptr));
  if (number.get() == none()) return false;
  out = PyLong_AsLongLong(number.get());
  return true;
}
Object cast_torch_value(const char* kind, int64_t value) {
  return checked(PyObject_CallFunctionObjArgs(runtime.int_to_value, utf8(kind).get(), Caster<int64_t>::cast(value).get(), nullptr));
}

bool Caster<c10::Device>::load(PyObject* object, std::optional<c10::Device>& out) {
  int64_t number = 0;
  if (!load_torch_value("device", object, number)) return false;
  out = c10::Device(static_cast<c10::DeviceType>(number / 256), static_cast<c10::DeviceIndex>(number % 256 - 1));
  return true;
}
Object Caster<c10::Device>::cast(c10::Device device) {
  return cast_torch_value("device", static_cast<int64_t>(device.type()) * 256 + device.index() + 1);
}

bool Caster<c10::Scalar>::load(PyObject* object, std::optional<c10::Scalar>& out) {
  std::optional<int64_t> integer;
  double real = 0;
  if (is_long(object) && Caster<int64_t>::load(object, integer)) return out = c10::Scalar(*integer), true;
  if (!load_real(object, real)) return false;
  out = c10::Scalar(real);
  return true;
}
Object Caster<c10::Scalar>::cast(const c10::Scalar& value) {
  if (value.isBoolean()) return Caster<bool>::cast(value.toBool());
  return value.isFloatingPoint() ? Caster<double>::cast(value.toDouble()) : Caster<int64_t>::cast(value.toLong());
}

Object options_dict(const c10::TensorOptions& options) {
  Object dict = checked(PyDict_New());
  const auto set = [&](const char* key, const auto& value) {
    if (value) PyDict_SetItemString(dict.get(), key, to_python(*value).get());
  };
  set("dtype", options.dtype_);
  set("device", options.device_);
  set("layout", options.layout_);
  set("requires_grad", options.requires_grad_);
  set("pin_memory", options.pinned_memory_);
  set("memory_format", options.memory_format_);
  return dict;
}

}  // namespace dice

namespace at {

namespace {
// Whether a C function of PyTorch did its work. Where Python code within it raised (a dispatch mode), it swallowed the
// C++ exception and left Python's, which would be taken for that of the next call.
bool worked(int32_t status) {
  if (status != 0) PyErr_Clear();
  return status == 0;
}
bool watched = false;  // whether fresh memory must be seen by Python's dispatch modes
// A contiguous uninitialised tensor, or nothing when the fast way does not apply (its Python twin then explains why).
Tensor fast_empty(IntArrayRef sizes, const c10::TensorOptions& options) {
  if (watched) return {};
  if (options.requires_grad() || options.pinned_memory_.value_or(false) || options.layout() != c10::kStrided) return {};
  if (options.memory_format_.value_or(c10::MemoryFormat::Contiguous) != c10::MemoryFormat::Contiguous) return {};
  constexpr size_t most = 16;
  if (sizes.size() > most) return {};
  int64_t strides[most + 1];
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] < 0) return {};
    strides[i] = stride;
    stride *= sizes[i] > 1 ? sizes[i] : 1;
  }
#if defined(DICE_EMULATED)
  const c10::Device device(c10::kCPU);
#else
  const c10::Device device = options.device();
  if (device.is_cuda() && !device.has_index()) return {};
#endif
  AtenTensorHandle handle = nullptr;
  const int32_t status = aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides, static_cast<int32_t>(options.dtype().toScalarType()),
                                                  static_cast<int32_t>(device.type()), device.index(), &handle);
  return worked(status) ? Tensor::steal(handle) : Tensor();
}
bool same_layout(const Tensor& self, const c10::TensorOptions& options) {
  return self.is_contiguous() && !options.has_device() && !options.memory_format_;
}
}  // namespace
extern "C" __attribute__((visibility("default"))) void dice_watch_memory(int on) { watched = on != 0; }

Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, const c10::TensorOptions& options) {
#if defined(DICE_EMULATED)
  const c10::Device device(c10::kCPU);
#else
  const c10::Device device = options.device();
#endif
  AtenTensorHandle handle = nullptr;
  const int32_t status = aoti_torch_create_tensor_from_blob(
      data, static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), 0, static_cast<int32_t>(options.dtype().toScalarType()),
      static_cast<int32_t>(device.type()), device.has_index() ? device.index() : 0, &handle);
  TORCH_CHECK(worked(status), "from_blob: PyTorch cannot make a tensor of this memory");
  return Tensor::steal(handle);
}
Tensor from_blob(void* data, IntArrayRef sizes, const c10::TensorOptions& options) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= sizes[i]) strides[i] = stride;
  return from_blob(data, sizes, strides, options);
}

Tensor empty(IntArrayRef sizes, const c10::TensorOptions& options, std::optional<c10::MemoryFormat> format) {
  const c10::TensorOptions all = format ? options.memory_format(*format) : options;
  Tensor fast = fast_empty(sizes, all);
  return fast.defined() ? fast : dice::call<Tensor>("empty", sizes, all);
}
Tensor zeros(IntArrayRef sizes, const c10::TensorOptions& options) {
  Tensor fast = fast_empty(sizes, options);
  if (fast.defined() && worked(aoti_torch_zero_(fast.handle()))) return fast;
  return dice::call<Tensor>("zeros", sizes, options);
}
Tensor empty_like(const Tensor& self, const c10::TensorOptions& options, std::optional<c10::MemoryFormat> format) {
  const c10::TensorOptions all = format ? options.memory_format(*format) : options;
  if (same_layout(self, all)) {
    Tensor fast = fast_empty(self.sizes(), self.options().dtype(all.has_dtype() ? all.dtype() : self.dtype()));
    if (fast.defined() && !all.requires_grad()) return fast;
  }
  return dice::call<Tensor>("empty_like", self, all);
}
Tensor zeros_like(const Tensor& self, const c10::TensorOptions& options, std::optional<c10::MemoryFormat> format) {
  const c10::TensorOptions all = format ? options.memory_format(*format) : options;
  if (!watched && same_layout(self, all) && !all.requires_grad()) {
    Tensor fast = empty_like(self, all);
    if (worked(aoti_torch_zero_(fast.handle()))) return fast;
  }
  return dice::call<Tensor>("zeros_like", self, all);
}

}  // namespace at

// ---- PYBIND11_MODULE ------------------------------------------------------------------------------------------------
namespace dice {
namespace {

struct Parameter {
  std::string name;
  Object fallback;
  bool keyword_only;
};

struct Overload {
  std::unique_ptr<Function> function;
  std::vector<Parameter> parameters;
  std::string signature;
};

}  // namespace

// One attribute of a module, in a list of them. It lives as long as the library, which is never unloaded.
struct Overloads {
  std::string name;
  std::string doc;
  std::vector<Overload> overloads;
  Overloads* next;
  PyMethodDef method{};
};

namespace {

// Positional and keyword arguments in the order of the parameters, or false when they do not match.
bool arrange(const Overload& overload, PyObject* args, PyObject* kwargs, std::vector<PyObject*>& values) {
  const size_t arity = overload.function->arity;
  const size_t given = static_cast<size_t>(PyTuple_Size(args));
  size_t keywords = kwargs == nullptr ? 0 : static_cast<size_t>(PyDict_Size(kwargs));
  if (given + keywords > arity) return false;
  values.clear();
  for (size_t index = 0; index < arity; ++index) {
    const Parameter* parameter = index < overload.parameters.size() ? &overload.parameters[index] : nullptr;
    PyObject* value = nullptr;
    if (index < given) {
      if (parameter != nullptr && parameter->keyword_only) return false;
      value = PyTuple_GetItem(args, static_cast<ptrdiff_t>(index));
    } else if (parameter != nullptr) {
      value = keywords == 0 ? nullptr : PyDict_GetItemString(kwargs, parameter->name.c_str());
      if (value != nullptr) --keywords;
      else value = parameter->fallback.get();
    }
    if (value == nullptr) return false;
    values.push_back(value);
  }
  return keywords == 0;
}

void set_mismatch(const Overloads& overloads) {
  std::string message = overloads.name + "(): incompatible function arguments. The following argument types are supported:";
  size_t number = 0;
  for (const Overload& overload : overloads.overloads) message += "\n    " + std::to_string(++number) + ". " + overload.signature;
  PyErr_SetString(PyExc_TypeError, message.c_str());
}

PyObject* call_overloads(PyObject* self, PyObject* args, PyObject* kwargs) {
  const Overloads& overloads = *static_cast<Overloads*>(PyCapsule_GetPointer(self, nullptr));
  std::vector<PyObject*> values;
  try {
    for (const Overload& overload : overloads.overloads) {
      if (!arrange(overload, args, kwargs, values)) continue;
      Object result = overload.function->call(values.data());
      if (result) return result.release();
      if (PyErr_Occurred() != nullptr) return nullptr;
    }
    set_mismatch(overloads);
  } catch (...) {
    translate_exception();
  }
  return nullptr;
}

}  // namespace

void translate_exception() {
  try {
    throw;
  } catch (const PythonError&) {
    return;
  } catch (const c10::IndexError& error) { PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const c10::ValueError& error) { PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const c10::TypeError& error) { PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const c10::NotImplementedError& error) { PyErr_SetString(PyExc_NotImplementedError, error.what());
  } catch (const c10::OutOfMemoryError& error) { PyErr_SetString(runtime.out_of_memory, error.what());
  } catch (const c10::Error& error) { PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (const std::bad_alloc& error) { PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const std::exception& error) { PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) { PyErr_SetString(PyExc_RuntimeError, "the extension threw something that is not a C++ exception");
  }
}

struct Definition::Signature {
  Overload overload;
  std::string doc;
  bool keyword_only = false;
};
Definition::Definition(Function* owned) : signature_(new Signature{{std::unique_ptr<Function>(owned), {}, {}}, {}}) {}
Definition::~Definition() { delete signature_; }
void Definition::apply(const char* doc) { signature_->doc = doc; }
void Definition::apply(const pybind11::arg& parameter) {
  signature_->overload.parameters.push_back({parameter.name, Object(), signature_->keyword_only});
}
void Definition::apply(const pybind11::arg_v& parameter) {
  signature_->overload.parameters.push_back({parameter.name, parameter.value, signature_->keyword_only});
}
void Definition::apply(pybind11::kw_only) { signature_->keyword_only = true; }

void Definition::add_to(PyObject* module, const char* name, Overloads*& list) {
  Overload& overload = signature_->overload;
  for (size_t index = 0; index < overload.function->arity; ++index) {
    const bool named = index < overload.parameters.size();
    overload.signature += index == 0 ? "(" : ", ";
    overload.signature += named ? overload.parameters[index].name : "arg" + std::to_string(index);
    overload.signature += std::string(": ") + overload.function->types[index];
  }
  overload.signature += overload.function->arity == 0 ? "()" : ")";
  for (Overloads* overloads = list; overloads != nullptr; overloads = overloads->next) {
    if (overloads->name != name) continue;
    overloads->overloads.push_back(std::move(overload));
    return;
  }
  auto* overloads = new Overloads{name, name + overload.signature + "\n\n" + signature_->doc, {}, list, {}};
  overloads->overloads.push_back(std::move(overload));
  constexpr int varargs_with_keywords = 1 | 2;
  overloads->method = {overloads->name.c_str(), call_overloads, varargs_with_keywords, overloads->doc.c_str()};
  const Object self = checked(PyCapsule_New(overloads, nullptr, nullptr));
  const Object callable = checked(PyCMethod_New(&overloads->method, self.get(), nullptr, nullptr));
  PyObject_SetAttrString(module, name, callable.get());
  list = overloads;
}

}  // namespace dice
