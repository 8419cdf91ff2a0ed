// Pointers to the device's memory, and references that host code may read and write: each is a copy.
#pragma once
#include <thrust/iterator/iterator_base.h>

#include <cstddef>

namespace thrust {

template <class T> class device_ptr;

template <class T>
class device_reference {
 public:
  using value_type = std::remove_const_t<T>;
  explicit device_reference(T* place) : place_(place) {}
  device_reference(const device_reference&) = default;
  operator value_type() const {
    if (dice_in_kernel()) return *place_;
    value_type value{};
    cudaMemcpy(&value, place_, sizeof value, cudaMemcpyDeviceToHost);
    return value;
  }
  const device_reference& operator=(const value_type& value) const {
    if (dice_in_kernel()) return *place_ = value, *this;
    cudaMemcpy(place_, &value, sizeof value, cudaMemcpyHostToDevice);
    return *this;
  }
  const device_reference& operator=(const device_reference& other) const { return *this = static_cast<value_type>(other); }
  const device_reference& operator+=(const value_type& value) const { return *this = static_cast<value_type>(*this) + value; }
  const device_reference& operator-=(const value_type& value) const { return *this = static_cast<value_type>(*this) - value; }
  device_ptr<T> operator&() const { return device_ptr<T>(place_); }
  const device_reference& operator*=(const value_type& value) const { return *this = static_cast<value_type>(*this) * value; }

 private:
  T* place_;
};

template <class T>
class device_ptr : public detail::computed<device_ptr<T>, std::remove_const_t<T>, device_reference<T>> {
 public:
  device_ptr() : place_(nullptr) {}
  device_ptr(std::nullptr_t) : place_(nullptr) {}
  explicit device_ptr(T* place) : place_(place) {}
  template <class U, class = std::enable_if_t<std::is_convertible_v<U*, T*>>> device_ptr(const device_ptr<U>& other) : place_(other.get()) {}
  T* get() const { return place_; }
  explicit operator bool() const { return place_ != nullptr; }
  device_reference<T> at(ptrdiff_t i) const { return device_reference<T>(place_ + i); }
  device_ptr advanced(ptrdiff_t i) const { return device_ptr(place_ + i); }
  ptrdiff_t from(const device_ptr& other) const { return place_ - other.place_; }

 private:
  T* place_;
};
template <class T> device_ptr<T> device_pointer_cast(T* place) { return device_ptr<T>(place); }
template <class T> device_ptr<T> device_pointer_cast(const device_ptr<T>& place) { return place; }
template <class T> T* raw_pointer_cast(const device_ptr<T>& place) { return place.get(); }
template <class T> T* raw_pointer_cast(T* place) { return place; }
template <class T> device_ptr<T> device_malloc(size_t n) {
  T* place = nullptr;
  cudaMalloc(&place, n * sizeof(T));
  return device_ptr<T>(place);
}
template <class T> void device_free(const device_ptr<T>& place) { cudaFree(const_cast<std::remove_const_t<T>*>(place.get())); }

namespace detail {
template <class T> struct place<device_ptr<T>> { static constexpr bool on_device = true; };
template <class T> T* raw(const device_ptr<T>& it) { return it.get(); }
}  // namespace detail
}  // namespace thrust
