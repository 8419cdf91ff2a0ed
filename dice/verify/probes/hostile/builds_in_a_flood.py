# promise: A candidate that has hundreds of sources built ends its own job, and keeps no compiler from others for long.
# alone: timeout runtime_error compile_error load_error
# tags: slow builds
import threading
from torch.utils.cpp_extension import load_inline
def build(number):
    for again in range(60):
        try:
            load_inline(name=f"flood{number}_{again}", cpp_sources=f"int f() {{ return {number * 1000 + again} + {time.time_ns()}ll % 3; }}", functions=["f"])
        except BaseException:
            pass
threads = [threading.Thread(target=build, args=(number,)) for number in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
