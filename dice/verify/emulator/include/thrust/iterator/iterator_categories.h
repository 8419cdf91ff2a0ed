#pragma once
#include <thrust/iterator/iterator_base.h>
