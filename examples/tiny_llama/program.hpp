// How every program with a command line begins and ends: its streams are open, and whatever goes wrong is a
// sentence on stderr and a status that is not 0.
#pragma once

#include "../all_printed.h"
#include "command_line.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

namespace tiny_llama {

/// Opens the streams that the caller closed, so that no file of the program becomes its stdout. What is then
/// printed fails. A pipe without readers and a limit on sizes of files fail too, instead of ending the
/// program: its files are written to their end, or removed.
inline void prepare_streams() {
  for (int stream = 0; stream < 3; ++stream) {
    if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", stream == 2 ? O_WRONLY : O_RDONLY) < 0) _exit(1);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

/// Prints the help that command_line::parse returned. Whether there was any: then the program has nothing
/// else to do.
inline bool shows_help(std::string const& text) {
  std::fputs(text.c_str(), stdout);
  return !text.empty();
}

/// Runs `body`, which returns the program's status. Returns 2 for option_error, 1 for any other exception,
/// and 1 if body returned 0 and stdout lost what was printed.
template <class Body> int run_program(char const* name, Body body) {
  int status = 1;
  try {
    prepare_streams();
    status = body();
  } catch (option_error const& problem) {
    std::fprintf(stderr, "%s: %s\n", name, problem.what());
    status = option_error::exit_code;
  } catch (std::bad_alloc const&) {
    std::fprintf(stderr, "%s: out of memory\n", name);
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "%s: %s\n", name, problem.what());
  }
  return all_printed() || status != 0 ? status : 1;
}

}  // namespace tiny_llama
