// The race detector. One worker runs all blocks, one after the other, so nothing here needs a lock.
#include "races.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

namespace dice_emu {
namespace {

constexpr unsigned kMaxClock = (1 << 15) - 1;
constexpr size_t kMaxFindings = 64;
constexpr uintptr_t kPageBits = 12;

size_t shadow_bytes(const Region* region) { return static_cast<size_t>(region->pages_end - region->pages) / 4 * sizeof(Word); }

Word* shadow_of(Region* region) {
  if (region->shadow == nullptr) {
    void* memory = mmap(nullptr, shadow_bytes(region), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fault("unsupported", "the machine has no memory left for looking for races");
    region->shadow = memory;
  }
  return static_cast<Word*>(region->shadow);
}

constexpr char kVariable[] = "variable";

bool is_shared(const Region* region) { return strcmp(region->kind, "tensor") != 0 && region->kind != kVariable; }

}  // namespace

Races* races;

void free_shadow(Region* region) {
  if (region->shadow != nullptr) munmap(region->shadow, shadow_bytes(region));
  region->shadow = nullptr;
}

void Races::begin_launch(const Worker* worker) {
  worker_ = worker;
  launch_start_ = interval_ + 1;
  blocks_.clear();
  speculations_.clear();
  memset(slots_, 0, sizeof slots_);
}

void Races::end_launch() {
  settle();
  for (auto& [key, finding] : found_) {
    const Place& read = finding.first.flags & kAtomic ? finding.second : finding.first;
    const auto place = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(read.code));
    if (finding.speculative && speculations_.count(place) != 0) continue;
    if (finished_.size() < kMaxFindings) finished_.push_back(finding);
  }
  found_.clear();
  worker_ = nullptr;
}

void Races::begin_block(uint64_t block, bool again) {
  block_start_ = ++interval_;
  again_ = again;
  acquired_ = false;
  blocks_.push_back({block_start_, 0, block});
}

void Races::sync_grid() {
  settle();
  launch_start_ = interval_ + 1;
}

void Races::barrier() {
  settle();
  ++interval_;
}

uint16_t* Races::clocks(unsigned warp) {
  uint16_t* all = clocks_[warp];
  if (clock_interval_[warp] != interval_) {  // a barrier has ordered all that was before
    clock_interval_[warp] = interval_;
    memset(all, 0, sizeof clocks_[warp]);
    for (unsigned lane = 0; lane < kWarp; ++lane) all[lane * kWarp + lane] = 1;
  }
  return all;
}

// Vector clocks of a warp: what any of the lanes had seen, all of them have seen from now on.
void Races::order(unsigned warp, unsigned lanes) {
  settle();
  uint16_t* all = clocks(warp);
  uint16_t seen[kWarp] = {};
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const uint16_t* own = all + __builtin_ctz(rest) * kWarp;
    for (unsigned i = 0; i < kWarp; ++i) seen[i] = std::max(seen[i], own[i]);
  }
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
    memcpy(all + lane * kWarp, seen, sizeof seen);
    if (seen[lane] < kMaxClock) ++all[lane * kWarp + lane];
  }
}

void Races::fence() {
  last_fence_[worker_->thread_number()] = blocks_.back().last_fence = ++time_;
}

// Pages of guarded memory belong to one region or to none, for as long as a launch runs.
Region* Races::region_of(const char* address) {
  const uintptr_t page = reinterpret_cast<uintptr_t>(address) >> kPageBits;
  Slot& slot = slots_[page % kSlots];
  if (slot.page != page) {
    Region* region = const_cast<Region*>(region_at(address));
    if (region == nullptr) region = variables_at(page);
    slot = {page, region != nullptr && region->guarded && region->live ? region : nullptr};
  }
  return slot.region;
}

// A page of a library's data, where `__device__` variables are; null for stacks and the like.
Region* Races::variables_at(uintptr_t page) {
  const auto known = variables_.find(page);
  if (known != variables_.end()) return known->second;
  Dl_info object;
  auto* begin = reinterpret_cast<char*>(page << kPageBits);
  if (dladdr(begin, &object) == 0) return nullptr;
  auto* region = new Region{};
  region->pages = region->data = begin;
  region->size = size_t{1} << kPageBits;
  region->pages_end = begin + region->size;
  region->kind = kVariable;
  region->live = region->guarded = true;
  return variables_[page] = region;
}

void Races::access(const void* address, size_t size, unsigned flags, const void* place) {
  look_at(address, size, flags, place);
  if (flags & (kAtomic | kVolatile)) {
    last_acquire_[worker_->thread_number()] = ++time_;
    acquired_ = true;
  }
}

void Races::look_at(const void* address, size_t size, unsigned flags, const void* place) {
  auto* begin = const_cast<char*>(static_cast<const char*>(address));
  Region* region = region_of(begin);
  if (region == nullptr || begin < region->pages || begin + size > region->pages_end) return;
  if (flags & kWrites) settle();
  char* const end = begin + size;
  for (char* word = begin - (reinterpret_cast<uintptr_t>(begin) & 3); word < end; word += 4) {
    unsigned bytes = 0xF;
    if (word < begin) bytes &= 0xFu << (begin - word);
    if (word + 4 > end) bytes &= 0xFu >> (word + 4 - end);
    access_word(region, word, bytes, flags, size, place);
  }
}

void Races::access_word(Region* region, char* at, unsigned bytes, unsigned flags, size_t size, const void* place) {
  Word& word = shadow_of(region)[(at - region->pages) / 4];
  const unsigned thread = worker_->thread_number();
  const unsigned lane = thread % kWarp;
  Access now;
  now.interval = interval_;
  now.time = time_;
  now.place = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(place));
  now.thread = thread;
  now.bytes = bytes;
  now.flags = flags;
  now.clock = clocks(thread / kWarp)[lane * (kWarp + 1)];
  if (flags & kAtomic) {  // this thread's own plain read of the word was a look before an atomic
    for (Access& read : word.reads) {
      if (read.thread != thread || read.interval < block_start_ || (read.flags & kAtomic)) continue;
      speculations_.insert(read.place);
      read = {};
    }
  }
  const bool shared = is_shared(region);
  const auto conflicts = [&](const Access& earlier) {
    return earlier.interval >= (shared ? block_start_ : launch_start_) && (earlier.bytes & bytes) != 0 && !ordered(earlier, now) &&
           !harmless(earlier, now, shared);
  };
  if (conflicts(word.write)) suspect(region, at, size, word.write, now, place);
  if (flags & kWrites) {
    for (const Access& read : word.reads)
      if (conflicts(read)) suspect(region, at, size, read, now, place);
    word.write = now;
    return;
  }
  if (shared && !again_ && word.write.interval < block_start_) {
    Access nothing{};
    suspect(region, at, size, nothing, now, place);
  }
  // Keep two readers, of two warps where that is possible: a later writer then meets one it is not ordered with.
  const Access& last = word.reads[0];
  const auto same_warp = [&](const Access& read) {
    return read.interval >= block_start_ && read.thread / kWarp == thread / kWarp;
  };
  const bool replaces = last.interval >= block_start_ && last.thread == thread;
  if (!replaces && !(same_warp(last) && word.reads[1].interval == interval_ && !same_warp(word.reads[1])))
    word.reads[1] = last;
  word.reads[0] = now;
}

// Does something make `earlier` happen before `now` on every run?
bool Races::ordered(const Access& earlier, const Access& now) const {
  if (earlier.interval < block_start_) {  // another block: it wrote, fenced, and this block then looked at a flag
    const Block* block = block_of(earlier.interval);
    return block->number == blocks_.back().number || (acquired_ && block->last_fence > earlier.time);
  }
  if (earlier.interval != interval_ || earlier.thread == now.thread) return true;
  if (earlier.thread / kWarp == now.thread / kWarp) {
    const uint16_t* all = clocks_[now.thread / kWarp];
    if (all[now.thread % kWarp * kWarp + earlier.thread % kWarp] >= earlier.clock) return true;
  }
  const uint32_t fenced = last_fence_[earlier.thread];
  return fenced > earlier.time && last_acquire_[now.thread] > fenced;
}

bool Races::harmless(const Access& earlier, const Access& now, bool shared) const {
  constexpr unsigned kSpecial = kAtomic | kVolatile;
  if (((earlier.flags | now.flags) & kWrites) == 0) return true;
  if ((earlier.flags & kSpecial) == 0 || (now.flags & kSpecial) == 0) return false;
  if (((earlier.flags | now.flags) & kAtomic) != 0) return true;
  return !shared || earlier.thread / kWarp == now.thread / kWarp;  // volatile: flags, and warps in lockstep
}

const Races::Block* Races::block_of(uint32_t interval) const {
  const auto after = std::upper_bound(blocks_.begin(), blocks_.end(), interval,
                                      [](uint32_t value, const Block& block) { return value < block.interval; });
  return &*(after - 1);
}

void Races::suspect(const Region* region, const char* word, size_t size, const Access& earlier, const Access& now,
                    const void* place) {
  const unsigned first = static_cast<unsigned>(__builtin_ctz(now.bytes));
  Finding finding{};
  finding.kind = earlier.interval == 0 ? "uninitialised" : "race";
  finding.kernel = worker_->launch()->kernel;
  finding.memory = region->kind;
  snprintf(finding.label, sizeof finding.label, "%s", region->label);
  finding.offset = static_cast<size_t>(word + first - region->data);
  if (region->kind == kVariable) {
    Dl_info object;
    dladdr(word, &object);
    finding.offset = static_cast<size_t>(word + first - static_cast<const char*>(object.dli_fbase));
  }
  finding.size = region->size;
  finding.width = size <= 8 ? size : 4;
  finding.first = place_of(earlier, place);
  finding.second = place_of(now, place);
  const unsigned atomic = (earlier.flags ^ now.flags) & kAtomic;
  const Access& plain = earlier.flags & kAtomic ? now : earlier;
  finding.speculative = atomic != 0 && (plain.flags & kWrites) == 0;
  finding.times = 1;
  if ((now.flags & kWrites) == 0 || (now.flags & kAtomic) != 0) return keep(finding);
  uint32_t value;
  memcpy(&value, word, sizeof value);
  doubts_.push_back({word, value, finding});
}

void Races::settle() {
  if (doubts_.empty()) return;
  for (const Doubt& doubt : doubts_)
    if (memcmp(doubt.address, &doubt.value, sizeof doubt.value) != 0) keep(doubt.finding);
  doubts_.clear();
}

void Races::keep(Finding finding) {
  const auto low = [](const Place& place) { return static_cast<uint64_t>(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(place.code))); };
  const bool across = finding.first.code != nullptr && memcmp(finding.first.block, finding.second.block, sizeof finding.first.block) != 0;
  const auto added = found_.insert({{low(finding.first) << 32 | low(finding.second), across}, finding});
  if (!added.second) ++added.first->second.times;
}

Races::Place Races::place_of(const Access& access, const void* near) const {
  Place place{};
  if (access.interval == 0) return place;
  const dim3& block = worker_->launch()->block;
  const dim3& grid = worker_->launch()->grid;
  const uint64_t number = block_of(access.interval)->number;
  place.block[0] = static_cast<uint32_t>(number % grid.x);
  place.block[1] = static_cast<uint32_t>(number / grid.x % grid.y);
  place.block[2] = static_cast<uint32_t>(number / grid.x / grid.y);
  place.thread[0] = access.thread % block.x;
  place.thread[1] = access.thread / block.x % block.y;
  place.thread[2] = access.thread / block.x / block.y;
  place.flags = access.flags;
  // The code of a library lies together: the nearest address with that low half.
  const auto base = reinterpret_cast<uintptr_t>(near);
  const auto distance = static_cast<int32_t>(access.place - static_cast<uint32_t>(base));
  place.code = reinterpret_cast<const void*>(base + static_cast<uintptr_t>(static_cast<intptr_t>(distance)));
  return place;
}

const char* Races::json() {
  static auto* text = new std::string;
  char piece[1600];
  const auto quoted = [](const char* raw) {
    std::string safe;
    for (; *raw != '\0'; ++raw)
      if (*raw != '"' && *raw != '\\' && static_cast<unsigned char>(*raw) >= 0x20) safe += *raw;
    return safe;
  };
  // "library" and the distance of an address from its beginning
  const auto locate = [&](const void* address) {
    Dl_info object{};
    dladdr(address, &object);
    return std::make_pair(object.dli_fname != nullptr ? quoted(object.dli_fname) : std::string(),
                          static_cast<const char*>(address) - static_cast<const char*>(object.dli_fbase));
  };
  const auto describe = [&](const Place& place) {
    if (place.code == nullptr) return std::string("null");
    const auto [library, code] = locate(place.code);
    const char* did = place.flags & kAtomic ? (place.flags & kWrites ? "atomic" : "atomic read")
                                            : place.flags & kWrites ? "write" : "read";
    snprintf(piece, sizeof piece,
             "{\"block\": [%u, %u, %u], \"thread\": [%u, %u, %u], \"did\": \"%s\", \"library\": \"%s\", \"code\": %td}",
             place.block[0], place.block[1], place.block[2], place.thread[0], place.thread[1], place.thread[2], did,
             library.c_str(), code - 1);
    return std::string(piece);
  };
  *text = "[";
  for (const Finding& finding : finished_) {
    const std::string first = describe(finding.first), second = describe(finding.second);
    snprintf(piece, sizeof piece,
             "%s{\"kind\": \"%s\", \"kernel\": \"%s\", \"memory\": \"%s\", \"label\": \"%s\", \"offset\": %zd, "
             "\"size\": %zu, \"width\": %zu, \"times\": %llu, \"first\": ",
             text->size() > 1 ? ", " : "", finding.kind, finding.kernel->name, finding.memory,
             quoted(finding.label).c_str(), static_cast<ssize_t>(finding.offset), finding.size, finding.width,
             static_cast<unsigned long long>(finding.times));
    *text += piece + first + ", \"second\": " + second + "}";
  }
  *text += "]";
  finished_.clear();
  return text->c_str();
}

}  // namespace dice_emu

extern "C" {
// Look for races from now on, in code that was compiled for it (-fsanitize=thread).
void dice_sanitize() {
  if (dice_emu::races == nullptr) dice_emu::races = new dice_emu::Races;
}
const char* dice_findings_json() { return dice_emu::races == nullptr ? "[]" : dice_emu::races->json(); }
}
