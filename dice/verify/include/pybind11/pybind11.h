#pragma once
#include <dice/pybind.h>
