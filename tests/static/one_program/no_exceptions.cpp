#include "unit.hpp"

one_program::report one_program::no_exceptions() { return run(); }
