#pragma once
#include <dice/cuda_allocator.h>
