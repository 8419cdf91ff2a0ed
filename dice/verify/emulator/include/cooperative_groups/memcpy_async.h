// cg::memcpy_async: the copy is shared among the group's threads, and made when they wait for it, or before.
#pragma once
#include <cooperative_groups.h>

namespace cooperative_groups {

template <class Group, class T, class U>
void memcpy_async(const Group& group, T* to, const U* from, size_t bytes) {
  constexpr size_t most = 16;  // bytes of one copy
  for (size_t i = most * group.thread_rank(); i < bytes; i += most * group.size())
    dice_copy_async(reinterpret_cast<char*>(to) + i, reinterpret_cast<const char*>(from) + i, bytes - i < most ? bytes - i : most, 0);
  dice_commit_copies();
}
template <class Group> void wait(const Group& group) {
  dice_wait_for_copies(0);
  group.sync();
}
template <unsigned Stages, class Group> void wait_prior(const Group& group) {
  dice_wait_for_copies(Stages);
  group.sync();
}

}  // namespace cooperative_groups
