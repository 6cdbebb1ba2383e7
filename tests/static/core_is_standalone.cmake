# The host core needs the standard library and nothing else: every #include of a .hpp names a header of kvmeld or of
# C++17. Newer standard headers, and in backend/host the headers of POSIX and of instruction sets, are allowed where
# a preprocessor condition guards them. The headers of the optional backends are not part of the core. Headers for tests and
# tools include each other and the library, which includes none of them.
#   cmake -DSOURCE_DIR=<repository> -P core_is_standalone.cmake
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/headers.cmake")

set(standard
    algorithm any array atomic bitset charconv chrono codecvt complex condition_variable deque exception execution
    filesystem forward_list fstream functional future initializer_list iomanip ios iosfwd iostream istream iterator
    limits list locale map memory memory_resource mutex new numeric optional ostream queue random ratio regex
    scoped_allocator set shared_mutex sstream stack stdexcept streambuf string string_view system_error thread tuple
    type_traits typeindex typeinfo unordered_map unordered_set utility valarray variant vector
    cassert cctype cerrno cfenv cfloat cinttypes climits clocale cmath csetjmp csignal cstdarg cstddef cstdint cstdio
    cstdlib cstring ctime cuchar cwchar cwctype)
set(guarded_standard barrier bit compare concepts latch mdspan numbers ranges semaphore source_location span stdfloat stop_token
    version)
set(guarded_host pthread.h sched.h signal.h immintrin.h x86intrin.h cpuid.h arm_neon.h arm_sve.h)

headers_below(headers *.hpp *.inl)
list(FILTER headers EXCLUDE REGEX "^include/kvmeld/(kokkos\\.hpp$|backend/kokkos/)")
list(LENGTH headers count)

set(findings)
foreach(header IN LISTS headers)
  file(STRINGS "${SOURCE_DIR}/${header}" directives REGEX "^[ \t]*#[ \t]*(include|if|ifdef|ifndef|elif|else|endif)")
  set(guards) # the conditions around the current line, an include guard left out
  foreach(line IN LISTS directives)
    if(line MATCHES "#[ \t]*if(n?def)?[ \t(!](.*)")
      set(condition "${CMAKE_MATCH_2}")
      if(condition MATCHES "_HPP(_INCLUDED)?_?[ \t]*$")
        list(APPEND guards "include guard")
      else()
        list(APPEND guards "condition")
      endif()
    elseif(line MATCHES "#[ \t]*endif")
      list(POP_BACK guards)
    elseif(line MATCHES "#[ \t]*include[ \t]*([<\"])([^>\"]+)[>\"]")
      set(quote "${CMAKE_MATCH_1}")
      set(name "${CMAKE_MATCH_2}")
      get_filename_component(folder "${header}" DIRECTORY)
      set(allowed FALSE)
      string(REGEX REPLACE "/kvmeld/.*" "" own "${header}")
      if(name MATCHES "^kvmeld/.*\\.hpp$" AND (EXISTS "${SOURCE_DIR}/include/${name}" OR EXISTS "${SOURCE_DIR}/${own}/${name}"))
        set(allowed TRUE)
      elseif(quote STREQUAL "\"")
        if(name MATCHES "\\.(hpp|inl)$" AND EXISTS "${SOURCE_DIR}/${folder}/${name}")
          set(allowed TRUE)
        endif()
      elseif(name IN_LIST standard)
        set(allowed TRUE)
      elseif("condition" IN_LIST guards AND name IN_LIST guarded_standard)
        set(allowed TRUE)
      elseif("condition" IN_LIST guards AND name IN_LIST guarded_host AND header MATCHES "^include/kvmeld/backend/host/")
        set(allowed TRUE)
      endif()
      if(allowed AND name MATCHES "^kvmeld/(kokkos\\.hpp$|backend/kokkos/)")
        set(allowed FALSE)
      endif()
      if(NOT allowed)
        list(APPEND findings "  ${header}: ${line}")
      endif()
    elseif(line MATCHES "#[ \t]*include")
      list(APPEND findings "  ${header}: ${line}")
    endif()
  endforeach()
endforeach()

if(findings)
  list(JOIN findings "\n" findings)
  message(FATAL_ERROR "headers of the core may include only kvmeld's and the standard library's:\n${findings}")
endif()
message(STATUS "${count} headers include nothing but kvmeld and the standard library")
