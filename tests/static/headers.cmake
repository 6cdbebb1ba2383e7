# Included by checks of this folder, which get -DSOURCE_DIR=<the repository>: the folders of headers in `roots`, the first of them
# the library's own, and headers_below(OUT pattern...), all headers below them, from the repository's folder.
set(roots include testing/include tools/calibrate/include)

function(headers_below out)
  set(patterns)
  foreach(root IN LISTS roots)
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
