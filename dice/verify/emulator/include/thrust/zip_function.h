#pragma once
#include <thrust/iterator/zip_iterator.h>
