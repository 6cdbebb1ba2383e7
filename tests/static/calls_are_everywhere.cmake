# A call of kvmeld.h is in every place that CONTRIBUTING.md ("Add a call") lists: what the library exports, Python with its stub
# and its documented class, the pages, the tests from C, the fuzz program and the faults test. A call of any_cache is in kvmeld.h.
# What is left out is listed here, with the reason.
#   cmake -DROOT=<kvmeld> -P calls_are_everywhere.cmake
cmake_minimum_required(VERSION 3.25)

# --- what is left out, and why ----------------------------------------------------------------------------------

set(whole_library abi version problem policies options_init bytes check asks create destroy) # no call on a cache that is there
set(reads needs policy tokens longest lengths degrees positions log_degrees warnings saved_bytes) # these change nothing
set(not_in_python
    bytes # the allocator is that of the module
    check asks # of kvmeld.hf, before it has a kvmeld.Cache
    rebind # a kvmeld.Cache holds its tensors
    copy_page) # its ledger does not lie in pages
set(not_of_python_class
    ${not_in_python} abi version problem options_init create # the module's own beginning and errors
    destroy # close_all
    saved_bytes) # save asks for it
set(not_in_cpp ${whole_library} policy # name()
    needs # needs_observation()
    rebind degrees positions lengths log_degrees) # of a type that is known; ledger(), length() and write_log_degree()
set(not_fuzzed abi version policies
    copy_page) # a page's numbers that another page has are no state of a sequence
set(not_faulted
    ${whole_library} ${reads}
    set_scores) # needs a policy with score::given; one launch, as observe_rows
# What only C++ has (docs/c.md says so), or C has under another name.
set(cpp_alone
    name needs_observation exact options valid # readings of a type, or needs and policy
    export_page_metadata adopt freeze # pages
    plan apply length_after # plans
    attend_and_observe write_log_degree # attend with observe; log_degrees
    set_rounds request_stats stats_ready stats lengths_known sync_lengths request_lengths poll_lengths)

# --- the calls ----------------------------------------------------------------------------------------------------

file(READ "${ROOT}/include/kvmeld/kvmeld.h" header)
string(REGEX MATCHALL "KVMELD_API[ a-z0-9_*]* [*]*kvmeld_[a-z_]+[(]" calls "${header}")
list(TRANSFORM calls REPLACE "^.*[ *]kvmeld_([a-z_]+)[(]$" "\\1")
list(LENGTH calls count)
if(count LESS 30)
  message(FATAL_ERROR "only ${count} functions were found in kvmeld.h; this check does not see them")
endif()

set(findings)

# require(PLACE PATTERN LEFT_OUT...): each call but those left out is in the file, where PATTERN has CALL for its name.
function(require place pattern)
  set(text)
  file(GLOB files "${ROOT}/${place}")
  foreach(file IN LISTS files)
    file(READ "${file}" one)
    string(APPEND text "\n${one}")
  endforeach()
  if(text STREQUAL "")
    message(FATAL_ERROR "there is nothing in ${place}")
  endif()
  foreach(call IN LISTS calls)
    string(REPLACE "CALL" "${call}" wanted "${pattern}")
    if(call IN_LIST ARGN)
      continue()
    endif()
    if(NOT text MATCHES "${wanted}")
      list(APPEND findings "  kvmeld_${call} is not in ${place}")
    endif()
  endforeach()
  string(REGEX REPLACE "[*].*" "" listed "${place}")
  file(READ "${ROOT}/CONTRIBUTING.md" contributing)
  string(FIND "${contributing}" "`${listed}" at)
  if(at EQUAL -1)
    list(APPEND findings "  CONTRIBUTING.md does not list ${place} for a new call")
  endif()
  set(findings "${findings}" PARENT_SCOPE)
endfunction()

require(c/kvmeld.map "    kvmeld_CALL;\n")
require(c/*.cpp "kvmeld_CALL[(]")
require(include/kvmeld/compose/any_cache.hpp "[ ]CALL[(]" ${not_in_cpp})
require(include/kvmeld/cache/*.hpp "[ :]CALL[(]" ${not_in_cpp} attend) # attention::attend
require(python/src/core.cpp "[^a-z_]kvmeld_CALL[^a-z_]" ${not_in_python})
require(python/kvmeld/_core.pyi "def CALL[(]" ${not_of_python_class} destroy)
require(python/kvmeld/cache.py "def CALL[(]" ${not_of_python_class} policy) # an attribute
require(docs/c.md "`kvmeld_CALL`")
require(docs/python.md "`(kvmeld[.])?CALL[`(]" ${not_of_python_class} policy)
require(tests/c/*.c* "[^a-z_]kvmeld_CALL[(]")
require(tests/fuzz/c.cpp "[^a-z_]kvmeld_CALL[(]" ${not_fuzzed})
require(tests/faults/every_call.hpp "[.:]CALL[(]" ${not_faulted})
require(python/tests/test_*.py "[.]CALL[(]" ${not_of_python_class} policy)

# What is exported is in the header.
file(READ "${ROOT}/c/kvmeld.map" map)
string(REGEX MATCHALL "    kvmeld_[a-z_]+" exported "${map}")
foreach(name IN LISTS exported)
  string(REGEX REPLACE "^ +kvmeld_" "" name "${name}")
  if(NOT name IN_LIST calls)
    list(APPEND findings "  kvmeld_${name} is in c/kvmeld.map, and not in kvmeld.h")
  endif()
endforeach()

# What a cache chosen at run time can do, C can do.
file(READ "${ROOT}/include/kvmeld/compose/any_cache.hpp" any_cache)
string(REGEX REPLACE "namespace detail {.*" "" any_cache "${any_cache}")
string(REGEX MATCHALL "virtual [^;]*= 0" virtuals "${any_cache}")
list(TRANSFORM virtuals REPLACE "[(].*$" "")
list(TRANSFORM virtuals REPLACE "^.*[ &*]" "")
list(REMOVE_DUPLICATES virtuals)
list(LENGTH virtuals virtual_count)
if(virtual_count LESS 25)
  message(FATAL_ERROR "only ${virtual_count} calls were found in any_cache.hpp; this check does not see them")
endif()
foreach(call IN LISTS virtuals)
  if(NOT call MATCHES "^(readings|held_as)$" AND NOT call IN_LIST calls AND NOT call IN_LIST cpp_alone)
    list(APPEND findings "  any_cache::${call} is not in kvmeld.h, and not among those that only C++ has")
  endif()
endforeach()

# Nothing is left out that is not there.
foreach(call IN LISTS whole_library reads not_in_python not_of_python_class not_in_cpp not_fuzzed not_faulted)
  if(NOT call IN_LIST calls)
    list(APPEND findings "  ${call} is left out by this check, and not in kvmeld.h")
  endif()
endforeach()
foreach(call IN LISTS cpp_alone)
  if(call IN_LIST calls)
    list(APPEND findings "  ${call} is said to be of C++ alone, and is in kvmeld.h")
  endif()
endforeach()

if(findings)
  list(JOIN findings "\n" findings)
  message(FATAL_ERROR "calls that are not everywhere (CONTRIBUTING.md, \"Add a call\"):\n${findings}")
endif()
message(STATUS "${count} functions of kvmeld.h are everywhere; ${virtual_count} calls of any_cache are in kvmeld.h or of C++ alone")
