// Runs a program as a shell does, and tells how it ended.
#pragma once

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace test {

enum class standard_output { kept, full, closed, without_reader };

/// How a program ended: its status, as a shell gives it (128 and the number for a signal), and what it wrote.
struct ended {
  int status = 0;
  std::string out, err;
};

/// One of the programs that CMake names, separated by '|' in KVMELD_PROGRAMS.
inline std::vector<std::string> all_programs() {
  std::vector<std::string> out(1);
  for (char const* c = KVMELD_PROGRAMS; *c != '\0'; ++c) {
    if (*c == '|') {
      out.emplace_back();
    } else {
      out.back() += *c;
    }
  }
  return out;
}

inline std::string name_of(std::string const& program) { return program.substr(program.rfind('/') + 1); }

inline std::string program_called(std::string const& name) {
  for (std::string const& program : all_programs())
    if (name_of(program) == name) return program;
  FAIL("there is no program " << name);
  return {};
}

/// What a file that nobody else knows has got.
inline std::string content(std::FILE* file) {
  std::string out;
  std::rewind(file);
  std::array<char, 4096> part{};
  while (std::size_t const n = std::fread(part.data(), 1, part.size(), file)) out.append(part.data(), n);
  std::fclose(file);
  return out;
}

inline ended run(std::string const& program, std::vector<std::string> const& arguments,
                 standard_output to = standard_output::kept) {
  std::FILE *out = std::tmpfile(), *err = std::tmpfile();
  REQUIRE(out != nullptr);
  REQUIRE(err != nullptr);
  int ends[2] = {-1, -1};
  REQUIRE(pipe(ends) == 0);
  close(ends[0]);
  std::vector<char*> words{const_cast<char*>(program.c_str())};
  for (std::string const& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_t const child = fork();
  if (child == 0) {
    dup2(fileno(err), 2);
    if (to == standard_output::kept) dup2(fileno(out), 1);
    if (to == standard_output::full) dup2(open("/dev/full", O_WRONLY), 1);
    if (to == standard_output::without_reader) dup2(ends[1], 1);
    if (to == standard_output::closed) close(1);
    close(ends[1]);
    alarm(600);  // a program that hangs ends by SIGALRM
    execv(program.c_str(), words.data());
    _exit(127);
  }
  REQUIRE(child > 0);
  close(ends[1]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  ended result;
  result.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.out = content(out);
  result.err = content(err);
  return result;
}

}  // namespace test
