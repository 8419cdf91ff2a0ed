// Puts PyTorch's CPU tensors into the emulator's guarded heap. Compiled against c10 alone, once per PyTorch version.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

extern "C" void* dice_heap_allocate(size_t bytes);
extern "C" bool dice_heap_free(void* data);

namespace {

void release(void* data) { dice_heap_free(data); }

class GuardedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    void* data = dice_heap_allocate(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "not enough memory: you tried to allocate ", bytes, " bytes.");
    return {data, data, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

GuardedAllocator guarded;
c10::Allocator* original = nullptr;
constexpr uint8_t kAbovePlugins = 255;  // SetCPUAllocator ignores a priority below the present one

}  // namespace

extern "C" void dice_allocator_install() {
  if (original != nullptr) return;
  original = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&guarded, kAbovePlugins);
}

extern "C" void dice_allocator_remove() {
  if (original == nullptr) return;
  c10::SetCPUAllocator(original, kAbovePlugins);
  original = nullptr;
}
