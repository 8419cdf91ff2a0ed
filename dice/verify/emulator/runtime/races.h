// Data races of the running launch. Candidates compiled with -fsanitize=thread report each access (tsan.cpp). What
// counts as a race, and what is let pass, stands at the beginning of dice/verify/emulator/races.py.
#pragma once
#include <map>
#include <set>
#include <vector>

#include "runtime.h"

namespace dice_emu {

enum AccessFlags : unsigned { kWrites = 1, kAtomic = 2, kVolatile = 4 };

// One access to one word. A barrier interval is the time between two barriers of one block; numbers are never reused.
struct Access {
  uint32_t interval;  // 0: none
  uint32_t time;      // Races::time_ at the access
  uint32_t place;     // low half of the return address
  uint32_t thread : 10, bytes : 4, flags : 3, clock : 15;
};

struct Word {
  Access write, reads[2];
};

class Races {
 public:
  void begin_launch(const Worker* worker);
  void end_launch();
  void begin_block(uint64_t block, bool again);  // `again`: it goes on after others
  void sync_grid();                              // all blocks have met
  void barrier();                              // all threads of the block have met
  void order(unsigned warp, unsigned lanes);   // these lanes have met
  void fence();
  void settle();  // decide about the writes whose effect was not known yet; call before another thread runs
  void access(const void* address, size_t size, unsigned flags, const void* place);
  const char* json();  // findings since the last call; valid until the next

 private:
  struct Place {
    uint32_t block[3], thread[3];
    unsigned flags;
    const void* code;
  };
  struct Finding {
    const char* kind;  // "race" | "uninitialised"
    const Kernel* kernel;
    const char* memory;  // Region::kind, or "variable"
    char label[120];
    size_t offset;  // from the region's data; a variable's from the beginning of its library
    size_t size, width;
    Place first, second;
    bool speculative;  // a plain read beside an atomic: fine where an atomic follows it, as in a CAS loop
    uint64_t times;
  };
  struct Block {
    uint32_t interval;  // its first
    uint32_t last_fence;
    uint64_t number;
  };
  struct Doubt {  // a racing write that is harmless if it changes nothing
    const char* address;
    uint32_t value;
    Finding finding;
  };
  struct Slot {
    uintptr_t page;
    Region* region;
  };

  Region* region_of(const char* address);
  Region* variables_at(uintptr_t page);
  void look_at(const void* address, size_t size, unsigned flags, const void* place);
  void access_word(Region* region, char* word, unsigned bytes, unsigned flags, size_t size, const void* place);
  bool ordered(const Access& earlier, const Access& now) const;
  bool harmless(const Access& earlier, const Access& now, bool shared) const;
  void suspect(const Region* region, const char* word, size_t size, const Access& earlier, const Access& now, const void* place);
  Place place_of(const Access& access, const void* near) const;
  void keep(Finding finding);
  const Block* block_of(uint32_t interval) const;
  uint16_t* clocks(unsigned warp);  // [lane][of lane]

  const Worker* worker_ = nullptr;
  uint32_t interval_ = 0, launch_start_ = 0, block_start_ = 0, time_ = 0;
  bool again_ = false;     // the block has run before, and what it wrote to shared memory then is not known any more
  bool acquired_ = false;  // the block has read what other blocks may have released
  std::vector<Block> blocks_;
  std::vector<Doubt> doubts_;
  std::map<std::pair<uint64_t, unsigned>, Finding> found_;
  std::vector<Finding> finished_;
  std::set<uint32_t> speculations_;  // plain reads that an atomic on the same word followed
  static constexpr unsigned kSlots = 1024;
  Slot slots_[kSlots] = {};
  std::map<uintptr_t, Region*> variables_;  // by page
  uint32_t clock_interval_[kMaxWarps] = {};
  uint16_t clocks_[kMaxWarps][kWarp * kWarp] = {};
  uint32_t last_fence_[kMaxThreads] = {}, last_acquire_[kMaxThreads] = {};
};

extern Races* races;  // null unless races are looked for
void free_shadow(Region* region);

}  // namespace dice_emu
