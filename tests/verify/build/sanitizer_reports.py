"""Reports in the form that compute-sanitizer's manual shows, about kernels of ours."""

OUT_OF_BOUNDS = """\
========= COMPUTE-SANITIZER
loading
========= Invalid __global__ write of size 4 bytes
=========     at scale(const float *, float *, int)+0x1d0 in cuda_source:8
=========     by thread (64,0,0) in block (3,0,0)
=========     Access to 0x7f1c2f000400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f1c2f000000 of size 1,024 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at scale(const float *, float *, int)+0x1d0 in cuda_source:8
=========     by thread (65,0,0) in block (3,0,0)
=========     Access to 0x7f1c2f000404 is out of bounds
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call.
========= ERROR SUMMARY: 3 errors
"""

INLINED = """\
========= COMPUTE-SANITIZER
========= Invalid __shared__ read of size 16 bytes
=========     at load4(const float *)+0x90 in cuda_source:4
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x82 is misaligned
=========         Device Frame: void ns::gather<float, (int)4>(T1 *)+0x310 in cuda_source:21
=========
========= ERROR SUMMARY: 1 error
"""

RACES = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void row_sum<(int)128>(const float *, float *)+0x150
=========     in cuda_source:9
=========     and Read access at void row_sum<(int)128>(const float *, float *)+0x160 in cuda_source:12 [508 hazards]
=========     and Read access at void row_sum<(int)128>(const float *, float *)+0x170 in cuda_source:13 [4 hazards]
=========
========= Warning: Race reported between Read access at void row_sum<(int)128>(const float *, float *)+0x180 \
in cuda_source:14
========= and Write access at void row_sum<(int)128>(const float *, float *)+0x190 in cuda_source:12 [1 hazard]
=========
========= Error: Race reported between Write access at cublas_kernel(float *)+0x10
=========     and Read access at cublas_kernel(float *)+0x20 [8 hazards]
=========
========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)
"""

UNINITIALISED = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at gather(float *)+0x70 in /scratch/tmp-1/cuda_source:5
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 1 error
"""

BARRIER = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at sum(float *)+0x70 in cuda_source:15
=========     by thread (64,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
CUT_OFF = OUT_OF_BOUNDS.partition("========= Program hit")[0]
