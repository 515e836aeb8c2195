#include "cli/memory_settings.h"

#include <cstdlib>

#ifdef TRIREME_JEMALLOC
#include <jemalloc/jemalloc.h>

// Read by jemalloc before main; the environment's MALLOC_CONF comes after it. What is freed returns to the
// system at once where it is large (jemalloc's oversize_threshold), else after a tenth of a second, within
// which tiles take it again. glibc would keep it: a third to a half more than what is in use, and more each
// step; told to return it, it spends a fifth of the time on fresh pages (docs/alst.md has the figures).
extern "C" {
const char* malloc_conf = "dirty_decay_ms:100,muzzy_decay_ms:0";
}
#endif

namespace trireme::cli {

void prefer_tight_allocation() {
  if (std::getenv("PYTORCH_CUDA_ALLOC_CONF") || std::getenv("PYTORCH_ALLOC_CONF")) return;
  ::setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,pinned_max_round_threshold_mb:1",
           /*overwrite=*/0);
}

std::string host_allocator() {
#ifdef TRIREME_JEMALLOC
  const std::string version = JEMALLOC_VERSION;
  return "jemalloc " + version.substr(0, version.find('-'));
#else
  return "the system's";
#endif
}

}  // namespace trireme::cli
