// PYBIND11_MODULE, m.def and py::arg for functions, without pybind11 and without Python's headers.
#pragma once
#include <dice/factories.h>

namespace pybind11 {

struct gil_scoped_release {
  gil_scoped_release() : state_(PyEval_SaveThread()) {}
  ~gil_scoped_release() { PyEval_RestoreThread(state_); }

 private:
  void* state_;
};
template <class... Guards> struct call_guard {};
enum class return_value_policy { automatic, automatic_reference, take_ownership, copy, move, reference, reference_internal };

struct arg_v {
  std::string name;
  dice::Object value;
};
struct arg {
  explicit arg(const char* name_) : name(name_) {}
  template <class Value> arg_v operator=(const Value& value) const { return {name, dice::to_python(value)}; }
  arg& noconvert(bool = true) { return *this; }
  arg& none(bool = true) { return *this; }
  std::string name;
};
struct none {};
struct kw_only {};
struct pos_only {};
namespace literals {
inline arg operator""_a(const char* name, size_t) { return arg(name); }
}  // namespace literals

}  // namespace pybind11

namespace torch {
template <class Function> Function wrap_pybind_function(Function function) { return function; }
template <class Result, class... Params> auto wrap_pybind_function(Result (&function)(Params...)) { return &function; }
}  // namespace torch

#if defined(DICE_DEVICE_PASS)

namespace pybind11 {
struct gil_scoped_acquire {};
struct module_ {
  template <class... Anything> module_& def(Anything&&...) { return *this; }
  struct Attribute {
    template <class Value> void operator=(const Value&) {}
  };
  Attribute attr(const char*) const { return {}; }
  std::string& doc();
};
using module = module_;
}  // namespace pybind11

#define PYBIND11_MODULE(name, variable) static void dice_define_module(::pybind11::module_& variable)

#else

namespace pybind11 {
struct gil_scoped_acquire {
  dice::WithPython lock;
};
}  // namespace pybind11

namespace dice {

template <>
struct Caster<pybind11::none> {
  static Object cast(pybind11::none) { return Object::borrow(none()); }
};

// ---- one bound C++ function -----------------------------------------------------------------------------------
struct Parameter {
  std::string name;
  Object fallback;
  bool keyword_only = false;
};
struct Function {
  std::string doc;
  std::string signature;
  size_t arity = 0;
  std::vector<Parameter> parameters;
  // Calls with exactly `arity` values. A null result without a Python error means: the values do not fit.
  virtual Object call(const std::vector<PyObject*>& values) = 0;
  virtual ~Function() = default;
};

// A reference parameter is loaded as a value; an ArrayRef parameter as the vector it will view.
template <class Param> struct Stored { using type = std::decay_t<Param>; };
template <class Item> struct Stored<c10::ArrayRef<Item>> { using type = std::vector<Item>; };
template <class Item> struct Stored<const c10::ArrayRef<Item>&> { using type = std::vector<Item>; };
template <> struct Stored<const char*> { using type = std::string; };
template <> struct Stored<std::string_view> { using type = std::string; };
template <class Param, class Value> decltype(auto) pass(Value& value) {
  if constexpr (std::is_same_v<Param, const char*>) return value.c_str();
  else if constexpr (std::is_rvalue_reference_v<Param>) return std::move(value);
  else return (value);
}

template <class Callable, class Result, class... Params>
struct BoundFunction final : Function {
  explicit BoundFunction(Callable callable) : callable_(std::move(callable)) { arity = sizeof...(Params); }
  Object call(const std::vector<PyObject*>& values) override { return invoke(values, std::index_sequence_for<Params...>()); }
  static std::vector<std::string> types() { return {Caster<typename Stored<Params>::type>::name()...}; }

 private:
  template <size_t... index>
  Object invoke([[maybe_unused]] const std::vector<PyObject*>& values, std::index_sequence<index...>) {
    std::tuple<std::optional<typename Stored<Params>::type>...> loaded;
    if (!(Caster<typename Stored<Params>::type>::load(values[index], std::get<index>(loaded)) && ...)) return Object();
    if constexpr (std::is_void_v<Result>) {
      callable_(pass<Params>(*std::get<index>(loaded))...);
      return Object::borrow(none());
    } else {
      return to_python(callable_(pass<Params>(*std::get<index>(loaded))...));
    }
  }
  Callable callable_;
};

template <class Callable, class Result, class... Params>
std::unique_ptr<Function> bind(Callable callable, std::vector<std::string>& types) {
  using Bound = BoundFunction<Callable, Result, Params...>;
  types = Bound::types();
  return std::make_unique<Bound>(std::move(callable));
}
template <class Result, class... Params>
std::unique_ptr<Function> bind_any(Result (*function)(Params...), std::vector<std::string>& types) {
  return bind<Result (*)(Params...), Result, Params...>(function, types);
}
template <class Lambda, class Class, class Result, class... Params>
std::unique_ptr<Function> bind_lambda(Lambda lambda, Result (Class::*)(Params...) const, std::vector<std::string>& types) {
  return bind<Lambda, Result, Params...>(std::move(lambda), types);
}
template <class Lambda, class Class, class Result, class... Params>
std::unique_ptr<Function> bind_lambda(Lambda lambda, Result (Class::*)(Params...), std::vector<std::string>& types) {
  return bind<Lambda, Result, Params...>(std::move(lambda), types);
}
template <class Lambda, class = decltype(&Lambda::operator())>
std::unique_ptr<Function> bind_any(Lambda lambda, std::vector<std::string>& types) {
  return bind_lambda(std::move(lambda), &Lambda::operator(), types);
}

// ---- calling from Python ----------------------------------------------------------------------------------------
struct Overloads {
  std::string name;
  std::string doc;
  std::vector<std::unique_ptr<Function>> functions;
  PyMethodDef method{};
};

inline void set_error(PyObject* type, const char* message) { PyErr_SetString(type, message); }

// Turns the C++ exception in flight into a Python one, by pybind11's and PyTorch's rules.
inline void translate_exception() {
  try {
    throw;
  } catch (const PythonError&) {
    return;
  } catch (const c10::IndexError& error) { set_error(PyExc_IndexError, error.what());
  } catch (const c10::ValueError& error) { set_error(PyExc_ValueError, error.what());
  } catch (const c10::TypeError& error) { set_error(PyExc_TypeError, error.what());
  } catch (const c10::NotImplementedError& error) { set_error(PyExc_NotImplementedError, error.what());
  } catch (const c10::OutOfMemoryError& error) { set_error(runtime.out_of_memory, error.what());
  } catch (const c10::Error& error) { set_error(PyExc_RuntimeError, error.what());
  } catch (const std::bad_alloc& error) { set_error(PyExc_MemoryError, error.what());
  } catch (const std::exception& error) { set_error(PyExc_RuntimeError, error.what());
  } catch (...) { set_error(PyExc_RuntimeError, "the extension threw something that is not a C++ exception");
  }
}

// Positional and keyword arguments in the order of the parameters, or false when they do not match.
inline bool arrange(const Function& function, PyObject* args, PyObject* kwargs, std::vector<PyObject*>& values) {
  const size_t given = static_cast<size_t>(PyTuple_Size(args));
  size_t keywords = kwargs == nullptr ? 0 : static_cast<size_t>(PyDict_Size(kwargs));
  if (given + keywords > function.arity) return false;
  values.clear();
  for (size_t index = 0; index < function.arity; ++index) {
    const Parameter* parameter = index < function.parameters.size() ? &function.parameters[index] : nullptr;
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

inline void set_mismatch(const Overloads& overloads) {
  std::string message = overloads.name + "(): incompatible function arguments. The following argument types are supported:";
  for (size_t index = 0; index < overloads.functions.size(); ++index) {
    message += "\n    " + std::to_string(index + 1) + ". " + overloads.functions[index]->signature;
  }
  PyErr_SetString(PyExc_TypeError, message.c_str());
}

inline PyObject* call_overloads(PyObject* self, PyObject* args, PyObject* kwargs) {
  const Overloads& overloads = *static_cast<Overloads*>(PyCapsule_GetPointer(self, nullptr));
  std::vector<PyObject*> values;
  try {
    for (const auto& function : overloads.functions) {
      if (!arrange(*function, args, kwargs, values)) continue;
      Object result = function->call(values);
      if (result) return result.release();
      if (PyErr_Occurred() != nullptr) return nullptr;
    }
    set_mismatch(overloads);
  } catch (...) {
    translate_exception();
  }
  return nullptr;
}

// ---- the module object of PYBIND11_MODULE -------------------------------------------------------------------------
struct Definition {
  std::unique_ptr<Function> function;
  bool keyword_only = false;

  void apply(const char* doc) { function->doc = doc; }
  void apply(const std::string& doc) { function->doc = doc; }
  void apply(const pybind11::arg& parameter) { function->parameters.push_back({parameter.name, Object(), keyword_only}); }
  void apply(const pybind11::arg_v& parameter) { function->parameters.push_back({parameter.name, parameter.value, keyword_only}); }
  void apply(pybind11::kw_only) { keyword_only = true; }
  void apply(pybind11::pos_only) {}
  void apply(pybind11::return_value_policy) {}
  template <class... Guards> void apply(pybind11::call_guard<Guards...>) {}

  void describe(const std::string& name, const std::vector<std::string>& types) {
    std::string text = "(";
    for (size_t index = 0; index < types.size(); ++index) {
      const bool named = index < function->parameters.size();
      text += (index == 0 ? "" : ", ") + (named ? function->parameters[index].name : "arg" + std::to_string(index)) + ": " + types[index];
    }
    function->signature = text + ")";
    function->doc = name + function->signature + "\n\n" + function->doc;
  }
};

}  // namespace dice

namespace pybind11 {

class module_ {
 public:
  explicit module_(PyObject* module) : module_object_(module) {}
  template <class Callable, class... Extra>
  module_& def(const char* name, Callable callable, const Extra&... extra) {
    dice::Definition definition;
    std::vector<std::string> types;
    definition.function = dice::bind_any(std::move(callable), types);
    (definition.apply(extra), ...);
    definition.describe(name, types);
    add(name, std::move(definition.function));
    return *this;
  }
  struct Attribute {
    PyObject* module;
    const char* name;
    template <class Value> void operator=(const Value& value) { PyObject_SetAttrString(module, name, dice::to_python(value).get()); }
  };
  Attribute attr(const char* name) const { return {module_object_, name}; }
  std::string& doc() { return doc_; }

 private:
  void add(const std::string& name, std::unique_ptr<dice::Function> function) {
    for (dice::Overloads* overloads : bound_) {
      if (overloads->name != name) continue;
      overloads->functions.push_back(std::move(function));
      return;
    }
    // Lives as long as the library, which is never unloaded.
    auto* overloads = new dice::Overloads{name, function->doc, {}, {}};
    overloads->functions.push_back(std::move(function));
    constexpr int varargs_with_keywords = 1 | 2;
    overloads->method = {overloads->name.c_str(), dice::call_overloads, varargs_with_keywords, overloads->doc.c_str()};
    const dice::Object self = dice::checked(PyCapsule_New(overloads, nullptr, nullptr));
    const dice::Object callable = dice::checked(PyCMethod_New(&overloads->method, self.get(), nullptr, nullptr));
    PyObject_SetAttrString(module_object_, overloads->name.c_str(), callable.get());
    bound_.push_back(overloads);
  }
  PyObject* module_object_;
  std::vector<dice::Overloads*> bound_;
  std::string doc_;
};
using module = module_;

}  // namespace pybind11

#define PYBIND11_MODULE(name, variable)                                                                       \
  static void dice_define_module(::pybind11::module_&);                                                       \
  extern "C" __attribute__((visibility("default"))) const char* const dice_module_name = #name;               \
  extern "C" __attribute__((visibility("default"))) int dice_module_init(PyObject* module, void* const* table) { \
    std::memcpy(&::dice::runtime, table, sizeof ::dice::runtime);                                             \
    try {                                                                                                     \
      ::pybind11::module_ definitions(module);                                                                \
      dice_define_module(definitions);                                                                        \
      return 0;                                                                                               \
    } catch (...) {                                                                                           \
      ::dice::translate_exception();                                                                          \
      return -1;                                                                                              \
    }                                                                                                         \
  }                                                                                                           \
  static void dice_define_module(::pybind11::module_& variable)

#endif  // DICE_DEVICE_PASS
