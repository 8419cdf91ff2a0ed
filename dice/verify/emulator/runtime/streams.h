// Work on streams that the default one does not wait for. Nothing runs beside anything else here, so such work is kept
// until something waits for it; what is read before shows what a GPU might have shown.
#pragma once
#include <functional>

#include "../include/dice_emu/host_api.h"

namespace dice_emu {

bool is_deferred(cudaStream_t stream);
void enqueue(cudaStream_t stream, std::function<void()> work);  // at once where the stream is not deferred
void finish_all();
void turn_to_default_stream();  // which waits for the streams that are not declared non-blocking

}  // namespace dice_emu
