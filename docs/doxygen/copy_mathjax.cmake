# The parts of MathJax that TeX shown as SVG takes: the site needs no network.
#   cmake -DFROM=<MathJax 2> -DTO=<folder of the site> -P copy_mathjax.cmake
cmake_minimum_required(VERSION 3.25)
set(parts MathJax.js extensions jax/input/TeX jax/element jax/output/SVG/autoload jax/output/SVG/config.js
    jax/output/SVG/jax.js jax/output/SVG/fonts/TeX)
foreach(part IN LISTS parts)
  if(NOT EXISTS "${FROM}/${part}")
    message(FATAL_ERROR "${FROM} has no ${part}")
  endif()
  get_filename_component(folder "${TO}/${part}" DIRECTORY)
  file(COPY "${FROM}/${part}" DESTINATION "${folder}")
endforeach()
