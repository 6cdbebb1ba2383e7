#include "unit.hpp"

one_program::report one_program::fast_math() { return run(); }
