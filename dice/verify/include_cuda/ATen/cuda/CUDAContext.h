#pragma once
#include <dice/cuda_stream.h>
#include <dice/cuda_context.h>
