// Memory that ends at an inaccessible page: an index past the end, or far from the array, faults at once, without any
// instrumentation of the code that does it. In some trials tensors begin behind one instead, where an index before the
// start faults, and where they are aligned as a GPU's allocations are, which code may ask for. Freed memory becomes
// inaccessible and its addresses rest for a while.
// What is certainly the GPU's (inputs and parameters, which are named, and what cudaMalloc gave) is inaccessible to host
// code of libraries.
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "races.h"
#include "runtime.h"
#include "streams.h"

namespace dice_emu {
namespace {

constexpr size_t kTensorGuard = size_t{1} << 30;  // each side; costs address space only
constexpr unsigned kQuarantine = 512;             // freed regions that stay reserved
constexpr unsigned kMaxGuarded = 20000;           // each takes two of the 65530 mappings a process may have
constexpr size_t kPlainMargin = 64;               // canaries around an allocation without guard pages
constexpr unsigned kMaxOnDevice = 256;            // each costs two system calls at every launch
constexpr unsigned kMaxWatched = 64;              // so does each of these, at a launch whose blocks are isolated
constexpr size_t kMaxWatchedBytes = 64 << 20;     // of all of them: the kernel walks the pages

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Region* regions = nullptr;
Region* quarantine[kQuarantine];
unsigned quarantine_next = 0;
unsigned guarded_count = 0;
bool at_front = false;  // whether new tensors begin behind a guard page

Region* on_device[kMaxOnDevice];
unsigned device_count = 0;
unsigned threads_in_host_code = 0;

Region* watched[kMaxWatched];
unsigned watched_count = 0;
thread_local bool in_host_code = false;

constexpr unsigned kDamages = 16;
char damages[kDamages][200];
unsigned damage_count = 0;

// Finding the region of a pointer on free: open addressing by the data's address.
constexpr size_t kInitialTable = 1 << 12;
Region** table = nullptr;
size_t table_size = 0, table_used = 0;

class Lock {
 public:
  Lock() { pthread_mutex_lock(&mutex); }
  ~Lock() { pthread_mutex_unlock(&mutex); }
};

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

size_t slot_of(const void* data, size_t size) {
  return (reinterpret_cast<uintptr_t>(data) >> 4) * 0x9E3779B97F4A7C15ull >> 20 & (size - 1);
}

void insert(Region* region) {
  if (table_used * 2 >= table_size) {
    const size_t old_size = table_size;
    Region** old = table;
    table_size = old_size == 0 ? kInitialTable : old_size * 2;
    table = static_cast<Region**>(calloc(table_size, sizeof(Region*)));
    table_used = 0;
    for (size_t i = 0; i < old_size; ++i)
      if (old[i] != nullptr) insert(old[i]);
    free(old);
  }
  size_t slot = slot_of(region->data, table_size);
  while (table[slot] != nullptr) slot = (slot + 1) & (table_size - 1);
  table[slot] = region;
  ++table_used;
}

size_t find_slot(const void* data) {
  if (table_size == 0) return SIZE_MAX;
  size_t slot = slot_of(data, table_size);
  while (table[slot] != nullptr && table[slot]->data != data) slot = (slot + 1) & (table_size - 1);
  return table[slot] == nullptr ? SIZE_MAX : slot;
}

void erase(size_t slot) {
  table[slot] = nullptr;
  --table_used;
  for (size_t i = (slot + 1) & (table_size - 1); table[i] != nullptr; i = (i + 1) & (table_size - 1)) {
    Region* moved = table[i];
    table[i] = nullptr;
    --table_used;
    insert(moved);
  }
}

void link(Region* region) {
  region->previous = nullptr;
  region->next = regions;
  if (regions != nullptr) regions->previous = region;
  __atomic_store_n(&regions, region, __ATOMIC_RELEASE);
}

void unlink(Region* region) {
  if (region->previous != nullptr) {
    region->previous->next = region->next;
  } else {
    regions = region->next;
  }
  if (region->next != nullptr) region->next->previous = region->previous;
}

void set_closed(Region* region, bool closed) {
  if (region->closed == closed || (closed && region->touched)) return;
  const auto bytes = static_cast<size_t>(region->pages_end - region->pages);
  mprotect(region->pages, bytes, closed ? PROT_NONE : PROT_READ | PROT_WRITE);
  region->closed = closed;
}

void take_from_device(Region* region) {
  set_closed(region, false);
  for (unsigned i = 0; i < device_count; ++i)
    if (on_device[i] == region) on_device[i--] = on_device[--device_count];
}

void give_to_device(Region* region) {
  take_from_device(region);
  if (!region->live || !region->guarded || device_count == kMaxOnDevice) return;
  on_device[device_count++] = region;
  set_closed(region, threads_in_host_code != 0);
}

const char* name_of(const Region* region) { return region->label[0] != '\0' ? region->label : "an unlabelled tensor"; }

// A byte of the accessible pages outside the data has changed: somebody wrote there. Only writes show this way.
bool note_damage(const Region* region) {
  const auto damaged = [](const char* begin, const char* end) -> const char* {
    for (; begin != end; ++begin)
      if (static_cast<unsigned char>(*begin) != kPoison) return begin;
    return nullptr;
  };
  const char* data_end = region->data + region->size;
  const char* after = damaged(data_end, region->pages_end);
  const char* before = after == nullptr ? damaged(region->pages, region->data) : nullptr;
  if (after == nullptr && before == nullptr) return false;
  if (damage_count == kDamages) return true;
  char* text = damages[damage_count++];
  if (after != nullptr) {
    snprintf(text, sizeof damages[0], "wrote %zd bytes past the end of %s (%zu bytes)", after - data_end + 1,
             name_of(region), region->size);
  } else {
    snprintf(text, sizeof damages[0], "wrote %zd bytes before the start of %s (%zu bytes)",
             region->data - before, name_of(region), region->size);
  }
  return true;
}

void destroy(Region* region) {
  free_shadow(region);
  if (region->guarded) {
    munmap(region->reserve, static_cast<size_t>(region->reserve_end - region->reserve));
    --guarded_count;
  } else {
    free(region->reserve);
  }
  unlink(region);
  free(region);
}

// For the process that holds more tensors than guard pages can be had: canaries only.
Region* new_plain_region(size_t size, const char* kind) {
  const size_t bytes = (size + 2 * kPlainMargin + kPlainMargin - 1) / kPlainMargin * kPlainMargin;
  auto* block = static_cast<char*>(aligned_alloc(kPlainMargin, bytes));
  auto* region = static_cast<Region*>(calloc(1, sizeof(Region)));
  if (block == nullptr || region == nullptr) {
    free(block);
    free(region);
    return nullptr;
  }
  region->reserve = region->pages = block;
  region->reserve_end = region->pages_end = block + bytes;
  region->data = block + kPlainMargin;
  region->size = size;
  region->kind = kind;
  region->live = true;
  const Lock lock;
  link(region);
  return region;
}

}  // namespace

Region* new_region(size_t capacity, size_t guard, const char* kind) {
  const size_t page = page_size();
  const size_t bytes = (capacity + page - 1) / page * page + (capacity == 0 ? page : 0);
  void* base = MAP_FAILED;
  for (; base == MAP_FAILED && guard >= page; guard /= 64)  // an address-space limit may refuse the wide guards
    base = mmap(nullptr, bytes + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  guard *= 64;
  char* pages = static_cast<char*>(base) + guard;
  auto* region = static_cast<Region*>(calloc(1, sizeof(Region)));
  if (region == nullptr || mprotect(pages, bytes, PROT_READ | PROT_WRITE) != 0) {
    munmap(base, bytes + 2 * guard);
    free(region);
    return nullptr;
  }
  region->reserve = static_cast<char*>(base);
  region->reserve_end = region->reserve + bytes + 2 * guard;
  region->pages = pages;
  region->pages_end = pages + bytes;
  region->kind = kind;
  region->live = region->guarded = true;
  place(region, capacity, 16, "");
  const Lock lock;
  ++guarded_count;
  link(region);
  return region;
}

// The newest first, as results are.
void watch_tensors() {
  const Lock lock;
  size_t bytes = 0;
  for (Region* region = regions; region != nullptr && watched_count < kMaxWatched; region = region->next) {
    const auto size = static_cast<size_t>(region->pages_end - region->pages);
    const bool fits = region->live && region->guarded && !region->closed && region->size != 0 && !region->shared;
    if (!fits || strcmp(region->kind, "tensor") != 0 || bytes + size > kMaxWatchedBytes) continue;
    if (mprotect(region->pages, size, PROT_READ) != 0) continue;
    bytes += size;
    region->watched = true;
    watched[watched_count++] = region;
  }
}

void unwatch_tensors() {
  const Lock lock;
  for (; watched_count != 0; --watched_count) {
    Region* region = watched[watched_count - 1];
    region->watched = false;
    if (region->closed) continue;
    mprotect(region->pages, static_cast<size_t>(region->pages_end - region->pages), PROT_READ | PROT_WRITE);
  }
}

Piece open_page(const Region& region, const char* address) {
  const size_t page = page_size();
  char* begin = region.pages + static_cast<size_t>(address - region.pages) / page * page;
  mprotect(begin, page, PROT_READ | PROT_WRITE);
  char* first = begin < region.data ? region.data : begin;
  char* end = begin + page < region.data + region.size ? begin + page : region.data + region.size;
  return {first, first < end ? static_cast<size_t>(end - first) : 0};
}

void place(Region* region, size_t size, size_t alignment, const char* label) {
  const auto end = reinterpret_cast<uintptr_t>(region->pages_end);
  region->data = reinterpret_cast<char*>((end - size) & ~(alignment - 1));
  region->size = size;
  snprintf(region->label, sizeof region->label, "%s", label);
}

bool is_host_code() { return in_host_code; }

bool set_host_code(bool on) {
  const bool before = in_host_code;
  if (before == on) return before;
  if (on) {
    ensure_alternate_stack();
    install_handlers();
  }
  const Lock lock;
  in_host_code = on;
  threads_in_host_code += on ? 1 : -1;
  if (threads_in_host_code == (on ? 1u : 0u))
    for (unsigned i = 0; i < device_count; ++i) set_closed(on_device[i], on);
  return before;
}

const Region* region_at(const char* address) {
  for (const Region* region = __atomic_load_n(&regions, __ATOMIC_ACQUIRE); region != nullptr; region = region->next)
    if (address >= region->reserve && address < region->reserve_end) return region;
  return nullptr;
}

bool reopened(const Region& region) {
  if (!region.live || !region.closed || (in_host_code && !region.shared)) return false;
  auto* opened = const_cast<Region*>(&region);
  set_closed(opened, false);
  if (in_host_code) {
    opened->touched = true;
    note_host_bytes(region.size);
  }
  return true;
}

}  // namespace dice_emu

using namespace dice_emu;

extern "C" {

// From now on tensors begin behind a guard page, or end before one.
void dice_heap_at_front(bool on) { at_front = on; }

// 16-byte aligned (at a page where it is in front), filled with 0xFF; null when memory is exhausted. Zero bytes give a
// pointer that cannot be read.
void* dice_heap_allocate(size_t bytes) {
  Region* region = guarded_count < kMaxGuarded ? new_region(bytes, kTensorGuard, "tensor") : nullptr;
  if (region != nullptr && at_front) region->data = region->pages;
  if (region == nullptr) region = new_plain_region(bytes, "tensor");
  if (region == nullptr) return nullptr;
  memset(region->pages, kPoison, static_cast<size_t>(region->pages_end - region->pages));
  const Lock lock;
  insert(region);
  return region->data;
}

// False when `data` was not allocated here, or was freed before.
bool dice_heap_free(void* data) {
  if (is_host_code()) turn_to_default_stream();  // whose work may still use it, as PyTorch's memory is given back in its order
  const Lock lock;
  const size_t slot = find_slot(data);
  if (slot == SIZE_MAX) return false;
  Region* region = table[slot];
  take_from_device(region);
  note_damage(region);
  erase(slot);
  region->live = false;
  free_shadow(region);
  if (!region->guarded) {
    destroy(region);
    return true;
  }
  const auto bytes = static_cast<size_t>(region->pages_end - region->pages);
  // Mapping anew gives the memory back and makes every later access fault, in one call.
  mmap(region->pages, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  Region*& resting = quarantine[quarantine_next++ % kQuarantine];
  if (resting != nullptr) destroy(resting);
  resting = region;
  return true;
}

// Name the allocation that holds `data` for fault messages. False when it was not allocated here.
bool dice_heap_label(const void* data, const char* label) {
  const Lock lock;
  auto* region = const_cast<Region*>(region_at(static_cast<const char*>(data)));
  if (region == nullptr) return false;
  snprintf(region->label, sizeof region->label, "%s", label);
  give_to_device(region);
  return true;
}

// Only kernels and copies may touch the allocation that begins at `data`; host code too when `shared`.
void dice_heap_to_device(const void* data, bool shared) {
  const Lock lock;
  const size_t slot = find_slot(data);
  if (slot == SIZE_MAX) return;
  table[slot]->shared = shared;
  give_to_device(table[slot]);
}

// From here on this thread runs host code of a library (or no longer, as PyTorch runs, on the default stream); what held
// before.
bool dice_host_code(bool on) {
  if (in_host_code && !on) turn_to_default_stream();
  return set_host_code(on);
}

// Bytes of the allocation that begins at `data`, or 0.
size_t dice_heap_size(const void* data) {
  const Lock lock;
  const size_t slot = find_slot(data);
  return slot == SIZE_MAX ? 0 : table[slot]->size;
}

// Damage seen since the last call, one sentence a line; live allocations are looked at now. Valid until the next call.
const char* dice_heap_check() {
  static char text[kDamages * 200 + 1];
  const Lock lock;
  for (size_t i = 0; i < table_size; ++i) {
    Region* region = table[i];
    if (region == nullptr || !note_damage(region)) continue;
    memset(region->data + region->size, kPoison, static_cast<size_t>(region->pages_end - region->data) - region->size);
    memset(region->pages, kPoison, static_cast<size_t>(region->data - region->pages));
  }
  size_t used = 0;
  text[0] = '\0';
  for (unsigned i = 0; i < damage_count; ++i)
    used += static_cast<size_t>(snprintf(text + used, sizeof text - used, "%s\n", damages[i]));
  damage_count = 0;
  return text;
}
}
