#pragma once
#include <dice/pybind_alias.h>
