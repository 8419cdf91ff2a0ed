#pragma once
#include <dice/error.h>
