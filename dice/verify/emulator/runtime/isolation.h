// A schedule in which threads of a block do not see each other's writes to shared memory before they have synchronised.
//
// Threads run one after the other, so `total += v` without an atomic, or a missing barrier, would be right in every order
// of whole threads. Under this schedule a thread starts from the shared memory as it was when it last synchronised.
// What it wrote, the bytes that differ from that, is merged when it next waits or ends, and the last writer wins. Others
// see it once they have met it: the block at a barrier, the lanes of a warp at a collective. Atomics act on the merged
// memory at once. A fence, a yield while spinning, and the atomics that locks are made of show a thread all there is.
//
// The first blocks of a launch (64 to 256 of them, see scheduler.cpp) are isolated from each other, too, in tensors
// and `__device__` variables: sums that many add to. A page of a tensor is isolated from the first write to it on,
// which is seen because tensors are read-only until then. Each of these blocks begins with the memory as it was when
// the launch began. What it writes is there for all when the launch ends, the last writer winning, and for other
// blocks before that only if it is released: by a fence, by an atomic, which releases the word that it acts on, or
// by one that locks are made of. What a fence has released others see from their next atomic or fence on, once an
// atomic has followed it that tells them: so a counter alone does not tell the last block what others have written,
// and it takes a fence before it, not after. A fence for the block alone, and an atomic for it, release nothing to
// others. A store through a volatile pointer is to other blocks what an atomic is: a flag that is raised so is seen
// by who polls it, and tells of what was fenced before.
// Threads of the first blocks are isolated from each other on the first pages (`fine` ones), as many as are quick to
// compare at every switch of threads. For the other pages and blocks a comparison for each block does.
//
// Arrays up to half a KB are isolated in all blocks; larger ones as long as the credit lasts, since every switch of
// threads compares all shared memory of the block. Where it would not last, a warp is compared as if it were one thread:
// its lanes see at once what those wrote that ran just before, and other warps do not. Each block may use up a quarter of
// what the ones before have left. Blocks without credit see everything, as in the other orders.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime.h"

namespace dice_emu {

class Isolation {
 public:
  // `blocks`: from each other, too; they run one by one. `threads`: of a block.
  void begin_launch(bool active, bool blocks, unsigned threads);
  void end_launch();
  void begin_block();
  void end_block();
  void rest();     // the block, all of whose threads wait for the grid, leaves what it has written for the others
  void restart();  // all blocks have: from here on each sees what all have written
  void open();     // the block that goes on now has given up
  void give_up();
  void add(char* data, size_t size);  // an array that the block turns out to use; it holds what every thread sees
  void forget();                      // all arrays
  bool touch(const Region& region, const char* address);  // the first write to a page; false where it may not be

  void enter(unsigned thread);           // it starts, or goes on
  void leave(unsigned thread, bool met);  // it waits or ends. `met`: for other lanes, which then see what it wrote
  void yield(unsigned thread, bool for_block = false);  // the same, and it goes on with all there is by then
  void meet(unsigned warp, unsigned lanes);
  void barrier();
  void fence(unsigned thread, bool for_block);  // `for_block`: other blocks learn nothing of it
  void before_atomic(unsigned thread, const void* address, size_t size, bool locks);
  void after_atomic(const void* address, size_t size);
  void after_volatile_store(const void* address, size_t size);
  void read_only(const void* address, void* to, size_t size) const;  // as it was when the launch began

 private:
  struct Array {
    char* data;
    size_t size, offset;  // in an image
    bool global;          // of a tensor or a variable of the device: there is a page for it
  };
  struct Page {  // isolated between blocks
    char* data;
    size_t size, offset;  // in begin_, known_, released_ and final_
    size_t fine;          // its array's offset in the images of threads, or kNotFine
  };
  struct Change {
    uint32_t offset;
    uint64_t mask, value;
  };
  using Image = std::vector<char>;  // of all arrays, one after the other

  void gather(const Array& array, std::vector<Change>* changes);
  void gather_word(const Array& array, size_t at, std::vector<Change>* changes);
  void publish(unsigned thread, bool met);
  void flush();
  void spare();
  void copy(Image& to, const Image& from);
  void show(Image* image);  // to the thread that runs
  void settle();
  void add_page(char* data, size_t size);
  void begin_pages();  // of a block
  void coarsen();
  char* view(const Page& page);  // the page as the running block has left it
  void keep(const Page& page, bool release);
  void keep_all(bool release);
  void tell();
  void learn();
  void exchange(bool release);
  void unwatch();
  void release_pages();
  const Array* array_of(const char* address) const;
  const Page* page_of(const char* address) const;

  bool active_ = false, watches_ = false, on_ = false, fenced_ = false, changed_ = false;
  bool untold_ = false;  // something was released, and no atomic has followed
  bool by_warp_ = false;  // lanes of a warp are not isolated from each other
  static constexpr unsigned kNobody = ~0u;
  unsigned left_ = kNobody;  // the thread that has left, and what was written is not merged yet; by_warp_ alone
  bool met_ = false;         // how it has
  unsigned threads_ = 0;     // of a block
  bool fine_ = false;  // pages are isolated between threads, too
  size_t length_ = 0;  // of an image that is in use
  int64_t allowance_ = 0, granted_ = 0;  // bytes that this block may still compare; how many of them were of the credit
  size_t room_ = 0, coarse_room_ = 0;  // bytes of pages that may still be isolated: between threads, between blocks
  int64_t to_compare_ = 0;             // bytes, until pages are no longer isolated between threads
  std::vector<Array> arrays_;
  std::vector<Page> pages_;
  size_t pages_length_ = 0;
  uint64_t told_times_ = 0, known_times_ = 0;  // how often others were told of anything; of which the block knows
  Image begin_, known_;      // of pages: when the launch began; what the running block knows
  Image released_, final_;   // what blocks have released of what they have written; all of it
  Image told_, heard_;       // of what is released, what others may see; what the running block has last seen of that
  Image merged_, block_, warps_[kMaxWarps];  // of arrays: all that was written; what the block, what a warp has agreed on
  Image *shown_ = nullptr, *loaded_ = nullptr;  // what the running thread started from; what memory is equal to
  unsigned of_warp_[kMaxWarps] = {}, of_all_[kMaxWarps] = {};  // lanes that see their warp's image, and the merged one
  unsigned changed_lanes_[kMaxWarps] = {}, meetings_[kMaxWarps] = {};
  std::vector<Change> changes_[kMaxThreads];  // of lanes, since they last met
};

void renew_isolation_credit();

}  // namespace dice_emu
