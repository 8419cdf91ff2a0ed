// CUB inside a block and a warp: reductions and scans. Its other parts are named as missing.
#pragma once
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_scan.cuh>
