# Included by checks of this folder, which get -DSOURCE_DIR=<the repository>.
include("${SOURCE_DIR}/cmake/header_folders.cmake")

# headers_below(OUT PATTERN...): all headers, from the repository's folder.
function(headers_below out)
  set(patterns)
  foreach(root IN LISTS kvmeld_header_folders)
    foreach(pattern IN LISTS ARGN)
      list(APPEND patterns "${SOURCE_DIR}/${root}/${pattern}")
    endforeach()
  endforeach()
  file(GLOB_RECURSE found RELATIVE "${SOURCE_DIR}" ${patterns})
  list(LENGTH found count)
  if(count EQUAL 0)
    message(FATAL_ERROR "no headers below ${SOURCE_DIR}")
  endif()
  set(${out} ${found} PARENT_SCOPE)
endfunction()
