// Error codes shared by the launcher and the CUDA runtime API.
#pragma once
#include <cstddef>
#include <cstdint>

namespace dice_emu {

constexpr int kErrorInvalidValue = 1;
constexpr int kErrorInvalidConfiguration = 9;
constexpr int kErrorCooperativeLaunchTooLarge = 720;
void set_last_error(int error);
void free_now(void* pointer);  // without waiting for other streams, as cudaFree does
// device_heap.cpp
size_t device_heap_size();
void set_device_heap_size(size_t bytes);
void device_heap_begin_launch();
void device_heap_end_block(uint64_t block, uint64_t resident);
void device_heap_end_launch();
extern bool without_data;  // tensors have no memory: nothing is launched, and nothing is copied

}  // namespace dice_emu
