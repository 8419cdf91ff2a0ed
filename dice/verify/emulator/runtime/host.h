// Error codes shared by the launcher and the CUDA runtime API.
#pragma once

namespace dice_emu {

constexpr int kErrorInvalidValue = 1;
constexpr int kErrorInvalidConfiguration = 9;
constexpr int kErrorCooperativeLaunchTooLarge = 720;
void set_last_error(int error);
void free_now(void* pointer);  // without waiting for other streams, as cudaFree does
extern bool without_data;  // tensors have no memory: nothing is launched, and nothing is copied

}  // namespace dice_emu
