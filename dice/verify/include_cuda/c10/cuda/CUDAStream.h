#pragma once
#include <dice/cuda_stream.h>
