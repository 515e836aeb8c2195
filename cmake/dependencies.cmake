# LibTorch is the one inside a Python environment's torch; everything else comes from Debian's packages.

find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
if(TRIREME_FUZZ)
  return()  # what is fuzzed needs no more
endif()
find_package(CLI11 REQUIRED)
find_package(hwy REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(LIBURING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(LIBXXHASH REQUIRED IMPORTED_TARGET libxxhash)

if(NOT Torch_DIR)
  find_program(TRIREME_PYTHON python3 PATHS ${CMAKE_SOURCE_DIR}/.venv/bin NO_DEFAULT_PATH)
  if(NOT TRIREME_PYTHON)
    message(FATAL_ERROR "No .venv with torch here: run `make build`, or set Torch_DIR to a LibTorch")
  endif()
  execute_process(
    COMMAND ${TRIREME_PYTHON} -c "import torch; print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
endif()
# A CUDA torch enables CMake's CUDA language, in the C++ standard of this project unless told otherwise, and CMake 3.25
# cannot ask nvcc for C++20. No source here is CUDA code.
set(CMAKE_CUDA_STANDARD 17)
find_package(Torch REQUIRED)

# The wheel holds gloo itself but not its headers; only standard types cross the boundary.
find_path(GLOO_INCLUDE gloo/transport/device.h REQUIRED)

# A wheel of CUDA torch brings NCCL with its headers in the package nvidia-nccl, beside its own.
if(TORCH_CUDA_LIBRARIES)
  file(REAL_PATH "${Torch_DIR}/../../../.." torch_packages)
  find_path(NCCL_INCLUDE nccl.h HINTS ${torch_packages}/nvidia/nccl/include REQUIRED)
endif()
