// thrust::device_vector
#pragma once
#include <thrust/device_ptr.h>
#include <thrust/host_vector.h>

namespace thrust {

template <class T>
class device_vector {
 public:
  using value_type = T;
  using size_type = size_t;
  using difference_type = ptrdiff_t;
  using pointer = device_ptr<T>;
  using const_pointer = device_ptr<const T>;
  using reference = device_reference<T>;
  using const_reference = device_reference<const T>;
  using iterator = device_ptr<T>;
  using const_iterator = device_ptr<const T>;

  device_vector() = default;
  explicit device_vector(size_t n, const T& value = T()) { resize(n, value); }
  template <class It, class = typename std::iterator_traits<It>::value_type> device_vector(It first, It last) { assign(first, last); }
  device_vector(const device_vector& other) { assign(other.begin(), other.end()); }
  device_vector(device_vector&& other) noexcept { swap(other); }
  template <class Other, class = decltype(std::declval<const Other&>().begin())> device_vector(const Other& other) { assign(other.begin(), other.end()); }
  ~device_vector() { cudaFree(place_); }
  device_vector& operator=(const device_vector& other) { return this == &other ? *this : (assign(other.begin(), other.end()), *this); }
  device_vector& operator=(device_vector&& other) noexcept { return swap(other), *this; }
  template <class Other, class = decltype(std::declval<const Other&>().begin())> device_vector& operator=(const Other& other) {
    return assign(other.begin(), other.end()), *this;
  }

  iterator begin() { return iterator(place_); }
  iterator end() { return begin() + static_cast<ptrdiff_t>(size_); }
  const_iterator begin() const { return const_iterator(place_); }
  const_iterator end() const { return begin() + static_cast<ptrdiff_t>(size_); }
  const_iterator cbegin() const { return begin(); }
  const_iterator cend() const { return end(); }
  pointer data() { return begin(); }
  const_pointer data() const { return begin(); }
  reference operator[](size_t i) { return begin()[static_cast<ptrdiff_t>(i)]; }
  const_reference operator[](size_t i) const { return begin()[static_cast<ptrdiff_t>(i)]; }
  reference front() { return (*this)[0]; }
  reference back() { return (*this)[size_ - 1]; }
  size_t size() const { return size_; }
  size_t capacity() const { return capacity_; }
  bool empty() const { return size_ == 0; }
  void clear() { size_ = 0; }
  void swap(device_vector& other) noexcept {
    std::swap(place_, other.place_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }
  void reserve(size_t n) {
    if (n <= capacity_) return;
    T* before = place_;
    cudaMalloc(&place_, n * sizeof(T));
    capacity_ = n;
    if (size_ != 0) cudaMemcpy(place_, before, size_ * sizeof(T), cudaMemcpyDeviceToDevice);
    cudaFree(before);
  }
  void resize(size_t n, const T& value = T()) {
    const size_t before = size_;
    reserve(n);
    size_ = n;
    if (n > before) thrust::fill(begin() + static_cast<ptrdiff_t>(before), end(), value);
  }
  void push_back(const T& value) { resize(size_ + 1, value); }
  template <class It, class = typename std::iterator_traits<It>::value_type> void assign(It first, It last) {
    const auto n = static_cast<size_t>(last - first);
    reserve(n);
    size_ = n;
    if (n != 0) thrust::copy(first, last, begin());
  }
  void assign(size_t n, const T& value) {
    clear();
    resize(n, value);
  }

 private:
  T* place_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
};

}  // namespace thrust
