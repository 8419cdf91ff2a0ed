// cg::inclusive_scan and cg::exclusive_scan over tiles and coalesced groups.
#pragma once
#include <cooperative_groups.h>

namespace cooperative_groups {

template <class Group, class T, class Operation>
T inclusive_scan(const Group& group, T value, Operation&& operation) {
  const auto own = group.thread_rank();
  T total = group.shfl(value, 0);
  for (unsigned rank = 1; rank < group.size(); ++rank) {
    const T next = group.shfl(value, static_cast<int>(rank));
    if (rank <= own) total = operation(total, next);
  }
  return total;
}
template <class Group, class T>
T inclusive_scan(const Group& group, T value) { return inclusive_scan(group, value, plus<T>()); }

template <class Group, class T, class Operation>
T exclusive_scan(const Group& group, T value, Operation&& operation) {
  const T inclusive = inclusive_scan(group, value, operation);
  const T previous = group.shfl_up(inclusive, 1);
  return group.thread_rank() == 0 ? T() : previous;
}
template <class Group, class T>
T exclusive_scan(const Group& group, T value) { return exclusive_scan(group, value, plus<T>()); }

}  // namespace cooperative_groups
