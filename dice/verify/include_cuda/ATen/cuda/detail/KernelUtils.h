#pragma once
#include <dice/kernel_loop.h>
