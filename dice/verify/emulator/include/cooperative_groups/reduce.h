// cg::reduce over tiles and coalesced groups.
#pragma once
#include <cooperative_groups.h>

namespace cooperative_groups {

// Every thread folds all values in the order of ranks, so that all get the same result to the last bit.
template <class Group, class T, class Operation>
T reduce(const Group& group, T value, Operation&& operation) {
  T total = group.shfl(value, 0);
  for (unsigned rank = 1; rank < group.size(); ++rank) total = operation(total, group.shfl(value, static_cast<int>(rank)));
  return total;
}

}  // namespace cooperative_groups
