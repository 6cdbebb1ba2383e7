#include "unit.hpp"

one_program::report one_program::plain() { return run(); }
