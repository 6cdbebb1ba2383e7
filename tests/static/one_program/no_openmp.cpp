#include "unit.hpp"

one_program::report one_program::no_openmp() { return run(); }
