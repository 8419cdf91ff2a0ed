// Isolated threads: what they see of shared memory, kept as images beside it. See isolation.h.
#include "isolation.h"

#include <atomic>
#include <cstring>

DICE_TLS bool dice_isolated, dice_block_scope;

namespace dice_emu {

constexpr size_t kChunk = 512;                  // bytes that are compared in one call
constexpr int64_t kBytesPerSwitch = 512;        // compared in less time than a switch and its work take anyway
constexpr int64_t kBytesPerAtomic = 512;        // that could be compared in the time that an atomic takes longer
constexpr int64_t kCreditPerBlock = 64 << 20;   // beyond those
constexpr int64_t kCredit = 256 << 20;          // of all blocks together, until the order is set again
constexpr int64_t kLaunchBytes = 16 << 20;      // that are compared before threads are no more isolated on pages
constexpr size_t kTensorBytes = 8 << 20;        // of pages, that a block compares where each thread writes once
constexpr size_t kLeastTensorBytes = 8 << 10, kMostTensorBytes = 128 << 10;  // that are isolated between threads
constexpr size_t kPageBytes = 256 << 10;        // that are isolated between blocks
constexpr int64_t kPageCredit = 64 << 20;       // bytes of pages, of all blocks together, until the order is set again
constexpr size_t kNotFine = SIZE_MAX;
constexpr unsigned kPatience = 1 << 10;         // meetings of a warp without a barrier: it may poll what others write

static std::atomic<int64_t> credit{kCredit}, page_credit{kPageCredit};
void renew_isolation_credit() {
  credit = kCredit;
  page_credit = kPageCredit;
}

void Isolation::begin_launch(bool active, bool blocks, unsigned threads) {
  active_ = active;
  threads_ = threads;
  watches_ = active && blocks && page_credit > 0;
  forget();
  if (!watches_) return;
  const size_t most = kTensorBytes / threads;
  to_compare_ = kLaunchBytes;
  room_ = most < kLeastTensorBytes ? kLeastTensorBytes : most > kMostTensorBytes ? kMostTensorBytes : most;
  coarse_room_ = kPageBytes;
  fine_ = true;
  watch_tensors();
  const Piece none{};
  for (const Piece* piece = variables(); piece->at != none.at; ++piece) add_page(piece->at, piece->size);
}

bool Isolation::touch(const Region& region, const char* address) {
  if (!watches_ || !region.watched || region.closed || address < region.pages || address >= region.pages_end) return false;
  const Piece piece = open_page(region, address);
  if (!on_ || piece.size > coarse_room_) unwatch();  // all that follows is seen by everybody at once
  if (watches_ && piece.size != 0) add_page(piece.at, piece.size);
  return true;
}

void Isolation::add_page(char* data, size_t size) {
  coarse_room_ -= size;
  Page page{data, size, pages_length_, kNotFine};
  pages_length_ += (size + 7) / 8 * 8;
  for (Image* image : {&begin_, &known_, &released_, &final_, &told_, &heard_}) {
    if (image->size() < pages_length_) image->resize(pages_length_);
    memcpy(image->data() + page.offset, data, size);
  }
  if (fine_ && size <= room_) {
    room_ -= size;
    page.fine = length_;
    add(data, size);
    arrays_.back().global = true;
  }
  pages_.push_back(page);
}

void Isolation::unwatch() {
  if (watches_) unwatch_tensors();
  watches_ = false;
}

// From here on everybody sees at once what anybody writes to tensors.
void Isolation::release_pages() {
  unwatch();
  for (const Page& page : pages_) memcpy(page.data, final_.data() + page.offset, page.size);
  pages_.clear();
  coarsen();
}

// Threads are no more isolated on pages. Not while a thread of an isolated block runs: the images are another's then.
void Isolation::coarsen() {
  fine_ = false;
  for (Page& page : pages_) page.fine = kNotFine;
  std::vector<Array> shared;
  length_ = 0;
  for (Array array : arrays_) {
    if (array.global) continue;
    array.offset = length_;
    length_ += (array.size + 7) / 8 * 8;
    shared.push_back(array);
  }
  arrays_ = shared;
}

void Isolation::end_launch() {
  settle();
  release_pages();
  active_ = on_ = false;
  dice_isolated = false;
}

void Isolation::forget() {
  arrays_.clear();
  pages_.clear();
  length_ = pages_length_ = 0;
  told_times_ = known_times_ = 0;
  untold_ = false;
}

void Isolation::begin_block() {
  if (!active_) return;
  settle();
  const int64_t left = credit.load(std::memory_order_relaxed);
  allowance_ = granted_ = left < 0 ? 0 : left / 4 < kCreditPerBlock ? left / 4 : kCreditPerBlock;  // later ones need some, too
  credit.fetch_sub(granted_, std::memory_order_relaxed);
  fenced_ = by_warp_ = false;
  on_ = dice_isolated = true;
  begin_pages();
  for (const Array& array : arrays_) memcpy(merged_.data() + array.offset, array.data, array.size);
  changed_ = true;
  barrier();
  shown_ = loaded_ = &block_;
}

void Isolation::begin_pages() {
  if (to_compare_ < 0 && fine_) coarsen();
  if (page_credit < 0) release_pages();
  for (const Page& page : pages_) memcpy(page.data, begin_.data() + page.offset, page.size);
  for (Image* image : {&known_, &heard_})
    if (!pages_.empty()) memcpy(image->data(), begin_.data(), pages_length_);
  known_times_ = 0;
}

void Isolation::end_block() {
  if (!on_) return;
  flush();
  if (!on_) return;
  keep_all(false);
  if (!untold_) return;  // else it told nobody, and the next block's atomics do not tell of it
  memcpy(released_.data(), told_.data(), pages_length_);
  untold_ = false;
}

void Isolation::rest() {
  flush();
  if (!on_) return;
  exchange(true);
  show(&merged_);
}

void Isolation::restart() { begin_ = released_ = told_ = final_; }

void Isolation::open() {
  settle();
  on_ = dice_isolated = false;
}

char* Isolation::view(const Page& page) { return page.fine == kNotFine ? page.data : merged_.data() + page.fine; }

// Notes what the block has written to the page.
void Isolation::keep(const Page& page, bool release) {
  const char* written = view(page);
  char *known = known_.data() + page.offset, *released = released_.data() + page.offset, *all = final_.data() + page.offset;
  if (memcmp(written, known, page.size) == 0) return;
  for (size_t i = 0; i < page.size; ++i) {
    if (written[i] == known[i]) continue;
    all[i] = written[i];
    if (release) released[i] = known[i] = written[i];
  }
  untold_ = untold_ || release;
}

void Isolation::keep_all(bool release) {
  page_credit.fetch_sub(static_cast<int64_t>(pages_length_), std::memory_order_relaxed);
  for (const Page& page : pages_) keep(page, release);
}

// What is released by now, others may see: an atomic follows it.
void Isolation::tell() {
  if (!untold_) return;
  memcpy(told_.data(), released_.data(), pages_length_);
  page_credit.fetch_sub(static_cast<int64_t>(pages_length_), std::memory_order_relaxed);
  ++told_times_;
  untold_ = false;
}

// Shows the block what it was told since it last looked, but where it has written itself.
void Isolation::learn() {
  if (known_times_ == told_times_) return;
  known_times_ = told_times_;
  for (const Page& page : pages_) {
    char *seen = view(page), *known = known_.data() + page.offset, *heard = heard_.data() + page.offset;
    const char* told = told_.data() + page.offset;
    if (memcmp(told, heard, page.size) == 0) continue;
    for (size_t i = 0; i < page.size; ++i) {
      if (told[i] == heard[i]) continue;
      heard[i] = told[i];
      if (seen[i] == known[i]) seen[i] = known[i] = told[i];
    }
  }
  changed_ = true;
  loaded_ = nullptr;
}

void Isolation::exchange(bool release) {
  if (release) keep_all(true);
  learn();
}

// Gives back what the last block did not need.
void Isolation::settle() {
  if (allowance_ > 0) credit.fetch_add(allowance_ < granted_ ? allowance_ : granted_, std::memory_order_relaxed);
  allowance_ = granted_ = 0;
}

void Isolation::add(char* data, size_t size) {
  if (!active_ || size == 0) return;
  const Array array{data, size, length_, false};
  arrays_.push_back(array);
  length_ += (size + 7) / 8 * 8;
  const auto extend = [&](Image& image) {
    if (image.size() < length_) image.resize(length_);
    memcpy(image.data() + array.offset, data, size);
  };
  extend(merged_);
  extend(block_);
  for (unsigned w = 0; w < kMaxWarps; ++w)
    if (of_warp_[w] != 0) extend(warps_[w]);
  if (on_) spare();
}

// Lanes of a warp are no more isolated from each other where a thirty-second of the comparing has to do.
void Isolation::spare() {
  const auto bytes = static_cast<int64_t>(length_) * threads_;
  by_warp_ = by_warp_ || (bytes > kBytesPerSwitch * threads_ && (bytes > granted_ / 4 || allowance_ < granted_ / 2));
}

void Isolation::copy(Image& to, const Image& from) {
  if (to.size() < length_) to.resize(length_);
  memcpy(to.data(), from.data(), length_);
  allowance_ -= static_cast<int64_t>(length_);
}

void Isolation::show(Image* image) {
  if (loaded_ != image) {
    for (const Array& array : arrays_) memcpy(array.data, image->data() + array.offset, array.size);
    allowance_ -= static_cast<int64_t>(length_);
  }
  shown_ = loaded_ = image;
}

void Isolation::enter(unsigned thread) {
  if (!on_) return;
  const unsigned warp = thread / kWarp, lane = 1u << (thread % kWarp);
  Image* image = (of_all_[warp] & lane) != 0 ? &merged_ : (of_warp_[warp] & lane) != 0 ? &warps_[warp] : &block_;
  if (left_ != kNobody && left_ / kWarp == warp && image == shown_) return;  // it goes on with what that one has left
  flush();
  if (on_) show(image);
}

void Isolation::gather_word(const Array& array, size_t at, std::vector<Change>* changes) {
  constexpr uint64_t kLow = 0x7F7F7F7F7F7F7F7Full;
  const size_t bytes = array.size - at < 8 ? array.size - at : 8;
  uint64_t now = 0, before = 0;
  memcpy(&now, array.data + at, bytes);
  memcpy(&before, shown_->data() + array.offset + at, bytes);
  const uint64_t differs = now ^ before;
  if (differs == 0) return;
  const uint64_t mask = (((((differs & kLow) + kLow) | differs) & ~kLow) >> 7) * 0xFF;  // 0xFF for a byte that differs
  uint64_t merged = 0;
  char* place = merged_.data() + array.offset + at;
  memcpy(&merged, place, 8);
  merged = (merged & ~mask) | (now & mask);
  memcpy(place, &merged, 8);
  memcpy(array.data + at, shown_->data() + array.offset + at, bytes);
  changed_ = true;
  if (changes != nullptr) changes->push_back({static_cast<uint32_t>(array.offset + at), mask, now});
}

// Merges what the running thread wrote to the array, which then holds again what the thread had started from.
void Isolation::gather(const Array& array, std::vector<Change>* changes) {
  const char* before = shown_->data() + array.offset;
  for (size_t chunk = 0; chunk < array.size; chunk += kChunk) {
    const size_t end = array.size - chunk < kChunk ? array.size : chunk + kChunk;
    if (memcmp(array.data + chunk, before + chunk, end - chunk) == 0) continue;
    for (size_t at = chunk; at < end; at += 64) {
      const size_t stop = end - at < 64 ? end : at + 64;
      if (memcmp(array.data + at, before + at, stop - at) == 0) continue;
      for (size_t word = at; word < stop; word += 8) gather_word(array, word, changes);
    }
  }
}

void Isolation::publish(unsigned thread, bool met) {
  std::vector<Change>* changes = (met || by_warp_) && shown_ != &merged_ ? &changes_[thread] : nullptr;
  for (const Array& array : arrays_) gather(array, changes);
  if (changes != nullptr && !changes->empty()) changed_lanes_[thread / kWarp] |= 1u << (thread % kWarp);
  allowance_ += kBytesPerSwitch - static_cast<int64_t>(length_);
  to_compare_ -= static_cast<int64_t>(length_);
}

void Isolation::leave(unsigned thread, bool met) {
  if (!on_ || length_ == 0) return;
  left_ = thread;
  met_ = met;
  if (!by_warp_) flush();
}

// What the last thread wrote, or those lanes of a warp that came one after the other.
void Isolation::flush() {
  if (left_ == kNobody) return;
  const unsigned thread = left_;
  left_ = kNobody;
  publish(thread, met_);
  if (allowance_ < 0) give_up();
}

// From here to the end of the block everybody sees everything, which is one more schedule that a GPU may choose.
void Isolation::give_up() {
  flush();
  if (!on_) return;
  exchange(true);
  show(&merged_);
  release_pages();
  on_ = dice_isolated = false;
  for (unsigned w = 0; w < kMaxWarps; ++w)
    for (; changed_lanes_[w] != 0; changed_lanes_[w] &= changed_lanes_[w] - 1)
      changes_[w * kWarp + static_cast<unsigned>(__builtin_ctz(changed_lanes_[w]))].clear();
}

void Isolation::yield(unsigned thread, bool for_block) {
  leave(thread, false);
  flush();
  if (on_ && !for_block) exchange(true);
  of_all_[thread / kWarp] |= 1u << (thread % kWarp);
}

void Isolation::meet(unsigned warp, unsigned lanes) {
  flush();
  if (!on_ || length_ == 0) return;
  const bool all = (of_all_[warp] & lanes) != 0 || ++meetings_[warp] % kPatience == 0;
  const unsigned changed = changed_lanes_[warp] & (by_warp_ ? ~0u : lanes);
  if (!all && changed == 0 && (of_warp_[warp] & lanes) == 0) return;  // all of them see the block's
  Image& image = warps_[warp];
  if (all || of_warp_[warp] == 0) {
    if (loaded_ == &image) loaded_ = nullptr;
    copy(image, all ? merged_ : block_);
  }
  if (changed != 0 && loaded_ == &image) loaded_ = nullptr;
  for (unsigned rest = changed; rest != 0; rest &= rest - 1) {
    std::vector<Change>& changes = changes_[warp * kWarp + static_cast<unsigned>(__builtin_ctz(rest))];
    for (const Change& change : changes) {
      uint64_t value = 0;
      if (all) break;
      memcpy(&value, image.data() + change.offset, 8);
      value = (value & ~change.mask) | (change.value & change.mask);
      memcpy(image.data() + change.offset, &value, 8);
    }
    changes.clear();
  }
  changed_lanes_[warp] &= ~changed;
  of_all_[warp] &= ~lanes;
  of_warp_[warp] |= lanes;
}

void Isolation::barrier() {
  flush();
  if (!on_) return;
  if (changed_) {
    if (loaded_ == &block_) loaded_ = nullptr;
    copy(block_, merged_);
    changed_ = false;
  }
  for (unsigned w = 0; w < kMaxWarps; ++w) {
    for (; changed_lanes_[w] != 0; changed_lanes_[w] &= changed_lanes_[w] - 1)
      changes_[w * kWarp + static_cast<unsigned>(__builtin_ctz(changed_lanes_[w]))].clear();
    of_warp_[w] = of_all_[w] = meetings_[w] = 0;
  }
  spare();
}

void Isolation::fence(unsigned thread, bool for_block) {
  if (!on_) return;
  fenced_ = true;
  yield(thread, for_block);
  enter(thread);
}

const Isolation::Array* Isolation::array_of(const char* address) const {
  for (const Array& array : arrays_)
    if (address >= array.data && address < array.data + array.size) return &array;
  return nullptr;
}

const Isolation::Page* Isolation::page_of(const char* address) const {
  for (const Page& page : pages_)
    if (address >= page.data && address < page.data + page.size) return &page;
  return nullptr;
}

// The memory as the running thread sees it takes part in the atomic, so the merged value must be there, and what the
// thread itself wrote must be merged before.
void Isolation::before_atomic(unsigned thread, const void* address, size_t size, bool locks) {
  if (!on_) return;
  auto* live = static_cast<char*>(const_cast<void*>(address));
  const Page* page = page_of(live);
  if (fenced_ || locks || page != nullptr) {
    leave(thread, false);
    flush();
    if (on_ && !dice_block_scope) exchange(locks);
    of_all_[thread / kWarp] |= 1u << (thread % kWarp);
    enter(thread);
  }
  const Array* array = array_of(live);
  if (!on_ || array == nullptr) return;
  const size_t offset = array->offset + static_cast<size_t>(live - array->data);
  allowance_ -= kBytesPerAtomic;
  char *merged = merged_.data() + offset, *before = shown_->data() + offset;
  for (size_t i = 0; i < size; ++i) {
    if (live[i] != before[i]) merged[i] = live[i];
    live[i] = merged[i];
  }
}

void Isolation::after_atomic(const void* address, size_t size) {
  if (!on_) return;
  const auto* live = static_cast<const char*>(address);
  if (!dice_block_scope) tell();
  if (const Page* page = dice_block_scope ? nullptr : page_of(live)) {  // what atomics make of a word is there for all at once
    const size_t offset = page->offset + static_cast<size_t>(live - page->data);
    for (Image* image : {&known_, &released_, &final_, &told_, &heard_}) memcpy(image->data() + offset, live, size);
    known_times_ += known_times_ == told_times_;
    ++told_times_;
  }
  const Array* array = array_of(live);
  if (array == nullptr) return;
  const size_t offset = array->offset + static_cast<size_t>(live - array->data);
  memcpy(merged_.data() + offset, live, size);
  memcpy(block_.data() + offset, live, size);
  for (unsigned w = 0; w < kMaxWarps; ++w)
    if (of_warp_[w] != 0) memcpy(warps_[w].data() + offset, live, size);
}

void Isolation::after_volatile_store(const void* address, size_t size) {
  if (on_ && page_of(static_cast<const char*>(address)) != nullptr) after_atomic(address, size);
}

void Isolation::read_only(const void* address, void* to, size_t size) const {
  const auto* place = static_cast<const char*>(address);
  const Page* page = on_ ? page_of(place) : nullptr;
  if (page != nullptr && place + size <= page->data + page->size) memcpy(to, begin_.data() + page->offset + (place - page->data), size);
}

}  // namespace dice_emu

using dice_emu::tls_worker;

void dice_fence(bool for_block) { tls_worker->isolation().fence(tls_worker->thread_number(), for_block); }
void dice_before_atomic(const void* address, size_t size, bool locks) {
  tls_worker->isolation().before_atomic(tls_worker->thread_number(), address, size, locks);
}
void dice_read_only(const void* address, void* to, size_t size) { tls_worker->isolation().read_only(address, to, size); }
void dice_after_volatile_store(const void* address, size_t size) {
  tls_worker->isolation().after_volatile_store(address, size);
}
void dice_after_atomic(const void* address, size_t size) { tls_worker->isolation().after_atomic(address, size); }
