// TensorAccessor and PackedTensorAccessor: typed views of a tensor's memory, the packed ones passed to kernels.
#pragma once
#include <dice/types.h>

namespace at {

template <class Item> struct DefaultPtrTraits { using PtrType = Item*; };
template <class Item> struct RestrictPtrTraits { using PtrType = Item* __restrict__; };

// A view with `rank` dimensions that borrows its sizes and strides; indexing it drops the first dimension.
template <class Item, size_t rank, template <class> class PtrTraits = DefaultPtrTraits, class Index = int64_t>
class TensorAccessor {
 public:
  using PtrType = typename PtrTraits<Item>::PtrType;
  C10_HOST_DEVICE TensorAccessor(PtrType data, const Index* sizes, const Index* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  C10_HOST_DEVICE decltype(auto) operator[](Index index) const {
    if constexpr (rank == 1) {
      return static_cast<Item&>(data_[strides_[0] * index]);
    } else {
      return TensorAccessor<Item, rank - 1, PtrTraits, Index>(data_ + strides_[0] * index, sizes_ + 1, strides_ + 1);
    }
  }
  C10_HOST_DEVICE Index size(Index dim) const { return sizes_[dim]; }
  C10_HOST_DEVICE Index stride(Index dim) const { return strides_[dim]; }
  C10_HOST_DEVICE PtrType data() const { return data_; }
  c10::ArrayRef<Index> sizes() const { return {sizes_, rank}; }
  c10::ArrayRef<Index> strides() const { return {strides_, rank}; }

 private:
  PtrType data_;
  const Index* sizes_;
  const Index* strides_;
};

// The same, holding its own sizes and strides, so that it can be a kernel argument.
template <class Item, size_t rank, template <class> class PtrTraits = DefaultPtrTraits, class Index = int64_t>
class GenericPackedTensorAccessor {
 public:
  using PtrType = typename PtrTraits<Item>::PtrType;
  template <class Source>
  C10_HOST GenericPackedTensorAccessor(PtrType data, const Source* sizes, const Source* strides) : data_(data) {
    for (size_t dim = 0; dim < rank; ++dim) {
      sizes_[dim] = static_cast<Index>(sizes[dim]);
      strides_[dim] = static_cast<Index>(strides[dim]);
    }
  }
  C10_HOST_DEVICE decltype(auto) operator[](Index index) const {
    if constexpr (rank == 1) {
      return static_cast<Item&>(data_[strides_[0] * index]);
    } else {
      return TensorAccessor<Item, rank - 1, PtrTraits, Index>(data_ + strides_[0] * index, sizes_ + 1, strides_ + 1);
    }
  }
  C10_HOST_DEVICE Index size(Index dim) const { return sizes_[dim]; }
  C10_HOST_DEVICE Index stride(Index dim) const { return strides_[dim]; }
  C10_HOST_DEVICE PtrType data() const { return data_; }

 private:
  PtrType data_;
  Index sizes_[rank];
  Index strides_[rank];
};
template <class Item, size_t rank, template <class> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<Item, rank, PtrTraits, int32_t>;
template <class Item, size_t rank, template <class> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<Item, rank, PtrTraits, int64_t>;
template <class Item, size_t rank, template <class> class PtrTraits = DefaultPtrTraits, class Index = int64_t>
using PackedTensorAccessor = GenericPackedTensorAccessor<Item, rank, PtrTraits, Index>;

}  // namespace at
