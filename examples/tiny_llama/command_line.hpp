// Command lines of the demo and of the calibration: every bad value is refused in one sentence with its
// option and itself.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace tiny_llama {

/// Carries the sentence for stderr; a program ends with exit_code (program.hpp).
class option_error : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
  static constexpr int exit_code = 2;
};

/// The options of a program. Values arrive as text, so that the functions below word every refusal.
class command_line {
public:
  explicit command_line(std::string about) : about_(std::move(about)) {}

  /// The option `name`, given once at most; `take` gets its value.
  void add(char const* name, char const* type, std::string help,
           std::function<void(std::string const&)> take);

  /// Returns the text of --help where it was asked for, otherwise nothing. Throws option_error.
  std::string parse(int argc, char const* const* argv) const;

private:
  struct option {
    char const *name, *type;
    std::string help;
    std::function<void(std::string const&)> take;
  };
  std::string help() const;

  std::string about_;
  std::vector<option> options_;
};

/// "NAME is 'VALUE'; it must be CONDITION."
[[noreturn]] void refuse_option(std::string const& name, std::string const& value,
                                std::string const& condition);

/// The parts between commas.
std::vector<std::string> split_at_commas(std::string const& list);

/// Each of these refuses a value that is something else.
std::uint64_t whole_number(std::string const& name, std::string const& value, std::uint64_t least,
                           std::uint64_t most);
std::uint64_t seed_number(std::string const& name, std::string const& value);
int small_number(std::string const& name, std::string const& value, int least, int most);
double positive_number(std::string const& name, std::string const& value);
/// Ascending, no two alike.
std::vector<double> shares_above_zero(std::string const& name, std::string const& value);
std::string some_path(std::string const& name, std::string const& value);

/// Refuses a path that write_file could not write to. Programs ask before they work; a file that is there
/// stays as it is.
void expect_writable(std::string const& name, std::string const& path);

}  // namespace tiny_llama
