// cg::memcpy_async: the copy happens at once, shared among the group's threads; wait() makes it visible.
#pragma once
#include <cooperative_groups.h>

namespace cooperative_groups {

template <class Group, class T, class U>
void memcpy_async(const Group& group, T* to, const U* from, size_t bytes) {
  for (size_t i = group.thread_rank(); i < bytes; i += group.size())
    reinterpret_cast<char*>(to)[i] = reinterpret_cast<const char*>(from)[i];
}
template <class Group> void wait(const Group& group) { group.sync(); }
template <unsigned Stages, class Group> void wait_prior(const Group& group) { group.sync(); }

}  // namespace cooperative_groups
