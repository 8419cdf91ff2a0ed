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
struct Function {
  size_t arity;
  const char* const* types;  // of the parameters, for messages
  Function(size_t arity_, const char* const* types_) : arity(arity_), types(types_) {}
  // Calls with exactly `arity` values. A null result without a Python error means: the values do not fit.
  virtual Object call(PyObject* const* values) = 0;
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

template <class... Params> const char* const* type_names() {
  static const char* const names[] = {Caster<typename Stored<Params>::type>::name()..., nullptr};
  return names;
}

template <class Callable, class Result, class... Params>
struct BoundFunction final : Function {
  explicit BoundFunction(Callable callable) : Function(sizeof...(Params), type_names<Params...>()), callable_(std::move(callable)) {}
  Object call(PyObject* const* values) override { return invoke(values, std::index_sequence_for<Params...>()); }

 private:
  template <size_t... index>
  Object invoke([[maybe_unused]] PyObject* const* values, std::index_sequence<index...>) {
    std::tuple<std::optional<typename Stored<Params>::type>...> loaded;
    if (!(Caster<typename Stored<Params>::type>::load(values[index], std::get<index>(loaded)) && ...)) return Object();
    const auto run = [&]() -> Result {
      [[maybe_unused]] const HostCode<true> scope;
      return callable_(pass<Params>(*std::get<index>(loaded))...);
    };
    if constexpr (std::is_void_v<Result>) {
      run();
      return Object::borrow(none());
    } else {
      return to_python(run());
    }
  }
  Callable callable_;
};

template <class Result, class... Params>
Function* bind(Result (*function)(Params...)) {
  return new BoundFunction<Result (*)(Params...), Result, Params...>(function);
}
template <class Lambda, class Class, class Result, class... Params>
Function* bind_lambda(Lambda lambda, Result (Class::*)(Params...) const) {
  return new BoundFunction<Lambda, Result, Params...>(std::move(lambda));
}
template <class Lambda, class Class, class Result, class... Params>
Function* bind_lambda(Lambda lambda, Result (Class::*)(Params...)) {
  return new BoundFunction<Lambda, Result, Params...>(std::move(lambda));
}
template <class Lambda, class = decltype(&Lambda::operator())>
Function* bind(Lambda lambda) {
  return bind_lambda(std::move(lambda), &Lambda::operator());
}

struct Overloads;

// A function with what `m.def` says about it. The bodies are in support.cpp.
class Definition {
 public:
  explicit Definition(Function* owned);
  ~Definition();
  void apply(const char* doc);
  void apply(const std::string& doc) { apply(doc.c_str()); }
  void apply(const pybind11::arg& parameter);
  void apply(const pybind11::arg_v& parameter);
  void apply(pybind11::kw_only);
  void apply(pybind11::pos_only) {}
  void apply(pybind11::return_value_policy) {}
  template <class... Guards> void apply(pybind11::call_guard<Guards...>) {}
  // Makes it an attribute of the module, or one more overload of the one in `list` that has the name.
  void add_to(PyObject* module, const char* name, Overloads*& list);

 private:
  struct Signature;
  Signature* signature_;
};

// Turns the C++ exception in flight into a Python one, by pybind11's and PyTorch's rules.
void translate_exception();

}  // namespace dice

namespace pybind11 {

class module_ {
 public:
  explicit module_(PyObject* module) : module_object_(module) {}
  template <class Callable, class... Extra>
  module_& def(const char* name, Callable callable, const Extra&... extra) {
    dice::Definition definition(dice::bind(std::move(callable)));
    (definition.apply(extra), ...);
    definition.add_to(module_object_, name, attributes_);
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
  PyObject* module_object_;
  dice::Overloads* attributes_ = nullptr;
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
