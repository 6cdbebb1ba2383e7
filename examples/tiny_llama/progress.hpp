// A progress bar for stderr: how far, what runs now, how long it took and how long it may still take.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ostream>
#include <string>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace tiny_llama {

inline bool stderr_is_terminal() {
#if defined(__unix__) || defined(__APPLE__)
  return isatty(STDERR_FILENO) == 1;
#else
  return false;
#endif
}

/// On a terminal it redraws one line; elsewhere (a log) it prints a line for about every tenth of the way.
class progress {
public:
  progress(std::ostream& out, double total, bool terminal = stderr_is_terminal())
      : out_(out), total_(total > 0 ? total : 1), terminal_(terminal), began_(clock::now()) {}

  progress(progress const&) = delete;
  progress& operator=(progress const&) = delete;

  ~progress() {
    // An unfinished line must not swallow the error message that follows.
    if (terminal_ && drawn_) {
      out_ << '\n' << std::flush;
    }
  }

  /// `done` of `total` are complete and `what` runs now.
  void update(double done, std::string const& what) {
    double const share = std::min(1.0, std::max(0.0, done / total_));
    double const elapsed = std::chrono::duration<double>(clock::now() - began_).count();
    int const percent = static_cast<int>(share * 100);
    std::string line = bar(share) + padded(percent) + "%  " + clock_text(elapsed) + " elapsed";
    if (share > 0 && share < 1) {
      line += ", about " + clock_text(elapsed * (1 - share) / share) + " left";
    }
    line += "  " + what;
    if (terminal_) {
      line.resize(std::min<std::size_t>(line.size(), 100));  // a wrapped line could not be redrawn in place
      out_ << '\r' << line << "\x1b[K" << std::flush;
      drawn_ = true;
    } else if (percent / 10 > told_) {
      told_ = percent / 10;
      out_ << line << '\n' << std::flush;
    }
  }

  void finish() { update(total_, "done"); }

private:
  using clock = std::chrono::steady_clock;

  static std::string bar(double share) {
    constexpr int width = 20;
    auto const full = static_cast<std::size_t>(share * width);
    return "[" + std::string(full, '#') + std::string(width - full, '.') + "] ";
  }

  static std::string padded(int percent) {
    char text[16];
    std::snprintf(text, sizeof text, "%3d", percent);
    return text;
  }

  static std::string clock_text(double seconds) {
    auto const whole = static_cast<long long>(seconds + 0.5);
    char text[48];
    if (whole >= 3600) {
      std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    } else {
      std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
    }
    return text;
  }

  std::ostream& out_;
  double total_;
  bool terminal_;
  clock::time_point began_;
  int told_ = -1;
  bool drawn_ = false;
};

}  // namespace tiny_llama
