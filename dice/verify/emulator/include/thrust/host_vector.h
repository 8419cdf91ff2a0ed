// thrust::host_vector
#pragma once
#include <thrust/detail/algorithms.h>

#include <vector>

namespace thrust {

template <class T>
class host_vector : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  template <class Other, class = decltype(std::declval<const Other&>().size())>
  host_vector(const Other& other) : std::vector<T>(other.size()) { thrust::copy(other.begin(), other.end(), this->begin()); }
  template <class Other, class = decltype(std::declval<const Other&>().size())>
  host_vector& operator=(const Other& other) {
    this->resize(other.size());
    thrust::copy(other.begin(), other.end(), this->begin());
    return *this;
  }
  host_vector(const host_vector&) = default;
  host_vector(host_vector&&) = default;
  host_vector& operator=(const host_vector&) = default;
  host_vector& operator=(host_vector&&) = default;
};

}  // namespace thrust
