// Whose memory an address is in. A kernel that is given a pointer to the host's would fault on a GPU; here it would read
// what it finds there, so the launch says so.
#include <link.h>
#include <pthread.h>

#include <cstdio>

#include "races.h"
#include "runtime.h"

namespace dice_emu {
namespace {

struct Range {
  const char *begin, *end;
  bool holds(const char* address) const { return address >= begin && address < end; }
};

// Variables of the device, by their libraries, which are never unloaded; and the latest tensors outside the heap.
constexpr unsigned kMostSymbols = 4096, kMostForeign = 256;
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Range symbols[kMostSymbols], foreign[kMostForeign];
unsigned symbol_count = 0, foreign_count = 0;
constexpr size_t kVariableBytes = 4096, kVariablesBytes = 8192;  // of one variable, and of all, that blocks may race for
constexpr unsigned kMostVariables = 64;
Piece written[kMostVariables + 1];
unsigned written_count = 0;
size_t written_bytes = 0;
bool expects_device_pointers = false;

bool is_noted(const char* address) {
  pthread_mutex_lock(&mutex);
  bool found = symbol_count == kMostSymbols;
  for (unsigned i = 0; i < symbol_count && !found; ++i) found = symbols[i].holds(address);
  for (unsigned i = 0; i < kMostForeign && !found; ++i) found = foreign[i].holds(address);
  pthread_mutex_unlock(&mutex);
  return found;
}

// Variables of a library or of the program: segments that are mapped from its file, and what they are extended by.
bool is_variable(const char* address) {
  const auto look = [](dl_phdr_info* info, size_t, void* wanted) -> int {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& segment = info->dlpi_phdr[i];
      const char* begin = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
      if (segment.p_type == PT_LOAD && Range{begin, begin + segment.p_memsz}.holds(static_cast<const char*>(wanted))) return 1;
    }
    return 0;
  };
  return dl_iterate_phdr(look, const_cast<char*>(address)) != 0;
}

bool is_on_stack(const char* address) {
  static thread_local Range stack{};
  if (stack.end == nullptr) {
    pthread_attr_t attributes;
    void* lowest = nullptr;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return false;
    pthread_attr_getstack(&attributes, &lowest, &bytes);
    pthread_attr_destroy(&attributes);
    stack = {static_cast<char*>(lowest), static_cast<char*>(lowest) + bytes};
  }
  return stack.holds(address);
}

}  // namespace

bool is_device_memory(const void* address) {
  const auto* place = static_cast<const char*>(address);
  return region_at(place) != nullptr || is_noted(place);
}

const Piece* variables() { return written; }

}  // namespace dice_emu

using namespace dice_emu;

extern "C" {

// From now on kernels get pointers to what the heap holds, because tensors are made there.
void dice_expect_device_pointers() { expects_device_pointers = true; }

void dice_note_symbol(void* address, size_t bytes, bool constant) {
  auto* begin = static_cast<char*>(address);
  pthread_mutex_lock(&mutex);
  if (!constant && bytes <= kVariableBytes && written_bytes + bytes <= kVariablesBytes && written_count < kMostVariables) {
    written[written_count++] = {begin, bytes};
    written_bytes += bytes;
  }
  if (symbol_count < kMostSymbols) symbols[symbol_count++] = {begin, begin + bytes};
  pthread_mutex_unlock(&mutex);
}

// A tensor's memory, which is the device's wherever it is: of a blob, or of another library's array.
void dice_note_tensor(const void* data, size_t bytes) {
  const auto* begin = static_cast<const char*>(data);
  if (!expects_device_pointers || begin == nullptr || is_device_memory(begin)) return;
  pthread_mutex_lock(&mutex);
  foreign[foreign_count++ % kMostForeign] = {begin, begin + (bytes == 0 ? 1 : bytes)};
  pthread_mutex_unlock(&mutex);
}

bool dice_checks_arguments() { return expects_device_pointers && runs_kernels(); }

// `certain`: it is a pointer; else it could be a number, and what looks like the heap of the host's may be chance.
void dice_check_argument(const char* kernel, const char* name, const void* pointer, bool certain) {
  const auto* address = static_cast<const char*>(pointer);
  if (reinterpret_cast<uintptr_t>(address) < 65536 || is_device_memory(address)) return;
  const char* what = is_on_stack(address) ? "a local variable of the host's" : is_variable(address) ? "a variable of the host's" : "";
  if (what[0] == '\0' && !certain) return;
  fault("illegal_address", "kernel %s is given %s, a pointer to %s: no kernel may access the host's memory (illegal memory access)",
        kernel, name, what[0] == '\0' ? "the host's memory" : what);
}
}
