// Operators for reductions and scans, keys with values, and a fold over a thread's own items.
#pragma once
#include <cuda/functional>
#include <cuda_runtime.h>

namespace cub {

// CUB had names of its own for these before CUDA 13.
using Sum = ::cuda::std::plus<>;
using Max = ::cuda::maximum<>;
using Min = ::cuda::minimum<>;
struct Equality {
  template <class A, class B> bool operator()(const A& a, const B& b) const { return a == b; }
};
struct Inequality {
  template <class A, class B> bool operator()(const A& a, const B& b) const { return a != b; }
};

template <class K, class V>
struct KeyValuePair {
  using Key = K;
  using Value = V;
  Key key;
  Value value;
};

// Of equal values, the one with the smaller key.
struct ArgMax {
  template <class Key, class Value>
  KeyValuePair<Key, Value> operator()(const KeyValuePair<Key, Value>& a, const KeyValuePair<Key, Value>& b) const {
    return b.value > a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};
struct ArgMin {
  template <class Key, class Value>
  KeyValuePair<Key, Value> operator()(const KeyValuePair<Key, Value>& a, const KeyValuePair<Key, Value>& b) const {
    return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};

namespace details {

template <int Items, class T, class Operation>
T fold(const T (&items)[Items], Operation operation) {
  T total = items[0];
  for (int i = 1; i < Items; ++i) total = operation(total, items[i]);
  return total;
}

}  // namespace details
}  // namespace cub
