// The part of CPython's C interface that we use, declared by us (all of it is in CPython's stable ABI), an owning
// pointer, and the table of Python callables that dice/verify/candidate/binding.py hands to a library after loading it.
#pragma once
#include <dice/types.h>

struct _object;
using PyObject = _object;

extern "C" {
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
extern PyObject _Py_NoneStruct;
extern PyObject* PyExc_RuntimeError;
extern PyObject* PyExc_TypeError;
extern PyObject* PyExc_ValueError;
extern PyObject* PyExc_IndexError;
extern PyObject* PyExc_MemoryError;
extern PyObject* PyExc_OverflowError;
extern PyObject* PyExc_NotImplementedError;
PyObject* PyErr_Occurred();
void PyErr_Clear();
void PyErr_SetString(PyObject*, const char*);
void PyErr_SetObject(PyObject*, PyObject*);
PyObject* PyObject_Str(PyObject*);
int PyObject_IsTrue(PyObject*);
int PyObject_IsInstance(PyObject*, PyObject*);
PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
PyObject* PyObject_GetAttrString(PyObject*, const char*);
int PyObject_SetAttrString(PyObject*, const char*, PyObject*);
PyObject* PyBool_FromLong(long);
PyObject* PyLong_FromLongLong(long long);
PyObject* PyLong_FromUnsignedLongLong(unsigned long long);
long long PyLong_AsLongLong(PyObject*);
unsigned long long PyLong_AsUnsignedLongLong(PyObject*);
PyObject* PyNumber_Index(PyObject*);
PyObject* PyNumber_Long(PyObject*);
PyObject* PyNumber_Float(PyObject*);
int PyNumber_Check(PyObject*);
PyObject* PyFloat_FromDouble(double);
double PyFloat_AsDouble(PyObject*);
PyObject* PyUnicode_FromStringAndSize(const char*, ptrdiff_t);
const char* PyUnicode_AsUTF8AndSize(PyObject*, ptrdiff_t*);
PyObject* PyTuple_New(ptrdiff_t);
int PyTuple_SetItem(PyObject*, ptrdiff_t, PyObject*);
PyObject* PyTuple_GetItem(PyObject*, ptrdiff_t);
ptrdiff_t PyTuple_Size(PyObject*);
PyObject* PyList_New(ptrdiff_t);
int PyList_SetItem(PyObject*, ptrdiff_t, PyObject*);
ptrdiff_t PySequence_Size(PyObject*);
PyObject* PySequence_GetItem(PyObject*, ptrdiff_t);
PyObject* PyDict_New();
int PyDict_SetItemString(PyObject*, const char*, PyObject*);
PyObject* PyDict_GetItemString(PyObject*, const char*);
ptrdiff_t PyDict_Size(PyObject*);
PyObject* PyCapsule_New(void*, const char*, void (*)(PyObject*));
void* PyCapsule_GetPointer(PyObject*, const char*);
struct PyMethodDef {
  const char* ml_name;
  PyObject* (*ml_meth)(PyObject*, PyObject*, PyObject*);
  int ml_flags;
  const char* ml_doc;
};
PyObject* PyCMethod_New(PyMethodDef*, PyObject*, PyObject*, PyObject*);
unsigned long PyType_GetFlags(PyObject*);
PyObject* PyObject_Type(PyObject*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
}

namespace dice {

inline PyObject* none() { return &_Py_NoneStruct; }

// One strong reference.
class Object {
 public:
  Object() = default;
  explicit Object(PyObject* owned) : pointer_(owned) {}
  static Object borrow(PyObject* borrowed) {
    if (borrowed != nullptr) Py_IncRef(borrowed);
    return Object(borrowed);
  }
  Object(const Object& other) : Object(borrow(other.pointer_)) {}
  Object(Object&& other) noexcept : pointer_(other.release()) {}
  Object& operator=(Object other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  ~Object() {
    if (pointer_ != nullptr) Py_DecRef(pointer_);
  }
  PyObject* get() const { return pointer_; }
  PyObject* release() {
    PyObject* pointer = pointer_;
    pointer_ = nullptr;
    return pointer;
  }
  explicit operator bool() const { return pointer_ != nullptr; }

 private:
  PyObject* pointer_ = nullptr;
};

// A Python exception is set and travels through C++ as this.
struct PythonError : std::exception {
  const char* what() const noexcept override { return "a Python exception"; }
};
inline Object checked(PyObject* owned) {
  if (owned == nullptr) throw PythonError();
  return Object(owned);
}

// What the Python side provides; set once by dice_bind().
struct Runtime {
  PyObject* unwrap;        // tensor -> capsule of a new handle
  PyObject* wrap;          // capsule of a handle -> tensor
  const void* wrap_steals; // not null when `wrap` also frees the handle; versions of PyTorch differ
  PyObject* call_op;       // (name, arguments, options or None) -> result
  PyObject* value_to_int;  // torch.dtype | torch.device | ... -> int, or None when it is none of these
  PyObject* int_to_value;  // (kind, int) -> torch.dtype | torch.device | ...
  PyObject* out_of_memory; // torch.OutOfMemoryError
  PyObject* tensor_type;   // torch.Tensor
};
inline Runtime runtime = {};

inline bool has_type_flag(PyObject* object, int bit) {
  const Object type(PyObject_Type(object));
  return (PyType_GetFlags(type.get()) >> bit) & 1;
}
// Bits of tp_flags that CPython's stable ABI fixes for its built-in types.
inline bool is_long(PyObject* object) { return has_type_flag(object, 24); }
inline bool is_list(PyObject* object) { return has_type_flag(object, 25); }
inline bool is_tuple(PyObject* object) { return has_type_flag(object, 26); }
inline bool is_unicode(PyObject* object) { return has_type_flag(object, 28); }
inline bool is_float(PyObject* object) {
  return Object(PyObject_Type(object)).get() == reinterpret_cast<PyObject*>(Object(PyObject_Type(Object(PyFloat_FromDouble(0)).get())).get());
}

// ---- Caster<T>: how values of C++ type T cross to and from Python ------------------------------------------
//   static const char* name()                       what a TypeError's signature calls it
//   static bool load(PyObject*, std::optional<T>&)  false when the Python value does not fit
//   static Object cast(const T&)
template <class Value, class = void> struct Caster;

template <class Value> Object to_python(const Value& value);
#if !defined(DICE_DEVICE_PASS)
template <class Value>
Object to_python(const Value& value) {
  return Caster<std::decay_t<const Value&>>::cast(value);  // a string literal becomes const char*
}
#endif

}  // namespace dice
