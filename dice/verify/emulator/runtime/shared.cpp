// `__shared__` memory: every array of every worker ends at an inaccessible page. And asynchronous copies to it.
#include <cstring>

#include "isolation.h"
#include "races.h"
#include "runtime.h"

namespace dice_emu {

constexpr size_t kSharedGuard = 1 << 20;
constexpr int64_t kSharedNear = kSharedGuard / 2;

char* Worker::map_shared(SharedSite* site, size_t bytes, size_t alignment) {
  unsigned i = 0;
  while (i < shared_count_ && (shared_[i].site != site || shared_[i].region->size != bytes)) ++i;
  if (i == shared_count_) {
    if (i == kMaxSites) fault("unsupported", "it uses more than %u __shared__ declarations", kMaxSites);
    Region* region = new_region(bytes, kSharedGuard, "shared array");
    if (region == nullptr) fault("unsupported", "the machine has no memory left for shared arrays");
    shared_[shared_count_++] = {site, region, false};
  }
  SharedUse& use = shared_[i];
  place(use.region, bytes, alignment, site->name);
  use.in_use = true;
  static_shared_bytes_ += bytes;
  if (static_shared_bytes_ > kStaticSharedLimit)
    fault("launch_error", "it declares more than %zu bytes (48 KB) of static __shared__ memory, which nvcc rejects",
          kStaticSharedLimit);
  memset(use.region->data, kPoison, bytes);
  isolation_.add(use.region->data, bytes);
  site->address[id_] = use.region->data;
  return use.region->data;
}

// Every block starts with poison, so that a read before the first write shows, and the same way on every run.
void Worker::poison_shared() {
  for (unsigned i = 0; i < shared_count_; ++i)
    if (shared_[i].in_use) memset(shared_[i].region->data, kPoison, shared_[i].region->size);
  if (launch_->shared_bytes != 0) memset(dynamic_->data, kPoison, launch_->shared_bytes + dynamic_slack_);
}

// Sites forget their storage after each launch: the next kernel must count its own, and libraries may be unloaded.
void Worker::release_shared() {
  for (unsigned i = 0; i < shared_count_; ++i) {
    if (shared_[i].in_use) shared_[i].site->address[id_] = nullptr;
    shared_[i].in_use = false;
  }
  static_shared_bytes_ = 0;
}

void Worker::set_dynamic_shared() {
  if (dynamic_ == nullptr) dynamic_ = new_region(kDynamicSharedLimit, kSharedGuard, "dynamic shared memory");
  if (dynamic_ == nullptr) fault("unsupported", "the machine has no memory left for shared memory");
  place(dynamic_, launch_->shared_bytes, 16, "");
  dynamic_slack_ = static_cast<size_t>(dynamic_->pages_end - (dynamic_->data + dynamic_->size));
  dice_dynamic_shared = dynamic_->data;
  isolation_.add(dynamic_->data, launch_->shared_bytes);
}

// Up to 15 bytes between the end of the data and the guard page stay writable; see that nobody wrote there.
void Worker::check_dynamic_slack() {
  if (launch_->shared_bytes == 0) return;
  const char* end = dynamic_->data + dynamic_->size;
  for (size_t i = 0; i < dynamic_slack_; ++i) {
    if (static_cast<unsigned char>(end[i]) == kPoison) continue;
    fault("out_of_bounds", "a thread wrote %zu bytes past the end of the dynamic shared memory (%zu bytes)", i,
          dynamic_->size);
  }
}

// PTX knows shared memory by 32 bits. What is near an array, and not in it, is where a guard page is found.
char* Worker::shared_at(uint64_t address) {
  char* found = nullptr;
  const auto look_at = [&](const Region* region) {
    if (region == nullptr) return;
    const int64_t offset = static_cast<int32_t>(static_cast<uint32_t>(address) - static_cast<uint32_t>(reinterpret_cast<uintptr_t>(region->data)));
    const int64_t end = static_cast<int64_t>(region->size);
    const bool inside = offset >= 0 && offset < end, near = offset > -kSharedNear && offset < end + kSharedNear;
    if (inside || (near && found == nullptr)) found = region->data + offset;
  };
  if (launch_->shared_bytes != 0) look_at(dynamic_);
  for (unsigned i = 0; i < shared_count_; ++i)
    if (shared_[i].in_use) look_at(shared_[i].region);
  if (found == nullptr) fault("illegal_address", "0x%llx is no address of its shared memory", static_cast<unsigned long long>(address));
  return found;
}

// In the order in which threads are isolated, a copy is made when its thread waits for it, which is as late as a GPU may
// make it; in the others when it is asked for.
bool Worker::copies_late() const { return launch_->order == kIsolatedOrder && races == nullptr; }

void Copies::make(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Copy& copy = asked[i];
    memcpy(copy.to, copy.from, copy.size - copy.zeros);
    memset(static_cast<char*>(copy.to) + (copy.size - copy.zeros), 0, copy.zeros);
  }
  asked.erase(asked.begin(), asked.begin() + static_cast<ptrdiff_t>(count));
}

void Worker::copy_async(const Copies::Copy& copy) {
  Copies at_once, &copies = copies_late() ? copies_[current_->linear] : at_once;
  copies.asked.push_back(copy);
  if (copies_late()) copies_wait_ = true;
  else copies.make(1);
}

void Worker::commit_copies() {
  if (!copies_late()) return;
  Copies& copies = copies_[current_->linear];
  copies.groups.push_back(copies.asked.size());
  copies_wait_ = true;
}

void Worker::wait_for_copies(size_t groups_left) {
  Copies& copies = copies_[current_->linear];
  if (copies.groups.size() <= groups_left) return;
  const size_t done = copies.groups.size() - groups_left, count = copies.groups[done - 1];
  copies.make(count);
  copies.groups.erase(copies.groups.begin(), copies.groups.begin() + static_cast<ptrdiff_t>(done));
  for (size_t& group : copies.groups) group -= count;
}

void Worker::make_copies() {
  if (!copies_wait_) return;
  for (unsigned i = 0; i < threads_; ++i) {
    copies_[i].make(copies_[i].asked.size());
    copies_[i].groups.clear();
  }
  copies_wait_ = false;
}

}  // namespace dice_emu

char* dice_shared_at(uint64_t address) { return dice_emu::tls_worker->shared_at(address); }
void dice_copy_async(void* to, const void* from, size_t size, size_t zeros) {
  dice_emu::tls_worker->copy_async({to, from, size, zeros});
}
void dice_commit_copies() { dice_emu::tls_worker->commit_copies(); }
void dice_wait_for_copies(size_t groups_left) { dice_emu::tls_worker->wait_for_copies(groups_left); }

char* dice_map_shared(dice_emu::SharedSite* site, size_t bytes, size_t alignment) {
  return dice_emu::tls_worker->map_shared(site, bytes, alignment);
}
