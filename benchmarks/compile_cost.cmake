# cmake [-DCXX=g++] [-DFLAGS="-O2"] -P benchmarks/compile_cost.cmake
#
# What including kvmeld costs a translation unit: seconds to compile an empty one, one that only includes the umbrella,
# and one that compresses a cache by Chelsea's policy, each the best of three; and the size of that last object.
cmake_minimum_required(VERSION 3.25)

if(NOT CXX)
  find_program(CXX NAMES c++ g++ clang++ REQUIRED)
endif()
if(NOT DEFINED FLAGS)
  set(FLAGS "-O2")
endif()
separate_arguments(flags NATIVE_COMMAND "${FLAGS}")
get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
string(RANDOM LENGTH 8 suffix)
if(DEFINED ENV{TMPDIR})
  set(folder "$ENV{TMPDIR}/kvmeld_compile_cost_${suffix}")
else()
  set(folder "/tmp/kvmeld_compile_cost_${suffix}")
endif()
file(MAKE_DIRECTORY "${folder}")

set(standard_headers "#include <cmath>\n#include <ostream>\n#include <string>\n#include <vector>\n")
set(umbrella "#include <kvmeld/kvmeld.hpp>\n")
set(use
    [=[#include <kvmeld/kvmeld.hpp>
#include <cstdint>
std::uint32_t shrink(float* keys, float* values, kvmeld::shape const& extent) {
  kvmeld::strided<float> const k(keys, "LSHTC", extent, extent.key_dim);
  kvmeld::strided<float> const v(values, "LSHTC", extent, extent.value_dim);
  kvmeld::merged_cache cache(kvmeld::host_executor(), kvmeld::preset::chelsea::llama3(), kvmeld::kv{k, v},
                             kvmeld::limits{extent});
  cache.open(0, extent.capacity);
  std::uint32_t const slot = 0;
  cache.compress(kvmeld::index_list(&slot, 1), kvmeld::budget::ratio(0.2));
  return cache.longest(0);
}
]=])

# Best wall time of three compilations of `text`, in milliseconds, into `result`.
function(time_compilation name text result)
  set(source "${folder}/${name}.cpp")
  file(WRITE "${source}" "${text}")
  set(best 0)
  foreach(repetition RANGE 1 3)
    string(TIMESTAMP begin "%s%f")
    execute_process(
      COMMAND "${CXX}" -std=c++17 ${flags} "-I${root}/include" -c "${source}" -o "${folder}/${name}.o"
      COMMAND_ERROR_IS_FATAL ANY)
    string(TIMESTAMP end "%s%f")
    math(EXPR took "(${end} - ${begin}) / 1000")
    if(best EQUAL 0 OR took LESS best)
      set(best ${took})
    endif()
  endforeach()
  set(${result} ${best} PARENT_SCOPE)
endfunction()

time_compilation(standard "${standard_headers}" standard_ms)
time_compilation(umbrella "${umbrella}" umbrella_ms)
time_compilation(use "${use}" use_ms)
file(SIZE "${folder}/use.o" object_bytes)
file(REMOVE_RECURSE "${folder}")

execute_process(COMMAND "${CXX}" --version OUTPUT_VARIABLE version)
string(REGEX MATCH "^[^\n]*" version "${version}")
message(STATUS "${version}, -std=c++17 ${FLAGS}")
message(STATUS "<cmath> <ostream> <string> <vector> alone:       ${standard_ms} ms")
message(STATUS "#include <kvmeld/kvmeld.hpp>:                    ${umbrella_ms} ms")
message(STATUS "a merged_cache with chelsea, opened, compressed: ${use_ms} ms, object of ${object_bytes} bytes")
