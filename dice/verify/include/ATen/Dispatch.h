#pragma once
#include <dice/dispatch.h>
