#pragma once
#include <dice/pybind.h>
namespace py = pybind11;
