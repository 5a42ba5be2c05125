# How HiGHS is built, the one library here that CMake builds. Its sources share most of their headers: together they compile
# in a quarter of the time. Where Rust is not optimised, it is little.
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)
if("$ENV{PROFILE}" STREQUAL "debug")
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG" CACHE STRING "")
endif()
